//! Every cause of an error, once: its status, its names in each family of routes, in metrics and in `docs/errors.md`
//! (a test says when that is stale), and what its receiver can do.

use axum::http::StatusCode;

/// What kind of failure; decides status and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    MalformedBody,
    /// It leaves doubt of what is asked, or of where it ends.
    MalformedHead,
    /// It goes on from an answer, of which none is kept.
    PreviousResponse,
    Unauthorized,
    NotFound,
    MethodNotAllowed,
    BodyTimeout,
    BodyTooLarge,
    NotJson,
    /// Asked by a name that is not one of `--allowed-hosts`.
    WrongHost,
    /// The request's content cannot be served.
    Validation,
    /// It has or asks for more tokens than fit.
    ContextLength,
    Template,
    Generation,
    Overloaded,
    /// A bug.
    Internal,
    /// A stream that ended without its end; a bug or a stop.
    IncompleteStream,
    /// Loading, recovering, draining, failed.
    Unavailable,
    /// The same, asked by a health probe.
    Unhealthy,
    /// The request's own deadline passed before its answer was complete.
    Deadline,
}

/// What is said of a cause.
pub struct Entry {
    pub status: StatusCode,
    /// TGI's `error_type`.
    pub error_type: Option<&'static str>,
    /// OpenAI's `type`.
    pub openai_type: &'static str,
    /// OpenAI's `code`, and the label `type` of `penstock_errors`.
    pub code: &'static str,
    /// The label `err` of `tgi_request_failure`; `None` for what is refused before a request counts.
    pub label: Option<&'static str>,
    /// What TGI puts before the message.
    pub tgi_prefix: &'static str,
    /// When it happens.
    pub about: &'static str,
    /// What the receiver does.
    pub remedy: &'static str,
}

impl Cause {
    /// In the order of their status.
    #[cfg(test)]
    const ALL: [Cause; 20] = [
        Cause::MalformedBody,
        Cause::MalformedHead,
        Cause::PreviousResponse,
        Cause::Unauthorized,
        Cause::NotFound,
        Cause::MethodNotAllowed,
        Cause::BodyTimeout,
        Cause::BodyTooLarge,
        Cause::NotJson,
        Cause::WrongHost,
        Cause::Validation,
        Cause::ContextLength,
        Cause::Template,
        Cause::Generation,
        Cause::Overloaded,
        Cause::Internal,
        Cause::IncompleteStream,
        Cause::Unavailable,
        Cause::Unhealthy,
        Cause::Deadline,
    ];

    pub fn status(self) -> StatusCode {
        self.entry().status
    }

