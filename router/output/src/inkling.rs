//! Inkling's format: messages of one kind each, of reasoning, text or a call. The prompt has begun the first one.
//!
//! `<|content_thinking|>…<|end_message|><|message_model|><|content_text|>…<|end_message|><|message_model|>f
//! <|content_invoke_tool_json|>{"name":"f","args":{}}<|end_message|><|content_model_end_sampling|>`. Before its kind a call has
//! its function's name, which the model may leave out. The format is that of the model's chat template.

use crate::formats::{Envelope, ReasoningFormat, Seen, at_most, find};
use crate::json::Scanner;
use crate::messages::{self, Arguments, Body};
use crate::out::Out;
use crate::readers::{EnvelopeReader, Given, MARKER, MAX_HEAD, Read, View};

/// Bytes before a message's kind, which may be the name of a call.
const MAX_HEADER: usize = MAX_HEAD;

/// Bytes that are held back because they may be a call.
const MAX_HELD: usize = 1 << 20;

/// Tokens of the format, which are special.
pub(crate) const SPECIAL: &[&str] = &[
    "<|message_model|>",
    TEXT,
    THINKING,
    CALL,
    "<|content_invoke_tool_text|>",
    "<|end_message|>",
    "<|content_model_end_sampling|>",
];

pub(crate) const TEXT: &str = "<|content_text|>";
pub(crate) const THINKING: &str = "<|content_thinking|>";
pub(crate) const CALL: &str = "<|content_invoke_tool_json|>";

/// Ends a message.
pub(crate) const END: &str = "<|end_message|>";
/// Begins the next one.
pub(crate) const NEXT: &str = "<|message_model|>";

/// Ends the answer, and the message that is open.
const END_OF_ANSWER: &str = "<|content_model_end_sampling|>";
/// A call whose arguments are no JSON: no client's function has such.
const CALL_IN_TEXT: &str = "<|content_invoke_tool_text|>";

static ENVELOPE: Envelope =
    Envelope { name: &["name"], arguments: &["args", "arguments", "parameters"], optional_arguments: true };

impl ReasoningFormat {
    /// As `ToolFormat::has_messages`.
    pub(crate) fn has_messages(&self) -> bool {
        self.open.contains(&THINKING)
    }
}

#[derive(Debug)]
pub(crate) struct Inkling {
    takes_calls: bool,
    takes_reasoning: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before a message's kind, or between messages; what was looked at.
    Header(usize),
    Body(Body),
    /// The body of what may be a call, behind a header of so many bytes; what was looked at.
    Call(EnvelopeReader, usize, usize),
    Json(EnvelopeReader, Scanner),
    /// What follows a call's arguments; what was looked at.
    Rest(EnvelopeReader, usize),
    Broken,
}

impl Inkling {
    pub(crate) fn new(takes_calls: bool, takes_reasoning: bool, starts_in_reasoning: bool) -> Self {
        let state = if starts_in_reasoning { State::Body(Body::Reasoning) } else { State::Header(0) };
        Self { takes_calls, takes_reasoning, state }
    }

