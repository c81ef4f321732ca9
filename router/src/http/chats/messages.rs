//! What a chat template makes of messages that its model was not trained on, found by rendering some: clients send parts, a
//! developer's messages, several of the system, and turns in any order, and most templates refuse these, leave them out or print them
//! as they are in JSON. Where the template does not read them, they are rewritten to what it reads.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Roles whose messages are tried.
const ROLES: [&str; 5] = ["user", "system", "developer", "assistant", "tool"];
/// Whose words come before the conversation.
const INSTRUCT: [&str; 2] = ["system", "developer"];
/// Who takes turns.
const TURNS: [&str; 2] = ["user", "assistant"];
/// Names of a message's reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

const FIRST: &str = "penstock looks for one part ";
const SECOND: &str = "penstock looks for another";

/// What has to be rewritten; by default nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageManners {
    /// Roles whose parts are joined: the template does not read a part as it reads the text.
    joined: Vec<&'static str>,
    /// A developer's messages are the system's: the template knows these alone.
    developer_is_system: bool,
    /// Instructions are one message, the first: the template does not show several, or none later.
    instructs_once: bool,
    /// Results have the names of their functions: without them the template does not show one.
    names_results: bool,
    /// Roles of which messages in a row are one: the template wants turns.
    joined_turns: Vec<&'static str>,
    /// What the user says behind a result is part of it: the template wants the assistant's turn there.
    results_take_words: bool,
    /// Text is part of the reasoning beside calls: the template takes one of the two there (GPT-OSS).
    reasoning_takes_text: bool,
    reasoning: ReasoningPlace,
}

/// Where the template reads what the model has thought.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ReasoningPlace {
    /// Beside the content, or nowhere.
    #[default]
    Message,
    /// As `reasoning` alone (Solar Open).
    Reasoning,
    /// Beside calls as `tool_plan` (Command R7B, Command A).
    ToolPlan,
    /// As a part `thinking` of the content (Mistral).
    Part,
}

impl MessageManners {
    /// `render` gives None where the template, which is `source`, refuses the messages. `result` is a conversation of a question, a call and
    /// a tool's result with this content, and without or with the function's name.
    pub fn of(
        source: &str,
        render: impl Fn(Vec<Value>) -> Option<String>,
        result: impl Fn(Value, bool) -> Vec<Value>,
    ) -> Self {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let (user, assistant) = (message("user", "x"), message("assistant", "y"));
        let shows = |messages: Vec<Value>| {
            let wanted = [FIRST.trim(), SECOND];
            render(messages).is_some_and(|text| wanted.iter().all(|wanted| text.contains(wanted)))
        };
        let both = format!("{FIRST}{SECOND}");
        let names_results = !shows(result(json!(both), false)) && shows(result(json!(both), true));
        let with = |role: &str, content: Value| match role {
            "tool" => result(content, names_results),
            _ => chat_with(role, content),
        };
        let reads_parts = |role: &str| {
            let text = render(with(role, json!(both)));
            text.is_some()
                && text == render(with(role, json!([part(both.as_str())])))
                && shows(with(role, json!([part(FIRST), part(SECOND)])))
        };
        let several = |role: &str| {
            let (first, second) = (message(role, FIRST), message(role, SECOND));
            shows(vec![first.clone(), second.clone(), user.clone()])
                && shows(vec![first.clone(), user.clone(), second.clone()])
                && shows(vec![first, user.clone(), assistant.clone(), second, user.clone()])
        };
        let shows_role = |role: &str| shows(vec![message(role, &both), user.clone()]);
        // Many write any role as it is called, which no model but those of whose templates it is a word has seen.
        let (shows_system, shows_developer) = (shows_role("system"), shows_role("developer"));
        let developer_is_system = shows_system && !(source.contains("developer") && shows_developer);
        let wants_turns = |role: &str| {
            let around = |messages: Vec<Value>| match role {
                "user" => [vec![user.clone(), assistant.clone()], messages].concat(),
                _ => [vec![user.clone()], messages, vec![user.clone()]].concat(),
            };
            let two = vec![message(role, FIRST), message(role, SECOND)];
            let shows_two = shows(around(two.clone())) && (role != "user" || shows(two));
            !shows_two && shows(around(vec![message(role, &both)]))
        };
        let words_behind = [result(json!(FIRST), names_results), vec![message("user", SECOND)]].concat();
        let mut thoughtful = result(json!("x"), names_results);
        thoughtful[1]["content"] = FIRST.into();
        thoughtful[1]["reasoning_content"] = SECOND.into();
        let mut folded = thoughtful.clone();
        text_into_reasoning(&mut folded);
        let mut reasoned = result(json!(FIRST), names_results);
        reasoned[1]["reasoning_content"] = SECOND.into();
        // Templates also print a message or its parts as they are.
        let is_json = |text: &str| ["'thinking'", "\"thinking\""].iter().any(|name| text.contains(name));
        let shows_reasoning = |place: ReasoningPlace| {
            let mut messages = reasoned.clone();
            place.rewrite(&mut messages);
            render(messages).is_some_and(|text| text.contains(SECOND) && !is_json(&text))
        };
        let places = [
            ReasoningPlace::Message,
            ReasoningPlace::Reasoning,
            ReasoningPlace::ToolPlan,
            ReasoningPlace::Part,
        ];
        let reasoning =
            places.into_iter().find(|place| source.contains(place.word()) && shows_reasoning(*place));
        Self {
            joined: ROLES.into_iter().filter(|role| !reads_parts(role)).collect(),
            developer_is_system,
            instructs_once: (shows_system || shows_developer)
                && !(several("system") && (developer_is_system || several("developer"))),
            names_results,
            joined_turns: TURNS.into_iter().filter(|role| wants_turns(role)).collect(),
            results_take_words: !shows(words_behind) && shows(result(json!(both), names_results)),
            reasoning_takes_text: render(thoughtful).is_none() && render(folded).is_some(),
            reasoning: reasoning.unwrap_or_default(),
        }
    }

