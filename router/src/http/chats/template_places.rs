//! Where chat templates show tools, calls and results, and how a request's are brought there. `manners` finds out which place a
//! template has for them.

use std::hash::{DefaultHasher, Hash, Hasher};

use penstock_output::{ToolFormat, dumps, written_calls};
use serde_json::{Value, json};

use crate::http::chats::messages::{append, name_results, text_of};

/// Granite 3.0's.
pub const CALL_ROLE: &str = "assistant_tool_call";

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
    /// In `tool_calls`, and in `tool_responses` of the same message (Gemma 4's first templates).
    ToolResponses,
    /// In messages of `assistant_tool_call` and `tool_response` (Granite 3.0).
    OwnRoles,
    /// The template shows no calls: they are text as the model writes it.
    Text,
    /// And results are messages of `tool_response`, which a template that writes any role as it is called has no word of (Granite 3.1 to 3.3).
    TextAndToolResponse,
    /// And it knows no results either.
    TextAndUser,
}

/// The description and the parameters that a function does not have, and what these leave out where there are no arguments.
pub fn fill_in(tool: &mut Value) {
    if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
        function.entry("description").or_insert_with(|| "".into());
        let parameters = function.entry("parameters").or_insert_with(|| json!({}));
        if let Some(schema) = parameters.as_object_mut() {
            schema.entry("type").or_insert_with(|| "object".into());
            schema.entry("properties").or_insert_with(|| json!({}));
        }
    }
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

/// Makes ids of calls, and those of their results, nine letters and digits; ids that are stay.
pub fn shorten_ids(messages: &mut [Value]) {
    rename_ids(messages, |id| {
        if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return id.to_owned();
        }
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        format!("{:09x}", hasher.finish() >> 28)
    });
}

pub fn rename_ids(messages: &mut [Value], name: impl Fn(&str) -> String) {
    let rename = |id: Option<&mut Value>| {
        if let Some(Value::String(id)) = id {
            *id = name(id);
        }
    };
    for message in messages {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.into_iter().flatten().for_each(|call| rename(call.get_mut("id")));
        rename(message.get_mut("tool_call_id"));
    }
}

impl CallPlace {
    /// Brings earlier calls and their results to where the template shows them.
    pub fn rewrite(self, messages: &mut Vec<Value>, template: &str, format: &ToolFormat) {
        let is_ours = |message: &Value| message.get("tool_calls").is_some() || message["role"] == "tool";
        if self == Self::Messages || !messages.iter().any(is_ours) {
            return;
        }
        if self == Self::ToolResponses {
            return into_tool_responses(messages);
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
                    message = json!({"role": CALL_ROLE, "content": dumps(&called.into())});
                }
                (_, Some(calls)) => {
                    let calls: Vec<(&str, String)> = calls
                        .iter()
                        .map(|call| {
                            let name = call["function"]["name"].as_str().unwrap_or_default();
                            (name, written_arguments(call))
                        })
                        .collect();
                    let text = text_of(&message["content"]) + &written_calls(format, template, &calls);
                    message["content"] = text.into();
                }
                (_, None) => {}
            }
            if is_result {
                match self {
                    Self::OwnRoles | Self::TextAndToolResponse => message["role"] = "tool_response".into(),
                    Self::TextAndUser => message["role"] = "user".into(),
                    Self::Text | Self::Messages | Self::ToolResponses => {}
                }
            }
            // Templates that know no results take turns seriously.
            let joins = self == Self::TextAndUser && is_result_before && message["role"] == "user";
            is_result_before = is_result;
            match rewritten.last_mut() {
                Some(last) if joins => append(&mut last["content"], "\n", &text_of(&message["content"])),
                _ => rewritten.push(message),
            }
        }
        *messages = rewritten;
    }
}

/// One turn of the model as one message: its calls, their results, and what it said then. The template writes them in this order,
/// so what it said before its calls is a message of its own.
pub fn into_tool_responses(messages: &mut Vec<Value>) {
    name_results(messages);
    let calls_of = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
    let mut rewritten: Vec<Value> = Vec::with_capacity(messages.len());
    for mut message in std::mem::take(messages) {
        let has_calls = calls_of(&message) > 0;
        let text = text_of(&message["content"]);
        let before =
            rewritten.last_mut().filter(|before| calls_of(before) > 0 && before["content"].is_null());
        match before {
            Some(calls) if message["role"] == "tool" => {
                let response = json!({"name": called(calls, &message), "response": response(text)});
                match calls["tool_responses"].as_array_mut() {
                    Some(responses) => responses.push(response),
                    None => calls["tool_responses"] = json!([response]),
                }
            }
            Some(calls)
                if message["role"] == "assistant"
                    && !has_calls
                    && !text.is_empty()
                    && calls["tool_responses"].is_array() =>
            {
                calls["content"] = message["content"].take();
                let (Some(calls), Value::Object(own)) = (calls.as_object_mut(), message) else { continue };
                own.into_iter().for_each(|(name, value)| _ = calls.entry(name).or_insert(value));
            }
            _ => {
                if has_calls && !text.is_empty() {
                    rewritten.push(json!({"role": "assistant", "content": message["content"].take()}));
                }
                if has_calls {
                    message["content"] = Value::Null;
                }
                rewritten.push(message);
            }
        }
    }
    *messages = rewritten;
}

