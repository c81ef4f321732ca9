//! `--lora-adapters`: which adapters are loaded beside the model, what requests call them, and where their files are. Whether an adapter
//! fits the model the worker says, which reads it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::child_spawner::ChildSpawner;
use crate::environment::Environment;
use crate::flags::ModelArgs;
use crate::model;

/// What every adapter of peft has.
pub const CONFIG: &str = "adapter_config.json";
/// Of a name, in characters: as of a request's `adapter_id`.
const LONGEST_NAME: usize = 256;

/// One that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Folder(PathBuf),
    /// On the hub its name is its id.
    Hub {
        revision: Option<String>,
    },
}

/// One whose files are on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    pub name: String,
    pub folder: PathBuf,
}

impl Named {
    pub fn on_hub(&self) -> Option<&str> {
        matches!(self.place, Place::Hub { .. }).then_some(self.name.as_str())
    }

    /// For the doctor, which fetches none: NAME=FOLDER, or of one on the hub its name.
    pub fn for_doctor(&self) -> OsString {
        let mut said = OsString::from(&self.name);
        if let Place::Folder(folder) = &self.place {
            said.push("=");
            said.push(folder);
        }
        said
    }
}

/// A list as TGI takes it: `owner/name`, `owner/name@revision` or `name=folder`, with commas between. Answers a warning for what has no effect.
pub fn parse(list: &str) -> Result<(Vec<Named>, Vec<String>), String> {
    let (mut named, mut warnings) = (Vec::<Named>::new(), Vec::new());
    if list.trim().is_empty() {
        return Ok((named, warnings));
    }
    for item in list.split(',').map(str::trim) {
        let one =
            parse_item(item, &mut warnings).map_err(|why| format!("--lora-adapters: {item:?} {why}"))?;
        if named.iter().any(|other| other.name == one.name) {
            return Err(format!("--lora-adapters: two adapters have the name {:?}", one.name));
        }
        named.push(one);
    }
    Ok((named, warnings))
}

fn parse_item(item: &str, warnings: &mut Vec<String>) -> Result<Named, String> {
    const FORMS: &str = "an adapter is owner/name, owner/name@revision or NAME=FOLDER";
    for mark in ['=', '@'] {
        if item.matches(mark).count() > 1 {
            return Err(format!("has more than one {mark}: {FORMS}"));
        }
    }
    let (place, revision) = match item.split_once('@') {
        Some((_, "")) => return Err("has no revision behind its @".into()),
        Some((place, revision)) => (place, Some(revision.to_owned())),
        None => (item, None),
    };
    let Some((name, folder)) = place.split_once('=') else {
        if place.is_empty() {
            return Err(format!("names no adapter: {FORMS}"));
        }
        if !model::is_hub_id(place) {
            return Err(format!("is no name of an adapter on the hub: {FORMS}"));
        }
        return Ok(Named { name: place.to_owned(), place: Place::Hub { revision } });
    };
    if name.is_empty() {
        return Err(format!("has no name in front of its =: {FORMS}"));
    }
    if name.chars().nth(LONGEST_NAME).is_some() || name.contains(char::is_control) {
        return Err(format!(
            "has a name of more than {LONGEST_NAME} characters, or with a control character"
        ));
    }
    if revision.is_some() {
        warnings.push(format!(
            "--lora-adapters: the revision of {name} has no effect: its files are in a folder"
        ));
    }
    let folder = Path::new(folder);
    if !folder.is_dir() {
        return Err("names no folder that is there".into());
    }
    if !folder.join(CONFIG).is_file() {
        return Err(format!("names a folder without {CONFIG}: it is no adapter of peft"));
    }
    Ok(Named { name: name.to_owned(), place: Place::Folder(folder.to_owned()) })
}

