//! Which model is served and where its files are: the one that ships, a local folder, or a download by
//! `python -m penstock.download`. What is wrong with a folder is said here, before anything starts.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use penstock_router::config::RouterArgs;
use serde::Deserialize;
use tokio::process::Command;
use tracing::info;

use crate::child_spawner::ChildSpawner;
use crate::environment::Environment;
use crate::flags::{ModelArgs, WorkerArgs, cache_dtype_name, quantization_name};
use crate::json_subprocess::{self, Ended};
use crate::shards::Rendezvous;
use crate::{gguf, merged, python, tokenizer};

/// The name of the shipped model in answers.
const SHIPPED: &str = "penstock-tiny";
/// What leads to pickled weights: the file, or the index of several.
pub const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// What leads to weights in safetensors files: the only file, or the index of several.
pub const WEIGHTS: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];
/// Bytes of a configuration that are read.
pub const LONGEST_JSON: u64 = 100_000_000;

/// What `--model-id` stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum Named {
    Shipped,
    Folder(PathBuf),
    Hub(String),
    /// A folder that holds an adapter, and no model.
    Adapter(PathBuf),
    /// The first file of a model in GGUF.
    Gguf(PathBuf),
    /// Of a repository the GGUF files of this tag or name.
    HubGguf {
        repo: String,
        which: String,
    },
}

/// Whether this machine needs the model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    Here,
    /// Workers on other hosts have them; here are tokenizer and configuration.
    Elsewhere,
}

/// What is to be made available, and for what.
pub struct Wanted<'a> {
    pub args: &'a ModelArgs,
    pub worker: &'a WorkerArgs,
    /// Given or counted.
    pub num_shard: u32,
    /// The server's limits; of a worker for another host its server says them.
    pub router: Option<&'a RouterArgs>,
    pub weights: Weights,
}

/// A model whose files are on this machine.
#[derive(Clone, Debug)]
pub struct Model {
    pub id: String,
    pub folder: PathBuf,
    /// Of the hub's snapshot.
    pub commit: Option<String>,
    /// The task that the hub names for it, or the card of the model that ships.
    pub pipeline_tag: Option<String>,
}

impl Named {
    /// As answers call it.
    pub fn id(&self, args: &ModelArgs) -> String {
        match self {
            Named::Shipped => SHIPPED.into(),
            Named::Folder(_) | Named::Adapter(_) | Named::Gguf(_) | Named::HubGguf { .. } => {
                args.model_id.clone().unwrap_or_default()
            }
            Named::Hub(id) => id.clone(),
        }
    }

    pub fn on_hub(&self) -> Option<&str> {
        match self {
            Named::Hub(id) => Some(id),
            Named::HubGguf { repo, .. } => Some(repo),
            Named::Shipped | Named::Folder(_) | Named::Adapter(_) | Named::Gguf(_) => None,
        }
    }

    pub fn read(args: &ModelArgs, weights: Weights) -> Result<Self, String> {
        let Some(id) = args.model_id.as_deref() else { return Ok(Named::Shipped) };
        let path = args.weights_cache_override.as_deref().unwrap_or_else(|| Path::new(id));
        if args.weights_cache_override.is_some() || path.is_dir() {
            if merged::is_adapter_alone(path) {
                return Ok(Named::Adapter(path.to_owned()));
            }
            if let Some(file) = gguf::in_folder(path)? {
                return Ok(Named::Gguf(file));
            }
            return check(path, args.trust_remote_code, weights).map(|()| Named::Folder(path.to_owned()));
        }
        if path.exists() {
            if gguf::is_file(path) {
                return Ok(Named::Gguf(path.to_owned()));
            }
            return Err(format!("--model-id: {id} is not a folder, nor a GGUF file"));
        }
        if let Some((repo, which)) = gguf::on_hub(id) {
            return Ok(Named::HubGguf { repo, which });
        }
        let plain = gguf::without_host(id);
        if is_hub_id(plain) {
            return Ok(Named::Hub(plain.to_owned()));
        }
        Err(format!(
            "--model-id: there is no folder {id}, and it is no name of a model on the hub (owner/name)"
        ))
    }
}

