//! Which models read images. Only their text is served, so that an image which a request has in its text must not pass for seen.

use std::path::Path;

use serde_json::Value;

/// Parts of a config.json that say it: `READ["images"]` of `server/penstock/models/architectures.py`, by which the worker tells what
/// it leaves out.
const PARTS: [&str; 8] = [
    "vision_config",
    "embd_layer",
    "vq_config",
    "image_size",
    "vit_config",
    "mm_vision_tower",
    "visual_tokenizer_config",
    "vision_encoder_config",
];

/// Whether the model in `dir` does. Of one whose config.json cannot be read the worker says so.
pub fn are_left_out(dir: &Path) -> bool {
    let config = std::fs::read(dir.join("config.json")).ok();
    let config: Option<Value> = config.and_then(|config| serde_json::from_slice(&config).ok());
    config.is_some_and(|config| {
        // Of Qwen-Omni.
        let thinker = &config["thinker_config"];
        let config = if thinker.is_object() { thinker } else { &config };
        PARTS.iter().any(|part| !config[*part].is_null())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_json_says_it() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!are_left_out(folder.path()));
        for (config, reads) in [
            (r#"{"model_type": "llama"}"#, false),
            (r#"{"model_type": "llava_next", "vision_config": {"model_type": "clip"}}"#, true),
            (r#"{"model_type": "gemma3", "vision_config": null}"#, false),
            (r#"{"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": {}}}"#, true),
            ("[", false),
        ] {
            std::fs::write(folder.path().join("config.json"), config).expect("written");
            assert_eq!(are_left_out(folder.path()), reads, "{config}");
        }
    }

    #[test]
    fn the_worker_goes_by_the_same_parts() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/penstock/models/architectures.py");
        let code = std::fs::read_to_string(file).expect("it is there");
        let (_, after) = code.split_once("    \"images\": (").expect("a list");
        let (list, _) = after.split_once("    \"sound\"").expect("another list");
        let parts: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(parts, PARTS);
    }
}