/// Refuses one that is called what the served model is: which of them a request means would not be clear.
pub fn check_names(named: &[Named], model_id: &str) -> Result<(), String> {
    match named.iter().any(|adapter| adapter.name == model_id) {
        true => Err(format!(
            "--lora-adapters: {model_id} is the served model's name: load the adapter as NAME=FOLDER"
        )),
        false => Ok(()),
    }
}

/// Makes them available on this machine, one after the other. The error is one line for the user.
pub async fn obtain(
    named: &[Named],
    args: &ModelArgs,
    interpreter: &Path,
    spawner: &ChildSpawner,
    environment: &Environment,
    show_progress: bool,
) -> Result<Vec<Adapter>, String> {
    let mut adapters = Vec::new();
    for Named { name, place } in named {
        let folder = match place {
            Place::Folder(folder) => {
                folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))
            }
            Place::Hub { revision } => {
                let command =
                    model::adapter_command(name, revision.as_deref(), args, interpreter, environment);
                model::download_adapter(name, command, interpreter, spawner, show_progress).await
            }
        };
        let folder = folder.map_err(|why| format!("--lora-adapters: {why}"))?;
        adapters.push(Adapter { name: name.clone(), folder });
    }
    Ok(adapters)
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

    #[test]
    fn a_list_names_adapters_on_the_hub_and_in_folders() {
        let adapter = folder(&[CONFIG]);
        let path = adapter.path().to_str().unwrap();
        let list = format!("org/a, org/b@main,c={path},d={path}@v1");
        let (named, warnings) = parse(&list).unwrap();
        let hub = |name: &str, revision: Option<&str>| Named {
            name: name.into(),
            place: Place::Hub { revision: revision.map(str::to_owned) },
        };
        let local = |name: &str| Named { name: name.into(), place: Place::Folder(path.into()) };
        assert_eq!(named, [hub("org/a", None), hub("org/b", Some("main")), local("c"), local("d")]);
        assert_eq!(warnings, ["--lora-adapters: the revision of d has no effect: its files are in a folder"]);
        assert_eq!(named.iter().filter_map(Named::on_hub).collect::<Vec<_>>(), ["org/a", "org/b"]);
        for nothing in ["", " "] {
            assert_eq!(parse(nothing), Ok((vec![], vec![])));
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_the_item() {
        let (adapter, other) = (folder(&[CONFIG]), folder(&["config.json"]));
        let (path, other) = (adapter.path().to_str().unwrap(), other.path().to_str().unwrap());
        let long = "n".repeat(257);
        for (list, item, says) in [
            (
                format!("a/b,c=d={path}"),
                format!("c=d={path}"),
                "has more than one =: an adapter is owner/name,",
            ),
            ("a/b@c@d".into(), "a/b@c@d".into(), "has more than one @"),
            ("a/b@".into(), "a/b@".into(), "has no revision"),
            ("a/b,".into(), String::new(), "names no adapter"),
            (format!("={path}"), format!("={path}"), "has no name in front of its ="),
            (format!("{long}={path}"), format!("{long}={path}"), "has a name of more than 256 characters"),
            ("c=/no/such".into(), "c=/no/such".into(), "names no folder that is there"),
            (format!("c={other}"), format!("c={other}"), "names a folder without adapter_config.json"),
            (
                "/a/folder".into(),
                "/a/folder".into(),
                "is no name of an adapter on the hub: an adapter is owner/name,",
            ),
        ] {
            let line = parse(&list).unwrap_err();
            assert!(line.starts_with(&format!("--lora-adapters: {item:?} {says}")), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
        let line = parse(&format!("a/b,a/b={path}")).unwrap_err();
        assert_eq!(line, "--lora-adapters: two adapters have the name \"a/b\"");
    }

    #[test]
    fn no_adapter_has_the_models_name() {
        let (named, _) = parse("org/a").unwrap();
        assert_eq!(check_names(&named, "org/b"), Ok(()));
        let line = check_names(&named, "org/a").unwrap_err();
        assert!(line.starts_with("--lora-adapters: org/a is the served model's name"), "{line}");
    }
}
