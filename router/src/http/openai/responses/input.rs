//! `instructions` and `input` of `/v1/responses` as messages of a chat and as tools: what the items, which `items` reads, mean in their
//! order. Those of one answer become one message again, as templates have it.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::http::chats::functions::{Namespaced, TOOL_SEARCH, ToolList};
use crate::http::chats::messages::append;
use crate::http::chats::object::objects;
use crate::http::chats::unseen::Unseen;
use crate::http::error::{ApiError, Place};
use crate::http::fields::Fields;
use crate::http::openai::responses::items::{AgentPartParam, InputItem, PartParam, Role};
use crate::http::openai::responses::{encrypted_content, search};
use crate::http::request_fields::{self, Most};
use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

const INPUT: &str = request_fields::INPUT.name;

impl<'a> InputItem<'a> {
    /// The id of the call that it is.
    fn call(&self) -> Option<&'a str> {
        match self {
            Self::FunctionCall { call_id, .. }
            | Self::CustomToolCall { call_id, .. }
            | Self::LocalShellCall { call_id, .. } => Some(*call_id),
            Self::ToolSearchCall { execution, call_id, .. } => search::of_client(*execution, *call_id),
            _ => None,
        }
    }

    /// The id of the call whose result it is.
    fn result_of(&self) -> Option<&'a str> {
        match self {
            Self::FunctionCallOutput { call_id, .. } | Self::CustomToolCallOutput { call_id, .. } => {
                Some(*call_id)
            }
            Self::ToolSearchOutput { execution, call_id, .. } => search::of_client(*execution, *call_id),
            _ => None,
        }
    }

    /// Items that an answer had become one message again: its reasoning, its text, its calls.
    fn add_to(self, messages: &mut Vec<Value>) {
        match self {
            Self::Message { role: Role::Assistant, content } => {
                let content = content.joined();
                let message = open_answer(messages);
                let has_calls = message["tool_calls"].is_array();
                match message["content"].as_str().filter(|said| !has_calls || !said.is_empty()) {
                    None => message["content"] = json!(content),
                    // Templates take no message between a call and its result, and words behind a call stand before it, as in chats.
                    Some(_) if has_calls && content.is_empty() => {}
                    Some(_) if has_calls => append(&mut message["content"], "\n\n", &content),
                    // Two texts in a row are two messages.
                    Some(_) => messages.push(json!({"role": "assistant", "content": content})),
                }
            }
            Self::Message { role, content } => {
                let role = if role == Role::User { "user" } else { "system" };
                messages.push(json!({"role": role, "content": content.joined()}));
            }
            Self::Reasoning { summary, content, encrypted_content } => {
                let content = content.filter(|parts| !parts.is_empty());
                let own = encrypted_content.filter(|_| content.is_none()).and_then(encrypted_content::read);
                let parts = content.or(summary).unwrap_or_default();
                let reasoning = match own {
                    Some(reasoning) => reasoning.to_owned(),
                    None => parts.iter().map(PartParam::text).collect(),
                };
                // Of OpenAI's servers most have no text, and a turn that nothing was said in would be shown to the model as one.
                if !reasoning.is_empty() {
                    let message =
                        json!({"role": "assistant", "content": null, "reasoning_content": reasoning});
                    messages.push(message);
                }
            }
            Self::FunctionCall { call_id, namespace, name, arguments } => {
                add_call(messages, call_id, namespace, name, json!(arguments));
            }
            Self::CustomToolCall { call_id, namespace, name, input } => {
                add_call(messages, call_id, namespace, name, json!({"input": input}));
            }
            Self::FunctionCallOutput { call_id, output } | Self::CustomToolCallOutput { call_id, output } => {
                add_result(messages, call_id, output.joined());
            }
            Self::LocalShellCall { call_id, action } => {
                add_call(messages, call_id, None, "local_shell", action.clone());
            }
            Self::AgentMessage { author, recipient, content } => {
                if let Some(text) = AgentPartParam::texts(&content) {
                    let content = format!("[{author} to {recipient}]\n{text}");
                    messages.push(json!({"role": "user", "content": content}));
                }
            }
            Self::ToolSearchCall { execution, call_id, arguments } => {
                if let Some(id) = search::of_client(execution, call_id) {
                    add_call(messages, id, None, TOOL_SEARCH, arguments.clone());
                }
            }
            Self::ToolSearchOutput { execution, call_id, tools } => {
                if let Some(id) = search::of_client(execution, call_id) {
                    add_result(messages, id, search::result(tools));
                }
            }
            Self::AdditionalTools { .. }
            | Self::Compaction {}
            | Self::CompactionSummary {}
            | Self::ContextCompaction {}
            | Self::WebSearchCall {}
            | Self::ImageGenerationCall {}
            | Self::ConfigurationUpdate {} => {}
        }
    }
}

