//! A model's chat template: compiled once, rendered as Hugging Face transformers renders it. Called by
//! `Prompt` on its blocking threads. What a template may cost is bounded, since clients choose its input.

use std::io;
use std::sync::LazyLock;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value as Json, json};

use super::python::{self, JsonStyle};
use super::{Chat, PromptError};

/// Instructions that one rendering may take: seconds at most, and thousands of messages.
const FUEL: u64 = 20_000_000;

/// Bytes that one rendering may give.
const MAX_OUTPUT: usize = 32 << 20;

const NAME: &str = "chat_template";

/// Put behind the last message to find where it ends in the prompt, and cut off there. The space tells
/// whether the template strips what it is given.
const MARK: &str = "\u{E000}the model continues here\u{E001}";

/// What a chat passes by name itself, and `chat_template_kwargs` therefore cannot.
const RESERVED: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"];

pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and so on.
    tokens: Map<String, Json>,
}

impl ChatTemplate {
    /// The error says what is wrong and where, for the operator.
    pub fn compile(source: &str, tokens: Map<String, Json>) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(method);
        environment.set_formatter(|out, _, value| Ok(out.write_str(&python::to_str(value)?)?));
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", |value: Value| python::to_str(&value));
        environment.add_test("sequence", |value: &Value| {
            // What has a length and can be indexed in Python; a slice is an iterable here.
            matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::String | ValueKind::Map)
        });
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment
            .add_template_owned(NAME, with_generation_blocks(source))
            .map_err(|error| explain(&error))?;
        Ok(Self { environment, tokens })
    }

    pub fn render(&self, chat: &Chat) -> Result<String, PromptError> {
        if let Some(name) = RESERVED.iter().find(|name| chat.variables.contains_key(**name)) {
            return Err(PromptError::Invalid(format!("`chat_template_kwargs` must not have `{name}`")));
        }
        if chat.continue_final_message == Some(true) && chat.add_generation_prompt == Some(true) {
            return Err(PromptError::Invalid(
                "`continue_final_message` and `add_generation_prompt` must not both be true".into(),
            ));
        }
        let messages: Vec<Json> = chat.messages.iter().map(as_templates_expect).collect();
        let asked = chat.continue_final_message == Some(true);
        let not_asked = chat.continue_final_message.is_none() && chat.add_generation_prompt != Some(true);
        if asked || (not_asked && is_from_assistant(&messages)) {
            if let Some(prompt) = self.render_open(&messages, chat)? {
                return Ok(prompt);
            }
            if asked {
                return Err(PromptError::Template(
                    "`continue_final_message`: the last message has no text, or the chat template does not \
                     show all of it, so that it cannot be continued"
                        .into(),
                ));
            }
        }
        self.evaluate(&messages, chat.add_generation_prompt.unwrap_or(true), chat)
    }

    /// The prompt up to the end of the last message; `None` when it is not all there.
    fn render_open(&self, messages: &[Json], chat: &Chat) -> Result<Option<String>, PromptError> {
        let mut messages = messages.to_vec();
        let Some(text) = messages.last_mut().and_then(last_text) else {
            return Ok(None);
        };
        let content = text.clone();
        text.push_str(MARK);
        text.push(' ');
        let mut prompt = self.evaluate(&messages, false, chat)?;
        let Some(end) = prompt.rfind(MARK) else {
            return Ok(None);
        };
        let kept_spaces = prompt[end + MARK.len()..].starts_with(' ');
        prompt.truncate(end);
        if !prompt.contains(content.trim()) {
            return Ok(None);
        }
        if !kept_spaces {
            // The template strips messages, which the mark has kept it from doing.
            prompt.truncate(prompt.trim_end().len());
        }
        Ok(Some(prompt))
    }

    fn evaluate(
        &self,
        messages: &[Json],
        add_generation_prompt: bool,
        chat: &Chat,
    ) -> Result<String, PromptError> {
        let mut variables = self.tokens.clone();
        variables.extend(chat.variables.clone());
        variables.extend([
            ("messages".to_owned(), Json::from(messages)),
            ("tools".to_owned(), Json::Null),
            ("documents".to_owned(), Json::Null),
            ("add_generation_prompt".to_owned(), json!(add_generation_prompt)),
        ]);
        let mut prompt = Bounded(Vec::new());
        let template = self.environment.get_template(NAME).map_err(|error| refusal(&error))?;
        template.render_captured_to(variables, &mut prompt).map_err(|error| refusal(&error))?;
        String::from_utf8(prompt.0).map_err(|_| PromptError::Failed("the chat template wrote no text".into()))
    }
}

/// The messages as transformers shows them to templates: without members that are null, with reasoning
/// under both of the names that templates know, and with the arguments of calls as objects.
fn as_templates_expect(message: &Json) -> Json {
    let Some(fields) = message.as_object() else {
        return message.clone();
    };
    let mut fields: Map<String, Json> = fields
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let reasoning =
        ["reasoning_content", "thinking", "reasoning"].iter().find_map(|name| fields.get(*name)).cloned();
    if let Some(reasoning) = reasoning {
        fields.entry("thinking").or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".into(), reasoning);
    }
    for call in fields.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && let Some(text) = arguments.as_str()
            && let Ok(object @ Json::Object(_)) = serde_json::from_str(text)
        {
            *arguments = object;
        }
    }
    Json::Object(fields)
}

