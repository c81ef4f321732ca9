//! Which of a request's functions the answer may or must call, how the prompt shows them, and what that makes of the answer's
//! text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use penstock_core::constraint::GrammarSource;
use penstock_core::prompt::Chat;
use penstock_output::{
    Callable, Calls, Part, Possible, Start, Tool, ToolFormat, Unbound, after_reasoning, tool_format,
    written_calls,
};
use serde_json::{Value, json};

use crate::http::chats::formats::ChatFormats;
use crate::http::chats::functions::{Choice, Function, Shape, ToolList, choice, functions, kept_back};
use crate::http::chats::reader::{Ids, Reading};
use crate::http::chats::template_places::{ToolPlace, fill_in, into_the_system_message};
use crate::http::chats::typescript;
use crate::http::constraints::Asked;
use crate::http::error::{ApiError, Place};
use crate::http::fields::Fields;
use crate::http::request_fields;
use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

const TOOLS: &str = request_fields::TOOLS.name;
const CHOICE: &str = request_fields::TOOL_CHOICE.name;

/// What follows the list of tools in the prompt of a model whose template has no place for them: how its calls are read.
fn tool_prompt(formats: &ChatFormats) -> String {
    let json = tool_format("json");
    let format = formats.calls.or(json);
    let example = [("get_price", r#"{"item": "tea"}"#.to_owned())];
    let example = format.map(|format| written_calls(format, &formats.template, &example)).unwrap_or_default();
    // The end of the sentence must not look like one of the call.
    let calls = match format.map(|format| format.name) == json.map(|format| format.name) {
        true => format!("a JSON list of calls such as {example}. "),
        false => format!("calls such as\n{example}\n"),
    };
    format!(
        "To call one or more of these functions, answer with nothing but {calls}Otherwise answer in plain text."
    )
}

/// Tools of a request that may call some.
#[derive(Debug)]
pub struct Tools {
    /// As the template shows them.
    shown: Vec<Value>,
    /// Those that may be called.
    functions: Vec<Function>,
    is_required: bool,
    is_single: bool,
    tool_prompt: Option<String>,
}

/// A request's tools, once its prompt is known: how its answers are read, and what they have to be.
pub struct Bound {
    pub reading: Reading,
    pub grammar: Option<Asked>,
    pub grammar_is_optional: bool,
}

impl Bound {
    /// Of an answer without calls. Its text follows `asked`, after reasoning if the model reasons.
    pub fn of_text(formats: &ChatFormats, reading: Reading, asked: Option<Asked>) -> Self {
        let unbound = Self { reading, grammar: None, grammar_is_optional: false };
        let Some(Asked { field, source }) = asked else { return unbound };
        let Some(format) = formats.reasoning else {
            return Self { grammar: Some(Asked { field, source }), ..unbound };
        };
        let (source, start) = match part(source, String::new()) {
            Ok(text) => {
                let start = unbound.reading.start;
                let parts = after_reasoning(format, &formats.template, start, vec![text]);
                (GrammarSource::Parts(parts), start)
            }
            // It is followed from the first token on: what the prompt has opened is reasoning only if the grammar closes it.
            Err(whole) => {
                let (_, close) = format.markers(&formats.template);
                let closes = |text: &str| text.replace('\\', "").contains(close);
                let is_closed = matches!(&whole, GrammarSource::Lark(text) if closes(text));
                (whole, if is_closed { unbound.reading.start } else { Start::Content })
            }
        };
        let reading = Reading { start, ..unbound.reading };
        Self { reading, grammar: Some(Asked { field, source }), grammar_is_optional: false }
    }
}

impl Tools {
    /// Those of OpenAI's dialects. None: without tools, or `tool_choice` is `none`. `additional` are told elsewhere in the request.
    pub fn parse(
        fields: &Fields,
        shape: &Shape,
        additional: &[ToolList],
        warnings: &mut Warnings,
    ) -> Result<Option<Self>, ApiError> {
        let mut left_out = None;
        let mut functions = functions(fields, additional, |tool| match shape.left_out(tool) {
            Some(why) => {
                warnings.no_effect(&tool.place.to_string(), &format!("here: {why}"));
                left_out = left_out.take().or_else(|| Function::read(tool, shape).err());
                Ok(Vec::new())
            }
            None => Function::read(tool, shape),
        })?;
        let choice = choice(fields, shape, &functions, warnings)?.by_shown_names(&functions);
        let choice = choice.without(&kept_back(&mut functions))?;
        // A call is asked for, and there is nothing else to call.
        if let (Choice::Required, [], Some(refusal)) = (&choice, &functions[..], left_out) {
            return Err(refusal);
        }
        let is_single = !fields.boolean(&request_fields::PARALLEL_TOOL_CALLS)?.unwrap_or(true);
        let tools = Self::of(functions, choice, is_single)?;
        let tool_prompt = fields.text(&request_fields::TOOL_PROMPT)?.map(Cow::into_owned);
        let tool_prompt = tool_prompt.filter(|text| !text.is_empty());
        if tools.is_none() {
            for (field, is_given) in [
                (&request_fields::TOOL_PROMPT, tool_prompt.is_some()),
                (&request_fields::PARALLEL_TOOL_CALLS, is_single),
            ] {
                if is_given {
                    warnings.no_effect(field.name, "where no tool may be called");
                }
            }
        }
        Ok(tools.map(|tools| Self { tool_prompt, ..tools }))
    }

    pub fn of(
        mut functions: Vec<Function>,
        choice: Choice,
        is_single: bool,
    ) -> Result<Option<Self>, ApiError> {
        let known = |functions: &[Function], name: &str| {
            if functions.iter().any(|function| function.callable.name == name) {
                return Ok(());
            }
            let text = format!("names a tool that is not in `{TOOLS}`: {}", shortened(name));
            Err(ApiError::invalid(CHOICE, text))
        };
        // All are shown, whichever may be called.
        let shown: Vec<Value> =
            functions.iter_mut().map(|function| std::mem::take(&mut function.shown)).collect();
        let (mut is_required, mut is_single) = (false, is_single);
        match choice {
            Choice::None => return Ok(None),
            Choice::Auto => {}
            Choice::Required => is_required = true,
            Choice::Function(name) => {
                known(&functions, &name)?;
                functions.retain(|function| function.callable.name == name);
                (is_required, is_single) = (true, true);
            }
            Choice::Allowed { names, is_required: must } => {
                names.iter().try_for_each(|name| known(&functions, name))?;
                let names: HashSet<String> = names.into_iter().collect();
                functions.retain(|function| names.contains(&function.callable.name));
                if must && functions.is_empty() {
                    let text = "asks for a call, and allows no tool that can be called";
                    return Err(ApiError::invalid(CHOICE, text));
                }
                is_required = must;
            }
        }
        if functions.is_empty() {
            if is_required {
                return Err(ApiError::invalid(CHOICE, format!("\"required\" needs `{TOOLS}`")));
            }
            return Ok(None);
        }
        Ok(Some(Self { shown, functions, is_required, is_single, tool_prompt: None }))
    }

    /// Puts the tools where the model reads them: into the template, or behind the last message if that has no place
    /// for them.
    pub fn show(&self, chat: &mut Chat, formats: &ChatFormats) {
        let place = formats.manners.tools;
        match place {
            ToolPlace::Template => {
                let mut shown = self.shown.clone();
                if formats.manners.fills_in_tools {
                    shown.iter_mut().for_each(fill_in);
                }
                if formats.template.contains(typescript::VARIABLE) {
                    shown = shown.iter().map(typescript::sorted).collect();
                    if let Some(declared) = typescript::declared(&shown) {
                        chat.variables.entry(typescript::VARIABLE).or_insert(declared.into());
                    }
                }
                chat.tools = Some(shown);
            }
            ToolPlace::SystemMessage => into_the_system_message(&mut chat.messages, &self.shown),
            ToolPlace::LastMessage => {}
        }
        let behind = match (place, &self.tool_prompt) {
            (ToolPlace::LastMessage, prompt) => {
                let prompt = prompt.clone().unwrap_or_else(|| tool_prompt(formats));
                format!("\n---\n{}\n{prompt}", Value::from(self.shown.clone()))
            }
            (_, Some(prompt)) => format!("\n---\n{prompt}"),
            (_, None) => String::new(),
        };
        if behind.is_empty() {
            return;
        }
        for message in chat.messages.iter_mut().rev() {
            match message.get_mut("content") {
                Some(Value::String(text)) => {
                    text.push_str(&behind);
                    return;
                }
                Some(Value::Array(parts)) => {
                    parts.push(json!({"type": "text", "text": behind}));
                    return;
                }
                _ => {}
            }
        }
    }

    /// `calls_before` are those of the conversation until now. `asked` is the format that text is to have.
    pub fn bind(
        &self,
        formats: &ChatFormats,
        start: Start,
        calls_before: usize,
        asked: Option<Asked>,
        warnings: &mut Warnings,
    ) -> Result<Bound, ApiError> {
        let tool = |function: &Function| Tool {
            name: function.callable.name.clone(),
            parameters: function.callable.schema.clone(),
        };
        let reading = |calls: Option<&'static ToolFormat>| Reading {
            calls,
            reasoning: formats.reasoning,
            tools: self.functions.iter().map(tool).collect(),
            start,
            custom: self.custom(),
            has_search: self.functions.iter().any(|function| function.is_search),
            namespaced: self.functions.iter().filter_map(|function| function.namespaced.clone()).collect(),
            is_single: self.is_single,
            ids: Ids::of(calls, calls_before),
        };
        let Some(format) = formats.calls else {
            if self.is_required {
                let text = "cannot be followed: this server was started with --tool-call-parser none";
                return Err(ApiError::invalid(CHOICE, text));
            }
            return Ok(Bound::of_text(formats, reading(None), asked));
        };
        let functions: Vec<Callable> =
            self.functions.iter().map(|function| function.callable.clone()).collect();
        let calls = Calls {
            format,
            template: &formats.template,
            reasoning: formats.reasoning,
            start,
            functions: &functions,
            may_be_several: !self.is_single,
        };
        let grammar = |parts| Some(Asked { field: TOOLS, source: GrammarSource::Parts(parts) });
        if self.is_required {
            let (parts, format) = calls.required();
            if let Some(asked) = asked {
                warnings.no_effect(asked.field, "beside a call that has to be");
            }
            return Ok(Bound {
                reading: reading(Some(format)),
                grammar: grammar(parts),
                grammar_is_optional: false,
            });
        }
        if let Some(asked) = asked {
            let (parts, format) = calls.or_text(vec![beside_calls(asked)?]);
            return Ok(Bound {
                reading: reading(Some(format)),
                grammar: grammar(parts),
                grammar_is_optional: false,
            });
        }
        let is_strict = self.functions.iter().any(|function| function.callable.is_strict);
        if formats.is_unknown && !is_strict {
            // The grammar would bar the model's own calls, and all other special tokens.
            return Ok(Bound { reading: reading(Some(format)), grammar: None, grammar_is_optional: true });
        }
        let in_format = |Unbound { at, why }| Unbound {
            at,
            why: format!("in this model's format ({}) {why}", format.name),
        };
        let grammar = match calls.possible() {
            Ok(Possible { parts, unbound }) => {
                let unbound: Vec<_> = unbound.into_iter().map(in_format).collect();
                warnings.unbound(TOOLS, &unbound);
                grammar(parts)
            }
            Err(Unbound { at, why }) if is_strict => {
                let text = format!(
                    "calls in this model's format ({}) cannot be held to it: {why}. \
                     Leave `strict` or the grammar out, or make the answer a call by `{CHOICE}`",
                    format.name
                );
                return Err(ApiError::unusable(Place::from(TOOLS).pointer(&at), text));
            }
            Err(unbound) => {
                warnings.unbound(TOOLS, &[in_format(unbound)]);
                None
            }
        };
        Ok(Bound { reading: reading(Some(format)), grammar, grammar_is_optional: !is_strict })
    }

    /// Names of those whose argument is a text.
    fn custom(&self) -> Arc<[String]> {
        let custom = self.functions.iter().filter(|function| function.is_custom);
        custom.map(|function| function.callable.name.clone()).collect()
    }
}

/// What text may be instead of calls.
fn beside_calls(asked: Asked) -> Result<Part, ApiError> {
    let Asked { field, source } = asked;
    part(source, format!("{field} ")).map_err(|_| {
        let text = format!("a grammar in Lark's notation is not supported beside `{TOOLS}`");
        ApiError::unusable(Place::path(field), text)
    })
}

/// A part of an answer that follows `source`, whose place is told as `at`. Err: only a whole answer can.
fn part(source: GrammarSource, at: String) -> Result<Part, GrammarSource> {
    Ok(match source {
        GrammarSource::JsonObject => Part::JsonObject,
        GrammarSource::JsonSchema(schema) => Part::Json { schema, at },
        GrammarSource::Regex(expression) => Part::Regex(expression),
        GrammarSource::Choice(texts) => Part::Choice(texts),
        source @ (GrammarSource::Lark(_) | GrammarSource::Parts(_)) => return Err(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FormatFlag;
    use crate::http::chats::manners::Manners;
    use crate::http::fields::tests::limits;
    use penstock_output::{reasoning_format, tool_format};

    fn parsed(body: &str) -> Result<Option<Tools>, ApiError> {
        let limits = limits();
        let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
        Tools::parse(&fields, &Shape::CHAT, &[], &mut Warnings::default())
    }

    fn tools(more: &str) -> Tools {
        let body = format!(
            r#"{{"tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"properties": {{}}}}}}}},
                          {{"type": "function", "function": {{"name": "g", "arguments": {{"type": "object"}},
                                                             "strict": null}}}}]{more}}}"#
        );
        parsed(&body).expect("valid").expect("tools")
    }

    fn formats(calls: &str, template: &str) -> ChatFormats {
        let tools = if template.contains("tools") { ToolPlace::Template } else { ToolPlace::LastMessage };
        let manners = Manners { tools, ..Manners::default() };
        let calls = tool_format(calls);
        ChatFormats { calls, manners, template: template.to_owned(), ..ChatFormats::default() }
    }

    fn bound(tools: &Tools, formats: &ChatFormats, asked: Option<Asked>) -> (Bound, Warnings) {
        let mut warnings = Warnings::default();
        let bound = tools.bind(formats, Start::Content, 0, asked, &mut warnings).expect("it can be followed");
        (bound, warnings)
    }

    #[test]
    fn every_choice_is_understood() {
        let names = |tools: &Tools| -> Vec<String> {
            tools.functions.iter().map(|function| function.callable.name.clone()).collect()
        };
        for (more, called, is_required, is_single) in [
            ("", vec!["f", "g"], false, false),
            (r#", "tool_choice": null"#, vec!["f", "g"], false, false),
            (r#", "tool_choice": "auto", "parallel_tool_calls": false"#, vec!["f", "g"], false, true),
            (r#", "tool_choice": "required""#, vec!["f", "g"], true, false),
            (r#", "tool_choice": "g""#, vec!["g"], true, true),
            (r#", "tool_choice": {"type": "function", "function": {"name": "f"}}"#, vec!["f"], true, true),
            (r#", "tool_choice": {"type": "function", "name": "f"}"#, vec!["f"], true, true),
            // huggingface_hub's `ChatCompletionInputToolChoiceClass`.
            (r#", "tool_choice": {"function": {"name": "f"}}"#, vec!["f"], true, true),
            (r#", "tool_choice": {"type": null, "function": {"name": "f"}}"#, vec!["f"], true, true),
            (
                r#", "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required",
                     "tools": [{"type": "function", "function": {"name": "g"}}]}}"#,
                vec!["g"],
                true,
                false,
            ),
            (
                r#", "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}"#,
                vec!["f"],
                false,
                false,
            ),
        ] {
            let tools = tools(more);
            assert_eq!(
                (names(&tools), tools.is_required, tools.is_single),
                (called.iter().map(|name| name.to_string()).collect(), is_required, is_single),
                "{more}"
            );
            // All are shown, whichever may be called.
            assert_eq!(tools.shown.len(), 2);
            assert_eq!(
                tools.shown[1],
                json!({"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}})
            );
        }
        for none in [
            "{}",
            r#"{"tools": []}"#,
            r#"{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}"#,
        ] {
            assert!(parsed(none).expect("valid").is_none(), "{none}");
        }
    }

    #[test]
    fn what_says_how_to_call_has_no_effect_where_nothing_may_be_called() {
        let limits = limits();
        let named = |more: &str| {
            let body = format!("{{{more}}}");
            let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
            let mut warnings = Warnings::default();
            Tools::parse(&fields, &Shape::CHAT, &[], &mut warnings).expect("valid");
            warnings.lines().into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let why = "has no effect where no tool may be called";
        let both = [format!("`tool_prompt` {why}"), format!("`parallel_tool_calls` {why}")];
        let manners = r#""tool_prompt": "Call it.", "parallel_tool_calls": false"#;
        let tools = r#""tools": [{"type": "function", "function": {"name": "f"}}]"#;
        assert_eq!(named(manners), both);
        assert_eq!(named(&format!(r#"{manners}, {tools}, "tool_choice": "none""#)), both);
        assert!(named(&format!("{manners}, {tools}")).is_empty());
        assert!(named(r#""tool_prompt": "", "parallel_tool_calls": true"#).is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = "f".repeat(257);
        let one =
            |function: &str| format!(r#"{{"tools": [{{"type": "function", "function": {function}}}]}}"#);
        for (body, text) in [
            (r#"{"tools": 5}"#.to_owned(), "`tools` must be a list. Given: 5"),
            (r#"{"tools": [5]}"#.to_owned(), "`tools[0]` must be an object"),
            (
                r#"{"tools": [{"type": "web_search"}]}"#.to_owned(),
                "`tools[0].type` must be \"function\" or \"custom\": this server runs no tools of its own. Given: \"web_search\"",
            ),
            (r#"{"tools": [{"type": "function"}]}"#.to_owned(), "`tools[0].function.name` must be a string"),
            (one(r#"{"name": "f", "parameters": []}"#), "`tools[0].function.parameters` must be an object"),
            (one(r#"{"name": "f", "strict": 1}"#), "`tools[0].function.strict` must be a boolean"),
            (one(r#"{"name": "f g"}"#), "`tools[0].function.name` must be of letters, digits and"),
            (one(r#"{"name": "f\"}<"}"#), "`tools[0].function.name` must be of letters, digits and"),
            (
                one(&format!(r#"{{"name": "{long}"}}"#)),
                "`tools[0].function.name` must have at most 256 characters. Given: 257 characters",
            ),
            (r#"{"tool_choice": "f"}"#.to_owned(), "`tool_choice` names a tool that is not in `tools`: f"),
            (r#"{"tool_choice": "required"}"#.to_owned(), "`tool_choice` \"required\" needs `tools`"),
            (
                r#"{"tools": [{"type": "function", "function": {"name": "f"}}],
                    "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}"#
                    .to_owned(),
                "`tool_choice` asks for a call, and allows no tool",
            ),
            (r#"{"tool_choice": 5}"#.to_owned(), "`tool_choice` must be"),
            (r#"{"tool_choice": {"type": "allowed_tools"}}"#.to_owned(), "`tool_choice` must be"),
            (r#"{"tool_choice": {"name": "f"}}"#.to_owned(), "`tool_choice` must be"),
            (r#"{"tool_choice": {"function": {}}}"#.to_owned(), "`tool_choice` must be"),
            (r#"{"tool_choice": {"function": "f"}}"#.to_owned(), "`tool_choice` must be"),
            (
                r#"{"tool_choice": {"type": "tool", "function": {"name": "f"}}}"#.to_owned(),
                "`tool_choice` must be",
            ),
            (
                format!(r#"{{"tool_choice": "{long}"}}"#),
                "`tool_choice` must have at most 256 characters. Given: 257 characters",
            ),
            (
                r#"{"tools": [{"type": "function", "function": {"name": "f"}},
                              {"type": "function", "function": {"name": "f"}}]}"#
                    .to_owned(),
                "`tools[1].function.name` is the same as another tool's",
            ),
        ] {
            let refused = parsed(&body).err().unwrap_or_else(|| panic!("{body} was taken")).to_string();
            assert!(refused.contains(text), "{body}: {refused}");
        }
    }

    #[test]
    fn tools_are_shown_by_the_template_or_behind_the_last_message() {
        let mut chat = Chat { messages: vec![json!({"role": "user", "content": "Hi"})], ..Chat::default() };
        tools("").show(&mut chat, &formats("hermes", "{{ tools }}"));
        assert_eq!(chat.tools.as_ref().map(Vec::len), Some(2));
        assert_eq!(chat.messages[0]["content"], "Hi");
        tools(r#", "tool_prompt": "Use them.""#).show(&mut chat, &formats("hermes", "{{ tools }}"));
        assert_eq!(chat.messages[0]["content"], "Hi\n---\nUse them.");

        let mut chat = Chat {
            messages: vec![
                json!({"role": "user", "content": [{"type": "text", "text": "Hi"}]}),
                json!({"role": "assistant"}),
            ],
            ..Chat::default()
        };
        tools("").show(&mut chat, &formats("json", "{{ messages }}"));
        let shown = chat.messages[0]["content"][1]["text"].as_str().expect("a text");
        let asks = "To call one or more of these functions, answer with nothing but a JSON list of calls such as \
                    [{\"name\": \"get_price\", \"arguments\": {\"item\": \"tea\"}}]. Otherwise answer in plain text.";
        assert!(shown.starts_with("\n---\n[{\"type\":\"function\"") && shown.ends_with(asks), "{shown}");
        assert!(chat.tools.is_none());
    }

    /// Kimi K2.5's rule.
    #[test]
    fn tools_are_declared_in_typescript_where_the_template_shows_them_so() {
        let kimi = formats(
            "kimi_k2",
            "{% if tools_ts_str %}{{ tools_ts_str }}{% else %}{{ tools | tojson }}{% endif %}",
        );
        let mut chat = Chat { messages: vec![json!({"role": "user", "content": "Hi"})], ..Chat::default() };
        tools("").show(&mut chat, &kimi);
        let declared = "# Tools\n\n## functions\nnamespace functions {\ntype f = (_: {}) => any;\ntype g = (_: {}) => any;\n}\n";
        assert_eq!(chat.variables["tools_ts_str"], declared);
        let keys: Vec<&String> =
            chat.tools.as_ref().expect("tools")[0].as_object().expect("one").keys().collect();
        assert_eq!(keys, ["function", "type"]);
        // The client's own variable is its own.
        chat.variables["tools_ts_str"] = "mine".into();
        tools("").show(&mut chat, &kimi);
        assert_eq!(chat.variables["tools_ts_str"], "mine");
        let mut chat = Chat::default();
        tools("").show(&mut chat, &formats("hermes", "{{ tools }}"));
        assert!(chat.variables.is_empty());
    }

    #[test]
    fn the_prompt_asks_for_calls_as_they_are_read() {
        for format in penstock_output::tool_formats() {
            let mut chat =
                Chat { messages: vec![json!({"role": "user", "content": "Hi"})], ..Chat::default() };
            tools("").show(&mut chat, &formats(format.name, ""));
            let shown = chat.messages[0]["content"].as_str().expect("a text");
            let (_, after) = shown.split_once("calls such as").expect("an example");
            let (example, _) = after.rsplit_once("Otherwise answer").expect("an example");
            let example = example.trim().trim_end_matches('.');
            let parameters = json!({"properties": {"item": {"type": "string"}}});
            let known = [Tool { name: "get_price".to_owned(), parameters }];
            let mut parser = penstock_output::Parser::new(Some(format), None, known.into(), Start::Content);
            let mut deltas = Vec::new();
            parser.push(example, &mut deltas);
            parser.finish(&mut deltas);
            let answer = penstock_output::Answer::of(&deltas);
            let arguments = answer.calls.first().map(|call| call.arguments.parse::<Value>().expect("JSON"));
            assert_eq!(arguments, Some(json!({"item": "tea"})), "{}: {shown}", format.name);
            assert!(answer.calls[0].complete && answer.content.is_empty(), "{}: {answer:?}", format.name);
        }
    }

    #[test]
    fn a_call_that_has_to_be_is_always_right() {
        for (calls, read_as) in [
            ("hermes", "hermes"),
            ("qwen3_coder", "qwen3_coder"),
            ("pythonic", "pythonic"),
            ("gemma4", "gemma4"),
        ] {
            for more in [r#", "tool_choice": "required""#, r#", "tool_choice": "f""#] {
                let (bound, warnings) = bound(&tools(more), &formats(calls, "tools"), None);
                assert_eq!(bound.reading.calls.map(|format| format.name), Some(read_as));
                assert!(bound.grammar.is_some() && !bound.grammar_is_optional && warnings.is_empty());
            }
        }
        let off = ChatFormats::default();
        let refused = tools(r#", "tool_choice": "required""#).bind(
            &off,
            Start::Content,
            0,
            None,
            &mut Warnings::default(),
        );
        assert!(refused.err().is_some_and(|error| error.to_string().contains("--tool-call-parser none")));
    }

    /// The grammar of calls in JSON would bar the model's own.
    #[test]
    fn where_no_format_is_known_calls_bind_only_if_they_are_asked_for() {
        let of = |template: &str, parser: FormatFlag<ToolFormat>| {
            let render = |chat: &Chat| {
                let tools = chat.tools.as_ref().filter(|_| template.contains("tools"));
                let contents: Vec<&Value> = chat.messages.iter().map(|message| &message["content"]).collect();
                Some(format!("{} {}", json!(tools), json!(contents)))
            };
            ChatFormats::of_templates([template; 2], &parser, &FormatFlag::Auto, render)
        };
        let strict =
            parsed(r#"{"tools": [{"type": "function", "function": {"name": "f", "strict": true}}]}"#)
                .expect("valid")
                .expect("tools");
        let template = "{{ tools }}{{ messages }}<|function_request|>";
        let unknown = of(template, FormatFlag::Auto);
        assert!(unknown.is_unknown);
        assert_eq!(unknown.calls.map(|format| format.name), Some("json"));
        let (auto, warnings) = bound(&tools(""), &unknown, None);
        assert!(auto.grammar.is_none() && warnings.is_empty());
        // It is read nonetheless.
        assert_eq!(auto.reading.calls.map(|format| format.name), Some("json"));
        assert!(bound(&strict, &unknown, None).0.grammar.is_some());
        let required = tools(r#", "tool_choice": "required""#);
        assert!(bound(&required, &unknown, None).0.grammar.is_some());

        for known in [
            // Shows no tools: the prompt asks for JSON.
            of("{{ messages }}", FormatFlag::Auto),
            of("{{ tools }} make calls in a single JSON array {{ messages }}", FormatFlag::Auto),
            of("{{ tools }}{{ messages }}<tool_call>", FormatFlag::Auto),
            of(template, FormatFlag::Named(tool_format("json").expect("it exists"))),
        ] {
            assert!(!known.is_unknown, "{}", known.template);
            assert!(bound(&tools(""), &known, None).0.grammar.is_some(), "{}", known.template);
        }
        assert!(!of(template, FormatFlag::Off).is_unknown);
    }

    #[test]
    fn a_call_that_may_be_binds_where_it_can() {
        let (hermes, coder) = (formats("hermes", "tools"), formats("qwen3_coder", "tools"));
        let (auto, warnings) = bound(&tools(""), &hermes, None);
        assert!(auto.grammar.is_some() && auto.grammar_is_optional && warnings.is_empty());
        let (auto, warnings) = bound(&tools(""), &coder, None);
        assert!(auto.grammar.is_some() && auto.grammar_is_optional && warnings.is_empty());
        assert_eq!(auto.reading.calls.map(|format| format.name), Some("qwen3_coder"));
        let strict =
            parsed(r#"{"tools": [{"type": "function", "function": {"name": "f", "strict": true}}]}"#)
                .expect("valid")
                .expect("tools");
        let (auto, warnings) = bound(&strict, &hermes, None);
        assert!(auto.grammar.is_some() && !auto.grammar_is_optional && warnings.is_empty());
        let (auto, _) = bound(&strict, &coder, None);
        assert!(auto.grammar.is_some() && !auto.grammar_is_optional);
    }

    #[test]
    fn a_schema_that_the_format_cannot_write_is_told_and_never_left_out_silently() {
        let given = |more: &str| {
            let body = format!(
                r#"{{"tools": [{{"type": "function", "function": {{"name": "f",
                     "parameters": {{"type": "object", "minProperties": 1, "properties": {{"a": {{}}}}}}{more}}}}}]}}"#
            );
            parsed(&body).expect("valid").expect("tools")
        };
        let coder = formats("qwen3_coder", "tools");
        let (auto, warnings) = bound(&given(""), &coder, None);
        assert!(
            auto.grammar.is_some() && auto.grammar_is_optional,
            "another function's calls are held to its schema"
        );
        assert_eq!(
            warnings.lines(),
            [
                "`tools[0].function.parameters` has no effect on calls of its function, nor has the rest of its schema: in this \
              model's format (qwen3_coder) `minProperties` is about the object as a whole"
            ]
        );
        let strict = given(r#", "strict": true"#);
        let refused = strict.bind(&coder, Start::Content, 0, None, &mut Warnings::default());
        let refused = refused.err().expect("it cannot be followed").to_string();
        assert!(
            refused.contains("tools[0].function.parameters") && refused.contains("minProperties"),
            "{refused}"
        );
        // In JSON it can be.
        let (auto, warnings) = bound(&strict, &formats("hermes", "tools"), None);
        assert!(auto.grammar.is_some() && warnings.is_empty());
        let required = Tools { is_required: true, ..strict };
        let (must, _) = bound(&required, &coder, None);
        assert_eq!(must.reading.calls.map(|format| format.name), Some("json"));
    }

    fn custom(format: &str, more: &str) -> Tools {
        let body = format!(
            r#"{{"tools": [{{"type": "custom", "custom": {{"name": "f", "format": {format}}}}}]{more}}}"#
        );
        parsed(&body).expect("valid").expect("tools")
    }

    /// As Cursor sends them, and as clients do that know responses.
    #[test]
    fn a_tool_of_a_chat_may_have_its_parts_beside_its_type() {
        let body = r#"{"tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
            {"type": "function", "name": "g", "description": "Does it", "parameters": {"type": "object"}, "strict": true},
            {"type": "custom", "name": "ApplyPatch", "description": "Edits",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}}]}"#;
        let tools = parsed(body).expect("valid").expect("tools");
        let schema = json!({"type": "object"});
        assert_eq!(tools.shown[0]["function"], json!({"name": "f", "parameters": schema}));
        assert_eq!(
            tools.shown[1],
            json!({"type": "function", "function":
                   {"name": "g", "description": "Does it", "parameters": schema, "strict": true}})
        );
        let [f, g, patch] = &tools.functions[..] else { panic!("three") };
        assert!(!f.callable.is_strict && g.callable.is_strict && !g.is_custom);
        assert!(patch.is_custom && patch.callable.lark.as_deref() == Some("start: \"x\""));
        // What is wrong is told where it stands.
        for (tool, says) in [
            (
                r#"{"type": "function", "name": "f", "parameters": []}"#,
                "`tools[0].parameters` must be an object",
            ),
            (r#"{"type": "custom", "name": "f g"}"#, "`tools[0].name` must be of letters, digits and"),
            (r#"{"type": "custom"}"#, "`tools[0].custom.name` must be a string"),
        ] {
            let refused = parsed(&format!(r#"{{"tools": [{tool}]}}"#)).expect_err(tool).to_string();
            assert!(refused.starts_with(says), "{refused}");
        }
    }

    const LARK: &str = r#"{"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: \"x\""}}"#;

    #[test]
    fn a_custom_tool_takes_a_text() {
        let hermes = formats("hermes", "tools");
        for (format, schema) in [
            ("null", json!({"type": "string"})),
            (r#"{"type": "text"}"#, json!({"type": "string"})),
            (
                r#"{"type": "grammar", "syntax": "regex", "definition": "a|b"}"#,
                json!({"type": "string", "pattern": "^(?:a|b)$"}),
            ),
        ] {
            let tools = custom(format, "");
            assert_eq!(tools.functions[0].callable.schema["properties"]["input"], schema);
            let (bound, warnings) = bound(&tools, &hermes, None);
            assert!(bound.reading.is_custom("f") && bound.grammar.is_some() && warnings.is_empty());
        }
        let shown = &custom(LARK, "").shown[0]["function"];
        assert!(
            shown["parameters"]["properties"]["input"]["description"]
                .as_str()
                .expect("a text")
                .contains("start")
        );
    }

    #[test]
    fn a_grammar_of_a_custom_tool_binds_or_is_refused() {
        let coder = formats("qwen3_coder", "tools");
        let tools = custom(LARK, "");
        let (auto, _) = bound(&tools, &formats("hermes", "tools"), None);
        assert!(auto.grammar.is_some() && !auto.grammar_is_optional);
        let refused = tools.bind(&coder, Start::Content, 0, None, &mut Warnings::default());
        let refused = refused.err().expect("it cannot be followed").to_string();
        assert!(
            refused.starts_with(
                "`tools[0].custom.format.grammar.definition`: calls in this model's format (qwen3_coder)"
            ),
            "{refused}"
        );
        // A call that has to be is written in JSON.
        let (must, warnings) = bound(&custom(LARK, r#", "tool_choice": "required""#), &coder, None);
        assert_eq!(must.reading.calls.map(|format| format.name), Some("json"));
        assert!(must.grammar.is_some() && warnings.is_empty());
    }

    #[test]
    fn text_beside_tools_may_have_a_format() {
        let asked = |source| Some(Asked { field: "response_format", source });
        let hermes = formats("hermes", "tools");
        let (auto, _) = bound(&tools(""), &hermes, asked(GrammarSource::JsonObject));
        assert!(auto.grammar.is_some() && !auto.grammar_is_optional);
        let lark = asked(GrammarSource::Lark("start: \"x\"".into()));
        let refused = tools("").bind(&hermes, Start::Content, 0, lark, &mut Warnings::default());
        assert!(refused.err().is_some_and(|error| error.to_string().contains("`response_format`")));
        let (_, warnings) =
            bound(&tools(r#", "tool_choice": "f""#), &hermes, asked(GrammarSource::JsonObject));
        assert_eq!(warnings.lines(), ["`response_format` has no effect beside a call that has to be"]);
    }

    #[test]
    fn reasoning_goes_before_calls() {
        let formats = ChatFormats { reasoning: reasoning_format("think"), ..formats("hermes", "tools") };
        let (bound, _) = bound(&tools(r#", "tool_choice": "required""#), &formats, None);
        let Some(Asked { source: GrammarSource::Parts(parts), .. }) = bound.grammar else {
            panic!("composed")
        };
        assert!(matches!(&parts[..], [Part::OneOf(choices), _, ..] if choices.len() == 2), "{parts:?}");
    }

    #[test]
    fn text_of_a_format_goes_after_reasoning() {
        let bound = |reasoning: Option<&str>, start, source| {
            let reasoning = reasoning.and_then(reasoning_format);
            let formats = ChatFormats { reasoning, ..formats("hermes", "") };
            let reading = Reading { reasoning, start, ..Reading::plain() };
            let bound = Bound::of_text(&formats, reading, Some(Asked { field: "response_format", source }));
            let Asked { field, source } = bound.grammar.expect("a grammar");
            assert!(field == "response_format" && !bound.grammar_is_optional);
            (source, bound.reading.start)
        };
        let schema = GrammarSource::JsonSchema(json!({"type": "integer"}));
        assert_eq!(bound(None, Start::Content, schema.clone()), (schema.clone(), Start::Content));
        for start in [Start::Content, Start::Reasoning] {
            for source in [
                schema.clone(),
                GrammarSource::JsonObject,
                GrammarSource::Regex("a".into()),
                GrammarSource::Choice(vec!["a".into()]),
            ] {
                let (composed, read_from) = bound(Some("think"), start, source);
                assert!(matches!(composed, GrammarSource::Parts(_)) && read_from == start);
            }
            // It is of the whole answer, with its reasoning if it says so.
            for (lark, read_from) in
                [("start: \"a\"", Start::Content), (r"start: /[^<]*<\/think>/ /[0-9]+/", start)]
            {
                let source = GrammarSource::Lark(lark.into());
                assert_eq!(bound(Some("think"), start, source.clone()), (source, read_from), "{lark}");
            }
        }
        // Without calls it is the same.
        let formats = ChatFormats { calls: None, reasoning: reasoning_format("think"), ..formats("", "") };
        let asked = Some(Asked { field: "response_format", source: schema });
        let bound = tools("").bind(&formats, Start::Reasoning, 0, asked, &mut Warnings::default());
        let asked = bound.expect("it can be followed").grammar.expect("a grammar");
        assert!(matches!(asked.source, GrammarSource::Parts(_)));
    }
}
