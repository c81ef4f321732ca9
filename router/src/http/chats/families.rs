//! Chat templates of many models as a server knows them, and messages that are tried with them: what the tests of `manners` and of
//! `message_manners` have in common.

use penstock_core::prompt::Chat;
use penstock_template::ChatTemplates;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::config::FormatFlag;
use crate::http::chats::formats::ChatFormats;
use crate::http::chats::template_places::{ToolPlace, fill_in};

const FAMILIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration-tests/chat_templates");

/// A model's templates, and what the server found out about them.
pub(super) struct Family {
    templates: ChatTemplates,
    pub(super) formats: ChatFormats,
}

impl Family {
    pub(super) fn of(source: &str) -> Self {
        Self::of_sources(&[("default", source)])
    }

    pub(super) fn of_sources(sources: &[(&str, &str)]) -> Self {
        let tokens = json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"});
        let named: Vec<(String, String)> =
            sources.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect();
        let complain = |name: &str, reason: String| panic!("{name}: {reason}");
        let templates =
            ChatTemplates::compile(&named, tokens.as_object().expect("an object").clone(), complain);
        let sources = [true, false].map(|with_tools| templates.source(with_tools).expect("a template"));
        let formats = ChatFormats::of_templates(sources, &FormatFlag::Auto, &FormatFlag::Auto, |chat| {
            render(&templates, chat)
        });
        Self { templates, formats }
    }

    /// The prompt of messages as clients send them.
    pub(super) fn prompt(&self, messages: Vec<Value>) -> Option<String> {
        self.prompt_beside(false, messages)
    }

    pub(super) fn prompt_beside(&self, tools: bool, mut messages: Vec<Value>) -> Option<String> {
        self.formats.rewrite(&mut messages, tools);
        self.formats.manners.parts_alone.write(&mut messages);
        let mut tool = json!({"type": "function", "function": {"name": "f"}});
        fill_in(&mut tool);
        let has_place = self.formats.manners.tools == ToolPlace::Template;
        let tools = (tools && has_place).then(|| vec![tool]);
        self.render(&Chat { messages, tools, ..Chat::default() })
    }

    pub(super) fn render(&self, chat: &Chat) -> Option<String> {
        render(&self.templates, chat)
    }
}

fn render(templates: &ChatTemplates, chat: &Chat) -> Option<String> {
    templates.render(chat, &CancellationToken::new()).ok()
}

pub(super) fn families() -> Vec<(String, Family)> {
    let files = std::fs::read_dir(FAMILIES).expect("a folder").map(|file| file.expect("a file").path());
    let read = |file: std::path::PathBuf| {
        let source = std::fs::read_to_string(&file).expect("a text");
        (file.file_stem().expect("a name").to_string_lossy().into_owned(), Family::of(&source))
    };
    files.map(read).collect()
}

pub(super) fn family(name: &str) -> Family {
    Family::of(&std::fs::read_to_string(format!("{FAMILIES}/{name}.jinja")).expect("a text"))
}

pub(super) fn said(role: &str, content: impl Into<Value>) -> Value {
    json!({"role": role, "content": content.into()})
}

pub(super) fn parts<const N: usize>(texts: [&str; N]) -> Value {
    texts.map(|text| json!({"type": "text", "text": text})).into()
}

pub(super) fn call(id: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}})
}

/// A question, a call and its result.
pub(super) fn tool_loop(arguments: &str) -> Vec<Value> {
    vec![
        said("user", "x"),
        json!({"role": "assistant", "content": null, "tool_calls": [call("call00001", arguments)]}),
        json!({"role": "tool", "tool_call_id": "call00001", "content": "r"}),
    ]
}
