//! What the launcher knows of the machine it was started on, read once by `main` and passed down: nothing
//! else in this crate reads the environment. (clap reads the flags' own variables, in `flags`.)

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Surroundings {
    /// How this program was named on the command line; may be a link to the file that runs.
    pub argv0: Option<PathBuf>,
    /// The file that runs, links resolved.
    pub executable: Option<PathBuf>,
    pub path: Vec<PathBuf>,
    pub virtual_env: Option<PathBuf>,
    /// Where Python looks for packages before its own folders.
    pub python_path: Vec<PathBuf>,
    /// A folder for short-lived private files: XDG_RUNTIME_DIR, or the system's for temporary files.
    pub runtime_dir: PathBuf,
    /// TGI's third name for the hub's token, which `huggingface_hub` does not know.
    pub hf_api_token: Option<OsString>,
    pub stderr_is_terminal: bool,
    pub stdout_is_terminal: bool,
    /// https://no-color.org
    pub no_color: bool,
}

impl Surroundings {
    pub fn read() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let list =
            |name: &str| set(name).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default();
        let temporary = std::env::temp_dir();
        Self {
            argv0: std::env::args_os().next().map(PathBuf::from),
            executable: std::env::current_exe().ok(),
            path: list("PATH"),
            virtual_env: set("VIRTUAL_ENV").map(PathBuf::from),
            python_path: list("PYTHONPATH"),
            runtime_dir: set("XDG_RUNTIME_DIR")
                .map(PathBuf::from)
                .filter(|dir| dir.is_dir())
                .unwrap_or(temporary),
            hf_api_token: set("HF_API_TOKEN")
                .filter(|_| set("HF_TOKEN").or(set("HUGGING_FACE_HUB_TOKEN")).is_none()),
            stderr_is_terminal: std::io::stderr().is_terminal(),
            stdout_is_terminal: std::io::stdout().is_terminal(),
            no_color: set("NO_COLOR").is_some(),
        }
    }
}
