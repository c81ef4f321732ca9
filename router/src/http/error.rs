//! Every way a request can fail, and how each family of routes says it: TGI's `{error, error_type}` or
//! OpenAI's `{error: {message, type, param, code}}`. Texts are for the client: no path, no address, no
//! library's own words.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use crate::generation::GenerationFailure;
use crate::prompt::PromptError;

/// Which shape an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Tgi,
    OpenAi,
}

impl Family {
    pub fn of(path: &str) -> Self {
        if path == "/v1" || path.starts_with("/v1/") { Family::OpenAi } else { Family::Tgi }
    }
}

/// What kind of failure; decides status and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    MalformedBody,
    Unauthorized,
    NotFound,
    MethodNotAllowed,
    BodyTimeout,
    BodyTooLarge,
    NotJson,
    /// The request's content cannot be served.
    Validation,
    Template,
    Generation,
    Overloaded,
    /// The request's own deadline passed before its answer was complete.
    Deadline,
    /// Loading, recovering, draining, failed.
    Unavailable,
    /// The same, asked by a health probe.
    Unhealthy,
    /// A stream that ended without its end; a bug or a stop.
    IncompleteStream,
    /// A bug.
    Internal,
}

impl Cause {
    pub fn status(self) -> StatusCode {
        match self {
            Cause::MalformedBody => StatusCode::BAD_REQUEST,
            Cause::Unauthorized => StatusCode::UNAUTHORIZED,
            Cause::NotFound => StatusCode::NOT_FOUND,
            Cause::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Cause::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Cause::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Cause::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Cause::Validation | Cause::Template => StatusCode::UNPROCESSABLE_ENTITY,
            Cause::Generation => StatusCode::FAILED_DEPENDENCY,
            Cause::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            Cause::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Cause::Unavailable | Cause::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
            Cause::IncompleteStream | Cause::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// TGI's `error_type`: null for what TGI has no type for, because it answers it without JSON (a wrong key, an
    /// unknown route, a body it cannot read). `huggingface_hub` then raises its `HfHubHTTPError`, with the status,
    /// the headers and this message; a type that it does not know becomes an `UnknownError` without a status.
    fn error_type(self) -> Option<&'static str> {
        match self {
            Cause::MalformedBody
            | Cause::Unauthorized
            | Cause::NotFound
            | Cause::MethodNotAllowed
            | Cause::BodyTimeout
            | Cause::BodyTooLarge
            | Cause::NotJson
            | Cause::Unavailable
            | Cause::Internal => None,
            Cause::Validation
            | Cause::Template
            | Cause::Generation
            | Cause::Overloaded
            | Cause::Deadline
            | Cause::Unhealthy
            | Cause::IncompleteStream => Some(self.code()),
        }
    }

    /// OpenAI's `code`, and the label `type` of `penstock_errors`.
    pub fn code(self) -> &'static str {
        match self {
            Cause::MalformedBody => "malformed_body",
            Cause::Unauthorized => "invalid_api_key",
            Cause::NotFound => "not_found",
            Cause::MethodNotAllowed => "method_not_allowed",
            Cause::BodyTimeout => "body_timeout",
            Cause::BodyTooLarge => "body_too_large",
            Cause::NotJson => "unsupported_media_type",
            Cause::Validation => "validation",
            Cause::Template => "template_error",
            Cause::Generation => "generation",
            Cause::Overloaded => "overloaded",
            Cause::Deadline => "deadline_exceeded",
            Cause::Unavailable => "unavailable",
            Cause::Unhealthy => "healthcheck",
            Cause::IncompleteStream => "incomplete_generation_stream",
            Cause::Internal => "internal",
        }
    }

    /// OpenAI's `type`.
    fn openai_type(self) -> &'static str {
        match self {
            Cause::Overloaded => "rate_limit_error",
            Cause::Generation
            | Cause::Deadline
            | Cause::Unavailable
            | Cause::Unhealthy
            | Cause::IncompleteStream
            | Cause::Internal => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The label `err` of `tgi_request_failure`.
    pub fn label(self) -> &'static str {
        match self {
            Cause::Template => "template",
            Cause::Generation => "generation",
            Cause::Overloaded => "overloaded",
            Cause::Deadline => "deadline",
            Cause::Unavailable | Cause::Unhealthy => "unavailable",
            Cause::IncompleteStream => "incomplete",
            Cause::Internal => "internal",
            _ => "validation",
        }
    }

