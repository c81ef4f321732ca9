//! From a request to a sequence of the scheduler: prompt to tokens, limits, who shares cached blocks with whom, and whom
//! the queue is fair to. The dialects call `start`; `stream` turns what the scheduler tells into text events.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use penstock_output::Unbound;
use penstock_proto::ids::TokenId;

use crate::generation::event::{GenerationFailure, InvalidRequest, PromptToken};
use crate::generation::grammars::Grammars;
use crate::generation::metrics::Tokens;
use crate::generation::output_processor::OutputProcessor;
use crate::generation::progress::Progress;
use crate::generation::prompt_limits::PromptLimits;
use crate::generation::request::{Caller, GenerationRequest};
use crate::generation::stream::{Generation, TextState};
use crate::prompt::{Input, Length, Prompt, PromptError};
use crate::scheduler::{Handle, Namespace, Permit, Sampling, SequenceSpec, Watermark};
use crate::tenant::Tenant;

/// What generations share.
#[derive(Clone)]
pub struct Serving {
    pub prompt: Arc<Prompt>,
    pub scheduler: Handle,
    pub limits: PromptLimits,
    /// What the decoder of an encoder-decoder begins with, while its encoder reads the prompt; empty for a decoder.
    pub decoder_start: Vec<TokenId>,
    pub grammars: Arc<Grammars>,
    /// Of the model and its revision.
    pub cache_namespace: Namespace,
    /// Requests of all keys share cached blocks.
    pub shared_cache: bool,
    /// What a request that asks for a watermark gets.
    pub watermark: Watermark,
    /// Digests the names that clients give their users. Its key is random, so that nobody can look for two names with one
    /// digest.
    pub digests: RandomState,
}

/// Tokenizes, checks the limits and submits. `permit` was reserved for it before, so that what waits to be tokenized has a
/// bound too.
pub async fn start(
    serving: &Serving,
    permit: Arc<Permit>,
    request: GenerationRequest,
    caller: &Caller,
) -> Result<Generation, GenerationFailure> {
    if request.stop.iter().any(String::is_empty) {
        return Err(InvalidRequest::EmptyStop.into());
    }
    let prompt = serving.encode(caller.origin(), request.input, request.truncate).await?;
    let max_new_tokens = serving.limits_now().check(&prompt, request.max_new_tokens)?;
    let min_new_tokens = request.min_new_tokens;
    if min_new_tokens > max_new_tokens {
        return Err(InvalidRequest::MinNewTokens { limit: max_new_tokens, given: min_new_tokens }.into());
    }

    let (constraint, unbound) = match request.grammar {
        None => (None, Vec::new()),
        Some(grammar) => match serving.grammars.compile(caller.origin(), grammar).await {
            Ok(compiled) => (Some(compiled.clone()), compiled.unbound()),
            Err(GenerationFailure::Grammar(why)) if request.grammar_is_optional => {
                (None, vec![Unbound { at: String::new(), why: why.to_string() }])
            }
            Err(failure) => return Err(failure),
        },
    };

    let vocabulary = serving.prompt.vocabulary().clone();
    let has_encoder = !serving.decoder_start.is_empty();
    // An encoder reads; it says nothing of how likely its tokens were.
    let prompt_logprobs = request.prompt_logprobs && !has_encoder;
    let read = if request.prompt_logprobs && has_encoder { &prompt[..] } else { &[] };
    let without = |&id| PromptToken { id, logprob: None, top: Vec::new() };
    let prefill = read.iter().map(without).collect();
    let before = if has_encoder { &serving.decoder_start } else { &prompt };
    let output =
        OutputProcessor::new(vocabulary.clone(), before, &request.stop, request.stop_text, min_new_tokens);
    let text = TextState {
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
        constraint,
        adapter: request.adapter,
        cache_namespace: serving.namespace(caller, request.cache_salt.as_deref()),
        tenant: serving.tenant(caller, request.user.as_deref()),
        priority: caller.priority(request.priority),
        deadline: caller.deadline,
        stop_at: request.max_time.map(|time| caller.arrival + time),
        trace: caller.trace,
    };
    let submitted = serving.scheduler.submit_with(permit, spec)?;
    Ok(Generation::new(text, submitted, unbound))
}

impl Serving {
    /// The token ids of a prompt, at most the last `truncate` of them. One that is certainly too long is refused
    /// before it is tokenized to its end.
    pub async fn encode(
        &self,
        tenant: Tenant,
        input: Input,
        truncate: Option<u32>,
    ) -> Result<Vec<TokenId>, PromptError> {
        let length = truncate.map_or_else(|| Length::Within(self.limits_now().most_input()), Length::Last);
        self.prompt.encode(tenant, input, length).await
    }

    /// A place for a request, whatever it does; 429 for the client if there is none.
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
    fn namespace(&self, caller: &Caller, salt: Option<&str>) -> Namespace {
        let key = caller.key_digest.as_ref().filter(|_| !self.shared_cache || salt.is_some());
        if key.is_none() && salt.is_none() {
            return self.cache_namespace;
        }
        let key = key.map_or(&[][..], |digest| digest);
        self.cache_namespace.within(std::iter::once(key).chain(salt.map(str::as_bytes)))
    }

    /// Whom the queue is to be fair to: the key, which cannot be made up; without keys, the address, and whom the
    /// client there names.
    fn tenant(&self, caller: &Caller, user: Option<&str>) -> Tenant {
        match (caller.origin(), user) {
            (Tenant::Address(address), Some(user)) => Tenant::User(address, self.digests.hash_one(user)),
            (origin, _) => origin,
        }
    }
}
