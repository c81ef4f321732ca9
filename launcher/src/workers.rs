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
use crate::shards::Rendezvous;
use crate::sockets::SocketFolder;

/// How often a starting worker's socket is tried. A try is one system call.
const SOCKET_POLL: Duration = Duration::from_millis(3);
/// A sign of life while a large model loads.
const STILL_LOADING: Duration = Duration::from_secs(15);
/// A worker whose stream has just broken may not have been reaped yet; nor the one that it has lost.
const REAPED: Duration = Duration::from_millis(30);
const OTHER_REAPED: Duration = Duration::from_millis(500);
/// A killed process ends at once, unless the kernel itself is stuck in it (a driver, a dead disk).
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// What is the same for every worker of this run.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    pub python: PathBuf,
    /// All arguments but `--socket`, `--rank`, `--world-size`, `--stages` and `--rendezvous`.
    pub arguments: Vec<OsString>,
    /// Processes, over all stages.
    pub world_size: u32,
    pub stages: u32,
    pub rendezvous: Rendezvous,
    /// The environment says by which network interface the ranks speak; else it is the loopback.
    pub names_interface: bool,
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
    /// By which the ranks find each other.
    meeting: PathBuf,
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
        // A group never meets what an earlier one has left: neither its file nor, at an address, its names.
        let meeting = self.sockets.path().join(format!("{}.ranks", state.groups));
        let rendezvous = match &self.command.rendezvous {
            Rendezvous::Folder => format!("file://{}", meeting.display()),
            Rendezvous::Address(address) => {
                let run = self.sockets.path().file_name().unwrap_or_default().to_string_lossy();
                format!("tcp://{address}/{run}-{}", state.groups)
            }
        };
        let several = self.command.world_size > 1;
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
            if several {
                command.args(["--rendezvous", &rendezvous, "--stages", &self.command.stages.to_string()]);
                // All are on this machine, and nobody else is to hear them.
                if !self.command.names_interface {
                    command.env("GLOO_SOCKET_IFNAME", "lo");
                }
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // A worker reads local files only; it gets no secrets that it does not need.
            for secret in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"] {
                command.env_remove(secret);
            }
            let process = Watched::new(self.nursery.start(command).await?, several.then_some(number))?;
            ranks.push(Rank { number, socket, process });
        }
        state.group = Some(Group { ranks, meeting, started, answered: None });
        Ok(())
    }

    fn cannot_start(&self, error: &std::io::Error) -> String {
        format!("the worker {} cannot be started: {error}", self.command.python.display())
    }
}

/// What had become of a worker when its group was ended.
enum Fate {
    Ended(Exit),
    Stopped,
}

impl Group {
    /// Waits until every rank takes connections, which it does once its part of the model is loaded. `false`
    /// when one has ended instead.
    async fn answers(&mut self) -> bool {
        let mut next_sign = Instant::now() + STILL_LOADING;
        for rank in &self.ranks {
            while UnixStream::connect(&rank.socket).await.is_err() {
                if self.ranks.iter().any(|rank| rank.process.exited().is_some()) {
                    return false;
                }
                if Instant::now() >= next_sign {
                    info!("still loading after {:.0} s", self.started.elapsed().as_secs_f64());
                    next_sign += STILL_LOADING;
                }
                tokio::time::sleep(SOCKET_POLL).await;
            }
        }
        self.answered = Some(Instant::now());
        true
    }

    /// The rank whose end explains that of the others, if any has ended.
    async fn culprit(&self) -> Option<(u32, Exit)> {
        let begun = Instant::now();
        loop {
            let ended = self.ranks.iter().filter_map(|rank| Some((rank.number, rank.process.exited()?)));
            let first = ended.min_by_key(|(_, exit)| (exit.is_consequence(), exit.at));
            let patience = match &first {
                Some((_, exit)) if !exit.is_consequence() => return first,
                Some(_) => OTHER_REAPED,
                None => REAPED,
            };
            if begun.elapsed() >= patience {
                return first;
            }
            tokio::time::sleep(SOCKET_POLL).await;
        }
    }

    /// Kills what is left and waits until it is gone. Returns what became of it before.
    async fn end(self) -> Option<(u32, Fate)> {
        let stopped = |rank: &Rank| rank.process.is_stopped().then_some((rank.number, Fate::Stopped));
        let fate = match self.culprit().await {
            Some((rank, exit)) => Some((rank, Fate::Ended(exit))),
            None => self.ranks.iter().find_map(stopped),
        };
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
        let _ = std::fs::remove_file(&self.meeting);
        fate
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
                    Some((rank, Fate::Ended(exit))) => warn!("{loss}; worker {rank} {}", exit.describe()),
                    Some((rank, Fate::Stopped)) => {
                        warn!("{loss}; worker {rank} was stopped by a signal, and was ended");
                    }
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
            if group.answers().await {
                debug!("every worker answers after {:.2} s", group.started.elapsed().as_secs_f64());
                return Ok(group.ranks.iter().map(|rank| rank.socket.clone()).collect());
            }
            let Some(group) = state.group.take() else { continue };
            let Some((rank, Fate::Ended(exit))) = group.end().await else { continue };
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
    use penstock_router::worker::LossKind;
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
        while bench.starts() < 3 {
            tokio::task::yield_now().await;
        }
        bench.behave("serves");
        assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
    }
}
