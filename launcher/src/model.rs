//! Which model is served and where its files are: the one that ships, a local folder, or a download by
//! `python -m penstock.hub`. What is wrong with a folder is said here, before anything starts.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use serde::Deserialize;
use tokio::process::Command;
use tracing::info;

use crate::errand::{self, Ended};
use crate::flags::{ModelArgs, WorkerArgs};
use crate::nursery::Nursery;
use crate::surroundings::Surroundings;
use crate::{python, tokenizer};

/// The name of the shipped model in answers.
const SHIPPED: &str = "penstock-tiny";
/// What leads to pickled weights: the file, or the index of several.
const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// What `--model-id` stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum Named {
    Shipped,
    Folder(PathBuf),
    Hub(String),
}

/// A model whose files are on this machine.
#[derive(Clone, Debug)]
pub struct Model {
    pub id: String,
    pub folder: PathBuf,
    /// Of the hub's snapshot.
    pub commit: Option<String>,
}

impl Named {
    pub fn read(args: &ModelArgs) -> Result<Self, String> {
        let Some(id) = args.model_id.as_deref() else { return Ok(Named::Shipped) };
        if let Some(folder) = &args.weights_cache_override {
            return check(folder, args.trust_remote_code).map(|()| Named::Folder(folder.clone()));
        }
        let path = Path::new(id);
        if path.is_dir() {
            return check(path, args.trust_remote_code).map(|()| Named::Folder(path.to_owned()));
        }
        if path.exists() {
            return Err(format!("--model-id: {id} is not a folder"));
        }
        if is_hub_id(id) {
            return Ok(Named::Hub(id.to_owned()));
        }
        Err(format!(
            "--model-id: there is no folder {id}, and it is no name of a model on the hub (owner/name)"
        ))
    }
}

/// `owner/name` or `name`, of letters, digits, '-', '_' and '.', 96 characters at most: the hub's own rule.
fn is_hub_id(id: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && !word.starts_with(['.', '-'])
            && !word.ends_with(['.', '-'])
            && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    id.len() <= 96 && id.split('/').count() <= 2 && id.split('/').all(word)
}

/// Refuses a folder that lacks what every model needs. `trusted`: pickled weights are welcome.
fn check(folder: &Path, trusted: bool) -> Result<(), String> {
    let shown = folder.display();
    let names: Vec<String> = folder
        .read_dir()
        .map_err(|error| format!("--model-id: the folder {shown} cannot be read: {error}"))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let any = |suffix: &str| names.iter().find(|name| name.ends_with(suffix));
    let has = |needed: &str| names.iter().any(|name| name == needed);
    if !has("config.json") {
        return Err(format!("--model-id: the folder {shown} has no config.json"));
    }
    if !has("tokenizer.json") && !tokenizer::OLDER.iter().any(|files| files.iter().all(|file| has(file))) {
        let older: Vec<String> = tokenizer::OLDER.iter().map(|files| files.join(" with ")).collect();
        return Err(format!(
            "--model-id: the folder {shown} has no tokenizer.json, nor what one can be made of ({})",
            older.join(", ")
        ));
    }
    if any(".safetensors").is_some() {
        return Ok(());
    }
    let pickled = PICKLED.into_iter().find(|name| has(name));
    if trusted && pickled.is_some() {
        return Ok(());
    }
    if let Some(pickled) = pickled {
        return Err(format!(
            "--model-id: the folder {shown} has no weights in safetensors files, only pickled ones ({pickled}); \
             with --trust-remote-code pickled weights are loaded, by a reader that runs no code in them"
        ));
    }
    match [".bin", ".pt", ".pth", ".gguf"].into_iter().find_map(any) {
        Some(other) => Err(format!(
            "--model-id: the folder {shown} has no weights in safetensors files, only {other}, \
             which Penstock does not load"
        )),
        None => Err(format!("--model-id: the folder {shown} has no weights (*.safetensors)")),
    }
}

/// Makes the model available on this machine. The error is one line for the user.
pub async fn obtain(
    named: Named,
    args: &ModelArgs,
    worker: &WorkerArgs,
    interpreter: &Path,
    nursery: &Nursery,
    around: &Surroundings,
    show_progress: bool,
) -> Result<Model, String> {
    match named {
        Named::Shipped => {
            let folder = python::package(interpreter, around)?.join("tiny").join("model");
            check(&folder, false)
                .map_err(|_| format!("the model that ships is not in {}", folder.display()))?;
            Ok(Model { id: SHIPPED.into(), folder, commit: None })
        }
        Named::Folder(folder) => {
            let id = args.model_id.clone().unwrap_or_default();
            let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
            Ok(Model { id, folder, commit: None })
        }
        Named::Hub(id) => {
            let mut command = hub_command(&id, args, worker, interpreter, around);
            if show_progress {
                command.arg("--progress-bar").stderr(Stdio::inherit());
            } else {
                command.stderr(Stdio::piped());
            }
            download(id, command, args.trust_remote_code, interpreter, nursery).await
        }
    }
}

/// The last line that `penstock.hub` writes.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Snapshot { folder: PathBuf, commit: Option<String> },
    Failed(String),
}

