//! A running generation: what the scheduler tells of a sequence, as text events. It has no task of its own: the text is made
//! where it is read, when it is read, in the task of its connection.
//!
//! Only a stop string must not wait for the reader, since until it is found the sequence goes on. So a generation that has
//! some also has an attendant, a task that sleeps until the reader is behind, and then reads in its place.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures::future::poll_fn;
use penstock_output::Unbound;
use penstock_proto::ids::TokenId;
use tokio::task::AbortHandle;

use crate::generation::event::{
    Done, FinishReason, GenerationEvent, GenerationFailure, PromptToken, Timings, TokenEvent,
};
use crate::generation::metrics::Tokens;
use crate::generation::output_processor::OutputProcessor;
use crate::generation::progress::Progress;
use crate::prompt::Vocabulary;
use crate::scheduler::{Permit, PromptLogprob, SequenceEvent, SequenceEvents, Submitted, Ticket, Told};

/// A running generation. Dropped before its end, it is cancelled.
pub struct Generation {
    prompt_tokens: u32,
    progress: Arc<Progress>,
    permit: Arc<Permit>,
    reading: Arc<Mutex<Reading>>,
    attendant: Option<AbortHandle>,
    /// Looked at by `first`, not yet taken by `next`.
    seen: Option<GenerationEvent>,
    /// What of its optional grammar it is not held to.
    unbound: Vec<Unbound>,
}

impl Generation {
    pub fn new(text: TextState, submitted: Submitted, unbound: Vec<Unbound>) -> Self {
        let Submitted { events, ticket, permit, .. } = submitted;
        let (prompt_tokens, progress) = (text.prompt_tokens, text.progress.clone());
        let has_stop_strings = text.output.has_stop_strings();
        let reading = Arc::new(Mutex::new(Reading {
            text,
            events: Some(events),
            ticket: Some(ticket),
            ready: VecDeque::new(),
            end: None,
        }));
        let attendant = has_stop_strings.then(|| tokio::spawn(attend(reading.clone())).abort_handle());
        Self { prompt_tokens, progress, permit, reading, attendant, seen: None, unbound }
    }

    pub fn unbound(&self) -> &[Unbound] {
        &self.unbound
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
        poll_fn(|context| self.poll_next(context)).await
    }

    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<GenerationEvent>> {
        match self.seen.take() {
            Some(event) => Poll::Ready(Some(event)),
            None => lock(&self.reading).poll_next(context),
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if let Some(attendant) = &self.attendant {
            attendant.abort();
        }
        lock(&self.reading).close();
    }
}

fn lock(reading: &Mutex<Reading>) -> MutexGuard<'_, Reading> {
    reading.lock().expect("nothing panics while it holds this lock")
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

/// Reads what a reader that is behind has not read, so that a stop string is found.
async fn attend(reading: Arc<Mutex<Reading>>) {
    poll_fn(|context| lock(&reading).poll_attend(context)).await;
}

/// A sequence that is read.
struct Reading {
    text: TextState,
    /// `None` when it has ended.
    events: Option<SequenceEvents>,
    /// Dropped, it cancels what has not ended.
    ticket: Option<Ticket>,
    /// What was read and not told yet, and how it ended.
    ready: VecDeque<TokenEvent>,
    end: Option<GenerationEvent>,
}

impl Reading {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<GenerationEvent>> {
        loop {
            if let Some(token) = self.ready.pop_front() {
                return Poll::Ready(Some(GenerationEvent::Token(token)));
            }
            let Some(events) = &mut self.events else { return Poll::Ready(self.end.take()) };
            match ready!(events.poll_next(context)) {
                Some(told) => self.take(told),
                None => self.break_off(),
            }
        }
    }

    fn poll_attend(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(events) = &mut self.events else { return Poll::Ready(()) };
            ready!(events.poll_behind(context));
            match events.try_next() {
                Some(told) => self.take(told),
                None => self.break_off(),
            }
        }
    }

    fn take(&mut self, told: Told) {
        // One request's, and not the end of all that are on its connection.
        if catch_unwind(AssertUnwindSafe(|| self.read(told))).is_err() {
            tracing::error!("the text of a generation could not be made");
            self.fail(GenerationFailure::BrokenOff);
        }
    }

