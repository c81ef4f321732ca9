//! The fields that both of OpenAI's dialects read: how to generate.

use std::borrow::Cow;

use penstock_core::adapter::Adapter;
use penstock_core::constraint::GrammarRequest;
use penstock_core::generation::{GenerationRequest, Input, StopText};
use penstock_core::scheduler::Priority;
use penstock_core::scheduler::Sampling;
use penstock_output::Unbound;
use penstock_proto::ids::TokenId;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::grammars;
use crate::http::adapters;
use crate::http::constraints::{self, Asked};
use crate::http::error::{ApiError, Place};
use crate::http::fields::Fields;
use crate::http::json::finite;
use crate::http::request_fields::{self, Field};
use crate::http::sampling;
use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

/// What OpenAI may add to chunks so that their lengths tell nothing.
const OBFUSCATION: &str = "include_obfuscation";

/// How to generate, as both dialects ask for it.
pub struct GenerationParams {
    /// As the answer names it.
    pub model: String,
    pub adapter: Option<Adapter>,
    pub sampling: Sampling,
    /// Reported nowhere by OpenAI's answers; kept for the generation.
    pub reported_seed: Option<u64>,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    pub min_tokens: u32,
    pub watermark: bool,
    pub stop_token_ids: Vec<TokenId>,
    /// Until it is taken.
    pub grammar: Option<Asked>,
    /// The field of the grammar that was taken.
    pub grammar_field: Option<&'static str>,
    pub n: u32,
    pub stream: bool,
    pub include_usage: bool,
    pub user: Option<String>,
    pub cache_salt: Option<String>,
    pub priority: Option<Priority>,
    /// Not settled yet: the dialect may have more.
    pub warnings: Warnings,
}

impl GenerationParams {
    /// As `/v1/chat/completions` and `/v1/completions` have them. `known` are the fields of the route.
    pub fn parse(fields: &Fields, served: &str, known: &[&Field]) -> Result<Self, ApiError> {
        let grammar = constraints::openai(fields)?;
        let by_id = adapters::by_id(fields)?;
        refuse_what_is_missing(fields)?;
        let mut warnings = Warnings::default();
        for name in fields.named(request_fields::WITHOUT_EFFECT) {
            if fields.value(name).is_none_or(|value| value != false && value != json!({})) {
                warnings.no_effect(name, "here");
            }
        }
        let known =
            known.iter().map(|field| field.name).chain(request_fields::WITHOUT_EFFECT.iter().copied());
        warnings.unknown(fields, "", known);
        // As TGI bounds them on these routes.
        let (top_p, seed) = (&request_fields::TOP_P, &request_fields::SEED);
        let mut params = Self { grammar, ..Self::read_with(top_p, seed, fields, served, warnings)? };
        params.adapter = adapters::one_of(by_id, params.adapter)?;
        if let Some(name) = by_id.and_then(|adapter| fields.limits().adapters.name(adapter)) {
            params.model = name.to_owned();
        }
        if let Some(asked) = &params.grammar
            && params.ignore_eos
        {
            params.warnings.no_effect("ignore_eos", &format!("beside `{}`", asked.field));
        }
        Ok(params)
    }

    /// By the names that OpenAI's and Anthropic's dialects share. `fields` are those of the route alone.
    pub fn read(fields: &Fields, served: &str, warnings: Warnings) -> Result<Self, ApiError> {
        let (top_p, seed) = (&request_fields::NEWER_TOP_P, &request_fields::NEWER_SEED);
        Self::read_with(top_p, seed, fields, served, warnings)
    }

