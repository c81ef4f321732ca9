//! Time that runs out: what cannot be begun within a request's deadline is refused at once, what waits past
//! it is refused then, and what runs past it ends. And how long a client that is refused should stay away,
//! by the cost model and the tokens in the queue.

use std::time::{Duration, Instant};

use super::core::Core;
use super::cost::Work;
use super::fairness::Ahead;
use super::handle::come_back_in;
use super::sequence::Sequence;
use super::submission::{Finish, Late, SequenceEvent, SequenceFailure};

impl Sequence {
    /// When it is too late for a first token.
    fn time_up(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.stop_at).min()
    }
}

impl Core {
    /// When `expire` has something to do.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Ends what has no time left. A `stop_at` of a sequence that computes its prompt is left to its first token, and
    /// of others to the token in flight, if there is one.
    pub fn expire(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.due.first() {
            if at > now {
                return;
            }
            self.due.pop_first();
            let Some(&key) = self.by_id.get(&id) else { continue };
            let sequence = &self.sequences[key];
            let begun = sequence.has_output() || sequence.slot.is_some();
            if !begun {
                let retry_after = come_back_in(self.retry_after(now));
                self.fail(key, SequenceFailure::TooLate { late: Late::Waited, retry_after }, now);
            } else if sequence.deadline == Some(at) {
                let generated = sequence.tokens.len() as u32 - sequence.prompt_len;
                self.fail(key, SequenceFailure::OutOfTime { generated }, now);
            } else if sequence.has_output() && sequence.samples_in_flight == 0 {
                let end = match self.sequences[key].take_held() {
                    Some(last) => SequenceEvent::Finished { last, finish: Finish::Length },
                    // The grammar has still to say whether it may be the last.
                    None if self.sequences[key].held() > 0 => continue,
                    None => SequenceEvent::TimeUp,
                };
                self.forgo_verdict(key);
                self.finish(key, end, now);
            }
        }
    }

    /// Why a sequence that just came cannot be begun in time, if so.
    pub(super) fn too_late(&mut self, sequence: &Sequence, now: Instant) -> Option<SequenceFailure> {
        let last = sequence.time_up()?;
        let wait = self.until_first_token(sequence, now);
        if now < last && (now + wait <= last || self.probes(sequence)) {
            return None;
        }
        let left = last.saturating_duration_since(now);
        let late = Late::Expected { after: wait, left };
        Some(SequenceFailure::TooLate { late, retry_after: come_back_in(wait.saturating_sub(left)) })
    }

    /// Whether it is begun though it is expected to be late.
    fn probes(&mut self, sequence: &Sequence) -> bool {
        let computes_prompts = self.running.iter().any(|&key| !self.sequences[key].continues());
        let is_idle = self.waiting.len() == 0 && !computes_prompts && self.has_slot();
        is_idle && self.probes.try_one(sequence.id)
    }

    /// A sequence has a token.
    pub(super) fn end_probe(&mut self, key: usize, now: Instant) {
        let sequence = &self.sequences[key];
        if self.probes.last == Some(sequence.id) {
            self.probes.last = None;
            if sequence.time_up().is_none_or(|last| now <= last) {
                self.probes.refusals = 0;
            }
        }
    }

    /// How long a refused client should wait: until a permit is free, if sequences go on ending as they did,
    /// and until the prompts that wait are computed. With many waiting, many are refused too, so a part of
    /// the queue is added.
    pub fn retry_after(&self, now: Instant) -> Duration {
        let waiting = self.waiting.len() as u64;
        let interval = self.completions.interval(now).unwrap_or(Duration::from_secs(1));
        let ended = interval * (1 + waiting as u32 / 8);
        ended.max(self.prompt_time(Ahead { sequences: waiting, tokens: self.waiting.tokens() }) / 8)
    }

    /// Expected, from what is known now: the prompts that are computed before it and its own, and, when there
    /// is no slot or no room, as many ends as there are sequences before it.
    fn until_first_token(&mut self, sequence: &Sequence, now: Instant) -> Duration {
        let own = u64::from(sequence.prompt_len);
        let ahead = self.waiting.ahead(sequence.account, sequence.priority, own);
        let computing =
            self.running.iter().map(|&key| &self.sequences[key]).filter(|sequence| !sequence.continues());
        let running: u64 = computing
            .map(|sequence| {
                u64::from((sequence.tokens.len() as u32).saturating_sub(sequence.num_scheduled_tokens))
            })
            .sum();
        let before = Ahead { sequences: ahead.sequences + 1, tokens: ahead.tokens + running + own };
        let prompts = self.prompt_time(before);
        let outranks = |&last: &usize| sequence.priority < self.sequences[last].priority;
        let is_full =
            (!self.has_slot() || self.blocked.is_some()) && !self.running.last().is_some_and(outranks);
        // Before any sequence has ended nothing is known of when the next one will.
        let ends = self.completions.interval(now).filter(|_| is_full).unwrap_or_default();
        prompts.max(ends * u32::try_from(ahead.sequences + 1).unwrap_or(u32::MAX))
    }

    /// How long so many prompts take beside the decodes that run, if the prefix cache goes on helping as it
    /// did.
    fn prompt_time(&self, prompts: Ahead) -> Duration {
        if prompts.tokens == 0 {
            return Duration::ZERO;
        }
        let (computed, cached) = (self.counters.prompt_tokens as f64, self.counters.prefix_hit_tokens as f64);
        let share = if computed > 0.0 { computed / (computed + cached) } else { 1.0 };
        let tokens = (prompts.tokens as f64 * share).max(1.0);
        let mut decodes = Work { prompts: true, ..Work::default() };
        for sequence in
            self.running.iter().map(|&key| &self.sequences[key]).filter(|sequence| sequence.continues())
        {
            decodes.add(sequence.num_scheduled_tokens, 1);
        }
        let least = self.pool.block_size();
        let mut chunk = self.throttle.tokens().saturating_sub(decodes.tokens).max(least);
        if let Some(target) = self.rules.target_itl.filter(|_| decodes.tokens > 0) {
            chunk = chunk.min(self.cost.chunk_within(target, decodes, 0, false).max(least));
        }
        let length = prompts.tokens as f64 / prompts.sequences.max(1) as f64;
        self.cost.expect_prompts(tokens, length, chunk, decodes)
    }
}