    /// The bytes that were read; none: more text is needed.
    pub(crate) fn step(&mut self, view: &View, calls: &mut usize, out: &mut Out) -> Option<usize> {
        let (text, over) = (view.text, view.over);
        let is_within_call = matches!(self.state, State::Json(..) | State::Rest(..) | State::Broken);
        if text.is_empty() && !(over && is_within_call) {
            return None;
        }
        match &mut self.state {
            State::Header(at) => {
                let limit = at_most(text, MAX_HEADER + MARKER);
                let (end, found) = find(SPECIAL, &text[..limit], *at, over && limit == text.len());
                *at = end;
                // Words are no name of a function: the model has left out what begins a text.
                let header = text[..end].trim_ascii();
                if end > MAX_HEADER || header.contains(char::is_whitespace) {
                    self.state = State::Body(Body::Content);
                    return Some(0);
                }
                match found {
                    Seen::Found(bytes, ()) => Some(self.kind(text, end, bytes, out)),
                    _ if !over => None,
                    _ if header.is_empty() => Some(end),
                    _ => {
                        self.state = State::Body(Body::Content);
                        Some(0)
                    }
                }
            }
            State::Body(body) => {
                let body = *body;
                let (end, found) = find(SPECIAL, text, 0, over);
                body.tell(&text[..end], out);
                match found {
                    Seen::Found(bytes, ()) => {
                        self.state = State::Header(0);
                        let marker = &text[end..end + bytes];
                        if ![END, END_OF_ANSWER].contains(&marker) {
                            return Some(end);
                        }
                        if body == Body::Verbatim && marker == END {
                            out.content(marker);
                        }
                        Some(end + bytes)
                    }
                    _ => (end > 0).then_some(end),
                }
            }
            State::Call(reader, header, at) => {
                let limit = at_most(text, MAX_HELD);
                let is_long = limit < text.len();
                let held = View { text: &text[..limit], over: over && !is_long, tools: view.tools };
                match reader.read(&held, at) {
                    Read::NotYet if !is_long => None,
                    Read::Begins(name, given) => {
                        let named = text[..*header].trim_ascii();
                        if named != name {
                            out.content(named);
                        }
                        out.begins(*calls, name);
                        *calls += 1;
                        let (at, reader) =
                            (*at, std::mem::replace(reader, EnvelopeReader::new(&ENVELOPE, true)));
                        self.state = match given {
                            Given::Whole(json) => {
                                out.arguments(*calls - 1, &json);
                                State::Rest(reader, 0)
                            }
                            Given::Json | Given::Parameters(_) => State::Json(reader, Scanner::new()),
                        };
                        Some(at)
                    }
                    _ => {
                        let begin = *header + CALL.len();
                        out.content(&text[..begin]);
                        self.state = State::Body(Body::Verbatim);
                        Some(begin)
                    }
                }
            }
            State::Json(reader, scanner) => match messages::arguments(scanner, view, *calls - 1, out) {
                Arguments::Whole(bytes) => {
                    let reader = std::mem::replace(reader, EnvelopeReader::new(&ENVELOPE, true));
                    self.state = State::Rest(reader, 0);
                    Some(bytes)
                }
                Arguments::Wrong(bytes) => {
                    self.state = State::Broken;
                    Some(bytes)
                }
                Arguments::CutOff(bytes) => {
                    self.state = State::Header(0);
                    Some(bytes)
                }
                Arguments::Part(read) => read,
            },
            State::Rest(reader, at) => {
                let limit = at_most(text, MAX_HEADER);
                let is_long = limit < text.len();
                let held = View { text: &text[..limit], over: over && !is_long, tools: view.tools };
                let read = match reader.rest(&held, at) {
                    Read::NotYet if !is_long => return None,
                    Read::Ends => *at,
                    // The arguments are whole. What else the envelope holds is content.
                    _ => 0,
                };
                out.ends(*calls - 1, true);
                self.state = State::Header(0);
                Some(read)
            }
            State::Broken => {
                let (read, has_ended) = messages::wrong_arguments(SPECIAL, view, *calls - 1, out);
                if has_ended {
                    self.state = State::Header(0);
                }
                read
            }
        }
    }

    /// What follows a header, which ends where a marker of so many bytes stands. What names no call is content.
    fn kind(&mut self, text: &str, header: usize, bytes: usize, out: &mut Out) -> usize {
        let (named, behind) = (&text[..header], header + bytes);
        let body = match &text[header..behind] {
            CALL if self.takes_calls => {
                self.state = State::Call(EnvelopeReader::new(&ENVELOPE, true), header, behind);
                return 0;
            }
            CALL | CALL_IN_TEXT => Body::Verbatim,
            THINKING if self.takes_reasoning => Body::Reasoning,
            THINKING | TEXT => Body::Content,
            _ => {
                out.content(named.trim_ascii());
                self.state = State::Header(0);
                return behind;
            }
        };
        out.content(if body == Body::Verbatim { &text[..behind] } else { named.trim_ascii() });
        self.state = State::Body(body);
        behind
    }
}
