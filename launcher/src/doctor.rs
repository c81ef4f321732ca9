//! `penstock doctor`: says what would become of a model on this machine, and serves nothing. Finds the Python
//! that would run the workers and turns into `python -m penstock.doctor`, whose output and exit code it has. What
//! only the router can judge, chat templates among it, that asks this program in turn (`PROMPT_FILES`).

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use penstock_router::config::parse_fraction;

use crate::environment::Environment;
use crate::flags::{self, ModelArgs, Refusal, WorkerArgs};
use crate::shards::Rendezvous;
use crate::{python, report, runtime, shards};

#[derive(Parser, Clone, Debug)]
#[command(
    name = "penstock doctor",
    bin_name = "penstock doctor",
    about = "Says what would become of a model: its architecture, memory, what is missing, what would go wrong",
    after_help = "Reads configuration files and the headers of the weights, nothing large. \
                  Exit code 0: it would be served. 1: it would not.",
    next_help_heading = "Other"
)]
struct Doctor {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    /// Share of the device's memory that a worker may take
    #[arg(
        long,
        env = "CUDA_MEMORY_FRACTION",
        visible_alias = "cuda-memory-fraction",
        default_value_t = 0.9,
        value_parser = parse_fraction
    )]
    memory_fraction: f32,
    /// Each operation of the program that the CPU engine would run, as well
    #[arg(long)]
    program: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// The word for `prompt_files`, which is for the doctor and not for people.
pub const PROMPT_FILES: &str = "prompt-files";

/// Prints what is wrong with the tokenizer.json and the chat templates of a folder: a JSON list of lines.
pub fn prompt_files(folder: Option<OsString>) -> ExitCode {
    let Some(folder) = folder else {
        eprintln!("{PROMPT_FILES}: the folder is missing");
        return ExitCode::from(2);
    };
    println!("{}", serde_json::Value::from(penstock_core::prompt::problems_of_files(Path::new(&folder))));
    ExitCode::SUCCESS
}

