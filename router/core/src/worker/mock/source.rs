//! Starts and restarts mock workers, and lets a test disturb them from outside.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use tokio::sync::watch;

use super::server::{Birth, Running, Runs};
use super::{MockConfig, Script};
use crate::worker::Endpoint;
use crate::worker::source::{GiveUp, Loss, WorkerSource};

pub struct MockSource {
    /// For the sockets.
    dir: PathBuf,
    in_virtual_time: bool,
    state: Mutex<State>,
    script: Arc<Mutex<Script>>,
    steps: Arc<AtomicU64>,
    gives_up: AtomicBool,
    /// So many calls of `Prepare` are yet refused.
    without_room: Arc<AtomicU32>,
    /// New workers wait while this is `false`.
    open: watch::Sender<bool>,
    runs: Arc<Runs>,
    incarnations: watch::Sender<u32>,
}

struct State {
    config: MockConfig,
    workers: Vec<Running>,
    losses: Vec<Loss>,
}

impl MockSource {
    /// Workers that live in `dir`, which should be private and empty, and never fail by themselves.
    pub fn new(config: MockConfig, dir: PathBuf) -> Self {
        Self::with_script(config, dir, Box::new(|_| None))
    }

    pub fn with_script(config: MockConfig, dir: PathBuf, script: Script) -> Self {
        Self {
            dir,
            in_virtual_time: false,
            state: Mutex::new(State { config, workers: Vec::new(), losses: Vec::new() }),
            script: Arc::new(Mutex::new(script)),
            steps: Arc::new(AtomicU64::new(0)),
            gives_up: AtomicBool::new(false),
            without_room: Arc::default(),
            open: watch::Sender::new(true),
            runs: Arc::new(Runs { open: watch::Sender::new(true), asked: watch::Sender::new(0) }),
            incarnations: watch::Sender::new(0),
        }
    }

    /// Workers that live in the runtime of whoever asks for them.
    #[cfg(test)]
    pub fn in_virtual_time(config: MockConfig, script: Script) -> Self {
        Self { in_virtual_time: true, ..Self::with_script(config, PathBuf::new(), script) }
    }

    /// Kills the running workers as `kill -9` does.
    pub fn kill(&self) {
        let dead = std::mem::take(&mut self.state().workers);
        drop(dead);
    }

    /// Freezes the running workers as SIGSTOP does.
    pub fn freeze(&self) {
        self.state().workers.iter().for_each(Running::freeze);
    }

    /// Workers started from now on have so many pages.
    pub fn set_pages(&self, pages: u32) {
        self.state().config.pages = pages;
    }

    /// Workers started from now on have room for sequences of so many tokens.
    pub fn set_fits(&self, tokens: u32) {
        self.state().config.fits = tokens;
    }

    /// Holds back new workers until `release`.
    pub fn hold(&self) {
        self.open.send_replace(false);
    }

    pub fn release(&self) {
        self.open.send_replace(true);
    }

    /// From now on a `Run` waits for its answer until `release_runs`.
    pub fn hold_runs(&self) {
        self.runs.open.send_replace(false);
    }

    pub fn release_runs(&self) {
        self.runs.open.send_replace(true);
    }

    /// How many times `Run` was called; can be waited for.
    pub fn runs_asked(&self) -> watch::Receiver<u64> {
        self.runs.asked.subscribe()
    }

    /// The next time workers are asked for there are none.
    pub fn give_up(&self) {
        self.gives_up.store(true, Ordering::SeqCst);
    }

    /// The next so many calls of `Prepare` are refused for want of memory.
    pub fn refuse_room(&self, times: u32) {
        self.without_room.store(times, Ordering::SeqCst);
    }

    /// How many times workers were started; can be waited for.
    pub fn incarnations(&self) -> watch::Receiver<u32> {
        self.incarnations.subscribe()
    }

    /// Steps executed by all ranks and incarnations.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Why workers were asked for, but for the first time.
    pub fn losses(&self) -> Vec<Loss> {
        self.state().losses.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[async_trait]
impl WorkerSource for MockSource {
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<Endpoint>, GiveUp> {
        self.kill();
        self.state().losses.extend(lost.cloned());
        if self.gives_up.load(Ordering::SeqCst) {
            return Err(GiveUp("no worker starts any more".into()));
        }
        let mut open = self.open.subscribe();
        let _ = open.wait_for(|open| *open).await;
        let incarnation = *self.incarnations.borrow() + 1;
        let config = self.state().config.clone();
        let mut endpoints = Vec::new();
        let mut workers = Vec::new();
        for rank in 0..config.world_size {
            let socket = self.dir.join(format!("mock-{incarnation}-{rank}"));
            let birth = Birth {
                config: config.clone(),
                rank,
                incarnation,
                script: self.script.clone(),
                steps: self.steps.clone(),
                runs: self.runs.clone(),
                without_room: self.without_room.clone(),
                in_virtual_time: self.in_virtual_time,
            };
            let running = match self.in_virtual_time {
                #[cfg(test)]
                true => Ok(Running::start_here(birth, socket.clone())),
                _ => Running::start(birth, socket.clone()),
            };
            let running = running.map_err(|error| GiveUp(error.to_string()))?;
            workers.push(running);
            endpoints.push(Endpoint::Unix(socket));
        }
        self.state().workers = workers;
        self.incarnations.send_replace(incarnation);
        Ok(endpoints)
    }
}