    /// Of the two fields the dialects' bounds differ.
    fn read_with(
        top_p: &Field,
        seed: &Field,
        fields: &Fields,
        served: &str,
        mut warnings: Warnings,
    ) -> Result<Self, ApiError> {
        let model = fields.text(&request_fields::MODEL)?;
        let adapter = model.as_ref().and_then(|name| fields.limits().adapters.named(name));
        let model = match model {
            Some(name) if adapter.is_some() => name.into_owned(),
            // What clients of TGI send when the user named none.
            Some(name) if !["tgi", "dummy", ""].contains(&name.as_ref()) => name.into_owned(),
            _ => served.to_string(),
        };
        let temperature = fields.number(&request_fields::OPENAI_TEMPERATURE)?.unwrap_or(1.0);
        let seed = match fields.signed(seed)? {
            // -1 is how others spell "random".
            None | Some(-1) => sampling::drawn_seed(),
            // Of a negative one its 64 bits.
            Some(given) => given as u64,
        };
        let top_k = match fields.signed(&request_fields::OPENAI_TOP_K)? {
            Some(given) if given > 0 => u32::try_from(given).expect("the table's bound is within u32"),
            // 0 and -1 are how others spell "off".
            _ => 0,
        };
        let number = |field, neutral| Ok::<f32, ApiError>(fields.number(field)?.unwrap_or(neutral) as f32);
        let sampling = Sampling {
            temperature: sampling::temperature(temperature),
            top_k,
            top_p: number(top_p, 1.0)?,
            typical_p: number(&request_fields::TYPICAL_P, 1.0)?,
            min_p: number(&request_fields::MIN_P, 0.0)?,
            repetition_penalty: number(&request_fields::REPETITION_PENALTY, 1.0)?,
            frequency_penalty: number(&request_fields::FREQUENCY_PENALTY, 0.0)?,
            presence_penalty: number(&request_fields::PRESENCE_PENALTY, 0.0)?,
            logit_bias: biases(fields, &mut warnings)?,
            seed,
            ..Sampling::default()
        };
        if sampling.temperature == 0.0 {
            for (name, asked) in [
                ("top_p", sampling.top_p < 1.0),
                ("top_k", top_k > 0),
                ("min_p", sampling.min_p > 0.0),
                ("typical_p", sampling.typical_p < 1.0),
            ] {
                if asked {
                    warnings.no_effect(name, "when `temperature` is 0");
                }
            }
        }
        let stream = fields.boolean(&request_fields::STREAM)?.unwrap_or(false);
        let include_usage = include_usage(fields, stream, &mut warnings)?;
        let priority = priority(fields, &mut warnings)?;
        // It asks for nothing that could be missing: prefixes are found without it.
        fields.text(&request_fields::PROMPT_CACHE_KEY)?;
        Ok(Self {
            model,
            adapter,
            sampling,
            reported_seed: (temperature > 0.0).then_some(seed),
            stop: fields.texts(&request_fields::STOP)?,
            ignore_eos: fields.boolean(&request_fields::IGNORE_EOS)?.unwrap_or(false),
            min_tokens: fields.small(&request_fields::MIN_TOKENS)?.unwrap_or(0),
            watermark: fields.boolean(&request_fields::WATERMARK)?.unwrap_or(false),
            stop_token_ids: stop_token_ids(fields)?,
            grammar: None,
            grammar_field: None,
            n: fields.small(&request_fields::N)?.unwrap_or(1),
            stream,
            include_usage,
            user: fields.text(&request_fields::USER)?.map(Cow::into_owned),
            cache_salt: fields.text(&request_fields::CACHE_SALT)?.map(Cow::into_owned),
            priority,
            warnings,
        })
    }

    /// The grammar as its requests have it: they alone keep it, since it may take many times the memory of its text. Refuses what is
    /// longer or deeper than any that is compiled; where it is optional, that is a warning.
    pub fn take_grammar(&mut self, is_optional: bool) -> Result<Option<GrammarRequest>, ApiError> {
        let Some(Asked { field, source }) = self.grammar.take() else { return Ok(None) };
        self.grammar_field = Some(field);
        match grammars::request(source) {
            Ok(request) => Ok(Some(request)),
            Err(why) if is_optional => {
                self.warnings.unbound(field, &[Unbound { at: String::new(), why }]);
                Ok(None)
            }
            Err(why) => Err(ApiError::unusable(Place::path(field), why)),
        }
    }

