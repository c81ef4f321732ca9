//! Whole generations: a real tokenizer, the real scheduler, mock workers behind real sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_proto::ids::TokenId;
use tokio::time::timeout;

use super::{
    Caller, FinishReason, Generation, GenerationEvent, GenerationFailure, GenerationRequest, Grammars, Input,
    InvalidRequest, Part, PromptLimits, Serving, StopText, collect, start,
};
use crate::health::Health;
use crate::prompt::{Prompt, samples};
use crate::scheduler::{
    Namespace, Priority, PromptLogprob, Refused, Sampling, SequenceSpec, Settings, Watermark,
};
use crate::tenant::Tenant;
use crate::worker::mock::{MockConfig, MockModel, MockSource};
use crate::worker::{Group, PrepareLimits};

/// Nothing here should take longer.
const DEADLINE: Duration = Duration::from_secs(30);

const LIMITS: PromptLimits =
    PromptLimits { max_input_tokens: 200, max_total_tokens: 300, max_new_tokens: 300, vocab_size: 264 };

struct Server {
    serving: Serving,
    source: Arc<MockSource>,
    config: MockConfig,
    _dirs: [tempfile::TempDir; 2],
}

async fn serve(max_live: u32) -> Server {
    serve_with(max_live, &[], LIMITS).await
}

/// With an encoder, if there is something that the decoder beside it begins with.
async fn serve_with(max_live: u32, decoder_start: &[u32], limits: PromptLimits) -> Server {
    let [sockets, model] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    samples::byte_level().save(model.path().join("tokenizer.json"), false).unwrap();
    // `<|end|>`, the sample's last token, ends sequences.
    let config = MockConfig {
        vocab_size: LIMITS.vocab_size,
        eos_ids: vec![LIMITS.vocab_size - 1],
        eos_one_in: 40,
        decoder_start_ids: decoder_start.to_vec(),
        ..MockConfig::default()
    };
    let source = Arc::new(MockSource::new(config.clone(), sockets.path().into()));
    let group = Group::start(&*source, |model| {
        Ok(PrepareLimits {
            max_slots: 16,
            max_step_tokens: if model.is_encoder_decoder() { 256 } else { 64 },
            max_sequence_tokens: limits.max_total_tokens + model.positions_beside(),
            max_cache_tokens: 0,
            memory_fraction: 0.9,
            max_step_drafts: 0,
        })
    });
    let group = group.await.unwrap();
    let settings = Settings {
        max_live,
        target_itl: None,
        eos: config.eos_ids.iter().copied().map(TokenId).collect(),
        step_timeout: Duration::from_secs(5),
        check_interval: Duration::from_secs(60),
        speculate: 0,
        speculate_corpus_tokens: 0,
        block_events: false,
        recorder: None,
    };
    let health = tokio::sync::watch::Sender::new(Health::Ready);
    let serving = Serving {
        prompt: Arc::new(Prompt::load(model.path(), None, None, 2).unwrap()),
        scheduler: crate::scheduler::spawn(group, source.clone(), settings, health).await,
        limits,
        decoder_start: decoder_start.iter().copied().map(TokenId).collect(),
        grammars: Arc::new(Grammars::new(async { Err("none here".into()) }, 1)),
        cache_namespace: Namespace(1),
        watermark: Watermark { greens: 100, delta: 2.0 },
        shared_cache: false,
        digests: Default::default(),
    };
    Server { serving, source, config, _dirs: [sockets, model] }
}

fn request(text: &str) -> GenerationRequest {
    GenerationRequest {
        input: Input::Text(text.into()),
        sampling: Sampling::default(),
        reported_seed: None,
        max_new_tokens: None,
        min_new_tokens: 0,
        watermark: false,
        truncate: None,
        stop: Vec::new(),
        stop_text: StopText::Keep,
        ignore_eos: false,
        stop_token_ids: Vec::new(),
        top_tokens: 0,
        prompt_logprobs: false,
        grammar: None,
        grammar_is_optional: false,
        adapter: None,
        user: None,
        cache_salt: None,
        priority: None,
        max_time: None,
    }
}