/// `owner/name` or `name`, of letters, digits, '-', '_' and '.', 96 characters at most: the hub's own rule.
pub fn is_hub_id(id: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && !word.starts_with(['.', '-'])
            && !word.ends_with(['.', '-'])
            && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    id.len() <= 96 && id.split('/').count() <= 2 && id.split('/').all(word)
}

/// Refuses a folder that lacks what every model needs. `trusted`: pickled weights are welcome.
fn check(folder: &Path, trusted: bool, weights: Weights) -> Result<(), String> {
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
            "--model-id: the folder {shown} has no tokenizer.json, nor what one can be made of ({}){}",
            older.join(", "),
            tokenizer::why_none(&names)
        ));
    }
    for name in names.iter().filter(|name| is_read(name)) {
        if let Some(instead) = instead_of(&folder.join(name)) {
            return Err(format!("--model-id: {}: {instead}", folder.join(name).display()));
        }
    }
    if any(".safetensors").is_some() || any(".gguf").is_some() || weights == Weights::Elsewhere {
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
    match [".bin", ".pt", ".pth"].into_iter().find_map(any) {
        Some(other) => Err(format!(
            "--model-id: the folder {shown} has no weights in safetensors files, only {other}, \
             which Penstock does not load"
        )),
        None => Err(format!("--model-id: the folder {shown} has no weights (*.safetensors)")),
    }
}

/// Of the files that hold a model's weights, in bytes; what cannot be looked at counts as nothing.
pub fn weight_bytes(folder: &Path) -> u64 {
    let files = folder.read_dir().into_iter().flatten().flatten();
    let is_weights =
        |name: &str| [".safetensors", ".bin", ".gguf"].iter().any(|suffix| name.ends_with(suffix));
    // Files of the hub's cache are links.
    files
        .filter(|file| is_weights(&file.file_name().to_string_lossy()))
        .filter_map(|file| file.path().metadata().ok())
        .map(|file| file.len())
        .sum()
}

/// Whether a start reads the file of this name.
fn is_read(name: &str) -> bool {
    [".safetensors", ".json", ".jinja", ".model"].iter().any(|suffix| name.ends_with(suffix))
        || PICKLED.contains(&name)
        || tokenizer::OLDER.iter().any(|files| files.contains(&name))
}

/// What is there in place of a file, if that is known: reading it might never end, or give what the file is not.
fn instead_of(file: &Path) -> Option<&'static str> {
    let kind = file.metadata().ok()?.file_type();
    if kind.is_fifo() {
        return Some("a FIFO, not a file");
    }
    if kind.is_socket() {
        return Some("a socket, not a file");
    }
    if kind.is_char_device() || kind.is_block_device() {
        return Some("a device, not a file");
    }
    let mut start = Vec::new();
    File::open(file).ok()?.take(200).read_to_end(&mut start).ok()?;
    let start = start.trim_ascii_start().to_ascii_lowercase();
    if start.starts_with(b"version https://git-lfs.github.com/spec") {
        return Some("a pointer of Git LFS, not the file itself: `git lfs pull` fetches it");
    }
    if start.starts_with(b"<!doctype html") || start.starts_with(b"<html") {
        return Some("an HTML page: what was downloaded is not the file");
    }
    None
}