    /// A generation of `input`; the dialect adds what it alone asks for, and the grammar.
    pub fn request(&self, input: Input, max_new_tokens: Option<u32>) -> GenerationRequest {
        GenerationRequest {
            input,
            sampling: self.sampling.clone(),
            reported_seed: self.reported_seed,
            max_new_tokens,
            min_new_tokens: self.min_tokens,
            watermark: self.watermark,
            truncate: None,
            stop: self.stop.clone(),
            stop_text: StopText::Omit,
            ignore_eos: self.ignore_eos,
            stop_token_ids: self.stop_token_ids.clone(),
            top_tokens: 0,
            prompt_logprobs: false,
            grammar: None,
            grammar_is_optional: false,
            adapter: self.adapter,
            user: self.user.clone(),
            cache_salt: self.cache_salt.clone(),
            priority: self.priority,
            max_time: None,
        }
    }

    /// The sampling of one of the `n` answers: each has a seed of its own.
    pub fn sampling_of(&self, answer: u32) -> Sampling {
        Sampling { seed: self.sampling.seed.wrapping_add(answer.into()), ..self.sampling.clone() }
    }
}

/// Of `stream_options`.
pub fn include_usage(fields: &Fields, stream: bool, warnings: &mut Warnings) -> Result<bool, ApiError> {
    let Some(options) = fields.object(&request_fields::STREAM_OPTIONS)? else { return Ok(false) };
    warnings.unknown(&options, "stream_options.", ["include_usage", OBFUSCATION].into_iter());
    if options.value(OBFUSCATION).is_some_and(|value| value != false) {
        warnings.no_effect("stream_options.include_obfuscation", "here: chunks are not obfuscated");
    }
    let include = options.boolean(&request_fields::INCLUDE_USAGE);
    let include =
        include.map_err(|error| error.of_member(request_fields::STREAM_OPTIONS.name))?.unwrap_or(false);
    if include && !stream {
        warnings.no_effect("stream_options", "when the answer is not streamed");
    }
    Ok(include)
}

/// What asks for more than there is gets an error, never silence.
fn refuse_what_is_missing(fields: &Fields) -> Result<(), ApiError> {
    if fields.raw(&request_fields::SUFFIX).is_some() {
        let message = "is not supported: put what follows the text into the prompt";
        return Err(ApiError::invalid(request_fields::SUFFIX.name, message));
    }
    match fields.named(request_fields::NOT_YET).next() {
        Some(name) => Err(ApiError::not_supported_yet(name)),
        None => Ok(()),
    }
}

/// `priority`, or what `service_tier` comes to.
fn priority(fields: &Fields, warnings: &mut Warnings) -> Result<Option<Priority>, ApiError> {
    let priority = fields.priority()?;
    let Some(tier) = fields.text(&request_fields::SERVICE_TIER)? else { return Ok(priority) };
    let wanted = match tier.as_ref() {
        "auto" | "default" | "scale" => return Ok(priority),
        "flex" => FLEX,
        "priority" => URGENT,
        _ => {
            let text = "must be one of auto, default, flex, priority, scale";
            return Err(ApiError::invalid("service_tier", text).given(shortened(&tier)));
        }
    };
    if priority.is_some() {
        warnings.no_effect("service_tier", "beside `priority`");
        return Ok(priority);
    }
    let highest = Priority(fields.limits().highest_priority);
    if wanted < Priority::default() && highest == Priority::default() {
        warnings.no_effect("service_tier", "here: --highest-priority is 0");
        return Ok(None);
    }
    Ok(Some(wanted.max(highest)))
}

/// What OpenAI's tiers come to.
const FLEX: Priority = Priority(10);
const URGENT: Priority = Priority(-10);

fn stop_token_ids(fields: &Fields) -> Result<Vec<TokenId>, ApiError> {
    const NAME: &str = "stop_token_ids";
    let Some(Value::Array(given)) = fields.tree(&request_fields::STOP_TOKEN_IDS)? else {
        return Ok(Vec::new());
    };
    let vocabulary = fields.limits().vocab_size;
    given
        .iter()
        .map(|entry| {
            let id = entry.as_u64().filter(|id| *id < u64::from(vocabulary)).map(|id| TokenId(id as u32));
            id.ok_or_else(|| {
                let text = format!("must have token ids >= 0 and < {vocabulary}");
                ApiError::invalid(NAME, text).given(shortened(&entry.to_string()))
            })
        })
        .collect()
}

