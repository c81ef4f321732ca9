//! Runs one request: prompt to tokens, limits, scheduler, and a task that turns what the scheduler tells
//! into text events. The dialects call `start` and read the events.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use penstock_proto::ids::TokenId;
use tokio::sync::mpsc;

use crate::generation::event::{
    Done, FinishReason, GenerationEvent, GenerationFailure, InvalidRequest, Part, PromptToken, Timings,
    TokenEvent,
};
use crate::generation::metrics::Tokens;
use crate::generation::output_processor::{OutputProcessor, Processed, alone, each_alone};
use crate::generation::progress::Progress;
use crate::generation::request::{Caller, GenerationRequest};
use crate::prompt::{Input, Length, Prompt, PromptError, Vocabulary};
use crate::scheduler::{
    Handle, Permit, PromptLogprob, Refused, Sampling, SequenceEvent, SequenceFailure, SequenceSpec,
    Submitted, Tenant, Watermark,
};

/// Bounds that depend on the prompt's length, and of token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptLimits {
    pub max_input_tokens: u32,
    pub max_total_tokens: u32,
    /// Of an encoder-decoder, what its decoder has positions for.
    pub max_new_tokens: u32,
    /// The model's; token ids below it are valid.
    pub vocab_size: u32,
}

/// What generations share.
#[derive(Clone)]
pub struct Serving {
    pub prompt: Arc<Prompt>,
    pub scheduler: Handle,
    pub limits: PromptLimits,
    /// What the decoder of an encoder-decoder begins with, while its encoder reads the prompt; empty for a decoder.
    pub decoder_start: Vec<TokenId>,
    /// Of the model and its revision.
    pub cache_namespace: u64,
    /// Requests of all keys share cached blocks.
    pub shared_cache: bool,
    /// What a request that asks for a watermark gets.
    pub watermark: Watermark,
    /// Digests what clients say of themselves: names of users, salts. Its key is random, so that nobody can look for
    /// two texts with one digest.
    pub digests: RandomState,
}

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

/// Tokenizes, checks the limits and submits.
pub async fn start(
    serving: &Serving,
    request: GenerationRequest,
    caller: &Caller,
) -> Result<Generation, GenerationFailure> {
    if request.stop.iter().any(String::is_empty) {
        return Err(InvalidRequest::EmptyStop.into());
    }
    // Before the prompt is tokenized, so that what waits for that has a bound too.
    let tenant = serving.tenant(caller, request.user.as_deref());
    let place = serving.scheduler.reserve(tenant)?;
    let prompt = serving.encode(request.input, request.truncate).await?;
    let max_new_tokens = serving.limits_now().check(&prompt, request.max_new_tokens)?;
    let min_new_tokens = request.min_new_tokens;
    if min_new_tokens > max_new_tokens {
        return Err(InvalidRequest::MinNewTokens { limit: max_new_tokens, given: min_new_tokens }.into());
    }

    let vocabulary = serving.prompt.vocabulary().clone();
    let has_encoder = !serving.decoder_start.is_empty();
    // An encoder reads; it says nothing of how likely its tokens were.
    let prompt_logprobs = request.prompt_logprobs && !has_encoder;
    let read = if request.prompt_logprobs && has_encoder { &prompt[..] } else { &[] };
    let without = |&id| PromptToken { token: alone(&vocabulary, id, None), top: Vec::new() };
    let prefill = read.iter().map(without).collect();
    let before = if has_encoder { &serving.decoder_start } else { &prompt };
    let output =
        OutputProcessor::new(vocabulary.clone(), before, &request.stop, request.stop_text, min_new_tokens);
    let task = GenerationTask {
        output: if request.max_time.is_some() { output.keep_last() } else { output },
        vocabulary,
        prompt_tokens: prompt.len() as u32,
        prompt: if prompt_logprobs { prompt.clone() } else { Vec::new() },
        prefill,
        seed: request.reported_seed,
        arrival: caller.arrival,
        progress: Arc::new(Progress::new(prompt.len() as u32, max_new_tokens)),
        counted: Tokens::default(),
    };
    let (encoder, prompt) = match has_encoder {
        true => (prompt, serving.decoder_start.clone()),
        false => (Vec::new(), prompt),
    };
    let spec = SequenceSpec {
        encoder,
        prompt,
        sampling: Sampling {
            min_new_tokens,
            watermark: request.watermark.then_some(serving.watermark),
            ..request.sampling
        },
        max_new_tokens,
        ignore_eos: request.ignore_eos,
        stop_token_ids: request.stop_token_ids,
        top_tokens: request.top_tokens,
        prompt_logprobs,
        cache_namespace: serving.namespace(caller, &request.cache_salts),
        tenant,
        deadline: caller.deadline,
        stop_at: request.max_time.map(|time| caller.arrival + time),
        trace: caller.trace,
    };
    let submitted = serving.scheduler.submit_with(place, spec)?;
    Ok(Generation::spawn(task, submitted, max_new_tokens))
}

