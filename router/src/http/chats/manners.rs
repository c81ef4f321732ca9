//! What a chat template does with tools, calls and results, found by rendering some: not every model's has a place for them, and
//! those that have one do not all have the same. What a template leaves out, the model would never read.

use penstock_core::prompt::Chat;
use penstock_output::{ToolFormat, written_calls};
use serde_json::{Value, json};

use crate::http::chats::messages::{MessageManners, text_of};

const TOOL: &str = "penstock_looks_for_tools";
const RESULT: &str = "penstock looks for results";

/// Where the model reads which tools there are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ToolPlace {
    /// In `tools`, beside the messages.
    #[default]
    Template,
    /// In `tools` of the system's message, as a text (Phi-4-mini).
    SystemMessage,
    /// The template shows none.
    LastMessage,
}

/// Where it reads what it has called, and what came of that.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum CallPlace {
    /// In `tool_calls` and in messages of `tool`.
    #[default]
    Messages,
    /// In messages of `assistant_tool_call` and `tool_response` (Granite 3.0).
    OwnRoles,
    /// The template shows no calls: they are text as the model writes it.
    Text,
    /// And it knows no results either.
    TextAndUser,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manners {
    pub tools: ToolPlace,
    /// The template needs a description and parameters of each function.
    pub fills_in_tools: bool,
    pub calls: CallPlace,
    pub messages: MessageManners,
}

impl Manners {
    /// `render` gives None where the template refuses a chat. `template` is its source, for chats with tools; without `calls`, calls
    /// and results stay where they are.
    pub fn of(template: &str, calls: Option<&ToolFormat>, render: impl Fn(&Chat) -> Option<String>) -> Self {
        let user = json!({"role": "user", "content": "x"});
        let system = json!({"role": "system", "content": "x"});
        // Some say what they say of tools only where there is a system's message.
        let shows = |messages: &[Value], tool: Option<Value>, wanted: &[&str]| {
            let all = |before: &[&Value]| -> Vec<Value> {
                before.iter().copied().cloned().chain(messages.iter().cloned()).collect()
            };
            [all(&[&user]), all(&[&system, &user])].into_iter().any(|messages| {
                let chat = Chat { messages, tools: tool.clone().map(|tool| vec![tool]), ..Chat::default() };
                render(&chat).is_some_and(|text| wanted.iter().all(|wanted| text.contains(wanted)))
            })
        };
        let bare = json!({"type": "function", "function": {"name": TOOL}});
        let mut filled = bare.clone();
        fill_in(&mut filled);
        let tools = if shows(&[], Some(filled), &[TOOL]) {
            ToolPlace::Template
        } else if shows_within_the_system_message(&render) {
            ToolPlace::SystemMessage
        } else {
            ToolPlace::LastMessage
        };
        let result = |place: CallPlace, content: Value, has_name: bool| {
            let mut messages = vec![
                json!({"role": "assistant", "content": null, "tool_calls":
                    [{"id": "call00001", "type": "function", "function": {"name": TOOL, "arguments": {}}}]}),
                json!({"role": "tool", "tool_call_id": "call00001", "content": content}),
            ];
            if has_name {
                messages[1]["name"] = TOOL.into();
            }
            if let Some(calls) = calls {
                place.rewrite(&mut messages, template, calls);
            }
            messages
        };
        let shows_calls =
            |place: CallPlace| shows(&result(place, json!(RESULT), true), None, &[TOOL, RESULT]);
        let places = [CallPlace::Messages, CallPlace::OwnRoles, CallPlace::Text, CallPlace::TextAndUser];
        let place = places.into_iter().find(|place| calls.is_some() && shows_calls(*place));
        let place = place.unwrap_or_default();
        let messages = MessageManners::of(
            |messages| render(&Chat { messages, ..Chat::default() }),
            |content, has_name| [vec![user.clone()], result(place, content, has_name)].concat(),
        );
        let fills_in_tools = tools == ToolPlace::Template && !shows(&[], Some(bare), &[TOOL]);
        Self { tools, fills_in_tools, calls: place, messages }
    }
}

