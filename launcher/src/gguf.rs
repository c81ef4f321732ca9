//! `--model-id` of GGUF files: a file, a folder of one model, or on the hub `owner/name:TAG` and `owner/name/FILE.gguf`. `python -m penstock.gguf.unpack`
//! makes a model's folder of it. Called by `model::obtain`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;
use tokio::process::Command;

use crate::child_spawner::ChildSpawner;
use crate::environment::Environment;
use crate::flags::ModelArgs;
use crate::json_subprocess::{self, Ended};
use crate::model::{self, Model};
use crate::python;

const ENDING: &str = ".gguf";
const MAGIC: &[u8; 4] = b"GGUF";
/// How people of other servers begin a name on the hub.
const HUB: [&str; 2] = ["hf.co/", "huggingface.co/"];

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Folder(PathBuf),
    Failed(String),
}

/// The repository and the tag or the file of a name on the hub that has one.
pub fn on_hub(id: &str) -> Option<(String, String)> {
    let id = without_host(id);
    let (repo, which) = match id.split_once(':') {
        Some(pair) => pair,
        None if id.ends_with(ENDING) => {
            let slash = id.match_indices('/').nth(1)?.0;
            (&id[..slash], &id[slash + 1..])
        }
        None => return None,
    };
    let is_plain = !which.is_empty()
        && which.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
        && !which.split('/').any(|part| part.is_empty() || part.starts_with('.'));
    (repo.contains('/') && model::is_hub_id(repo) && is_plain).then(|| (repo.to_owned(), which.to_owned()))
}

/// A name on the hub without the host in front of it.
pub fn without_host(id: &str) -> &str {
    HUB.iter().find_map(|begin| id.strip_prefix(begin)).unwrap_or(id)
}

/// Whether this is a GGUF file: by its name, whatever is in it, or by how it begins, as what Ollama keeps has no such name.
pub fn is_file(path: &Path) -> bool {
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(&ENDING[1..])) {
        return path.is_file();
    }
    let mut begin = [0; MAGIC.len()];
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok_and(|()| begin == *MAGIC)
}

/// The first file of the one model that a folder holds in GGUF files; `None` where it holds others, or none of them.
pub fn in_folder(folder: &Path) -> Result<Option<PathBuf>, String> {
    let names: Vec<String> = folder
        .read_dir()
        .map_err(|error| format!("--model-id: the folder {} cannot be read: {error}", folder.display()))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    // What was made of a GGUF file is a model's folder, with links to it.
    let is_made = names.iter().any(|name| name == "config.json")
        && names.iter().any(|name| name == MADE || (name.starts_with(MADE_PART) && name.ends_with(ENDING)));
    let has_others =
        names.iter().any(|name| name.ends_with(".safetensors") || model::PICKLED.contains(&name.as_str()));
    if is_made || has_others {
        return Ok(None);
    }
    let mut models: Vec<&String> =
        names.iter().filter(|name| name.ends_with(ENDING) && is_first(name)).collect();
    models.sort();
    match models[..] {
        [] => Ok(None),
        [one] => Ok(Some(folder.join(one))),
        _ => {
            let shown: Vec<_> = models.iter().take(10).map(|name| name.as_str()).collect();
            Err(format!(
                "--model-id: the folder {} has {} models in GGUF files ({}): name the file of one",
                folder.display(),
                models.len(),
                shown.join(", ")
            ))
        }
    }
}

/// In a folder that `unpack` has made.
const MADE: &str = "model.gguf";
const MADE_PART: &str = "model-0";

/// Whether this is a model's file, and of one in parts the first.
fn is_first(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    // What reads images, what llama-quantize reads, and what makes drafts; as in `penstock.hub.gguf_files`.
    if lower.split(['-', '.', '_']).any(|word| matches!(word, "mmproj" | "imatrix"))
        || ["mtp-", "eagle3-", "dflash-", "dspark-"].iter().any(|begin| lower.starts_with(begin))
    {
        return false;
    }
    match name.trim_end_matches(ENDING).rsplit_once("-of-") {
        Some((first, count)) if count.len() == 5 => first.ends_with("-00001"),
        _ => true,
    }
}