impl Serving {
    /// The token ids of a prompt, at most the last `truncate` of them. One that is certainly too long is refused
    /// before it is tokenized to its end.
    pub async fn encode(&self, input: Input, truncate: Option<u32>) -> Result<Vec<TokenId>, PromptError> {
        let length = truncate.map_or_else(|| Length::Within(self.limits_now().most_input()), Length::Last);
        self.prompt.encode(input, length).await
    }

    /// A place for a request that generates nothing.
    pub fn reserve(&self, caller: &Caller, user: Option<&str>) -> Result<Arc<Permit>, GenerationFailure> {
        Ok(self.scheduler.reserve(self.tenant(caller, user))?)
    }

    /// Restarted workers may have less memory than those that the limits were derived from.
    fn limits_now(&self) -> PromptLimits {
        let max_total_tokens = self.limits.max_total_tokens.min(self.scheduler.max_request_tokens());
        PromptLimits { max_total_tokens, ..self.limits }
    }

    /// Where this is the same, sequences share cached blocks, and `cached_tokens` and the time to the first token tell
    /// of one another's prompts. So it is the key's. A salt divides it further, and never leads out of it.
    fn namespace(&self, caller: &Caller, salts: &[String]) -> u64 {
        let key = caller.key.filter(|_| !self.shared_cache || !salts.is_empty());
        match (key, salts) {
            (None, []) => self.cache_namespace,
            _ => self.digests.hash_one((self.cache_namespace, key, salts)),
        }
    }

    /// Whom the queue is to be fair to: the key, which cannot be made up; without keys, the address, and whom the
    /// client there names.
    fn tenant(&self, caller: &Caller, user: Option<&str>) -> Tenant {
        match (caller.key, caller.address, user) {
            (Some(key), ..) => Tenant::Key(key),
            (None, Some(address), Some(user)) => Tenant::User(address, self.digests.hash_one(user)),
            (None, Some(address), None) => Tenant::Address(address),
            (None, None, _) => Tenant::Anonymous,
        }
    }
}

impl PromptLimits {
    /// Tokens of a prompt. The workers' memory may allow for less than the flag does.
    fn most_input(&self) -> u32 {
        self.max_input_tokens.min(self.max_total_tokens.saturating_sub(1))
    }

    /// How many tokens may be generated: as many as asked for, or as fit.
    fn check(&self, prompt: &[TokenId], asked: Option<u32>) -> Result<u32, InvalidRequest> {
        let Self { max_total_tokens, max_new_tokens, vocab_size, .. } = *self;
        let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if prompt.is_empty() {
            return Err(InvalidRequest::EmptyPrompt);
        }
        if let Some(TokenId(id)) = prompt.iter().find(|token| token.0 >= vocab_size) {
            return Err(InvalidRequest::TokenId { limit: vocab_size, given: *id });
        }
        if asked == Some(0) {
            return Err(InvalidRequest::NoNewTokens);
        }
        let most = self.most_input();
        if let Some(new) = asked
            && new > max_new_tokens
        {
            return Err(InvalidRequest::NewTokens { limit: max_new_tokens, given: new });
        }
        if let Some(new) = asked
            && length.saturating_add(new) > max_total_tokens
        {
            let blames = if length > most { Part::Prompt } else { Part::NewTokens };
            return Err(InvalidRequest::TotalTokens { limit: max_total_tokens, prompt: length, new, blames });
        }
        if length > most {
            return Err(InvalidRequest::PromptTokens { limit: most, given: length });
        }
        Ok(asked.unwrap_or(max_new_tokens.min(max_total_tokens - length)))
    }
}

impl Generation {
    /// Starts the task. The channel holds all events that it can ever send, so that a
    /// client who reads slowly delays neither the end of the sequence nor the finding of a stop string.
    fn spawn(task: GenerationTask, submitted: Submitted, max_new_tokens: u32) -> Self {
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
            GenerationEvent::Failed(broken_off())
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
            None => return Err(broken_off()),
        }
    }
}

fn broken_off() -> GenerationFailure {
    GenerationFailure::Failed("the generation broke off".into())
}

