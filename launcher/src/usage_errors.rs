//! What clap cannot say of a command line that it refuses: what another server's flag is called here, which variable of the environment
//! has the wrong value, and in plain words what a value has to be. Called by all that parse flags.

use std::ffi::OsString;

use clap::Command;
use clap::builder::{Resettable, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of vLLM, SGLang and llama.cpp by which people begin, and what is here in their place. docs/from-others.md has the same as a table.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (
        &["--model", "--model-path", "--hf-repo", "-m"],
        "a model is named by --model-id: a folder with safetensors files, or owner/name",
    ),
    (&["--served-model-name", "--alias"], "leave it out: a request may name the model as it likes"),
    (&["--host"], "it is --hostname here"),
    (&["--max-model-len", "--context-length", "--ctx-size", "-c"], "it is --max-total-tokens here"),
    (&["--tensor-parallel-size", "--tp-size", "--tp"], "it is --num-shard here"),
    (&["--pipeline-parallel-size", "--pp-size"], "it is --pipeline-parallel here"),
    (&["--gpu-memory-utilization", "--mem-fraction-static"], "it is --memory-fraction here"),
    (
        &["--max-num-seqs", "--max-running-requests", "--parallel"],
        "it is --max-batch-size here; --max-concurrent-requests bounds who waits as well",
    ),
    (
        &["--max-num-batched-tokens", "--chunked-prefill-size", "--batch-size"],
        "it is --max-batch-prefill-tokens here",
    ),
    (&["--quantization"], "it is --quantize here; a checkpoint says itself how it is quantized"),
    (&["--cache-type-k", "--cache-type-v"], "it is --kv-cache-dtype here, for keys and values alike"),
    (&["--threads"], "it is --worker-threads here"),
    (&["--n-gpu-layers", "--gpu-layers"], "a model is on one device as a whole: --device"),
    (&["--download-dir"], "it is --huggingface-hub-cache here"),
    (
        &["--chat-template", "--chat-template-file"],
        "--tokenizer-config-path names a file whose `chat_template` is used",
    ),
    (
        &["--enable-auto-tool-choice", "--jinja"],
        "leave it out: tools are called as the chat template says, or --tool-call-parser",
    ),
    (&["--enable-prefix-caching", "--enable-chunked-prefill"], "leave it out: it is always on"),
    (
        &["--speculative-config", "--num-speculative-tokens", "--draft-max"],
        "it is --speculate here, with --speculate-model for a draft model",
    ),
    (&["--model-draft"], "it is --speculate-model here"),
    (&["--ssl-certfile", "--ssl-cert-file"], "it is --tls-cert here"),
    (&["--ssl-keyfile", "--ssl-key-file"], "it is --tls-key here"),
    (&["--allowed-origins"], "it is --cors-allow-origin here"),
    (
        &["--enable-lora", "--lora-modules", "--lora-paths", "--lora"],
        "adapters are named by --lora-adapters: owner/name on the hub, or NAME=FOLDER, with commas between",
    ),
];

/// Words of Rust's standard library and of clap, and what they mean.
const PLAINER: [(&str, &str); 6] = [
    ("invalid digit found in string", "must be a whole number"),
    ("cannot parse integer from empty string", "must be a whole number"),
    ("number too large to fit in target type", "is too large"),
    ("number too small to fit in target type", "is too small"),
    ("invalid float literal", "must be a number"),
    ("value was not a boolean", "must be true or false"),
];