/// Of which function a result is that may have its name: else of the next call.
fn called(calls: &Value, result: &Value) -> Value {
    let next = calls["tool_responses"].as_array().map_or(0, Vec::len);
    match &result["name"] {
        Value::String(name) => name.clone().into(),
        _ => calls["tool_calls"][next]["function"]["name"].clone(),
    }
}

/// An object where a result is one, else the text.
fn response(text: String) -> Value {
    match serde_json::from_str(&text) {
        Ok(object @ Value::Object(_)) => object,
        _ => text.into(),
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

/// As the model has written them: the client's own text of an object, which may be cut off.
fn written_arguments(call: &Value) -> String {
    match &call["function"]["arguments"] {
        Value::String(text) if text.trim_start().starts_with('{') => text.clone(),
        _ => dumps(&arguments(call)),
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
        let calls = r#"[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {}}]"#;
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
        let said = r#"So. [{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {}}]"#;
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
    fn a_turn_of_calls_is_one_message_with_what_came_of_them() {
        let call = |id: &str, name: &str| json!({"id": id, "function": {"name": name, "arguments": {}}});
        let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        let mut messages = vec![
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "content": "So. ", "tool_calls": [call("1", "f"), call("2", "g")], "reasoning_content": "Hm"}),
            result("2", "{\"a\": [1, null]}"),
            json!({"role": "tool", "content": [{"type": "text", "text": "t"}, {"type": "text", "text": "wo"}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [call("3", "f")]}),
            result("3", "[1]"),
            json!({"role": "assistant", "content": "Done."}),
            json!({"role": "assistant", "content": "More."}),
            json!({"role": "user", "content": "y"}),
            json!({"role": "tool", "content": "of no call"}),
        ];
        CallPlace::ToolResponses.rewrite(&mut messages, "", tool_format("json").expect("there is one"));
        assert_eq!(
            Value::from(messages),
            json!([
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "So. "},
                {"role": "assistant", "content": null, "tool_calls": [call("1", "f"), call("2", "g")], "reasoning_content": "Hm",
                 "tool_responses": [{"name": "g", "response": {"a": [1, null]}}, {"name": "g", "response": "two"}]},
                {"role": "assistant", "content": "Done.", "tool_calls": [call("3", "f")],
                 "tool_responses": [{"name": "f", "response": "[1]"}]},
                {"role": "assistant", "content": "More."},
                {"role": "user", "content": "y"},
                {"role": "tool", "content": "of no call"},
            ])
        );
    }

    #[test]
    fn arguments_that_are_no_json_stay_what_they_are() {
        assert_eq!(arguments(&json!({"function": {"arguments": "{not"}})), json!("{not"));
        assert_eq!(arguments(&json!({"function": {}})), json!({}));
    }

    #[test]
    fn arguments_are_written_as_the_model_wrote_them() {
        for (given, written) in [
            (json!("{\"b\":1,  \"a\": 1e2}"), "{\"b\":1,  \"a\": 1e2}"),
            (json!("{\"a\": \"Par"), "{\"a\": \"Par"),
            (json!({"b": [1, 2], "a": "x"}), "{\"b\": [1, 2], \"a\": \"x\"}"),
            (json!("no JSON"), "\"no JSON\""),
            (json!(null), "{}"),
        ] {
            assert_eq!(written_arguments(&json!({"function": {"arguments": given}})), written);
        }
    }

    #[test]
    fn ids_become_nine_letters_and_digits() {
        let long = "call_0123456789abcdef";
        let call = |id: &str| json!({"id": id, "function": {"name": "f"}});
        let mut messages = [
            json!({"role": "assistant", "tool_calls": [call(long), call("call00001"), call("call-0001")]}),
            json!({"role": "tool", "tool_call_id": "call-0001"}),
            json!({"role": "tool", "tool_call_id": long}),
            json!({"role": "tool"}),
        ];
        shorten_ids(&mut messages);
        let id = |index: usize| messages[0]["tool_calls"][index]["id"].as_str().expect("a text");
        for index in 0..3 {
            assert!(id(index).len() == 9 && id(index).bytes().all(|byte| byte.is_ascii_alphanumeric()));
        }
        assert_eq!(id(1), "call00001");
        assert!(messages[1]["tool_call_id"] == id(2) && messages[2]["tool_call_id"] == id(0));
        assert!(id(0) != id(2) && messages[3] == json!({"role": "tool"}));
    }

    #[test]
    fn functions_have_what_their_template_goes_through() {
        let filled = json!({"type": "object", "properties": {}});
        for (given, parameters) in [
            (json!({"name": "f"}), filled.clone()),
            (json!({"name": "f", "parameters": {}}), filled.clone()),
            (json!({"name": "f", "parameters": {"type": "object"}}), filled.clone()),
            (
                json!({"name": "f", "parameters": {"properties": {"a": {}}, "required": ["a"]}}),
                json!({"properties": {"a": {}}, "required": ["a"], "type": "object"}),
            ),
        ] {
            let mut tool = json!({"function": given});
            fill_in(&mut tool);
            assert_eq!(tool["function"]["parameters"], parameters);
        }
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