/// What the task of a generation knows: what came so far, and when.
struct GenerationTask {
    vocabulary: Arc<Vocabulary>,
    output: OutputProcessor,
    prompt_tokens: u32,
    /// Kept only to tell the log probabilities of its tokens.
    prompt: Vec<TokenId>,
    prefill: Vec<PromptToken>,
    seed: Option<u64>,
    arrival: Instant,
    progress: Arc<Progress>,
    counted: Tokens,
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
                    return self.fail(broken_off(), &listener);
                }
            };
            match self.progress.token() {
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
        let (text, generated_tokens) = self.output.into_text();
        let done = Done {
            text,
            finish_reason,
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

impl From<Refused> for GenerationFailure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full { retry_after } => Self::Overloaded { retry_after },
            Refused::Unavailable(why) => Self::Unavailable(why),
        }
    }
}

impl From<SequenceFailure> for GenerationFailure {
    fn from(failure: SequenceFailure) -> Self {
        match failure {
            SequenceFailure::Row(text) | SequenceFailure::Poisonous(text) => Self::Failed(text),
            SequenceFailure::Unavailable(text) => Self::Unavailable(text),
            SequenceFailure::TooLate { why, retry_after } => Self::TooLate { why, retry_after },
            SequenceFailure::OutOfTime(text) => Self::OutOfTime(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::{StopText, TextToken};
    use crate::prompt::samples;
    use crate::scheduler::{Finish, Release, SampledToken, Ticket};
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
        SampledToken { id, logprob: -1.0, top: Vec::new() }
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
        script.tell(SequenceEvent::Failed(SequenceFailure::Unavailable("gone".into())));
        assert_eq!(script.generation.first().await, Err(GenerationFailure::Unavailable("gone".into())));
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
        script.tell(SequenceEvent::Failed(SequenceFailure::Row("not a number".into())));
        let Some(GenerationEvent::Failed(failure)) = script.generation.next().await else {
            panic!("it failed")
        };
        assert_eq!(failure, GenerationFailure::Failed("not a number".into()));
    }

    #[tokio::test]
    async fn a_scheduler_that_vanishes_is_a_failure_not_a_silence() {
        let script = script("a", &[]);
        script.tokens("hello");
        drop(script.events);
        assert!(matches!(collect(script.generation).await, Err(GenerationFailure::Failed(_))));
    }

    #[test]
    fn lengths_are_checked_against_limits_that_the_error_names() {
        let limits = PromptLimits {
            max_input_tokens: 8,
            max_total_tokens: 10,
            max_new_tokens: u32::MAX,
            vocab_size: 100,
        };
        let check = |length: u32, asked| limits.check(&vec![TokenId(1); length as usize], asked);
        let too_many = |prompt, new, blames| InvalidRequest::TotalTokens { limit: 10, prompt, new, blames };
        assert_eq!(check(4, Some(6)), Ok(6));
        assert_eq!(check(4, None), Ok(6));
        assert_eq!(check(8, None), Ok(2));
        assert_eq!(check(4, Some(7)), Err(too_many(4, 7, Part::NewTokens)));
        assert_eq!(check(9, Some(7)), Err(too_many(9, 7, Part::Prompt)));
        assert_eq!(check(4, Some(u32::MAX)), Err(too_many(4, u32::MAX, Part::NewTokens)));
        let too_long = InvalidRequest::PromptTokens { limit: 8, given: 9 };
        assert_eq!((check(9, None), check(9, Some(1))), (Err(too_long), Err(too_long)));
        assert_eq!(check(0, None), Err(InvalidRequest::EmptyPrompt));
        assert_eq!(check(1, Some(0)), Err(InvalidRequest::NoNewTokens));
        let strange = limits.check(&[TokenId(99), TokenId(100)], None);
        assert_eq!(strange, Err(InvalidRequest::TokenId { limit: 100, given: 100 }));
        // Restarted workers may leave room for less than the flags allow.
        let shrunk = PromptLimits { max_total_tokens: 6, ..limits };
        assert_eq!(shrunk.check(&[TokenId(1); 5], None), Ok(1));
        assert!(shrunk.check(&[TokenId(1); 6], None).is_err());
        // A decoder beside an encoder has positions of its own.
        let short = PromptLimits { max_new_tokens: 3, ..limits };
        assert_eq!(
            (short.check(&[TokenId(1); 4], None), short.check(&[TokenId(1); 8], None)),
            (Ok(3), Ok(2))
        );
        let refused = short.check(&[TokenId(1); 4], Some(4));
        assert_eq!(refused, Err(InvalidRequest::NewTokens { limit: 3, given: 4 }));
    }
}
