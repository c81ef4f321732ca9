//! `/tokenize` and `/chat_tokenize`: the tokens of a text. Each such request takes a slot of the concurrency limit as a sequence does, until
//! its answer was read, and the answer is written piece by piece as the client reads it. Counts as no request in
//! the metrics.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, header};
use bytes::Bytes;
use futures::stream;
use penstock_core::prompt::Tokenized;
use penstock_core::scheduler::Permit;
use penstock_core::tenant::Tenant;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::http::connection::backpressure;
use crate::http::error::{ApiError, Family, FieldNames};
use crate::http::openai::chat;
use crate::http::request_context::caller_of;
use crate::http::state::Server;
use crate::http::tgi::request::inputs_alone;
use crate::http::warnings::Warnings;
use crate::http::{body, unplaced};

/// Bytes of an answer that are written at once.
const PIECE: usize = 32 << 10;

/// The tokens of `inputs`, special tokens added.
pub async fn tokenize(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    const NAMES: FieldNames = FieldNames::TGI;
    let result = async {
        let (body, held) = begin(&server, request, &NAMES).await?;
        let loaded = server.loaded()?;
        let (text, warnings) =
            body::parse(&server, held.tenant, body, |fields, _| inputs_alone(fields)).await?;
        let tokens = loaded.serving.prompt.tokenize(held.tenant, text, true, loaded.limits.most_told()).await;
        let tokens = tokens.map_err(|error| NAMES.error(error))?;
        let mut response = response(Pieces::new(tokens, Shape::List), held);
        // The answer is a bare list.
        warn(response.headers_mut(), &warnings);
        Ok(response)
    };
    result.await.unwrap_or_else(|error: ApiError| error.response(Family::Tgi))
}

/// The prompt text of a chat and its tokens.
pub async fn chat_tokenize(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    const NAMES: FieldNames = FieldNames::CHAT;
    let result = async {
        let (body, held) = begin(&server, request, &NAMES).await?;
        let loaded = server.loaded()?;
        let (text, warnings) =
            body::parse_apart(&server, held.tenant, body, move |fields, server, client| {
                chat::rendered(fields, &server.config.model_id, server.loaded()?, client)
            })
            .await?;
        let tokens =
            loaded.serving.prompt.tokenize(held.tenant, text, false, loaded.limits.most_told()).await;
        let tokens = tokens.map_err(|error| NAMES.error(error))?;
        Ok(response(Pieces::new(tokens, Shape::Chat(warnings)), held))
    };
    result.await.unwrap_or_else(|error: ApiError| error.response(Family::Tgi))
}

/// Reads the body of a request, and takes a slot for it as for a sequence.
pub async fn begin(server: &Server, request: Request, names: &FieldNames) -> Result<(Bytes, Held), ApiError> {
    let in_flight = server.in_flight.token();
    server.loaded()?;
    let caller = caller_of(&request, Instant::now());
    let unplaced = unplaced::of(request.extensions()).cloned();
    let body = body::read(request, body::BodyLimits::of(&server.config.args)).await?;
    let permit = server.loaded()?.serving.reserve(&caller, None).map_err(|failure| names.error(failure))?;
    if let Some(unplaced) = unplaced {
        unplaced.has_place();
    }
    Ok((body, Held { tenant: caller.origin(), _permit: permit, _in_flight: in_flight }))
}

fn warn(headers: &mut HeaderMap, warnings: &Warnings) {
    for line in warnings.lines() {
        // Names are the client's.
        let escaped = |character: char| {
            let is_control = character.is_ascii_control();
            let control = is_control.then(|| character.escape_default());
            control.into_iter().flatten().chain((!is_control).then_some(character))
        };
        let line: String = line.chars().flat_map(escaped).collect();
        let value = HeaderValue::from_bytes(line.as_bytes()).expect("no control characters are left");
        headers.append("x-warning", value);
    }
}

fn response(mut pieces: Pieces, held: Held) -> Response<Body> {
    let first = pieces.next().unwrap_or_default();
    let body = if pieces.stage == Stage::Ended {
        Body::from(first)
    } else {
        let all = std::iter::once(first).chain(pieces);
        Body::from_stream(stream::iter(all.map(Ok::<_, std::convert::Infallible>)))
    };
    let mut response = Response::new(backpressure::hold_until_written(body, held));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// What a request holds until its answer was written to the connection.
pub struct Held {
    pub tenant: Tenant,
    _permit: Arc<Permit>,
    _in_flight: TaskTrackerToken,
}

enum Shape {
    /// A bare list of tokens.
    List,
    /// An object: the tokens, the text, and what had no effect.
    Chat(Warnings),
}

/// What is written next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    /// The token of this index.
    Token(usize),
    /// The text from this byte on.
    Text(usize),
    End,
    Ended,
}

/// The JSON of an answer, in pieces that are made when they are asked for.
struct Pieces {
    tokens: Tokenized,
    shape: Shape,
    stage: Stage,
}

impl Pieces {
    fn new(tokens: Tokenized, shape: Shape) -> Self {
        Self { tokens, shape, stage: Stage::Begin }
    }

