//! How long the server takes to render and to tokenize prompts, for benchmarks/prompts.py. Reads one JSON
//! object: `folder` of a model, `seconds` to measure each for, `chats`, lists of messages, and `within`, a limit
//! of tokens. Writes, for each chat, the tokens of its prompt and the shortest time, in seconds, of rendering, of
//! tokenizing, and of refusing it by that limit (null when it is within).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use penstock_core::prompt::{Chat, Input, Length, Prompt};
use penstock_core::tenant::Tenant;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

#[derive(Deserialize)]
struct Asked {
    folder: PathBuf,
    seconds: f64,
    within: u32,
    chats: Vec<Vec<Value>>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let asked: Asked = serde_json::from_reader(std::io::stdin().lock())?;
    let prompt = Prompt::load(&asked.folder, None, None, 1)?;
    let patience = Duration::from_secs_f64(asked.seconds);
    let mut results = Vec::new();
    for messages in asked.chats {
        let chat = Chat { messages, add_generation_prompt: Some(true), ..Chat::default() };
        let text = prompt.render(&chat, &CancellationToken::new())?;
        let tokens = prompt
            .encode(Tenant::Anonymous, Input::Rendered(text.clone()), Length::Within(u32::MAX))
            .await?
            .len();
        let (mut rendering, mut tokenizing, mut refusing) = (f64::MAX, f64::MAX, None);
        let began = Instant::now();
        while began.elapsed() < patience {
            let (whole, again) = (text.clone(), text.clone());
            let start = Instant::now();
            prompt.render(&chat, &CancellationToken::new())?;
            let rendered = Instant::now();
            prompt.encode(Tenant::Anonymous, Input::Rendered(whole), Length::Within(u32::MAX)).await?;
            let tokenized = Instant::now();
            let refused = prompt
                .encode(Tenant::Anonymous, Input::Rendered(again), Length::Within(asked.within))
                .await
                .is_err();
            let end = Instant::now();
            rendering = rendering.min((rendered - start).as_secs_f64());
            tokenizing = tokenizing.min((tokenized - rendered).as_secs_f64());
            if refused {
                let seconds = (end - tokenized).as_secs_f64();
                refusing = Some(refusing.map_or(seconds, |least: f64| least.min(seconds)));
            }
        }
        results.push(json!({
            "tokens": tokens, "rendering": rendering, "tokenizing": tokenizing, "refusing": refusing
        }));
    }
    println!("{}", Value::from(results));
    Ok(())
}
