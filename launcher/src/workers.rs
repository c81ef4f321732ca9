//! The group of worker processes: one per shard, started, watched and replaced here. The scheduler asks for
//! a fresh group through `WorkerSource`; whether and when it gets one is `backoff`'s to say.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use penstock_router::worker::source::{GiveUp, Loss, WorkerSource};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::Mutex;
use tracing::{debug, info, warn};

use crate::backoff::{End, Record, Verdict};
use crate::child::{Exit, Watched};
use crate::nursery::Nursery;
use crate::sockets::SocketFolder;

/// How often a starting worker's socket is tried. A try is one system call.
const SOCKET_POLL: Duration = Duration::from_millis(3);
/// A sign of life while a large model loads.
const STILL_LOADING: Duration = Duration::from_secs(15);
/// A killed process ends at once, unless the kernel itself is stuck in it (a driver, a dead disk).
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// What is the same for every worker of this run.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    pub python: PathBuf,
    /// All arguments but `--socket`, `--rank` and `--world-size`.
    pub arguments: Vec<OsString>,
    pub world_size: u32,
}

pub struct Workers {
    command: WorkerCommand,
    nursery: Nursery,
    sockets: SocketFolder,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    group: Option<Group>,
    /// Groups started so far; part of the sockets' names, so that none is used twice.
    groups: u32,
    record: Record,
}

struct Group {
    ranks: Vec<Rank>,
    started: Instant,
    answered: Option<Instant>,
}

struct Rank {
    number: u32,
    socket: PathBuf,
    process: Watched,
}

impl Workers {
    /// Starts the first group at once, so that it loads while the router gets ready.
    pub async fn start(
        command: WorkerCommand,
        nursery: Nursery,
        sockets: SocketFolder,
    ) -> Result<Self, String> {
        let workers = Self { command, nursery, sockets, state: Mutex::default() };
        let mut state = workers.state.lock().await;
        workers.start_group(&mut state).await.map_err(|error| workers.cannot_start(&error))?;
        drop(state);
        Ok(workers)
    }

    /// Ends every worker and takes the sockets away.
    pub async fn end(&self) {
        let mut state = self.state.lock().await;
        if let Some(group) = state.group.take() {
            group.end().await;
        }
    }

    async fn start_group(&self, state: &mut State) -> std::io::Result<()> {
        state.groups += 1;
        let started = Instant::now();
        let mut ranks = Vec::new();
        for number in 0..self.command.world_size {
            let socket = self.sockets.path().join(format!("{}-{number}.sock", state.groups));
            let mut command = Command::new(&self.command.python);
            // -P keeps the current folder, whatever lies in it, off the import path.
            command.args(["-P", "-m", "penstock.worker"]).args(&self.command.arguments);
            command.arg("--socket").arg(&socket);
            command.args([
                "--rank",
                &number.to_string(),
                "--world-size",
                &self.command.world_size.to_string(),
            ]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // A worker reads local files only; it gets no secrets that it does not need.
            for secret in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"] {
                command.env_remove(secret);
            }
            let process = Watched::new(self.nursery.start(command).await?)?;
            ranks.push(Rank { number, socket, process });
        }
        state.group = Some(Group { ranks, started, answered: None });
        Ok(())
    }

    fn cannot_start(&self, error: &std::io::Error) -> String {
        format!("the worker {} cannot be started: {error}", self.command.python.display())
    }
}

impl Group {
    /// Waits until every rank takes connections, which it does once its part of the model is loaded.
    async fn answers(&mut self) -> Result<(), (u32, Exit)> {
        let mut next_sign = Instant::now() + STILL_LOADING;
        for rank in &self.ranks {
            while UnixStream::connect(&rank.socket).await.is_err() {
                for other in &self.ranks {
                    if let Some(exit) = other.process.exited() {
                        return Err((other.number, exit));
                    }
                }
                if Instant::now() >= next_sign {
                    info!("still loading after {:.0} s", self.started.elapsed().as_secs_f64());
                    next_sign += STILL_LOADING;
                }
                tokio::time::sleep(SOCKET_POLL).await;
            }
        }
        self.answered = Some(Instant::now());
        Ok(())
    }