    pub fn code(self) -> &'static str {
        self.entry().code
    }

    /// For a request that counts.
    pub fn label(self) -> &'static str {
        self.entry().label.unwrap_or("internal")
    }

    /// The catalogue.
    ///
    /// A body that cannot be read has the `error_type` of one with a wrong field: the type for which TGI's clients raise
    /// their `ValidationError`. It is null while the server is not ready, for which TGI has no type either:
    /// `huggingface_hub` then raises its `HfHubHTTPError` with the status 503, by which its users retry, and not an
    /// `UnknownError` without one.
    pub fn entry(self) -> Entry {
        match self {
            Cause::MalformedBody => {
                Entry::of_request(StatusCode::BAD_REQUEST, "malformed_body", Some("validation")).said(
                    "The body is no JSON, is empty, broke off, or the path is not valid UTF-8",
                    "Send one JSON object, whole; the message says where it ends being one",
                )
            }
            Cause::MalformedHead => {
                Entry::before_it_counts(StatusCode::BAD_REQUEST, "malformed_head", Some("validation")).said(
                    "The head leaves doubt of which host is meant or where the body ends",
                    "Send one `host` header, and a length or `transfer-encoding: chunked`, once",
                )
            }
            // Status and code are OpenAI's for an answer that is not there any more: by both of them clients know that they
            // have to send the whole conversation.
            Cause::PreviousResponse => Entry::of_request(
                StatusCode::BAD_REQUEST,
                "previous_response_not_found",
                Some("validation"),
            )
            .said(
                "`previous_response_id` of `/v1/responses`: no answer is kept",
                "Send the whole conversation as `input`, without the id",
            ),
            Cause::Unauthorized => {
                Entry::before_it_counts(StatusCode::UNAUTHORIZED, "invalid_api_key", Some("authentication")).said(
                    "The API key is missing or wrong",
                    "Send `Authorization: Bearer KEY`, or `x-api-key: KEY`, with a key of this server",
                )
            }
            Cause::NotFound => Entry::before_it_counts(StatusCode::NOT_FOUND, "not_found", Some("not_found")).said(
                "There is no such route, or no such model",
                "See the routes in http.md, and the model in `/v1/models`",
            ),
            Cause::MethodNotAllowed => Entry::before_it_counts(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                Some("method_not_allowed"),
            )
            .said("The route does not take this method", "Use one that the header `Allow` names"),
            Cause::BodyTimeout => {
                Entry::of_request(StatusCode::REQUEST_TIMEOUT, "body_timeout", Some("timeout")).said(
                    "The body did not arrive within `--body-timeout`, or paused for too long",
                    "Send it faster, or raise the flag",
                )
            }
            Cause::BodyTooLarge => {
                Entry::of_request(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", Some("validation")).said(
                    "The body is larger than `--payload-limit`",
                    "Send less, or raise the flag",
                )
            }
            Cause::NotJson => Entry::of_request(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                Some("validation"),
            )
            .said(
                "`content-type` is not JSON, or the body is compressed",
                "Send `content-type: application/json`, uncompressed",
            ),
            Cause::WrongHost => {
                Entry::before_it_counts(StatusCode::MISDIRECTED_REQUEST, "wrong_host", Some("wrong_host")).said(
                    "The server was asked as a host that is not one of `--allowed-hosts`",
                    "Use a name that it answers for, or add this one to the flag",
                )
            }
            Cause::Validation => Entry {
                tgi_prefix: "Input validation error: ",
                ..Entry::of_request(StatusCode::UNPROCESSABLE_ENTITY, "validation", Some("validation"))
            }
            .said(
                "A field is missing, of a wrong type, out of its bounds, or not supported yet",
                "Change the field that the message (OpenAI: `param`) names; it says the limit, the flag that sets it, \
                 and what was given",
            ),
            // Its code is OpenAI's, by which clients know that they have to shorten the conversation.
            Cause::ContextLength => Entry {
                code: "context_length_exceeded",
                about: "The prompt, or the prompt and the tokens that may follow it, are more than `--max-input-tokens` or \
                        `--max-total-tokens` allow, or the model",
                remedy: "Shorten the prompt, or ask for fewer tokens; the message says how many of each there are and may be",
                ..Cause::Validation.entry()
            },
            Cause::Template => Entry {
                label: Some("template"),
                tgi_prefix: "Template error: ",
                ..Entry::of_request(StatusCode::UNPROCESSABLE_ENTITY, "template_error", Some("template_error"))
            }
            .said(
                "The model has no chat template, or it refused these messages; then the message is its own",
                "Send messages that the template takes, or a text to `/v1/completions` or `/generate`",
            ),
            Cause::Generation => Entry {
                tgi_prefix: "Request failed during generation: ",
                ..Entry::of_server(StatusCode::FAILED_DEPENDENCY, "generation", "generation")
            }
            .said(
                "The model or its worker failed this request, such as by logits that are not numbers",
                "Ask again; if it fails again, look at the server's log",
            ),
            Cause::Overloaded => Entry {
                openai_type: "rate_limit_error",
                ..Entry::of_server(StatusCode::TOO_MANY_REQUESTS, "overloaded", "overloaded")
            }
            .said(
                "As many requests are queued and running as `--max-concurrent-requests` allows, those without a place hold \
                 as much memory as they may (limits.md), too many grammars wait to be compiled, or the request cannot be begun in \
                 the time that it gives itself",
                "Ask again after the seconds of `Retry-After`",
            ),
            Cause::Internal => Entry::of_server(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal")
                .said("A bug", "Report it with the lines of the server's log that have the `x-request-id`"),
            Cause::IncompleteStream => Entry::of_server(
                StatusCode::INTERNAL_SERVER_ERROR,
                "incomplete_generation_stream",
                "incomplete",
            )
            .said("A stream ended without its end", "Ask again; if it happens again, report it"),
            Cause::Unavailable => Entry {
                error_type: None,
                ..Entry::of_server(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "unavailable")
            }
            .said(
                "The server is loading, recovering, draining, has failed, or has no room for a connection",
                "Ask again after the seconds of `Retry-After`; the message says what it waits for",
            ),
            Cause::Unhealthy => Entry {
                label: None,
                ..Entry::of_server(StatusCode::SERVICE_UNAVAILABLE, "healthcheck", "unavailable")
            }
            .said("The same, asked by a health probe", "Keep traffic away until it is 200"),
            Cause::Deadline => Entry::of_server(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", "deadline")
                .said(
                    "The deadline of `x-request-deadline-ms` passed while the request ran",
                    "Give it more time, or ask for less",
                ),
        }
    }
}

impl Entry {
    /// The request is to blame.
    const fn of_request(status: StatusCode, code: &'static str, error_type: Option<&'static str>) -> Self {
        let (openai_type, label) = ("invalid_request_error", Some("validation"));
        Self { status, error_type, openai_type, code, label, tgi_prefix: "", about: "", remedy: "" }
    }

    /// The request is to blame, and is refused before anything is asked to generate.
    const fn before_it_counts(
        status: StatusCode,
        code: &'static str,
        error_type: Option<&'static str>,
    ) -> Self {
        Self { label: None, ..Self::of_request(status, code, error_type) }
    }

    /// The server is, or its load. `error_type` is the code.
    const fn of_server(status: StatusCode, code: &'static str, label: &'static str) -> Self {
        let (error_type, openai_type, label) = (Some(code), "server_error", Some(label));
        Self { status, error_type, openai_type, code, label, tgi_prefix: "", about: "", remedy: "" }
    }

    const fn said(self, about: &'static str, remedy: &'static str) -> Self {
        Self { about, remedy, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::http::docs::tests::assert_is_written;
    use crate::telemetry::metrics;

    #[test]
    fn the_catalogue_in_docs_is_this_one() {
        assert_is_written("errors.md", &catalogue());
    }

    #[test]
    fn every_cause_is_in_the_catalogue_once() {
        let mut codes: Vec<_> = Cause::ALL.iter().map(|cause| cause.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Cause::ALL.len());
        assert!(Cause::ALL.is_sorted_by_key(|cause| cause.status().as_u16()));
    }

    #[test]
    fn every_label_of_a_failure_stands_at_0_from_the_first_scrape() {
        let mut labels: Vec<_> = Cause::ALL.iter().filter_map(|cause| cause.entry().label).collect();
        labels.push(metrics::DROPPED);
        labels.sort_unstable();
        labels.dedup();
        let mut begun = metrics::FAILURES;
        begun.sort_unstable();
        assert_eq!(labels, begun);
    }

    /// `docs/errors.md`.
    fn catalogue() -> String {
        let mut text = String::from(
            "# Errors\n\n\
             Made from the catalogue in `router/src/http/error/cause.rs`. On TGI's routes an error is `{\"error\", \"error_type\"}`,\n\
             on `/v1/*` `{\"error\": {\"message\", \"type\", \"param\", \"code\", \"http_status_code\"}}`, but on `/v1/messages` and below it\n\
             Anthropic's `{\"type\": \"error\", \"error\": {\"type\", \"message\", \"param\"}}`, with the status 400 for what is 422 elsewhere and\n\
             Anthropic's `type` of the status; in a stream that has begun it is the last event. The message of a wrong field is `FIELD must be LIMIT. Given: VALUE`, in the names that\n\
             the route has for its fields; `param` is the field. `code` is also the label `type` of `penstock_errors`, and the\n\
             last column is the label `err` of `tgi_request_failure`; what has none is refused before it counts as a request.\n\n\
             | status | `error_type` | `type` | `code` | when | what to do | `err` |\n|---|---|---|---|---|---|---|\n",
        );
        for cause in Cause::ALL {
            let Entry { status, error_type, openai_type, code, label, about, remedy, .. } = cause.entry();
            let quoted =
                |name: Option<&str>, none: &str| name.map_or(none.into(), |name| format!("`{name}`"));
            let (status, error_type, label) =
                (status.as_u16(), quoted(error_type, "null"), quoted(label, "-"));
            let names = format!("{error_type} | `{openai_type}` | `{code}`");
            let _ = writeln!(text, "| {status} | {names} | {about} | {remedy} | {label} |");
        }
        text
    }
}
