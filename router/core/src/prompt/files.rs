//! Reads what a model's folder says about its tokens and its chat template. Called once, by
//! `Prompt::load`; knows file names and their formats, and nothing of how they are used.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use super::post_processor::follow_class;
use super::special_tokens;

/// Bytes of a file. Published: 40 MB at most. A file may claim any size without taking any place on a disk.
const MAX_FILE: u64 = 512 << 20;

/// The name of a model's only chat template.
const DEFAULT: &str = "default";

/// Why the model's files cannot be used. The texts are for the operator and name the file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{}: there is no such file", file.display())]
    NoTokenizer { file: PathBuf },
    #[error("{}: cannot be read: {reason}", file.display())]
    Unreadable { file: PathBuf, reason: std::io::Error },
    #[error("{}: is not valid: {reason}", file.display())]
    Invalid { file: PathBuf, reason: String },
    /// For callers that load on another thread, which may break.
    #[error("{0}")]
    Unusable(String),
}

/// Names and texts.
pub type Sources = Vec<(String, String)>;

pub struct ModelFiles {
    pub tokenizer: Tokenizer,
    /// Every token that some configuration calls special.
    pub special: Vec<String>,
    /// `bos_token`, `eos_token` and alike with their texts, as templates see them.
    pub named_tokens: Map<String, Value>,
    /// The chat templates, each with its name, and the file or folder that they are in. A model with one calls
    /// it `default`.
    pub chat_templates: Option<(Sources, PathBuf)>,
    /// What chats that do not say it themselves give the templates.
    pub template_defaults: Map<String, Value>,
}

impl ModelFiles {
    /// `tokenizer` is a tokenizer.json for a folder without one. `config` is a tokenizer_config.json to read
    /// instead of the folder's own; a chat template in it goes before those in the folder.
    pub fn read(dir: &Path, tokenizer: Option<&Path>, config: Option<&Path>) -> Result<Self, LoadError> {
        let mut tokenizer =
            read_tokenizer(tokenizer.map_or_else(|| dir.join("tokenizer.json"), Path::to_owned))?;

        let own_config = config.is_none();
        let config_file = config.map_or_else(|| dir.join("tokenizer_config.json"), Path::to_owned);
        let mut config = match read_json(&config_file)? {
            Some(config) => config,
            None if own_config => Map::new(),
            None => {
                let reason = std::io::Error::from(std::io::ErrorKind::NotFound);
                return Err(LoadError::Unreadable { file: config_file, reason });
            }
        };
        // Older models keep the names there; the newer file goes before.
        for (name, value) in read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default() {
            config.entry(name).or_insert(value);
        }
        // Mistral's own file names no tokens: in all of them they are the same.
        if dir.join("tekken.json").exists() && !dir.join("tokenizer.json").exists() {
            let named = ["bos_token", "eos_token", "pad_token", "unk_token"].into_iter();
            for (name, text) in named.zip(["<s>", "</s>", "<pad>", "<unk>"]) {
                config.entry(name).or_insert_with(|| Value::from(text));
            }
        }

        // A file that was named for its chat template need not say the rest; the folder's own may be unreadable.
        let own = match own_config {
            true => Map::new(),
            false => read_json(&dir.join("tokenizer_config.json")).ok().flatten().unwrap_or_default(),
        };
        follow_class(&mut tokenizer, |name| config.get(name).or_else(|| own.get(name)));

        let named_tokens = special_tokens::named(&config);
        let special = special_tokens::all(&config, &named_tokens);

        let in_config = chat_templates_of(&config).map(|sources| (sources, config_file));
        let in_folder = read_chat_templates(dir)?;
        let chat_templates = if own_config { in_folder.or(in_config) } else { in_config.or(in_folder) };
        let template_defaults = template_defaults(dir);
        Ok(Self { tokenizer, special, named_tokens, chat_templates, template_defaults })
    }
}

