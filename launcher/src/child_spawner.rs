//! Starts child processes that cannot outlive this one, not even when it is killed with SIGKILL.
//!
//! Linux sends a child its parent-death signal when the *thread* that started it ends (prctl(2),
//! PR_SET_PDEATHSIG), so all children are started by one thread that ends with the process. Used for
//! workers and for the download; children watch the end of their standard input as a second line.

use std::io;
use std::os::unix::process::CommandExt;
use std::sync::mpsc;
use std::thread;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

type Job = (Command, oneshot::Sender<io::Result<Child>>);

#[derive(Clone)]
pub struct ChildSpawner {
    jobs: mpsc::Sender<Job>,
}

impl ChildSpawner {
    /// Must be called within a tokio runtime, which then watches the children.
    pub fn open() -> io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let runtime = Handle::current();
        thread::Builder::new().name("child-spawner".into()).spawn(move || {
            let _within = runtime.enter();
            for (mut command, reply) in inbox {
                // Whoever asked has gone: the child, if any, is ended by kill_on_drop.
                let _ = reply.send(command.spawn());
            }
        })?;
        Ok(Self { jobs })
    }

    /// Starts `command` as the leader of a process group of its own, so that a Ctrl-C on the terminal does
    /// not reach it and that `killpg` reaches all it started.
    pub async fn start(&self, mut command: Command) -> io::Result<Child> {
        let parent = getpid();
        command.kill_on_drop(true);
        command.as_std_mut().process_group(0);
        // SAFETY: between fork and exec only async-signal-safe system calls are made.
        unsafe {
            command.pre_exec(move || die_with(parent));
        }
        let (reply, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts processes has ended");
        self.jobs.send((command, reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn die_with(parent: Pid) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before the line above; then no signal would ever come.
    if getppid() == parent { Ok(()) } else { Err(io::Error::from(nix::errno::Errno::ESRCH)) }
}
