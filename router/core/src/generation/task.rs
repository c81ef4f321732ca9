//! A running generation: the task that turns what the scheduler tells of a sequence into text events, and the handle by
//! which a dialect reads them.

use std::sync::Arc;
use std::time::Instant;

use penstock_proto::ids::TokenId;
use tokio::sync::mpsc;

use crate::generation::event::{
    Done, FinishReason, GenerationEvent, GenerationFailure, PromptToken, Timings, TokenEvent,
};
use crate::generation::metrics::Tokens;
use crate::generation::output_processor::{OutputProcessor, Processed, alone, each_alone};
use crate::generation::progress::Progress;
use crate::prompt::Vocabulary;
use crate::scheduler::{Permit, PromptLogprob, SequenceEvent, Submitted};

/// A running generation. Dropped before its end, it is cancelled.
pub struct Generation {
    prompt_tokens: u32,
    progress: Arc<Progress>,
    permit: Arc<Permit>,
    events: mpsc::Receiver<GenerationEvent>,
    /// Looked at by `first`, not yet taken by `next`.
    seen: Option<GenerationEvent>,
    ended: bool,
}

impl Generation {
    /// Starts the task. The channel holds all events that it can ever send, so that a
    /// client who reads slowly delays neither the end of the sequence nor the finding of a stop string.
    pub fn spawn(task: GenerationTask, submitted: Submitted, max_new_tokens: u32) -> Self {
        let (sender, events) = mpsc::channel(max_new_tokens as usize + 1);
        let (prompt_tokens, progress) = (task.prompt_tokens, task.progress.clone());
        let permit = submitted.permit.clone();
        tokio::spawn(task.run(submitted, sender));
        Self { prompt_tokens, progress, permit, events, seen: None, ended: false }
    }

    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Kept as long as the answer takes up memory.
    pub fn permit(&self) -> &Arc<Permit> {
        &self.permit
    }

    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Waits until there is something to stream. A failure before the first token is returned here, so
    /// that it can be the status of the answer; otherwise the event stays for `next`.
    pub async fn first(&mut self) -> Result<(), GenerationFailure> {
        match self.next().await {
            Some(GenerationEvent::Failed(failure)) => Err(failure),
            event => {
                self.seen = event;
                Ok(())
            }
        }
    }

    /// `None` after `Done` or `Failed`. Can be dropped and called again without losing an event.
    pub async fn next(&mut self) -> Option<GenerationEvent> {
        if let Some(event) = self.seen.take() {
            return Some(event);
        }
        if self.ended {
            return None;
        }
        let event = self.events.recv().await.unwrap_or_else(|| {
            tracing::error!("the task of a generation ended without telling how");
            GenerationEvent::Failed(GenerationFailure::BrokenOff)
        });
        self.ended = !matches!(event, GenerationEvent::Token(_));
        Some(event)
    }
}

/// The whole generation at once, for answers that are not streamed.
pub async fn collect(mut generation: Generation) -> Result<(Vec<TokenEvent>, Done), GenerationFailure> {
    let mut tokens = Vec::new();
    loop {
        match generation.next().await {
            Some(GenerationEvent::Token(token)) => tokens.push(token),
            Some(GenerationEvent::Done(done)) => return Ok((tokens, done)),
            Some(GenerationEvent::Failed(failure)) => return Err(failure),
            // Only if its end was read before.
            None => return Err(GenerationFailure::BrokenOff),
        }
    }
}

/// What the task of a generation knows: what came so far, and when.
pub struct GenerationTask {
    pub vocabulary: Arc<Vocabulary>,
    pub output: OutputProcessor,
    pub prompt_tokens: u32,
    /// Kept only to tell the log probabilities of its tokens.
    pub prompt: Vec<TokenId>,
    pub prefill: Vec<PromptToken>,
    pub seed: Option<u64>,
    pub arrival: Instant,
    pub progress: Arc<Progress>,
    pub counted: Tokens,
}

