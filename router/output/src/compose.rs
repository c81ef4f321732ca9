//! What an answer has to be so that its calls are right, as parts of a text: for grammars, which this crate does not know.

use serde_json::{Value, json};

use crate::formats::{ReasoningFormat, ToolFormat};
use crate::frames::{self, Frame};
use crate::{Start, tool_format};

/// A part of a text. Where a text or a marker has the name of a special token in it, that token is meant; free text has
/// no special tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Exactly this.
    Text(String),
    /// This, after space and line breaks or at once.
    Opening(String),
    /// JSON that the schema accepts. `at` is where the client gave it, for errors.
    Json {
        schema: Value,
        at: String,
    },
    /// Any JSON object.
    JsonObject,
    /// A text that the expression matches.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A number of up to three digits.
    Number,
    /// Space and line breaks, or none.
    Space,
    /// Any text up to the first `marker`, and the marker. It does not begin with `not_first`.
    Until {
        marker: String,
        not_first: Option<String>,
    },
    /// Any text, or none, that neither holds `without` nor begins with `not_first`.
    Free {
        without: Option<String>,
        not_first: Option<String>,
    },
    OneOf(Vec<Vec<Part>>),
    /// `part` so many times, with `between` between two.
    Repeat {
        part: Vec<Part>,
        between: Vec<Part>,
        least: u32,
        most: Option<u32>,
    },
}

impl Part {
    /// Bytes of what clients gave of it, about.
    pub fn bytes(&self) -> usize {
        match self {
            Part::Json { schema, .. } => schema.to_string().len(),
            Part::Regex(text) => text.len(),
            Part::Choice(texts) => texts.iter().map(String::len).sum(),
            Part::OneOf(choices) => choices.iter().flatten().map(Part::bytes).sum(),
            Part::Repeat { part, .. } => part.iter().map(Part::bytes).sum(),
            _ => 0,
        }
    }
}

/// A function whose calls are to be right.
#[derive(Clone, Debug, PartialEq)]
pub struct Callable {
    pub name: String,
    /// JSON schema of its arguments; null for one that takes none.
    pub schema: Value,
    /// Where the client gave the schema.
    pub at: String,
}

/// What calls an answer may or must have.
pub struct Calls<'a> {
    pub format: &'static ToolFormat,
    /// The model's chat template.
    pub template: &'a str,
    pub reasoning: Option<&'static ReasoningFormat>,
    pub start: Start,
    pub functions: &'a [Callable],
    /// More than one call.
    pub may_be_several: bool,
}

