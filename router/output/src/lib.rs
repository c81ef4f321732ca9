//! What a model wrote, as content, reasoning and tool calls: for streams and whole answers by the same code.
//!
//! A `Parser` is given generated text in parts of any size and makes `Delta`s of it. Their concatenation does not depend
//! on how the text was cut, so a whole answer is one push. What is no call stays content, with its markers; nothing that
//! a model wrote is lost, and no text makes it panic, recurse without bound, or hold back more than about a mebibyte.
//!
//! ```
//! use penstock_output::{Answer, Parser, Start, Tool, reasoning_format, tool_format};
//!
//! let tools = [Tool { name: "get_weather".to_owned(), parameters: serde_json::Value::Null }];
//! let mut parser = Parser::new(tool_format("hermes"), reasoning_format("think"), tools.into(), Start::Content);
//! let mut deltas = Vec::new();
//! for part in ["<think>Hm.</th", "ink>Let me look. <tool_call>{\"name\": \"get_", "weather\", \"arguments\": {}}</tool_call>"] {
//!     parser.push(part, &mut deltas);
//! }
//! parser.finish(&mut deltas);
//! let answer = Answer::of(&deltas);
//! assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("Hm.", "Let me look. "));
//! assert_eq!((answer.calls[0].name.as_str(), answer.calls[0].arguments.as_str()), ("get_weather", "{}"));
//! ```
//!
//! `formats` says what a format is made of, `tables` has them as data, `choice` finds a chat template's. `parser` goes
//! through the text: it looks for markers (`marks`), and lets `readers` find out whether a call begins. Arguments are passed on by
//! `json` and `parameters`, or read whole by `python` and `braces`; `schema` says which type an argument has. `harmony` and
//! `inkling` are formats that are made of messages instead (`messages`). `frames` says how calls are written, `arguments` what stands in
//! them, and `compose` makes of it what an answer has to be, for grammars. `special_tokens` says which of a tokenizer a format writes.
//! docs/tool-calls.md lists formats and rules.

mod argument_schemas;
mod arguments;
mod braces;
mod choice;
mod compose;
mod formats;
mod frames;
mod harmony;
mod inkling;
mod json;
mod marks;
mod messages;
mod out;
mod parameters;
mod parser;
mod part;
mod python;
mod readers;
mod schema;
mod special_tokens;
mod tables;

use serde_json::Value;

pub use argument_schemas::Unbound;
pub use choice::{of_template, reasoning_format, reasoning_formats, tool_format, tool_formats};
pub use compose::{Calls, Possible, after_reasoning};
pub use formats::{ReasoningFormat, ToolFormat};
pub use frames::{Frame, written_calls};
pub use json::dumps;
pub use parser::Parser;
pub use part::{Callable, Part, Words};

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    /// JSON schema of its arguments, which gives a type to those that are written as text. Null when there is none.
    pub parameters: Value,
}

/// Where an answer begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    Content,
    /// The prompt has opened reasoning, and the answer goes on inside it.
    Reasoning,
}

/// What the next part of the text adds to the answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    Content(String),
    Reasoning(String),
    /// A call of a known tool; calls are counted from 0.
    CallBegins {
        index: usize,
        name: String,
    },
    /// A part of the call's arguments. All parts together are one JSON object if the call ends complete.
    Arguments {
        index: usize,
        json: String,
    },
    /// Not complete: the text was cut off, or the arguments are not JSON. They are then as the model wrote them.
    CallEnds {
        index: usize,
        complete: bool,
    },
}

/// A text's deltas, put together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub content: String,
    pub reasoning: String,
    pub calls: Vec<Call>,
}

/// One call of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub name: String,
    /// A JSON object if `complete`.
    pub arguments: String,
    pub complete: bool,
}

impl Answer {
    pub fn of(deltas: &[Delta]) -> Self {
        let mut answer = Self::default();
        for delta in deltas {
            answer.add(delta);
        }
        answer
    }

    /// Deltas are added in their order.
    pub fn add(&mut self, delta: &Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(text),
            Delta::Reasoning(text) => self.reasoning.push_str(text),
            Delta::CallBegins { name, .. } => {
                self.calls.push(Call { name: name.clone(), arguments: String::new(), complete: false });
            }
            Delta::Arguments { index, json } => {
                if let Some(call) = self.calls.get_mut(*index) {
                    call.arguments.push_str(json);
                }
            }
            Delta::CallEnds { index, complete } => {
                if let Some(call) = self.calls.get_mut(*index) {
                    call.complete = *complete;
                }
            }
        }
    }
}