/// Does not return when all is well: this process becomes Python's.
pub fn run(arguments: impl Iterator<Item = OsString>, environment: &Environment) -> ExitCode {
    let outcome = parse(arguments).and_then(|doctor| {
        let interpreter =
            python::find(doctor.worker.python.as_deref(), environment).map_err(Refusal::Flag)?;
        let counting = shards::count(&doctor.worker, &environment.devices, report::gpus());
        let counted = runtime().and_then(|runtime| runtime.block_on(counting));
        let (num_shard, _) = counted.map_err(Refusal::Flag)?;
        let mut command = python::module(&interpreter, "penstock.doctor");
        command.args(doctor.arguments(num_shard));
        for secret in environment.secrets_beside_the_hubs() {
            command.env_remove(secret);
        }
        if let Ok(launcher) = std::env::current_exe() {
            command.arg("--launcher").arg(launcher);
        }
        if let Some(token) = &environment.hf_api_token {
            command.env("HF_TOKEN", token);
        }
        let error = command.exec();
        Err::<(), _>(Refusal::Flag(format!("{} cannot be run: {error}", interpreter.display())))
    });
    outcome.map_or_else(|refusal| ExitCode::from(refusal.report()), |()| ExitCode::SUCCESS)
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Doctor, Refusal> {
    let command = flags::lenient_environment(Doctor::command())?;
    let matches = flags::matches(&command, &arguments.collect::<Vec<_>>())?;
    let doctor: Doctor = Doctor::from_arg_matches(&matches)
        .map_err(|error| Refusal::Clap(error.format(&mut command.clone())))?;
    flags::check_model_and_workers(&doctor.model, &doctor.worker).map_err(Refusal::Flag)?;
    Ok(doctor)
}

impl Doctor {
    /// What `penstock.doctor` is called with. `num_shard`: given or counted.
    fn arguments(&self, num_shard: u32) -> Vec<OsString> {
        let (model, worker) = (&self.model, &self.worker);
        let several =
            |count: u32| Some(count).filter(|count| *count > 1).map(|count| count.to_string().into());
        let optional: [(&str, Option<OsString>); 14] = [
            ("--model-id", model.model_id.as_ref().map(OsString::from)),
            ("--revision", model.revision.as_ref().map(OsString::from)),
            ("--speculate-model", model.speculate_model.as_ref().map(OsString::from)),
            ("--speculate-model-revision", model.speculate_model_revision.as_ref().map(OsString::from)),
            ("--cache-dir", model.huggingface_hub_cache.as_ref().map(OsString::from)),
            ("--folder", model.weights_cache_override.as_ref().map(OsString::from)),
            ("--dtype", worker.dtype.map(|dtype| dtype.name().into())),
            ("--quantize", worker.quantize.as_deref().and_then(flags::quantization_name).map(OsString::from)),
            (
                "--kv-cache-dtype",
                worker.kv_cache_dtype.as_deref().and_then(flags::cache_dtype_name).map(OsString::from),
            ),
            ("--device", worker.device.as_ref().map(OsString::from)),
            ("--num-shard", several(num_shard)),
            ("--pipeline-parallel", several(worker.pipeline_parallel)),
            ("--model-impl", worker.model_impl.map(|wanted| wanted.name().into())),
            ("--memory-fraction", Some(self.memory_fraction.to_string().into())),
        ];
        let switches = [
            ("--quantize-head", worker.quantize_head),
            ("--trust-remote-code", model.trust_remote_code),
            ("--deterministic", worker.deterministic),
            ("--meets-elsewhere", Rendezvous::of(worker) != Rendezvous::Folder),
            ("--program", self.program),
            ("--json", self.json),
        ];
        let given = optional.into_iter().filter_map(|(flag, value)| Some([flag.into(), value?])).flatten();
        let (adapters, _) = model.adapters().unwrap_or_default(); // what is wrong with them was said
        let adapters = adapters.into_iter().flat_map(|one| ["--lora-adapters".into(), one.for_doctor()]);
        let on = switches.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.into());
        given.chain(adapters).chain(on).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Vec<OsString> {
        let doctor = parse(line.split_whitespace().map(OsString::from)).unwrap();
        doctor.arguments(doctor.worker.num_shard.unwrap_or(1))
    }

    #[test]
    fn what_was_asked_is_passed_on() {
        Doctor::command().debug_assert();
        assert_eq!(
            arguments(
                "doctor --model-id a/b --num-shard 2 --pipeline-parallel 3 --model-impl penstock --dtype bfloat16 \
                 --quantize eetq --kv-cache-dtype fp8 --quantize-head --trust-remote-code --program \
                 --json"
            ),
            [
                "--model-id",
                "a/b",
                "--dtype",
                "bfloat16",
                "--quantize",
                "int8",
                "--kv-cache-dtype",
                "fp8_e4m3fn",
                "--num-shard",
                "2",
                "--pipeline-parallel",
                "3",
                "--model-impl",
                "penstock",
                "--memory-fraction",
                "0.9",
                "--quantize-head",
                "--trust-remote-code",
                "--program",
                "--json"
            ]
        );
        assert_eq!(arguments("doctor"), ["--memory-fraction", "0.9"]);
        let counted = parse(["doctor".into()].into_iter()).unwrap().arguments(4);
        assert_eq!(counted, ["--num-shard", "4", "--memory-fraction", "0.9"]);
        let exact = arguments("doctor --deterministic --master-port 29500");
        assert_eq!(exact, ["--memory-fraction", "0.9", "--deterministic", "--meets-elsewhere"]);
        let drafting = arguments("doctor --speculate-model c/d --speculate-model-revision main");
        assert_eq!(drafting[..4], ["--speculate-model", "c/d", "--speculate-model-revision", "main"]);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
        let named = format!("mine={}", folder.path().display());
        let adapted = arguments(&format!("doctor --lora-adapters {named},a/b@main"));
        assert_eq!(adapted[2..], ["--lora-adapters", &named, "--lora-adapters", "a/b"]);
    }

    #[test]
    fn a_flag_of_the_server_only_is_left_to_clap() {
        let refused = parse(["doctor", "--port", "80"].into_iter().map(OsString::from));
        assert!(matches!(refused, Err(Refusal::Clap(_))));
    }

    #[test]
    fn a_share_of_memory_is_one_that_the_server_takes() {
        for share in ["0", "5", "nan"] {
            let refused = parse(["doctor", "--memory-fraction", share].into_iter().map(OsString::from));
            assert!(matches!(refused, Err(Refusal::Clap(_))), "{share}");
        }
    }

    #[test]
    fn combinations_that_the_server_refuses_are_refused() {
        for line in ["doctor --num-shard 2 --sharded false", "doctor --revision main"] {
            let refused = parse(line.split_whitespace().map(OsString::from));
            assert!(matches!(refused, Err(Refusal::Flag(_))), "{line}");
        }
    }
}