/// `python -m penstock.hub`. What it is told of the workers is for the checks that come before a large download.
fn hub_command(
    id: &str,
    args: &ModelArgs,
    worker: &WorkerArgs,
    interpreter: &Path,
    around: &Surroundings,
) -> Command {
    let mut command = Command::new(interpreter);
    command.args(["-P", "-m", "penstock.hub", id]);
    if let Some(revision) = &args.revision {
        command.args(["--revision", revision]);
    }
    if let Some(cache) = &args.huggingface_hub_cache {
        command.arg("--cache-dir").arg(cache);
    }
    if args.trust_remote_code {
        command.arg("--trust-remote-code");
    }
    if let Some(shards) = worker.num_shard {
        command.args(["--num-shard", &shards.to_string()]);
    }
    if worker.pipeline_parallel > 1 {
        command.args(["--pipeline-parallel", &worker.pipeline_parallel.to_string()]);
    }
    if let Some(wanted) = worker.model_impl {
        command.args(["--model-impl", wanted.name()]);
    }
    if let Some(dtype) = worker.dtype {
        command.args(["--dtype", dtype.name()]);
    }
    if let Some(device) = &worker.device {
        command.args(["--device", device]);
    }
    if let Some(token) = &around.hf_api_token {
        command.env("HF_TOKEN", token);
    }
    command
}

async fn download(
    id: String,
    command: Command,
    trusted: bool,
    interpreter: &Path,
    nursery: &Nursery,
) -> Result<Model, String> {
    let began = Instant::now();
    info!("looking up {id} on the hub");
    match errand::run(command, interpreter, nursery).await? {
        Ended::Answered(Outcome::Snapshot { folder, commit }) => {
            check(&folder, trusted).map_err(|error| error.replace("--model-id: ", ""))?;
            info!("{id} is complete in {} after {:.1} s", folder.display(), began.elapsed().as_secs_f64());
            Ok(Model { id, folder, commit })
        }
        Ended::Answered(Outcome::Failed(line)) => Err(line),
        Ended::Silent(why) => Err(format!("the download of {id} ended with {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            std::fs::write(folder.path().join(file), "{}").unwrap();
        }
        folder
    }

    fn named(id: &str) -> Result<Named, String> {
        Named::read(&ModelArgs {
            model_id: Some(id.into()),
            revision: None,
            huggingface_hub_cache: None,
            weights_cache_override: None,
            trust_remote_code: false,
        })
    }

    #[test]
    fn pickled_weights_need_consent_and_others_are_named() {
        let pickled = folder(&["config.json", "tokenizer.json", "pytorch_model.bin.index.json"]);
        let line = check(pickled.path(), false).unwrap_err();
        assert!(
            line.contains("pytorch_model.bin.index.json") && line.contains("--trust-remote-code"),
            "{line}"
        );
        assert_eq!(check(pickled.path(), true), Ok(()));
        let foreign = folder(&["config.json", "tokenizer.json", "model-q4.gguf"]);
        assert!(check(foreign.path(), true).unwrap_err().contains("only model-q4.gguf"));
    }

    #[test]
    fn a_folder_wins_and_what_looks_like_a_hub_name_is_one() {
        let model = folder(&["config.json", "tokenizer.json", "model.safetensors"]);
        let path = model.path().to_str().unwrap();
        assert_eq!(named(path), Ok(Named::Folder(model.path().to_owned())));
        assert_eq!(named("owner/name-1.5_x"), Ok(Named::Hub("owner/name-1.5_x".into())));
        assert_eq!(named("gpt2"), Ok(Named::Hub("gpt2".into())));
    }

    #[test]
    fn older_files_of_a_tokenizer_are_enough() {
        for files in [&["tokenizer.model"][..], &["vocab.json", "merges.txt"], &["vocab.txt"]] {
            let model = folder(&[files, &["config.json", "model.safetensors"]].concat());
            assert!(named(model.path().to_str().unwrap()).is_ok(), "{files:?}");
        }
    }

    #[test]
    fn a_missing_folder_is_not_taken_for_a_hub_name() {
        for id in ["/no/such", "./no", "../no/such", "a/b/c", "a b", "", "owner/"] {
            let line = named(id).unwrap_err();
            assert!(line.starts_with("--model-id"), "{line}");
        }
    }

    #[test]
    fn an_incomplete_folder_is_refused_with_the_name_of_what_it_lacks() {
        for (files, lacks) in [
            (&["tokenizer.json", "model.safetensors"][..], "config.json"),
            (&["config.json", "model.safetensors"], "tokenizer.json"),
            (&["config.json", "tokenizer.json"], "*.safetensors"),
            (&["config.json", "tokenizer.json", "pytorch_model.bin"], "pytorch_model.bin"),
            (&["config.json", "vocab.json", "model.safetensors"], "vocab.json with merges.txt"),
        ] {
            let model = folder(files);
            let line = named(model.path().to_str().unwrap()).unwrap_err();
            assert!(line.contains(lacks) && line.contains(&*model.path().to_string_lossy()), "{line}");
        }
    }
}