    fn read(&mut self, Told { at, event }: Told) {
        let (token, finish) = match event {
            SequenceEvent::Admitted { cached_tokens } => {
                return self.text.progress.admitted(cached_tokens, at);
            }
            SequenceEvent::PromptLogprobs(logprobs) => return self.text.told_of_prompt(logprobs),
            SequenceEvent::Token(token) => (token, None),
            SequenceEvent::Finished { last, finish } => (last, Some(finish)),
            SequenceEvent::TimeUp => {
                let ended = self.text.output.time_up(&mut self.ready);
                self.tell_prompt();
                return self.finish(ended.unwrap_or(FinishReason::Length), at);
            }
            SequenceEvent::Failed(failure) => return self.fail(failure.into()),
        };
        // Once the request has ended nobody counts, and nobody listens.
        if let Some(last) = self.text.progress.token(token.is_draft, at) {
            self.text.counted.another(at, last);
        }
        let ended = self.text.output.process(token, finish, &mut self.ready);
        self.tell_prompt();
        if let Some(reason) = ended {
            if let Some(ticket) = self.ticket.take() {
                ticket.stop();
            }
            self.finish(reason, at);
        }
    }

    /// With the first token, what was asked of the prompt's.
    fn tell_prompt(&mut self) {
        if let Some(first) = self.ready.front_mut().filter(|_| !self.text.prefill.is_empty()) {
            first.prefill = std::mem::take(&mut self.text.prefill);
        }
    }

    fn finish(&mut self, finish_reason: FinishReason, at: Instant) {
        let done = self.text.done(finish_reason, at);
        self.end(GenerationEvent::Done(done));
    }

    fn fail(&mut self, failure: GenerationFailure) {
        self.ready.extend(self.text.output.break_off());
        self.tell_prompt();
        self.end(GenerationEvent::Failed(failure));
    }

    fn break_off(&mut self) {
        tracing::error!("the scheduler dropped a sequence without telling why");
        self.fail(GenerationFailure::BrokenOff);
    }

    /// Nothing more is read.
    fn end(&mut self, event: GenerationEvent) {
        self.end = Some(event);
        (self.events, self.ticket) = (None, None);
    }

    /// Nobody listens any more. What came and was not read was generated all the same.
    fn close(&mut self) {
        let Some(mut events) = self.events.take() else { return };
        while let Some(Told { at, event }) = events.try_next() {
            if let SequenceEvent::Token(token) | SequenceEvent::Finished { last: token, .. } = event
                && let Some(last) = self.text.progress.token(token.is_draft, at)
            {
                self.text.counted.another(at, last);
            }
        }
        self.ticket = None;
    }
}

/// What a generation knows of its text: what came so far, and when.
pub struct TextState {
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

impl TextState {
    fn told_of_prompt(&mut self, logprobs: Vec<PromptLogprob>) {
        let tokens = std::mem::take(&mut self.prompt).into_iter().zip(logprobs);
        let told = tokens.map(|(id, PromptLogprob { logprob, top })| PromptToken { id, logprob, top });
        self.prefill = told.collect();
    }

    fn done(&mut self, finish_reason: FinishReason, at: Instant) -> Done {
        let timeline = self.progress.ended(at);
        let now = timeline.ended.unwrap_or(at);
        let admitted = timeline.admitted.unwrap_or(now);
        let stop = self.output.stopped_by().filter(|_| finish_reason == FinishReason::StopSequence);
        let (text, generated_tokens) = self.output.take_text();
        Done {
            text,
            finish_reason,
            stop,
            generated_tokens,
            skipped_tokens: timeline.skipped_tokens,
            seed: self.seed,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: timeline.cached_tokens,
            timings: Timings {
                validation: timeline.queued - self.arrival,
                queue: admitted - timeline.queued,
                inference: now - admitted,
                total: now - self.arrival,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::request::StopText;
    use crate::prompt::samples;
    use crate::scheduler::mailbox::{Dispatcher, EventSender, mailbox};
    use crate::scheduler::{Finish, Release, SampledToken, SequenceFailure, Ticket, Unavailable};
    use penstock_proto::ids::SequenceId;
    use std::time::Duration;
    use tokio::sync::oneshot;

    /// A sequence as the scheduler would run it, driven by the test.
    struct Script {
        events: EventSender,
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
        let text = TextState {
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
        let (sender, events) = mailbox(&Dispatcher::new(None));
        let (release, released) = oneshot::channel();
        let id = SequenceId(1);
        let ticket = Ticket::new(id, move |_, why| {
            let _ = release.send(why);
        });
        let generation =
            Generation::new(text, Submitted { id, events, ticket, permit: Permit::alone() }, Vec::new());
        Script { events: sender, released, generation }
    }

    impl Script {
        fn tell(&self, event: SequenceEvent) {
            self.events.send(event);
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
        let told = |text, logprob, top| PromptToken { id: ids(text)[0], logprob, top };
        let expected = [told("hello", None, vec![]), told("!", Some(-2.0), vec![(ids("a")[0], -0.5)])];
        assert_eq!(tokens[0].prefill, expected);
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
