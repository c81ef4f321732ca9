//! A body of TGI's routes becomes one `GenerationRequest`, and what the dialect itself has to know of it.

use std::borrow::Cow;
use std::time::Duration;

use penstock_core::generation::{GenerationRequest, Input, StopText};
use penstock_core::scheduler::Sampling;

use crate::http::adapters;
use crate::http::constraints;
use crate::http::error::{ApiError, FieldNames};
use crate::http::fields::Fields;
use crate::http::markdown_images::MarkdownImages;
use crate::http::request_fields;
use crate::http::sampling;
use crate::http::text_request::TextRequest;
use crate::http::warnings::{Warnings, names};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Generate,
    Stream,
    /// `POST /`. `full_text`: the prompt goes before the text where a request does not say.
    Compat {
        full_text: bool,
    },
    CompatStream {
        full_text: bool,
    },
    /// Of others, whose answer is the text alone.
    Text,
}

impl Route {
    fn streams(self) -> bool {
        matches!(self, Route::Stream | Route::CompatStream { .. })
    }

    fn returns_full_text(self) -> bool {
        matches!(self, Route::Compat { full_text: true } | Route::CompatStream { full_text: true })
    }
}

/// A request of this dialect.
pub struct GenerateRequest {
    pub request: GenerationRequest,
    /// How many to generate and choose the most likely of.
    pub best_of: u32,
    pub details: bool,
    pub prompt_characters: usize,
    /// Goes before the generated text.
    pub prefix: String,
    pub warnings: Warnings,
}

fn inputs(fields: &Fields) -> Result<String, ApiError> {
    let inputs = fields.required(&request_fields::INPUTS, fields.text(&request_fields::INPUTS)?)?;
    if inputs.is_empty() {
        return Err(ApiError::invalid("inputs", "cannot be empty"));
    }
    Ok(inputs.into_owned())
}

impl GenerateRequest {
    pub fn parse(fields: &Fields, route: Route) -> Result<Self, ApiError> {
        let inputs = inputs(fields)?;
        let empty;
        let parameters = match fields.object(&request_fields::PARAMETERS)? {
            Some(given) => given,
            None => {
                empty = Fields::parse(b"{}", fields.limits())?;
                empty
            }
        };
        let p = &parameters;
        let mut warnings = Warnings::default();
        if fields.boolean(&request_fields::STREAM)?.is_some_and(|stream| stream != route.streams()) {
            warnings.no_effect("stream", "here: the route decides");
        }
        let mut images = MarkdownImages::of(fields.limits());
        images.look(&request_fields::INPUTS.name.into(), &inputs)?;
        images.warn(&mut warnings);
        warnings.unknown(fields, "", names(request_fields::TGI));
        warnings.unknown(p, "parameters.", names(request_fields::TGI_PARAMETERS));
        let best_of = p.small(&request_fields::BEST_OF)?.unwrap_or(1);
        if best_of > 1 && route.streams() {
            let message = "must be 1 when the answer is streamed";
            return Err(ApiError::invalid("best_of", message));
        }
        let prompt_logprobs = p.boolean(&request_fields::DECODER_INPUT_DETAILS)?.unwrap_or(false);
        if prompt_logprobs && route.streams() {
            let message = "is not supported when the answer is streamed";
            return Err(ApiError::invalid("decoder_input_details", message));
        }
        let (sampling, reported_seed) = sampling(p)?;
        if best_of > 1 && reported_seed.is_none() {
            let message = "> 1 needs sampling: `do_sample`, `temperature`, `top_k`, `top_p` or `typical_p`";
            return Err(ApiError::invalid("best_of", message));
        }
        if best_of > 1 && p.unsigned(&request_fields::SEED)?.is_some() {
            return Err(ApiError::invalid("seed", "must not be set when `best_of` > 1"));
        }
        let request = GenerationRequest {
            input: Input::Text(String::new()),
            sampling,
            reported_seed,
            max_new_tokens: p.small(&request_fields::MAX_NEW_TOKENS)?,
            min_new_tokens: 0,
            watermark: p.boolean(&request_fields::WATERMARK)?.unwrap_or(false),
            truncate: p.small(&request_fields::TRUNCATE)?,
            stop: p.texts(&request_fields::STOP)?,
            stop_text: StopText::Keep,
            ignore_eos: false,
            stop_token_ids: Vec::new(),
            top_tokens: p.small(&request_fields::TOP_N_TOKENS)?.unwrap_or(0),
            prompt_logprobs,
            grammar: constraints::grammar_request(p)?,
            grammar_is_optional: false,
            adapter: adapters::by_id(p)?,
            user: None,
            cache_salt: p.text(&request_fields::CACHE_SALT)?.map(Cow::into_owned),
            priority: p.priority()?,
            max_time: p.number(&request_fields::MAX_TIME)?.map(Duration::from_secs_f64),
        };
        let details = p.boolean(&request_fields::DETAILS)?.unwrap_or(false) || prompt_logprobs;
        if route == Route::Text {
            for (field, asked) in [
                (&request_fields::DECODER_INPUT_DETAILS, request.prompt_logprobs),
                (&request_fields::DETAILS, details && !prompt_logprobs),
                (&request_fields::TOP_N_TOKENS, request.top_tokens > 0),
            ] {
                if asked {
                    warnings.no_effect(field.name, "here: the answer is the text alone");
                }
            }
        } else if request.top_tokens > 0 && !details && !route.streams() {
            warnings.no_effect(request_fields::TOP_N_TOKENS.name, "without `details`");
        }
        let full_text = p.boolean(&request_fields::RETURN_FULL_TEXT)?.unwrap_or(route.returns_full_text());
        Ok(Self {
            best_of,
            details,
            prompt_characters: inputs.chars().count(),
            prefix: if full_text { inputs.clone() } else { String::new() },
            warnings: warnings.settle(fields.limits())?,
            request: GenerationRequest { input: Input::Text(inputs), ..request },
        })
    }
}

