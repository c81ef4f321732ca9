//! What an answer has to be so that its calls are right, as parts of a text: for grammars, which this crate does not know.

use serde_json::{Map, Value, json};

use crate::argument_schemas::{Budget, Unbound};
use crate::arguments;
use crate::formats::{EndsAtCall, ReasoningFormat, ToolFormat};
use crate::frames::Frame;
use crate::part::{Callable, Part};
use crate::{Start, harmony, inkling, tool_format};

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

/// A marker that free text does not have, and what leads from it to a call's name.
struct Way {
    marker: String,
    rest: String,
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
        if self.format.has_messages() {
            return self.messages(frame, bodies);
        }
        if frame.trigger.is_empty() {
            // Then a call is all of the answer, but for reasoning. Other text does not begin as one.
            let begins = format!("{}{}", frame.open, frame.before_name);
            let first = begins.chars().next().map(String::from);
            let mut calls = vec![Part::Space];
            calls.extend(self.section(frame, frame.open, frame.before_name, bodies));
            // Nor does it hold the marker that opens reasoning: with that, reasoning and a call behind it would be other text.
            let body = |opening: Option<&str>| {
                let barred = Some(frame.barred).filter(|marker| !marker.is_empty());
                let without = opening.into_iter().chain(barred).map(str::to_owned).collect();
                let free = vec![Part::Free { without, not_first: first.clone() }];
                vec![Part::OneOf(vec![calls.clone(), free])]
            };
            return self.after_reasoning(None, body);
        }
        let ways = self.ways(frame);
        let call = self.behind_a_way(frame, &ways, bodies);
        let body = |not_first: Option<&str>| {
            let mut calls = vec![self.to_a_name(&ways, not_first)];
            if frame.is_single || !self.may_be_several {
                calls.extend(call.iter().cloned());
            } else {
                let between = vec![self.to_a_name(&ways, None)];
                calls.push(Part::Repeat { part: call.clone(), between, least: 1, most: None });
                calls.extend(self.free(&ways, None));
            }
            let mut text = self.free(&ways, not_first);
            text.extend(self.end());
            vec![Part::OneOf(vec![calls, text])]
        };
        let way = self.way_in_reasoning(frame);
        self.after_reasoning(way.map(|way| (way, self.behind_the_name(frame, bodies))), body)
    }

    /// The markers that lead to a call's name: of all calls, and of a call whose section was not opened.
    fn ways(&self, frame: &Frame) -> Vec<Way> {
        let begins = format!("{}{}", frame.open, frame.before_name);
        let rest = begins.strip_prefix(frame.trigger).unwrap_or_default();
        let mut ways = vec![Way { marker: frame.trigger.to_owned(), rest: rest.to_owned() }];
        if let Some((marker, rest)) = self.without_section(frame) {
            ways.push(Way { marker: marker.to_owned(), rest: rest.to_owned() });
        }
        ways
    }

    /// In reasoning, where models also write about calls, all that stands before a name leads to it.
    fn way_in_reasoning(&self, frame: &Frame) -> Option<Way> {
        let begins = format!("{}{}", frame.open, frame.before_name);
        let mut marks = self.format.marks_in_reasoning();
        marks.any(|mark| begins.starts_with(mark)).then(|| {
            let marker = begins.split(['#', '@']).next().unwrap_or_default();
            Way { marker: marker.to_owned(), rest: begins[marker.len()..].to_owned() }
        })
    }

    /// What begins a call whose section was not opened, up to its name. Models leave sections out, and the parser lets them.
    fn without_section<'f>(&self, frame: &'f Frame) -> Option<(&'static str, &'f str)> {
        self.format.section.as_ref()?;
        let openings = self.format.calls.iter().flat_map(|call| call.open).copied();
        let stand_there = openings.filter(|opening| frame.before_name.contains(opening));
        let marker = stand_there.min_by_key(|opening| opening.len())?;
        Some((marker, frame.before_name.split_once(marker)?.1))
    }

    /// A call from its name on, with those that follow it in a list or a section, and what closes that.
    fn behind_the_name(&self, frame: &Frame, bodies: &Bodies) -> Vec<Part> {
        if frame.open.is_empty() {
            return one(frame, "", bodies);
        }
        let mut between = vec![Part::Text(frame.between.to_owned())];
        between.extend(numbered(frame.before_name));
        self.listed(frame, one(frame, "", bodies), between)
    }

    /// The same behind each of the ways: a section need not be closed, and its next call has a marker of its own.
    fn behind_a_way(&self, frame: &Frame, ways: &[Way], bodies: &Bodies) -> Vec<Part> {
        if self.without_section(frame).is_none() {
            return self.behind_the_name(frame, bodies);
        }
        let closes = self.format.calls.iter().flat_map(|call| call.close);
        let ends = closes.filter_map(|close| Some(frame.after.find(close)? + close.len()));
        let (after, rest) = frame.after.split_at(ends.max().unwrap_or(frame.after.len()));
        let close = format!("{rest}{}", frame.close);
        if close.is_empty() {
            return one(frame, "", bodies);
        }
        // Where free text may follow, it may stand before that too: there the same may always follow.
        let close = match self.may_be_several && !frame.is_single {
            true => self.until(close.trim_start(), ways, None),
            false => Part::Text(close),
        };
        let mut call = one(&Frame { after, ..*frame }, "", bodies);
        call.push(Part::Repeat { part: vec![close], between: Vec::new(), least: 0, most: Some(1) });
        call
    }

    /// Other markers that the parser takes for the beginning of a call: free text has none of them.
    fn other_openings(&self, ways: &[Way]) -> Vec<String> {
        let sections = self.format.section.iter().flat_map(|section| section.open);
        let openings = sections.chain(self.format.calls.iter().flat_map(|call| call.open));
        let is_other =
            |opening: &&&str| !opening.is_empty() && !ways.iter().any(|way| opening.starts_with(&way.marker));
        let mut others: Vec<String> = Vec::new();
        for opening in openings.filter(is_other) {
            if !others.iter().any(|other| other == opening) {
                others.push((*opening).to_owned());
            }
        }
        others
    }

    /// Any text without a call.
    fn free(&self, ways: &[Way], not_first: Option<&str>) -> Vec<Part> {
        let free = |not_first: Option<&str>| {
            let mut without = self.other_openings(ways);
            without.extend(ways.iter().map(|way| way.marker.clone()));
            Part::Free { without, not_first: not_first.map(str::to_owned) }
        };
        let mut parts = vec![free(not_first)];
        if let Some(silent) = silent(Some(self.format), self.reasoning) {
            let part = vec![silent, free(None)];
            parts.push(Part::Repeat { part, between: Vec::new(), least: 0, most: None });
        }
        parts
    }

    /// What may stand behind a text that is all of the answer: it begins as a call does, and the model would have to call.
    fn end(&self) -> Option<Part> {
        let end = Some(self.format.end).filter(|end| !end.is_empty());
        end.map(|end| optional(vec![Part::Text(end.to_owned())]))
    }

    /// Any text without a call, and a marker.
    fn until(&self, marker: &str, ways: &[Way], not_first: Option<&str>) -> Part {
        let mut without = self.other_openings(ways);
        without.extend(ways.iter().map(|way| way.marker.clone()).filter(|other| other != marker));
        Part::Until { marker: marker.to_owned(), without, not_first: not_first.map(str::to_owned) }
    }

    /// Any text up to where a call begins, and what stands before its name.
    fn to_a_name(&self, ways: &[Way], not_first: Option<&str>) -> Part {
        let choices = ways.iter().map(|way| {
            let mut parts = vec![self.until(&way.marker, ways, not_first)];
            if let Some(silent) = silent(Some(self.format), self.reasoning) {
                let mut after_markers = self.free(ways, not_first);
                after_markers.extend([silent, self.until(&way.marker, ways, None)]);
                parts = vec![Part::OneOf(vec![parts, after_markers])];
            }
            parts.extend(numbered(&way.rest));
            parts
        });
        Part::OneOf(choices.collect())
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

    /// Inkling: messages of any kinds, each of which ends before the next.
    fn messages(&self, frame: &Frame, bodies: &Bodies) -> Vec<Part> {
        let text = |text: &str| Part::Text(text.to_owned());
        let free = || Part::Free { without: Vec::new(), not_first: None };
        let mut calls = vec![one(frame, "", bodies)];
        // The parser takes calls without the name before them.
        if let Some((before_name, before_arguments)) = frame.before_arguments.split_once('%') {
            calls.push(one(&Frame { before_arguments, ..*frame }, before_name, bodies));
        }
        let call = vec![Part::OneOf(calls)];
        let said = |kind: &str| vec![text(kind), free()];
        let said = vec![Part::OneOf(vec![said(inkling::TEXT), said(inkling::THINKING)])];
        let mut before = vec![[said.clone(), vec![text(inkling::END)]].concat()];
        before.extend(self.may_be_several.then(|| call.clone()));
        let before = vec![Part::OneOf(before), text(inkling::NEXT)];
        let last = [said, vec![optional(vec![text(inkling::END)])]].concat();
        let answer = vec![
            Part::Repeat { part: before, between: Vec::new(), least: 0, most: None },
            Part::OneOf(vec![call, last]),
        ];
        match self.start {
            Start::Content => answer,
            Start::Reasoning => {
                let goes_on = [vec![text(inkling::NEXT)], answer].concat();
                vec![free(), optional(vec![text(inkling::END), optional(goes_on)])]
            }
        }
    }

    /// All calls of an answer, or of one section.
    fn section(&self, frame: &Frame, open: &str, before_name: &str, bodies: &Bodies) -> Vec<Part> {
        let mut parts = vec![Part::Text(open.to_owned())];
        let between = vec![Part::Text(frame.between.to_owned())];
        parts.extend(self.listed(frame, one(frame, before_name, bodies), between));
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        parts
    }

    /// `call`, and more of them if there may be, and what closes the list.
    fn listed(&self, frame: &Frame, call: Vec<Part>, between: Vec<Part>) -> Vec<Part> {
        let several = self.may_be_several && !frame.is_single;
        // What stands between calls may begin what closes them. As a text of its own it is not taken for a part of that.
        let (same, close) = match frame.close.strip_prefix(frame.between) {
            Some(close) if !frame.between.is_empty() => (frame.between, close),
            _ => ("", frame.close),
        };
        let calls = Part::Repeat { part: call, between, least: 1, most: (!several).then_some(1) };
        let mut parts = vec![calls, Part::Text(same.to_owned()), Part::Text(close.to_owned())];
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        parts
    }

    /// `body`, which is told what it must not begin with, after reasoning that may be there. An answer may end within its
    /// reasoning. `call` is one that stands in it, with what leads to it.
    fn after_reasoning(
        &self,
        call: Option<(Way, Vec<Part>)>,
        body: impl Fn(Option<&str>) -> Vec<Part>,
    ) -> Vec<Part> {
        let Some(format) = self.reasoning else { return body(None) };
        let (open, close) = format.markers(self.template);
        let call = call.filter(|_| format.ends_at_call != EndsAtCall::Never);
        let marker: Vec<String> = call.iter().map(|(way, _)| way.marker.clone()).collect();
        let until = |marker: &str, without: Vec<String>| Part::Until {
            marker: marker.to_owned(),
            without,
            not_first: None,
        };
        let mut within = Vec::new();
        if self.start == Start::Content {
            within.push(Part::Opening(open.to_owned()));
        }
        let mut thought = vec![until(close, marker.clone())];
        let without = [marker, vec![close.to_owned()]].concat();
        let cut = vec![Part::Free { without, not_first: None }];
        let mut ends = Vec::new();
        if let Some((way, behind)) = call {
            let mut called = vec![until(&way.marker, vec![close.to_owned()])];
            called.extend(numbered(&way.rest));
            called.extend(behind);
            match format.ends_at_call {
                // One that is not the last is reasoning, which goes on.
                EndsAtCall::IfLast | EndsAtCall::Never => {
                    let most = (!self.may_be_several).then_some(1);
                    within.push(Part::Repeat { part: called, between: Vec::new(), least: 0, most });
                }
                EndsAtCall::Always if self.may_be_several => {
                    thought = vec![Part::OneOf(vec![thought, called])];
                }
                EndsAtCall::Always => ends.push(called),
            }
        }
        thought.extend(body(None));
        ends.extend([thought, cut]);
        within.push(Part::OneOf(ends));
        let mut choices = vec![within];
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
            let not_thought = if format.begins_in_head() { vec![Part::Space] } else { Vec::new() };
            vec![Part::OneOf(vec![thought, not_thought])]
        }
    }
}

