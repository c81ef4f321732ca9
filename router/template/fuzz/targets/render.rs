//! Any text as a template, and a chat that it is given: it is refused, or rendered within its bounds, twice to the same.
//! `make fuzz` runs it, from the templates of integration-tests/chat_templates.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_target};
use penstock_template::{ErrorKind, Template};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

static CHAT: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let chat = json!({
        "messages": [
            {"role": "system", "content": "Be <short> & \"kind\"."},
            {"role": "user", "content": [{"type": "text", "text": "é\n"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"a": 1e-7, "b": [true, null]}}},
            ]},
            {"role": "tool", "content": "21", "tool_call_id": "1"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "add_generation_prompt": true,
        "bos_token": "<s>",
        "eos_token": "</s>",
    });
    match chat {
        Value::Object(chat) => chat,
        _ => unreachable!("it is an object"),
    }
});

fuzz_target!(|source: &str| -> Corpus {
    // A clock is no function of the template.
    if source.contains("strftime_now") {
        return Corpus::Reject;
    }
    let Ok(template) = Template::compile(source) else { return Corpus::Keep };
    let client = CancellationToken::new();
    let render = || template.render(&CHAT, &client).map_err(|error| (error.kind, error.message, error.line));
    let both = [render(), render()];
    // A panic on the rendering's own thread ends the process too.
    if !both.iter().any(|one| matches!(one, Err((ErrorKind::Time, ..)))) {
        assert_eq!(both[0], both[1], "{source}");
    }
    Corpus::Keep
});