    /// Writes a little, and says what comes then.
    fn write(&self, piece: &mut Vec<u8>) -> Stage {
        match self.stage {
            Stage::Begin => {
                piece.extend_from_slice(match self.shape {
                    Shape::List => b"[",
                    Shape::Chat(_) => b"{\"tokenize_response\":[",
                });
                Stage::Token(0)
            }
            Stage::Token(index) => match self.tokens.tokens.get(index) {
                Some(token) => {
                    if index > 0 {
                        piece.push(b',');
                    }
                    let text = &self.tokens.text_of(token);
                    json(piece, &Span { id: token.id.0, text, start: token.start, stop: token.stop });
                    Stage::Token(index + 1)
                }
                None => {
                    piece.push(b']');
                    match self.shape {
                        Shape::List => Stage::Ended,
                        Shape::Chat(_) => {
                            piece.extend_from_slice(b",\"templated_text\":\"");
                            Stage::Text(0)
                        }
                    }
                }
            },
            Stage::Text(from) => {
                let text = &self.tokens.text;
                // A character has at most four bytes.
                let upto = (from + PIECE..).find(|&at| at >= text.len() || text.is_char_boundary(at));
                let upto = upto.unwrap_or(text.len()).min(text.len());
                let begin = piece.len();
                json(piece, &text[from..upto]);
                // Without its quotes: the text goes on.
                piece.pop();
                piece.remove(begin);
                if upto == text.len() { Stage::End } else { Stage::Text(upto) }
            }
            Stage::End => {
                piece.push(b'"');
                if let Shape::Chat(warnings) = &self.shape
                    && !warnings.is_empty()
                {
                    piece.extend_from_slice(b",\"warnings\":");
                    json(piece, warnings);
                }
                piece.push(b'}');
                Stage::Ended
            }
            Stage::Ended => Stage::Ended,
        }
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut piece = Vec::new();
        while piece.len() < PIECE && self.stage != Stage::Ended {
            self.stage = self.write(&mut piece);
        }
        (!piece.is_empty()).then(|| piece.into())
    }
}

fn json(piece: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(piece, value).expect("strings and numbers, and memory takes all writes");
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "TokenSpan")]
pub struct Span<'a> {
    id: u32,
    text: &'a str,
    /// In bytes of the text
    start: usize,
    stop: usize,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use penstock_core::prompt::TokenSpan;
    use penstock_proto::ids::TokenId;

    /// Each character is a token.
    fn tokenized(text: &str) -> Tokenized {
        let starts = text.char_indices().zip(0..);
        let tokens = starts.map(|((start, character), id)| TokenSpan {
            id: TokenId(id),
            start,
            stop: start + character.len_utf8(),
        });
        Tokenized { tokens: tokens.collect(), text: text.into() }
    }

    fn read(pieces: impl Iterator<Item = Bytes>) -> Value {
        serde_json::from_slice(&pieces.collect::<Vec<_>>().concat()).expect("JSON")
    }

    #[test]
    fn a_short_answer_is_one_piece() {
        let pieces: Vec<_> = Pieces::new(tokenized("a\""), Shape::List).collect();
        let [piece] = &pieces[..] else { panic!("{pieces:?}") };
        let expected = r#"[{"id":0,"text":"a","start":0,"stop":1},{"id":1,"text":"\"","start":1,"stop":2}]"#;
        assert_eq!(piece, expected);
        assert_eq!(read(Pieces::new(tokenized(""), Shape::List)), json!([]));
        let empty = Pieces::new(tokenized(""), Shape::Chat(Warnings::default()));
        assert_eq!(read(empty), json!({"tokenize_response": [], "templated_text": ""}));
    }

    #[test]
    fn a_name_with_control_characters_is_named_in_a_header() {
        let mut warnings = Warnings::default();
        warnings.no_effect("a\r\nb: \u{7f}\u{85}\té", "here");
        let mut headers = HeaderMap::new();
        warn(&mut headers, &warnings);
        let line = "`a\\r\\nb: \\u{7f}\u{85}\\té` has no effect here";
        assert_eq!(headers["x-warning"].as_bytes(), line.as_bytes());
    }

    #[test]
    fn a_long_answer_is_made_piece_by_piece() {
        let text = "é\n\"\u{1}😀".repeat(30_000);
        let mut warnings = Warnings::default();
        warnings.no_effect("stream", "here");
        let pieces: Vec<_> = Pieces::new(tokenized(&text), Shape::Chat(warnings)).collect();
        // A character takes at most six bytes where it is escaped.
        assert!(pieces.len() > 100 && pieces.iter().all(|piece| piece.len() <= 7 * PIECE));
        let answer = read(pieces.into_iter());
        assert_eq!(answer["templated_text"], text);
        assert_eq!(answer["tokenize_response"][149_999]["text"], "😀");
        assert_eq!(answer["tokenize_response"].as_array().map(Vec::len), Some(150_000));
        assert_eq!(answer["warnings"][0], "`stream` has no effect here");
    }
}
