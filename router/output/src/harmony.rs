//! GPT-OSS' format: messages with a header, in channels. A message for a function is a call, the channel `analysis` is
//! reasoning, and the others are content.
//!
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
//! <|message|>{}<|call|>`. The recipient may stand before or after the channel. The format is described in OpenAI's
//! harmony guide.

use crate::formats::{Seen, after_space, at_most, find, seen};
use crate::json::Scanner;
use crate::messages::{self, Arguments, Body};
use crate::out::Out;
use crate::readers::{MARKER, MAX_HEAD, View};

/// Bytes of a message's header, in which the name of a call stands.
const MAX_HEADER: usize = MAX_HEAD;

/// Tokens of the format, which are special.
pub(crate) const SPECIAL: &[&str] =
    &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"];

/// Headers of messages that are no calls, as the model writes them after `<|start|>assistant`.
pub(crate) const MESSAGE_HEADERS: &[&str] = &[
    "<|channel|>analysis<|message|>",
    "<|channel|>commentary<|message|>",
    "<|channel|>final<|message|>",
    "<|channel|>final <|constrain|>json<|message|>",
];

/// The headers of messages for the user begin so.
pub(crate) const FINAL: &str = "<|channel|>final";

/// The channels that calls stand in, as the model chooses; its guide names the first.
pub(crate) const CALL_CHANNELS: &[&str] = &["commentary", "analysis"];

/// Between a call's recipient and its body.
pub(crate) const CALL_CONSTRAINTS: &[&str] = &[
    " <|constrain|>json<|message|>",
    "<|constrain|>json<|message|>",
    " json<|message|>",
    " code<|message|>",
    "<|message|>",
];

/// Ends a message and begins another one.
pub(crate) const NEXT_MESSAGE: &str = "<|end|><|start|>assistant";

const HEADERS: &[&str] = &["<|start|>", "<|channel|>"];
const MESSAGE: &str = "<|message|>";
const ENDS: &[&str] = &["<|return|>", "<|call|>", "<|end|>"];
const MARKERS: &[&str] = &["<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|channel|>"];
const RECIPIENT: &str = "to=";

#[derive(Debug)]
pub(crate) struct Harmony {
    takes_calls: bool,
    takes_reasoning: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before the first message, whose role the prompt has written: its header may go on with the recipient.
    Begin,
    /// Between messages.
    Between,
    /// From the header's marker on, or from what follows the role; what was looked at.
    Header(usize),
    Body(Body),
    /// The body of what may be a call of this tool: the header's bytes.
    Call(String, usize),
    Json(Scanner),
    Broken,
}

impl Harmony {
    pub(crate) fn new(takes_calls: bool, takes_reasoning: bool, starts_in_reasoning: bool) -> Self {
        let state = if starts_in_reasoning { State::Body(Body::Reasoning) } else { State::Begin };
        Self { takes_calls, takes_reasoning, state }
    }

