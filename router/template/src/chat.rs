//! A model's chat templates: compiled once, rendered as Hugging Face transformers renders them. The caller
//! reads them from the model's files and renders on blocking threads.

use serde_json::{Map, Value as Json, json};
use tokio_util::sync::CancellationToken;

use super::{Error, ErrorKind, Template};

/// Put behind the last message to find where it ends in the prompt, and cut off there. The one of transformers,
/// since a template may show the message's length or a part of it. The space tells whether the template strips
/// what it is given.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// What a chat passes by name itself, and `chat_template_kwargs` therefore cannot.
const RESERVED: [&str; 4] = ["messages", "tools", "add_generation_prompt", "continue_final_message"];

/// The names by which transformers chooses between several templates.
const DEFAULT: &str = "default";
const WITH_TOOLS: &str = "tool_use";

/// What a chat template is given.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// As the client sent them, each an object with a `role`.
    pub messages: Vec<Json>,
    /// The last message is left open for the model to go on with. When neither this nor
    /// `add_generation_prompt` says otherwise, a last message of the assistant is continued.
    pub continue_final_message: Option<bool>,
    /// Ends the prompt with the beginning of a new turn of the assistant.
    pub add_generation_prompt: Option<bool>,
    /// Schemas of the functions that may be called, each an object.
    pub tools: Option<Vec<Json>>,
    /// More variables for the template (`chat_template_kwargs`). `chat_template` is no variable but the name
    /// of the template to use, of a model that has several; `documents` is a list of objects.
    pub variables: Map<String, Json>,
}

/// Why a chat has no prompt. Texts are for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    #[error(transparent)]
    Invalid(#[from] InvalidChat),
    /// The model has no usable chat template, or it refused these messages.
    #[error("{0}")]
    Template(String),
}

/// What a chat asks of its template and cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidChat {
    /// A variable that the chat passes itself.
    #[error("the variable {name} is reserved")]
    ReservedVariable { name: &'static str },
    #[error("the last message cannot be continued and a new turn begun")]
    ContinuesAndBegins,
    #[error("the variable documents is no list of objects")]
    Documents,
    /// Not the name of a template at all.
    #[error("the name of the template is no string")]
    TemplateName,
    #[error("no template has this name; known: {}", .known.join(", "))]
    UnknownTemplate { known: Vec<String> },
}

pub struct ChatTemplates {
    /// By name; the only one is called `default`. One that does not compile is an error when it is asked for.
    named: Vec<(String, Option<Template>)>,
    /// As they were compiled from, in the same order.
    sources: Vec<String>,
    /// `bos_token`, `eos_token` and so on.
    tokens: Map<String, Json>,
    /// Variables of chats that do not give these themselves.
    defaults: Map<String, Json>,
}

/// Whether a variable may have a default: not those that say what a chat is made of, which every chat says itself.
pub fn may_be_default(variable: &str) -> bool {
    !RESERVED.contains(&variable) && !["chat_template", "documents"].contains(&variable)
}

impl ChatTemplates {
    /// Tells `complain` of each template that does not compile: its name, and what is wrong where.
    pub fn compile(
        sources: &[(String, String)],
        tokens: Map<String, Json>,
        mut complain: impl FnMut(&str, String),
    ) -> Self {
        let named = sources
            .iter()
            .map(|(name, source)| {
                let template = Template::compile(source);
                (name.clone(), template.map_err(|error| complain(name, error.to_string())).ok())
            })
            .collect();
        let sources = sources.iter().map(|(_, source)| source.clone()).collect();
        Self { named, sources, tokens, defaults: Map::new() }
    }

    /// `defaults` are variables of all chats that do not give these themselves.
    pub fn with_defaults(self, defaults: Map<String, Json>) -> Self {
        Self { defaults, ..self }
    }

    /// The text of the template that a chat with or without tools is rendered with, unless it names another.
    pub fn source(&self, with_tools: bool) -> Option<&str> {
        let of_name = |name: &str| self.named.iter().position(|(known, _)| known == name);
        let index = with_tools.then(|| of_name(WITH_TOOLS)).flatten().or_else(|| of_name(DEFAULT))?;
        Some(&self.sources[index])
    }