    /// What TGI puts before the detail.
    fn tgi_prefix(self) -> &'static str {
        match self {
            Cause::Validation => "Input validation error: ",
            Cause::Template => "Template error: ",
            Cause::Generation => "Request failed during generation: ",
            _ => "",
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
    message: String,
    /// The field that is wrong.
    field: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    allow: Option<HeaderValue>,
    /// Its words are the client's own.
    verbatim: bool,
}

impl ApiError {
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into(), field: None, retry_after: None, allow: None, verbatim: false }
    }

    /// The content of `field` cannot be served.
    pub fn invalid(field: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(Cause::Validation, message) }
    }

    pub fn not_supported_yet(field: &'static str) -> Self {
        Self::invalid(field, format!("`{field}` is not supported yet"))
    }

    /// No LoRA adapter can be loaded yet, so that any is unknown.
    pub fn unknown_adapter(given: &str) -> Self {
        Self::invalid("adapter_id", format!("`adapter_id` names no loaded adapter. Given: {given}"))
    }

    /// Says in which part of the request the field is.
    pub fn within(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// `renamed` changes nothing.
    pub fn verbatim(self) -> Self {
        Self { verbatim: true, ..self }
    }

    /// With another name for a field of the message.
    pub fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.verbatim {
            return self;
        }
        self.message = self.message.replace(&format!("`{from}`"), &format!("`{to}`"));
        if self.field.as_deref() == Some(from) {
            self.field = Some(Cow::Owned(to.to_string()));
        }
        self
    }

    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self { retry_after: Some(RETRY_UNAVAILABLE), ..Self::new(Cause::Unavailable, reason) }
    }

    pub fn unhealthy(reason: impl Into<String>) -> Self {
        Self { retry_after: Some(RETRY_UNAVAILABLE), ..Self::new(Cause::Unhealthy, reason) }
    }

    pub fn method_not_allowed(method: &str, allow: Option<HeaderValue>) -> Self {
        let allowed = allow.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default();
        let message = format!("this route does not take {method}; it takes {allowed}");
        Self { allow, ..Self::new(Cause::MethodNotAllowed, message) }
    }

    /// The whole answer, before anything else of it was sent.
    pub fn response(&self, family: Family) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body(family)));
        *response.status_mut() = self.cause.status();
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
        if let Some(allow) = &self.allow {
            headers.insert(header::ALLOW, allow.clone());
        }
        response
    }

    /// What the log may say of it: not what the client wrote where a text belongs.
    pub fn for_log(&self) -> String {
        let of_text = |field: &str| ["inputs", "prompt", "messages", "instances"].contains(&field);
        match self.message.split_once(" Given: ") {
            Some((message, _)) if self.field.as_deref().is_some_and(of_text) => message.into(),
            _ => self.message.clone(),
        }
    }

    /// The JSON of it: a body, or the data of a stream's last event.
    pub fn body(&self, family: Family) -> Vec<u8> {
        let body = match family {
            Family::Tgi => serde_json::to_vec(&TgiError {
                error: &format!("{}{}", self.cause.tgi_prefix(), self.message),
                error_type: self.cause.error_type(),
            }),
            Family::OpenAi => serde_json::to_vec(&OpenAiError {
                error: OpenAiDetail {
                    message: &self.message,
                    r#type: self.cause.openai_type(),
                    param: self.field.as_deref(),
                    code: self.cause.code(),
                    http_status_code: self.cause.status().as_u16(),
                },
            }),
        };
        body.expect("strings and numbers always serialise")
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// How soon a client may ask again while the server loads or recovers: those take seconds.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(2);

impl From<GenerationFailure> for ApiError {
    fn from(failure: GenerationFailure) -> Self {
        match failure {
            GenerationFailure::Invalid(text) => {
                Self { field: named_field(&text), ..Self::new(Cause::Validation, text) }
            }
            GenerationFailure::TooManyNew(text) => Self::invalid("max_new_tokens", text),
            GenerationFailure::Overloaded { retry_after } => Self {
                retry_after: Some(retry_after),
                ..Self::new(Cause::Overloaded, GenerationFailure::Overloaded { retry_after }.to_string())
            },
            GenerationFailure::TooLate { why, retry_after } => {
                Self { retry_after: Some(retry_after), ..Self::new(Cause::Overloaded, why) }
            }
            GenerationFailure::OutOfTime(text) => Self::new(Cause::Deadline, text),
            GenerationFailure::Unavailable(text) => Self::unavailable(text),
            GenerationFailure::Failed(text) => Self::new(Cause::Generation, text),
        }
    }
}

impl From<PromptError> for ApiError {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::Invalid(text) => GenerationFailure::Invalid(text).into(),
            PromptError::Template(text) => Self::new(Cause::Template, text),
            PromptError::Failed(text) => Self::new(Cause::Generation, text),
        }
    }
}

