//! What flags, machine and config.json contradict each other in, as far as that is certain without the model's
//! recipe: said before a process is started. Everything else the worker says. Called by `main`.

use std::path::Path;

use serde_json::{Map, Value};

use crate::flags::Cli;

/// More than any config.json has.
const LONGEST_CONFIG: u64 = 100 << 20;
/// What the device files of GPUs that torch calls cuda begin with: NVIDIA's drivers, Tegra's, WSL's, AMD's.
const GPU_DEVICES: [&str; 6] = ["nvidia", "nvhost", "nvgpu", "nvmap", "dxg", "kfd"];

/// Refuses `--device cuda` on a machine without any. `devices` is /dev.
pub fn check_device(device: Option<&str>, devices: &Path) -> Result<(), String> {
    let Some(device) = device.filter(|device| device.starts_with("cuda")) else { return Ok(()) };
    let Ok(entries) = devices.read_dir() else { return Ok(()) };
    let is_gpu = |name: &str| GPU_DEVICES.iter().any(|device| name.starts_with(device));
    if entries.flatten().any(|entry| is_gpu(&entry.file_name().to_string_lossy())) {
        return Ok(());
    }
    Err(format!(
        "--device: there is no {device} on this machine: /dev has no file of a GPU's (a container is given them by \
         `docker run --gpus all`); --device cpu serves without one"
    ))
}

/// Refuses what the model in `folder` cannot be divided into, or has no positions for.
pub fn check_model(folder: &Path, cli: &Cli, num_shard: u32) -> Result<(), String> {
    config(folder).map_or(Ok(()), |config| check_config(&config, cli, num_shard))
}

/// `model_type` of the model in `folder`.
pub fn model_type(folder: &Path) -> Option<String> {
    Some(config(folder)?.get("model_type")?.as_str()?.to_owned())
}

/// None: the worker says what is wrong with it.
fn config(folder: &Path) -> Option<Map<String, Value>> {
    let file = folder.join("config.json");
    let small = file.metadata().is_ok_and(|found| found.is_file() && found.len() <= LONGEST_CONFIG);
    let text = small.then(|| std::fs::read(&file).ok()).flatten()?;
    serde_json::from_slice(&text).ok()
}

fn check_config(config: &Map<String, Value>, cli: &Cli, num_shard: u32) -> Result<(), String> {
    // Of models that read images, too, the part that reads text.
    let text = config.get("text_config").and_then(Value::as_object).unwrap_or(config);
    let number =
        |names: &[&str]| names.iter().find_map(|name| Some((name.to_string(), text.get(*name)?.as_u64()?)));

    if let Some((name, heads)) = number(&["num_attention_heads", "n_head", "n_heads", "num_heads"])
        && !heads.is_multiple_of(num_shard.into())
    {
        return Err(format!("--num-shard {num_shard} does not divide the attention heads ({name} {heads})"));
    }
    let stages = cli.worker.pipeline_parallel;
    if let Some((_, layers)) = number(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])
        && layers < u64::from(stages)
    {
        return Err(format!("--pipeline-parallel {stages} is more than the model's layers ({layers})"));
    }
    let Some((_, positions)) = number(&["max_position_embeddings"]).filter(|_| !may_go_on(text)) else {
        return Ok(());
    };
    let (input, total) = (cli.router.max_input_tokens, cli.router.max_total_tokens);
    match (input, total) {
        (_, Some(total)) if u64::from(total) > positions => Err(format!(
            "--max-total-tokens {total} is more than the {positions} positions this model was made for"
        )),
        (Some(input), None) if u64::from(input) >= positions => Err(format!(
            "--max-input-tokens {input} must be less than the {positions} positions this model was made for"
        )),
        _ => Ok(()),
    }
}

/// Whether a sequence may perhaps have more positions than `max_position_embeddings`: they are scaled, or are told
/// apart by linear biases, or input and output have their own, or another field has them (Command R's `model_max_length`).
fn may_go_on(config: &Map<String, Value>) -> bool {
    let plain = |value: &Value| match value {
        Value::Null => true,
        Value::Object(rope) => {
            let kind = rope.get("rope_type").or_else(|| rope.get("type"));
            kind.is_none_or(|kind| kind == "default") && !rope.values().any(Value::is_object)
        }
        _ => false,
    };
    let scaled = ["rope_scaling", "rope_parameters"].iter().filter_map(|name| config.get(*name));
    let yes = |name: &str| config.get(name).is_some_and(|value| *value != Value::Bool(false));
    !scaled.into_iter().all(plain) || yes("alibi") || yes("is_encoder_decoder") || yes("model_max_length")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use serde_json::json;

    use super::*;
    use crate::flags;

    fn checked(config: Value, flags: &str, num_shard: u32) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let words = std::iter::once("penstock").chain(flags.split_whitespace()).map(OsString::from);
        check_model(folder.path(), &flags::parse(words).unwrap().0, num_shard)
    }

    #[test]
    fn what_config_json_rules_out_is_said_with_the_flag_and_both_numbers() {
        let llama =
            json!({"num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 2048});
        for (flags, num_shard, says) in [
            ("--num-shard 3", 3, "--num-shard 3 does not divide the attention heads (num_attention_heads 4)"),
            ("--pipeline-parallel 100", 1, "--pipeline-parallel 100 is more than the model's layers (2)"),
            (
                "--max-total-tokens 999999",
                1,
                "--max-total-tokens 999999 is more than the 2048 positions this model was made for",
            ),
            (
                "--max-input-tokens 2048",
                1,
                "--max-input-tokens 2048 must be less than the 2048 positions this model was made for",
            ),
        ] {
            assert_eq!(checked(llama.clone(), flags, num_shard), Err(says.to_owned()));
            assert_eq!(checked(json!({"text_config": llama}), flags, num_shard), Err(says.to_owned()));
        }
        assert_eq!(checked(llama, "--pipeline-parallel 2 --max-total-tokens 2048", 4), Ok(()));
    }

    #[test]
    fn what_is_not_certain_is_left_to_the_worker() {
        for config in [
            json!([]),
            json!({}),
            json!({"max_position_embeddings": "many", "num_attention_heads": -4}),
            json!({"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 8}}),
            json!({"max_position_embeddings": 2048, "rope_parameters": {"full": {"rope_type": "yarn"}}}),
            json!({"max_position_embeddings": 2048, "alibi": true}),
            json!({"max_position_embeddings": 2048, "is_encoder_decoder": true}),
            json!({"max_position_embeddings": 2048, "model_max_length": 4096}),
        ] {
            assert_eq!(checked(config.clone(), "--max-total-tokens 999999", 3), Ok(()), "{config}");
        }
    }

    #[test]
    fn a_machine_without_a_gpu_is_known_by_its_devices() {
        let devices = tempfile::tempdir().unwrap();
        let line = check_device(Some("cuda:1"), devices.path()).unwrap_err();
        assert!(
            line.starts_with("--device: there is no cuda:1 on this machine") && line.contains("--gpus all"),
            "{line}"
        );
        for device in [None, Some("cpu")] {
            assert_eq!(check_device(device, devices.path()), Ok(()));
        }
        std::fs::write(devices.path().join("nvidiactl"), "").unwrap();
        assert_eq!(check_device(Some("cuda"), devices.path()), Ok(()));
        assert_eq!(check_device(Some("cuda"), Path::new("/no/such/dev")), Ok(()));
    }
}