/// A call, of the name that the model knows.
fn add_call(messages: &mut Vec<Value>, id: &str, namespace: Option<&str>, name: &str, arguments: Value) {
    let name = match namespace {
        Some(namespace) => Namespaced::new(namespace, name).shown,
        None => name.to_owned(),
    };
    let function = json!({"name": name, "arguments": arguments});
    let call = json!({"id": id, "type": "function", "function": function});
    let message = open_answer(messages);
    match message["tool_calls"].as_array_mut() {
        Some(calls) => calls.push(call),
        None => message["tool_calls"] = json!([call]),
    }
}

fn add_result(messages: &mut Vec<Value>, id: &str, content: String) {
    join_thought(messages);
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
}

/// A thought behind calls is of the message with these: templates take no message between a call and its result.
fn join_thought(messages: &mut Vec<Value>) {
    let [.., calls, thought] = &messages[..] else { return };
    if !(is_alone(thought) && calls["role"] == "assistant" && calls["tool_calls"].is_array()) {
        return;
    }
    let thought = messages.pop().map(|mut thought| thought["reasoning_content"].take());
    let (Some(Value::String(text)), Some(Value::Object(calls))) = (thought, messages.last_mut()) else {
        return;
    };
    if !text.is_empty() {
        let before = calls.entry("reasoning_content").or_insert_with(|| "".into());
        let between = if before.as_str() == Some("") { "" } else { "\n\n" };
        append(before, between, &text);
    }
}

/// Whether it is a thought that nothing was said and nothing called with.
fn is_alone(message: &Value) -> bool {
    message["role"] == "assistant" && message["content"].is_null() && message["tool_calls"].is_null()
}

/// CrewAI puts what was thought of earlier questions in front of the first one. Nobody has asked anything there, and templates want a user first.
fn drop_first_thoughts(messages: &mut Vec<Value>) {
    let system = messages.iter().take_while(|message| message["role"] == "system").count();
    let alone = messages[system..].iter().take_while(|message| is_alone(message)).count();
    if system + alone < messages.len() {
        messages.drain(system..system + alone);
    }
}