/// The error of `command` for these arguments, with what else may help.
pub fn explained(mut error: clap::Error, command: &Command, arguments: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return error };
    let tips = match error.kind() {
        ErrorKind::UnknownArgument => of_word(given, command),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            of_variable(&error, given, command, arguments).into_iter().collect()
        }
        _ => Vec::new(),
    };
    if !tips.is_empty() {
        // What clap takes for similar, and how it would be used.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Usage);
        let tips = tips.into_iter().map(StyledStr::from).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// Its text in place of clap's, where that has words of the standard library.
pub fn plainer(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::ValueValidation {
        return None;
    }
    let text = error.render().to_string();
    let (theirs, ours) = PLAINER.iter().find(|(theirs, _)| text.contains(theirs))?;
    Some(text.replace(theirs, ours))
}

/// Of a flag that is not there, or a word that is none.
fn of_word(word: &str, command: &Command) -> Vec<String> {
    if word.starts_with('-') {
        let known = ELSEWHERE.iter().find(|(names, _)| names.contains(&word));
        return known
            .filter(|(_, tip)| has_all(command, tip))
            .map(|(_, tip)| (*tip).to_owned())
            .into_iter()
            .collect();
    }
    if ["true", "false"].contains(&word) {
        return vec![format!("a switch takes no value: leave {word} out, or set its variable")];
    }
    let model = format!("a model is named by --model-id {word}");
    match command.get_name() {
        "penstock" => vec![
            model,
            "beside `penstock`, which serves, there are `penstock doctor`, `penstock worker` and `penstock replay`".into(),
        ],
        _ => vec![model],
    }
}

/// Whether every flag that a tip names is one of the command's.
fn has_all(command: &Command, tip: &str) -> bool {
    let words = tip.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let mut flags = words.filter_map(|word| word.strip_prefix("--"));
    flags.all(|flag| command.get_arguments().any(|argument| argument.get_long() == Some(flag)))
}

/// Of a value that no word of the command line has: which variable it is of. `shown`: the flag, as clap shows it.
fn of_variable(
    error: &clap::Error,
    shown: &str,
    command: &Command,
    arguments: &[OsString],
) -> Option<String> {
    let flag = shown.split_whitespace().next()?.strip_prefix("--")?;
    let variable = command.get_arguments().find(|argument| argument.get_long() == Some(flag))?.get_env()?;
    let alone = command.clone().mut_args(|argument| argument.env(Resettable::Reset));
    let again = alone.try_get_matches_from(arguments).err();
    let given =
        again.is_some_and(|again| again.get(ContextKind::InvalidArg) == error.get(ContextKind::InvalidArg));
    (!given).then(|| format!("the value is that of the environment variable {}", variable.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::flags::Cli;

    fn command() -> Command {
        Cli::command()
    }

    fn refused(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = command().try_get_matches_from(&words).expect_err(line);
        let error = explained(error, &command(), &words);
        plainer(&error).unwrap_or_else(|| error.render().to_string())
    }

    #[test]
    fn every_flag_that_is_named_in_place_of_anothers_is_there_and_the_other_is_not() {
        for (names, tip) in ELSEWHERE {
            assert!(has_all(&command(), tip), "{tip}");
            for name in *names {
                let long = name.strip_prefix("--");
                let ours = |argument: &clap::Arg| {
                    let aliases = argument.get_all_aliases().unwrap_or_default();
                    long.is_some_and(|long| argument.get_long() == Some(long) || aliases.contains(&long))
                };
                assert!(!command().get_arguments().any(ours), "{name}");
                assert!(refused(&format!("penstock {name}")).contains(tip), "{name}");
            }
        }
    }

    #[test]
    fn another_servers_flag_is_told_by_its_name_here_and_not_by_one_that_only_looks_like_it() {
        let said = refused("penstock --tensor-parallel-size 2");
        assert!(said.contains("--num-shard") && !said.contains("--tool-call-parser"), "{said}");
        assert!(refused("penstock --modelid a/b").contains("'--model-id'"));
        let plain = Command::new("penstock doctor");
        assert!(of_word("--max-model-len", &plain).is_empty(), "the doctor has no --max-total-tokens");
    }

    #[test]
    fn a_word_without_a_flag_is_taken_for_a_model_or_a_command() {
        let said = refused("penstock owner/name");
        assert!(said.contains("--model-id owner/name") && said.contains("`penstock doctor`"), "{said}");
        assert!(refused("penstock --trust-remote-code true").contains("leave true out"));
    }

    #[test]
    fn what_a_number_must_be_is_said_in_plain_words() {
        for (line, says) in [
            ("penstock --port many", "'--port <PORT>': must be a whole number"),
            ("penstock --speculate 1.5", "must be a whole number"),
            ("penstock --max-stop-sequences 99999999999999999999999", "is too large"),
        ] {
            assert!(refused(line).contains(says), "{line}: {}", refused(line));
        }
        assert!(refused("penstock --num-shard 0").contains("0 is not in 1..=1024"));
    }
}
