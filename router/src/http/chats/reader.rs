//! Reads an answer: the texts of its tokens as content, reasoning and calls, as they come.

use std::sync::Arc;

use penstock_core::generation::{FinishReason, TokenEvent};
use penstock_output::{Delta, Parser, ReasoningFormat, Start, Tool, ToolFormat};
use serde_json::Value;

use crate::http::chats::functions::{Namespaced, TOOL_SEARCH};
use crate::telemetry::metrics;

/// How the answers to a request are read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// None: without tools, or `--tool-call-parser none`.
    pub calls: Option<&'static ToolFormat>,
    pub reasoning: Option<&'static ReasoningFormat>,
    /// The functions that may be called.
    pub tools: Arc<[Tool]>,
    /// Names of those whose argument is a text.
    pub custom: Arc<[String]>,
    /// One is the client's search for tools.
    pub has_search: bool,
    /// Those that the client calls otherwise.
    pub namespaced: Arc<[Namespaced]>,
    pub start: Start,
    /// Calls after the first are left out.
    pub is_single: bool,
    /// How calls are named for the client.
    pub ids: Ids,
}

/// What ids of calls look like: some templates ask for a form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ids {
    /// `call_` and random digits.
    Random,
    /// Nine letters and digits, as Mistral's templates demand.
    Nine,
    /// `functions.NAME:N`, as Kimi's template reads them; N goes on from the calls before.
    Counted(usize),
}

/// N of the first call of a choice, beyond that of the choice before.
const CHOICES_APART: usize = 1000;

impl Ids {
    pub fn of(format: Option<&ToolFormat>, calls_before: usize) -> Self {
        match format.map(|format| format.name) {
            Some("mistral") => Self::Nine,
            Some("kimi_k2") => Self::Counted(calls_before),
            _ => Self::Random,
        }
    }

    pub fn next(self, choice: usize, index: usize, name: &str) -> String {
        match self {
            Self::Random => format!("call_{:024x}", rand::random::<u128>() >> 32),
            Self::Nine => {
                const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
                (0..9).map(|_| char::from(LETTERS[rand::random_range(0..LETTERS.len())])).collect()
            }
            Self::Counted(before) => {
                format!("functions.{name}:{}", before + index + CHOICES_APART * choice)
            }
        }
    }
}

impl Reading {
    /// Everything is content.
    pub fn plain() -> Self {
        let (calls, reasoning) = (None, None);
        let (tools, custom, namespaced) = (Arc::new([]), Arc::new([]), Arc::new([]));
        let (has_search, start, is_single, ids) = (false, Start::Content, false, Ids::Random);
        Self { calls, reasoning, tools, custom, has_search, namespaced, start, is_single, ids }
    }

    pub fn is_plain(&self) -> bool {
        self.calls.is_none() && self.reasoning.is_none()
    }

    /// Calls of this tool have a text for an argument.
    pub fn is_custom(&self, name: &str) -> bool {
        self.custom.iter().any(|custom| custom == name)
    }

    /// Calls of this tool are the client's searches for tools.
    pub fn is_search(&self, name: &str) -> bool {
        self.has_search && name == TOOL_SEARCH
    }

    /// The namespace and the name that the client gave a function.
    pub fn told<'a>(&'a self, name: &'a str) -> (Option<&'a str>, &'a str) {
        match self.namespaced.iter().find(|namespaced| namespaced.shown == name) {
            Some(own) => (Some(&own.namespace), &own.name),
            None => (None, name),
        }
    }

    /// Of one of the request's choices.
    pub fn reader(&self, choice: usize) -> Reader {
        let parser = (!self.is_plain())
            .then(|| Parser::new(self.calls, self.reasoning, self.tools.clone(), self.start));
        Reader { reading: self.clone(), choice, parser, reasoning_tokens: 0, has_calls: false, is_cut: false }
    }
}

/// The text that a call of a custom tool has, out of its arguments, as far as they go.
pub fn custom_input(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let text = match parsed {
        Some(parsed) => parsed["input"].as_str().map(str::to_owned),
        None => input_cut_off(arguments),
    };
    text.unwrap_or_else(|| arguments.to_owned())
}