/// Of `generation_config.json` (Laguna XS-2.1). Nothing else of the file is read here, and without it chats are served as well.
fn template_defaults(dir: &Path) -> Map<String, Value> {
    let file = dir.join("generation_config.json");
    let fields = match read_json(&file) {
        Ok(fields) => fields.unwrap_or_default(),
        Err(error) => {
            tracing::warn!("{error}");
            return Map::new();
        }
    };
    match fields.get("default_chat_template_kwargs") {
        Some(Value::Object(given)) => {
            let given = given.iter().filter(|(name, _)| penstock_template::may_be_default(name));
            given.map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        None | Some(Value::Null) => Map::new(),
        Some(_) => {
            tracing::warn!(
                "{}: `default_chat_template_kwargs` is no object, and has no effect",
                file.display()
            );
            Map::new()
        }
    }
}

/// What keeps a tokenizer.json and chat templates in `dir` from being used, without building the tokenizer: a line
/// for each. Files that are not there are none.
pub fn problems(dir: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let file = dir.join("tokenizer.json");
    match read(&file) {
        Ok(bytes) => {
            let reason = bytes.and_then(|bytes| super::growth::check(&bytes).err());
            problems.extend(reason.map(|reason| LoadError::Invalid { file, reason }.to_string()));
        }
        Err(error) => problems.push(error.to_string()),
    }
    let config = dir.join("tokenizer_config.json");
    let templates = read_chat_templates(dir).and_then(|found| match found {
        Some(found) => Ok(Some(found)),
        None => {
            let fields = read_json(&config)?;
            Ok(fields.as_ref().and_then(chat_templates_of).map(|sources| (sources, config)))
        }
    });
    match templates {
        Ok(Some((sources, file))) => {
            let failed = sources.iter().filter_map(|(name, source)| {
                let reason = penstock_template::Template::compile(source).err()?;
                Some(does_not_compile(&file, name, &reason.to_string()))
            });
            problems.extend(failed);
        }
        Ok(None) => {}
        Err(error) => problems.push(error.to_string()),
    }
    problems
}

pub fn does_not_compile(file: &Path, name: &str, reason: &str) -> String {
    format!(
        "{}: the chat template `{name}` does not compile, so that chats cannot be served with it: {reason}",
        file.display()
    )
}

fn read_tokenizer(file: PathBuf) -> Result<Tokenizer, LoadError> {
    let Some(bytes) = read(&file)? else {
        return Err(LoadError::NoTokenizer { file });
    };
    if let Err(reason) = super::growth::check(&bytes) {
        return Err(LoadError::Invalid { file, reason });
    }
    Tokenizer::from_bytes(bytes).map_err(|error| LoadError::Invalid { file, reason: error.to_string() })
}

/// The templates that have files of their own, newest format first. Those of `additional_chat_templates` are
/// named by their files, beside chat_template.jinja, which is the default.
fn read_chat_templates(dir: &Path) -> Result<Option<(Sources, PathBuf)>, LoadError> {
    let mut sources = Sources::new();
    let file = dir.join("chat_template.jinja");
    if let Some(source) = read_text(&file)? {
        sources.push((DEFAULT.into(), source));
    }
    let more = dir.join("additional_chat_templates");
    let mut files: Vec<PathBuf> = match more.read_dir() {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(reason) => return Err(LoadError::Unreadable { file: more, reason }),
    };
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jinja"));
    files.sort_unstable();
    for file in files {
        if let (Some(name), Some(source)) = (file.file_stem(), read_text(&file)?) {
            let name = name.to_string_lossy().into_owned();
            sources.retain(|(known, _)| *known != name);
            sources.push((name, source));
        }
    }
    if !sources.is_empty() {
        return Ok(Some((sources, dir.to_owned())));
    }
    for name in ["chat_template.json", "processor_config.json"] {
        let file = dir.join(name);
        if let Some(sources) = read_json(&file)?.as_ref().and_then(chat_templates_of) {
            return Ok(Some((sources, file)));
        }
    }
    Ok(None)
}

/// A string, or a list of named templates.
fn chat_templates_of(config: &Map<String, Value>) -> Option<Sources> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match config.get("chat_template")? {
        Value::String(source) => Some(vec![(DEFAULT.into(), source.clone())]),
        Value::Array(entries) => {
            let named = |entry: &Value| Some((text(entry.get("name")?)?, text(entry.get("template")?)?));
            let sources: Sources = entries.iter().filter_map(named).collect();
            (!sources.is_empty()).then_some(sources)
        }
        _ => None,
    }
}

fn read_json(file: &Path) -> Result<Option<Map<String, Value>>, LoadError> {
    let Some(bytes) = read(file)? else {
        return Ok(None);
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(fields)) => Ok(Some(fields)),
        Ok(_) => Err(LoadError::Invalid { file: file.to_owned(), reason: "not a JSON object".into() }),
        Err(error) => Err(LoadError::Invalid { file: file.to_owned(), reason: error.to_string() }),
    }
}

fn read_text(file: &Path) -> Result<Option<String>, LoadError> {
    let Some(bytes) = read(file)? else {
        return Ok(None);
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            Err(LoadError::Invalid { file: file.to_owned(), reason: error.utf8_error().to_string() })
        }
    }
}

