//! A tokenizer.json for a model that has only older files (tokenizer.model, vocab.json with merges.txt,
//! vocab.txt, tekken.json, tiktoken.model): `python -m penstock.hub.tokenizer` makes it once and keeps it in a cache. Called by `main`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;
use tokio::process::Command;
use tracing::info;

use crate::child_spawner::ChildSpawner;
use crate::json_subprocess::{self, Ended};
use crate::python;

/// Sets of files of which each alone is enough, as in `penstock.hub.tokenizer`.
pub const OLDER: [&[&str]; 7] = [
    &["tokenizer.model"],
    &["spiece.model"],
    &["sentencepiece.bpe.model"],
    &["vocab.json", "merges.txt"],
    &["vocab.txt"],
    &["tekken.json"],
    &["tiktoken.model"],
];

/// What is there in place of `OLDER`, and the way out; in `penstock.hub.tokenizer` of what is on the hub.
pub fn why_none(names: &[String]) -> String {
    match names.iter().filter(|name| name.ends_with(".tiktoken")).min() {
        Some(other) => format!(
            "; {other} is not read: how it cuts words is said by code of the repository only, which is not run; add a tokenizer.json"
        ),
        None => String::new(),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Tokenizer(PathBuf),
    Failed(String),
}

/// The converted tokenizer of the model in `folder`; `None` when it has a tokenizer.json of its own. The
/// error is one line for the user.
pub async fn obtain(
    folder: &Path,
    cache: Option<&Path>,
    interpreter: &Path,
    spawner: &ChildSpawner,
    secrets: &[OsString],
) -> Result<Option<PathBuf>, String> {
    if folder.join("tokenizer.json").exists() {
        return Ok(None);
    }
    info!("{} has no tokenizer.json: making one of its older files", folder.display());
    let mut command = Command::from(python::module(interpreter, "penstock.hub.tokenizer"));
    command.arg(folder).stderr(Stdio::piped());
    for secret in secrets {
        command.env_remove(secret);
    }
    if let Some(cache) = cache {
        command.arg("--cache-dir").arg(cache);
    }
    match json_subprocess::run(command, interpreter, spawner).await? {
        Ended::Answered(Outcome::Tokenizer(file)) => Ok(Some(file)),
        Ended::Answered(Outcome::Failed(line)) => Err(line),
        Ended::Silent(why) => {
            Err(format!("the conversion of the tokenizer in {} ended with {why}", folder.display()))
        }
    }
}