impl Server {
    /// Tokens of a prompt that another caller was answered, found in the cache by one with this key and this salt.
    async fn found(&self, first: (Option<u32>, Option<&str>), then: (Option<u32>, Option<&str>)) -> u32 {
        // No other prompt begins like this one.
        let prompt = format!("{}{}", self.source.steps(), " hello".repeat(60));
        let mut cached = 0;
        for (key, salt) in [first, then] {
            let request = GenerationRequest {
                cache_salt: salt.map(str::to_owned),
                max_new_tokens: Some(1),
                ..request(&prompt)
            };
            let key_digest = key.map(|key| [key as u8; 32]);
            let caller = Caller { key, key_digest, ..Caller::anonymous(Instant::now()) };
            let permit = self.serving.reserve(&caller, None).expect("a place");
            let generation = start(&self.serving, permit, request, &caller).await.expect("it starts");
            cached = collect(generation).await.expect("it ends well").1.cached_tokens;
        }
        cached
    }

    async fn start(&self, request: GenerationRequest) -> Result<Generation, GenerationFailure> {
        let caller = Caller::anonymous(Instant::now());
        let permit = self.serving.reserve(&caller, request.user.as_deref())?;
        timeout(DEADLINE, start(&self.serving, permit, request, &caller)).await.expect("in time")
    }

    /// The sequence that `request` is, and the tokens that it comes to.
    async fn expected(&self, request: &GenerationRequest) -> (SequenceSpec, Vec<TokenId>) {
        let prompt =
            self.serving.encode(Tenant::Anonymous, request.input.clone(), request.truncate).await.unwrap();
        let most = LIMITS.max_total_tokens - prompt.len() as u32;
        let (encoder, prompt) = match &self.serving.decoder_start[..] {
            [] => (Vec::new(), prompt),
            start => (prompt, start.to_vec()),
        };
        let spec = SequenceSpec {
            encoder,
            sampling: Sampling { min_new_tokens: request.min_new_tokens, ..request.sampling.clone() },
            max_new_tokens: request.max_new_tokens.unwrap_or(most),
            ignore_eos: request.ignore_eos,
            stop_token_ids: request.stop_token_ids.clone(),
            top_tokens: request.top_tokens,
            prompt_logprobs: request.prompt_logprobs,
            constraint: None,
            adapter: request.adapter,
            cache_namespace: self.serving.cache_namespace,
            tenant: Tenant::Anonymous,
            priority: Priority::default(),
            deadline: None,
            stop_at: None,
            trace: None,
            prompt,
        };
        let tokens = MockModel::reference(&self.config, &spec).into_iter().map(TokenId).collect();
        (spec, tokens)
    }

    /// Waits until no sequence lives.
    async fn idle(&self) {
        let idle = async {
            while self.serving.scheduler.stats().live > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, idle).await.expect("in time");
    }
}

#[tokio::test]
async fn a_request_becomes_the_text_of_its_tokens() {
    let server = serve(8).await;
    for text in ["hello", "hello hello é", "a prompt of some length, longer than one block of the cache"] {
        let request = GenerationRequest { top_tokens: 2, ..request(text) };
        let (spec, tokens) = server.expected(&request).await;
        let (events, done) = collect(server.start(request).await.unwrap()).await.unwrap();
        assert_eq!(events.iter().map(|event| event.id).collect::<Vec<_>>(), tokens);
        assert!(events.iter().all(|event| event.top.len() == 2));
        assert_eq!(done.text, server.serving.prompt.decode(&tokens));
        assert_eq!(done.generated_tokens as usize, tokens.len());
        assert_eq!(done.prompt_tokens as usize, spec.prompt.len());
        let ended = tokens.last() == Some(&TokenId(LIMITS.vocab_size - 1));
        assert_eq!(done.finish_reason, if ended { FinishReason::EosToken } else { FinishReason::Length });
    }
}

#[tokio::test]
async fn an_encoder_reads_the_prompt_and_the_text_begins_after_the_start_of_the_decoder() {
    let limits = PromptLimits { max_new_tokens: 90, ..LIMITS };
    let server = serve_with(8, &[5, 6], limits).await;
    for text in ["hello", "a prompt of some length, longer than one block of the cache"] {
        let request = GenerationRequest {
            max_new_tokens: Some(30),
            prompt_logprobs: true,
            top_tokens: 2,
            ..request(text)
        };
        let (spec, tokens) = server.expected(&request).await;
        let (events, done) = collect(server.start(request).await.unwrap()).await.unwrap();
        assert_eq!(events.iter().map(|event| event.id).collect::<Vec<_>>(), tokens);
        assert_eq!(done.text, server.serving.prompt.decode(&tokens));
        assert_eq!(done.prompt_tokens as usize, spec.encoder.len());
        let prefill = &events[0].prefill;
        assert_eq!(prefill.iter().map(|entry| entry.id).collect::<Vec<_>>(), spec.encoder);
        assert!(prefill.iter().all(|entry| entry.logprob.is_none() && entry.top.is_empty()));
    }
    let request = |new| GenerationRequest { max_new_tokens: new, ignore_eos: true, ..request("hello") };
    let (tokens, _) = collect(server.start(request(None)).await.unwrap()).await.unwrap();
    assert_eq!(tokens.len(), 90);
    let refused = server.start(request(Some(91))).await.map(drop);
    assert_eq!(refused, Err(InvalidRequest::NewTokens { limit: 90, given: 91 }.into()));
}

