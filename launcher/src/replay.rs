//! `penstock replay`: executes a record (`--record`) again and says whether all came out as it was. Starts nothing: without workers a
//! mock follows the record and checks its plans; with `--worker` the results of workers that run already are compared.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use async_trait::async_trait;
use clap::Parser;
use penstock_core::worker::endpoint::Address;
use penstock_core::worker::replay::replay;
use penstock_core::worker::{Endpoint, GiveUp, Loss, WorkerSource};

use crate::remote::WorkerTlsArgs;

#[derive(Parser, Clone, Debug)]
#[command(
    name = "penstock replay",
    bin_name = "penstock replay",
    about = "Executes again what `--record` has recorded, and names the first difference",
    after_help = "Exit code 0: all came out as it was. 1: it did not, or could not be executed."
)]
struct Replay {
    /// The record
    file: PathBuf,
    /// A worker that holds the recorded model: unix:PATH, tcp:HOST:PORT or tls:HOST:PORT; for several ranks repeated,
    /// rank 0 first [default: none; a mock checks the plans]
    #[arg(long)]
    worker: Vec<Address>,
    #[command(flatten)]
    tls: WorkerTlsArgs,
}

/// Workers that run already, and are not replaced.
struct Running(Vec<Endpoint>);

#[async_trait]
impl WorkerSource for Running {
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<Endpoint>, GiveUp> {
        match lost {
            None => Ok(self.0.clone()),
            Some(loss) => Err(GiveUp(loss.to_string())),
        }
    }
}

pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Replay { file, worker, tls } = match Replay::try_parse_from(arguments) {
        Ok(asked) => asked,
        // Prints help or what is wrong, with clap's exit code.
        Err(error) => error.exit(),
    };
    let running = match tls.endpoints("--worker", &worker) {
        Ok(endpoints) if endpoints.is_empty() => None,
        Ok(endpoints) => Some(Running(endpoints)),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the system gives no threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let source = running.as_ref().map(|running| running as &dyn WorkerSource);
    match runtime.block_on(replay(&file, source)) {
        Ok(report) => {
            let outcome = if source.is_none() { "every plan is right" } else { "every result is the same" };
            println!("{outcome}. {report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}: {error}", file.display());
            ExitCode::FAILURE
        }
    }
}
