//! The threads that compute masks, so that neither the scheduler nor the async threads do. Started with the first job.

use std::sync::{Arc, Mutex, mpsc as blocking};
use std::thread;

use tokio::sync::mpsc;

use super::masks::{MaskJob, MaskResult};

/// Most threads: a mask takes a fraction of a step.
const MOST: usize = 4;

pub(super) struct MaskThreads {
    jobs: Option<blocking::Sender<MaskJob>>,
    results: mpsc::UnboundedReceiver<MaskResult>,
    sender: mpsc::UnboundedSender<MaskResult>,
}

impl MaskThreads {
    pub fn new() -> Self {
        let (sender, results) = mpsc::unbounded_channel();
        Self { jobs: None, results, sender }
    }

    pub fn submit(&mut self, job: MaskJob) {
        let jobs = self.jobs.get_or_insert_with(|| start(&self.sender));
        // The threads live as long as this sender.
        let _ = jobs.send(job);
    }

    /// The next result. Loses nothing when dropped half-way.
    pub async fn next(&mut self) -> MaskResult {
        // It has a sender itself, so there is no end.
        self.results.recv().await.expect("the channel is open")
    }

    pub fn try_next(&mut self) -> Option<MaskResult> {
        self.results.try_recv().ok()
    }
}

fn start(results: &mpsc::UnboundedSender<MaskResult>) -> blocking::Sender<MaskJob> {
    let (sender, jobs) = blocking::channel::<MaskJob>();
    let jobs = Arc::new(Mutex::new(jobs));
    let count = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST);
    for _ in 0..count {
        let (jobs, results) = (jobs.clone(), results.clone());
        let work = move || {
            loop {
                let next = jobs.lock().expect("nothing panics while it holds this lock").recv();
                let Ok(job) = next else { return };
                let _ = results.send(job.run());
            }
        };
        if let Err(error) = thread::Builder::new().name("masks".into()).spawn(work) {
            tracing::error!("a thread for masks cannot be started: {error}");
        }
    }
    sender
}