/// The assistant's message that further items of an answer belong to.
fn open_answer(messages: &mut Vec<Value>) -> &mut Value {
    join_thought(messages);
    if messages.last().is_none_or(|message| message["role"] != "assistant") {
        messages.push(json!({"role": "assistant", "content": null}));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// What agents say while calls have no result yet: templates take no message between these, so it comes behind the last result.
#[derive(Default)]
struct Late<'a> {
    calls: HashSet<&'a str>,
    said: Vec<Value>,
}

impl<'a> Late<'a> {
    fn add(&mut self, item: InputItem<'a>, messages: &mut Vec<Value>) {
        let mut is_late = false;
        match &item {
            InputItem::AgentMessage { .. } => is_late = !self.calls.is_empty(),
            // What has no result by now has none.
            InputItem::Message { role, .. } if *role != Role::Assistant => {
                self.calls.clear();
                messages.append(&mut self.said);
            }
            item => {
                self.calls.extend(item.call());
                if let Some(call) = item.result_of() {
                    self.calls.remove(call);
                }
            }
        }
        item.add_to(if is_late { &mut self.said } else { messages });
        if self.calls.is_empty() {
            messages.append(&mut self.said);
        }
    }
}

/// What is left out, by why it is: the first place, and how many more.
#[derive(Default)]
struct LeftOut(Vec<(&'static str, Place, usize)>);

impl LeftOut {
    fn add(&mut self, why: &'static str, place: Place) {
        match self.0.iter_mut().find(|(known, ..)| *known == why) {
            Some((_, _, others)) => *others += 1,
            None => self.0.push((why, place, 0)),
        }
    }

    /// One line for each why, as of `Unseen`.
    fn warn(self, warnings: &mut Warnings) {
        for (why, first, others) in self.0 {
            let others = match others {
                0 => String::new(),
                others => format!("; so it is with {others} more"),
            };
            warnings.no_effect(&first.to_string(), &format!("here: {why}{others}"));
        }
    }
}

/// `instructions` and `input`, and the tools that stand among its items.
pub fn messages(fields: &Fields, warnings: &mut Warnings) -> Result<(Vec<Value>, Vec<ToolList>), ApiError> {
    let (mut messages, mut additional) = (Vec::new(), Vec::new());
    // Templates refuse or replace a system message that says nothing.
    if let Some(instructions) = fields.text(&request_fields::INSTRUCTIONS)?.filter(|text| !text.is_empty()) {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match fields.required(&request_fields::INPUT, fields.tree(&request_fields::INPUT)?)? {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) => {
            if items.len() as u64 > request_fields::MESSAGES_MOST {
                return Err(fields.too_many(INPUT, Most::Is(request_fields::MESSAGES_MOST), items.len()));
            }
            let mut unseen = Unseen::default();
            let mut left_out = LeftOut::default();
            let mut late = Late::default();
            for item in objects(&INPUT.into(), &items) {
                let item = item?;
                let read = InputItem::read(&item, &mut unseen)?;
                if let InputItem::AdditionalTools { tools } | InputItem::ToolSearchOutput { tools, .. } = read
                {
                    let are_found = matches!(read, InputItem::ToolSearchOutput { .. });
                    additional.push(ToolList { place: item.at("tools"), tools: tools.to_vec(), are_found });
                }
                if let Some((place, why)) = read.left_out(&item) {
                    left_out.add(why, place);
                }
                late.add(read, &mut messages);
            }
            messages.append(&mut late.said);
            drop_first_thoughts(&mut messages);
            unseen.warn(warnings);
            left_out.warn(warnings);
            if messages.is_empty() && !items.is_empty() {
                let text = "must have an item that is a message, a call or a result";
                return Err(ApiError::invalid(INPUT, text));
            }
        }
        other => {
            let error = ApiError::invalid(INPUT, "must be a string or a list of items");
            return Err(error.given(shortened(&other.to_string())));
        }
    }
    if messages.is_empty() {
        return Err(ApiError::invalid(INPUT, "must have at least one item"));
    }
    Ok((messages, additional))
}
#[cfg(test)]
pub mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::http::openai::responses::request::tests::{parsed, refusal};

    /// Instructions come before all items; reasoning, text and calls of an answer become one message.
    pub fn conversation(last: Value) -> Value {
        json!({
            "instructions": "Be short.",
            "input": [
                {"role": "user", "content": "What is the weather?"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "x = 1"},
                {"type": "function_call_output", "call_id": "1", "output": "21"},
                last,
            ],
        })
    }

    #[test]
    fn items_become_messages_that_templates_know() {
        let last = json!({"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "1"}]});
        let chat = parsed(conversation(last)).expect("valid").chat.chat;
        let told: Vec<_> =
            chat.messages.iter().map(|message| (&message["role"], &message["content"])).collect();
        let expected = [
            ("system", "Be short."),
            ("user", "What is the weather?"),
            ("assistant", "I look."),
            ("tool", "21"),
            ("tool", "1"),
        ];
        assert_eq!(told.len(), expected.len());
        for ((role, content), (expected_role, text)) in told.into_iter().zip(expected) {
            assert_eq!((role, content), (&json!(expected_role), &json!(text)));
        }
        let without = parsed(json!({"instructions": ""})).expect("valid").chat.chat;
        assert_eq!(without.messages.len(), 1);
        let answer = &chat.messages[2];
        assert_eq!(answer["reasoning_content"], "Look.");
        assert_eq!(answer["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{}"}));
        assert_eq!(answer["tool_calls"][1]["function"]["arguments"], json!({"input": "x = 1"}));
    }

    /// Haystack sends an answer's calls before its text, and what a model writes behind a call we tell as an item behind it.
    #[test]
    fn text_behind_a_call_is_of_the_message_with_the_call() {
        let said = |text: &str| json!({"role": "assistant", "content": text});
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let reasoning = json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]});
        let user = json!({"role": "user", "content": "Look."});
        let result = json!({"type": "function_call_output", "call_id": "1", "output": "21"});
        for (answer, content, ids) in [
            (vec![reasoning.clone(), call("1"), said("I look.")], json!("I look."), vec!["1"]),
            (
                vec![reasoning.clone(), said("I look."), call("1"), said("Now.")],
                json!("I look.\n\nNow."),
                vec!["1"],
            ),
            (
                vec![reasoning.clone(), call("1"), said("I look."), call("2")],
                json!("I look."),
                vec!["1", "2"],
            ),
            (vec![reasoning.clone(), said(""), call("1"), said("I look.")], json!("I look."), vec!["1"]),
            (vec![reasoning.clone(), said("I look."), call("1"), said("")], json!("I look."), vec!["1"]),
        ] {
            let mut input = vec![user.clone()];
            input.extend(answer);
            input.extend([result.clone(), said("It is 21."), said("Degrees.")]);
            let messages = parsed(json!({"input": input})).expect("valid").chat.chat.messages;
            let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str()).collect();
            let expected = ["user", "assistant", "tool", "assistant", "assistant"].map(Some);
            assert_eq!(roles, expected, "{messages:?}");
            assert_eq!(
                (&messages[1]["content"], &messages[1]["reasoning_content"]),
                (&content, &json!("Hm."))
            );
            let calls = messages[1]["tool_calls"].as_array().expect("calls").iter();
            assert_eq!(calls.filter_map(|call| call["id"].as_str()).collect::<Vec<_>>(), ids);
        }
    }

    /// As models answer that think between their calls.
    #[test]
    fn a_thought_behind_a_call_is_of_the_message_with_the_call() {
        let thought =
            |text: &str| json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]});
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "21"});
        let said = json!({"role": "assistant", "content": "I look."});
        for (answer, reasoning, content, ids) in [
            (vec![thought("A"), call("1"), thought("B"), call("2")], "A\n\nB", json!(null), vec!["1", "2"]),
            (vec![call("1"), thought("B"), said], "B", json!("I look."), vec!["1"]),
            (vec![thought("A"), call("1"), thought("")], "A", json!(null), vec!["1"]),
            (vec![thought("A"), call("1"), thought("B")], "A\n\nB", json!(null), vec!["1"]),
        ] {
            let results = ids.iter().map(|id| result(id));
            let next = [thought("C"), call("3"), result("3")];
            let input: Vec<_> = answer.iter().cloned().chain(results).chain(next).collect();
            let messages = parsed(json!({"input": input})).expect("valid").chat.chat.messages;
            let roles: Vec<_> = messages.iter().filter_map(|message| message["role"].as_str()).collect();
            let mut expected = vec!["assistant"];
            expected.extend(ids.iter().map(|_| "tool"));
            expected.extend(["assistant", "tool"]);
            assert_eq!(roles, expected, "{answer:?}");
            let said = &messages[0];
            assert_eq!((&said["reasoning_content"], &said["content"]), (&json!(reasoning), &content));
            let calls = said["tool_calls"].as_array().expect("calls").iter();
            assert_eq!(calls.filter_map(|call| call["id"].as_str()).collect::<Vec<_>>(), ids);
            assert_eq!(messages[1 + ids.len()]["reasoning_content"], "C");
        }
    }

    #[test]
    fn thoughts_in_front_of_all_that_was_said_are_left_out() {
        let thought =
            |text: &str| json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]});
        let said = |role: &str| json!({"role": role, "content": "Hm."});
        let roles = |input: Vec<Value>| {
            let messages = parsed(json!({"instructions": "Be short.", "input": input}))
                .expect("valid")
                .chat
                .chat
                .messages;
            messages
                .iter()
                .map(|message| message["role"].as_str().map(str::to_owned).unwrap_or_default())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            roles(vec![
                said("developer"),
                thought("A"),
                thought("B"),
                said("user"),
                thought("C"),
                said("user")
            ]),
            ["system", "system", "user", "assistant", "user"]
        );
        // Of an answer that went on.
        assert_eq!(
            roles(vec![thought("A"), said("assistant"), said("user")]),
            ["system", "assistant", "user"]
        );
        assert_eq!(roles(vec![thought("A")]), ["system", "assistant"]);
    }

    /// What stands before them is not copied for each: here 64 GB.
    #[test]
    fn many_texts_behind_a_call_take_linear_time() {
        let long = "x".repeat(16 << 20);
        let said = |text: &str| json!({"role": "assistant", "content": text});
        let mut input = vec![said(&long)];
        input.push(json!({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}));
        input.extend((0..4000).map(|_| said("y")));
        let begin = Instant::now();
        let messages = parsed(json!({"input": input})).expect("valid").chat.chat.messages;
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        let content = messages[0]["content"].as_str().expect("a text");
        assert_eq!((messages.len(), content.len()), (1, long.len() + 4000 * "\n\ny".len()));
    }

    /// To the model a call of a namespace has the name under which it was shown the function.
    #[test]
    fn a_call_within_a_namespace_has_one_name() {
        for (namespace, shown) in
            [(json!("mcp__docs"), "mcp__docs__f"), (json!("mcp__docs__"), "mcp__docs__f"), (json!(null), "f")]
        {
            let call = json!({"type": "function_call", "call_id": "1", "namespace": namespace, "name": "f", "arguments": "{}"});
            let custom = json!({"type": "custom_tool_call", "call_id": "2", "namespace": namespace, "name": "f", "input": "x"});
            let chat = parsed(json!({"input": [call, custom]})).expect("valid").chat.chat;
            let calls = chat.messages[0]["tool_calls"].as_array().expect("calls");
            assert!(calls.iter().all(|call| call["function"]["name"] == shown), "{calls:?}");
        }
    }

    /// As Codex sends them to models that it knows to be OpenAI's: `tools` is not there.
    pub fn additional(tools: Value) -> Value {
        json!({"type": "additional_tools", "role": "developer", "id": "at_1", "tools": tools})
    }

    #[test]
    fn additional_tools_are_tools_and_no_message() {
        let exec = |description: &str| json!({"type": "custom", "name": "exec", "description": description});
        let namespace = |tools: Value| json!({"type": "namespace", "name": "functions", "tools": tools});
        let user = json!({"role": "user", "content": "Hi"});
        let asked = |more: Value| parsed(more).expect("valid").chat;
        let chat = asked(json!({"input": [additional(json!([namespace(json!([exec("Runs")]))])), user]}));
        assert_eq!(chat.chat.messages, [json!({"role": "user", "content": "Hi"})]);
        assert!(chat.params.warnings.is_empty());
        let tools = format!("{:?}", chat.tools.expect("a tool"));
        for part in ["\"functions__exec\"", "is_custom: true", "namespace: \"functions\", name: \"exec\""] {
            assert!(tools.contains(part), "{part}: {tools}");
        }
        // A history has the list more than once, and `tools` may have what is in it.
        let function = json!({"type": "function", "name": "f"});
        let lists = [
            additional(json!([namespace(json!([exec("Early")])), {"type": "web_search"}])),
            user,
            additional(
                json!([{"type": "function", "name": "g"}, namespace(json!([exec("Late")])), function]),
            ),
        ];
        let chat = asked(json!({"input": lists, "tools": [function]}));
        let line = "`input[0].tools[1]` has no effect here: this server runs no web_search";
        assert_eq!(chat.params.warnings.lines(), [line]);
        let tools = format!("{:?}", chat.tools.expect("tools"));
        let at = |part: &str| tools.find(part).unwrap_or_else(|| panic!("{part}: {tools}"));
        assert!(
            at("\"f\"") < at("\"functions__exec\"") && at("\"functions__exec\"") < at("\"g\""),
            "{tools}"
        );
        assert!(tools.contains("Late") && !tools.contains("Early"), "{tools}");
    }

    #[test]
    fn what_is_wrong_with_additional_tools_is_told_with_their_place() {
        let user = json!({"role": "user", "content": "Hi"});
        let twice = json!({"type": "function", "name": "f"});
        for (tools, says) in [
            (json!(5), "`input[1].tools` must be a list of tools"),
            (json!([5]), "`input[1].tools[0]` must be an object"),
            (
                json!([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]),
                "`input[1].tools[0].tools[0].name` must",
            ),
            (json!([twice, twice]), "`input[1].tools[1].name` is the same as another tool's"),
        ] {
            let refused = refusal(json!({"input": [user, additional(tools)]}));
            assert!(refused.starts_with(says), "{refused}");
        }
        let many: Vec<_> =
            (0..600).map(|index| json!({"type": "function", "name": format!("f{index}")})).collect();
        let others: Vec<_> =
            (0..600).map(|index| json!({"type": "function", "name": format!("g{index}")})).collect();
        let refused = refusal(json!({"input": [user, additional(json!(others))], "tools": many}));
        assert_eq!(refused, "`tools` must have at most 1024 entries. Given: 1200");
        let alone = refusal(json!({"input": [additional(json!([twice]))]}));
        assert_eq!(alone, "`input` must have an item that is a message, a call or a result");
    }

    /// Another agent's words come when they come.
    #[test]
    fn what_an_agent_says_parts_no_call_from_its_result() {
        let call =
            |id: &str| json!({"type": "function_call", "call_id": id, "name": "wait", "arguments": "{}"});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "21"});
        let agent = |text: &str| {
            let content = json!([{"type": "input_text", "text": text}]);
            json!({"type": "agent_message", "author": "/root/a", "recipient": "/root", "content": content})
        };
        let user = json!({"role": "user", "content": "Go on."});
        let said = json!({"role": "assistant", "content": "I wait."});
        for (input, told) in [
            (vec![call("1"), agent("A"), result("1")], vec!["call 1", "result 1", "A"]),
            (
                vec![
                    call("1"),
                    agent("A"),
                    call("2"),
                    result("2"),
                    agent("B"),
                    result("1"),
                    agent("C"),
                    call("3"),
                ],
                vec!["call 1 2", "result 2", "result 1", "A", "B", "C", "call 3"],
            ),
            (
                vec![call("1"), result("1"), agent("A"), call("2"), result("2")],
                vec!["call 1", "result 1", "A", "call 2", "result 2"],
            ),
            // One that was broken off.
            (vec![call("1"), agent("A"), user, agent("B")], vec!["call 1", "A", "Go on.", "B"]),
            (vec![call("1"), agent("A"), said, result("1")], vec!["call 1", "result 1", "A"]),
            (vec![call("1"), agent("A")], vec!["call 1", "A"]),
        ] {
            let messages = parsed(json!({"input": input})).expect("valid").chat.chat.messages;
            let ids = |message: &Value| -> Vec<String> {
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                calls.filter_map(|call| call["id"].as_str().map(str::to_owned)).collect()
            };
            let of = |message: &Value| match message["role"].as_str() {
                Some("assistant") => format!("call {}", ids(message).join(" ")),
                Some("tool") => format!("result {}", message["tool_call_id"].as_str().expect("an id")),
                _ => {
                    let text = message["content"].as_str().expect("a text");
                    text.strip_prefix("[/root/a to /root]\n").unwrap_or(text).to_owned()
                }
            };
            assert_eq!(messages.iter().map(of).collect::<Vec<_>>(), told, "{messages:?}");
        }
    }

    /// What Codex' own history has beside, with a model of OpenAI's.
    #[test]
    fn a_session_of_codex_goes_on_with_its_calls_agents_and_tools() {
        let found = json!([
            {"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "f", "defer_loading": true}]},
        ]);
        let action = json!({"type": "exec", "command": ["ls"], "timeout_ms": null});
        let input = json!([
            {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": [
                {"type": "input_text", "text": "See "}, {"type": "input_text", "text": "to it."},
            ]},
            {"type": "tool_search_call", "call_id": null, "execution": "server", "arguments": {"paths": ["docs"]}},
            {"type": "tool_search_output", "call_id": null, "status": "completed", "execution": "server", "tools": found},
            {"type": "local_shell_call", "call_id": "2", "status": "completed", "action": action},
            {"type": "function_call_output", "call_id": "2", "output": "a"},
        ]);
        let asked = parsed(json!({"input": input})).expect("valid").chat;
        let function = json!({"name": "local_shell", "arguments": action});
        let calls = json!([{"id": "2", "type": "function", "function": function}]);
        assert_eq!(
            asked.chat.messages,
            [
                json!({"role": "user", "content": "[/root to /root/a]\nSee to it."}),
                json!({"role": "assistant", "content": null, "tool_calls": calls}),
                json!({"role": "tool", "tool_call_id": "2", "content": "a"}),
            ]
        );
        assert!(format!("{:?}", asked.tools.expect("a tool")).contains("\"mcp__docs__f\""));
        let line = "`input[1]` has no effect here: the model is not told of the search, only of the tools that were found";
        assert_eq!(asked.params.warnings.lines(), [line]);
    }

    /// It has a text of its own in place of one that says nothing, and what this server has written in place of a summary.
    #[test]
    fn reasoning_is_its_content_or_what_was_encrypted_or_else_its_summary() {
        let summary = json!([{"type": "summary_text", "text": "S"}]);
        let content = json!([{"type": "reasoning_text", "text": "C"}]);
        let own = json!("penstock:E");
        for (summary, content, encrypted, text) in [
            (&summary, &json!(null), &json!(null), "S"),
            (&summary, &json!([]), &json!(null), "S"),
            (&summary, &content, &json!(null), "C"),
            (&summary, &content, &own, "C"),
            (&summary, &json!([]), &own, "E"),
            (&json!([]), &json!(null), &own, "E"),
        ] {
            let item = json!({"type": "reasoning", "summary": summary, "content": content, "encrypted_content": encrypted});
            let asked = parsed(json!({"input": [item]})).expect("valid").chat;
            assert_eq!(asked.chat.messages[0]["reasoning_content"], text, "{item}");
            assert!(asked.params.warnings.is_empty(), "{item}");
        }
    }
}