/// `text` where a model writes what it tells the user: in GPT-OSS' last channel, in Inkling's message of that kind, or between the
/// markers of a content.
fn as_content(tool: Option<&ToolFormat>, reasoning: Option<&ReasoningFormat>, text: Vec<Part>) -> Vec<Part> {
    let has_channels =
        tool.is_some_and(ToolFormat::has_channels) || reasoning.is_some_and(ReasoningFormat::has_channels);
    let has_messages =
        tool.is_some_and(ToolFormat::has_messages) || reasoning.is_some_and(ReasoningFormat::has_messages);
    let mut parts = Vec::new();
    if has_messages {
        parts.push(Part::Text(inkling::TEXT.to_owned()));
        parts.extend(text);
        parts.push(optional(vec![Part::Text(inkling::END.to_owned())]));
        return parts;
    }
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

/// `part`, or nothing.
fn optional(part: Vec<Part>) -> Part {
    Part::Repeat { part, between: Vec::new(), least: 0, most: Some(1) }
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

/// A text in which each `#` is a number, and each `@` an id.
fn numbered(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    for text in text.split_inclusive(['#', '@']) {
        let (text, counted) = match (text.strip_suffix('#'), text.strip_suffix('@')) {
            (Some(text), _) => (text, Some(Part::Number)),
            (_, Some(text)) => (text, Some(Part::Expression("[a-z0-9]{10}"))),
            _ => (text, None),
        };
        parts.extend((!text.is_empty()).then(|| Part::Text(text.to_owned())));
        parts.extend(counted);
    }
    parts
}

/// A call of one of the functions.
fn one(frame: &Frame, before_name: &str, bodies: &Bodies) -> Vec<Part> {
    let call = |(name, arguments): &(&str, Vec<Part>)| {
        let before = format!("{before_name}{name}{}", frame.before_arguments.replace('%', name));
        let mut parts = numbered(&before);
        parts.extend(arguments.iter().cloned());
        parts.extend((!frame.after.is_empty()).then(|| Part::Text(frame.after.to_owned())));
        parts
    };
    vec![Part::OneOf(bodies.iter().map(call).collect())]
}
