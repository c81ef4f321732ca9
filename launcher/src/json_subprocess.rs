//! A module of the package `penstock` that is run once and answers with its last line: the download, and the
//! conversion of tokenizers. Its other lines are logged.

use std::path::Path;
use std::process::Stdio;

use serde::de::DeserializeOwned;
use tokio::process::Command;

use crate::child_spawner::ChildSpawner;
use crate::lines::Lines;
use crate::log::ChildLine;

/// How the subprocess ended: with an answer, or without one and what is known of why.
pub enum Ended<T> {
    Answered(T),
    Silent(String),
}

/// Starts `command`, with its standard error where it was set to go or logged, and waits for its end.
pub async fn run<T: DeserializeOwned>(
    mut command: Command,
    interpreter: &Path,
    spawner: &ChildSpawner,
) -> Result<Ended<T>, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let broken = |error: std::io::Error| format!("{} cannot be run: {error}", interpreter.display());
    let mut child = spawner.start(command).await.map_err(broken)?;

    // Libraries print to standard error; it matters only when there is nothing better to say.
    let complaints = child.stderr.take().map(|pipe| {
        tokio::spawn(async move {
            let mut lines = Lines::of(pipe);
            let mut last = None;
            while let Some(line) = lines.next().await {
                let line = String::from_utf8_lossy(line).into_owned();
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
        let mut lines = Lines::of(pipe);
        while let Some(line) = lines.next().await {
            match serde_json::from_slice(line) {
                Ok(end) => answer = Some(end),
                Err(_) => ChildLine::parse(line).log(),
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