fn is_from_assistant(messages: &[Json]) -> bool {
    messages.last().and_then(|message| message.get("role")).and_then(Json::as_str) == Some("assistant")
}

/// The text that a message ends with.
fn last_text(message: &mut Json) -> Option<&mut String> {
    match message.get_mut("content")? {
        Json::String(text) => Some(text),
        Json::Array(parts) => parts.iter_mut().rev().find_map(|part| match part.get_mut("text") {
            Some(Json::String(text)) => Some(text),
            _ => None,
        }),
        _ => None,
    }
}

/// `{% generation %}` marks what the model wrote, for training; here it is a scope and nothing more.
fn with_generation_blocks(source: &str) -> String {
    static TAG: LazyLock<regex::Regex> = LazyLock::new(|| {
        regex::Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").expect("the pattern is valid")
    });
    TAG.replace_all(source, "${1}${2}with$3").into_owned()
}

fn tojson(
    value: Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    separators: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    JsonStyle::new([ensure_ascii, indent, separators], &named)?.dumps(&value)
}

/// The template's own complaint about the messages, which the client should read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    use std::fmt::Write;
    let mut text = String::new();
    match write!(text, "{}", chrono::Local::now().format(format)) {
        Ok(()) => Ok(text),
        Err(_) => Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: the format is not valid")),
    }
}

/// Python's methods of strings, lists and dicts.
fn method(state: &minijinja::State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), [affix]) = (value.as_str(), args)
        && let Some(affix) = affix.as_str()
    {
        match name {
            "removeprefix" => return Ok(text.strip_prefix(affix).unwrap_or(text).into()),
            "removesuffix" => return Ok(text.strip_suffix(affix).unwrap_or(text).into()),
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Takes no more than `MAX_OUTPUT` bytes.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the client reads when a rendering fails: the template's own words, or the kind and place.
fn refusal(error: &Error) -> PromptError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return PromptError::Template(message.clone());
        }
        cause = current.source();
    }
    tracing::debug!("chat template: {}", explain(error));
    let what = match error.kind() {
        ErrorKind::OutOfFuel => "takes too many steps on these `messages`",
        ErrorKind::WriteFailure => "makes too long a prompt of these `messages`",
        ErrorKind::UndefinedError => "needs something that these `messages` do not have",
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::UnknownTest => "uses something that Penstock does not know",
        _ => "cannot be applied to these `messages`",
    };
    let place = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
    PromptError::Template(format!("the model's chat template {what}{place}"))
}