/// The description and the parameters that a function does not have.
pub fn fill_in(tool: &mut Value) {
    if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
        function.entry("description").or_insert_with(|| "".into());
        function.entry("parameters").or_insert_with(|| json!({"type": "object", "properties": {}}));
    }
}

fn shows_within_the_system_message(render: impl Fn(&Chat) -> Option<String>) -> bool {
    let mut messages = vec![json!({"role": "user", "content": "x"})];
    into_the_system_message(&mut messages, &[json!({"function": {"name": TOOL}})]);
    let chat = Chat { messages, ..Chat::default() };
    render(&chat).is_some_and(|text| text.contains(TOOL))
}

/// The functions' descriptions alone, as a text.
pub fn into_the_system_message(messages: &mut Vec<Value>, tools: &[Value]) {
    let functions: Vec<&Value> = tools.iter().map(|tool| &tool["function"]).collect();
    let text = json!(functions).to_string();
    match messages.iter_mut().find(|message| message["role"] == "system") {
        Some(message) => message["tools"] = text.into(),
        None => messages.insert(0, json!({"role": "system", "content": "", "tools": text})),
    }
}

/// Of calls of functions that take none, clients leave the arguments out or send a blank text; templates print an object.
pub fn fill_in_arguments(messages: &mut [Value]) {
    let calls = |message| Value::get_mut(message, "tool_calls").and_then(Value::as_array_mut);
    for call in messages.iter_mut().filter_map(calls).flatten() {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { continue };
        let arguments = function.entry("arguments").or_insert(Value::Null);
        if arguments.is_null() || arguments.as_str().is_some_and(|text| text.trim().is_empty()) {
            *arguments = json!({});
        }
    }
}

impl CallPlace {
    /// Brings earlier calls and their results to where the template shows them.
    pub fn rewrite(self, messages: &mut Vec<Value>, template: &str, format: &ToolFormat) {
        let is_ours = |message: &Value| message.get("tool_calls").is_some() || message["role"] == "tool";
        if self == Self::Messages || !messages.iter().any(is_ours) {
            return;
        }
        let mut rewritten: Vec<Value> = Vec::with_capacity(messages.len());
        let mut is_result_before = false;
        for mut message in std::mem::take(messages) {
            let is_result = message["role"] == "tool";
            let calls = message.as_object_mut().and_then(|message| message.remove("tool_calls"));
            let calls = calls.as_ref().and_then(Value::as_array).filter(|calls| !calls.is_empty());
            match (self, calls) {
                (Self::OwnRoles, Some(calls)) => {
                    let called: Vec<Value> = calls
                        .iter()
                        .map(|call| json!({"name": call["function"]["name"], "arguments": arguments(call)}))
                        .collect();
                    if message["content"].as_str().is_some_and(|text| !text.is_empty()) {
                        rewritten.push(message);
                    }
                    message =
                        json!({"role": "assistant_tool_call", "content": Value::from(called).to_string()});
                }
                (_, Some(calls)) => {
                    let calls: Vec<(&str, String)> = calls
                        .iter()
                        .map(|call| {
                            let name = call["function"]["name"].as_str().unwrap_or_default();
                            (name, arguments(call).to_string())
                        })
                        .collect();
                    let text = text_of(&message["content"]) + &written_calls(format, template, &calls);
                    message["content"] = text.into();
                }
                (_, None) => {}
            }
            if is_result {
                match self {
                    Self::OwnRoles => message["role"] = "tool_response".into(),
                    Self::TextAndUser => message["role"] = "user".into(),
                    Self::Text | Self::Messages => {}
                }
            }
            // Templates that know no results take turns seriously.
            let joins = self == Self::TextAndUser && is_result_before && message["role"] == "user";
            is_result_before = is_result;
            match rewritten.last_mut() {
                Some(last) if joins => {
                    let text = format!("{}\n{}", text_of(&last["content"]), text_of(&message["content"]));
                    last["content"] = text.into();
                }
                _ => rewritten.push(message),
            }
        }
        *messages = rewritten;
    }
}

