//! Starts child processes that cannot outlive this one, not even when it is killed with SIGKILL.
//!
//! Linux sends a child its parent-death signal when the *thread* that started it ends (prctl(2),
//! PR_SET_PDEATHSIG), so all children are started by one thread that ends with the process. Used for
//! workers and for the download; children watch the end of their standard input as a second line. The signals that make
//! the launcher drain do not end them.

use std::io;
use std::os::unix::process::CommandExt;
use std::sync::mpsc;
use std::thread;

use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};
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
    /// not reach it and that `killpg` reaches all it started. It ignores what asks the launcher to end: systemd and Slurm
    /// send that to every process of a service, and the launcher, which needs its workers for what still runs, ends
    /// them itself.
    pub async fn start(&self, mut command: Command) -> io::Result<Child> {
        let parent = getpid();
        command.kill_on_drop(true);
        command.as_std_mut().process_group(0);
        // SAFETY: between fork and exec only async-signal-safe system calls are made.
        unsafe {
            command.pre_exec(move || {
                ignore_requests_to_end()?;
                die_with(parent)
            });
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

/// An ignored signal stays so in the program that is executed (execve(2)); Python leaves it as it is.
fn ignore_requests_to_end() -> io::Result<()> {
    for number in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: no handler runs in this process.
        unsafe { signal(number, SigHandler::SigIgn) }?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_child_ignores_what_asks_the_launcher_to_end() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let child = ChildSpawner::open().unwrap().start(command).await.unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id().unwrap())).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        for number in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            assert!(ignored & (1 << (number as i32 - 1)) != 0, "{number}: {status}");
        }
    }
}
