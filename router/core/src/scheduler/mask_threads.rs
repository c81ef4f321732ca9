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
/// The jobs of a step come together, and to wake a thread costs as much as some masks do: so many quick jobs are worth it, and each other
/// one.
const WORTH_A_THREAD: usize = 4;
/// What is surely over so soon is done by whoever submits it: to wake a thread, and to be woken by it, takes as long. More of it would hold up
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

    #[cfg(test)]
    fn of_threads(count: usize) -> Self {
        let mut threads = Self::new();
        threads.jobs = Some(start(&threads.sender, count));
        threads
    }

    /// Whether whoever submits jobs that are expected to take so long does them at once; `None`: nobody knows.
    pub fn is_at_once(&self, expected: Option<Duration>) -> bool {
        #[cfg(test)]
        if self.delays.is_some() {
            return false;
        }
        expected.is_some_and(|expected| expected <= AT_ONCE)
    }

    /// Returns what came of the jobs that are surely over soon; what comes of the others `next` does, in time.
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
        let (sure, mut others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.expected().is_some());
        // Of no jobs, too.
        let at_once = match self.is_at_once(sure.iter().map(MaskJob::expected).sum()) {
            true => sure,
            false => {
                others.extend(sure);
                Vec::new()
            }
        };
        if !others.is_empty() {
            let Jobs { queue, threads } =
                self.jobs.get_or_insert_with(|| start(&self.sender, most_threads()));
            if *threads == 0 {
                return at_once.into_iter().chain(others).map(MaskJob::run).collect();
            }
            let (quick, slow): (Vec<_>, Vec<_>) = others.into_iter().partition(MaskJob::is_likely_quick);
            let worth = slow.len() + quick.len().div_ceil(WORTH_A_THREAD);
            let mut waiting = queue.lock();
            waiting.quick.extend(quick);
            waiting.slow.extend(slow);
            drop(waiting);
            (0..worth.min(*threads)).for_each(|_| queue.more.notify_one());
        }
        at_once.into_iter().map(MaskJob::run).collect()
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

struct Jobs {
    queue: Arc<Queue>,
    /// That were started.
    threads: usize,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// Rings when there are jobs, or there will be no more.
    more: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// Those that are expected to be quick go first.
    quick: VecDeque<MaskJob>,
    slow: VecDeque<MaskJob>,
    is_closed: bool,
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.more.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("nothing panics while it holds this lock")
    }

    /// The next job; `None` when there will be no more.
    fn next(&self) -> Option<MaskJob> {
        let is_idle =
            |waiting: &mut Waiting| waiting.quick.is_empty() && waiting.slow.is_empty() && !waiting.is_closed;
        let mut waiting =
            self.more.wait_while(self.lock(), is_idle).expect("nothing panics while it holds this lock");
        if waiting.is_closed { None } else { waiting.quick.pop_front().or_else(|| waiting.slow.pop_front()) }
    }

    fn work(&self, results: &mpsc::UnboundedSender<Vec<MaskResult>>) {
        while let Some(first) = self.next() {
            let began = Instant::now();
            let mut done = vec![first.run()];
            while began.elapsed() < TOGETHER {
                // In a condition the lock would be held until the job has ended. A slow one would keep back what is done.
                let Some(job) = self.lock().quick.pop_front() else { break };
                done.push(job.run());
            }
            let _ = results.send(done);
        }
    }
}

fn most_threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST)
}

fn start(results: &mpsc::UnboundedSender<Vec<MaskResult>>, most: usize) -> Jobs {
    let queue = Arc::<Queue>::default();
    let mut threads = 0;
    for _ in 0..most {
        let (queue, results) = (queue.clone(), results.clone());
        let work = move || queue.work(&results);
        match thread::Builder::new().name("masks".into()).spawn(work) {
            Ok(_) => threads += 1,
            Err(error) => tracing::error!("a thread for masks cannot be started: {error}"),
        }
    }
    Jobs { queue, threads }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use penstock_proto::ids::{SequenceId, TokenId};
    use tokio::time::timeout;

    use super::*;
    use crate::constraint::Matcher;
    use crate::scheduler::mask_job::{Asked, Habit};

    const IN_TIME: Duration = Duration::from_secs(30);

    /// Whose mask is there when all others that wait are being computed, too.
    struct Waits(Arc<Barrier>);

    impl Matcher for Waits {
        fn advance(&mut self, _token: TokenId) -> Result<(), String> {
            Ok(())
        }

        fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
            self.0.wait();
            words.fill(1);
            Ok(())
        }

        fn take_forced(&mut self, _most: usize) -> Result<Vec<TokenId>, String> {
            Ok(Vec::new())
        }

        fn is_complete(&self) -> bool {
            false
        }

        fn fork(&mut self) -> Box<dyn Matcher> {
            Box::new(Waits(self.0.clone()))
        }
    }

    fn job(id: u64, barrier: &Arc<Barrier>, habit: Habit) -> MaskJob {
        MaskJob {
            id: SequenceId(id),
            matcher: Box::new(Waits(barrier.clone())),
            asked: Asked::Next { tokens: Vec::new(), may_force: false },
            position: 0,
            drafts: Vec::new(),
            draws: false,
            words: 1,
            habit,
        }
    }

    /// The results of `jobs`, message by message.
    async fn messages(mut threads: MaskThreads, jobs: Vec<MaskJob>) -> Vec<Vec<u64>> {
        let mut left = jobs.len();
        let mut messages = Vec::new();
        let mut message = threads.submit(jobs);
        while left > 0 {
            if !message.is_empty() {
                left -= message.len();
                messages.push(message.iter().map(|result| result.id.0).collect());
            }
            if left > 0 {
                message = timeout(IN_TIME, threads.next()).await.expect("the jobs end");
            }
        }
        messages
    }

    #[tokio::test]
    async fn quick_jobs_do_not_wait_for_slow_ones_that_came_with_them() {
        let alone = Arc::new(Barrier::new(1));
        let slow = Habit::after(20, Duration::from_millis(10));
        // Done by whoever submits them, and by a thread.
        for took in [Duration::from_micros(10), Duration::from_micros(150)] {
            let quick = Habit::after(20, took);
            for first_is_slow in [false, true] {
                let habits = if first_is_slow { [slow, quick] } else { [quick, slow] };
                let jobs = habits.iter().zip(0..).map(|(habit, id)| job(id, &alone, *habit)).collect();
                let order = if first_is_slow { [[1], [0]] } else { [[0], [1]] };
                assert_eq!(messages(MaskThreads::of_threads(1), jobs).await, order, "{took:?}");
            }
        }
    }

    #[tokio::test]
    async fn slow_jobs_are_done_beside_one_another() {
        for habit in [Habit::default(), Habit::after(3, Duration::from_millis(50))] {
            let together = Arc::new(Barrier::new(4));
            let jobs = (0..4).map(|id| job(id, &together, habit)).collect();
            let messages = messages(MaskThreads::of_threads(4), jobs).await;
            assert_eq!(messages.iter().map(Vec::len).sum::<usize>(), 4);
        }
    }

    #[tokio::test]
    async fn without_threads_jobs_are_done_by_whoever_submits_them() {
        let alone = Arc::new(Barrier::new(1));
        let jobs = (0..3).map(|id| job(id, &alone, Habit::default())).collect();
        assert_eq!(messages(MaskThreads::of_threads(0), jobs).await, [[0, 1, 2]]);
    }
}