#[tokio::test]
async fn without_max_new_tokens_it_fills_what_is_left() {
    let server = serve(8).await;
    let request = GenerationRequest { ignore_eos: true, ..request("hello") };
    let (tokens, done) = collect(server.start(request).await.unwrap()).await.unwrap();
    assert_eq!(done.finish_reason, FinishReason::Length);
    assert_eq!(tokens.len() as u32, LIMITS.max_total_tokens - done.prompt_tokens);
}

#[tokio::test]
async fn what_is_over_the_limits_is_refused_before_it_is_queued() {
    let server = serve(8).await;
    let hello =
        server.serving.encode(Tenant::Anonymous, Input::Text("hello".into()), None).await.unwrap().len()
            as u32;
    for (request, expected) in [
        (request(""), InvalidRequest::EmptyPrompt),
        (request(&"a".repeat(201)), InvalidRequest::PromptTokens { limit: 200, given: 201 }),
        (
            GenerationRequest { max_new_tokens: Some(300), ..request("hello") },
            InvalidRequest::TotalTokens { limit: 300, prompt: hello, new: 300, blames: Part::NewTokens },
        ),
        (
            GenerationRequest { input: Input::Tokens(vec![TokenId(264)]), ..request("") },
            InvalidRequest::TokenId { limit: 264, given: 264 },
        ),
        (GenerationRequest { stop: vec![String::new()], ..request("hello") }, InvalidRequest::EmptyStop),
    ] {
        let refused = server.start(request).await.map(drop);
        assert_eq!(refused, Err(GenerationFailure::Invalid(expected)));
    }
    // The end of a long prompt can be asked for.
    let truncated =
        GenerationRequest { truncate: Some(7), max_new_tokens: Some(1), ..request(&"a".repeat(500)) };
    assert_eq!(server.start(truncated).await.unwrap().prompt_tokens(), 7);
}

#[tokio::test]
async fn a_dropped_generation_gives_its_place_back() {
    let server = serve(1).await;
    let long = GenerationRequest { ignore_eos: true, ..request("hello") };
    server.source.hold();
    server.source.kill();
    let running = server.start(long.clone()).await.unwrap();
    let refused = server.start(long.clone()).await.map(drop);
    assert!(matches!(refused, Err(GenerationFailure::Refused(Refused::Full { .. }))), "{refused:?}");
    drop(running);
    server.idle().await;
    server.source.release();
    assert!(collect(server.start(long).await.unwrap()).await.is_ok());
}

#[tokio::test]
async fn nothing_ends_the_text_before_the_minimum() {
    let server = serve(8).await;
    let free = GenerationRequest { ignore_eos: true, ..request("hello") };
    let (_, tokens) = server.expected(&free).await;
    let text = server.serving.prompt.decode(&tokens);
    let stop: String = text.chars().skip(5).take(1).collect();
    let mut ends_soon = request("");
    for prompt in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        ends_soon = request(prompt);
        if server.expected(&ends_soon).await.1.len() < 30 {
            break;
        }
    }
    let min_new_tokens = 40;
    for at_once in [
        GenerationRequest { stop_token_ids: vec![tokens[2]], ..free.clone() },
        GenerationRequest { stop: vec![stop], ..free },
        ends_soon,
    ] {
        let limited = GenerationRequest { min_new_tokens, ..at_once.clone() };
        let (early, _) = collect(server.start(at_once).await.unwrap()).await.unwrap();
        assert!(early.len() < 40, "{early:?}");
        let (_, done) = collect(server.start(limited).await.unwrap()).await.unwrap();
        assert!(done.generated_tokens > min_new_tokens, "{done:?}");
    }
    let most = GenerationRequest { max_new_tokens: Some(39), min_new_tokens, ..request("hello") };
    let refused = server.start(most).await.map(drop);
    assert_eq!(refused, Err(InvalidRequest::MinNewTokens { limit: 39, given: min_new_tokens }.into()));
}

