//! What a chat's messages hold, as the objects that templates get, and how several become one. What a template wants of them is not known
//! here: `message_manners` finds it out.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::http::request_fields::NAME_LENGTH;

/// Whose words come before the conversation.
pub(super) const INSTRUCT: [&str; 2] = ["system", "developer"];
/// Names of a message's reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

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

pub(super) fn has_calls(message: &Value) -> bool {
    message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
}

pub(super) fn has_text(content: &Value) -> bool {
    match content {
        Value::String(text) => !text.is_empty(),
        Value::Array(parts) => parts.iter().any(|part| has_text(&part["text"])),
        _ => false,
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

/// Makes one text of a content and what follows it. Many may follow, so what is there is not copied each time.
pub fn append(content: &mut Value, between: &str, text: &str) {
    match content {
        Value::String(before) => before.extend([between, text]),
        _ => *content = [&text_of(content), between, text].concat().into(),
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

/// Text beside reasoning and calls follows the reasoning.
pub(super) fn text_into_reasoning(messages: &mut [Value]) {
    for message in messages.iter_mut().filter(|message| has_calls(message) && has_text(&message["content"])) {
        if let Some(reasoning) = take_reasoning(message) {
            let text = text_of(&message["content"].take());
            message["reasoning_content"] = format!("{reasoning}\n\n{text}").into();
        }
    }
}

/// Results that do not say of which function they are have its name, as the call with their id has it. A call of any length may have
/// thousands of results, so it has to be a name that a function can have.
pub fn name_results(messages: &mut [Value]) {
    let mut names: HashMap<String, String> = HashMap::new();
    let is_short = |name: &&str| name.chars().nth(NAME_LENGTH).is_none();
    for message in messages {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let name = call["function"]["name"].as_str().filter(is_short);
            if let (Some(id), Some(name)) = (call["id"].as_str(), name) {
                names.insert(id.to_owned(), name.to_owned());
            }
        }
        if message["role"] == "tool" && message["name"].is_null() {
            let name = message["tool_call_id"].as_str().and_then(|id| names.get(id));
            if let Some(name) = name {
                message["name"] = name.as_str().into();
            }
        }
    }
}

/// Makes one message of two: their texts, their reasoning, and the calls of the second.
pub(super) fn join(last: &mut Value, mut message: Value) {
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

/// Instructions as one message at the beginning, in their order; behind the assistant's last message they are a turn of the user, which asks
/// for a new one. Turns of the user between which some stood are one: many of these templates want the user and the assistant to take turns.
pub(super) fn instruct_once(messages: &mut Vec<Value>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a request of two megabytes becomes eight gigabytes.
    #[test]
    fn a_result_has_no_name_that_a_function_cannot_have() {
        for (name, is_told) in
            [("f".repeat(256), true), ("\u{20000}".repeat(256), true), ("f".repeat(257), false)]
        {
            let call = json!({"id": "1", "function": {"name": name}});
            let mut messages = [
                json!({"role": "assistant", "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": "1", "content": ""}),
            ];
            name_results(&mut messages);
            assert_eq!(messages[1]["name"], if is_told { json!(name) } else { Value::Null });
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
}