/// `logit_bias`: token ids as strings, each with what is added to its logit.
fn biases(fields: &Fields, warnings: &mut Warnings) -> Result<Vec<(TokenId, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let list = |raw: &&RawValue| serde_json::from_str::<Vec<f64>>(raw.get()).is_ok();
    if fields.raw(&request_fields::LOGIT_BIAS).filter(list).is_some() {
        // TGI takes such a list, and does nothing with it.
        warnings.no_effect(NAME, "as a list: it is an object of token ids and numbers");
        return Ok(Vec::new());
    }
    let Some(given) = fields.object(&request_fields::LOGIT_BIAS)? else { return Ok(Vec::new()) };
    let vocabulary = fields.limits().vocab_size;
    let entries = given.entries();
    if entries.len() > request_fields::BIASES {
        let text = format!("must have at most {} entries", request_fields::BIASES);
        return Err(ApiError::invalid(NAME, text).given(entries.len().to_string()));
    }
    let mut biases = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        // "05" and "+5" would be 5 once more.
        let id = name.parse().ok().filter(|id: &u32| *id < vocabulary && id.to_string() == name);
        let id = id.ok_or_else(|| {
            let text = format!("must have token ids < {vocabulary} as names");
            ApiError::invalid(NAME, text).given(shortened(&name))
        })?;
        let bias =
            finite(value.get()).filter(|bias| bias.abs() <= request_fields::BIAS).ok_or_else(|| {
                let most = request_fields::BIAS;
                let text = format!("must have numbers >= -{most} and <= {most}");
                ApiError::invalid(NAME, text).given(shortened(value.get()))
            })?;
        biases.push((TokenId(id), bias as f32));
    }
    // In an order that does not change from one request to the next.
    biases.sort_unstable_by_key(|(id, _)| id.0);
    Ok(biases)
}

/// Which of its names the client used for the most tokens to generate.
pub fn max_tokens_name(fields: &Fields) -> &'static str {
    let given = |field| fields.raw(field).is_some();
    let new = given(&request_fields::MAX_COMPLETION_TOKENS) && !given(&request_fields::MAX_TOKENS);
    if new { request_fields::MAX_COMPLETION_TOKENS.name } else { request_fields::MAX_TOKENS.name }
}