#[tokio::test]
async fn a_stop_string_ends_the_sequence_in_the_scheduler_too() {
    let server = serve(8).await;
    let plain = GenerationRequest { ignore_eos: true, ..request("hello") };
    let (_, tokens) = server.expected(&plain).await;
    let text = server.serving.prompt.decode(&tokens);
    // Characters from somewhere in the middle, wherever the tokens are cut.
    let stop: String = text.chars().skip(60).take(3).collect();
    let end = text.find(&stop).unwrap() + stop.len();
    for (stop_text, end) in [(StopText::Keep, end), (StopText::Omit, end - stop.len())] {
        let request = GenerationRequest { stop: vec![stop.clone()], stop_text, ..plain.clone() };
        let (events, done) = collect(server.start(request).await.unwrap()).await.unwrap();
        assert_eq!((done.text.as_str(), done.finish_reason), (&text[..end], FinishReason::StopSequence));
        assert!(events.len() < tokens.len());
        server.idle().await;
    }
}

#[tokio::test]
async fn prompt_log_probabilities_and_cached_tokens_are_told() {
    let server = serve(8).await;
    let text = "a prompt that is longer than two blocks of the cache are";
    let request = GenerationRequest { max_new_tokens: Some(2), ..request(text) };
    let with = GenerationRequest { prompt_logprobs: true, top_tokens: 3, ..request.clone() };
    let (spec, _) = server.expected(&with).await;
    let (tokens, _) = collect(server.start(with).await.unwrap()).await.unwrap();
    let prefill = &tokens[0].prefill;
    assert_eq!(prefill.iter().map(|entry| entry.id).collect::<Vec<_>>(), spec.prompt);
    let logprobs =
        prefill.iter().map(|entry| PromptLogprob { logprob: entry.logprob, top: entry.top.clone() });
    assert_eq!(logprobs.collect::<Vec<_>>(), MockModel::reference_prompt(&server.config, &spec));
    let (tokens, done) = collect(server.start(request).await.unwrap()).await.unwrap();
    assert!(done.cached_tokens >= 32 && tokens[0].prefill.is_empty(), "{}", done.cached_tokens);
}

#[tokio::test]
async fn a_stream_goes_on_when_the_workers_were_lost() {
    let server = serve(8).await;
    let request = GenerationRequest { ignore_eos: true, ..request("hello") };
    let (_, tokens) = server.expected(&request).await;
    let mut generation = server.start(request).await.unwrap();
    let mut text = String::new();
    for _ in 0..3 {
        match timeout(DEADLINE, generation.next()).await.expect("in time") {
            Some(GenerationEvent::Token(token)) if !token.special => text.push_str(&token.text),
            Some(GenerationEvent::Token(_)) => {}
            other => panic!("{other:?} instead of a token"),
        }
    }
    server.source.kill();
    let (rest, done) = timeout(DEADLINE, collect(generation)).await.expect("in time").unwrap();
    text.extend(rest.iter().filter(|token| !token.special).map(|token| token.text.as_str()));
    assert_eq!(done.text, server.serving.prompt.decode(&tokens));
    assert_eq!(text, done.text);
}

#[tokio::test]
async fn cached_prefixes_are_found_by_the_same_key_with_the_same_salt_only() {
    let mut server = serve(100).await;
    type Who = (Option<u32>, Option<&'static str>);
    let (a, b) = (Some("a"), Some("b"));
    let apart: [(Who, Who); 9] = [
        ((Some(0), None), (Some(1), None)),
        ((Some(0), None), (None, None)),
        ((Some(0), None), (Some(0), a)),
        ((Some(0), a), (Some(0), None)),
        ((Some(0), a), (Some(0), b)),
        // A salt does not replace the key: to know it leads nowhere.
        ((Some(0), a), (Some(1), a)),
        ((Some(0), a), (None, a)),
        ((None, a), (None, None)),
        ((None, Some("")), (None, None)),
    ];
    let together: [Who; 4] = [(Some(0), None), (None, None), (Some(3), b), (None, a)];
    for (first, then) in apart {
        assert_eq!(server.found(first, then).await, 0, "{first:?} {then:?}");
    }
    for who in together {
        assert!(server.found(who, who).await > 0, "{who:?}");
    }
    server.serving.shared_cache = true;
    assert!(server.found((Some(0), None), (Some(1), None)).await > 0);
    for (first, then) in [apart[2], apart[4], apart[5], apart[6]] {
        assert_eq!(server.found(first, then).await, 0, "{first:?} {then:?}, and all keys share");
    }
}
