//! The group of worker processes: one per shard, started, watched and replaced here. The scheduler asks for
//! a fresh group through `WorkerSource`; whether and when it gets one is `restart_policy`'s to say.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use penstock_core::worker::Endpoint;
use penstock_core::worker::source::{GiveUp, Loss, WorkerSource, is_passing};
use tokio::process::Command;
use tokio::sync::Mutex;
use tracing::{debug, info, warn};

use crate::child::Watched;
use crate::child_spawner::ChildSpawner;
use crate::python;
use crate::restart_policy::{End, RestartDecision, RestartPolicy};
use crate::shards::Rendezvous;
use crate::sockets::SocketFolder;
use crate::worker_group::{Failure, Group, Rank, Start, StartTimeouts, WorkerEnd};

/// A process starts at once, unless its program is on a disk that does not answer.
const SPAWN_DEADLINE: Duration = Duration::from_secs(60);
/// Until a start is tried again for which the system had too little of something.
const PASSING: Duration = Duration::from_secs(1);

/// What is the same for every worker of this run.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    pub python: PathBuf,
    /// All arguments but `--listen`, `--rank`, `--world-size`, `--stages` and `--rendezvous`.
    pub arguments: Vec<OsString>,
    /// Processes, over all stages.
    pub world_size: u32,
    pub stages: u32,
    pub rendezvous: Rendezvous,
    /// The environment says by which network interface the ranks speak; else it is the loopback.
    pub names_interface: bool,
    /// Variables of the environment that hold secrets, which no worker needs.
    pub secrets: Vec<OsString>,
    /// How long a worker that loads may show no progress.
    pub load_timeout: Duration,
    /// Of the model's files.
    pub weight_bytes: u64,
}

pub struct Workers {
    command: WorkerCommand,
    spawner: ChildSpawner,
    state: Mutex<State>,
}

struct State {
    sockets: SocketFolder,
    group: Option<Group>,
    /// Groups started so far; part of the sockets' names, so that none is used twice.
    groups: u32,
    restarts: RestartPolicy,
    /// How long the slowest group took until it answered.
    slowest_start: Option<Duration>,
}