    /// Ends soon after `client` is cancelled.
    pub fn render(&self, chat: &Chat, client: &CancellationToken) -> Result<String, ChatError> {
        if let Some(name) = RESERVED.into_iter().find(|name| chat.variables.contains_key(*name)) {
            return Err(InvalidChat::ReservedVariable { name }.into());
        }
        if chat.continue_final_message == Some(true) && chat.add_generation_prompt == Some(true) {
            return Err(InvalidChat::ContinuesAndBegins.into());
        }
        if let Some(documents) = chat.variables.get("documents")
            && !documents.is_null()
            && !documents.as_array().is_some_and(|list| list.iter().all(Json::is_object))
        {
            return Err(InvalidChat::Documents.into());
        }
        let template = self.choose(chat)?;
        let mut messages: Vec<Json> = chat.messages.iter().map(as_templates_expect).collect();
        match self.render_messages(template, &messages, chat, client) {
            // Many templates go through the arguments of a call.
            Err(ChatError::Template(_)) if wrap_arguments(&mut messages) => {
                self.render_messages(template, &messages, chat, client)
            }
            rendered => rendered,
        }
    }

    fn render_messages(
        &self,
        template: &Template,
        messages: &[Json],
        chat: &Chat,
        client: &CancellationToken,
    ) -> Result<String, ChatError> {
        let asked = chat.continue_final_message == Some(true);
        let not_asked = chat.continue_final_message.is_none() && chat.add_generation_prompt != Some(true);
        if asked || (not_asked && is_from_assistant(messages)) {
            if let Some(prompt) = self.render_open(template, messages, chat, client)? {
                return Ok(prompt);
            }
            if asked {
                return Err(ChatError::Template(
                    "`continue_final_message`: the last message has no text, or the chat template does not \
                     show all of it, so that it cannot be continued"
                        .into(),
                ));
            }
        }
        self.evaluate(template, messages, chat.add_generation_prompt.unwrap_or(true), chat, client)
    }

    /// The template that the chat names, the one for tools where there are tools, or the default.
    fn choose(&self, chat: &Chat) -> Result<&Template, ChatError> {
        let of_name = |name: &str| self.named.iter().find(|(known, _)| known == name);
        let names = || {
            let mut names: Vec<String> = self.named.iter().map(|(name, _)| name.clone()).collect();
            names.sort_unstable();
            names
        };
        let found = match chat.variables.get("chat_template") {
            Some(Json::String(name)) => {
                of_name(name).ok_or_else(|| InvalidChat::UnknownTemplate { known: names() })?
            }
            Some(other) if !other.is_null() => return Err(InvalidChat::TemplateName.into()),
            _ => chat
                .tools
                .as_ref()
                .and_then(|_| of_name(WITH_TOOLS))
                .or_else(|| of_name(DEFAULT))
                .ok_or_else(|| {
                    ChatError::Template(format!(
                        "this model has the chat templates `{}` and no default: name one as \
                         `chat_template_kwargs.chat_template`",
                        names().join("`, `")
                    ))
                })?,
        };
        found.1.as_ref().ok_or_else(|| {
            ChatError::Template(format!(
                "the model's chat template `{}` does not compile; the server's log says where",
                found.0
            ))
        })
    }

    /// The prompt up to the end of the last message; `None` when it is not all there.
    fn render_open(
        &self,
        template: &Template,
        messages: &[Json],
        chat: &Chat,
        client: &CancellationToken,
    ) -> Result<Option<String>, ChatError> {
        let mut messages = messages.to_vec();
        let Some(text) = messages.last_mut().and_then(last_text) else {
            return Ok(None);
        };
        let content = text.clone();
        text.push_str(CONTINUE_TAG);
        let mut prompt = self.evaluate(template, &messages, false, chat, client)?;
        let Some(end) = prompt.rfind(CONTINUE_TAG.trim_end()) else {
            return Ok(None);
        };
        if !prompt.contains(content.trim()) {
            return Ok(None);
        }
        let kept_spaces = prompt[end..].starts_with(CONTINUE_TAG);
        prompt.truncate(end);
        if !kept_spaces {
            // The template strips messages, which the tag has kept it from doing.
            prompt.truncate(prompt.trim_end().len());
        }
        Ok(Some(prompt))
    }

