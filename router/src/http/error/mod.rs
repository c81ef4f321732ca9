//! How each family of routes says that a request failed: TGI's `{error, error_type}` or OpenAI's
//! `{error: {message, type, param, code}}`; `cause` has what there is to say. Texts are for the client: no path, no
//! address, no library's own words. Errors from below have no words at all (`FieldNames` gives them those of a dialect).

mod cause;
mod place;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use schemars::JsonSchema;
use serde::Serialize;

pub use cause::{Cause, Entry};
pub use place::Place;

use penstock_core::blocking::Undone;
use penstock_core::constraint::GrammarError;
use penstock_core::generation::{GenerationFailure, InvalidRequest, Part};
use penstock_core::prompt::{InvalidChat, PromptError};
use penstock_core::scheduler::{Late, Refused, SequenceFailure, Unavailable};

use crate::http::shortened::{shortened, shortened_to};

/// Which shape an error has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Tgi,
    OpenAi,
    Anthropic,
}

impl Family {
    /// A path that is no route has the family of its neighbours.
    pub fn of(path: &str) -> Self {
        match path.strip_prefix("/v1") {
            Some(rest) if rest == "/messages" || rest.starts_with("/messages/") => Family::Anthropic,
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Family::OpenAi,
            _ => Family::Tgi,
        }
    }
}

impl Family {
    /// Anthropic's clients know 400 for what others call 422.
    pub fn status(self, cause: Cause) -> StatusCode {
        match (self, cause.status()) {
            (Family::Anthropic, StatusCode::UNPROCESSABLE_ENTITY) => StatusCode::BAD_REQUEST,
            (_, status) => status,
        }
    }
}

/// What the layer around all routes knows of an answer that is an error, to count and to log it.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub cause: Cause,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub cause: Cause,
    /// What is wrong, where one place is. Boxed: errors are handed on by value.
    place: Option<Box<Place>>,
    says: Says,
    /// What the client gave; ends the message.
    given: Option<String>,
    /// Parts of the request that the place is in, the inner one first.
    within: Vec<Place>,
    retry_after: Option<Duration>,
    /// Boxed like the place.
    overflow: Option<Box<Overflow>>,
}