    /// The bytes that were read; none: more text is needed.
    pub(crate) fn step(&mut self, view: &View, calls: &mut usize, out: &mut Out) -> Option<usize> {
        let (text, over) = (view.text, view.over);
        if text.is_empty() && !(over && matches!(self.state, State::Json(_) | State::Broken)) {
            return None;
        }
        match &mut self.state {
            State::Begin => {
                let begin = after_space(text, 0);
                let is_near = begin <= MAX_HEADER;
                self.state = match seen(&[RECIPIENT], text, begin, over) {
                    Seen::Found(..) if is_near => State::Header(begin),
                    Seen::Partly if is_near => return None,
                    _ => State::Between,
                };
                Some(0)
            }
            State::Between => {
                let begin = after_space(text, 0);
                match seen(MARKERS, text, begin, over) {
                    _ if begin > MAX_HEADER => {
                        self.state = State::Body(Body::Content);
                        Some(0)
                    }
                    Seen::Found(bytes, ()) if ENDS.contains(&&text[begin..begin + bytes]) => {
                        Some(begin + bytes)
                    }
                    Seen::Found(bytes, ()) => {
                        self.state = State::Header(bytes);
                        (begin > 0).then_some(begin).or(Some(0))
                    }
                    Seen::Partly => None,
                    Seen::Nothing if begin == text.len() && over => Some(begin),
                    Seen::Nothing if begin == text.len() => None,
                    Seen::Nothing => {
                        self.state = State::Body(Body::Content);
                        Some(0)
                    }
                }
            }
            State::Header(at) => {
                let limit = at_most(text, MAX_HEADER + MARKER);
                let (end, found) = find(&[MESSAGE], &text[..limit], *at, over && limit == text.len());
                *at = end;
                match found {
                    Seen::Found(bytes, ()) if end <= MAX_HEADER => match self.kind(view, &text[..end]) {
                        Some(Kind::Call(name)) => {
                            self.state = State::Call(name, end + bytes);
                            Some(0)
                        }
                        Some(Kind::Body(body)) => {
                            if body == Body::Verbatim {
                                out.content(&text[..end + bytes]);
                            }
                            self.state = State::Body(body);
                            Some(end + bytes)
                        }
                        None => Some(self.no_header(text, out)),
                    },
                    _ if end > MAX_HEADER || over => Some(self.no_header(text, out)),
                    _ => None,
                }
            }
            State::Body(body) => {
                let body = *body;
                let (end, found) = find(MARKERS, text, 0, over);
                body.tell(&text[..end], out);
                match found {
                    Seen::Found(bytes, ()) => {
                        let marker = &text[end..end + bytes];
                        self.state = State::Between;
                        if !ENDS.contains(&marker) {
                            return Some(end);
                        }
                        if body == Body::Verbatim {
                            out.content(marker);
                        }
                        Some(end + bytes)
                    }
                    _ => (end > 0).then_some(end),
                }
            }
            State::Call(name, header) => {
                let begin = after_space(text, *header);
                let is_near = begin <= *header + MAX_HEADER;
                if begin == text.len() && !over && is_near {
                    return None;
                }
                if is_near && text[begin..].starts_with('{') {
                    out.begins(*calls, std::mem::take(name));
                    *calls += 1;
                    self.state = State::Json(Scanner::new());
                    return Some(begin);
                }
                let header = *header;
                out.content(&text[..header]);
                self.state = State::Body(Body::Verbatim);
                Some(header)
            }
            State::Json(scanner) => match messages::arguments(scanner, view, *calls - 1, out) {
                Arguments::Whole(bytes) => {
                    out.ends(*calls - 1, true);
                    self.state = State::Between;
                    Some(bytes)
                }
                Arguments::Wrong(bytes) => {
                    self.state = State::Broken;
                    Some(bytes)
                }
                Arguments::CutOff(bytes) => {
                    self.state = State::Between;
                    Some(bytes)
                }
                Arguments::Part(read) => read,
            },
            State::Broken => {
                let (read, has_ended) = messages::wrong_arguments(MARKERS, view, *calls - 1, out);
                if has_ended {
                    self.state = State::Between;
                }
                read
            }
        }
    }

    /// What looked like a header is none: its marker is content, and what follows is looked at again.
    fn no_header(&mut self, text: &str, out: &mut Out) -> usize {
        let bytes = if let Seen::Found(bytes, ()) = seen(HEADERS, text, 0, true) { bytes } else { 0 };
        out.content(&text[..bytes]);
        self.state = State::Body(Body::Content);
        bytes
    }

    /// None when this is not a header: a role, a channel, a recipient and the body's type, each in its place.
    fn kind(&self, view: &View, header: &str) -> Option<Kind> {
        let spaced = header.replace("<|", " <|").replace("|>", "|> ");
        let (mut recipient, mut channel, mut before) = (None, None, "");
        for word in spaced.split_whitespace() {
            match (before, word) {
                ("<|start|>", "assistant") => {}
                ("<|constrain|>", kind) if kind.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {}
                (_, "<|start|>" | "<|channel|>" | "<|constrain|>") => {}
                ("<|channel|>", "analysis" | "commentary" | "final") => channel = Some(word),
                (_, "json" | "code") => {}
                _ => recipient = Some(word.strip_prefix("to=").filter(|_| recipient.is_none())?),
            }
            before = word;
        }
        Some(match recipient {
            Some(recipient) => {
                let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
                if self.takes_calls && view.knows(name) {
                    Kind::Call(name.to_owned())
                } else {
                    Kind::Body(Body::Verbatim)
                }
            }
            None if self.takes_reasoning && channel == Some("analysis") => Kind::Body(Body::Reasoning),
            None => Kind::Body(Body::Content),
        })
    }
}

enum Kind {
    Body(Body),
    Call(String),
}
