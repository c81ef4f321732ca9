//! What an answer has to be so that its calls are right, as parts of a text: for grammars, which this crate does not know.

use serde_json::{Map, Value, json};

use crate::argument_schemas::{Budget, Unbound};
use crate::arguments;
use crate::formats::{ReasoningFormat, ToolFormat};
use crate::frames::Frame;
use crate::part::{Callable, Part};
use crate::{Start, harmony, tool_format};

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

/// What an answer that may have calls has to be.
pub struct Possible {
    pub parts: Vec<Part>,
    /// Of functions that are not strict: calls of these are held to no schema.
    pub unbound: Vec<Unbound>,
}

/// A function's name, and what stands behind it up to the call's end.
type Bodies<'a> = Vec<(&'a str, Vec<Part>)>;

impl Calls<'_> {
    /// An answer that is calls, after reasoning if the model reasons, and the format to read it by: `json` where the
    /// arguments cannot be written in the model's own.
    pub fn required(&self) -> (Vec<Part>, &'static ToolFormat) {
        let (frame, bodies, format) = self.written();
        let mut parts = self.reasoning_first();
        parts.extend(self.section(frame, frame.open, frame.before_name, &bodies));
        (parts, format)
    }

    /// An answer that is calls, or `text`, after reasoning; and the format to read it by, as for `required`.
    pub fn or_text(&self, text: Vec<Part>) -> (Vec<Part>, &'static ToolFormat) {
        let (frame, bodies, format) = self.written();
        let calls = self.section(frame, frame.open, frame.before_name, &bodies);
        let mut parts = self.reasoning_first();
        parts.push(Part::OneOf(vec![calls, as_content(Some(format), self.reasoning, text)]));
        (parts, format)
    }

    fn reasoning_first(&self) -> Vec<Part> {
        let first = |format| reasoning_first(format, self.template, self.start);
        self.reasoning.map(first).unwrap_or_default()
    }

    fn written(&self) -> (&'static Frame, Bodies<'_>, &'static ToolFormat) {
        let frame = self.format.frame(self.template);
        if let Ok(bodies) = self.bodies(self.format, frame) {
            return (frame, bodies, self.format);
        }
        let json = tool_format("json").unwrap_or(self.format);
        let frame = json.frame("");
        // JSON is written for every schema.
        (frame, self.bodies(json, frame).unwrap_or_default(), json)
    }

    fn bodies(&self, format: &ToolFormat, frame: &Frame) -> Result<Bodies<'_>, Unbound> {
        let budget = Budget::default();
        let body = |function| arguments::arguments(format, frame, function, &budget);
        self.functions.iter().map(|function| Ok((function.name.as_str(), body(function)?))).collect()
    }

    /// As `bodies`, where what is not strict may have arguments of any kind.
    fn loose_bodies(&self, frame: &Frame) -> Result<(Bodies<'_>, Vec<Unbound>), Unbound> {
        let budget = Budget::default();
        let of =
            |function: &Callable, budget: &Budget| arguments::arguments(self.format, frame, function, budget);
        let (mut bodies, mut unbound) = (Vec::with_capacity(self.functions.len()), Vec::new());
        for function in self.functions {
            // Of any names, or in a format that cannot write these of its own.
            let anything = || {
                let own = function.schema["properties"].as_object();
                let own: Map<String, Value> =
                    own.into_iter().flatten().map(|(name, _)| (name.clone(), json!({}))).collect();
                let with = |schema| {
                    let (name, at) = (function.name.clone(), function.at.clone());
                    of(&Callable { name, schema, at, lark: None, is_strict: false }, &Budget::default())
                };
                with(json!({"type": "object"}))
                    .or_else(|_| with(json!({"type": "object", "properties": own})))
            };
            let body = match of(function, &budget) {
                asked if function.is_strict => asked?,
                Ok(asked) => match anything() {
                    Ok(instead) => vec![Part::IfPossible { asked, instead, at: function.at.clone() }],
                    Err(_) => asked,
                },
                Err(why) => {
                    let instead = anything().map_err(|_| why.clone())?;
                    unbound.push(why);
                    instead
                }
            };
            bodies.push((function.name.as_str(), body));
        }
        Ok((bodies, unbound))
    }

    /// An answer that is free text until a call begins, which is right from there on. Err: a strict function's calls cannot be.
    pub fn possible(&self) -> Result<Possible, Unbound> {
        let frame = self.format.frame(self.template);
        let (bodies, unbound) = self.loose_bodies(frame)?;
        Ok(Possible { parts: self.possibly(frame, &bodies), unbound })
    }

    fn possibly(&self, frame: &Frame, bodies: &Bodies) -> Vec<Part> {
        if self.format.has_channels() {
            return self.channels(bodies);
        }
        if frame.trigger.is_empty() {
            // Then a call is all of the answer, but for reasoning. Other text does not begin as one.
            let begins = format!("{}{}", frame.open, frame.before_name);
            let first = begins.chars().next().map(String::from);
            let mut calls = vec![Part::Space];
            calls.extend(self.section(frame, frame.open, frame.before_name, bodies));
            // Nor does it hold the marker that opens reasoning: with that, reasoning and a call behind it would be other text.
            let body = |opening: Option<&str>| {
                let without = opening.into_iter().map(str::to_owned).collect();
                let free = vec![Part::Free { without, not_first: first.clone() }];
                vec![Part::OneOf(vec![calls.clone(), free])]
            };
            return self.after_reasoning(body);
        }
        let body = |not_first: Option<&str>| {
            let mut call = self.until(frame.trigger, not_first);
            call.extend(match frame.open.strip_prefix(frame.trigger) {
                Some(open) => self.section(frame, open, frame.before_name, bodies),
                None => {
                    let before_name = frame.before_name.strip_prefix(frame.trigger).unwrap_or_default();
                    one(frame, before_name, bodies)
                }
            });
            let free = self.free(frame.trigger, not_first);
            if frame.is_single || !self.may_be_several {
                return vec![Part::OneOf(vec![call, free])];
            }
            let mut more = self.until(frame.trigger, None);
            more.extend(call.iter().skip(self.until(frame.trigger, not_first).len()).cloned());
            call.push(Part::Repeat { part: more, between: Vec::new(), least: 0, most: None });
            call.extend(self.free(frame.trigger, None));
            vec![Part::OneOf(vec![call, free])]
        };
        self.after_reasoning(body)
    }

    /// Other markers that the parser takes for the beginning of a call: free text has none of them.
    fn other_openings(&self, trigger: &str) -> Vec<String> {
        let sections = self.format.section.iter().flat_map(|section| section.open);
        let openings = sections.chain(self.format.calls.iter().flat_map(|call| call.open));
        let mut others: Vec<String> = Vec::new();
        for opening in openings.filter(|opening| !opening.is_empty() && !opening.starts_with(trigger)) {
            if !others.iter().any(|other| other == opening) {
                others.push((*opening).to_owned());
            }
        }
        others
    }

    /// Any text without a call.
    fn free(&self, trigger: &str, not_first: Option<&str>) -> Vec<Part> {
        let free = |not_first: Option<&str>| {
            let mut without = self.other_openings(trigger);
            without.push(trigger.to_owned());
            Part::Free { without, not_first: not_first.map(str::to_owned) }
        };
        let mut parts = vec![free(not_first)];
        if let Some(silent) = silent(Some(self.format), self.reasoning) {
            let part = vec![silent, free(None)];
            parts.push(Part::Repeat { part, between: Vec::new(), least: 0, most: None });
        }
        parts
    }

    /// Any text up to where a call begins, and its marker.
    fn until(&self, trigger: &str, not_first: Option<&str>) -> Vec<Part> {
        let until = |not_first: Option<&str>| Part::Until {
            marker: trigger.to_owned(),
            without: self.other_openings(trigger),
            not_first: not_first.map(str::to_owned),
        };
        let Some(silent) = silent(Some(self.format), self.reasoning) else { return vec![until(not_first)] };
        let mut after_markers = self.free(trigger, not_first);
        after_markers.extend([silent, until(None)]);
        vec![Part::OneOf(vec![vec![until(not_first)], after_markers])]
    }

    /// GPT-OSS: messages in channels, and a call as the last.
    fn channels(&self, bodies: &Bodies) -> Vec<Part> {
        let text = |text: &str| vec![Part::Text(text.to_owned())];
        let free = || Part::Free { without: Vec::new(), not_first: None };
        let header = Part::OneOf(harmony::MESSAGE_HEADERS.iter().map(|header| text(header)).collect());
        let message = vec![header, free()];
        let next = Part::Text(harmony::NEXT_MESSAGE.to_owned());
        let call = |(name, arguments): &(&str, Vec<Part>)| {
            let constraint = Part::OneOf(harmony::CALL_CONSTRAINTS.iter().map(|words| text(words)).collect());
            let headers = harmony::CALL_CHANNELS.iter().flat_map(|channel| {
                [
                    text(&format!("<|channel|>{channel} to=functions.{name}")),
                    text(&format!(" to=functions.{name}<|channel|>{channel}")),
                ]
            });
            let header = Part::OneOf(headers.collect());
            let mut parts = vec![header, constraint];
            parts.extend(arguments.iter().cloned());
            parts
        };
        let mut last: Vec<Vec<Part>> = bodies.iter().map(call).collect();
        last.push(message.clone());
        let mut before = message;
        before.push(next.clone());
        let answer =
            vec![Part::Repeat { part: before, between: Vec::new(), least: 0, most: None }, Part::OneOf(last)];
        match self.start {
            Start::Content => answer,
            Start::Reasoning => {
                let mut goes_on = vec![next];
                goes_on.extend(answer);
                vec![free(), Part::Repeat { part: goes_on, between: Vec::new(), least: 0, most: Some(1) }]
            }
        }
    }

    /// All calls of an answer, or of one section.
    fn section(&self, frame: &Frame, open: &str, before_name: &str, bodies: &Bodies) -> Vec<Part> {
        let several = self.may_be_several && !frame.is_single;
        let calls = Part::Repeat {
            part: one(frame, before_name, bodies),
            between: vec![Part::Text(frame.between.to_owned())],
            least: 1,
            most: (!several).then_some(1),
        };
        let mut parts = vec![Part::Text(open.to_owned()), calls, Part::Text(frame.close.to_owned())];
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        parts
    }

    /// `body`, which is told what it must not begin with, after reasoning that may be there. An answer may end within its
    /// reasoning.
    fn after_reasoning(&self, body: impl Fn(Option<&str>) -> Vec<Part>) -> Vec<Part> {
        let Some(format) = self.reasoning else { return body(None) };
        let (open, close) = format.markers(self.template);
        let opening = || match self.start {
            Start::Reasoning => Vec::new(),
            Start::Content => vec![Part::Opening(open.to_owned())],
        };
        let mut thought = opening();
        thought.push(Part::Until { marker: close.to_owned(), without: Vec::new(), not_first: None });
        thought.extend(body(None));
        let mut cut = opening();
        cut.push(Part::Free { without: vec![close.to_owned()], not_first: None });
        let mut choices = vec![thought, cut];
        if self.start == Start::Content {
            choices.push(body(Some(open)));
        }
        vec![Part::OneOf(choices)]
    }
}

