//! `--model-id` of an adapter alone, as TGI takes it: its base model is made available, and the worker merges the adapter into it while it reads the
//! weights. `python -m penstock.adapters.merging` makes a folder of both. Called by `model::obtain`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;
use tokio::process::Command;
use tracing::info;

use crate::adapters;
use crate::child_spawner::ChildSpawner;
use crate::environment::Environment;
use crate::flags::ModelArgs;
use crate::json_subprocess::{self, Ended};
use crate::model::{self, Model, Named, Wanted};
use crate::python;

/// Of adapter_config.json, what says which model the adapter is of.
#[derive(Deserialize)]
struct Base {
    base_model_name_or_path: Option<String>,
    revision: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Folder(PathBuf),
    Failed(String),
}

/// Whether there is an adapter in the folder, and no weights of a model beside it.
pub fn is_adapter_alone(folder: &Path) -> bool {
    let has = |name: &&str| folder.join(name).exists();
    has(&adapters::CONFIG) && !model::WEIGHTS.iter().chain(&model::PICKLED).any(has)
}

/// The flags of the base model: whose adapter this is the adapter says.
fn args_of_base(adapter: &Path, args: &ModelArgs) -> Result<ModelArgs, String> {
    let file = adapter.join(adapters::CONFIG);
    let said = File::open(&file).map_err(|error| error.to_string()).and_then(|opened| {
        serde_json::from_reader::<_, Base>(opened.take(model::LONGEST_JSON))
            .map_err(|error| error.to_string())
    });
    let said = said.map_err(|error| format!("{}: {error}", file.display()))?;
    let Some(base) = said.base_model_name_or_path.filter(|base| !base.is_empty()) else {
        return Err(format!("{}: base_model_name_or_path does not say whose adapter it is", file.display()));
    };
    if !Path::new(&base).is_dir() && !model::is_hub_id(&base) {
        return Err(format!(
            "{}: base_model_name_or_path is {base}, and there is no such folder here; write there where the base model is",
            file.display()
        ));
    }
    Ok(ModelArgs {
        model_id: Some(base),
        revision: said.revision,
        weights_cache_override: None,
        ..args.clone()
    })
}

/// Makes the adapter's base model available, and a folder of both. The error is one line for the user.
pub async fn obtain(
    adapter: Model,
    wanted: &Wanted<'_>,
    interpreter: &Path,
    spawner: &ChildSpawner,
    environment: &Environment,
    show_progress: bool,
) -> Result<Model, String> {
    let of_adapter = |line: String| format!("--model-id: {} is an adapter: {line}", adapter.id);
    let args = args_of_base(&adapter.folder, wanted.args).map_err(of_adapter)?;
    let base =
        Named::read(&args, wanted.weights).map_err(|line| of_adapter(line.replace("--model-id: ", "")))?;
    info!("{} is an adapter, and is merged into its base model, {}", adapter.id, base.id(&args));
    let wanted = Wanted { args: &args, ..*wanted };
    let base =
        Box::pin(model::obtain(base, &wanted, interpreter, spawner, environment, show_progress)).await?;

    let mut command = Command::from(python::module(interpreter, "penstock.adapters.merging"));
    command.arg(&adapter.folder).arg(&base.folder).stderr(Stdio::piped());
    for secret in &environment.secrets {
        command.env_remove(secret);
    }
    if let Some(cache) = &args.huggingface_hub_cache {
        command.arg("--cache-dir").arg(cache);
    }
    let folder = match json_subprocess::run(command, interpreter, spawner).await? {
        Ended::Answered(Outcome::Folder(folder)) => folder,
        Ended::Answered(Outcome::Failed(line)) => return Err(of_adapter(line)),
        Ended::Silent(why) => {
            return Err(of_adapter(format!("making a folder of it and its base model ended with {why}")));
        }
    };
    Ok(Model { folder, pipeline_tag: base.pipeline_tag, ..adapter })
}
