//! The threads that compute masks, so that neither the scheduler nor the async threads do, but for what is surely over at once. Started with
//! the first job.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::mask_job::{MaskJob, MaskResult};

/// Most threads: a mask takes a fraction of a step.
const MOST: usize = 4;
/// The jobs of a step come together, and to wake a thread costs as much as some masks do: so many jobs are worth it.
const WORTH_A_THREAD: usize = 4;
/// What is over so soon is done by whoever submits it: to wake a thread, and to be woken by it, takes as long. More of it would hold up
/// the next plan: with eight rows of 20 us each a third of the tokens per second was lost.
const AT_ONCE: Duration = Duration::from_micros(60);
/// How long a thread keeps results to hand them on with its next ones: the scheduler wakes for each message.
const TOGETHER: Duration = Duration::from_micros(200);

pub(super) struct MaskThreads {
    /// The threads end when it is dropped.
    jobs: Option<Jobs>,
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

    /// Whether whoever submits jobs that are expected to take so long does them at once; `None`: nobody knows.
    pub fn is_at_once(&self, expected: Option<Duration>) -> bool {
        #[cfg(test)]
        if self.delays.is_some() {
            return false;
        }
        expected.is_some_and(|expected| expected <= AT_ONCE)
    }

    /// Returns what came of the jobs, if all are surely over soon; else `next` does, in time.
    pub fn submit(&mut self, jobs: Vec<MaskJob>) -> Vec<MaskResult> {
        #[cfg(test)]
        if let Some(delays) = &mut self.delays {
            for job in jobs {
                let (began, delay, sender) = (crate::clock::now(), delays(), self.sender.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    // It is what the job takes, for whoever reckons with that: measured time would make a schedule another one.
                    let _ = sender.send(vec![job.run_since(began)]);
                });
            }
            return Vec::new();
        }
        // Of no jobs, too.
        if self.is_at_once(jobs.iter().map(MaskJob::expected).sum()) {
            return jobs.into_iter().map(MaskJob::run).collect();
        }
        let Jobs(queue) = self.jobs.get_or_insert_with(|| start(&self.sender));
        let threads = jobs.len().div_ceil(WORTH_A_THREAD).min(queue.threads);
        queue.lock().jobs.extend(jobs);
        (0..threads).for_each(|_| queue.more.notify_one());
        Vec::new()
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

struct Jobs(Arc<Queue>);

struct Queue {
    threads: usize,
    waiting: Mutex<Waiting>,
    /// Rings when there are jobs, or there will be no more.
    more: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<MaskJob>,
    is_closed: bool,
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.more.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("nothing panics while it holds this lock")
    }

    /// The next job; `None` when there will be no more.
    fn next(&self) -> Option<MaskJob> {
        let is_idle = |waiting: &mut Waiting| waiting.jobs.is_empty() && !waiting.is_closed;
        let mut waiting =
            self.more.wait_while(self.lock(), is_idle).expect("nothing panics while it holds this lock");
        if waiting.is_closed { None } else { waiting.jobs.pop_front() }
    }

    fn work(&self, results: &mpsc::UnboundedSender<Vec<MaskResult>>) {
        while let Some(first) = self.next() {
            let began = Instant::now();
            let mut done = vec![first.run()];
            while began.elapsed() < TOGETHER {
                // In a condition the lock would be held until the job has ended.
                let Some(job) = self.lock().jobs.pop_front() else { break };
                done.push(job.run());
            }
            let _ = results.send(done);
        }
    }
}

fn start(results: &mpsc::UnboundedSender<Vec<MaskResult>>) -> Jobs {
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST);
    let queue = Arc::new(Queue { threads, waiting: Mutex::default(), more: Condvar::new() });
    for _ in 0..threads {
        let (queue, results) = (queue.clone(), results.clone());
        let work = move || queue.work(&results);
        if let Err(error) = thread::Builder::new().name("masks".into()).spawn(work) {
            tracing::error!("a thread for masks cannot be started: {error}");
        }
    }
    Jobs(queue)
}