/// What is wrong and where, for the operator.
fn explain(error: &Error) -> String {
    let what = error
        .detail()
        .map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    error.line().map_or(what.clone(), |line| format!("line {line}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(source: &str) -> ChatTemplate {
        let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"});
        ChatTemplate::compile(source, tokens.as_object().unwrap().clone()).unwrap()
    }

    fn chat(messages: Json) -> Chat {
        Chat { messages: messages.as_array().unwrap().clone(), ..Chat::default() }
    }

    fn error(source: &str, messages: Json) -> String {
        match compile(source).render(&chat(messages)) {
            Err(PromptError::Template(text)) => text,
            other => panic!("{other:?} is no template error"),
        }
    }

    const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                         {% if add_generation_prompt %}<assistant>{% endif %}";

    /// The cases and what transformers makes of them: router/tests/golden/chat_templates.py.
    #[test]
    fn templates_are_rendered_as_transformers_does() {
        let golden: Json =
            serde_json::from_str(include_str!("../../tests/golden/chat_templates.json")).unwrap();
        let cases = golden["cases"].as_array().unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let name = case["template"].as_str().unwrap();
            let mut variables = case["options"].as_object().unwrap().clone();
            let mut option = |name: &str| variables.remove(name).is_some_and(|value| value == true);
            let chat = Chat {
                messages: case["messages"].as_array().unwrap().clone(),
                continue_final_message: Some(option("continue_final_message")),
                add_generation_prompt: Some(option("add_generation_prompt")),
                variables,
            };
            let rendered = compile(golden["templates"][name].as_str().unwrap()).render(&chat);
            assert_eq!(
                rendered.as_deref(),
                Ok(case["expected"].as_str().unwrap()),
                "{name} {}",
                case["messages"]
            );
        }
    }

    #[test]
    fn a_last_message_of_the_assistant_is_continued_unless_told_otherwise() {
        let template = compile(TURNS);
        let open = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He "}]);
        let render = |messages: &Json, continued, generation| {
            let options = Chat {
                continue_final_message: continued,
                add_generation_prompt: generation,
                ..chat(messages.clone())
            };
            template.render(&options)
        };
        assert_eq!(render(&open, None, None).unwrap(), "<user>hi<assistant>He ");
        assert_eq!(render(&open, None, Some(false)).unwrap(), "<user>hi<assistant>He ");
        assert_eq!(render(&open, Some(true), None).unwrap(), "<user>hi<assistant>He ");
        assert_eq!(render(&open, Some(false), None).unwrap(), "<user>hi<assistant>He <assistant>");
        assert_eq!(render(&open, None, Some(true)).unwrap(), "<user>hi<assistant>He <assistant>");
        assert_eq!(render(&open, Some(false), Some(false)).unwrap(), "<user>hi<assistant>He ");
        assert!(matches!(render(&open, Some(true), Some(true)), Err(PromptError::Invalid(_))));

        let asked = json!([{"role": "user", "content": "hi"}]);
        assert_eq!(render(&asked, None, None).unwrap(), "<user>hi<assistant>");
        assert_eq!(render(&asked, None, Some(false)).unwrap(), "<user>hi");
        // Only when it is asked for is a message of another role continued.
        assert_eq!(render(&asked, Some(true), None).unwrap(), "<user>hi");
    }

    #[test]
    fn parts_of_text_are_continued_after_the_last() {
        let template =
            compile("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}");
        let parts = json!([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
        assert_eq!(template.render(&chat(parts)).unwrap(), "[a][b");
    }

    #[test]
    fn what_the_template_does_not_show_is_not_continued() {
        let template = compile("{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}");
        let hidden = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]);
        assert_eq!(template.render(&chat(hidden.clone())).unwrap(), "hi!");
        let asked = Chat { continue_final_message: Some(true), ..chat(hidden) };
        assert!(
            matches!(template.render(&asked), Err(PromptError::Template(text)) if text.contains("continue_final_message"))
        );
        let call = json!([{"role": "assistant", "content": null, "tool_calls": []}]);
        assert_eq!(compile(TURNS).render(&chat(call)).unwrap(), "<assistant><assistant>");
    }

    #[test]
    fn a_template_that_does_not_compile_says_where() {
        let error = ChatTemplate::compile("one\n{% if %}", Map::new()).err().unwrap();
        assert!(error.starts_with("line 2:"), "{error}");
    }

    #[test]
    fn the_templates_own_complaint_reaches_the_client() {
        let source =
            "{% macro check() %}{{ raise_exception('Roles must alternate.') }}{% endmacro %}{{ check() }}";
        assert_eq!(error(source, json!([])), "Roles must alternate.");
    }

    #[test]
    fn other_failures_are_told_in_our_words_with_the_place() {
        let text =
            error("\n{{ messages[0].content.nothing.more }}", json!([{"role": "user", "content": "a"}]));
        assert_eq!(
            text,
            "the model's chat template needs something that these `messages` do not have (line 2 of the template)"
        );
        assert!(error("{{ 'a'.unheard_of() }}", json!([])).contains("does not know"));
        assert!(error("{{ 1 + [] }}", json!([])).contains("cannot be applied"));
    }

    #[test]
    fn a_template_that_does_not_end_is_stopped() {
        let text = error(
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            json!([]),
        );
        assert!(text.contains("too many steps"), "{text}");
        let text = error("{% for a in range(100) %}{{ 'x' * 1000000 }}{% endfor %}", json!([]));
        assert!(text.contains("too long"), "{text}");
    }

    #[test]
    fn a_long_chat_is_within_the_bounds() {
        let messages = (0..20_000).map(
            |i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "x".repeat(80)}),
        );
        assert!(compile(TURNS).render(&chat(messages.collect())).is_ok());
    }

    #[test]
    fn variables_of_the_request_reach_the_template_but_replace_nothing() {
        let template = compile("{{ bos_token }}{{ thinking }}{{ tools }}");
        let with = |name: &str, value: Json| {
            let variables = Map::from_iter([(name.to_owned(), value)]);
            template.render(&Chat { variables, ..Chat::default() })
        };
        assert_eq!(with("thinking", json!(true)).unwrap(), "<s>TrueNone");
        assert!(
            matches!(with("messages", json!([])), Err(PromptError::Invalid(text)) if text.contains("`messages`"))
        );
    }

    #[test]
    fn arguments_that_come_back_as_a_string_are_an_object_again() {
        let template = compile("{{ messages[0].tool_calls[0].function.arguments | tojson }}");
        let call = |arguments: Json| json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]);
        assert_eq!(
            template.render(&chat(call(json!("{\"b\":1,\"a\":[]}")))).unwrap(),
            r#"{"b": 1, "a": []}"#
        );
        assert_eq!(template.render(&chat(call(json!({"a": 1})))).unwrap(), r#"{"a": 1}"#);
        assert_eq!(template.render(&chat(call(json!("no json")))).unwrap(), r#""no json""#);
    }

    #[test]
    fn the_date_is_formatted_as_strftime_does() {
        let today = compile("{{ strftime_now('%Y-%m-%d') }}").render(&Chat::default()).unwrap();
        assert!(regex::Regex::new(r"^20\d\d-\d\d-\d\d$").unwrap().is_match(&today), "{today}");
        assert!(error("{{ strftime_now('%!') }}", json!([])).contains("cannot be applied"));
    }
}