    /// Kills what is left and waits until it is gone. Returns the rank that had ended by itself, if any.
    async fn end(self) -> Option<(u32, Exit)> {
        // A worker whose stream has just broken may not have been reaped yet.
        let mut first = None;
        for rank in &self.ranks {
            if let Ok(exit) = tokio::time::timeout(Duration::from_millis(30), rank.process.exit()).await {
                first = Some((rank.number, exit));
                break;
            }
        }
        for rank in &self.ranks {
            rank.process.kill();
        }
        for rank in &self.ranks {
            if tokio::time::timeout(KILL_DEADLINE, rank.process.exit()).await.is_err() {
                warn!(
                    "worker {} (pid {}) does not die; going on without it",
                    rank.number,
                    rank.process.pid()
                );
            }
            let _ = std::fs::remove_file(&rank.socket);
        }
        first
    }
}

#[async_trait]
impl WorkerSource for Workers {
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<PathBuf>, GiveUp> {
        let mut state = self.state.lock().await;
        if let Some(loss) = lost {
            let lived = state.group.as_ref().and_then(|group| group.answered).map(|at| at.elapsed());
            // Left over is nothing when the last call was dropped half way.
            if let Some(group) = state.group.take() {
                match group.end().await {
                    Some((rank, exit)) => warn!("{loss}; worker {rank} {}", exit.describe()),
                    None => warn!("{loss}; its process was ended"),
                }
            }
            if let Verdict::StartAfter(delay) = state.record.judge(End::After(lived.unwrap_or_default())) {
                pause(delay).await;
            }
        }
        loop {
            if state.group.is_none() {
                info!("starting the workers again");
                self.start_group(&mut state).await.map_err(|error| GiveUp(self.cannot_start(&error)))?;
            }
            let Some(group) = state.group.as_mut() else { continue };
            let (rank, exit) = match group.answers().await {
                Ok(()) => {
                    debug!("every worker answers after {:.2} s", group.started.elapsed().as_secs_f64());
                    return Ok(group.ranks.iter().map(|rank| rank.socket.clone()).collect());
                }
                Err(early) => early,
            };
            if let Some(group) = state.group.take() {
                group.end().await;
            }
            match state.record.judge(End::AtStart { explained: exit.explained() }) {
                Verdict::StartAfter(delay) => {
                    warn!("worker {rank} {} before it was ready", exit.describe());
                    pause(delay).await;
                }
                Verdict::GiveUp { starts: 1 } => return Err(GiveUp(exit.reason())),
                Verdict::GiveUp { starts } => {
                    return Err(GiveUp(format!(
                        "worker {rank} failed to start {starts} times in a row: {}",
                        exit.reason()
                    )));
                }
            }
        }
    }
}