/// An answer without calls that is `text`, after reasoning if the model reasons.
pub fn after_reasoning(
    format: &'static ReasoningFormat,
    template: &str,
    start: Start,
    text: Vec<Part>,
) -> Vec<Part> {
    let mut parts = reasoning_first(format, template, start);
    parts.extend(as_content(None, Some(format), text));
    parts
}

/// Reasoning before what an answer has to be: it ends there, and need not be there unless the prompt has opened it.
fn reasoning_first(format: &ReasoningFormat, template: &str, start: Start) -> Vec<Part> {
    let (open, close) = format.markers(template);
    let until = Part::Until { marker: close.to_owned(), without: Vec::new(), not_first: None };
    match start {
        Start::Reasoning => vec![until, Part::Space],
        Start::Content => {
            let thought = vec![Part::Text(open.to_owned()), until, Part::Space];
            vec![Part::OneOf(vec![thought, Vec::new()])]
        }
    }
}

/// `text` where a model writes what it tells the user: in GPT-OSS' last channel, or between the markers of a content.
fn as_content(tool: Option<&ToolFormat>, reasoning: Option<&ReasoningFormat>, text: Vec<Part>) -> Vec<Part> {
    let has_channels =
        tool.is_some_and(ToolFormat::has_channels) || reasoning.is_some_and(ReasoningFormat::has_channels);
    let mut parts = Vec::new();
    if has_channels {
        let headers = harmony::MESSAGE_HEADERS.iter().filter(|header| header.starts_with(harmony::FINAL));
        let headers = headers.map(|header| vec![Part::Text((*header).to_owned())]);
        parts.push(Part::OneOf(headers.collect()));
    }
    let marker = silent(tool, reasoning).map(|marker| Part::OneOf(vec![vec![marker], Vec::new()]));
    parts.extend(marker.clone());
    parts.extend(text);
    parts.extend(marker);
    parts
}