/// Which tokens are too many, in numbers. `of` is what the dialect calls the prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Overflow {
    /// Those of the prompt. `given` is `None` where they were not all counted.
    Prompt { of: &'static str, most: usize, given: Option<u32> },
    /// Those of the prompt and the new ones together.
    Total { of: &'static str, most: u32, prompt: u32, new: u32 },
}

impl Overflow {
    /// Sentences before our own. Clients find out by these words, and by the numbers in them, that they have to shorten the
    /// conversation or to ask for fewer tokens; TGI's look for our own. Of OpenAI's Crush needs both numbers, and on one line.
    fn sentence(self, family: Family) -> Option<String> {
        let sentence = match (family, self) {
            (Family::Tgi, _) => return None,
            (Family::OpenAi, Self::Prompt { of, most, given }) => {
                let given = given.map_or_else(|| format!("~{}", most + 1), |given| given.to_string());
                format!(
                    "This model's maximum context length is {most} tokens for the prompt. However, your {of} resulted in {given} \
                     tokens. Please reduce the length of the {of}"
                )
            }
            (Family::OpenAi, Self::Total { of, most, prompt, new }) => {
                let sum = u64::from(prompt) + u64::from(new);
                format!(
                    "This model's maximum context length is {most} tokens. However, you requested {sum} tokens ({prompt} in the \
                     {of}, {new} in the completion). Please reduce the length of the {of} or completion"
                )
            }
            (Family::Anthropic, Self::Prompt { most, given: Some(given), .. }) => {
                format!("prompt is too long: {given} tokens > {most} maximum")
            }
            (Family::Anthropic, Self::Prompt { most, given: None, .. }) => {
                format!("prompt is too long: at least {} tokens > {most} maximum", most + 1)
            }
            (Family::Anthropic, Self::Total { most, prompt, new, .. }) => {
                format!("input length and `max_tokens` exceed context limit: {prompt} + {new} > {most}")
            }
        };
        Some(sentence)
    }
}

/// What the message says; with the place, or of several.
#[derive(Clone, Debug, PartialEq)]
enum Says {
    /// What follows the place, such as "must be true or false".
    Predicate(Cow<'static, str>),
    /// What follows the place and a colon.
    Reason(String),
    /// The whole sentence.
    Sentence(Cow<'static, str>),
}

impl ApiError {
    fn saying(cause: Cause, place: Option<Place>, says: Says) -> Self {
        let place = place.map(Box::new);
        Self { cause, place, says, given: None, within: Vec::new(), retry_after: None, overflow: None }
    }

    /// An error that is about no field.
    pub fn new(cause: Cause, text: impl Into<Cow<'static, str>>) -> Self {
        Self::saying(cause, None, Says::Sentence(text.into()))
    }

    /// What is at `place` cannot be served. `predicate` follows its name: "must be true or false".
    pub fn invalid(place: impl Into<Place>, predicate: impl Into<Cow<'static, str>>) -> Self {
        Self::saying(Cause::Validation, Some(place.into()), Says::Predicate(predicate.into()))
    }

    /// The same, of something that has words of its own for what is wrong.
    pub fn unusable(place: impl Into<Place>, reason: impl Into<String>) -> Self {
        Self::saying(Cause::Validation, Some(place.into()), Says::Reason(reason.into()))
    }

    /// Its tenant has too much waiting to be worked on, before the queue.
    pub fn crowded(undone: Undone) -> Self {
        Self { retry_after: Some(RETRY_UNAVAILABLE), ..Self::new(Cause::Overloaded, undone.to_string()) }
    }

    /// Several fields together cannot be served, of which `place` is to blame.
    pub fn together(place: impl Into<Place>, sentence: impl Into<Cow<'static, str>>) -> Self {
        Self::saying(Cause::Validation, Some(place.into()), Says::Sentence(sentence.into()))
    }

    /// Says what was given instead.
    pub fn given(self, given: impl Into<String>) -> Self {
        Self { given: Some(given.into()), ..self }
    }

    /// The same, of another cause.
    pub fn because(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// Says that tokens are too many, and which.
    fn overflowing(self, overflow: Overflow) -> Self {
        Self { cause: Cause::ContextLength, overflow: Some(Box::new(overflow)), ..self }
    }

    pub fn not_supported_yet(field: &'static str) -> Self {
        Self::invalid(field, "is not supported yet")
    }

    /// The place is of an object that is `field`'s.
    pub fn of_member(mut self, field: &'static str) -> Self {
        self.place = self.place.map(|place| Box::new(place.within(field)));
        self
    }

    /// Says in which part of the request the place is.
    pub fn within(mut self, part: Place) -> Self {
        self.within.push(part);
        self
    }

    /// A bug.
    pub fn internal() -> Self {
        Self::new(Cause::Internal, "an internal error; the server's log has more")
    }

    pub fn unavailable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { retry_after: Some(RETRY_UNAVAILABLE), ..Self::new(Cause::Unavailable, reason) }
    }

    pub fn unhealthy(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { retry_after: Some(RETRY_UNAVAILABLE), ..Self::new(Cause::Unhealthy, reason) }
    }

    /// As for a full server: the client may ask again soon.
    pub fn overloaded(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { retry_after: Some(RETRY_UNAVAILABLE), ..Self::new(Cause::Overloaded, reason) }
    }

    /// `allowed` names the methods that the route takes; the framework writes them into the header `Allow`.
    pub fn method_not_allowed(method: &Method, allowed: &str) -> Self {
        let method = shortened(method.as_str());
        let message = format!("this route does not take {method}; it takes {allowed}");
        Self::new(Cause::MethodNotAllowed, message)
    }

    /// The whole answer, before anything else of it was sent.
    pub fn response(&self, family: Family) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body(family)));
        *response.status_mut() = family.status(self.cause);
        response.extensions_mut().insert(Refusal { cause: self.cause, message: self.for_log() });
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if self.cause == Cause::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// What the log may say of it: not what the client wrote where a text belongs, and no more than a line.
    pub fn for_log(&self) -> String {
        let of_text = |field: &str| TEXTS.contains(&field);
        let message = match &self.given {
            Some(_) if self.param().is_some_and(of_text) => {
                format!("{}.", Self { given: None, ..self.clone() })
            }
            _ => self.to_string(),
        };
        shortened_to(LOGGED, &message).into_owned()
    }

    /// The field that is wrong.
    pub fn param(&self) -> Option<&str> {
        self.place.as_deref().map(Place::field)
    }

    /// What the family's clients are told.
    pub fn message(&self, family: Family) -> String {
        let overflow = self.overflow.as_ref().and_then(|overflow| overflow.sentence(family));
        overflow.map_or_else(|| self.to_string(), |sentence| format!("{sentence}. {self}"))
    }

    /// The JSON of it: a body, or the data of a stream's last event.
    pub fn body(&self, family: Family) -> Vec<u8> {
        let body = match family {
            Family::Tgi => serde_json::to_vec(&TgiError {
                error: &format!("{}{self}", self.cause.entry().tgi_prefix),
                error_type: self.cause.entry().error_type,
            }),
            Family::OpenAi => serde_json::to_vec(&OpenAiError {
                error: OpenAiDetail {
                    message: &self.message(family),
                    r#type: self.cause.entry().openai_type,
                    param: self.param(),
                    code: self.cause.code(),
                    http_status_code: self.cause.status().as_u16(),
                },
            }),
            Family::Anthropic => serde_json::to_vec(&AnthropicError {
                kind: "error",
                error: AnthropicDetail {
                    kind: anthropic_type(family.status(self.cause)),
                    message: &self.message(family),
                    param: self.param(),
                },
            }),
        };
        body.expect("strings and numbers always serialise")
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.within.iter().rev() {
            write!(f, "{part}: ")?;
        }
        match (&self.place, &self.says) {
            (Some(place), Says::Predicate(predicate)) => write!(f, "`{place}` {predicate}")?,
            (Some(place), Says::Reason(reason)) => write!(f, "`{place}`: {reason}")?,
            (None, Says::Predicate(text)) | (_, Says::Sentence(text)) => f.write_str(text)?,
            (None, Says::Reason(reason)) => f.write_str(reason)?,
        }
        match &self.given {
            Some(given) => write!(f, ". Given: {given}"),
            None => Ok(()),
        }
    }
}

/// Fields that hold what a client's users wrote.
const TEXTS: [&str; 7] = ["inputs", "prompt", "messages", "instances", "input", "instructions", "system"];

/// Characters of a message that are logged.
const LOGGED: usize = 500;

/// Characters of what a chat template raises that its client is told: a template may raise the whole chat.
const RAISED: usize = 2000;

/// How soon a client may ask again while the server loads or recovers: those take seconds.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(2);

/// What a dialect calls the fields that may be refused below it.
#[derive(Clone, Copy, Debug)]
pub struct FieldNames {
    pub prompt: &'static str,
    pub max_new_tokens: &'static str,
    pub grammar: &'static str,
    pub stop: &'static str,
}

impl FieldNames {
    pub const TGI: Self =
        Self { prompt: "inputs", max_new_tokens: "max_new_tokens", grammar: "grammar", stop: "stop" };
    pub const CHAT: Self =
        Self { prompt: "messages", max_new_tokens: "max_tokens", grammar: "response_format", stop: "stop" };
    pub const COMPLETION: Self = Self { prompt: "prompt", ..Self::CHAT };
    pub const RESPONSES: Self =
        Self { prompt: "input", max_new_tokens: "max_output_tokens", grammar: "text.format", stop: "stop" };
    pub const MESSAGES: Self = Self { grammar: "output_config.format", stop: "stop_sequences", ..Self::CHAT };

    /// A failure in the dialect's words.
    pub fn error(&self, failure: impl Into<GenerationFailure>) -> ApiError {
        let retry = |error: ApiError, after| ApiError { retry_after: Some(after), ..error };
        match failure.into() {
            GenerationFailure::Invalid(invalid) => self.invalid(invalid),
            GenerationFailure::Grammar(GrammarError::Invalid(why)) => {
                ApiError::unusable(Place::path(self.grammar), why.to_string())
            }
            GenerationFailure::Grammar(GrammarError::Busy(why)) => ApiError::overloaded(why),
            GenerationFailure::Grammar(GrammarError::Internal(why)) => {
                tracing::error!("a grammar was not compiled: {why}");
                ApiError::internal()
            }
            GenerationFailure::Prompt(PromptError::TooLong { limit }) => self.too_long(limit, None),
            GenerationFailure::Prompt(PromptError::TooMuchText { limit, most, given }) => {
                let text = format!("must come to <= {most} bytes of text");
                let error = ApiError::invalid(self.prompt, text).given(given.to_string());
                error.overflowing(Overflow::Prompt { of: self.prompt, most: limit, given: None })
            }
            GenerationFailure::Prompt(PromptError::Chat(invalid)) => invalid_chat(&invalid),
            GenerationFailure::Prompt(PromptError::Template(text)) => {
                ApiError::new(Cause::Template, shortened_to(RAISED, &text).into_owned())
            }
            GenerationFailure::Refused(Refused::Full { retry_after }) => {
                retry(ApiError::new(Cause::Overloaded, "Model is overloaded"), retry_after)
            }
            GenerationFailure::Refused(Refused::Unavailable(why))
            | GenerationFailure::Sequence(SequenceFailure::Unavailable(why)) => self.unavailable(&why),
            GenerationFailure::Sequence(SequenceFailure::TooLate { late, retry_after }) => {
                let text = match late {
                    Late::Waited => {
                        "the time that the request has was over while it waited in the queue".into()
                    }
                    Late::Expected { after, left } => format!(
                        "the first token is expected after {:.1} s, and the request has {:.1} s left",
                        after.as_secs_f64(),
                        left.as_secs_f64()
                    ),
                };
                retry(ApiError::new(Cause::Overloaded, text), retry_after)
            }
            GenerationFailure::Sequence(SequenceFailure::OutOfTime { generated }) => {
                let text = format!("the deadline passed after {generated} generated tokens");
                ApiError::new(Cause::Deadline, text)
            }
            GenerationFailure::Prompt(PromptError::Undone(undone @ (Undone::Crowded | Undone::Late)))
            | GenerationFailure::Undone(undone @ (Undone::Crowded | Undone::Late)) => {
                ApiError::crowded(undone)
            }
            failure @ (GenerationFailure::Prompt(
                PromptError::Tokenizer | PromptError::Undone(Undone::Lost),
            )
            | GenerationFailure::Sequence(
                SequenceFailure::Row(_)
                | SequenceFailure::Mask(_)
                | SequenceFailure::MaskIgnored
                | SequenceFailure::Poisonous,
            )
            | GenerationFailure::Undone(Undone::Lost)
            | GenerationFailure::BrokenOff) => ApiError::new(Cause::Generation, failure.to_string()),
        }
    }

    fn unavailable(&self, why: &Unavailable) -> ApiError {
        let Self { prompt, max_new_tokens, .. } = self;
        ApiError::unavailable(match why {
            Unavailable::TotalTokens { limit } => {
                format!("`{prompt}` tokens + `{max_new_tokens}` must be <= {limit} now")
            }
            Unavailable::Stopping | Unavailable::Failed(_) | Unavailable::CacheTokens { .. } => {
                why.to_string()
            }
        })
    }

    fn invalid(&self, invalid: InvalidRequest) -> ApiError {
        let Self { prompt, max_new_tokens, .. } = *self;
        match invalid {
            InvalidRequest::EmptyStop => ApiError::invalid(self.stop, "must not have an empty string"),
            InvalidRequest::EmptyPrompt => ApiError::invalid(prompt, "must have at least 1 token").given("0"),
            InvalidRequest::PromptTokens { limit, given } => self.too_long(limit as usize, Some(given)),
            InvalidRequest::TokenId { limit, given } => {
                let text = format!("token ids must be < {limit}, the vocabulary's size");
                ApiError::invalid(prompt, text).given(given.to_string())
            }
            InvalidRequest::NoNewTokens => ApiError::invalid(max_new_tokens, "must be >= 1").given("0"),
            InvalidRequest::NewTokens { limit, given } => {
                let text = format!("must be <= {limit}, the positions of the model's decoder");
                ApiError::invalid(max_new_tokens, text).given(given.to_string())
            }
            InvalidRequest::TotalTokens { limit, prompt: length, new, blames } => {
                let (field, overflow) = match blames {
                    // Fewer new tokens would not make it fit.
                    Part::Prompt { most } => {
                        (prompt, Overflow::Prompt { of: prompt, most: most as usize, given: Some(length) })
                    }
                    Part::NewTokens => {
                        (max_new_tokens, Overflow::Total { of: prompt, most: limit, prompt: length, new })
                    }
                };
                let text = format!("`{prompt}` tokens + `{max_new_tokens}` must be <= {limit}");
                let given = format!("{length} `{prompt}` tokens and {new} `{max_new_tokens}`");
                ApiError::together(field, text).given(given).overflowing(overflow)
            }
            InvalidRequest::MinNewTokens { limit, given } => {
                let text = format!("must be <= {limit}, the most that may be generated");
                ApiError::invalid("min_tokens", text).given(given.to_string())
            }
        }
    }

    fn too_long(&self, most: usize, given: Option<u32>) -> ApiError {
        let counted = given.map_or_else(|| format!("more than {most}"), |given| given.to_string());
        let error = ApiError::invalid(self.prompt, format!("must have <= {most} tokens")).given(counted);
        error.overflowing(Overflow::Prompt { of: self.prompt, most, given })
    }
}

/// Its fields have one name in all dialects.
fn invalid_chat(invalid: &InvalidChat) -> ApiError {
    let variables = Place::from("chat_template_kwargs");
    let template = variables.member("chat_template");
    match invalid {
        InvalidChat::ReservedVariable { name } => {
            ApiError::invalid(variables, format!("must not have `{name}`"))
        }
        InvalidChat::ContinuesAndBegins => {
            ApiError::invalid("continue_final_message", "and `add_generation_prompt` must not both be true")
        }
        InvalidChat::Documents => {
            ApiError::invalid(variables.member("documents"), "must be a list of objects")
        }
        InvalidChat::TemplateName => ApiError::invalid(template, "must be the name of a chat template"),
        InvalidChat::UnknownTemplate { known } => {
            let known = known.join("`, `");
            let text = format!("must be the name of one of the model's chat templates: `{known}`");
            ApiError::invalid(template, text)
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub struct TgiError<'a> {
    error: &'a str,
    /// A name of the cause, for programs; null while the server is not ready
    error_type: Option<&'static str>,
}

#[derive(JsonSchema, Serialize)]
pub struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicDetail<'a>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct AnthropicDetail<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
    /// The field that is wrong, which Anthropic's own have not.
    param: Option<&'a str>,
}

/// As Anthropic's documentation of errors has them.
fn anthropic_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        // The model failed, not the request.
        StatusCode::FAILED_DEPENDENCY => "api_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}

#[derive(JsonSchema, Serialize)]
pub struct OpenAiError<'a> {
    error: OpenAiDetail<'a>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct OpenAiDetail<'a> {
    message: &'a str,
    r#type: &'static str,
    /// The field that is wrong
    param: Option<&'a str>,
    code: &'static str,
    /// As in TGI's error events
    http_status_code: u16,
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use serde_json::{Value, json};

    use super::*;

    fn body(error: &ApiError, family: Family) -> Value {
        serde_json::from_slice(&error.body(family)).expect("JSON")
    }

    #[test]
    fn tgi_routes_get_two_strings() {
        let error = ApiError::invalid("top_p", "must be > 0");
        assert_eq!(
            body(&error, Family::Tgi),
            json!({"error": "Input validation error: `top_p` must be > 0", "error_type": "validation"})
        );
    }

    #[test]
    fn what_the_framework_refuses_has_a_type_on_tgi_routes() {
        for (cause, expected) in [
            (Cause::MalformedBody, "validation"),
            (Cause::NotJson, "validation"),
            (Cause::BodyTooLarge, "validation"),
            (Cause::Validation, "validation"),
            (Cause::BodyTimeout, "timeout"),
            (Cause::Unauthorized, "authentication"),
            (Cause::NotFound, "not_found"),
            (Cause::MethodNotAllowed, "method_not_allowed"),
            (Cause::Internal, "internal"),
        ] {
            let error = ApiError::new(cause, "why");
            assert_eq!(body(&error, Family::Tgi)["error_type"], expected);
        }
        assert_eq!(body(&ApiError::unavailable("why"), Family::Tgi)["error_type"], Value::Null);
        let error = ApiError::new(Cause::Unauthorized, "the API key is not valid");
        assert_eq!(body(&error, Family::OpenAi)["error"]["code"], "invalid_api_key");
    }

    #[test]
    fn openai_routes_name_the_parameter() {
        let names = FieldNames { max_new_tokens: "max_completion_tokens", ..FieldNames::CHAT };
        let too_many = |blames| InvalidRequest::TotalTokens { limit: 10, prompt: 4, new: 7, blames };
        let body = body(&names.error(too_many(Part::NewTokens)), Family::OpenAi);
        let message = "This model's maximum context length is 10 tokens. However, you requested 11 tokens (4 in the messages, 7 in \
                       the completion). Please reduce the length of the messages or completion. `messages` tokens + \
                       `max_completion_tokens` must be <= 10. Given: 4 `messages` tokens and 7 `max_completion_tokens`";
        assert_eq!(body["error"]["message"], message);
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["param"], "max_completion_tokens");
        assert_eq!(body["error"]["code"], "context_length_exceeded");
        assert_eq!(names.error(too_many(Part::Prompt { most: 3 })).param(), Some("messages"));
    }

    /// What OpenCode, LiteLLM, Claude Code, Crush, OpenHands and others look for in a message.
    #[test]
    fn too_many_tokens_are_told_in_the_words_that_a_familys_clients_look_for() {
        let together = |prompt, new, blames| {
            GenerationFailure::from(InvalidRequest::TotalTokens { limit: 10, prompt, new, blames })
        };
        let both = together(4, 7, Part::NewTokens);
        let prompt = together(12, 7, Part::Prompt { most: 9 });
        let counted = GenerationFailure::from(InvalidRequest::PromptTokens { limit: 9, given: 12 });
        let uncounted = GenerationFailure::from(PromptError::TooLong { limit: 9 });
        let too_much =
            GenerationFailure::from(PromptError::TooMuchText { limit: 9, most: 4096, given: 5000 });
        for (failure, openai, anthropic) in [
            (
                both,
                "This model's maximum context length is 10 tokens. However, you requested 11 tokens (4 in the messages, 7 in the \
                 completion). Please reduce the length of the messages or completion",
                "input length and `max_tokens` exceed context limit: 4 + 7 > 10",
            ),
            (
                prompt,
                "This model's maximum context length is 9 tokens for the prompt. However, your messages resulted in 12 tokens. \
                 Please reduce the length of the messages",
                "prompt is too long: 12 tokens > 9 maximum",
            ),
            (
                counted,
                "This model's maximum context length is 9 tokens for the prompt. However, your messages resulted in 12 tokens. \
                 Please reduce the length of the messages",
                "prompt is too long: 12 tokens > 9 maximum",
            ),
            (
                uncounted,
                "This model's maximum context length is 9 tokens for the prompt. However, your messages resulted in ~10 tokens. \
                 Please reduce the length of the messages",
                "prompt is too long: at least 10 tokens > 9 maximum",
            ),
            (
                too_much,
                "This model's maximum context length is 9 tokens for the prompt. However, your messages resulted in ~10 tokens. \
                 Please reduce the length of the messages",
                "prompt is too long: at least 10 tokens > 9 maximum",
            ),
        ] {
            let error = FieldNames::MESSAGES.error(failure.clone());
            let sentence = error.to_string();
            assert!(sentence.starts_with("`messages` "), "{sentence}");
            for (family, lead) in [(Family::OpenAi, openai), (Family::Anthropic, anthropic)] {
                assert_eq!(body(&error, family)["error"]["message"], format!("{lead}. {sentence}"));
            }
            assert_eq!(body(&error, Family::OpenAi)["error"]["code"], "context_length_exceeded");
            assert_eq!(body(&error, Family::OpenAi)["error"]["http_status_code"], 422);
            assert_eq!(error.response(Family::Anthropic).status(), 400);
            // TGI's clients know our own words, which are TGI's.
            let error = FieldNames::TGI.error(failure);
            let text = format!("Input validation error: {error}");
            assert_eq!(body(&error, Family::Tgi), json!({"error": text, "error_type": "validation"}));
        }
    }

    #[test]
    fn anthropics_type_says_whose_fault_it_is() {
        for (cause, expected) in [
            (Cause::Validation, "invalid_request_error"),
            (Cause::Generation, "api_error"),
            (Cause::Internal, "api_error"),
            (Cause::Deadline, "timeout_error"),
        ] {
            let body = body(&ApiError::new(cause, "why"), Family::Anthropic);
            assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &expected.into()));
        }
    }

    #[test]
    fn what_a_template_raises_has_a_length() {
        let error = FieldNames::CHAT.error(PromptError::Template("a\n".repeat(750_000)));
        assert_eq!(error.for_log().len(), LOGGED + "...".len());
        assert_eq!(error.to_string().len(), RAISED + "...".len());
    }

    #[test]
    fn an_overloaded_server_says_when_to_come_back() {
        let overloaded = Refused::Full { retry_after: Duration::from_millis(2_100) };
        let error = FieldNames::TGI.error(overloaded);
        let response = error.response(Family::Tgi);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        assert_eq!(
            body(&error, Family::Tgi),
            json!({"error": "Model is overloaded", "error_type": "overloaded"})
        );
    }

    /// By no fault of the server's: gateways do not eject it, and no alert calls it failing.
    #[test]
    fn a_grammar_whose_turn_does_not_come_is_for_later() {
        let error = FieldNames::TGI.error(GrammarError::Busy("too many".into()));
        let response = error.response(Family::Tgi);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(response.headers().contains_key(header::RETRY_AFTER));
        assert_eq!(error.cause.label(), "overloaded");
    }

    #[test]
    fn too_little_time_is_said_in_seconds_or_tokens() {
        let (after, left) = (Duration::from_millis(1500), Duration::from_millis(300));
        let too_late = |late| SequenceFailure::TooLate { late, retry_after: Duration::from_secs(2) };
        for (failure, cause, text) in [
            (
                too_late(Late::Expected { after, left }),
                Cause::Overloaded,
                "the first token is expected after 1.5 s, and the request has 0.3 s left",
            ),
            (
                too_late(Late::Waited),
                Cause::Overloaded,
                "the time that the request has was over while it waited in the queue",
            ),
            (
                SequenceFailure::OutOfTime { generated: 7 },
                Cause::Deadline,
                "the deadline passed after 7 generated tokens",
            ),
        ] {
            let error = FieldNames::TGI.error(failure);
            assert_eq!((error.cause, error.to_string().as_str()), (cause, text));
        }
    }

    #[test]
    fn a_limit_that_has_shrunk_is_told_in_the_dialects_names() {
        for (names, text) in [
            (FieldNames::TGI, "`inputs` tokens + `max_new_tokens` must be <= 96 now"),
            (FieldNames::CHAT, "`messages` tokens + `max_tokens` must be <= 96 now"),
        ] {
            let error = names.error(SequenceFailure::from(Unavailable::TotalTokens { limit: 96 }));
            assert_eq!((error.cause, error.to_string().as_str()), (Cause::Unavailable, text));
        }
        let stopping = FieldNames::TGI.error(Refused::from(Unavailable::Stopping));
        assert_eq!(stopping.to_string(), "the server is shutting down");
    }

    #[test]
    fn the_log_does_not_repeat_a_text_of_the_client() {
        let error = ApiError::invalid("prompt", "must be a string").given("{\"a secret\": 1}");
        assert_eq!(error.for_log(), "`prompt` must be a string.");
        assert_eq!(error.to_string(), "`prompt` must be a string. Given: {\"a secret\": 1}");
        let error = ApiError::invalid("top_p", "must be <= 1").given("7");
        assert_eq!(error.for_log(), "`top_p` must be <= 1. Given: 7");
    }

    #[test]
    fn a_limit_below_http_has_the_words_of_each_dialect() {
        let said = |names: FieldNames, invalid: InvalidRequest| names.error(invalid).to_string();
        let too_many = InvalidRequest::TotalTokens { limit: 10, prompt: 4, new: 7, blames: Part::NewTokens };
        for (names, invalid, text) in [
            (
                FieldNames::TGI,
                too_many,
                "`inputs` tokens + `max_new_tokens` must be <= 10. Given: 4 `inputs` tokens and 7 `max_new_tokens`",
            ),
            (
                FieldNames::COMPLETION,
                InvalidRequest::PromptTokens { limit: 8, given: 9 },
                "`prompt` must have <= 8 tokens. Given: 9",
            ),
            (FieldNames::TGI, InvalidRequest::EmptyPrompt, "`inputs` must have at least 1 token. Given: 0"),
            (
                FieldNames::COMPLETION,
                InvalidRequest::TokenId { limit: 100, given: 100 },
                "`prompt` token ids must be < 100, the vocabulary's size. Given: 100",
            ),
            (
                FieldNames::CHAT,
                InvalidRequest::NewTokens { limit: 3, given: 4 },
                "`max_tokens` must be <= 3, the positions of the model's decoder. Given: 4",
            ),
            (FieldNames::TGI, InvalidRequest::NoNewTokens, "`max_new_tokens` must be >= 1. Given: 0"),
            (
                FieldNames::CHAT,
                InvalidRequest::MinNewTokens { limit: 3, given: 4 },
                "`min_tokens` must be <= 3, the most that may be generated. Given: 4",
            ),
        ] {
            assert_eq!(said(names, invalid), text);
        }
        let too_long = FieldNames::CHAT.error(PromptError::TooLong { limit: 100 }).to_string();
        assert_eq!(too_long, "`messages` must have <= 100 tokens. Given: more than 100");
        let known = vec!["rag".to_string(), "tool_use".into()];
        let unknown = FieldNames::CHAT.error(PromptError::from(InvalidChat::UnknownTemplate { known }));
        let text = "`chat_template_kwargs.chat_template` must be the name of one of the model's chat templates: `rag`, \
                    `tool_use`";
        assert_eq!(unknown.to_string(), text);
    }
}
