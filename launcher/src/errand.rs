//! A module of the package `penstock` that is run once and answers with its last line: the download, and the
//! conversion of tokenizers. Its other lines are logged.

use std::path::Path;
use std::process::Stdio;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::log::ChildLine;
use crate::nursery::Nursery;

/// How an errand ended: with an answer, or without one and what is known of why.
pub enum Ended<T> {
    Answered(T),
    Silent(String),
}

/// Starts `command`, with its standard error where it was set to go or logged, and waits for its end.
pub async fn run<T: DeserializeOwned>(
    mut command: Command,
    interpreter: &Path,
    nursery: &Nursery,
) -> Result<Ended<T>, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let broken = |error: std::io::Error| format!("{} cannot be run: {error}", interpreter.display());
    let mut child = nursery.start(command).await.map_err(broken)?;

    // Libraries print to standard error; it matters only when there is nothing better to say.
    let complaints = child.stderr.take().map(|pipe| {
        tokio::spawn(async move {
            let mut lines = BufReader::new(pipe).lines();
            let mut last = None;
            while let Ok(Some(line)) = lines.next_line().await {
                ChildLine::Other(line.clone()).log();
                if !line.trim().is_empty() {
                    last = Some(line);
                }
            }
            last
        })
    });
    let mut answer = None;
    if let Some(pipe) = child.stdout.take() {
        let mut lines = BufReader::new(pipe).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            match serde_json::from_str(&line) {
                Ok(end) => answer = Some(end),
                Err(_) => ChildLine::parse(line.as_bytes()).log(),
            }
        }
    }
    let status = child.wait().await.map_err(broken)?;
    if let Some(answer) = answer {
        return Ok(Ended::Answered(answer));
    }
    let last = match complaints {
        Some(task) => task.await.ok().flatten(),
        None => None,
    };
    let last = last.map(|line| format!(": {line}")).unwrap_or_default();
    Ok(Ended::Silent(format!("{status}{last}")))
}
