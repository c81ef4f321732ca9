//! One child process from its start to its end: its lines are logged, its last words kept, its exit told
//! to whoever watches. Used for workers; knows nothing of models.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncRead;
use tokio::process::{Child, ChildStdin};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::lines::Lines;
use crate::log::ChildLine;

/// A child that is being watched. Dropped, it is killed with all that it started.
pub struct Watched {
    group: Pid,
    exit: watch::Receiver<Option<Exit>>,
    words: Arc<Mutex<LastWords>>,
    /// Its end of file tells the child that the launcher is gone.
    _stdin: Option<ChildStdin>,
}

/// What a worker exits with whose connection to another one broke (`ProcessExit` in server/penstock/rpc/server.py).
const PEER_LOST: i32 = 3;

/// How a child ended.
#[derive(Clone, Debug)]
pub struct Exit {
    pub at: Instant,
    status: ExitStatus,
    words: LastWords,
}

/// What a child said last, for the line that explains its end, and when it last said how far it is.
#[derive(Clone, Debug)]
struct LastWords {
    /// The event that said why it ends.
    fatal: Option<String>,
    /// The last line that was no event: what Python prints of an exception.
    other: Option<String>,
    progress: Instant,
    /// It has said that it listens.
    listens: bool,
    /// It has said that a router is connected.
    serving: bool,
}

impl Watched {
    /// Takes over a child whose standard streams are pipes. Its lines are logged with its rank, where it has others.
    pub fn new(mut child: Child, rank: Option<u32>) -> std::io::Result<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = Pid::from_raw(id.ok_or_else(|| std::io::Error::other("it ended at once"))?);
        let stdin = child.stdin.take();
        let words = Arc::new(Mutex::new(LastWords::none()));
        let streams = [
            child.stdout.take().map(|pipe| relay(pipe, words.clone(), rank)),
            child.stderr.take().map(|pipe| relay(pipe, words.clone(), rank)),
        ];
        let (tell, exit) = watch::channel(None);
        let heard = words.clone();
        tokio::spawn(async move {
            let status = child.wait().await;
            let at = Instant::now();
            // What it wrote before its end is still in the pipes. A grandchild may hold them open for ever,
            // so that waiting has a limit.
            for stream in streams.into_iter().flatten() {
                let _ = tokio::time::timeout(std::time::Duration::from_millis(500), stream).await;
            }
            let words = words.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let status = status.unwrap_or_else(|_| ExitStatus::from_raw(-1));
            let _ = tell.send(Some(Exit { at, status, words }));
        });
        Ok(Self { group, exit, words: heard, _stdin: stdin })
    }

    pub fn pid(&self) -> i32 {
        self.group.as_raw()
    }

    /// SIGKILL to its whole group; it works on stopped processes too.
    pub fn kill(&self) {
        // It fails only when nothing is left of the group.
        let _ = killpg(self.group, Signal::SIGKILL);
    }

    /// Whether a signal has stopped it: it lives and does nothing.
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.group)).unwrap_or_default();
        // The name in parentheses may hold anything; the state follows the last one.
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    }

    /// When it last said that something which takes long goes on; else when it was started.
    pub fn last_progress(&self) -> Instant {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).progress
    }

    /// Whether it has said that it is loaded and listens.
    pub fn listens(&self) -> bool {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).listens
    }

    /// Whether it has said that a router is connected, and not yet that it has left.
    pub fn is_serving(&self) -> bool {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).serving
    }

    pub fn exited(&self) -> Option<Exit> {
        self.exit.borrow().clone()
    }

    /// Waits for its end. Safe to drop and call again.
    pub async fn exit(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await.map(|exit| exit.clone()) {
            Ok(Some(exit)) => exit,
            // The watching task ends only after it has told.
            _ => Exit { at: Instant::now(), status: ExitStatus::from_raw(-1), words: LastWords::none() },
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.exited().is_none() {
            self.kill();
        }
    }
}

impl Exit {
    /// It ended since another worker had.
    pub fn is_consequence(&self) -> bool {
        self.status.code() == Some(PEER_LOST)
    }

    /// The child ended by itself and said why.
    pub fn explained(&self) -> bool {
        self.status.code().is_some() && self.words.fatal.is_some()
    }

    /// Of the form "was killed by SIGKILL, perhaps because memory ran out".
    pub fn describe(&self) -> String {
        let end = match (self.status.signal(), self.status.code()) {
            (Some(number), _) => {
                let name =
                    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |s| s.to_string());
                let guess = match name.as_str() {
                    "SIGKILL" => ", perhaps because memory ran out",
                    _ => "",
                };
                format!("was killed by {name}{guess}")
            }
            (None, Some(code)) => format!("exited with code {code}"),
            (None, None) => "ended".into(),
        };
        let words = if self.status.signal().is_some() { &self.words.fatal } else { self.words.said() };
        match words {
            Some(words) => format!("{end}: {words}"),
            None => end,
        }
    }

    /// Its own explanation if it gave one, else how it ended.
    pub fn reason(&self) -> String {
        match &self.words.fatal {
            Some(reason) if self.explained() => reason.clone(),
            _ => format!("it {}", self.describe()),
        }
    }
}

impl LastWords {
    fn none() -> Self {
        Self { fatal: None, other: None, progress: Instant::now(), listens: false, serving: false }
    }

    fn said(&self) -> &Option<String> {
        if self.fatal.is_some() { &self.fatal } else { &self.other }
    }

    fn hear(&mut self, line: &ChildLine) {
        match line {
            ChildLine::Event { listening: true, .. } => self.listens = true,
            ChildLine::Event { serving: Some(serving), .. } => self.serving = *serving,
            ChildLine::Event { progress: true, .. } => self.progress = Instant::now(),
            ChildLine::Event { message, fatal: true, .. } => self.fatal = Some(first_line(message)),
            ChildLine::Other(text) if !text.trim().is_empty() => self.other = Some(text.trim().to_owned()),
            _ => {}
        }
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Logs every line of `pipe` until it closes.
fn relay(
    pipe: impl AsyncRead + Send + Unpin + 'static,
    words: Arc<Mutex<LastWords>>,
    rank: Option<u32>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut lines = Lines::of(pipe);
        while let Some(line) = lines.next().await {
            let parsed = ChildLine::parse(line);
            words.lock().unwrap_or_else(PoisonError::into_inner).hear(&parsed);
            parsed.log_of_worker(rank);
        }
    })
}