/// Makes the model available on this machine. The error is one line for the user.
pub async fn obtain(
    named: Named,
    wanted: &Wanted<'_>,
    interpreter: &Path,
    spawner: &ChildSpawner,
    environment: &Environment,
    show_progress: bool,
) -> Result<Model, String> {
    let id = named.id(wanted.args);
    match &named {
        Named::Shipped => {
            let folder = python::package(interpreter, environment)?.join("tiny").join("model");
            check(&folder, false, Weights::Here)
                .map_err(|_| format!("the model that ships is not in {}", folder.display()))?;
            Ok(Model { id, folder, commit: None, pipeline_tag: Some("text-generation".into()) })
        }
        Named::Folder(folder) => Ok(Model { id, folder: whole(folder)?, commit: None, pipeline_tag: None }),
        Named::Adapter(folder) => {
            let adapter = Model { id, folder: whole(folder)?, commit: None, pipeline_tag: None };
            merged::obtain(adapter, wanted, interpreter, spawner, environment, show_progress).await
        }
        Named::Gguf(file) => {
            // Not where a link leads to: what lies beside the link belongs to it.
            let file = std::path::absolute(file).map_err(|error| format!("{}: {error}", file.display()))?;
            let model = Model { id, folder: PathBuf::new(), commit: None, pipeline_tag: None };
            gguf::unpack(&file, model, wanted.args, interpreter, spawner, environment).await
        }
        Named::Hub(_) | Named::HubGguf { .. } => {
            let mut command = match &named {
                Named::HubGguf { repo, which } => {
                    let mut command = hub_command(repo, wanted, interpreter, environment);
                    command.args(["--gguf", which]);
                    command
                }
                _ => hub_command(&id, wanted, interpreter, environment),
            };
            shows(&mut command, show_progress);
            match download(id, command, wanted, interpreter, spawner).await? {
                Downloaded::Model(model) => Ok(model),
                Downloaded::Gguf(file, model) => {
                    gguf::unpack(&file, model, wanted.args, interpreter, spawner, environment).await
                }
                Downloaded::Adapter(adapter) => {
                    merged::obtain(adapter, wanted, interpreter, spawner, environment, show_progress).await
                }
            }
        }
    }
}

/// The folder's path from the root.
fn whole(folder: &Path) -> Result<PathBuf, String> {
    folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))
}

/// A bar on standard error, or what libraries print there in the log.
fn shows(command: &mut Command, progress: bool) {
    if progress {
        command.arg("--progress-bar").stderr(Stdio::inherit());
    } else {
        command.stderr(Stdio::piped());
    }
}

/// The last line that `penstock.download` writes.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Snapshot {
        folder: PathBuf,
        commit: Option<String>,
        pipeline_tag: Option<String>,
    },
    /// What was asked for as a model is one.
    Adapter {
        folder: PathBuf,
        commit: Option<String>,
    },
    /// The first file of a model in GGUF.
    Gguf {
        file: PathBuf,
        commit: Option<String>,
        pipeline_tag: Option<String>,
    },
    Failed(String),
}

/// What a name of a model on the hub turned out to be.
enum Downloaded {
    Model(Model),
    Adapter(Model),
    /// And the model that is to be made of it.
    Gguf(PathBuf, Model),
}