/// `None` when there is no such file. What is no file is not opened: reading a FIFO may wait for ever, and a device has
/// no end.
fn read(file: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    let unusable = |reason: String| {
        Err(LoadError::Unreadable { file: file.to_owned(), reason: std::io::Error::other(reason) })
    };
    match file.metadata() {
        Ok(found) if !found.is_file() => return unusable("it is not a file".into()),
        Ok(found) if found.len() > MAX_FILE => {
            return unusable(format!("it has {} bytes; {MAX_FILE} are allowed", found.len()));
        }
        _ => {}
    }
    match std::fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(reason) => Err(LoadError::Unreadable { file: file.to_owned(), reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::samples;
    use serde_json::json;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(files: &[(&str, String)]) -> Self {
            let folder = Self(tempfile::tempdir().unwrap());
            folder.write("tokenizer.json", &samples::byte_level().to_string(false).unwrap());
            for (name, text) in files {
                folder.write(name, text);
            }
            folder
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.0.path().join(name), text).unwrap();
        }

        fn read(&self) -> Result<ModelFiles, LoadError> {
            ModelFiles::read(self.0.path(), None, None)
        }
    }

    fn error(result: Result<ModelFiles, LoadError>) -> String {
        result.err().expect("it must not load").to_string()
    }

    #[test]
    fn a_folder_without_a_tokenizer_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let text = error(ModelFiles::read(folder.path(), None, None));
        assert!(
            text.contains("tokenizer.json") && text.contains(&folder.path().display().to_string()),
            "{text}"
        );
    }

    #[test]
    fn a_tokenizer_may_lie_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        samples::wordpiece().save(elsewhere.path(), false).unwrap();
        let files = ModelFiles::read(folder.path(), Some(elsewhere.path()), None).unwrap();
        assert!(files.tokenizer.token_to_id("[SEP]").is_some());
    }

    #[test]
    fn files_that_are_no_json_are_named() {
        let folder = Folder::new(&[("tokenizer_config.json", "{".into())]);
        assert!(error(folder.read()).contains("tokenizer_config.json: is not valid"));
        let folder = Folder::new(&[("tokenizer.json", "{}".into())]);
        assert!(error(folder.read()).contains("tokenizer.json: is not valid"));
        let bomb = json!({"normalizer": {"type": "Prepend", "prepend": "x".repeat(1000)}});
        let folder = Folder::new(&[("tokenizer.json", bomb.to_string())]);
        let text = error(folder.read());
        assert!(text.contains("tokenizer.json: is not valid: its normalizer"), "{text}");
    }

    #[test]
    fn a_repository_may_have_variables_for_its_templates() {
        let of = |generation: &str| {
            let read = Folder::new(&[("generation_config.json", generation.to_owned())]).read().unwrap();
            Value::from(read.template_defaults)
        };
        let given = r#"{"default_chat_template_kwargs": {"enable_thinking": true, "messages": []}}"#;
        assert_eq!(of(given), json!({"enable_thinking": true}));
        for nothing in
            ["{}", r#"{"default_chat_template_kwargs": null}"#, r#"{"default_chat_template_kwargs": 5}"#, "{"]
        {
            assert_eq!(of(nothing), json!({}), "{nothing}");
        }
    }

    #[test]
    fn the_doctor_is_told_what_cannot_be_used() {
        let said = |files: &[(&str, String)]| problems(Folder::new(files).0.path());
        assert!(said(&[]).is_empty());
        assert!(said(&[("chat_template.jinja", "{{ messages }}".into())]).is_empty());
        let broken = [("tokenizer_config.json", json!({"chat_template": "one\n{% if %}"}).to_string())];
        let [line] = &said(&broken)[..] else { panic!("one problem") };
        assert!(
            line.contains("tokenizer_config.json: the chat template `default` does not compile"),
            "{line}"
        );
        assert!(line.ends_with("line 2: an expression is missing"), "{line}");
        let bomb = json!({"normalizer": {"type": "Prepend", "prepend": "x".repeat(1000)}}).to_string();
        let lines = said(&[("tokenizer.json", bomb), ("chat_template.jinja", "{% for %}".into())]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("its normalizer may make"), "{lines:?}");
    }

    #[test]
    fn a_missing_file_that_a_flag_names_is_an_error() {
        let folder = Folder::new(&[]);
        let missing = folder.0.path().join("elsewhere.json");
        assert!(error(ModelFiles::read(folder.0.path(), None, Some(&missing))).contains("elsewhere.json"));
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
            let folder = Folder::new(&[]);
            let _ = std::fs::remove_file(folder.0.path().join(name));
            std::os::unix::fs::symlink("/dev/zero", folder.0.path().join(name)).unwrap();
            assert!(error(folder.read()).contains("it is not a file"), "{name}");
        }
    }

    #[test]
    fn a_file_of_any_size_is_not_read() {
        for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
            let folder = Folder::new(&[]);
            let file = std::fs::File::create(folder.0.path().join(name)).unwrap();
            file.set_len(1 << 50).or_else(|_| file.set_len(1 << 40)).unwrap();
            assert!(error(folder.read()).contains("536870912 are allowed"), "{name}");
        }
    }

    #[test]
    fn tokens_are_strings_or_objects_and_flags_are_neither() {
        let config = json!({
            "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null,
            "image_token": "<image>", "add_bos_token": true, "additional_special_tokens": ["<|a|>", {"content": "<|b|>"}],
            "added_tokens_decoder": {"5": {"content": "<|c|>", "special": true}, "6": {"content": "<tool>", "special": false}}
        });
        let folder = Folder::new(&[
            ("tokenizer_config.json", config.to_string()),
            ("special_tokens_map.json", json!({"bos_token": "<old>", "unk_token": "<unk>"}).to_string()),
        ]);
        let files = folder.read().unwrap();
        assert_eq!(
            Value::from(files.named_tokens),
            json!({"bos_token": "<s>", "eos_token": "</s>", "image_token": "<image>", "unk_token": "<unk>"})
        );
        for special in ["<s>", "</s>", "<image>", "<unk>", "<|a|>", "<|b|>", "<|c|>"] {
            assert!(files.special.iter().any(|name| name == special), "{special}");
        }
        assert!(!files.special.iter().any(|name| name == "<tool>" || name == "<old>"));
    }

    #[test]
    fn mistrals_own_file_has_the_tokens_of_all_of_them() {
        let folder = Folder::new(&[("tekken.json", "{}".to_owned())]);
        assert!(folder.read().unwrap().named_tokens.is_empty());
        let made = folder.0.path().join("made.json");
        std::fs::rename(folder.0.path().join("tokenizer.json"), &made).unwrap();
        let files = ModelFiles::read(folder.0.path(), Some(&made), None).unwrap();
        assert_eq!(
            Value::from(files.named_tokens),
            json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"})
        );
    }

    #[test]
    fn a_templates_own_file_goes_before_the_configuration() {
        let template = |files: &[(&str, String)]| {
            let found = Folder::new(files).read().unwrap().chat_templates?.0;
            assert_eq!(found[0].0, "default");
            Some(found[0].1.clone())
        };
        let config = ("tokenizer_config.json", json!({"chat_template": "config"}).to_string());
        let jinja = ("chat_template.jinja", "jinja".to_owned());
        let older = ("chat_template.json", json!({"chat_template": "older"}).to_string());
        assert_eq!(template(&[]), None);
        assert_eq!(template(std::slice::from_ref(&config)).as_deref(), Some("config"));
        assert_eq!(template(&[config.clone(), older.clone()]).as_deref(), Some("older"));
        assert_eq!(template(&[config.clone(), older, jinja.clone()]).as_deref(), Some("jinja"));

        // But the file that the operator named goes before everything.
        let folder =
            Folder::new(&[config, jinja, ("mine.json", json!({"chat_template": "mine"}).to_string())]);
        let mine = folder.0.path().join("mine.json");
        let files = ModelFiles::read(folder.0.path(), None, Some(&mine)).unwrap();
        assert_eq!(files.chat_templates.unwrap().0[0].1, "mine");
    }

    #[test]
    fn named_templates_are_a_list_or_files() {
        let names = |folder: &Folder| -> Vec<String> {
            let (mut sources, _) = folder.read().unwrap().chat_templates.unwrap();
            sources.sort_unstable();
            sources.into_iter().map(|(name, source)| format!("{name}: {source}")).collect()
        };
        let list = ["tool_use", "default"].map(|name| json!({"name": name, "template": "in the list"}));
        let config = json!({"chat_template": list}).to_string();
        let folder = Folder::new(&[("tokenizer_config.json", config)]);
        assert_eq!(names(&folder), ["default: in the list", "tool_use: in the list"]);

        // Files go before the list, all of it.
        std::fs::create_dir(folder.0.path().join("additional_chat_templates")).unwrap();
        folder.write("additional_chat_templates/rag.jinja", "in a file");
        folder.write("additional_chat_templates/notes.txt", "no template");
        assert_eq!(names(&folder), ["rag: in a file"]);
        folder.write("chat_template.jinja", "in its own file");
        assert_eq!(names(&folder), ["default: in its own file", "rag: in a file"]);
    }
}