    fn evaluate(
        &self,
        template: &Template,
        messages: &[Json],
        add_generation_prompt: bool,
        chat: &Chat,
        client: &CancellationToken,
    ) -> Result<String, ChatError> {
        let mut variables = self.tokens.clone();
        variables.extend(self.defaults.clone());
        variables.insert("documents".to_owned(), Json::Null);
        variables.extend(chat.variables.clone());
        variables.remove("chat_template");
        variables.extend([
            ("messages".to_owned(), Json::from(messages)),
            (
                "tools".to_owned(),
                chat.tools.as_ref().map_or(Json::Null, |tools| Json::from(tools.as_slice())),
            ),
            ("add_generation_prompt".to_owned(), json!(add_generation_prompt)),
        ]);
        template.render(&variables, client).map_err(|error| refusal(&error))
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
        if !fields.contains_key("thinking") {
            // In front, where it is seen when a template prints the whole message.
            let mut first = Map::from_iter([("thinking".to_owned(), reasoning.clone())]);
            first.append(&mut fields);
            fields = first;
        }
        fields.insert("reasoning_content".into(), reasoning);
    }
    let mut message = Json::Object(fields);
    for arguments in arguments_of(&mut message) {
        // Some clients write the text as JSON once more.
        for _ in 0..2 {
            match arguments.as_str().map(serde_json::from_str) {
                Some(Ok(read @ (Json::Object(_) | Json::String(_)))) => *arguments = read,
                _ => break,
            }
        }
    }
    message
}

/// Of the message's calls.
fn arguments_of(message: &mut Json) -> impl Iterator<Item = &mut Json> {
    let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
    calls.into_iter().flatten().filter_map(|call| call.pointer_mut("/function/arguments"))
}