    pub fn rewrite(&self, messages: &mut Vec<Value>) {
        if self.developer_is_system {
            for message in messages.iter_mut().filter(|message| message["role"] == "developer") {
                message["role"] = "system".into();
            }
        }
        for message in messages.iter_mut().filter(|message| message["content"].is_array()) {
            if self.joined.contains(&role_of(message)) {
                message["content"] = text_of(&message["content"]).into();
            }
        }
        if self.instructs_once {
            instruct_once(messages);
        }
        self.join_turns(messages);
        if self.reasoning_takes_text {
            text_into_reasoning(messages);
        }
        self.reasoning.rewrite(messages);
        if self.names_results {
            name_results(messages);
        }
    }

    fn join_turns(&self, messages: &mut Vec<Value>) {
        if self.joined_turns.is_empty() && !self.results_take_words {
            return;
        }
        let mut turns: Vec<Value> = Vec::with_capacity(messages.len());
        for message in std::mem::take(messages) {
            match turns.last_mut().filter(|last| self.are_one(last, &message)) {
                Some(last) => join(last, message),
                None => turns.push(message),
            }
        }
        *messages = turns;
    }

    fn are_one(&self, last: &Value, message: &Value) -> bool {
        match (last["role"].as_str(), message["role"].as_str()) {
            (Some("tool"), Some("user")) => self.results_take_words,
            // What follows calls does not come before them.
            (Some(before), Some(role)) => {
                before == role && self.joined_turns.contains(&role) && !has_calls(last)
            }
            _ => false,
        }
    }
}

/// Makes one message of two: their texts, their reasoning, and the calls of the second.
fn join(last: &mut Value, mut message: Value) {
    match (has_text(&last["content"]), has_text(&message["content"])) {
        (true, true) => append(&mut last["content"], "\n\n", &text_of(&message["content"])),
        (false, true) => last["content"] = message["content"].take(),
        (_, false) => {}
    }
    if let Some(reasoning) = take_reasoning(&mut message) {
        let before = take_reasoning(last).map(|before| before + "\n\n").unwrap_or_default();
        last["reasoning_content"] = (before + &reasoning).into();
    }
    if has_calls(&message) {
        last["tool_calls"] = message["tool_calls"].take();
    }
}

impl ReasoningPlace {
    /// Of a template that reads it there.
    fn word(self) -> &'static str {
        match self {
            Self::Message => "",
            Self::Reasoning => "reasoning",
            Self::ToolPlan => "tool_plan",
            Self::Part => "thinking",
        }
    }

    fn rewrite(self, messages: &mut [Value]) {
        for message in messages {
            match self {
                Self::Message => {}
                Self::Reasoning => {
                    if let Some(reasoning) = take_reasoning(message) {
                        message["reasoning"] = reasoning.into();
                    }
                }
                Self::ToolPlan if !has_calls(message) || message["tool_plan"].is_string() => {}
                Self::ToolPlan => {
                    if let Some(reasoning) = take_reasoning(message) {
                        message["tool_plan"] = reasoning.into();
                    }
                }
                Self::Part => {
                    if let Some(reasoning) = take_reasoning(message) {
                        let mut parts = vec![json!({"type": "thinking", "thinking": reasoning})];
                        match message["content"].take() {
                            Value::Array(more) => parts.extend(more),
                            content if has_text(&content) => parts.push(part(content)),
                            _ => {}
                        }
                        message["content"] = parts.into();
                    }
                }
            }
        }
    }
}

/// Text beside reasoning and calls follows the reasoning.
fn text_into_reasoning(messages: &mut [Value]) {
    for message in messages.iter_mut().filter(|message| has_calls(message) && has_text(&message["content"])) {
        if let Some(reasoning) = take_reasoning(message) {
            let text = text_of(&message["content"].take());
            message["reasoning_content"] = format!("{reasoning}\n\n{text}").into();
        }
    }
}

/// Templates print what a message says: one without a word and a call says nothing, and has an empty text.
pub fn fill_in_contents(messages: &mut [Value]) {
    for fields in messages.iter_mut().filter_map(Value::as_object_mut) {
        let calls = fields.get("tool_calls").and_then(Value::as_array).map_or(0, Vec::len);
        if calls == 0 {
            // Many look only whether there is a list.
            fields.remove("tool_calls");
            let content = fields.entry("content").or_insert(Value::Null);
            if content.is_null() {
                *content = "".into();
            }
        }
    }
}

fn has_calls(message: &Value) -> bool {
    message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
}

fn has_text(content: &Value) -> bool {
    match content {
        Value::String(text) => !text.is_empty(),
        Value::Array(parts) => parts.iter().any(|part| has_text(&part["text"])),
        _ => false,
    }
}

/// What a message has under any of its names, unless that is nothing.
pub fn take_reasoning(message: &mut Value) -> Option<String> {
    let fields = message.as_object_mut()?;
    let found = REASONING.map(|name| fields.remove(name));
    found.into_iter().flatten().find_map(|value| match value {
        Value::String(text) if !text.is_empty() => Some(text),
        _ => None,
    })
}

