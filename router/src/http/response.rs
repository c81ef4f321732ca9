//! An answer that is one JSON document: whole, or, where it has long lists, made and written piece by piece as the client reads it.
//! Streams are `sse`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::{Buf, Bytes};
use futures::stream;
use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// Bytes of an answer that are made at once.
const PIECE: usize = 32 << 10;

/// Where entries that are made later belong: serde_json writes no line feed between tokens, and escapes those in strings.
const LATER: u8 = b'\n';

pub fn json(body: &impl Serialize) -> Response<Body> {
    of_json(Body::from(document(body)))
}

/// The same, where lists of `body` begin with entries that are made when they are written: those of `later`, in the document's order.
pub fn json_in_pieces(body: &impl Serialize, later: impl IntoIterator<Item = Entries>) -> Response<Body> {
    let mut pieces =
        Pieces { document: document(body).into(), later: later.into_iter().collect(), open: None };
    let first = pieces.next().unwrap_or_default();
    if pieces.has_ended() {
        return of_json(Body::from(first));
    }
    let all = std::iter::once(first).chain(pieces);
    of_json(Body::from_stream(stream::iter(all.map(Ok::<_, Infallible>))))
}

fn document(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("the answers are structs of strings and numbers")
}

fn of_json(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Writes the next entry of a list, if there is one.
pub type Entries = Box<dyn FnMut(&mut Vec<u8>) -> bool + Send>;

/// What an iterator gives, made when it is written.
pub fn entries<T: Serialize>(mut all: impl Iterator<Item = T> + Send + 'static) -> Entries {
    Box::new(move |piece| {
        let next = all.next();
        if let Some(entry) = &next {
            write_entry(piece, entry);
        }
        next.is_some()
    })
}

/// One for each of `all`, which several lists may share. `write` is to write it with `write_entry`.
pub fn entry_of_each<T: Send + Sync + 'static>(
    all: Arc<[T]>,
    write: impl Fn(&mut Vec<u8>, &T) + Send + 'static,
) -> Entries {
    let mut at = 0;
    Box::new(move |piece| {
        let next = all.get(at);
        if let Some(one) = next {
            write(piece, one);
            at += 1;
        }
        next.is_some()
    })
}

pub fn write_entry(piece: &mut Vec<u8>, entry: &impl Serialize) {
    serde_json::to_writer(piece, entry).expect("strings and numbers, and memory takes all writes");
}

/// A list in a document.
pub struct List<'a, T> {
    /// It begins with entries that are made later.
    pub begins_later: bool,
    /// Its last entries, or all.
    pub here: &'a [T],
}

impl<T> List<'_, T> {
    /// All of its entries are made later.
    pub const LATER: Self = Self { begins_later: true, here: &[] };
}

impl<T: Serialize> Serialize for List<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.begins_later {
            return self.here.serialize(serializer);
        }
        let mut list = serde_json::to_string(self.here).map_err(S::Error::custom)?;
        list.insert(1, char::from(LATER));
        RawValue::from_string(list).map_err(S::Error::custom)?.serialize(serializer)
    }
}

/// A document, with the entries that are made later.
struct Pieces {
    /// What was not written yet.
    document: Bytes,
    later: VecDeque<Entries>,
    open: Option<Open>,
}

/// A list whose entries are being written.
struct Open {
    entries: Entries,
    is_first: bool,
}

impl Pieces {
    fn has_ended(&self) -> bool {
        self.document.is_empty() && self.open.is_none()
    }

    fn write(&mut self, piece: &mut Vec<u8>) {
        let Some(open) = &mut self.open else {
            let mark = self.document.iter().position(|byte| *byte == LATER);
            let here = self.document.split_to(mark.unwrap_or(self.document.len()));
            piece.extend_from_slice(&here);
            if mark.is_some() {
                self.document.advance(1);
                self.open = self.later.pop_front().map(|entries| Open { entries, is_first: true });
            }
            return;
        };
        let begin = piece.len();
        if !open.is_first {
            piece.push(b',');
        }
        if (open.entries)(piece) {
            open.is_first = false;
            return;
        }
        // The comma stays where the list has more.
        if open.is_first || self.document.first() == Some(&b']') {
            piece.truncate(begin);
        }
        self.open = None;
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut piece = Vec::new();
        while piece.len() < PIECE && !self.has_ended() {
            self.write(&mut piece);
        }
        (!piece.is_empty()).then(|| piece.into())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Serialize)]
    struct Answer<'a> {
        text: &'a str,
        #[serde(flatten)]
        lists: Lists<'a>,
    }

    #[derive(Serialize)]
    struct Lists<'a> {
        words: List<'a, &'a str>,
        numbers: List<'a, u32>,
    }

    /// The answer's text, and of how many pieces it was.
    async fn read(words: (Option<u32>, &[&str]), numbers: (Option<u32>, &[u32])) -> (String, usize) {
        let words_here = List { begins_later: words.0.is_some(), here: words.1 };
        let numbers_here = List { begins_later: numbers.0.is_some(), here: numbers.1 };
        let answer = Answer { text: "a\n,", lists: Lists { words: words_here, numbers: numbers_here } };
        let words = words.0.map(|count| entries((0..count).map(|at| format!("\n{at}"))));
        let mut body =
            json_in_pieces(&answer, words.into_iter().chain(numbers.0.map(|count| entries(0..count))))
                .into_body();
        let (mut text, mut pieces) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            text.extend_from_slice(&frame.expect("no error").into_data().expect("data"));
            pieces += 1;
        }
        (String::from_utf8(text).expect("JSON is"), pieces)
    }

    #[tokio::test]
    async fn a_short_answer_is_one_piece_as_if_all_of_it_had_been_there() {
        for (words, numbers, expected) in [
            ((None, &["x"][..]), (None, &[][..]), r#""words":["x"],"numbers":[]"#),
            ((Some(2), &["x"][..]), (Some(1), &[]), r#""words":["\n0","\n1","x"],"numbers":[0]"#),
            ((Some(0), &["x"][..]), (Some(0), &[]), r#""words":["x"],"numbers":[]"#),
            ((None, &[][..]), (Some(2), &[7, 8]), r#""words":[],"numbers":[0,1,7,8]"#),
        ] {
            let expected = format!(r#"{{"text":"a\n,",{expected}}}"#);
            assert_eq!(read(words, numbers).await, (expected, 1));
        }
    }

    #[tokio::test]
    async fn a_long_answer_is_made_piece_by_piece() {
        let (text, pieces) = read((Some(50_000), &["x"]), (Some(50_000), &[1, 2])).await;
        assert!(pieces > 20, "{pieces}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(answer["words"].as_array().map(Vec::len), Some(50_001));
        assert_eq!(answer["numbers"].as_array().map(Vec::len), Some(50_002));
        assert_eq!((&answer["words"][49_999], &answer["words"][50_000]), (&json!("\n49999"), &json!("x")));
    }
}