/// As JSON: clients send a text of it, which may be anything.
fn arguments(call: &Value) -> Value {
    match &call["function"]["arguments"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
        Value::Null => json!({}),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use penstock_output::tool_format;

    use super::*;

    fn conversation() -> Vec<Value> {
        let call =
            |id: &str, arguments: Value| json!({"id": id, "function": {"name": "f", "arguments": arguments}});
        vec![
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "content": "So. ", "tool_calls": [call("1", json!("{\"a\": 1}")), call("2", json!({}))]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "one"}),
            json!({"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "two"}]}),
            json!({"role": "user", "content": "y"}),
        ]
    }

    fn rewritten(place: CallPlace) -> Value {
        let mut messages = conversation();
        place.rewrite(&mut messages, "", tool_format("json").expect("there is one"));
        messages.into()
    }

    #[test]
    fn calls_and_results_go_where_the_template_shows_them() {
        assert_eq!(rewritten(CallPlace::Messages), Value::from(conversation()));
        let calls = r#"[{"name":"f","arguments":{"a":1}},{"name":"f","arguments":{}}]"#;
        assert_eq!(
            rewritten(CallPlace::OwnRoles),
            json!([
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "So. "},
                {"role": "assistant_tool_call", "content": calls},
                {"role": "tool_response", "tool_call_id": "1", "content": "one"},
                {"role": "tool_response", "tool_call_id": "2", "content": [{"type": "text", "text": "two"}]},
                {"role": "user", "content": "y"},
            ])
        );
        let said = r#"So. [{"name": "f", "arguments": {"a":1}}, {"name": "f", "arguments": {}}]"#;
        let as_text = rewritten(CallPlace::Text);
        assert_eq!(as_text[1], json!({"role": "assistant", "content": said}));
        assert_eq!(as_text[2]["role"], "tool");
        assert_eq!(
            rewritten(CallPlace::TextAndUser),
            json!([
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": said},
                {"role": "user", "tool_call_id": "1", "content": "one\ntwo\ny"},
            ])
        );
    }

    #[test]
    fn arguments_that_are_no_json_stay_what_they_are() {
        assert_eq!(arguments(&json!({"function": {"arguments": "{not"}})), json!("{not"));
        assert_eq!(arguments(&json!({"function": {}})), json!({}));
    }

    #[test]
    fn every_call_has_arguments() {
        for (given, filled) in [
            (json!({"name": "f"}), json!({})),
            (json!({"name": "f", "arguments": null}), json!({})),
            (json!({"name": "f", "arguments": " \n"}), json!({})),
            (json!({"name": "f", "arguments": "{not"}), json!("{not")),
            (json!({"name": "f", "arguments": {"a": 1}}), json!({"a": 1})),
        ] {
            let user = json!({"role": "user", "content": "x"});
            let mut messages = [user.clone(), json!({"tool_calls": [{"function": given}]})];
            fill_in_arguments(&mut messages);
            assert_eq!(messages[0], user);
            assert_eq!(messages[1]["tool_calls"][0]["function"], json!({"name": "f", "arguments": filled}));
        }
    }

    #[test]
    fn tools_go_into_the_system_message() {
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        for (mut messages, system) in [
            (
                vec![json!({"role": "user"})],
                json!({"role": "system", "content": "", "tools": "[{\"name\":\"f\"}]"}),
            ),
            (
                vec![json!({"role": "system", "content": "x"})],
                json!({"role": "system", "content": "x", "tools": "[{\"name\":\"f\"}]"}),
            ),
        ] {
            into_the_system_message(&mut messages, &tools);
            assert_eq!(messages[0], system);
        }
    }
}