/// One of the markers that enclose content and may stand anywhere in free text.
fn silent(tool: Option<&ToolFormat>, reasoning: Option<&ReasoningFormat>) -> Option<Part> {
    let of_tool = tool.map_or(&[][..], |format| format.silent);
    let of_reasoning = reasoning.map_or(&[][..], |format| format.silent);
    let mut markers: Vec<&str> = Vec::new();
    for marker in of_tool.iter().chain(of_reasoning) {
        if !markers.contains(marker) {
            markers.push(marker);
        }
    }
    let choices: Vec<Vec<Part>> =
        markers.into_iter().map(|marker| vec![Part::Text(marker.to_owned())]).collect();
    (!choices.is_empty()).then_some(Part::OneOf(choices))
}

/// A call of one of the functions.
fn one(frame: &Frame, before_name: &str, bodies: &Bodies) -> Vec<Part> {
    let call = |(name, arguments): &(&str, Vec<Part>)| {
        let before = format!("{before_name}{name}{}", frame.before_arguments);
        let mut parts = Vec::new();
        for (index, text) in before.split('#').enumerate() {
            parts.extend((index > 0).then_some(Part::Number));
            parts.push(Part::Text(text.to_owned()));
        }
        parts.extend(arguments.iter().cloned());
        parts.extend((!frame.after.is_empty()).then(|| Part::Text(frame.after.to_owned())));
        parts
    };
    vec![Part::OneOf(bodies.iter().map(call).collect())]
}