impl Calls<'_> {
    /// An answer that is calls, after reasoning if the model reasons, and the format to read it by: `json` where the
    /// model's own cannot be written.
    pub fn required(&self) -> (Vec<Part>, &'static ToolFormat) {
        let (frame, format) = self.frame();
        let calls = self.section(frame, frame.open, frame.before_name);
        (self.after_reasoning(|_| calls.clone(), true), format)
    }

    /// An answer that is calls, or `text`, after reasoning; and the format to read it by, as for `required`.
    pub fn or_text(&self, text: Vec<Part>) -> (Vec<Part>, &'static ToolFormat) {
        let (frame, format) = self.frame();
        let either = vec![Part::OneOf(vec![self.section(frame, frame.open, frame.before_name), text])];
        (self.after_reasoning(|_| either.clone(), true), format)
    }

    fn frame(&self) -> (&'static Frame, &'static ToolFormat) {
        match self.format.frame(self.template) {
            Some(frame) => (frame, self.format),
            None => {
                let json = tool_format("json").unwrap_or(self.format);
                (json.frame("").unwrap_or(&frames::FRAME), json)
            }
        }
    }

    /// An answer that is free text until a call begins, which is right from there on. None: the format does not tell
    /// calls from text, or its arguments are not JSON.
    pub fn possible(&self) -> Option<Vec<Part>> {
        let frame = self.format.frame(self.template)?;
        let has_silent =
            !self.format.silent.is_empty() || self.reasoning.is_some_and(|format| !format.silent.is_empty());
        // Free text of these has special tokens of its own.
        if has_silent || self.format.name == "harmony" {
            return None;
        }
        if frame.trigger.is_empty() {
            // Then a call is all of the answer. Other text does not begin as one.
            let begins = format!("{}{}", frame.open, frame.before_name);
            let first = begins.chars().next().map(String::from);
            let calls = self.section(frame, frame.open, frame.before_name);
            let free = vec![Part::Free { without: None, not_first: first }];
            return Some(vec![Part::OneOf(vec![calls, free])]);
        }
        let body = |not_first: Option<&str>| {
            let not_first = || not_first.map(str::to_owned);
            let trigger = frame.trigger.to_owned();
            let mut call = vec![Part::Until { marker: trigger.clone(), not_first: not_first() }];
            call.extend(match frame.open.strip_prefix(frame.trigger) {
                Some(open) => self.section(frame, open, frame.before_name),
                None => self.one(frame, frame.before_name.strip_prefix(frame.trigger).unwrap_or_default()),
            });
            let free = Part::Free { without: Some(trigger), not_first: not_first() };
            if frame.is_single || !self.may_be_several {
                return vec![Part::OneOf(vec![call, vec![free]])];
            }
            let mut more = call.clone();
            if let Some(Part::Until { not_first, .. }) = more.first_mut() {
                *not_first = None;
            }
            let after = Part::Free { without: Some(frame.trigger.to_owned()), not_first: None };
            call.extend([Part::Repeat { part: more, between: Vec::new(), least: 0, most: None }, after]);
            vec![Part::OneOf(vec![call, vec![free]])]
        };
        Some(self.after_reasoning(body, false))
    }

    /// All calls of an answer, or of one section.
    fn section(&self, frame: &Frame, open: &str, before_name: &str) -> Vec<Part> {
        let several = self.may_be_several && !frame.is_single;
        let calls = Part::Repeat {
            part: self.one(frame, before_name),
            between: vec![Part::Text(frame.between.to_owned())],
            least: 1,
            most: (!several).then_some(1),
        };
        let mut parts = vec![Part::Text(open.to_owned()), calls, Part::Text(frame.close.to_owned())];
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        parts
    }

    /// A call of one of the functions.
    fn one(&self, frame: &Frame, before_name: &str) -> Vec<Part> {
        let call = |function: &Callable| {
            let before = format!("{before_name}{}{}", function.name, frame.before_arguments);
            let mut parts = Vec::new();
            for (index, text) in before.split('#').enumerate() {
                parts.extend((index > 0).then_some(Part::Number));
                parts.push(Part::Text(text.to_owned()));
            }
            parts.push(Part::Json { schema: arguments(&function.schema), at: function.at.clone() });
            parts.extend((!frame.after.is_empty()).then(|| Part::Text(frame.after.to_owned())));
            parts
        };
        vec![Part::OneOf(self.functions.iter().map(call).collect())]
    }

    /// `body`, which is told what it must not begin with, after reasoning that may be there. An answer may end within its
    /// reasoning unless it must have calls.
    fn after_reasoning(&self, body: impl Fn(Option<&str>) -> Vec<Part>, must: bool) -> Vec<Part> {
        let Some(format) = self.reasoning else { return body(None) };
        let (open, close) = format.markers();
        let opening = || match self.start {
            Start::Reasoning => Vec::new(),
            Start::Content => vec![Part::Opening(open.to_owned())],
        };
        let mut thought = opening();
        thought.push(Part::Until { marker: close.to_owned(), not_first: None });
        thought.extend(must.then_some(Part::Space));
        thought.extend(body(None));
        let mut choices = vec![thought];
        if !must {
            let mut cut = opening();
            cut.push(Part::Free { without: Some(close.to_owned()), not_first: None });
            choices.push(cut);
        }
        if self.start == Start::Content {
            choices.push(body(Some(open)));
        }
        vec![Part::OneOf(choices)]
    }
}

/// The schema of a function's arguments, which are an object.
fn arguments(schema: &Value) -> Value {
    match schema {
        Value::Object(members) if !members.contains_key("type") => {
            let mut members = members.clone();
            members.insert("type".to_owned(), json!("object"));
            Value::Object(members)
        }
        Value::Object(_) => schema.clone(),
        _ => json!({"type": "object", "properties": {}, "additionalProperties": false}),
    }
}