/// Instructions as one message at the beginning, in their order; behind the assistant's last message they are a turn of the user, which asks
/// for a new one. Turns of the user between which some stood are one: many of these templates want the user and the assistant to take turns.
fn instruct_once(messages: &mut Vec<Value>) {
    let instructs = |message: &Value| INSTRUCT.iter().any(|role| message["role"] == *role);
    let is_first = messages.first().is_some_and(instructs);
    match messages.iter().filter(|message| instructs(message)).count() {
        0 => return,
        1 if is_first => return,
        _ => {}
    }
    let mut first = Value::Null;
    let (mut texts, mut others) = (Vec::new(), Vec::<Value>::with_capacity(messages.len()));
    // Behind the last of the others.
    let mut latest = Vec::new();
    for message in std::mem::take(messages) {
        if instructs(&message) {
            latest.extend(Some(text_of(&message["content"])).filter(|text| !text.is_empty()));
            first = if first.is_null() { message } else { first };
            continue;
        }
        let is_user = |message: &Value| message["role"] == "user";
        match others.last_mut().filter(|last| !latest.is_empty() && is_user(last) && is_user(&message)) {
            Some(last) => append(&mut last["content"], "\n\n", &text_of(&message["content"])),
            None => others.push(message),
        }
        texts.append(&mut latest);
    }
    if others.last().is_some_and(|last| last["role"] == "assistant") && !latest.is_empty() {
        others.push(json!({"role": "user", "content": latest.join("\n\n")}));
    } else {
        texts.append(&mut latest);
    }
    if !texts.is_empty() {
        first["content"] = texts.join("\n\n").into();
        others.insert(0, first);
    }
    *messages = others;
}

/// Results that do not say of which function they are have its name, as the call with their id has it.
pub fn name_results(messages: &mut [Value]) {
    let mut names: HashMap<String, Value> = HashMap::new();
    for message in messages {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            if let Some(id) = call["id"].as_str() {
                names.insert(id.to_owned(), call["function"]["name"].clone());
            }
        }
        if message["role"] == "tool" && message["name"].is_null() {
            let name = message["tool_call_id"].as_str().and_then(|id| names.get(id));
            if let Some(name) = name {
                message["name"] = name.clone();
            }
        }
    }
}

/// Makes one text of a content and what follows it. Many may follow, so what is there is not copied each time.
pub fn append(content: &mut Value, between: &str, text: &str) {
    match content {
        Value::String(before) => before.extend([between, text]),
        _ => *content = [&text_of(content), between, text].concat().into(),
    }
}

/// Other roles than those that are tried are taken for the user's.
fn role_of(message: &Value) -> &'static str {
    ROLES.into_iter().find(|role| message["role"] == *role).unwrap_or("user")
}

fn part(text: impl Into<Value>) -> Value {
    json!({"type": "text", "text": text.into()})
}

/// A conversation in which a message may stand.
fn chat_with(role: &str, content: Value) -> Vec<Value> {
    let (this, user) = (json!({"role": role, "content": content}), json!({"role": "user", "content": "x"}));
    match role {
        "user" => vec![this],
        "system" | "developer" => vec![this, user],
        _ => vec![user.clone(), this, user],
    }
}

/// A message's content without its parts' borders.
pub fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// Roles of which the template shows parts and no text, as those of many models that see images do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartsAlone(Vec<&'static str>);

impl PartsAlone {
    /// `render` gives None where the template refuses the messages.
    pub fn of(render: impl Fn(Vec<Value>) -> Option<String>) -> Self {
        let mut found = Self::default();
        // The user's first: the others stand beside them.
        for role in ROLES {
            let shows = |content: Value| {
                let mut messages = chat_with(role, content);
                found.write(&mut messages);
                render(messages).is_some_and(|text| text.contains(SECOND))
            };
            if !shows(json!(SECOND)) && shows(json!([part(SECOND)])) {
                found.0.push(role);
            }
        }
        found
    }