/// The text within `{"input": "..."}` of which the end is missing.
fn input_cut_off(arguments: &str) -> Option<String> {
    /// In characters: two halves of a pair of surrogates, as JSON escapes a character.
    const LONGEST_ESCAPE: usize = 12;
    let mut rest = arguments;
    for part in ["{", "\"input\"", ":"] {
        rest = rest.trim_start();
        if part.starts_with(rest) {
            return Some(String::new());
        }
        rest = rest.strip_prefix(part)?;
    }
    let rest = rest.trim_start();
    if rest.is_empty() {
        return Some(String::new());
    }
    let first_text = |text: &str| serde_json::Deserializer::from_str(text).into_iter().next()?.ok();
    let ends = rest.char_indices().rev().map(|(end, _)| end).take(LONGEST_ESCAPE);
    first_text(rest).or_else(|| {
        let mut cut = std::iter::once(rest.len()).chain(ends);
        cut.find_map(|end| first_text(&format!("{}\"", &rest[..end])))
    })
}

/// Reads one answer.
pub struct Reader {
    reading: Reading,
    choice: usize,
    parser: Option<Parser>,
    reasoning_tokens: u32,
    has_calls: bool,
    /// The answer ended within a call.
    is_cut: bool,
}

impl Reader {
    /// What a token adds; `Done` follows the last one.
    pub fn push(&mut self, token: &TokenEvent) -> Vec<Delta> {
        let Some(parser) = &mut self.parser else {
            // A special token is no text.
            return if token.special { Vec::new() } else { vec![Delta::Content(token.text.clone())] };
        };
        let mut deltas = Vec::new();
        let is_marker = |name: &str| {
            !name.is_empty()
                && (self.reading.calls.is_some_and(|format| format.has_in_markers(name))
                    || self.reading.reasoning.is_some_and(|format| format.has_in_markers(name)))
        };
        if !token.special || is_marker(&token.text) {
            parser.push(&token.text, &mut deltas);
        }
        self.reasoning_tokens += u32::from(deltas.iter().any(|delta| matches!(delta, Delta::Reasoning(_))));
        self.kept(deltas)
    }

    /// Tokens that brought text of reasoning; `None` of a model that does not reason.
    pub fn reasoning_tokens(&self) -> Option<u32> {
        self.reading.reasoning.map(|_| self.reasoning_tokens)
    }

    /// What was held back, at the end.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        if let Some(parser) = &mut self.parser {
            parser.finish(&mut deltas);
        }
        let deltas = self.kept(deltas);
        self.is_cut = deltas.iter().any(|delta| matches!(delta, Delta::CallEnds { complete: false, .. }));
        deltas
    }

    /// Whether an answer that has ended so is over because it calls tools. It is not if a stop string ended it within a call.
    pub fn calls(&self, reason: FinishReason) -> bool {
        match reason {
            FinishReason::EosToken => self.has_calls,
            FinishReason::StopSequence => self.has_calls && !self.is_cut,
            FinishReason::Length => false,
        }
    }

    /// Whether the answer has ended within a call.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub fn id(&self, index: usize, name: &str) -> String {
        self.reading.ids.next(self.choice, index, name)
    }

    pub fn is_custom(&self, name: &str) -> bool {
        self.reading.is_custom(name)
    }

    fn kept(&mut self, mut deltas: Vec<Delta>) -> Vec<Delta> {
        if self.reading.is_single {
            deltas.retain(|delta| match delta {
                Delta::CallBegins { index, .. }
                | Delta::Arguments { index, .. }
                | Delta::CallEnds { index, .. } => *index == 0,
                Delta::Content(_) | Delta::Reasoning(_) => true,
            });
        }
        for delta in &deltas {
            match delta {
                Delta::CallBegins { .. } => self.has_calls = true,
                Delta::CallEnds { complete, .. } => metrics::tool_call(*complete),
                _ => {}
            }
        }
        deltas
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_of_a_custom_tool_goes_as_far_as_its_arguments() {
        for (arguments, input) in [
            (r#"{"input": "sea and \"sky\""}"#, r#"sea and "sky""#),
            (r#"{"input": "sea and"#, "sea and"),
            (r#" { "input" :"sea \""#, r#"sea ""#),
            (r#"{"input": "sea""#, "sea"),
            (r#"{"input": "sea\"#, "sea"),
            (r#"{"input": "sea\\"#, r"sea\"),
            (r#"{"input": "sea\u00e"#, "sea"),
            (r#"{"input": "sea\ud83d\ude0"#, "sea"),
            (r#"{"input": "é日\ud83d\ude00"#, "é日😀"),
            (r#"{"input": ""#, ""),
            (r#"{"input""#, ""),
            (r#"{"inp"#, ""),
            ("", ""),
            // No call of a custom tool is written so.
            (r#"{"input": 5"#, r#"{"input": 5"#),
            (r#"{"text": "sea"#, r#"{"text": "sea"#),
            ("sea", "sea"),
        ] {
            assert_eq!(custom_input(arguments), input, "{arguments}");
        }
    }
}