/// A model's folder of a file. The error is one line for the user.
pub async fn unpack(
    file: &Path,
    model: Model,
    args: &ModelArgs,
    interpreter: &Path,
    spawner: &ChildSpawner,
    environment: &Environment,
) -> Result<Model, String> {
    let mut command = Command::from(python::module(interpreter, "penstock.gguf.unpack"));
    command.arg(file).stderr(Stdio::piped());
    for secret in &environment.secrets {
        command.env_remove(secret);
    }
    if let Some(cache) = &args.huggingface_hub_cache {
        command.arg("--cache-dir").arg(cache);
    }
    match json_subprocess::run(command, interpreter, spawner).await? {
        Ended::Answered(Outcome::Folder(folder)) => Ok(Model { folder, ..model }),
        Ended::Answered(Outcome::Failed(line)) => Err(format!("--model-id: {line}")),
        Ended::Silent(why) => Err(format!("reading {} ended with {why}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_or_a_file_behind_a_name_on_the_hub_is_of_gguf_files() {
        let found = |id| on_hub(id).map(|(repo, which)| format!("{repo} {which}"));
        for (id, wanted) in [
            ("owner/name:Q4_K_M", "owner/name Q4_K_M"),
            ("hf.co/owner/name:Q8_0", "owner/name Q8_0"),
            ("huggingface.co/owner/name:UD-Q4_K_XL", "owner/name UD-Q4_K_XL"),
            ("owner/name/model-Q6_K.gguf", "owner/name model-Q6_K.gguf"),
            ("owner/name/Q8_0/model-00001-of-00002.gguf", "owner/name Q8_0/model-00001-of-00002.gguf"),
        ] {
            assert_eq!(found(id).as_deref(), Some(wanted));
        }
        for id in [
            "owner/name",
            "name:Q8_0",
            "owner/name:",
            "owner/name:a b",
            "owner/name:../x",
            "a/b/c:d",
            "x.gguf",
        ] {
            assert_eq!(found(id), None, "{id}");
        }
    }

    #[test]
    fn a_file_is_known_by_its_name_or_by_how_it_begins() {
        let made = tempfile::tempdir().unwrap();
        for (name, content, is_one) in [
            ("a.gguf", "", true),
            ("a.GGUF", "else", true),
            ("sha256-0d5c", "GGUF\u{3}\0\0\0", true),
            ("sha256-1e6d", "GGU", false),
            ("model.safetensors", "else", false),
        ] {
            let file = made.path().join(name);
            std::fs::write(&file, content).unwrap();
            assert_eq!(is_file(&file), is_one, "{name}");
        }
        assert!(!is_file(made.path()) && !is_file(&made.path().join("none.gguf")));
    }

    #[test]
    fn a_folder_of_one_model_is_that_model_and_several_are_named() {
        let folder = |files: &[&str]| {
            let made = tempfile::tempdir().unwrap();
            for file in files {
                std::fs::write(made.path().join(file), "GGUF").unwrap();
            }
            let found = in_folder(made.path());
            found.map(|file| file.map(|file| file.file_name().unwrap().to_string_lossy().into_owned()))
        };
        assert_eq!(
            folder(&["a-Q4_K_M.gguf", "mmproj-a.gguf", "README.md"]),
            Ok(Some("a-Q4_K_M.gguf".into()))
        );
        let parts = ["a-00002-of-00002.gguf", "a-00001-of-00002.gguf", "tokenizer.json", "config.json"];
        assert_eq!(folder(&parts), Ok(Some("a-00001-of-00002.gguf".into())));
        assert_eq!(folder(&["a.gguf", "model.safetensors"]), Ok(None));
        assert_eq!(folder(&["model.gguf", "config.json"]), Ok(None), "it was made of one");
        assert_eq!(folder(&["model-00001-of-00002.gguf", "config.json"]), Ok(None), "and so was this");
        assert_eq!(folder(&["model.gguf", "mtp-model.gguf"]), Ok(Some("model.gguf".into())));
        assert_eq!(folder(&["README.md"]), Ok(None));
        let line = folder(&["a-Q4_0.gguf", "a-Q8_0.gguf"]).unwrap_err();
        assert!(line.contains("has 2 models in GGUF files (a-Q4_0.gguf, a-Q8_0.gguf)"), "{line}");
    }
}