/// `python -m penstock.download`. What it is told of the workers is for the checks that come before a large download.
fn hub_command(id: &str, wanted: &Wanted, interpreter: &Path, environment: &Environment) -> Command {
    let (args, worker) = (wanted.args, wanted.worker);
    let mut command = download_command(id, args.revision.as_deref(), args, interpreter, environment);
    command.arg("--for-this-machine");
    if wanted.num_shard > 1 {
        command.args(["--num-shard", &wanted.num_shard.to_string()]);
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
    if let Some(name) = worker.quantize.as_deref().and_then(quantization_name) {
        command.args(["--quantize", name]);
    }
    if worker.quantize_head {
        command.arg("--quantize-head");
    }
    if let Some(name) = worker.kv_cache_dtype.as_deref().and_then(cache_dtype_name) {
        command.args(["--kv-cache-dtype", name]);
    }
    if let Some(device) = &worker.device {
        command.args(["--device", device]);
    }
    if worker.deterministic {
        command.arg("--deterministic");
    }
    if Rendezvous::of(worker) != Rendezvous::Folder {
        command.arg("--meets-elsewhere");
    }
    if wanted.weights == Weights::Elsewhere {
        command.arg("--without-weights");
    }
    if let Some(router) = wanted.router {
        command.args(["--memory-fraction", &router.memory_fraction.to_string()]);
        command.args(["--max-batch-size", &router.max_slots().to_string()]);
        if let Some(total) = router.max_total_tokens {
            command.args(["--max-total-tokens", &total.to_string()]);
        }
        if let Some(tokens) = router.max_batch_prefill_tokens {
            command.args(["--max-batch-prefill-tokens", &tokens.to_string()]);
        }
    }
    command
}

/// The same of an adapter, which is small and brings no code.
pub fn adapter_command(
    id: &str,
    revision: Option<&str>,
    args: &ModelArgs,
    interpreter: &Path,
    environment: &Environment,
) -> Command {
    let mut command = download_command(id, revision, args, interpreter, environment);
    command.arg("--adapter");
    command
}

/// What both are told.
fn download_command(
    id: &str,
    revision: Option<&str>,
    args: &ModelArgs,
    interpreter: &Path,
    environment: &Environment,
) -> Command {
    let mut command = Command::from(python::module(interpreter, "penstock.download"));
    command.arg(id);
    if let Some(revision) = revision {
        command.args(["--revision", revision]);
    }
    if let Some(cache) = &args.huggingface_hub_cache {
        command.arg("--cache-dir").arg(cache);
    }
    if args.trust_remote_code {
        command.arg("--trust-remote-code");
    }
    for secret in environment.secrets_beside_the_hubs() {
        command.env_remove(secret);
    }
    if let Some(token) = &environment.hf_api_token {
        command.env("HF_TOKEN", token);
    }
    command
}

/// The folder of an adapter on the hub.
pub async fn download_adapter(
    id: &str,
    mut command: Command,
    interpreter: &Path,
    spawner: &ChildSpawner,
    show_progress: bool,
) -> Result<PathBuf, String> {
    shows(&mut command, show_progress);
    info!("looking up {id} on the hub");
    match json_subprocess::run(command, interpreter, spawner).await? {
        Ended::Answered(Outcome::Snapshot { folder, .. } | Outcome::Adapter { folder, .. }) => Ok(folder),
        Ended::Answered(Outcome::Gguf { .. }) => Err(format!("{id} is no adapter of peft")),
        Ended::Answered(Outcome::Failed(line)) => Err(line),
        Ended::Silent(why) => Err(format!("the download of {id} ended with {why}")),
    }
}

async fn download(
    id: String,
    command: Command,
    wanted: &Wanted<'_>,
    interpreter: &Path,
    spawner: &ChildSpawner,
) -> Result<Downloaded, String> {
    let began = Instant::now();
    info!("looking up {id} on the hub");
    match json_subprocess::run(command, interpreter, spawner).await? {
        Ended::Answered(Outcome::Snapshot { folder, commit, pipeline_tag }) => {
            check(&folder, wanted.args.trust_remote_code, wanted.weights)
                .map_err(|error| error.replace("--model-id: ", ""))?;
            info!("{id} is complete in {} after {:.1} s", folder.display(), began.elapsed().as_secs_f64());
            Ok(Downloaded::Model(Model { id, folder, commit, pipeline_tag }))
        }
        Ended::Answered(Outcome::Adapter { folder, commit }) => {
            Ok(Downloaded::Adapter(Model { id, folder, commit, pipeline_tag: None }))
        }
        Ended::Answered(Outcome::Gguf { file, commit, pipeline_tag }) => {
            info!("{id} is complete in {} after {:.1} s", file.display(), began.elapsed().as_secs_f64());
            Ok(Downloaded::Gguf(file, Model { id, folder: PathBuf::new(), commit, pipeline_tag }))
        }
        // It may have been meant for a folder.
        Ended::Answered(Outcome::Failed(line)) => {
            Err(format!("--model-id: no such folder: {id}; and {line}"))
        }
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

    fn args(id: &str) -> ModelArgs {
        ModelArgs {
            model_id: Some(id.into()),
            revision: None,
            huggingface_hub_cache: None,
            weights_cache_override: None,
            trust_remote_code: false,
            speculate_model: None,
            speculate_model_revision: None,
            lora_adapters: None,
        }
    }

    fn named(id: &str) -> Result<Named, String> {
        Named::read(&args(id), Weights::Here)
    }

    #[test]
    fn pickled_weights_need_consent_and_others_are_named() {
        let pickled = folder(&["config.json", "tokenizer.json", "pytorch_model.bin.index.json"]);
        let line = check(pickled.path(), false, Weights::Here).unwrap_err();
        assert!(
            line.contains("pytorch_model.bin.index.json") && line.contains("--trust-remote-code"),
            "{line}"
        );
        assert_eq!(check(pickled.path(), true, Weights::Here), Ok(()));
        let foreign = folder(&["config.json", "tokenizer.json", "weights.pth"]);
        assert!(check(foreign.path(), true, Weights::Here).unwrap_err().contains("only weights.pth"));
    }

    #[test]
    fn the_checks_before_a_download_know_the_shards_that_were_counted_the_memory_and_the_limits_of_steps() {
        let line = "penstock --model-id a/b --max-total-tokens 4096 --memory-fraction 0.5 --max-batch-size 300 \
                    --max-concurrent-requests 4 --max-batch-prefill-tokens 512";
        let (cli, _) = crate::flags::parse(line.split_whitespace().map(Into::into)).unwrap();
        let wanted = Wanted {
            args: &cli.model,
            worker: &cli.worker,
            num_shard: 4,
            router: Some(&cli.router),
            weights: Weights::Here,
        };
        let command = hub_command("a/b", &wanted, Path::new("python"), &Environment::read());
        let words: Vec<_> = command.as_std().get_args().map(|word| word.to_str().unwrap()).collect();
        let words = words.join(" ");
        for pair in [
            "--num-shard 4",
            "--max-total-tokens 4096",
            "--memory-fraction 0.5",
            "--max-batch-size 4",
            "--max-batch-prefill-tokens 512",
            "--for-this-machine",
        ] {
            assert!(format!("{words} ").contains(&format!("{pair} ")), "{words}");
        }
        let quiet = ("HF_HUB_DISABLE_TELEMETRY".as_ref(), Some("1".as_ref()));
        assert!(command.as_std().get_envs().any(|variable| variable == quiet), "hf_xet reports downloads");
    }

    #[test]
    fn an_adapter_is_fetched_with_the_hubs_flags_and_no_others() {
        let line =
            "penstock --model-id a/b --revision x --huggingface-hub-cache /cache --max-total-tokens 4096";
        let (cli, _) = crate::flags::parse(line.split_whitespace().map(Into::into)).unwrap();
        let words = |revision| {
            let (python, environment) = (Path::new("python"), Environment::read());
            let command = adapter_command("org/adapter", revision, &cli.model, python, &environment);
            let words: Vec<_> =
                command.as_std().get_args().map(|word| word.to_str().unwrap().to_owned()).collect();
            words.join(" ")
        };
        let fetched = words(Some("y"));
        assert!(
            fetched.ends_with("penstock.download org/adapter --revision y --cache-dir /cache --adapter"),
            "{fetched}"
        );
        let fetched = words(None);
        assert!(
            fetched.ends_with("org/adapter --cache-dir /cache --adapter"),
            "the model's revision is the model's: {fetched}"
        );
    }

    #[test]
    fn a_folder_wins_and_what_looks_like_a_hub_name_is_one() {
        let model = folder(&["config.json", "tokenizer.json", "model.safetensors"]);
        let path = model.path().to_str().unwrap();
        assert_eq!(named(path), Ok(Named::Folder(model.path().to_owned())));
        assert_eq!(named("owner/name-1.5_x"), Ok(Named::Hub("owner/name-1.5_x".into())));
        assert_eq!(named("gpt2"), Ok(Named::Hub("gpt2".into())));
        assert_eq!(named("hf.co/owner/name"), Ok(Named::Hub("owner/name".into())));
    }

    #[test]
    fn older_files_of_a_tokenizer_are_enough() {
        for files in [
            &["tokenizer.model"][..],
            &["vocab.json", "merges.txt"],
            &["vocab.txt"],
            &["tekken.json"],
            &["tiktoken.model"],
        ] {
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
    fn what_is_no_file_or_another_is_said_and_not_read() {
        let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
        for (name, content, says) in [
            ("model.safetensors", lfs, "Git LFS"),
            ("tokenizer.json", lfs, "Git LFS"),
            ("model-00001-of-00002.safetensors", "\n<!DOCTYPE HTML><title>404</title>", "HTML"),
        ] {
            let model = folder(&["config.json", "tokenizer.json", "model.safetensors"]);
            std::fs::write(model.path().join(name), content).unwrap();
            let line = check(model.path(), false, Weights::Here).unwrap_err();
            assert!(line.contains(says) && line.contains(name), "{line}");
        }
        for name in ["config.json", "tokenizer_config.json", "model.safetensors", "chat_template.jinja"] {
            let model = folder(&["config.json", "tokenizer.json", "model.safetensors"]);
            let path = model.path().join(name);
            let _ = std::fs::remove_file(&path);
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            assert!(check(model.path(), false, Weights::Here).unwrap_err().contains("a FIFO, not a file"));
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            assert!(check(model.path(), false, Weights::Here).unwrap_err().contains("a device, not a file"));
        }
    }

    #[test]
    fn gguf_files_are_models() {
        let model = folder(&["a-Q4_K_M.gguf", "README.md"]);
        let file = model.path().join("a-Q4_K_M.gguf");
        assert_eq!(named(model.path().to_str().unwrap()), Ok(Named::Gguf(file.clone())));
        assert_eq!(named(file.to_str().unwrap()), Ok(Named::Gguf(file)));
        let of_hub = Named::HubGguf { repo: "owner/name".into(), which: "Q4_K_M".into() };
        assert_eq!(named("owner/name:Q4_K_M"), Ok(of_hub));
        let readme = model.path().join("README.md");
        let line = named(readme.to_str().unwrap()).unwrap_err();
        assert!(line.ends_with("is not a folder, nor a GGUF file"), "{line}");
    }

    #[test]
    fn an_adapter_is_no_model_unless_there_is_one_beside_it() {
        let only = ["adapter_config.json", "adapter_model.safetensors"];
        let files = ["config.json", "tokenizer.json", only[0], only[1]];
        for alone in [&only[..], &files] {
            let adapter = folder(alone);
            let path = adapter.path();
            assert_eq!(named(path.to_str().unwrap()), Ok(Named::Adapter(path.to_owned())));
        }
        for weights in ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"] {
            let with = folder(&[&files[..], &[weights]].concat());
            let trusts = ModelArgs { trust_remote_code: true, ..args(with.path().to_str().unwrap()) };
            assert_eq!(Named::read(&trusts, Weights::Here), Ok(Named::Folder(with.path().to_owned())));
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
            (&["config.json", "qwen.tiktoken", "model.safetensors"], "qwen.tiktoken is not read"),
        ] {
            let model = folder(files);
            let line = named(model.path().to_str().unwrap()).unwrap_err();
            assert!(line.contains(lacks) && line.contains(&*model.path().to_string_lossy()), "{line}");
        }
    }
}