impl Workers {
    /// Starts the first group at once, so that it loads while the router gets ready.
    pub async fn start(
        command: WorkerCommand,
        spawner: ChildSpawner,
        sockets: SocketFolder,
    ) -> Result<Self, String> {
        let state = State {
            sockets,
            group: None,
            groups: 0,
            restarts: RestartPolicy::default(),
            slowest_start: None,
        };
        let workers = Self { command, spawner, state: Mutex::new(state) };
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
        if state.sockets.restore()? {
            warn!(
                "the folder of the workers' sockets was gone; now it is {}",
                state.sockets.path().display()
            );
        }
        let sockets = state.sockets.path();
        let started = Instant::now();
        // A group never meets what an earlier one has left: neither its file nor, at an address, its names.
        let meeting = sockets.join(format!("{}.ranks", state.groups));
        let rendezvous = match &self.command.rendezvous {
            Rendezvous::Folder => format!("file://{}", meeting.display()),
            Rendezvous::Address(address) => {
                let run = sockets.file_name().unwrap_or_default().to_string_lossy();
                format!("tcp://{address}/{run}-{}", state.groups)
            }
        };
        let several = self.command.world_size > 1;
        let mut ranks = Vec::new();
        for number in 0..self.command.world_size {
            let socket = sockets.join(format!("{}-{number}.sock", state.groups));
            let mut command = Command::from(python::module(&self.command.python, "penstock.worker"));
            command.args(&self.command.arguments);
            let mut address = OsString::from("unix:");
            address.push(&socket);
            command.arg("--listen").arg(address);
            command.args([
                "--rank",
                &number.to_string(),
                "--world-size",
                &self.command.world_size.to_string(),
            ]);
            if several {
                command.args(["--rendezvous", &rendezvous, "--stages", &self.command.stages.to_string()]);
                // All are on this machine, and nobody else is to hear them.
                if !self.command.names_interface {
                    command.env("GLOO_SOCKET_IFNAME", "lo");
                }
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // A worker reads local files only.
            for secret in &self.command.secrets {
                command.env_remove(secret);
            }
            let starting = tokio::time::timeout(SPAWN_DEADLINE, self.spawner.start(command));
            let child = starting
                .await
                .map_err(|_| std::io::Error::other(format!("it did not start in {SPAWN_DEADLINE:.0?}")))??;
            let process = Watched::new(child, several.then_some(number))?;
            ranks.push(Rank { number, socket, process });
        }
        state.group = Some(Group { ranks, meeting, started, answered: None });
        Ok(())
    }

    fn cannot_start(&self, error: &std::io::Error) -> String {
        format!("the worker {} cannot be started: {error}", self.command.python.display())
    }
}

#[async_trait]
impl WorkerSource for Workers {
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<Endpoint>, GiveUp> {
        let mut state = self.state.lock().await;
        if let Some(loss) = lost {
            let lived = state.group.as_ref().and_then(|group| group.answered).map(|at| at.elapsed());
            // Left over is nothing when the last call was dropped half way.
            if let Some(group) = state.group.take() {
                match group.end().await {
                    Some((rank, WorkerEnd::Ended(exit))) => {
                        warn!("{loss}; worker {rank} {}", exit.describe())
                    }
                    Some((rank, WorkerEnd::Stopped)) => {
                        warn!("{loss}; worker {rank} was stopped by a signal, and was ended");
                    }
                    None => warn!("{loss}; its process was ended"),
                }
            }
            if let RestartDecision::StartAfter(delay) =
                state.restarts.on_end(End::After(lived.unwrap_or_default()))
            {
                pause(delay).await;
            }
        }
        loop {
            if state.group.is_none() {
                info!("starting the workers again");
                match self.start_group(&mut state).await {
                    Ok(()) => {}
                    // No fault of the workers: as long as it lasts, nothing is lost by waiting. `WouldBlock` is a limit
                    // of processes (fork(2)).
                    Err(error) if is_passing(&error) || error.kind() == ErrorKind::WouldBlock => {
                        warn!("{}; trying again", self.cannot_start(&error));
                        tokio::time::sleep(PASSING).await;
                        continue;
                    }
                    Err(error) => return Err(GiveUp(self.cannot_start(&error))),
                }
            }
            let command = &self.command;
            let timeouts = StartTimeouts::of(command.load_timeout, command.weight_bytes, state.slowest_start);
            let Some(group) = state.group.as_mut() else { continue };
            let start = group.answers(timeouts).await;
            if let Start::Answers = start {
                let took = group.started.elapsed();
                debug!("every worker answers after {:.2} s", took.as_secs_f64());
                let endpoints = group.ranks.iter().map(|rank| Endpoint::Unix(rank.socket.clone())).collect();
                state.slowest_start = state.slowest_start.max(Some(took));
                return Ok(endpoints);
            }
            let Some(group) = state.group.take() else { continue };
            let failure = match (start, group.end().await) {
                (_, Some((rank, WorkerEnd::Ended(exit)))) => Failure::of(rank, &exit),
                (Start::Hangs { .. }, Some((rank, WorkerEnd::Stopped))) => {
                    Failure::unexplained(rank, "was stopped by a signal while it was loading".into())
                }
                (Start::Hangs { rank, why }, None) => Failure::unexplained(rank, why),
                // A process that ended is found by `end`.
                (Start::Answers | Start::Ended, _) => continue,
            };
            match state.restarts.on_end(End::AtStart { explained: failure.explained }) {
                RestartDecision::StartAfter(delay) => {
                    warn!("worker {} {} before it was ready", failure.rank, failure.what);
                    pause(delay).await;
                }
                RestartDecision::GiveUp { starts: 1 } => return Err(GiveUp(failure.reason)),
                RestartDecision::GiveUp { starts } => {
                    return Err(GiveUp(format!(
                        "worker {} failed to start {starts} times in a row: {}",
                        failure.rank, failure.reason
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
    use penstock_core::worker::LossKind;
    use tempfile::TempDir;

    use super::*;

    /// Stands in for the interpreter: takes a worker's arguments and behaves as the file `how` beside it
    /// says. Writes the process id to the file `pid` once it listens, and how ranks meet to a file for each.
    const STAND_IN: &str = r#"#!/usr/bin/env python3
import json, os, pathlib, signal, socket, sys, time
here = pathlib.Path(sys.argv[0]).parent
how = (here / "how").read_text()
with open(here / "starts", "a") as starts:
    starts.write("x")
rank = sys.argv[sys.argv.index("--rank") + 1]
if "--rendezvous" in sys.argv:
    meeting = sys.argv[sys.argv.index("--rendezvous") + 1]
    (here / f"meeting-{rank}").write_text(meeting + " " + os.environ.get("GLOO_SOCKET_IFNAME", ""))
if how == "rank 1 explains" and rank == "0":
    sys.exit(3)
if how in ("explains", "rank 1 explains"):
    print(json.dumps({"level": "ERROR", "message": "no such dtype", "fatal": True}), file=sys.stderr)
    sys.exit(1)
if how == "hangs":
    time.sleep(600)
if how == "loads slowly":
    for _ in range(40):
        print(json.dumps({"level": "DEBUG", "message": "loading", "progress": True}), file=sys.stderr, flush=True)
        time.sleep(0.15)
if how == "raises":
    sys.exit("SomeError: by surprise")
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[sys.argv.index("--listen") + 1].removeprefix("unix:"))
listener.listen()
(here / "pid.new").write_text(str(os.getpid()))
os.rename(here / "pid.new", here / "pid")
print("x" * 300_000)
time.sleep(600)
"#;

    struct Bench {
        folder: TempDir,
        load_timeout: Duration,
    }

    impl Bench {
        fn new(how: &str) -> Self {
            let load_timeout = Duration::from_secs(60);
            let bench = Self { folder: tempfile::tempdir().unwrap(), load_timeout };
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
            self.start_ranks(1, Rendezvous::Folder).await
        }

        async fn start_ranks(&self, world_size: u32, rendezvous: Rendezvous) -> Workers {
            let command = WorkerCommand {
                python: self.path("python"),
                arguments: vec!["--model-dir".into()],
                world_size,
                stages: 1,
                rendezvous,
                names_interface: false,
                secrets: vec!["PENSTOCK_TEST_SECRET".into()],
                load_timeout: self.load_timeout,
                weight_bytes: 0,
            };
            let sockets = SocketFolder::make(self.folder.path()).unwrap();
            Workers::start(command, ChildSpawner::open().unwrap(), sockets).await.unwrap()
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

    /// Looks every few milliseconds, for a minute.
    async fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn ready(bench: &Bench, workers: &Workers, lost: Option<&Loss>) -> (Pid, PathBuf) {
        let endpoints = workers.fresh(lost).await.unwrap();
        let [Endpoint::Unix(socket)] = &endpoints[..] else { panic!("{endpoints:?}") };
        // It answers a moment before it writes its number.
        wait_for("a worker's number", || bench.path("pid").exists()).await;
        let pid = bench.pid();
        // The next one's is another: here, since a worker may be started, and have written it, before it is asked for.
        std::fs::remove_file(bench.path("pid")).unwrap();
        (pid, socket.clone())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_killed_and_a_stopped_worker_are_replaced_and_nothing_of_them_is_left() {
        let bench = Bench::new("serves");
        let workers = bench.start().await;
        let (mut pid, mut socket) = ready(&bench, &workers, None).await;
        for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
            kill(pid, signal).unwrap();
            let loss = Loss::of(0, LossKind::Died, "its stream broke");
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
    async fn the_worker_that_says_why_is_heard_and_not_those_that_lost_it() {
        let bench = Bench::new("rank 1 explains");
        let workers = bench.start_ranks(3, Rendezvous::Folder).await;
        assert_eq!(workers.fresh(None).await.unwrap_err().to_string(), "no such dtype");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_ranks_of_a_group_meet_in_one_place_and_another_group_elsewhere() {
        for rendezvous in [Rendezvous::Folder, Rendezvous::Address("localhost:4000".into())] {
            let bench = Bench::new("serves");
            let workers = bench.start_ranks(2, rendezvous.clone()).await;
            let mut meetings = Vec::new();
            for lost in [None, Some(Loss::unnamed(LossKind::Died, "its stream broke"))] {
                assert_eq!(workers.fresh(lost.as_ref()).await.unwrap().len(), 2);
                let [first, second] =
                    ["meeting-0", "meeting-1"].map(|name| std::fs::read_to_string(bench.path(name)).unwrap());
                assert_eq!(first, second);
                assert!(first.ends_with(" lo"), "{first}");
                meetings.push(first);
            }
            assert_ne!(meetings[0], meetings[1]);
            let expected =
                if rendezvous == Rendezvous::Folder { "file:///" } else { "tcp://localhost:4000/" };
            assert!(meetings[0].starts_with(expected), "{meetings:?}");
        }
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
    async fn a_worker_that_hangs_while_it_loads_is_replaced_and_given_up_in_the_end() {
        let bench = Bench { load_timeout: Duration::from_millis(300), ..Bench::new("hangs") };
        let gave_up = bench.start().await.fresh(None).await.unwrap_err().to_string();
        assert!(gave_up.contains("3 times") && gave_up.contains("--load-timeout"), "{gave_up}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_recovery_whose_worker_hangs_is_not_waited_for() {
        // Longer than Python takes to start on a busy machine: before that the stand-in has not said that it was started.
        let bench = Bench { load_timeout: Duration::from_secs(5), ..Bench::new("serves") };
        let workers = Arc::new(bench.start().await);
        let (pid, _) = ready(&bench, &workers, None).await;
        bench.behave("hangs");
        kill(pid, Signal::SIGKILL).unwrap();
        let waiting = tokio::spawn({
            let workers = workers.clone();
            async move { workers.fresh(Some(&Loss::of(0, LossKind::Died, "its stream broke"))).await }
        });
        wait_for("a second worker that hangs", || {
            assert!(!waiting.is_finished(), "it has given up");
            bench.starts() >= 3
        })
        .await;
        bench.behave("serves");
        assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_that_shows_progress_has_time() {
        let bench = Bench { load_timeout: Duration::from_secs(4), ..Bench::new("loads slowly") };
        assert_eq!(bench.start().await.fresh(None).await.unwrap().len(), 1);
        assert_eq!(bench.starts(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_folder_of_sockets_that_was_removed_is_made_again() {
        let bench = Bench::new("serves");
        let workers = bench.start().await;
        let (pid, socket) = ready(&bench, &workers, None).await;
        let folder = socket.parent().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        kill(pid, Signal::SIGKILL).unwrap();
        let loss = Loss::of(0, LossKind::Died, "its stream broke");
        let (_, socket) = ready(&bench, &workers, Some(&loss)).await;
        assert_eq!(socket.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
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
            async move { workers.fresh(Some(&Loss::of(0, LossKind::Hung, "no answer"))).await }
        });
        wait_for("a second start that fails", || {
            assert!(!waiting.is_finished(), "it has given up");
            bench.starts() >= 3
        })
        .await;
        bench.behave("serves");
        assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
    }
}