/// The field that a message names: messages put it first, in backticks.
fn named_field(message: &str) -> Option<Cow<'static, str>> {
    message.split('`').nth(1).map(|name| Cow::Owned(name.to_string()))
}

#[derive(Serialize)]
struct TgiError<'a> {
    error: &'a str,
    error_type: Option<&'static str>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    error: OpenAiDetail<'a>,
}

#[derive(Serialize)]
struct OpenAiDetail<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: &'static str,
    /// As TGI's error events have it, for those who read the status there.
    http_status_code: u16,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn body(error: &ApiError, family: Family) -> Value {
        serde_json::from_slice(&error.body(family)).expect("JSON")
    }

    #[test]
    fn tgi_routes_get_two_strings() {
        let error = ApiError::invalid("top_p", "`top_p` must be > 0");
        assert_eq!(
            body(&error, Family::Tgi),
            json!({"error": "Input validation error: `top_p` must be > 0", "error_type": "validation"})
        );
    }

    #[test]
    fn what_tgi_has_no_type_for_has_none_here() {
        let error = ApiError::new(Cause::Unauthorized, "the API key is not valid");
        assert_eq!(
            body(&error, Family::Tgi),
            json!({"error": "the API key is not valid", "error_type": null})
        );
        assert_eq!(body(&error, Family::OpenAi)["error"]["code"], "invalid_api_key");
    }

    #[test]
    fn openai_routes_name_the_parameter() {
        let error = ApiError::from(GenerationFailure::Invalid("`max_tokens` is too large".into()));
        let body = body(&error, Family::OpenAi);
        assert_eq!(body["error"]["message"], "`max_tokens` is too large");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["param"], "max_tokens");
        assert_eq!(body["error"]["code"], "validation");
    }

    #[test]
    fn an_overloaded_server_says_when_to_come_back() {
        let error =
            ApiError::from(GenerationFailure::Overloaded { retry_after: Duration::from_millis(2_100) });
        let response = error.response(Family::Tgi);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        assert_eq!(
            body(&error, Family::Tgi),
            json!({"error": "Model is overloaded", "error_type": "overloaded"})
        );
    }

    #[test]
    fn the_log_does_not_repeat_a_text_of_the_client() {
        let error = ApiError::invalid("prompt", "`prompt` must be a string. Given: {\"a secret\": 1}");
        assert_eq!(error.for_log(), "`prompt` must be a string.");
        let error = ApiError::invalid("top_p", "`top_p` must be <= 1. Given: 7");
        assert_eq!(error.for_log(), "`top_p` must be <= 1. Given: 7");
    }

    #[test]
    fn a_405_names_what_is_allowed() {
        let error = ApiError::method_not_allowed("GET", Some(HeaderValue::from_static("POST")));
        let response = error.response(Family::Tgi);
        assert_eq!(response.headers()[header::ALLOW], "POST");
        assert_eq!(body(&error, Family::Tgi)["error"], "this route does not take GET; it takes POST");
    }
}