/// What a body of `/generate` asks for, for routes that answer with texts alone.
pub fn text_request(fields: &Fields) -> Result<TextRequest, ApiError> {
    let GenerateRequest { request, best_of, prefix, warnings, .. } =
        GenerateRequest::parse(fields, Route::Text)?;
    if best_of > 1 {
        return Err(ApiError::invalid("best_of", "must be 1 on this route"));
    }
    let request = GenerationRequest { top_tokens: 0, prompt_logprobs: false, ..request };
    Ok(TextRequest { request, prefix, warnings, names: FieldNames::TGI })
}

/// What `/tokenize` needs of a request to generate: it is taken as it is. Its parameters say nothing there, but
/// wrong ones are as wrong as anywhere.
pub fn inputs_alone(fields: &Fields) -> Result<(String, Warnings), ApiError> {
    let inputs = inputs(fields)?;
    Ok((inputs, GenerateRequest::parse(fields, Route::Generate)?.warnings))
}

/// How tokens are chosen, and the seed to report when they are sampled. As in TGI, a parameter that
/// only means something to sampling switches it on.
fn sampling(p: &Fields) -> Result<(Sampling, Option<u64>), ApiError> {
    let temperature = p.number(&request_fields::TEMPERATURE)?;
    let repetition_penalty = p.number(&request_fields::REPETITION_PENALTY)?.unwrap_or(1.0);
    let frequency_penalty = p.number(&request_fields::FREQUENCY_PENALTY)?.unwrap_or(0.0);
    let top_k = p.small(&request_fields::TOP_K)?.unwrap_or(0);
    let top_p = p.number(&request_fields::TOP_P)?.unwrap_or(1.0);
    let typical_p = p.number(&request_fields::TYPICAL_P)?.unwrap_or(1.0);
    let do_sample = p.boolean(&request_fields::DO_SAMPLE)?.unwrap_or(false);
    let seed = p.unsigned(&request_fields::SEED)?.unwrap_or_else(sampling::drawn_seed);
    let temperature = temperature.unwrap_or(1.0);
    let samples = do_sample || temperature != 1.0 || top_k != 0 || top_p < 1.0 || typical_p < 1.0;
    let sampling = Sampling {
        temperature: if samples { sampling::temperature(temperature) } else { 0.0 },
        top_k,
        top_p: top_p as f32,
        typical_p: typical_p as f32,
        repetition_penalty: repetition_penalty as f32,
        frequency_penalty: frequency_penalty as f32,
        seed,
        ..Sampling::default()
    };
    Ok((sampling, samples.then_some(seed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::error::Family;
    use crate::http::fields::tests::limits;
    use crate::limits::Limits;

    fn parsed(body: &str, route: Route) -> Result<GenerateRequest, String> {
        let limits = limits();
        Fields::parse(body.as_bytes(), &limits)
            .and_then(|fields| GenerateRequest::parse(&fields, route))
            .map_err(|error| String::from_utf8(error.body(Family::Tgi)).expect("UTF-8"))
    }

    fn generate(parameters: &str) -> Result<GenerateRequest, String> {
        parsed(&format!("{{\"inputs\": \"héllo\", \"parameters\": {parameters}}}"), Route::Generate)
    }

    #[test]
    fn without_parameters_the_answer_is_greedy() {
        for body in [
            r#"{"inputs": "x"}"#,
            r#"{"inputs": "x", "parameters": {}}"#,
            r#"{"inputs": "x", "parameters": null}"#,
        ] {
            let asked = parsed(body, Route::Generate).unwrap_or_else(|error| panic!("{body}: {error}"));
            assert_eq!(asked.request.sampling.temperature, 0.0);
            assert_eq!(asked.request.reported_seed, None);
            assert_eq!(asked.request.max_new_tokens, None);
            assert_eq!(asked.prefix, "");
            assert!(!asked.details);
        }
    }

    #[test]
    fn a_parameter_of_sampling_switches_it_on() {
        for parameters in [
            r#"{"do_sample": true}"#,
            r#"{"temperature": 0.7}"#,
            r#"{"top_k": 3}"#,
            r#"{"top_p": 0.9}"#,
            r#"{"typical_p": 0.9}"#,
        ] {
            let asked = generate(parameters).expect(parameters);
            assert!(asked.request.sampling.temperature > 0.0, "{parameters}");
            assert_eq!(asked.request.reported_seed, Some(asked.request.sampling.seed));
        }
        for parameters in [r#"{"temperature": 1.0}"#, r#"{"top_p": 1}"#, r#"{"seed": 5}"#] {
            let asked = generate(parameters).expect(parameters);
            assert_eq!(asked.request.sampling.temperature, 0.0, "{parameters}");
            assert_eq!(asked.request.reported_seed, None);
        }
    }

    /// JavaScript's numbers are exact below 2^53, and what is read of them is sent again.
    #[test]
    fn a_seed_that_is_drawn_can_be_read_by_every_client() {
        let seeds =
            (0..1000).map(|_| generate(r#"{"do_sample": true}"#).expect("valid").request.reported_seed);
        let seeds: Vec<u64> = seeds.map(|seed| seed.expect("it samples")).collect();
        assert!(seeds.iter().all(|seed| *seed < 1 << 53), "{seeds:?}");
        assert!(seeds.iter().any(|seed| *seed >= 1 << 50), "they have all of these bits");
        assert_eq!(seeds.iter().collect::<std::collections::HashSet<_>>().len(), seeds.len());
    }

    #[test]
    fn an_image_that_is_not_shown_to_the_model_is_named() {
        let limits = Limits { images_left_out: true, ..limits() };
        let parsed = |inputs: &str| {
            let body = serde_json::json!({"inputs": inputs}).to_string();
            let fields = Fields::parse(body.as_bytes(), &limits).expect("JSON");
            GenerateRequest::parse(&fields, Route::Stream).map_err(|error| error.to_string())
        };
        let asked = parsed("![](https://x.org/rabbit.png)What is this a picture of?").expect("valid");
        let line = "`inputs` has an image, which has no effect here: only text is supported, and the model reads the URL";
        assert_eq!(asked.warnings.lines(), [line]);
        let refused =
            parsed("![](data:image/png;base64,iVBORw0KGgo=)What is this?").err().expect("no prompt");
        assert_eq!(refused, "`inputs` has an image as a data: URL, which is not supported yet: only text is");
    }

    #[test]
    fn every_parameter_reaches_the_request() {
        let asked = generate(
            r#"{"best_of": 1, "temperature": 0.5, "repetition_penalty": 1.2, "frequency_penalty": -0.5,
                "top_k": 7, "top_p": 0.8, "typical_p": 0.7, "do_sample": true, "max_new_tokens": 9,
                "return_full_text": true, "stop": ["a", "b"], "truncate": 11, "watermark": true,
                "details": true, "decoder_input_details": true, "seed": 18446744073709551615,
                "top_n_tokens": 5, "grammar": null, "adapter_id": null, "max_time": 1.5, "unknown": 1}"#,
        )
        .expect("valid");
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 7,
            top_p: 0.8,
            typical_p: 0.7,
            repetition_penalty: 1.2,
            frequency_penalty: -0.5,
            seed: u64::MAX,
            ..Sampling::default()
        };
        let request = asked.request;
        assert_eq!(request.sampling, sampling);
        assert_eq!(request.reported_seed, Some(u64::MAX));
        assert_eq!((request.max_new_tokens, request.truncate), (Some(9), Some(11)));
        assert_eq!(request.stop, ["a", "b"]);
        assert_eq!(request.stop_text, StopText::Keep);
        assert_eq!(request.top_tokens, 5);
        assert_eq!(request.max_time, Some(Duration::from_millis(1500)));
        assert!(request.prompt_logprobs && request.watermark && asked.details);
        assert_eq!((asked.prefix.as_str(), asked.prompt_characters), ("héllo", 5));
        let unknown = ["`parameters.unknown` is not a field of this route and has no effect"];
        assert_eq!(asked.warnings.lines(), unknown);
    }

    #[test]
    fn what_has_no_effect_is_named() {
        let warnings = |body: &str, route| {
            let asked = parsed(body, route).unwrap_or_else(|error| panic!("{body}: {error}"));
            asked.warnings.lines().join("; ")
        };
        let plain = r#"{"inputs": "x", "parameters": {"details": true, "top_n_tokens": 2}, "stream": null}"#;
        assert_eq!(warnings(plain, Route::Generate), "");
        for (body, route, text) in [
            (r#"{"inputs": "x", "model": "y"}"#, Route::Generate, "`model` is not a field of this route"),
            (r#"{"inputs": "x", "stream": true}"#, Route::Generate, "`stream` has no effect here"),
            (r#"{"inputs": "x", "stream": false}"#, Route::Stream, "`stream` has no effect here"),
            (
                r#"{"inputs": "x", "parameters": {"top_n_tokens": 2}}"#,
                Route::Generate,
                "`top_n_tokens` has no effect without `details`",
            ),
            (
                plain,
                Route::Text,
                "`details` has no effect here: the answer is the text alone; `top_n_tokens`",
            ),
            (
                r#"{"inputs": "x", "parameters": {"decoder_input_details": true}}"#,
                Route::Text,
                "`decoder_input_details` has no effect here",
            ),
        ] {
            let lines = warnings(body, route);
            assert!(lines.starts_with(text), "{body}: {lines}");
        }
        let streams = r#"{"inputs": "x", "stream": true, "parameters": {"top_n_tokens": 2}}"#;
        assert_eq!(warnings(streams, Route::Stream), "");
    }

    #[test]
    fn a_refusal_names_the_field_and_the_limit() {
        for (parameters, text) in [
            (r#"{"best_of": 0}"#, "`best_of` must be a whole number >= 1 and <= 2 (--max-best-of). Given: 0"),
            (
                r#"{"best_of": 2}"#,
                "`best_of` > 1 needs sampling: `do_sample`, `temperature`, `top_k`, `top_p` or `typical_p`",
            ),
            (r#"{"best_of": 2, "top_k": 5, "seed": 1}"#, "`seed` must not be set when `best_of` > 1"),
            (r#"{"temperature": 0}"#, "`temperature` must be a finite number > 0. Given: 0"),
            (r#"{"repetition_penalty": -1}"#, "`repetition_penalty` must be a finite number > 0. Given: -1"),
            (
                r#"{"frequency_penalty": 2.1}"#,
                "`frequency_penalty` must be a number >= -2 and <= 2. Given: 2.1",
            ),
            (r#"{"top_k": 0}"#, "`top_k` must be a whole number >= 1 and <= 2147483647. Given: 0"),
            (r#"{"typical_p": 2}"#, "`typical_p` must be a number > 0 and <= 1. Given: 2"),
            (
                r#"{"truncate": 1024}"#,
                "`truncate` must be a whole number >= 1 and <= 1023 (--max-input-tokens). Given: 1024",
            ),
            (
                r#"{"top_n_tokens": 6}"#,
                "`top_n_tokens` must be a whole number >= 0 and <= 5 (--max-top-n-tokens). Given: 6",
            ),
            (r#"{"do_sample": "yes"}"#, "`do_sample` must be true or false. Given: \\\"yes\\\""),
            (r#"{"grammar": {"type": "regex"}}"#, "`grammar.value` must be a string, the regular expression"),
            (
                r#"{"adapter_id": "x"}"#,
                "`adapter_id` names no loaded adapter: none is loaded, --lora-adapters loads some. Given: x",
            ),
            (r#"{"adapter_id": 5}"#, "`adapter_id` must be a string of at most 256 characters. Given: 5"),
            (r#"[]"#, "`parameters` must be an object. Given: []"),
        ] {
            let body = generate(parameters).err().unwrap_or_else(|| panic!("{parameters} was taken"));
            let expected =
                format!("{{\"error\":\"Input validation error: {text}\",\"error_type\":\"validation\"}}");
            assert_eq!(body, expected);
        }
    }

    #[test]
    fn a_prompt_is_required_and_not_empty() {
        for (body, text) in [
            ("{}", "`inputs` is required"),
            (r#"{"inputs": null}"#, "`inputs` is required"),
            (r#"{"inputs": ""}"#, "`inputs` cannot be empty"),
            (r#"{"inputs": 7}"#, "`inputs` must be a string. Given: 7"),
        ] {
            let error = parsed(body, Route::Generate).err().unwrap_or_else(|| panic!("{body} was taken"));
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_streamed_is_refused_when_streaming() {
        let with = |parameters: &str| format!("{{\"inputs\": \"x\", \"parameters\": {parameters}}}");
        for route in [Route::Stream, Route::CompatStream { full_text: true }] {
            let error = parsed(&with(r#"{"decoder_input_details": true}"#), route).err();
            assert!(error.is_some_and(|error| error.contains("`decoder_input_details`")));
            let error = parsed(&with(r#"{"best_of": 2}"#), route).err();
            assert!(error.is_some_and(|error| error.contains("`best_of` must be 1")));
        }
    }

    #[test]
    fn the_root_route_returns_the_prompt_as_the_request_says_or_the_model_is_for() {
        for full_text in [true, false] {
            for route in [Route::Compat { full_text }, Route::CompatStream { full_text }] {
                let prefix = |body| parsed(body, route).expect("valid").prefix;
                assert_eq!(prefix(r#"{"inputs": "x"}"#), if full_text { "x" } else { "" });
                let null = r#"{"inputs": "x", "parameters": {"return_full_text": null}}"#;
                assert_eq!(prefix(null), if full_text { "x" } else { "" });
                assert_eq!(prefix(r#"{"inputs": "x", "parameters": {"return_full_text": false}}"#), "");
                assert_eq!(prefix(r#"{"inputs": "x", "parameters": {"return_full_text": true}}"#), "x");
            }
        }
    }
}