/// `max_tokens`, by either of its names.
pub fn max_tokens(fields: &Fields, max_tokens: &Field) -> Result<Option<u32>, ApiError> {
    let (old, new) = (fields.small(max_tokens)?, fields.small(&request_fields::MAX_COMPLETION_TOKENS)?);
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let text = "and `max_tokens` must agree";
            Err(ApiError::invalid("max_completion_tokens", text).given(format!("{new} and {old}")))
        }
        _ => Ok(old.or(new)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::adapters::tests::loaded;
    use crate::http::error::Family;
    use crate::http::fields::tests::limits;
    use crate::limits::Limits;

    fn parsed(body: &str) -> Result<GenerationParams, String> {
        let limits = limits();
        Fields::parse(body.as_bytes(), &limits)
            .and_then(|fields| GenerationParams::parse(&fields, "org/model", &request_fields::chat_fields()))
            .map_err(|error| String::from_utf8(error.body(Family::OpenAi)).expect("UTF-8"))
    }

    #[test]
    fn the_defaults_are_openais() {
        let params = parsed("{}").expect("valid");
        assert_eq!(params.sampling.temperature, 1.0);
        assert_eq!(params.n, 1);
        assert!(!params.stream && !params.include_usage && !params.ignore_eos);
        assert!(params.warnings.is_empty() && params.stop.is_empty());
    }

    #[test]
    fn a_grammar_that_is_too_long_is_refused_where_it_is_read_unless_it_is_optional() {
        let long = format!(r#"{{"guided_json": {{"examples": [{}1]}}}}"#, "1,".repeat(1 << 20));
        let error = parsed(&long).expect("read").take_grammar(false).expect_err("too long");
        assert_eq!(error.to_string(), "`guided_json`: the grammar is longer than 1048576 bytes");
        let mut params = parsed(&long).expect("read");
        assert!(params.take_grammar(true).expect("a warning").is_none());
        assert_eq!(params.warnings.lines().len(), 1);
        // Its name is what is kept of a grammar.
        let mut params = parsed(r#"{"guided_regex": "a+"}"#).expect("read");
        assert!(params.take_grammar(false).expect("short").is_some());
        assert_eq!((params.grammar, params.grammar_field), (None, Some("guided_regex")));
    }

    #[test]
    fn temperature_0_is_greedy() {
        let params = parsed(r#"{"temperature": 0, "seed": 3}"#).expect("valid");
        assert_eq!((params.sampling.temperature, params.reported_seed), (0.0, None));
        let params = parsed(r#"{"temperature": 1e-30, "seed": 3}"#).expect("valid");
        assert_eq!((params.sampling.temperature, params.reported_seed), (0.0, Some(3)));
    }

    #[test]
    fn every_field_of_sampling_is_read() {
        let params = parsed(
            r#"{"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "frequency_penalty": 1,
                "presence_penalty": -1, "repetition_penalty": 1.5, "logit_bias": {"7": -100, "3": 1.5},
                "seed": 9, "n": 2, "stop": "END", "ignore_eos": true, "min_tokens": 7, "watermark": true, "stream": true,
                "stream_options": {"include_usage": true}}"#,
        )
        .expect("valid");
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 5,
            top_p: 0.9,
            min_p: 0.1,
            repetition_penalty: 1.5,
            frequency_penalty: 1.0,
            presence_penalty: -1.0,
            logit_bias: vec![(TokenId(3), 1.5), (TokenId(7), -100.0)],
            seed: 9,
            ..Sampling::default()
        };
        assert_eq!(params.sampling, sampling);
        assert_eq!(params.sampling_of(1), Sampling { seed: 10, ..sampling });
        assert_eq!((params.n, params.stop.as_slice()), (2, ["END".to_string()].as_slice()));
        assert!(params.ignore_eos && params.stream && params.include_usage);
        assert!(params.min_tokens == 7 && params.watermark);
    }

    /// As OpenAI documents them. TGI's two routes have TGI's bounds.
    #[test]
    fn newer_dialects_take_no_nucleus_and_negative_seeds() {
        let limits = limits();
        let read = |body: &str| {
            let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
            let fields = fields.only(&request_fields::responses_fields());
            GenerationParams::read(&fields, "m", Warnings::default()).map_err(|error| error.to_string())
        };
        assert_eq!(read(r#"{"top_p": 0}"#).expect("valid").sampling.top_p, 0.0);
        let seed = |given: &str| read(&format!("{{\"seed\": {given}}}")).expect("valid").sampling.seed;
        assert_eq!(seed("-9223372036854775808"), 1 << 63);
        assert_eq!((seed("-2"), seed("18446744073709551615")), (u64::MAX - 1, u64::MAX));
        // A random one, by llama.cpp's convention.
        assert!(seed("-1") != seed("-1") && seed("-1") < 1 << 53);
        let error = read(r#"{"seed": -9223372036854775809}"#).err().expect("beyond 64 bits");
        assert!(error.starts_with("`seed` must be a whole number >= -9223372036854775808"), "{error}");
        for (body, says) in [
            (r#"{"top_p": 0}"#, "`top_p` must be a number > 0 and <= 1"),
            (r#"{"seed": -1}"#, "`seed` must be a whole number >= 0"),
        ] {
            assert!(parsed(body).err().expect(body).contains(says), "{body}");
        }
    }

    #[test]
    fn a_priority_is_a_number_or_a_tier() {
        let of = |body: &str| {
            parsed(body).map(|params| (params.priority.map(|it| it.0), params.warnings.lines().join(" ")))
        };
        for (body, priority, warning) in [
            ("{}", None, ""),
            (r#"{"priority": 7}"#, Some(7), ""),
            (r#"{"priority": -5}"#, Some(-5), ""),
            (r#"{"service_tier": "auto"}"#, None, ""),
            (r#"{"service_tier": "flex"}"#, Some(10), ""),
            // As high as it may be.
            (r#"{"service_tier": "priority"}"#, Some(-5), ""),
            (
                r#"{"service_tier": "flex", "priority": 3}"#,
                Some(3),
                "`service_tier` has no effect beside `priority`",
            ),
        ] {
            assert_eq!(of(body), Ok((priority, warning.to_string())), "{body}");
        }
        let error = of(r#"{"priority": -6}"#).expect_err("too high");
        assert!(
            error.contains("`priority` must be a whole number >= -5 (--highest-priority) and <= 1000"),
            "{error}"
        );
        let error = of(r#"{"priority": 1001}"#).expect_err("too low");
        assert!(error.contains("<= 1000. Given: 1001"), "{error}");
        let error = of(r#"{"service_tier": "gold"}"#).expect_err("unknown");
        assert!(error.contains("must be one of auto, default, flex, priority, scale"), "{error}");
    }

    #[test]
    fn any_model_name_is_echoed_and_a_placeholder_means_the_served_one() {
        assert_eq!(parsed(r#"{"model": "gpt-4"}"#).expect("valid").model, "gpt-4");
        for placeholder in [r#""tgi""#, r#""dummy""#, "null"] {
            let params = parsed(&format!("{{\"model\": {placeholder}}}")).expect("valid");
            assert_eq!(params.model, "org/model");
        }
    }

    #[test]
    fn a_model_or_an_id_that_is_an_adapters_name_chooses_it() {
        let limits = Limits { adapters: loaded(&["org/a", "dummy"]), ..limits() };
        let asked = |body: &str| {
            let fields = Fields::parse(body.as_bytes(), &limits)?;
            let params = GenerationParams::parse(&fields, "org/model", &request_fields::chat_fields())?;
            let request = params.request(Input::Text(String::new()), None);
            Ok((request.adapter.map(|adapter| adapter.number.get()), params.model))
        };
        for (body, adapter, model) in [
            (r#"{"model": "org/a"}"#, Some(1), "org/a"),
            (r#"{"model": "dummy"}"#, Some(2), "dummy"),
            (r#"{"model": "a"}"#, None, "a"),
            (r#"{"model": "org/model"}"#, None, "org/model"),
            (r#"{"model": "tgi"}"#, None, "org/model"),
            (r#"{"adapter_id": "org/a"}"#, Some(1), "org/a"),
            (r#"{"adapter_id": "org/a", "model": "org/model"}"#, Some(1), "org/a"),
            (r#"{"adapter_id": "org/a", "model": "org/a"}"#, Some(1), "org/a"),
            (r#"{"adapter_id": null, "model": "org/a"}"#, Some(1), "org/a"),
        ] {
            let asked = asked(body).unwrap_or_else(|error: ApiError| panic!("{body}: {error:?}"));
            assert_eq!(asked, (adapter, model.to_owned()), "{body}");
        }
        let error = asked(r#"{"adapter_id": "org/a", "model": "dummy"}"#).expect_err("they are two");
        let error = String::from_utf8(error.body(Family::OpenAi)).expect("UTF-8");
        assert!(error.contains("`adapter_id` and `model` name two adapters; a request has one"), "{error}");
        assert!(error.contains(r#""param":"adapter_id""#), "{error}");
    }

    #[test]
    fn what_is_missing_is_refused_by_name() {
        let error = parsed(r#"{"functions": []}"#).err().expect("there are tools instead");
        assert!(error.contains("not supported yet") && error.contains(r#""param":"functions""#), "{error}");
    }

    #[test]
    fn what_asks_for_nothing_is_no_error() {
        let body = r#"{"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "best_of": 1,
            "min_tokens": 0, "stop_token_ids": [], "suffix": null, "stream_options": null, "top_p": 1, "top_k": -1}"#;
        assert!(parsed(body).is_ok());
        assert!(parsed(body).expect("valid").warnings.is_empty());
    }

    #[test]
    fn what_has_no_effect_is_named() {
        let params = parsed(r#"{"user": "me", "store": true, "metadata": null}"#).expect("valid");
        assert_eq!(params.warnings.lines(), ["`store` has no effect here"]);
        assert_eq!(params.user.as_deref(), Some("me"));
        for (body, text) in [
            (r#"{"echo": true}"#, "`echo` is not a field of this route and has no effect"),
            (r#"{"max_new_tokens": 5}"#, "`max_new_tokens` is not a field of this route and has no effect"),
            (r#"{"temperature": 0, "top_p": 0.5}"#, "`top_p` has no effect when `temperature` is 0"),
            (r#"{"temperature": 0, "min_p": 0.5}"#, "`min_p` has no effect when `temperature` is 0"),
            (
                r#"{"stream_options": {"include_usage": true}}"#,
                "`stream_options` has no effect when the answer is not streamed",
            ),
            (
                r#"{"stream_options": {"include_obfuscation": true}}"#,
                "`stream_options.include_obfuscation` has no effect here: chunks are not obfuscated",
            ),
            (
                r#"{"stream_options": {"include_obfuscation": false, "include_all": false}}"#,
                "`stream_options.include_all` is not a field of this route and has no effect",
            ),
            (
                r#"{"logit_bias": [0.5, 1]}"#,
                "`logit_bias` has no effect as a list: it is an object of token ids and numbers",
            ),
        ] {
            assert_eq!(parsed(body).expect(body).warnings.lines(), [text], "{body}");
        }
    }

    #[test]
    fn an_adapter_and_a_suffix_are_errors() {
        let error = parsed(r#"{"adapter_id": "mine"}"#).err().expect("there is none");
        assert!(
            error
                .contains("`adapter_id` names no loaded adapter: none is loaded, --lora-adapters loads some"),
            "{error}"
        );
        assert!(error.contains("Given: mine"), "{error}");
        let error = parsed(r#"{"suffix": "x"}"#).err().expect("it would be lost");
        assert!(error.contains("is not supported: put"), "{error}");
    }

    #[test]
    fn a_bias_must_name_a_token_of_the_vocabulary_and_be_small() {
        for (bias, text) in [
            (r#"{"1000": 1}"#, "`logit_bias` must have token ids < 1000 as names. Given: 1000"),
            (r#"{"word": 1}"#, "`logit_bias` must have token ids < 1000 as names. Given: word"),
            (r#"{"-1": 1}"#, "`logit_bias` must have token ids < 1000 as names. Given: -1"),
            (r#"{"1": 101}"#, "`logit_bias` must have numbers >= -100 and <= 100. Given: 101"),
            (r#"{"1": 1e999}"#, "`logit_bias` must have numbers >= -100 and <= 100. Given: 1e999"),
            (r#"{"5": 100, "05": -100}"#, "`logit_bias` must have token ids < 1000 as names. Given: 05"),
            (r#"{"+5": 1}"#, "`logit_bias` must have token ids < 1000 as names. Given: +5"),
            (r#"{"1": 1, "1": 2}"#, "`logit_bias.1` is given twice"),
            (r#"["x"]"#, "`logit_bias` must be an object"),
        ] {
            let error = parsed(&format!("{{\"logit_bias\": {bias}}}")).err().expect(bias);
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn the_two_names_of_max_tokens_must_agree() {
        let limits = limits();
        let read = |body: &str| {
            let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
            max_tokens(&fields, &request_fields::MAX_TOKENS)
        };
        assert_eq!(read("{}"), Ok(None));
        assert_eq!(read(r#"{"max_completion_tokens": 5}"#), Ok(Some(5)));
        assert_eq!(read(r#"{"max_tokens": 5, "max_completion_tokens": 5}"#), Ok(Some(5)));
        assert!(read(r#"{"max_tokens": 5, "max_completion_tokens": 6}"#).is_err());
        assert!(read(r#"{"max_tokens": 0}"#).is_err());
    }
}