impl GenerationTask {
    /// Until the sequence ends or nobody listens. Dropping the ticket cancels what has not ended.
    async fn run(mut self, submitted: Submitted, listener: mpsc::Sender<GenerationEvent>) {
        let Submitted { mut events, ticket, permit, .. } = submitted;
        // The generation has it, too, and keeps it as long as the answer is wanted.
        drop(permit);
        loop {
            let event = tokio::select! {
                biased;
                () = listener.closed() => return,
                event = events.recv() => event,
            };
            let (token, finish) = match event {
                Some(SequenceEvent::Admitted { cached_tokens }) => {
                    self.progress.admitted(cached_tokens);
                    continue;
                }
                Some(SequenceEvent::PromptLogprobs(logprobs)) => {
                    let told = |(id, told): (TokenId, PromptLogprob)| PromptToken {
                        token: alone(&self.vocabulary, id, told.logprob),
                        top: each_alone(&self.vocabulary, &told.top),
                    };
                    self.prefill = self.prompt.drain(..).zip(logprobs).map(told).collect();
                    continue;
                }
                Some(SequenceEvent::Token(token)) => (token, None),
                Some(SequenceEvent::Finished { last, finish }) => (last, Some(finish)),
                Some(SequenceEvent::TimeUp) => {
                    let Processed { events, ended } = self.output.time_up();
                    return self.end(events, ended.unwrap_or(FinishReason::Length), &listener);
                }
                Some(SequenceEvent::Failed(failure)) => return self.fail(failure.into(), &listener),
                None => {
                    tracing::error!("the scheduler dropped a sequence without telling why");
                    return self.fail(GenerationFailure::BrokenOff, &listener);
                }
            };
            match self.progress.token(token.is_draft) {
                Some(last) => self.counted.another(last),
                // The request has ended: nobody listens.
                None => return,
            }
            let Processed { mut events, ended } = self.output.process(token, finish);
            if let Some(first) = events.first_mut().filter(|_| !self.prefill.is_empty()) {
                first.prefill = std::mem::take(&mut self.prefill);
            }
            match ended {
                None => send(events.into_iter().map(GenerationEvent::Token), &listener),
                Some(reason) => {
                    ticket.stop();
                    return self.end(events, reason, &listener);
                }
            }
        }
    }

    fn end(
        self,
        tokens: Vec<TokenEvent>,
        finish_reason: FinishReason,
        listener: &mpsc::Sender<GenerationEvent>,
    ) {
        let timeline = self.progress.ended();
        let now = timeline.ended.unwrap_or_else(Instant::now);
        let admitted = timeline.admitted.unwrap_or(now);
        let stop = self.output.stopped_by().filter(|_| finish_reason == FinishReason::StopSequence);
        let (text, generated_tokens) = self.output.into_text();
        let done = Done {
            text,
            finish_reason,
            stop,
            generated_tokens,
            seed: self.seed,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: timeline.cached_tokens,
            timings: Timings {
                validation: timeline.queued - self.arrival,
                queue: admitted - timeline.queued,
                inference: now - admitted,
                total: now - self.arrival,
            },
        };
        let tokens = tokens.into_iter().map(GenerationEvent::Token);
        send(tokens.chain([GenerationEvent::Done(done)]), listener);
    }

    fn fail(mut self, failure: GenerationFailure, listener: &mpsc::Sender<GenerationEvent>) {
        let tokens = self.output.break_off().into_iter().map(GenerationEvent::Token);
        send(tokens.chain([GenerationEvent::Failed(failure)]), listener);
    }
}

