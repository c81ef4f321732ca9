//! The threads that compute masks, so that neither the scheduler nor the async threads do. Started with the first job.

use std::sync::{Arc, Mutex, mpsc as blocking};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::masks::{MaskJob, MaskResult};

/// Most threads: a mask takes a fraction of a step.
const MOST: usize = 4;
/// How long a thread keeps results to hand them on with its next ones: the jobs of a step come together, and the scheduler wakes
/// for each message.
const TOGETHER: Duration = Duration::from_micros(200);

pub(super) struct MaskThreads {
    jobs: Option<blocking::Sender<MaskJob>>,
    results: mpsc::UnboundedReceiver<Vec<MaskResult>>,
    sender: mpsc::UnboundedSender<Vec<MaskResult>>,
    /// In virtual time there are no threads: a job's result is there so much later.
    #[cfg(test)]
    delays: Option<Box<dyn FnMut() -> std::time::Duration + Send>>,
}

impl MaskThreads {
    pub fn new() -> Self {
        let (sender, results) = mpsc::unbounded_channel();
        Self {
            jobs: None,
            results,
            sender,
            #[cfg(test)]
            delays: None,
        }
    }

    #[cfg(test)]
    pub fn delayed(delays: Box<dyn FnMut() -> std::time::Duration + Send>) -> Self {
        Self { delays: Some(delays), ..Self::new() }
    }

    pub fn submit(&mut self, job: MaskJob) {
        #[cfg(test)]
        if let Some(delays) = &mut self.delays {
            let (delay, sender) = (delays(), self.sender.clone());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = sender.send(vec![job.run()]);
            });
            return;
        }
        let jobs = self.jobs.get_or_insert_with(|| start(&self.sender));
        // The threads live as long as this sender.
        let _ = jobs.send(job);
    }

    /// The next results. Loses nothing when dropped half-way.
    pub async fn next(&mut self) -> Vec<MaskResult> {
        // It has a sender itself, so there is no end.
        self.results.recv().await.expect("the channel is open")
    }

    pub fn try_next(&mut self) -> Option<Vec<MaskResult>> {
        self.results.try_recv().ok()
    }
}

fn start(results: &mpsc::UnboundedSender<Vec<MaskResult>>) -> blocking::Sender<MaskJob> {
    let (sender, jobs) = blocking::channel::<MaskJob>();
    let jobs = Arc::new(Mutex::new(jobs));
    let count = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST);
    for _ in 0..count {
        let (jobs, results) = (jobs.clone(), results.clone());
        let work = move || {
            loop {
                let next = jobs.lock().expect("nothing panics while it holds this lock").recv();
                let Ok(first) = next else { return };
                let began = Instant::now();
                let mut done = vec![first.run()];
                while began.elapsed() < TOGETHER
                    && let Some(job) = jobs.try_lock().ok().and_then(|jobs| jobs.try_recv().ok())
                {
                    done.push(job.run());
                }
                let _ = results.send(done);
            }
        };
        if let Err(error) = thread::Builder::new().name("masks".into()).spawn(work) {
            tracing::error!("a thread for masks cannot be started: {error}");
        }
    }
    sender
}
