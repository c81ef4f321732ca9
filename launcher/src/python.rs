//! Which Python runs the workers, and where the package `penstock` lies in it. Looks at files only, for a
//! Python start costs the time that a start of Penstock is measured by. Called by `main`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::environment::Environment;

/// The interpreter: the one the user names, else the one beside this program, else the active virtual
/// environment's. Never just any `python3` of the PATH: it would not have the package, or not this version.
pub fn find(named: Option<&Path>, environment: &Environment) -> Result<PathBuf, String> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    // The name it was called by comes first: `bin/penstock` of an environment may be a link to a file
    // that lies elsewhere, without a Python beside it.
    let called = environment.argv0.as_deref().and_then(|name| called_in(name, &environment.path));
    let lies = environment.executable.as_deref().and_then(Path::parent).map(Path::to_owned);
    let active = environment.virtual_env.as_deref().map(|prefix| prefix.join("bin"));
    let folders: Vec<PathBuf> = [called, lies, active].into_iter().flatten().collect();
    folders
        .iter()
        .flat_map(|folder| [folder.join("python"), folder.join("python3")])
        .find(|path| path.is_file())
        .ok_or_else(|| {
            let beside = folders.first().map_or("this program".into(), |folder| folder.display().to_string());
            format!("there is no Python in {beside}: install Penstock's wheel or checkout with pip, or name an interpreter with --python")
        })
}

/// `python -m module`. -P keeps the current folder, whatever lies in it, off the import path. No library sends telemetry: hf_xet
/// would report each download, and huggingface_hub what it runs on.
pub fn module(python: &Path, module: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-P", "-m", module]).env("HF_HUB_DISABLE_TELEMETRY", "1");
    command
}

/// The folder that `name`, the first word of the command line, stands for.
fn called_in(name: &Path, path: &[PathBuf]) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return std::path::absolute(name).ok()?.parent().map(Path::to_owned);
    }
    path.iter().find(|folder| folder.join(name).is_file()).cloned()
}

/// The folder of the package `penstock` that `python` imports.
pub fn package(python: &Path, environment: &Environment) -> Result<PathBuf, String> {
    let holds = |folder: &Path| folder.join("penstock").join("worker.py").is_file();
    let looked = environment.python_path.iter().find(|folder| holds(folder)).cloned();
    if let Some(folder) = looked.or_else(|| site_folders(python).into_iter().find(|folder| holds(folder))) {
        return Ok(folder.join("penstock"));
    }
    // An uncommon installation: ask.
    const ASK: &str = "import importlib.util as u; s = u.find_spec('penstock'); \
                       print(s.submodule_search_locations[0] if s else '')";
    let answer = Command::new(python)
        .args(["-c", ASK])
        .output()
        .map_err(|error| format!("{} does not start: {error}", python.display()))?;
    let folder = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    if folder.is_empty() {
        return Err(format!(
            "{} has no package `penstock`: install Penstock's wheel or checkout with pip, or name an interpreter with --python",
            python.display()
        ));
    }
    Ok(PathBuf::from(folder))
}

/// Where this interpreter's environment keeps packages, the folders that its `.pth` files add included
/// (that is how an editable installation works; https://docs.python.org/3/library/site.html).
fn site_folders(python: &Path) -> Vec<PathBuf> {
    let Some(prefix) = python.parent().and_then(Path::parent) else { return Vec::new() };
    let mut folders = Vec::new();
    for entry in prefix.join("lib").read_dir().into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with("python3") {
            continue;
        }
        for kind in ["site-packages", "dist-packages"] {
            let site = entry.path().join(kind);
            let links = site.read_dir().into_iter().flatten().flatten().map(|file| file.path());
            let links = links.filter(|path| path.extension().is_some_and(|extension| extension == "pth"));
            let added: Vec<PathBuf> = links
                .filter_map(|path| std::fs::read_to_string(path).ok())
                .flat_map(|text| text.lines().map(PathBuf::from).collect::<Vec<_>>())
                .filter(|path| path.is_absolute())
                .collect();
            folders.push(site);
            folders.extend(added);
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::environment::VisibleDevices;

    fn environment() -> Environment {
        Environment {
            argv0: None,
            executable: None,
            path: vec![],
            virtual_env: None,
            python_path: vec![],
            runtime_dir: std::env::temp_dir(),
            hf_api_token: None,
            secrets: vec![],
            devices: VisibleDevices::Unsaid,
            names_interface: false,
            stderr_is_terminal: false,
            stdout_is_terminal: false,
            no_color: false,
        }
    }

    fn touch(path: PathBuf) -> PathBuf {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        path
    }

    #[test]
    fn a_link_to_the_program_finds_the_python_beside_the_link() {
        let root = tempfile::tempdir().unwrap();
        let built = touch(root.path().join("target/debug/penstock"));
        let python = touch(root.path().join("venv/bin/python"));
        let link = root.path().join("venv/bin/penstock");
        symlink(&built, &link).unwrap();
        let called = Environment { argv0: Some(link), executable: Some(built.clone()), ..environment() };
        assert_eq!(find(None, &called), Ok(python.clone()));
        let by_path = Environment {
            argv0: Some("penstock".into()),
            executable: Some(built),
            path: vec![root.path().join("none"), root.path().join("venv/bin")],
            ..environment()
        };
        assert_eq!(find(None, &by_path), Ok(python));
    }

    #[test]
    fn without_a_python_beside_it_the_error_says_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let program = touch(root.path().join("bin/penstock"));
        let line = find(None, &Environment { argv0: Some(program), ..environment() }).unwrap_err();
        assert!(line.contains("--python"), "{line}");
    }

    #[test]
    fn the_package_is_found_in_site_packages_and_through_pth_files() {
        let root = tempfile::tempdir().unwrap();
        let python = touch(root.path().join("bin/python"));
        let site = root.path().join("lib/python3.11/site-packages");
        let source = touch(root.path().join("source/penstock/worker.py"));
        touch(site.join("penstock.pth"));
        std::fs::write(
            site.join("penstock.pth"),
            format!("import x\n{}\n", root.path().join("source").display()),
        )
        .unwrap();
        assert_eq!(package(&python, &environment()).unwrap(), source.parent().unwrap());
        let installed = touch(site.join("penstock/worker.py"));
        assert_eq!(package(&python, &environment()).unwrap(), installed.parent().unwrap());
    }
}
