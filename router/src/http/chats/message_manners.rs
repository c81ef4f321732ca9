//! What a chat template makes of messages that its model was not trained on, found by rendering some: clients send parts, a
//! developer's messages, several of the system, and turns in any order, and most templates refuse these, leave them out or print them
//! as they are in JSON. Where the template does not read them, they are rewritten to what it reads.

use serde_json::{Value, json};

use crate::http::chats::messages::{
    has_calls, has_text, instruct_once, join, name_results, take_reasoning, text_into_reasoning, text_of,
};

/// Roles whose messages are tried.
const ROLES: [&str; 5] = ["user", "system", "developer", "assistant", "tool"];
/// Who takes turns.
const TURNS: [&str; 2] = ["user", "assistant"];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::chats::families::{Family, families, family, parts, said, tool_loop};
    use crate::http::chats::messages::INSTRUCT;
    use crate::http::chats::template_places::ToolPlace;

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
        let shows = |name: &str, messages| family(name).prompt(messages);
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
        let gpt_oss = family("gpt_oss");
        for (reasoning, shown) in [("Hm.", "Hm.\n\nI look."), ("", "I look.")] {
            let prompt = gpt_oss.prompt(messages(reasoning)).expect("a prompt");
            let shown =
                format!("<|channel|>analysis<|message|>{shown}<|end|><|start|>assistant to=functions.f");
            assert!(prompt.contains(&shown), "{prompt}");
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
}