/// Arguments that are no object, of calls that were cut off or are not right, as the text of a lone one; whether there are such.
fn wrap_arguments(messages: &mut [Json]) -> bool {
    let mut found = false;
    for arguments in messages.iter_mut().flat_map(arguments_of).filter(|arguments| !arguments.is_object()) {
        let text = match arguments.take() {
            Json::String(text) => text,
            other => other.to_string(),
        };
        *arguments = json!({ "arguments": text });
        found = true;
    }
    found
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

/// What the client reads when a rendering fails: the template's own words, or the kind and place.
fn refusal(error: &Error) -> ChatError {
    if error.kind == ErrorKind::Raised {
        return ChatError::Template(error.message.clone());
    }
    tracing::debug!("chat template, line {}: {}", error.line, error.message);
    let what = match error.kind {
        ErrorKind::Fuel => "takes too many steps on these `messages`",
        ErrorKind::Size => "makes too long a prompt of these `messages`",
        ErrorKind::Time => "takes too long on these `messages`",
        ErrorKind::Cancelled => "was stopped",
        ErrorKind::Depth => "calls itself too deeply on these `messages`",
        ErrorKind::Undefined => "needs something that these `messages` or `tools` do not have",
        ErrorKind::Unknown => "uses something that Penstock does not know",
        _ => "cannot be applied to these `messages`",
    };
    ChatError::Template(format!("the model's chat template {what} (line {} of the template)", error.line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chats_own_variables_go_before_defaults() {
        let source = "{{ enable_thinking | default(false) }} {{ budget }} {{ bos_token }}";
        let tokens = Map::from_iter([("bos_token".to_owned(), json!("<s>"))]);
        let sources = [("default".to_owned(), source.to_owned())];
        let templates = ChatTemplates::compile(&sources, tokens, |name, why| panic!("{name}: {why}"));
        let defaults = json!({"enable_thinking": true, "budget": 5});
        let templates = templates.with_defaults(defaults.as_object().unwrap().clone());
        for (own, shown) in [
            (json!({}), "True 5 <s>"),
            (json!({"enable_thinking": false}), "False 5 <s>"),
            (json!({"enable_thinking": null, "budget": 1}), "None 1 <s>"),
        ] {
            let chat = Chat { variables: own.as_object().unwrap().clone(), ..Chat::default() };
            assert_eq!(templates.rendered(&chat).unwrap(), shown, "{own}");
        }
        for name in ["messages", "tools", "add_generation_prompt", "chat_template", "documents"] {
            assert!(!may_be_default(name), "{name}");
        }
    }

    impl ChatTemplates {
        fn rendered(&self, chat: &Chat) -> Result<String, ChatError> {
            self.render(chat, &CancellationToken::new())
        }
    }

    fn several(sources: &[(&str, &str)]) -> ChatTemplates {
        let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"});
        let sources: Vec<_> =
            sources.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect();
        ChatTemplates::compile(&sources, tokens.as_object().unwrap().clone(), |_, _| {})
    }

    fn compile(source: &str) -> ChatTemplates {
        let templates = several(&[("default", source)]);
        assert!(templates.named[0].1.is_some(), "{source}");
        templates
    }

    fn chat(messages: Json) -> Chat {
        Chat { messages: messages.as_array().unwrap().clone(), ..Chat::default() }
    }

    fn error(source: &str, messages: Json) -> String {
        match compile(source).rendered(&chat(messages)) {
            Err(ChatError::Template(text)) => text,
            other => panic!("{other:?} is no template error"),
        }
    }

    const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                         {% if add_generation_prompt %}<assistant>{% endif %}";

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
            template.rendered(&options)
        };
        assert_eq!(render(&open, None, None).unwrap(), "<user>hi<assistant>He ");
        assert_eq!(render(&open, None, Some(false)).unwrap(), "<user>hi<assistant>He ");
        assert_eq!(render(&open, Some(true), None).unwrap(), "<user>hi<assistant>He ");
        assert_eq!(render(&open, Some(false), None).unwrap(), "<user>hi<assistant>He <assistant>");
        assert_eq!(render(&open, None, Some(true)).unwrap(), "<user>hi<assistant>He <assistant>");
        assert_eq!(render(&open, Some(false), Some(false)).unwrap(), "<user>hi<assistant>He ");
        assert_eq!(render(&open, Some(true), Some(true)), Err(InvalidChat::ContinuesAndBegins.into()));

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
        assert_eq!(template.rendered(&chat(parts)).unwrap(), "[a][b");
    }

    #[test]
    fn what_the_template_does_not_show_is_not_continued() {
        let template = compile("{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}");
        let hidden = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]);
        assert_eq!(template.rendered(&chat(hidden.clone())).unwrap(), "hi!");
        let asked = Chat { continue_final_message: Some(true), ..chat(hidden) };
        assert!(
            matches!(template.rendered(&asked), Err(ChatError::Template(text)) if text.contains("continue_final_message"))
        );
        let call = json!([{"role": "assistant", "content": null, "tool_calls": []}]);
        assert_eq!(compile(TURNS).rendered(&chat(call)).unwrap(), "<assistant><assistant>");
    }

    #[test]
    fn a_template_that_does_not_compile_says_where() {
        let mut complaints = Vec::new();
        let source = [("default".to_owned(), "one\n{% if %}".to_owned())];
        let templates = ChatTemplates::compile(&source, Map::new(), |name, text| {
            complaints.push(format!("{name}: {text}"))
        });
        assert_eq!(complaints, ["default: line 2: an expression is missing"]);
        let error = templates.rendered(&chat(json!([]))).unwrap_err();
        let expected = "the model's chat template `default` does not compile; the server's log says where";
        assert_eq!(error, ChatError::Template(expected.into()));
    }

    #[test]
    fn of_several_templates_the_chat_chooses() {
        let templates =
            several(&[("default", "plain"), ("tool_use", "tools"), ("rag", "rag"), ("bad", "{% if %}")]);
        let named = |name: Json| Chat {
            variables: Map::from_iter([("chat_template".to_owned(), name)]),
            ..chat(json!([]))
        };
        assert_eq!(templates.rendered(&chat(json!([]))).unwrap(), "plain");
        let with_tools = Chat { tools: Some(vec![json!({})]), ..chat(json!([])) };
        assert_eq!(templates.rendered(&with_tools).unwrap(), "tools");
        assert_eq!(templates.rendered(&named(json!("rag"))).unwrap(), "rag");
        assert!(matches!(templates.rendered(&named(json!("bad"))), Err(ChatError::Template(_))));
        let known = ["bad", "default", "rag", "tool_use"].map(String::from).to_vec();
        for (bad, why) in [
            (json!("nothing"), InvalidChat::UnknownTemplate { known }),
            (json!(1), InvalidChat::TemplateName),
        ] {
            assert_eq!(templates.rendered(&named(bad)), Err(why.into()));
        }

        let templates = several(&[("tool_use", "tools"), ("rag", "rag")]);
        let error = templates.rendered(&chat(json!([]))).unwrap_err();
        assert!(matches!(&error, ChatError::Template(text) if text.contains("`rag`, `tool_use`")), "{error}");
        assert_eq!(templates.rendered(&with_tools).unwrap(), "tools");
    }

    #[test]
    fn documents_are_objects() {
        let template = compile("{{ documents | map(attribute='text') | join }}|{{ documents is none }}");
        let with = |documents: Json| {
            let variables = Map::from_iter([("documents".to_owned(), documents)]);
            template.rendered(&Chat { variables, ..Chat::default() })
        };
        assert_eq!(with(json!([{"text": "a"}])).unwrap(), "a|False");
        assert_eq!(with(json!(["a"])), Err(InvalidChat::Documents.into()));
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
            "the model's chat template needs something that these `messages` or `tools` do not have (line 2 of the template)"
        );
        assert!(error("{{ 'a' | unheard_of }}", json!([])).contains("does not know"));
        assert!(error("{{ 1 + [] }}", json!([])).contains("cannot be applied"));
    }

    #[test]
    fn a_template_that_does_not_end_is_stopped() {
        let text = error(
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            json!([]),
        );
        // On a busy machine the clock may be first.
        assert!(["too many steps", "takes too long"].iter().any(|why| text.contains(why)), "{text}");
        let text = error("{% for a in range(100) %}{{ 'x' * 1000000 }}{% endfor %}", json!([]));
        assert!(text.contains("too long"), "{text}");
    }

    #[test]
    fn a_long_chat_is_within_the_bounds() {
        let messages = (0..20_000).map(
            |i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "x".repeat(80)}),
        );
        assert!(compile(TURNS).rendered(&chat(messages.collect())).is_ok());
    }

    #[test]
    fn variables_of_the_request_reach_the_template_but_replace_nothing() {
        let template = compile("{{ bos_token }}{{ thinking }}{{ tools }}");
        let with = |name: &str, value: Json| {
            let variables = Map::from_iter([(name.to_owned(), value)]);
            template.rendered(&Chat { variables, ..Chat::default() })
        };
        assert_eq!(with("thinking", json!(true)).unwrap(), "<s>TrueNone");
        let reserved = InvalidChat::ReservedVariable { name: "messages" };
        assert_eq!(with("messages", json!([])), Err(reserved.into()));
    }

    #[test]
    fn arguments_that_come_back_as_a_string_are_an_object_again() {
        let template = compile("{{ messages[0].tool_calls[0].function.arguments | tojson }}");
        let call = |arguments: Json| json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]);
        assert_eq!(
            template.rendered(&chat(call(json!("{\"b\":1,\"a\":[]}")))).unwrap(),
            r#"{"b": 1, "a": []}"#
        );
        assert_eq!(template.rendered(&chat(call(json!({"a": 1})))).unwrap(), r#"{"a": 1}"#);
        assert_eq!(template.rendered(&chat(call(json!("no json")))).unwrap(), r#""no json""#);
    }

    /// A call that was cut off by a limit, and what clients send in place of an object.
    #[test]
    fn arguments_that_are_no_object_are_shown_by_templates_that_go_through_them() {
        let arguments = "{% for k, v in messages[0].tool_calls[0].function.arguments | items %}[{{ k }}={{ v }}]{% endfor %}";
        let through = compile(arguments);
        let strict = compile(&format!(
            "{{% if messages[0].tool_calls[0].function.arguments is not mapping %}}{{{{ raise_exception('No.') }}}}{{% endif %}}{arguments}"
        ));
        let call = |arguments: Json| json!([{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]);
        for (given, shown) in [
            (json!(r#"{"city": "Paris"}"#), "[city=Paris]"),
            (json!(r#"{"city": "Par"#), r#"[arguments={"city": "Par]"#),
            (json!(r#""{\"city\": \"Paris\"}""#), "[city=Paris]"),
            (json!("\"{}\""), ""),
            (json!("\"no JSON\""), "[arguments=no JSON]"),
            (json!("[1, 2]"), "[arguments=[1, 2]]"),
            (json!([1, 2]), "[arguments=[1,2]]"),
        ] {
            for template in [&through, &strict] {
                assert_eq!(template.rendered(&chat(call(given.clone()))).unwrap(), shown, "{given}");
            }
        }
        // What is wrong elsewhere is told as ever.
        let other = compile("\n{{ messages[0].nothing.more }}").rendered(&chat(call(json!("{"))));
        assert!(matches!(other, Err(ChatError::Template(text)) if text.contains("line 2")));
    }

    #[test]
    fn the_date_is_formatted_as_strftime_does() {
        let today = compile("{{ strftime_now('%Y-%m-%d') }}").rendered(&Chat::default()).unwrap();
        assert!(regex::Regex::new(r"^20\d\d-\d\d-\d\d$").unwrap().is_match(&today), "{today}");
        // What the C library does not know is printed as it is written.
        assert_eq!(compile("{{ strftime_now('%!') }}").rendered(&Chat::default()).unwrap(), "%!");
    }
}