async fn pause(delay: Duration) {
    if !delay.is_zero() {
        info!("waiting {:.1} s before the next start", delay.as_secs_f64());
        tokio::time::sleep(delay).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    use std::sync::Arc;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use tempfile::TempDir;

    use super::*;

    /// Stands in for the interpreter: takes a worker's arguments and behaves as the file `how` beside it
    /// says. Writes the process id to the file `pid` once it listens.
    const STAND_IN: &str = r#"#!/usr/bin/env python3
import json, os, pathlib, signal, socket, sys, time
here = pathlib.Path(sys.argv[0]).parent
how = (here / "how").read_text()
with open(here / "starts", "a") as starts:
    starts.write("x")
if how == "explains":
    print(json.dumps({"level": "ERROR", "message": "no such dtype", "fatal": True}), file=sys.stderr)
    sys.exit(1)
if how == "raises":
    sys.exit("SomeError: by surprise")
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[sys.argv.index("--socket") + 1])
listener.listen()
(here / "pid.new").write_text(str(os.getpid()))
os.rename(here / "pid.new", here / "pid")
print("x" * 300_000)
time.sleep(600)
"#;

    struct Bench {
        folder: TempDir,
    }

    impl Bench {
        fn new(how: &str) -> Self {
            let bench = Self { folder: tempfile::tempdir().unwrap() };
            bench.behave(how);
            let mut file = std::fs::OpenOptions::new();
            let mut file = file.create(true).write(true).mode(0o755).open(bench.path("python")).unwrap();
            std::io::Write::write_all(&mut file, STAND_IN.as_bytes()).unwrap();
            bench
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn behave(&self, how: &str) {
            std::fs::write(self.path("how"), how).unwrap();
        }

        async fn start(&self) -> Workers {
            let command = WorkerCommand {
                python: self.path("python"),
                arguments: vec!["--model-dir".into()],
                world_size: 1,
            };
            let sockets = SocketFolder::make(self.folder.path()).unwrap();
            Workers::start(command, Nursery::open().unwrap(), sockets).await.unwrap()
        }

        fn pid(&self) -> Pid {
            Pid::from_raw(std::fs::read_to_string(self.path("pid")).unwrap().parse().unwrap())
        }

        fn starts(&self) -> usize {
            std::fs::read_to_string(self.path("starts")).unwrap().len()
        }
    }

    /// Gone, or a zombie that only waits to be reaped.
    fn is_dead(pid: Pid) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
        })
    }

    async fn ready(bench: &Bench, workers: &Workers, lost: Option<&Loss>) -> (Pid, PathBuf) {
        let _ = std::fs::remove_file(bench.path("pid"));
        let sockets = workers.fresh(lost).await.unwrap();
        let [socket] = <[PathBuf; 1]>::try_from(sockets).unwrap();
        // It answers a moment before it writes its number.
        while !bench.path("pid").exists() {
            tokio::task::yield_now().await;
        }
        (bench.pid(), socket)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_killed_and_a_stopped_worker_are_replaced_and_nothing_of_them_is_left() {
        let bench = Bench::new("serves");
        let workers = bench.start().await;
        let (mut pid, mut socket) = ready(&bench, &workers, None).await;
        for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
            kill(pid, signal).unwrap();
            let loss = Loss::Died("its stream broke".into());
            let (new_pid, new_socket) = ready(&bench, &workers, Some(&loss)).await;
            assert!(is_dead(pid) && new_pid != pid);
            assert!(!socket.exists() && new_socket != socket);
            (pid, socket) = (new_pid, new_socket);
        }
        let folder = socket.parent().unwrap().to_owned();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        workers.end().await;
        assert!(is_dead(pid));
        drop(workers);
        assert!(!folder.exists());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_that_says_why_it_cannot_start_is_not_tried_again() {
        let bench = Bench::new("explains");
        let gave_up = bench.start().await.fresh(None).await.unwrap_err();
        assert_eq!(gave_up.to_string(), "no such dtype");
        assert_eq!(bench.starts(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_that_dies_at_start_is_tried_again_and_given_up_with_the_reason() {
        for (how, reason) in [("raises", "SomeError: by surprise"), ("killed", "SIGKILL")] {
            let bench = Bench::new(how);
            let gave_up = bench.start().await.fresh(None).await.unwrap_err().to_string();
            assert!(gave_up.contains(reason) && gave_up.contains("3 times"), "{gave_up}");
            assert_eq!(bench.starts(), 3);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_start_that_fails_after_a_loss_is_tried_again() {
        let bench = Bench::new("serves");
        let workers = Arc::new(bench.start().await);
        let (pid, _) = ready(&bench, &workers, None).await;
        bench.behave("killed");
        kill(pid, Signal::SIGKILL).unwrap();
        let waiting = tokio::spawn({
            let workers = workers.clone();
            async move { workers.fresh(Some(&Loss::Hung("no answer".into()))).await }
        });
        while bench.starts() < 3 {
            tokio::task::yield_now().await;
        }
        bench.behave("serves");
        assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
    }
}