fn send(events: impl Iterator<Item = GenerationEvent>, listener: &mpsc::Sender<GenerationEvent>) {
    for event in events {
        // There is room for all. An error means that nobody listens any more, which the task notices by itself.
        let _ = listener.try_send(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::event::TextToken;
    use crate::generation::request::StopText;
    use crate::prompt::samples;
    use crate::scheduler::{Finish, Release, SampledToken, SequenceFailure, Ticket, Unavailable};
    use penstock_proto::ids::SequenceId;
    use std::time::Duration;
    use tokio::sync::oneshot;

    /// A sequence as the scheduler would run it, driven by the test.
    struct Script {
        events: mpsc::UnboundedSender<SequenceEvent>,
        released: oneshot::Receiver<Release>,
        generation: Generation,
    }

    fn ids(text: &str) -> Vec<TokenId> {
        let encoding = samples::byte_level().encode_fast(text, false).unwrap();
        encoding.get_ids().iter().copied().map(TokenId).collect()
    }

    fn sampled(id: TokenId) -> SampledToken {
        SampledToken { id, logprob: -1.0, top: Vec::new(), is_draft: false }
    }

    fn finished(text: &str, finish: Finish) -> SequenceEvent {
        SequenceEvent::Finished { last: sampled(ids(text)[0]), finish }
    }

    fn script(prompt: &str, stop: &[&str]) -> Script {
        let vocabulary = Arc::new(Vocabulary::new(samples::byte_level(), &[]));
        let stop: Vec<String> = stop.iter().map(|s| s.to_string()).collect();
        let prompt = ids(prompt);
        let progress = Arc::new(Progress::new(prompt.len() as u32, 100));
        let task = GenerationTask {
            output: OutputProcessor::new(vocabulary.clone(), &prompt, &stop, StopText::Omit, 0),
            vocabulary,
            prompt_tokens: prompt.len() as u32,
            prompt,
            prefill: Vec::new(),
            seed: Some(7),
            arrival: progress.so_far().queued - Duration::from_millis(5),
            progress,
            counted: Tokens::default(),
        };
        let (sender, events) = mpsc::unbounded_channel();
        let (release, released) = oneshot::channel();
        let id = SequenceId(1);
        let ticket = Ticket::new(id, move |_, why| {
            let _ = release.send(why);
        });
        let generation =
            Generation::spawn(task, Submitted { id, events, ticket, permit: Permit::alone() }, 100);
        Script { events: sender, released, generation }
    }

    impl Script {
        fn tell(&self, event: SequenceEvent) {
            let _ = self.events.send(event);
        }

        fn tokens(&self, text: &str) {
            ids(text).into_iter().for_each(|id| self.tell(SequenceEvent::Token(sampled(id))));
        }

        async fn text(&mut self) -> String {
            match self.generation.next().await {
                Some(GenerationEvent::Token(token)) => token.text,
                other => panic!("{other:?} is no token"),
            }
        }
    }

    #[tokio::test]
    async fn a_sequence_becomes_a_stream_of_text() {
        let mut script = script("a", &[]);
        script.tell(SequenceEvent::Admitted { cached_tokens: 3 });
        script.tokens("hello hello");
        assert_eq!(script.text().await, "hello");
        assert_eq!(script.text().await, " hello");
        script.tell(finished("<|end|>", Finish::Eos));
        assert_eq!(script.text().await, "<|end|>");
        let Some(GenerationEvent::Done(done)) = script.generation.next().await else { panic!("it is done") };
        assert_eq!((done.text.as_str(), done.finish_reason), ("hello hello", FinishReason::EosToken));
        assert_eq!((done.generated_tokens, done.prompt_tokens, done.cached_tokens), (3, 1, 3));
        assert_eq!(done.seed, Some(7));
        let Timings { validation, queue, inference, total } = done.timings;
        assert_eq!(validation, Duration::from_millis(5));
        assert_eq!(validation + queue + inference, total);
        assert!(script.generation.next().await.is_none());
    }

    #[tokio::test]
    async fn collecting_gives_the_same_as_streaming() {
        let script = script("a", &[]);
        script.tell(SequenceEvent::Admitted { cached_tokens: 0 });
        script.tokens("hello");
        script.tell(finished(" hello", Finish::Length));
        let (tokens, done) = collect(script.generation).await.unwrap();
        assert_eq!(tokens.iter().map(|token| token.text.as_str()).collect::<String>(), done.text);
        assert_eq!((done.text.as_str(), done.finish_reason), ("hello hello", FinishReason::Length));
    }

    #[tokio::test]
    async fn prompt_log_probabilities_come_with_their_tokens() {
        let script = script("hello!", &[]);
        script.tell(SequenceEvent::Admitted { cached_tokens: 0 });
        script.tell(SequenceEvent::PromptLogprobs(vec![
            PromptLogprob::default(),
            PromptLogprob { logprob: Some(-2.0), top: vec![(ids("a")[0], -0.5)] },
        ]));
        script.tell(finished("a", Finish::Length));
        let (tokens, _) = collect(script.generation).await.unwrap();
        let told = |told: &TextToken| (told.text.clone(), told.logprob);
        let prefill: Vec<_> = tokens[0].prefill.iter().map(|entry| told(&entry.token)).collect();
        assert_eq!(prefill, [("hello".into(), None), ("!".into(), Some(-2.0))]);
        let tops: Vec<Vec<_>> =
            tokens[0].prefill.iter().map(|entry| entry.top.iter().map(told).collect()).collect();
        assert_eq!(tops, [vec![], vec![("a".into(), Some(-0.5))]]);
    }

    #[tokio::test]
    async fn a_stop_string_stops_the_sequence_though_nobody_reads() {
        let script = script("a", &["!"]);
        script.tokens("hello! hello");
        assert_eq!(script.released.await, Ok(Release::Stopped));
        let (tokens, done) = collect(script.generation).await.unwrap();
        assert_eq!((tokens.len(), done.text.as_str()), (2, "hello"));
        assert_eq!(done.finish_reason, FinishReason::StopSequence);
    }

    #[tokio::test]
    async fn stop_strings_do_not_match_in_the_prompt() {
        let script = script("!", &["!!", "a!"]);
        script.tokens("!a");
        script.tell(finished("a", Finish::Length));
        let (_, done) = collect(script.generation).await.unwrap();
        assert_eq!((done.text.as_str(), done.finish_reason), ("!aa", FinishReason::Length));
    }

    #[tokio::test]
    async fn a_generation_that_is_dropped_is_cancelled() {
        let mut script = script("a", &[]);
        script.tokens("hello");
        script.text().await;
        drop(script.generation);
        assert_eq!(script.released.await, Ok(Release::Cancelled));
    }

    #[tokio::test]
    async fn one_that_is_dropped_while_it_is_queued_is_cancelled() {
        let script = script("a", &[]);
        drop(script.generation);
        assert_eq!(script.released.await, Ok(Release::Cancelled));
    }

    #[tokio::test]
    async fn a_failure_before_the_first_token_can_be_the_status() {
        let mut script = script("a", &[]);
        let gone = SequenceFailure::from(Unavailable::Stopping);
        script.tell(SequenceEvent::Failed(gone.clone()));
        assert_eq!(script.generation.first().await, Err(gone.into()));
        assert!(script.generation.next().await.is_none());
    }

    #[tokio::test]
    async fn looking_at_the_first_event_does_not_take_it() {
        let mut script = script("a", &[]);
        script.tokens("hello hello");
        script.generation.first().await.unwrap();
        script.generation.first().await.unwrap();
        assert_eq!(script.text().await, "hello");
        assert_eq!(script.text().await, " hello");
        let not_a_number = SequenceFailure::Row("not a number".into());
        script.tell(SequenceEvent::Failed(not_a_number.clone()));
        let Some(GenerationEvent::Failed(failure)) = script.generation.next().await else {
            panic!("it failed")
        };
        assert_eq!(failure, not_a_number.into());
    }

    #[tokio::test]
    async fn a_scheduler_that_vanishes_is_a_failure_not_a_silence() {
        let script = script("a", &[]);
        script.tokens("hello");
        drop(script.events);
        assert!(matches!(collect(script.generation).await, Err(GenerationFailure::BrokenOff)));
    }
}
