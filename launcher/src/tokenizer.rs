//! A tokenizer.json for a model that has only older files (tokenizer.model, vocab.json with merges.txt,
//! vocab.txt): `python -m penstock.tokenizer` makes it once and keeps it in a cache. Called by `main`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;
use tokio::process::Command;
use tracing::info;

use crate::errand::{self, Ended};
use crate::nursery::Nursery;

/// Sets of files of which each alone is enough, as in `penstock.tokenizer`.
pub const OLDER: [&[&str]; 5] = [
    &["tokenizer.model"],
    &["spiece.model"],
    &["sentencepiece.bpe.model"],
    &["vocab.json", "merges.txt"],
    &["vocab.txt"],
];

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
    nursery: &Nursery,
) -> Result<Option<PathBuf>, String> {
    if folder.join("tokenizer.json").exists() {
        return Ok(None);
    }
    info!("{} has no tokenizer.json: making one of its older files", folder.display());
    let mut command = Command::new(interpreter);
    command.args(["-P", "-m", "penstock.tokenizer"]).arg(folder).stderr(Stdio::piped());
    if let Some(cache) = cache {
        command.arg("--cache-dir").arg(cache);
    }
    match errand::run(command, interpreter, nursery).await? {
        Ended::Answered(Outcome::Tokenizer(file)) => Ok(Some(file)),
        Ended::Answered(Outcome::Failed(line)) => Err(line),
        Ended::Silent(why) => {
            Err(format!("the conversion of the tokenizer in {} ended with {why}", folder.display()))
        }
    }
}
