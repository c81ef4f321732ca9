//! What the launcher knows of the machine it was started on, read once by `main` and passed down: nothing
//! else in this crate reads the environment. (clap reads the flags' own variables, in `flags`.)

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Environment {
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
    /// Variables that hold secrets, as their names say. Who needs none gets none.
    pub secrets: Vec<OsString>,
    /// What the environment says of the devices that may be used.
    pub devices: VisibleDevices,
    /// The network interface of the shards' own connections is chosen already.
    pub names_interface: bool,
    pub stderr_is_terminal: bool,
    pub stdout_is_terminal: bool,
    /// https://no-color.org
    pub no_color: bool,
}

/// How many GPUs the environment shows, in the variables that TGI reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisibleDevices {
    Unsaid,
    Named {
        variable: &'static str,
        devices: u32,
    },
    /// As many as there are.
    All {
        variable: &'static str,
    },
}

impl VisibleDevices {
    fn read(value: impl Fn(&str) -> Option<String>) -> Self {
        const CUDA: &str = "CUDA_VISIBLE_DEVICES";
        const NVIDIA: &str = "NVIDIA_VISIBLE_DEVICES";
        // For CUDA an empty list shows nothing, an entry that is no device ends the list, and of slices of GPUs (MIG) a process is
        // shown the first.
        let seen = |list: &str| {
            let devices = list.split(',').map(str::trim);
            let seen =
                devices.take_while(|device| !device.is_empty() && !device.starts_with('-')).count() as u32;
            if list.contains("MIG-") { seen.min(1) } else { seen }
        };
        if let Some(list) = value(CUDA) {
            return Self::Named { variable: CUDA, devices: seen(&list) };
        }
        match value(NVIDIA).as_deref().map(str::trim) {
            None | Some("") => Self::Unsaid,
            Some("all" | "void") => Self::All { variable: NVIDIA },
            Some("none") => Self::Named { variable: NVIDIA, devices: 0 },
            Some(list) => Self::Named { variable: NVIDIA, devices: seen(list) },
        }
    }
}

/// `API_KEY`, `HF_TOKEN`, `AWS_SECRET_ACCESS_KEY`, ...: one of the words is what keys are called. What the workers'
/// exporter of traces needs (https://opentelemetry.io/docs/specs/otel/protocol/exporter) is none.
fn is_secret(name: &str) -> bool {
    const WORDS: [&str; 9] =
        ["KEY", "APIKEY", "TOKEN", "AUTHTOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"];
    let name = name.to_uppercase();
    !name.starts_with("OTEL_") && name.split('_').any(|word| WORDS.contains(&word))
}

/// What the hub's library reads.
pub const HUB_TOKENS: [&str; 4] = ["HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"];

impl Environment {
    /// The secrets that a download from the hub does not need.
    pub fn secrets_beside_the_hubs(&self) -> impl Iterator<Item = &OsString> {
        self.secrets.iter().filter(|name| HUB_TOKENS.iter().all(|token| name.as_os_str() != *token))
    }

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
            secrets: std::env::vars_os()
                .map(|(name, _)| name)
                .filter(|name| is_secret(&name.to_string_lossy()))
                .collect(),
            devices: VisibleDevices::read(|name| std::env::var(name).ok()),
            names_interface: set("GLOO_SOCKET_IFNAME").is_some(),
            stderr_is_terminal: std::io::stderr().is_terminal(),
            stdout_is_terminal: std::io::stdout().is_terminal(),
            no_color: set("NO_COLOR").is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names_and_what_counts_tokens_is_none() {
        for name in [
            "API_KEY",
            "HF_TOKEN",
            "ngrok_authtoken",
            "AWS_SECRET_ACCESS_KEY",
            "DB_PASSWORD",
            "WANDB_API_KEY",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "PATH",
            "MAX_TOTAL_TOKENS",
            "TOKENIZERS_PARALLELISM",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY",
            "KEYBOARD",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn devices_are_counted_in_the_first_variable_that_names_some() {
        let named = |variable, devices| VisibleDevices::Named { variable, devices };
        let (cuda, nvidia) = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES");
        for (first, second, expected) in [
            (None, None, VisibleDevices::Unsaid),
            (Some("0,1,2"), Some("all"), named(cuda, 3)),
            (Some(""), Some("all"), named(cuda, 0)),
            (Some("0,-1,2"), None, named(cuda, 1)),
            (Some("MIG-a,MIG-b"), None, named(cuda, 1)),
            (None, Some("GPU-a,GPU-b"), named(nvidia, 2)),
            (None, Some("all"), VisibleDevices::All { variable: nvidia }),
            (None, Some("none"), named(nvidia, 0)),
            (None, Some(""), VisibleDevices::Unsaid),
        ] {
            let value = |name: &str| if name == cuda { first } else { second }.map(str::to_owned);
            assert_eq!(VisibleDevices::read(value), expected, "{first:?} {second:?}");
        }
    }
}