    /// The last that is done to messages: all else is done to texts.
    pub fn write(&self, messages: &mut [Value]) {
        for message in messages {
            if message["content"].is_string() && self.0.contains(&role_of(message)) {
                message["content"] = json!([part(message["content"].take())]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_core::prompt::Chat;
    use penstock_template::ChatTemplates;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::http::chats::formats::{ChatFormats, FormatFlag};
    use crate::http::chats::manners::{CallPlace, ToolPlace, fill_in};

    const FAMILIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration-tests/chat_templates");

    /// A model's template, as a server knows it.
    struct Family {
        templates: ChatTemplates,
        formats: ChatFormats,
    }

    impl Family {
        fn of(source: &str) -> Self {
            Self::of_sources(&[("default", source)])
        }

        fn of_sources(sources: &[(&str, &str)]) -> Self {
            let tokens = json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"});
            let named: Vec<(String, String)> =
                sources.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect();
            let complain = |name: &str, reason: String| panic!("{name}: {reason}");
            let templates =
                ChatTemplates::compile(&named, tokens.as_object().expect("an object").clone(), complain);
            let sources = [true, false].map(|with_tools| templates.source(with_tools).expect("a template"));
            let formats = ChatFormats::of_templates(sources, &FormatFlag::Auto, &FormatFlag::Auto, |chat| {
                of(&templates, chat)
            });
            Self { templates, formats }
        }

        /// The prompt of messages as clients send them.
        fn prompt(&self, messages: Vec<Value>) -> Option<String> {
            self.prompt_beside(false, messages)
        }

        fn prompt_beside(&self, tools: bool, mut messages: Vec<Value>) -> Option<String> {
            self.formats.rewrite(&mut messages, tools);
            self.formats.manners.parts_alone.write(&mut messages);
            let mut tool = json!({"type": "function", "function": {"name": "f"}});
            fill_in(&mut tool);
            let has_place = self.formats.manners.tools == ToolPlace::Template;
            let tools = (tools && has_place).then(|| vec![tool]);
            of(&self.templates, &Chat { messages, tools, ..Chat::default() })
        }
    }

    fn of(templates: &ChatTemplates, chat: &Chat) -> Option<String> {
        templates.render(chat, &CancellationToken::new()).ok()
    }

    fn families() -> Vec<(String, Family)> {
        let files = std::fs::read_dir(FAMILIES).expect("a folder").map(|file| file.expect("a file").path());
        let read = |file: std::path::PathBuf| {
            let source = std::fs::read_to_string(&file).expect("a text");
            (file.file_stem().expect("a name").to_string_lossy().into_owned(), Family::of(&source))
        };
        files.map(read).collect()
    }

    fn said(role: &str, content: impl Into<Value>) -> Value {
        json!({"role": role, "content": content.into()})
    }

    fn parts<const N: usize>(texts: [&str; N]) -> Value {
        texts.map(|text| json!({"type": "text", "text": text})).into()
    }

    /// A call that was cut off comes back with what there is of its arguments, and some clients send a text of a text, or a list.
    #[test]
    fn arguments_that_are_no_object_are_shown() {
        let with = |arguments: &str| {
            let call = json!({"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}});
            let result = json!({"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "no"});
            vec![
                said("user", "x"),
                json!({"role": "assistant", "content": null, "tool_calls": [call]}),
                result,
                said("user", "y"),
            ]
        };
        let mut showing = 0;
        for (name, family) in families() {
            let prompt = |arguments: &str| family.prompt(with(arguments));
            if !prompt(r#"{"city": "Paris"}"#).is_some_and(|prompt| prompt.contains("Paris")) {
                continue;
            }
            showing += 1;
            for arguments in
                [r#"{"city": "Paris"#, r#""{\"city\": \"Paris\"}""#, r#"["Paris"]"#, r#""Paris""#, "Paris"]
            {
                let prompt = prompt(arguments);
                assert!(prompt.is_some_and(|prompt| prompt.contains("Paris")), "{name}: {arguments}");
            }
        }
        assert!(showing > 40, "{showing}");
    }

    /// Whatever a client sends, each template shows all of it, if it shows such words in any form at all.
    #[test]
    fn no_words_are_lost() {
        let (user, assistant) = (said("user", "x"), said("assistant", "y"));
        let call = json!({"role": "assistant", "content": null, "tool_calls":
            [{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
        let result =
            |content: Value| json!({"role": "tool", "tool_call_id": "call00001", "content": content});
        let all = families();
        assert!(all.len() > 50, "{} templates", all.len());
        let (mut rewritten, mut with_tools) = ([0; 5], 0);
        for (beside_tools, (name, family)) in
            [false, true].into_iter().flat_map(|tools| all.iter().map(move |family| (tools, family)))
        {
            let shows = |messages: Vec<Value>| {
                let text = family.prompt_beside(beside_tools, messages)?;
                let is_json = ["'text'", "\"text\""].iter().any(|name| text.contains(name));
                Some(["WON", "TOO"].iter().all(|word| text.contains(word)) && !is_json)
            };
            let begins = shows(vec![said("user", "WON TOO")]);
            match &**name {
                // They are for chats with tools alone.
                "command_r_tools" | "hermes" if !beside_tools => continue,
                // Shows only what follows a message of the system.
                "llama3_3_pythonic" => assert_eq!(begins, Some(false)),
                _ => assert_eq!(begins, Some(true), "{name}"),
            }
            with_tools += u32::from(beside_tools && family.formats.manners.tools == ToolPlace::Template);
            let of_parts = shows(vec![said("user", parts(["WON ", "TOO"]))]);
            assert_eq!(of_parts, begins, "{name}: parts of a question");
            let turns = |content: Value| vec![user.clone(), said("assistant", content), user.clone()];
            let told = shows(turns("WON TOO".into()));
            assert_eq!(shows(turns(parts(["WON ", "TOO"]))), told, "{name}: parts of an answer");
            let results = |content: Value| vec![user.clone(), call.clone(), result(content)];
            let mut named = results("WON TOO".into());
            named[2]["name"] = "f".into();
            let told = shows(named);
            assert!(told.is_some(), "{name}: a result");
            assert_eq!(shows(results("WON TOO".into())), told, "{name}: a result without a name");
            assert_eq!(shows(results(parts(["WON ", "TOO"]))), told, "{name}: parts of a result");
            // What agents send back and say in between: where the template shows such words in one turn, it shows them in two.
            let behind = [results("WON".into()), vec![said("user", "TOO")]].concat();
            assert_eq!(shows(behind), told, "{name}: words behind a result");
            for before in [vec![], vec![user.clone(), assistant.clone()]] {
                let two = [before, vec![said("user", "WON"), said("user", "TOO")]].concat();
                assert_eq!(shows(two), begins, "{name}: two questions");
            }
            let two = [said("assistant", "WON"), said("assistant", "TOO")];
            let two = [vec![user.clone()], two.to_vec(), vec![user.clone()]].concat();
            assert_eq!(shows(two), shows(turns("WON TOO".into())), "{name}: two answers");
            let mut thoughtful = results("x".into());
            thoughtful[1]["content"] = "WON".into();
            let without = shows(thoughtful.clone());
            thoughtful[1]["reasoning_content"] = "TOO".into();
            assert_eq!(shows(thoughtful).is_some(), without.is_some(), "{name}: reasoning, text and a call");
            // An answer that was cut off, and is not continued.
            let thought =
                json!({"role": "assistant", "content": null, "reasoning_content": "TOO", "tool_calls": []});
            for more in [vec![], vec![user.clone()]] {
                let cut = [vec![said("user", "WON"), thought.clone()], more].concat();
                assert!(shows(cut).is_some(), "{name}: reasoning alone");
            }
            // Some know no instructions.
            if shows(vec![said("system", "WON TOO"), user.clone()]) == Some(true) {
                for role in INSTRUCT {
                    for messages in [
                        vec![said(role, parts(["WON ", "TOO"])), user.clone()],
                        vec![said(role, "WON"), said("developer", "TOO"), user.clone()],
                        vec![said(role, "WON"), user.clone(), said(role, "TOO")],
                        vec![user.clone(), said(role, "WON"), said("system", "TOO"), user.clone()],
                        vec![
                            said(role, "WON"),
                            user.clone(),
                            assistant.clone(),
                            said("system", "TOO"),
                            user.clone(),
                        ],
                        vec![said(role, "WON"), user.clone(), assistant.clone(), said("developer", "TOO")],
                    ] {
                        if messages[0]["role"] != "user" || begins == Some(true) {
                            assert_eq!(shows(messages.clone()), Some(true), "{name}: {messages:?}");
                        }
                    }
                }
            }
            let MessageManners {
                joined,
                developer_is_system,
                instructs_once,
                joined_turns,
                results_take_words,
                reasoning_takes_text,
                names_results: _,
                reasoning: _,
            } = &family.formats.manners.messages;
            let turns = joined_turns.contains(&"user");
            let needs =
                [joined.contains(&"user"), *developer_is_system, *instructs_once, turns, *results_take_words];
            assert_eq!(*reasoning_takes_text, name == "gpt_oss", "{name}");
            rewritten.iter_mut().zip(needs).for_each(|(count, needs)| *count += u32::from(needs));
        }
        // Enough of them do not show it as it comes, for this to have a point.
        let [joined, developer, once, turns, behind] = rewritten;
        assert!(joined > 30 && developer > 15 && once > 4, "{rewritten:?} of {}", all.len());
        assert!(turns > 4 && behind > 0, "{rewritten:?} of {}", all.len());
        assert!(with_tools > 15, "{with_tools}");
    }

    #[test]
    fn what_a_template_reads_is_left_as_it_is() {
        let reads_all = Family::of(
            "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}\
             {% for part in m.content or [] %}{{ part.text }}{% endfor %}{% endif %}{{ m.tool_calls or '' }}{% endfor %}",
        );
        let none = MessageManners::default();
        let manners_of_all = &reads_all.formats.manners.messages;
        // The template has no such word.
        assert_eq!(manners_of_all, &MessageManners { developer_is_system: true, ..none });
        let plain = Family::of(
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        let manners = &plain.formats.manners.messages;
        let joined = MessageManners { joined: ROLES.to_vec(), ..manners_of_all.clone() };
        assert_eq!(manners, &joined);
        assert_eq!(plain.prompt(vec![said("user", parts(["a", "b"]))]).as_deref(), Some("<user>ab"));
    }

    #[test]
    fn a_text_is_a_part_where_the_template_shows_parts_alone() {
        let shows = |name: &str, messages| {
            let source = std::fs::read_to_string(format!("{FAMILIES}/{name}.jinja")).expect("a text");
            Family::of(&source).prompt(messages)
        };
        let chat = |content: Value| {
            let system = said("developer", "a");
            vec![system, said("user", content), said("assistant", "d"), said("user", "e")]
        };
        let idefics = "<|im_start|>System: a<end_of_utterance>\nUser: bc<end_of_utterance>\nAssistant: d<end_of_utterance>\n\
                       User: e<end_of_utterance>\nAssistant:";
        for content in ["bc".into(), parts(["b", "c"])] {
            assert_eq!(shows("idefics", chat(content)).as_deref(), Some(idefics));
        }
        assert_eq!(
            shows("llava", chat("bc".into())).as_deref(),
            Some("a USER: bc ASSISTANT: d USER: e ASSISTANT:")
        );
        assert_eq!(
            shows("chatml", vec![said("user", "b")]),
            shows("chatml", vec![said("user", parts(["b"]))])
        );
    }

    #[test]
    fn instructions_without_a_word_are_left_out() {
        let strict = Family::of(
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}\
             <{{ m.role }}>{{ m.content }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        let two = vec![said("system", ""), said("developer", "a"), said("user", "b")];
        assert_eq!(strict.prompt(two).as_deref(), Some("<system>a<user>b"));
        let later = vec![said("user", "b"), said("system", "")];
        assert_eq!(strict.prompt(later).as_deref(), Some("<user>b"));
    }

    /// Qwen 3.5's rule.
    #[test]
    fn instructions_of_a_strict_template_are_one_message() {
        let strict = Family::of(
            "{% for m in messages %}{% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('System message must be at \
             the beginning.') }}{% endif %}{% elif m.role not in ['user', 'assistant', 'tool'] %}{{ raise_exception('Unexpected message \
             role.') }}{% endif %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        let prompt = |messages| strict.prompt(messages);
        let codex = vec![
            said("system", "a"),
            said("developer", "b"),
            said("user", "c"),
            said("developer", parts(["d"])),
        ];
        assert_eq!(prompt(codex).as_deref(), Some("<system>a\n\nb\n\nd<user>c"));
        let between =
            vec![said("user", "c"), said("system", "a"), said("user", parts(["d"])), said("user", "e")];
        assert_eq!(prompt(between).as_deref(), Some("<system>a<user>c\n\nd<user>e"));
        // It asks for another answer, and the one that is there is not continued.
        let behind =
            vec![said("system", "a"), said("user", "c"), said("assistant", "d"), said("developer", "e")];
        assert_eq!(prompt(behind).as_deref(), Some("<system>a<user>c<assistant>d<user>e"));
        let one = vec![said("user", "c"), said("system", "a")];
        assert_eq!(prompt(one).as_deref(), Some("<system>a<user>c"));
        assert_eq!(prompt(vec![said("user", "c")]).as_deref(), Some("<user>c"));
    }

    /// Mistral 7B v0.3's rule: calls and results do not count.
    #[test]
    fn a_template_that_wants_turns_gets_them() {
        let strict = Family::of(
            "{% set n = namespace(turn=0) %}{% for m in messages %}{% if m.role == 'tool' or m.tool_calls %}\
             <{{ m.role }}>{{ m.content or '' }}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
             {% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{% else %}{% if (m.role == 'user') != (n.turn % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}{% set n.turn = n.turn + 1 %}\
             <{{ m.role }}>{{ m.content }}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{% endif %}{% endfor %}",
        );
        let call = |id: &str| json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "function": {"name": "f", "arguments": {}}}]});
        let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        let prompt = |messages| strict.prompt(messages).expect("a prompt");
        let interrupted = vec![
            said("user", "a"),
            said("user", parts(["b", "c"])),
            call("1"),
            result("1", "d"),
            said("user", "e"),
            said("user", "f"),
            said("assistant", "g"),
        ];
        assert_eq!(prompt(interrupted), "<user>a\n\nbc<assistant>[f]<tool>d\n\ne\n\nf<assistant>g");
        // Calls and results that follow each other stay as they are.
        let parallel = vec![said("user", "a"), call("1"), call("2"), result("1", "b"), result("2", "c")];
        assert_eq!(prompt(parallel), "<user>a<assistant>[f]<assistant>[f]<tool>b<tool>c");
        let thought = |text: &str| json!({"role": "assistant", "content": null, "reasoning": text});
        let mut called = call("1");
        called["thinking"] = "y".into();
        let mut several =
            vec![said("user", "a"), thought("x"), said("assistant", "b"), said("assistant", "")];
        several.extend([called, result("1", "c")]);
        assert_eq!(prompt(several), "<user>a<assistant>b(x\n\ny)[f]<tool>c");
        let plain = Family::of(
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        let two = vec![said("user", "a"), said("user", "b")];
        assert_eq!(plain.prompt(two).as_deref(), Some("<user>a<user>b"));
    }

    /// GPT-OSS' rule, whose own answers have all three.
    #[test]
    fn text_beside_reasoning_and_a_call_follows_the_reasoning_where_a_template_takes_one() {
        let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]);
        let messages = |reasoning: &str| {
            let answer = json!({"role": "assistant", "content": "I look.", "reasoning_content": reasoning, "tool_calls": call});
            vec![said("user", "x"), answer, json!({"role": "tool", "tool_call_id": "1", "content": "r"})]
        };
        let source = std::fs::read_to_string(format!("{FAMILIES}/gpt_oss.jinja")).expect("a text");
        let gpt_oss = Family::of(&source);
        for (reasoning, shown) in [("Hm.", "Hm.\n\nI look."), ("", "I look.")] {
            let prompt = gpt_oss.prompt(messages(reasoning)).expect("a prompt");
            let shown =
                format!("<|channel|>analysis<|message|>{shown}<|end|><|start|>assistant to=functions.f");
            assert!(prompt.contains(&shown), "{prompt}");
        }
    }

    #[test]
    fn a_message_without_a_word_and_a_call_has_an_empty_text() {
        let call = json!([{"function": {"name": "f"}}]);
        for (given, filled) in [
            (json!({"role": "assistant"}), json!({"role": "assistant", "content": ""})),
            (json!({"content": null, "tool_calls": []}), json!({"content": ""})),
            (json!({"content": null, "tool_calls": null}), json!({"content": ""})),
            (json!({"content": [], "tool_calls": []}), json!({"content": []})),
            (json!({"content": null, "tool_calls": call}), json!({"content": null, "tool_calls": call})),
        ] {
            let mut messages = [given];
            fill_in_contents(&mut messages);
            assert_eq!(messages, [filled]);
        }
    }

    /// FunctionGemma's rule.
    #[test]
    fn results_get_the_names_of_their_functions() {
        let named = Family::of(
            "{% for m in messages %}{% if m.role == 'tool' and not m.name %}{{ raise_exception('name must be provided') }}{% endif %}\
             <{{ m.role }}{{ m.name or '' }}>{{ m.content or '' }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        let call = |id: &str, name: &str| json!({"role": "assistant", "tool_calls": [{"id": id, "function": {"name": name, "arguments": {}}}]});
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
        let messages = vec![said("user", "x"), call("1", "f"), call("2", "g"), result("2"), result("1")];
        let prompt = named.prompt(messages).expect("a prompt");
        assert!(prompt.ends_with("<toolg>r<toolf>r"), "{prompt}");
        let unknown = vec![said("user", "x"), call("1", "f"), result("3")];
        assert_eq!(named.prompt(unknown), None);
    }

    fn family(name: &str) -> Family {
        Family::of(&std::fs::read_to_string(format!("{FAMILIES}/{name}.jinja")).expect("a text"))
    }

    fn call(id: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}})
    }

    /// A question, a call and its result.
    fn tool_loop(arguments: &str) -> Vec<Value> {
        vec![
            said("user", "x"),
            json!({"role": "assistant", "content": null, "tool_calls": [call("call00001", arguments)]}),
            json!({"role": "tool", "tool_call_id": "call00001", "content": "r"}),
        ]
    }

    /// Each of these writes any role as it is called.
    #[test]
    fn calls_have_no_role_that_the_template_does_not_know() {
        for name in ["chatml", "smollm2", "qwen1_5", "llama3", "phi4_mini", "exaone", "openchat"] {
            let family = family(name);
            assert_eq!(family.formats.manners.calls, CallPlace::TextAndUser, "{name}");
        }
        assert_eq!(family("granite3").formats.manners.calls, CallPlace::OwnRoles);
        assert_eq!(family("granite3_3").formats.manners.calls, CallPlace::TextAndToolResponse);
    }

    /// Command R7B and Command A are published with a template for chats with tools and one for others, which wants turns.
    #[test]
    fn calls_and_results_go_where_the_template_of_tools_shows_them() {
        let cohere = Family::of_sources(&[
            (
                "default",
                "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}\
                 {% if m.role == 'user' %}<|USER_TOKEN|>{{ m.content }}{% else %}<|CHATBOT_TOKEN|>{{ m.content }}{% endif %}{% endfor %}",
            ),
            (
                "tool_use",
                "{{ tools | tojson }}{% for m in messages %}{% if m.role == 'tool' %}<|SYSTEM_TOKEN|><|START_TOOL_RESULT|>{{ m.content }}<|END_TOOL_RESULT|>\
                 {% elif m.tool_calls %}<|CHATBOT_TOKEN|><|START_THINKING|>{{ m.tool_plan }}<|END_THINKING|><|START_ACTION|>{% for c in m.tool_calls %}\
                 {{ c.function.name }}{% endfor %}<|END_ACTION|>{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}",
            ),
        ]);
        let manners = &cohere.formats.manners;
        assert_eq!(manners.calls, CallPlace::TextAndUser);
        assert_eq!(manners.calls_beside_tools, CallPlace::Messages);
        let mut thought = tool_loop("{}");
        thought[1]["reasoning_content"] = "Hm.".into();
        let prompt = cohere.prompt_beside(true, thought).expect("a prompt");
        let shown = "<user>x<|CHATBOT_TOKEN|><|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>f<|END_ACTION|>\
                     <|SYSTEM_TOKEN|><|START_TOOL_RESULT|>r<|END_TOOL_RESULT|>";
        assert!(prompt.ends_with(shown), "{prompt}");
        let prompt = cohere.prompt(tool_loop("{}")).expect("a prompt");
        assert!(prompt.starts_with("<|USER_TOKEN|>x<|CHATBOT_TOKEN|><|START_ACTION|>["), "{prompt}");
        assert!(prompt.ends_with("<|END_ACTION|><|USER_TOKEN|>r"), "{prompt}");
    }

    /// Hunyuan A13B's rule.
    #[test]
    fn calls_that_are_shown_beside_tools_alone_stay_where_they_are_there() {
        let hunyuan = Family::of(
            "{% if tools %}{{ tools | tojson }}{% for m in messages %}{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>\
             {% elif m.tool_calls %}<tool_calls>[{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}]</tool_calls>\
             {% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}\
             {% else %}{% for m in messages %}{% if m.role == 'assistant' %}Answer: {{ m.content }}{% else %}<{{ m.role }}>{{ m.content }}{% endif %}\
             {% endfor %}{% endif %}",
        );
        let manners = &hunyuan.formats.manners;
        assert_eq!((manners.calls, manners.calls_beside_tools), (CallPlace::Text, CallPlace::Messages));
        let prompt = hunyuan.prompt_beside(true, tool_loop("{}")).expect("a prompt");
        assert!(
            prompt.ends_with("<user>x<tool_calls>[f]</tool_calls><tool_response>r</tool_response>"),
            "{prompt}"
        );
        // A template that shows the tools alone does not show their calls.
        let plain = Family::of(
            "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        );
        assert_eq!(plain.formats.manners.calls_beside_tools, CallPlace::TextAndUser);
    }

    /// LFM2's first template: it shows results, and calls only as the model's text.
    #[test]
    fn calls_that_a_template_does_not_show_are_text_in_its_format() {
        let lfm2 = Family::of(
            "{% if tools %}List of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}{% for m in messages %}\
             <|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}<|tool_response_start|>{{ m.content }}<|tool_response_end|>\
             {% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
        );
        assert_eq!(
            lfm2.prompt(tool_loop(r#"{"city": "Paris", "days": 3}"#)).as_deref(),
            Some(
                "<|im_start|>user\nx<|im_end|>\n\
                 <|im_start|>assistant\n<|tool_call_start|>[f(city=\"Paris\", days=3)]<|tool_call_end|><|im_end|>\n\
                 <|im_start|>tool\n<|tool_response_start|>r<|tool_response_end|><|im_end|>\n<|im_start|>assistant"
            )
        );
    }

    /// Apertus' rule: arguments are a text there.
    #[test]
    fn calls_as_text_have_the_arguments_that_the_model_wrote() {
        let apertus = Family::of(
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{% if m.role == 'tool' %}[{{ m.content }}]\
             {% else %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|tools_prefix|>[{{ '{\"' + c.function.name + '\": ' + c.function.arguments + '}' }}]\
             <|tools_suffix|>{% endfor %}{% endif %}{% endfor %}",
        );
        for arguments in [r#"{"a": 1, "b":  1e2}"#, r#"{"a": "Par"#] {
            let prompt = apertus.prompt(tool_loop(arguments)).expect("a prompt");
            let shown =
                format!("<assistant><|tools_prefix|>[{{\"f\": {arguments}}}]<|tools_suffix|><tool>[r]");
            assert!(prompt.ends_with(&shown), "{prompt}");
        }
    }

    /// DeepSeek R1's, which its distilled models have: it shows calls and results, and no tools.
    #[test]
    fn a_template_without_tools_has_calls_in_json_all_along() {
        let r1 = Family::of(
            "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}\
             {% elif m.content is none %}<｜Assistant｜>{% for c in m.tool_calls %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.type + '<｜tool▁sep｜>' + \
             c.function.name + '\n```json\n' + c.function.arguments + '\n```' }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}\
             {% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}{% endif %}{% endfor %}<｜Assistant｜><think>\n",
        );
        assert_eq!(r1.formats.calls.map(|format| format.name), Some("json"));
        assert_eq!(r1.formats.reasoning.map(|format| format.name), Some("think"));
        assert_eq!(
            r1.prompt(tool_loop(r#"{"a": 1}"#)).as_deref(),
            Some(
                "<｜User｜>x<｜Assistant｜>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<｜tool▁output▁begin｜>r<｜Assistant｜><think>"
            )
        );
        // A format that is named is kept.
        let calls = FormatFlag::Named(penstock_output::tool_format("deepseek_v3").expect("it exists"));
        let source = r1.formats.template.as_str();
        let named =
            ChatFormats::of_templates([source; 2], &calls, &FormatFlag::Auto, |chat| of(&r1.templates, chat));
        let mut messages = tool_loop(r#"{"a": 1}"#);
        named.rewrite(&mut messages, false);
        let text = messages[1]["content"].as_str().expect("a text");
        assert!(
            text.starts_with("<｜tool▁calls▁begin｜>") && text.contains("\n```json\n{\"a\": 1}\n```"),
            "{text}"
        );
    }

    /// Solar Open's, which has one name for reasoning, in a turn of its own.
    #[test]
    fn reasoning_has_the_name_that_the_template_reads() {
        let solar = Family::of(
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}\
             {% if m.reasoning %}<|begin|>assistant<|think|>{{ m.reasoning }}<|end|>{% endif %}{% if m.tool_calls %}<|begin|>assistant<|tool_calls|>\
             {% for c in m.tool_calls %}<|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ c.function.name }}<|tool_call:args|>{{ c.function.arguments | tojson }}\
             <|tool_call:end|>{% endfor %}<|calls|>{% else %}<|begin|>assistant<|content|>{{ m.content }}<|end|>{% endif %}\
             {% else %}<|begin|>{{ m.role }}<|content|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|begin|>assistant{% endif %}",
        );
        let formats = (solar.formats.calls, solar.formats.reasoning);
        assert_eq!(formats.0.map(|format| format.name), Some("solar_open"));
        assert_eq!(formats.1.map(|format| format.name), Some("solar_open"));
        for name in ["reasoning_content", "reasoning"] {
            let mut thought = tool_loop("{}");
            thought[1][name] = "Hm.".into();
            assert_eq!(
                solar.prompt(thought).as_deref(),
                Some(
                    "<|begin|>user<|content|>x<|end|><|begin|>assistant<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|>\
                     <|tool_call:begin|>call00001<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|><|calls|>\
                     <|begin|>tool<|content|>r<|end|><|begin|>assistant"
                )
            );
        }
    }

    /// Those of Mistral's models that reason, and of Command R7B.
    #[test]
    fn reasoning_goes_where_the_template_reads_it() {
        let mistral = Family::of(
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{% if not m.content and not m.tool_calls %}{{ raise_exception('content') }}{% endif %}\
             {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{% if p.type == 'text' %}{{ p.text }}\
             {% elif p.type == 'thinking' %}[THINK]{{ p.thinking }}[/THINK]{% else %}{{ raise_exception('part') }}{% endif %}{% endfor %}{% endif %}\
             {% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}</s>\
             {% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}",
        );
        let cohere = Family::of(
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}<|START_THINKING|>{{ m.tool_plan }}<|END_THINKING|><|START_ACTION|>\
             {% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}<|END_ACTION|>{% else %}{{ m.content }}{% endif %}{% endfor %}",
        );
        let mut thought = tool_loop("{}");
        thought[1]["reasoning_content"] = "Hm.".into();
        for (family, shown) in [
            (&mistral, "[user]x[THINK]Hm.[/THINK][TOOL_CALLS]f[ARGS]{}</s>[tool]r"),
            (
                &cohere,
                "<user>x<assistant><|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>f<|END_ACTION|><tool>r",
            ),
        ] {
            assert_eq!(family.prompt(thought.clone()).as_deref(), Some(shown));
        }
        // With text, as parts, and of an answer that was cut off.
        let parts = |content: Value| {
            let answer = json!({"role": "assistant", "content": content, "reasoning": "Hm."});
            mistral.prompt(vec![said("user", "x"), answer, said("user", "y")])
        };
        assert_eq!(parts("Yes.".into()).as_deref(), Some("[user]x[THINK]Hm.[/THINK]Yes.</s>[user]y"));
        assert_eq!(
            parts(self::parts(["Ye", "s."])).as_deref(),
            Some("[user]x[THINK]Hm.[/THINK]Yes.</s>[user]y")
        );
        for nothing in [json!(""), json!(null), json!([])] {
            assert_eq!(parts(nothing).as_deref(), Some("[user]x[THINK]Hm.[/THINK]</s>[user]y"));
        }
        // What the client calls so itself is its own.
        thought[1]["tool_plan"] = "Plan.".into();
        assert!(cohere.prompt(thought).is_some_and(|prompt| prompt.contains("<|START_THINKING|>Plan.")));
    }

    /// Seed-OSS' rule.
    #[test]
    fn parameters_without_properties_are_shown_by_a_template_that_goes_through_them() {
        let seed = Family::of(
            "{% for t in tools or [] %}def {{ t.function.name }}({% for name, spec in t.function.parameters.properties.items() %}{{ name }}\
             {% endfor %}){% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        // It goes through those of functions that have some.
        let guarded = Family::of(
            "{% for t in tools or [] %}def {{ t.function.name }}({% if t.function.parameters is defined %}\
             {% for name, spec in t.function.parameters.properties.items() %}{{ name }}{% endfor %}{% endif %}){% endfor %}\
             {% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        let plain = Family::of(
            "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{{ m.tool_calls or '' }}{% endfor %}",
        );
        assert!(!plain.formats.manners.fills_in_tools);
        for family in [seed, guarded] {
            assert!(family.formats.manners.fills_in_tools);
            for function in [
                json!({"name": "f"}),
                json!({"name": "f", "parameters": {}}),
                json!({"name": "f", "parameters": {"type": "object"}}),
            ] {
                let mut tool = json!({"type": "function", "function": function});
                fill_in(&mut tool);
                let chat =
                    Chat { messages: vec![said("user", "x")], tools: Some(vec![tool]), ..Chat::default() };
                assert_eq!(of(&family.templates, &chat).as_deref(), Some("def f()<user>x"), "{function}");
            }
        }
    }

    /// A conversation that was begun with another model.
    #[test]
    fn ids_have_the_form_that_the_template_wants() {
        let mistral = family("mistral_v3");
        assert!(mistral.formats.manners.nine_ids && !family("mistral_tekken").formats.manners.nine_ids);
        let (one, other) = ("call_0123456789abcdef", "toolu_0123456789abcdef");
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
        let messages = vec![
            said("user", "x"),
            json!({"role": "assistant", "content": null, "tool_calls": [call(one, "{}"), call(other, "{}")]}),
            result(other),
            result(one),
        ];
        let prompt = mistral.prompt(messages).expect("a prompt");
        let ids = |before: &str| -> Vec<String> {
            prompt.split(before).skip(1).map(|rest| rest.chars().take(9).collect()).collect()
        };
        let (called, mut answered) = (ids("\"id\": \""), ids("\"call_id\": \""));
        answered.reverse();
        assert!(called.len() == 2 && called[0] != called[1] && called == answered, "{prompt}");
    }
}
