//! Renders chats as the server does, for the test that compares them with transformers
//! (integration-tests/test_chat_templates.py). Reads one JSON object: `folders`, names to model folders, and
//! `cases`, each with `folder`, `messages`, and what else a chat may have. Writes a list of `{"text"}` or
//! `{"error"}`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use penstock_core::prompt::{Chat, Prompt};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

#[derive(Deserialize)]
struct Input {
    folders: HashMap<String, PathBuf>,
    /// A tokenizer_config.json to read instead of the folder's own, by the folder's name.
    #[serde(default)]
    configs: HashMap<String, PathBuf>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    folder: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    variables: Map<String, Value>,
}

fn main() -> anyhow::Result<()> {
    let input: Input = serde_json::from_reader(std::io::stdin().lock())?;
    let mut prompts = HashMap::new();
    for (name, folder) in &input.folders {
        let config = input.configs.get(name).map(PathBuf::as_path);
        prompts.insert(name.clone(), Prompt::load(Path::new(folder), None, config, 1)?);
    }
    let mut results = Vec::new();
    for case in input.cases {
        let chat = Chat {
            messages: case.messages,
            continue_final_message: case.continue_final_message,
            add_generation_prompt: case.add_generation_prompt,
            tools: case.tools,
            variables: case.variables,
        };
        let rendered = match prompts.get(&case.folder) {
            Some(prompt) => prompt.render(&chat, &CancellationToken::new()),
            None => anyhow::bail!("{}: no such folder", case.folder),
        };
        results.push(match rendered {
            Ok(text) => json!({ "text": text }),
            Err(error) => json!({ "error": error.to_string() }),
        });
    }
    println!("{}", Value::from(results));
    Ok(())
}
