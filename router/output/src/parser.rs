//! Goes through the text: prose, in which markers are looked for, and calls.
//!
//! The text that is not settled yet stands in one buffer. A step looks at it, gives out what is certain, moves past it,
//! and remembers where it was, so that no part of the text is looked at again with every push. What looked like a call
//! and is none becomes prose from its marker on; then it is looked at once more, within `MAX_AGAIN`.

use std::mem;
use std::sync::Arc;

use crate::formats::{
    Body, Call, EndsAtCall, ReasoningFormat, Seen, ToolFormat, after_space, at_most, find, seen,
};
use crate::harmony::Harmony;
use crate::inkling::Inkling;
use crate::json::{self, Copied, Scanner};
use crate::marks::{IN_REASONING, IN_SECTION, Mark, Marks, OUTSIDE, marks};
use crate::out::Out;
use crate::parameters::{Around, ParameterStream, Step};
use crate::readers::{
    EnvelopeReader, Given, MAX_NAME, NamedReader, PythonReader, Read, Reader, View, begins_name,
};
use crate::{Delta, Start, Tool};

/// Bytes of white space that are held back where they may stand between two parts.
const MAX_SPACE: usize = 256;

/// Bytes that are held back because they may be a call.
const MAX_HELD: usize = 1 << 20;

/// Bytes of what was no call that are looked at for calls again.
const MAX_AGAIN: usize = 4096;

/// Splits generated text into content, reasoning and tool calls.
#[derive(Debug)]
pub struct Parser {
    tool: Option<&'static ToolFormat>,
    reasoning: Option<&'static ReasoningFormat>,
    tools: Arc<[Tool]>,
    /// Bytes of the longest name that one may have.
    longest_name: usize,
    marks: [Marks; 3],
    /// What is settled, up to `start`, and what is not.
    text: String,
    start: usize,
    /// No more text comes.
    is_over: bool,
    in_reasoning: bool,
    in_section: bool,
    edge: Edge,
    state: State,
    calls: usize,
}

/// What stands before the text that comes next, and so what white space there means.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edge {
    /// The answer begins here.
    Start,
    ReasoningOpened,
    ReasoningClosed,
    CallEnded,
    /// Text.
    None,
}

#[derive(Debug)]
enum State {
    Prose,
    /// What may be a call.
    Reading(Attempt),
    /// A call within reasoning, which is one if the answer ends with it.
    Perhaps(Box<Perhaps>),
    /// Arguments that are passed on as they come.
    Json(Scanner, After),
    Parameters(ParameterStream, &'static Call),
    /// Arguments that are not JSON, up to a closing marker.
    Broken(&'static Call),
    /// The rest of an envelope, whose arguments have ended.
    Rest(EnvelopeReader, usize, &'static Call),
    /// A call has ended; more of a list may follow, or a closing marker.
    Ended {
        call: &'static Call,
        list: List,
    },
    Harmony(Harmony),
    Inkling(Inkling),
}

#[derive(Debug)]
struct Attempt {
    which: usize,
    reader: Reader,
    /// The text looked at before the reader: white space and the marker.
    opened: usize,
    at: usize,
    /// How far readers of other kinds of call had come that gave up.
    furthest: usize,
    /// The call's own marker, or that of the section, was seen.
    through: Through,
}

/// What a call within reasoning is if it ends the answer. All of its text is held back.
#[derive(Debug)]
struct Perhaps {
    parser: Parser,
    deltas: Vec<Delta>,
    /// Of the text that is held back, what the parser has seen.
    read: usize,
}

impl Perhaps {
    /// Something other than calls came after delta number `from`.
    fn has_text(&self, from: usize) -> bool {
        self.deltas[from..]
            .iter()
            .any(|delta| matches!(delta, Delta::Content(text) if !text.trim().is_empty()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Through {
    Call,
    Section,
    /// One more call of those that a marker has opened.
    List,
}

#[derive(Debug)]
enum After {
    Envelope(EnvelopeReader, &'static Call),
    Named(&'static Call),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum List {
    /// No bracket was opened.
    None,
    Open,
    Closed,
}

enum Flow {
    /// Something was done; there may be more to do.
    On,
    /// More text is needed.
    Wait,
}

impl Parser {
    /// Without tools every well-formed call counts. `ReasoningFormat::start_after` tells the start from the prompt.
    pub fn new(
        tool: Option<&'static ToolFormat>,
        reasoning: Option<&'static ReasoningFormat>,
        tools: Arc<[Tool]>,
        start: Start,
    ) -> Self {
        let starts_in_reasoning = start == Start::Reasoning && reasoning.is_some();
        let in_channels = tool.is_some_and(ToolFormat::has_channels);
        let in_messages = tool.is_some_and(ToolFormat::has_messages);
        let takes_reasoning = reasoning.is_some();
        let state = if in_channels || reasoning.is_some_and(ReasoningFormat::has_channels) {
            State::Harmony(Harmony::new(in_channels, takes_reasoning, starts_in_reasoning))
        } else if in_messages || reasoning.is_some_and(ReasoningFormat::has_messages) {
            State::Inkling(Inkling::new(in_messages, takes_reasoning, starts_in_reasoning))
        } else {
            State::Prose
        };
        Self {
            tool,
            reasoning,
            longest_name: tools.iter().map(|tool| tool.name.len()).max().unwrap_or(MAX_NAME),
            tools,
            marks: marks(tool, reasoning),
            text: String::new(),
            start: 0,
            is_over: false,
            in_reasoning: starts_in_reasoning,
            in_section: false,
            edge: if starts_in_reasoning { Edge::ReasoningOpened } else { Edge::Start },
            state,
            calls: 0,
        }
    }

    /// Takes the next part of the text; deltas are appended.
    pub fn push(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        self.text.push_str(text);
        self.run(deltas);
        if self.start > MAX_AGAIN && self.start > self.text.len() / 2 {
            self.text.drain(..self.start);
            self.start = 0;
        }
    }

    /// The text is over, whether it was cut off or not: what was held back comes out.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) {
        self.is_over = true;
        self.run(deltas);
    }

    fn run(&mut self, deltas: &mut Vec<Delta>) {
        let from = deltas.len();
        let mut out = Out { deltas, from };
        loop {
            let flow = match mem::replace(&mut self.state, State::Prose) {
                State::Prose => self.prose(&mut out),
                State::Reading(attempt) => self.reading(attempt, &mut out),
                State::Perhaps(perhaps) => self.perhaps(perhaps, &mut out),
                State::Json(scanner, after) => self.json(scanner, after, &mut out),
                State::Parameters(stream, call) => self.parameters(stream, call, &mut out),
                State::Broken(call) => self.broken(call, &mut out),
                State::Rest(reader, at, call) => self.rest(reader, at, call, &mut out),
                State::Ended { call, list } => self.ended(call, list),
                State::Harmony(mut harmony) => {
                    let text = &self.text[self.start..];
                    let view = View { text, over: self.is_over, tools: &self.tools };
                    let read = harmony.step(&view, &mut self.calls, &mut out);
                    self.state = State::Harmony(harmony);
                    self.pass(read)
                }
                State::Inkling(mut inkling) => {
                    let text = &self.text[self.start..];
                    let view = View { text, over: self.is_over, tools: &self.tools };
                    let read = inkling.step(&view, &mut self.calls, &mut out);
                    self.state = State::Inkling(inkling);
                    self.pass(read)
                }
            };
            if let Flow::Wait = flow {
                return;
            }
        }
    }

    /// Past what a format of its own has read.
    fn pass(&mut self, read: Option<usize>) -> Flow {
        let Some(bytes) = read else { return Flow::Wait };
        self.start += bytes;
        Flow::On
    }

    fn held(&self) -> &str {
        &self.text[self.start..]
    }

    /// The next bytes as prose.
    fn give(&mut self, bytes: usize, out: &mut Out) {
        let text = &self.text[self.start..self.start + bytes];
        if self.in_reasoning {
            out.reasoning(text);
        } else {
            out.content(text);
        }
        self.start += bytes;
    }

    fn skip(&mut self, bytes: usize) {
        self.start += bytes;
    }

    fn marks(&self) -> &Marks {
        match (self.in_reasoning, self.in_section) {
            (true, _) => &self.marks[IN_REASONING],
            (false, true) => &self.marks[IN_SECTION],
            (false, false) => &self.marks[OUTSIDE],
        }
    }

    fn prose(&mut self, out: &mut Out) -> Flow {
        if self.held().is_empty() {
            return Flow::Wait;
        }
        if self.edge != Edge::None {
            return self.at_edge(out);
        }
        let (end, found) = self.marks().find(self.held(), self.is_over);
        let text = &self.held()[..end];
        // In reasoning white space is held back, because it is dropped before the end.
        let space =
            if self.in_reasoning { (text.len() - text.trim_ascii_end().len()) % (MAX_SPACE + 1) } else { 0 };
        match found {
            Seen::Found(bytes, mark) => {
                let space = if mark == Mark::CloseReasoning { space } else { 0 };
                self.give(end - space, out);
                self.mark(space, bytes, mark);
                Flow::On
            }
            Seen::Partly | Seen::Nothing => {
                self.give(end - space, out);
                if self.is_over {
                    self.skip(space);
                }
                Flow::Wait
            }
        }
    }

    /// Where the answer, reasoning or content begins, or after a call.
    fn at_edge(&mut self, out: &mut Out) -> Flow {
        let held = self.held();
        let space = after_space(held, 0);
        if space > MAX_SPACE {
            self.edge = Edge::None;
            self.give(MAX_SPACE + 1, out);
            return Flow::On;
        }
        if space == held.len() {
            if !self.is_over {
                return Flow::Wait;
            }
            match self.edge {
                Edge::Start if !self.begins_in_head() => self.give(space, out),
                _ => self.skip(space),
            }
            return Flow::Wait;
        }
        if let Some(reasoning) = self.reasoning {
            match seen(reasoning.open, held, space, self.is_over) {
                Seen::Found(bytes, ()) => {
                    self.skip(space + bytes);
                    self.in_reasoning = true;
                    self.edge = Edge::ReasoningOpened;
                    return Flow::On;
                }
                Seen::Partly => return Flow::Wait,
                Seen::Nothing => {}
            }
            if self.edge == Edge::Start {
                // The template of a model that was told not to think may have left this to it.
                match seen(reasoning.close, held, space, self.is_over) {
                    Seen::Found(bytes, ()) => {
                        self.skip(space + bytes);
                        self.edge = Edge::ReasoningClosed;
                        return Flow::On;
                    }
                    Seen::Partly => return Flow::Wait,
                    Seen::Nothing => {}
                }
            }
        }
        match self.marks().at(held, space, self.is_over) {
            Seen::Found(bytes, mark) => {
                self.mark(space, bytes, mark);
                return Flow::On;
            }
            Seen::Partly => return Flow::Wait,
            Seen::Nothing => {}
        }
        if matches!(self.edge, Edge::Start | Edge::ReasoningClosed)
            && !self.in_reasoning
            && let Some(attempt) = self.attempt(0, "", space, Through::Call)
        {
            self.state = State::Reading(attempt);
            return Flow::On;
        }
        self.leave_edge(space, out);
        Flow::On
    }

    /// Text begins after this much white space.
    fn leave_edge(&mut self, space: usize, out: &mut Out) {
        match self.edge {
            Edge::ReasoningOpened | Edge::ReasoningClosed => self.skip(space),
            Edge::Start if self.begins_in_head() => self.skip(space),
            _ => self.give(space, out),
        }
        self.edge = Edge::None;
    }

    fn begins_in_head(&self) -> bool {
        self.reasoning.is_some_and(ReasoningFormat::begins_in_head)
    }

    fn mark(&mut self, space: usize, bytes: usize, mark: Mark) {
        match mark {
            Mark::Silent => self.skip(space + bytes),
            Mark::CloseReasoning => {
                self.skip(space + bytes);
                self.in_reasoning = false;
                self.edge = Edge::ReasoningClosed;
            }
            Mark::CloseSection => {
                self.skip(space + bytes);
                self.in_section = false;
                self.edge = Edge::CallEnded;
            }
            Mark::OpenSection | Mark::Open(_) => {
                let marker = self.held()[space..space + bytes].to_owned();
                let (from, through) = match mark {
                    Mark::Open(which) => (which, Through::Call),
                    _ => (0, Through::Section),
                };
                match self.attempt(from, &marker, space + bytes, through) {
                    Some(attempt) => self.state = State::Reading(attempt),
                    None => self.skip(space + bytes),
                }
            }
        }
    }

    /// The first way to read a call that this marker opens, of those from number `from` on.
    fn attempt(&self, from: usize, marker: &str, opened: usize, through: Through) -> Option<Attempt> {
        let calls = self.tool.map_or(&[][..], |tool| tool.calls);
        // Without a marker only a list is taken for Python: words before a parenthesis are prose.
        let is_list = self.held()[opened..].starts_with('[');
        let (which, call) =
            calls.iter().enumerate().skip(from).find(|(_, call)| match (through, &call.body) {
                (Through::Section, body) => matches!(body, Body::Named(..)),
                (_, Body::Python) if marker.is_empty() && !is_list => false,
                _ => call.open.contains(&marker),
            })?;
        let reader = match &call.body {
            Body::Envelope(envelope) => Reader::Envelope(EnvelopeReader::new(envelope, false)),
            Body::Named(name, arguments) => {
                let opened = through == Through::Call;
                Reader::Named(NamedReader::new(call, name, arguments, self.longest_name, opened))
            }
            Body::Python => Reader::Python(PythonReader::new(false, true)),
            Body::Harmony | Body::Inkling => return None,
        };
        Some(Attempt { which, reader, opened, at: opened, furthest: opened, through })
    }

    fn reading(&mut self, mut attempt: Attempt, out: &mut Out) -> Flow {
        let Some(tool) = self.tool else { return Flow::On };
        let call = &tool.calls[attempt.which];
        let limit = at_most(self.held(), MAX_HELD);
        let is_long = limit < self.held().len();
        let view = View { text: &self.held()[..limit], over: self.is_over && !is_long, tools: &self.tools };
        match attempt.reader.read(&view, &mut attempt.at) {
            Read::NotYet if !is_long => {
                self.state = State::Reading(attempt);
                return Flow::Wait;
            }
            Read::NotYet => {
                self.leave_edge(0, out);
                self.give(limit, out);
            }
            Read::NoCall | Read::Ends => self.no_call(attempt, out),
            Read::Begins(..) if self.in_reasoning && self.ends_at_call() == EndsAtCall::IfLast => {
                let parser = Parser::new(self.tool, None, self.tools.clone(), Start::Content);
                self.state = State::Perhaps(Box::new(Perhaps { parser, deltas: Vec::new(), read: 0 }));
            }
            Read::Begins(name, given) => {
                self.in_reasoning = false;
                // Models leave out what opens a section, and close it all the same.
                self.in_section |= tool.section.is_some();
                self.edge = Edge::CallEnded;
                self.begin(name, given, attempt, call, out);
            }
        }
        Flow::On
    }

    fn ends_at_call(&self) -> EndsAtCall {
        self.reasoning.map_or(EndsAtCall::Never, |format| format.ends_at_call)
    }

    /// Whether the answer ends with the call does not depend on how the text is cut, so it is looked at one character at a time.
    fn perhaps(&mut self, mut perhaps: Box<Perhaps>, out: &mut Out) -> Flow {
        let close = self.reasoning.map_or(&[][..], |format| format.close);
        while perhaps.read <= MAX_HELD {
            let held = &self.text[self.start..];
            let is_over = match seen(close, held, perhaps.read, self.is_over) {
                // Reasoning may be closed behind the call.
                Seen::Found(bytes, ()) if after_space(held, perhaps.read + bytes) < held.len() => break,
                Seen::Found(..) => true,
                Seen::Partly => false,
                Seen::Nothing => match held[perhaps.read..].chars().next() {
                    Some(next) => {
                        let (from, to) = (perhaps.deltas.len(), perhaps.read + next.len_utf8());
                        perhaps.parser.push(&held[perhaps.read..to], &mut perhaps.deltas);
                        perhaps.read = to;
                        if perhaps.has_text(from) {
                            break;
                        }
                        continue;
                    }
                    None => true,
                },
            };
            if !(is_over && self.is_over) {
                self.state = State::Perhaps(perhaps);
                return Flow::Wait;
            }
            let from = perhaps.deltas.len();
            perhaps.parser.finish(&mut perhaps.deltas);
            if perhaps.has_text(from) {
                break;
            }
            self.start = self.text.len();
            self.in_reasoning = false;
            let calls = self.calls;
            self.calls += perhaps.parser.calls;
            out.calls(perhaps.deltas, calls);
            return Flow::Wait;
        }
        let space = after_space(self.held(), 0).min(perhaps.read);
        self.leave_edge(space, out);
        // White space before the end of reasoning is looked at there.
        let read = &self.held()[..perhaps.read - space];
        let space = (read.len() - read.trim_ascii_end().len()) % (MAX_SPACE + 1);
        self.give(read.len() - space, out);
        Flow::On
    }

    fn begin(&mut self, name: String, given: Given, attempt: Attempt, call: &'static Call, out: &mut Out) {
        let index = self.calls;
        self.calls += 1;
        self.skip(attempt.at);
        let list = if attempt.reader.in_list() { List::Open } else { List::None };
        self.state = match given {
            Given::Json => {
                let after = match attempt.reader {
                    Reader::Envelope(reader) => After::Envelope(reader, call),
                    Reader::Named(_) | Reader::Python(_) => After::Named(call),
                };
                State::Json(Scanner::new(), after)
            }
            Given::Parameters(parameters) => {
                let tool = self.tools.iter().position(|tool| tool.name == name);
                State::Parameters(ParameterStream::new(parameters, self.tools.clone(), tool), call)
            }
            Given::Whole(_) => match attempt.reader {
                Reader::Envelope(reader) => State::Rest(reader, 0, call),
                Reader::Named(_) | Reader::Python(_) => State::Ended { call, list },
            },
        };
        out.begins(index, name);
        if let Given::Whole(json) = given {
            out.arguments(index, &json);
            if !matches!(self.state, State::Rest(..)) {
                out.ends(index, true);
            }
        }
    }

    /// What was read is prose, unless the same marker opens another kind of call.
    fn no_call(&mut self, attempt: Attempt, out: &mut Out) {
        if attempt.through != Through::List {
            let space = after_space(self.held(), 0).min(attempt.opened);
            let marker = self.held()[space..attempt.opened].to_owned();
            if let Some(mut next) = self.attempt(attempt.which + 1, &marker, attempt.opened, attempt.through)
            {
                next.furthest = attempt.at.max(attempt.furthest);
                self.state = State::Reading(next);
                return;
            }
        }
        let space = after_space(self.held(), 0).min(attempt.opened);
        self.leave_edge(space, out);
        let (opened, read) = (attempt.opened - space, attempt.at.max(attempt.furthest) - space);
        if read > MAX_AGAIN {
            self.give(read, out);
        } else if opened > 0 && attempt.through != Through::List {
            self.give(opened, out);
        } else {
            let first = self.held()[opened..].chars().next().map_or(0, char::len_utf8);
            self.give(opened + first, out);
        }
    }

    fn json(&mut self, mut scanner: Scanner, after: After, out: &mut Out) -> Flow {
        let mut json = String::new();
        let copied = json::copy(&mut scanner, self.held(), &mut json);
        let index = self.calls - 1;
        out.arguments(index, &json);
        match copied {
            Copied::All(bytes) => {
                self.skip(bytes);
                self.state = match after {
                    After::Envelope(reader, call) => State::Rest(reader, 0, call),
                    After::Named(call) => {
                        out.ends(index, true);
                        State::Ended { call, list: List::None }
                    }
                };
                Flow::On
            }
            Copied::Wrong(bytes) => {
                self.skip(bytes);
                self.state = match after {
                    After::Envelope(_, call) | After::Named(call) => State::Broken(call),
                };
                Flow::On
            }
            Copied::Some(bytes) => {
                self.skip(bytes);
                if self.is_over {
                    out.arguments(index, &self.text[self.start..]);
                    self.start = self.text.len();
                    out.ends(index, false);
                } else {
                    self.state = State::Json(scanner, after);
                }
                Flow::Wait
            }
        }
    }

    /// Markers after which a call is over in any case.
    fn ends_of(&self, call: &Call) -> Vec<&'static str> {
        let section = self.tool.and_then(|tool| tool.section.as_ref()).filter(|_| self.in_section);
        let section = section.map_or(&[][..], |section| section.close);
        let opens = call.open.iter().filter(|open| !open.is_empty());
        section.iter().chain(opens).copied().collect()
    }

    fn broken(&mut self, call: &'static Call, out: &mut Out) -> Flow {
        let index = self.calls - 1;
        let beyond = self.ends_of(call);
        let markers = [call.close, &beyond].concat();
        let (end, found) = find(&markers, self.held(), 0, self.is_over);
        out.arguments(index, &self.held()[..end]);
        let closes = matches!(seen(call.close, self.held(), end, self.is_over), Seen::Found(..));
        self.skip(end);
        match found {
            Seen::Found(bytes, ()) => {
                self.skip(if closes { bytes } else { 0 });
                out.ends(index, false);
                self.edge = Edge::CallEnded;
                Flow::On
            }
            _ if self.is_over => {
                out.ends(index, false);
                Flow::Wait
            }
            _ => {
                self.state = State::Broken(call);
                Flow::Wait
            }
        }
    }

    fn parameters(&mut self, mut stream: ParameterStream, call: &'static Call, out: &mut Out) -> Flow {
        let index = self.calls - 1;
        let beyond = self.ends_of(call);
        let around = Around { close: call.close, beyond: &beyond };
        let mut json = String::new();
        let step = stream.step(self.held(), self.is_over, &around, &mut json);
        out.arguments(index, &json);
        match step {
            Step::Read(bytes) => self.skip(bytes),
            Step::Content(bytes) => {
                out.content(&self.text[self.start..self.start + bytes]);
                self.skip(bytes);
            }
            Step::Ends(bytes) => {
                self.skip(bytes);
                out.ends(index, true);
                self.edge = Edge::CallEnded;
                return Flow::On;
            }
            Step::NotYet if self.is_over => {
                out.content(&self.text[self.start..]);
                self.start = self.text.len();
                out.ends(index, false);
                return Flow::Wait;
            }
            Step::NotYet => {
                self.state = State::Parameters(stream, call);
                return Flow::Wait;
            }
        }
        self.state = State::Parameters(stream, call);
        Flow::On
    }

    fn rest(
        &mut self,
        mut reader: EnvelopeReader,
        mut at: usize,
        call: &'static Call,
        out: &mut Out,
    ) -> Flow {
        let limit = at_most(self.held(), MAX_AGAIN);
        let is_long = limit < self.held().len();
        let view = View { text: &self.held()[..limit], over: self.is_over && !is_long, tools: &self.tools };
        match reader.rest(&view, &mut at) {
            Read::NotYet if !is_long => {
                self.state = State::Rest(reader, at, call);
                return Flow::Wait;
            }
            Read::Ends => {
                self.skip(at);
                let list = if reader.in_list() { List::Open } else { List::None };
                self.state = State::Ended { call, list };
            }
            // The arguments are whole. What else the envelope holds is content.
            _ => self.edge = Edge::CallEnded,
        }
        out.ends(self.calls - 1, true);
        Flow::On
    }

    fn ended(&mut self, call: &'static Call, list: List) -> Flow {
        self.edge = Edge::CallEnded;
        let held = self.held();
        let is_over = self.is_over;
        let mut at = after_space(held, 0);
        let wait = |call, list| State::Ended { call, list };
        if at <= MAX_SPACE {
            // What closes it may begin the next one.
            let goes_on = |rest: &str| !rest.trim_ascii().is_empty();
            let begins = |open: &&&str| {
                let mut closes = call.close.iter().filter(|close| !close.is_empty());
                closes.any(|close| open.strip_prefix(close).is_some_and(goes_on))
            };
            let opens: Vec<&str> = call.open.iter().filter(begins).copied().collect();
            match seen(&opens, held, at, is_over) {
                Seen::Found(..) => return Flow::On,
                Seen::Partly => {
                    self.state = wait(call, list);
                    return Flow::Wait;
                }
                Seen::Nothing => {}
            }
            match seen(call.close, held, at, is_over) {
                Seen::Found(bytes, ()) => {
                    self.skip(at + bytes);
                    return Flow::On;
                }
                Seen::Partly => {
                    self.state = wait(call, list);
                    return Flow::Wait;
                }
                // Cut off within the marker, which is the call's.
                Seen::Nothing if is_over && matches!(seen(call.close, held, at, false), Seen::Partly) => {
                    self.skip(held.len());
                    return Flow::On;
                }
                Seen::Nothing => {}
            }
        }
        let has_more = matches!(call.body, Body::Envelope(_) | Body::Python) && list != List::Closed;
        if at > MAX_SPACE || (at < held.len() && !has_more) {
            return Flow::On;
        }
        match held.as_bytes().get(at) {
            Some(b']') if list == List::Open => {
                self.skip(at + 1);
                self.state = wait(call, List::Closed);
                return Flow::On;
            }
            Some(b',' | b';') => at = after_space(held, at + 1),
            Some(_) if list == List::Open => return Flow::On,
            _ => {}
        }
        match held[at..].chars().next() {
            _ if at > 2 * MAX_SPACE => Flow::On,
            None if is_over => Flow::On,
            None => {
                self.state = wait(call, list);
                Flow::Wait
            }
            Some(first) => {
                let in_list = list == List::Open;
                let reader = match &call.body {
                    Body::Envelope(envelope) if first == '{' => {
                        Reader::Envelope(EnvelopeReader::new(envelope, in_list))
                    }
                    Body::Python if begins_name(first) => Reader::Python(PythonReader::new(in_list, false)),
                    _ => return Flow::On,
                };
                let which =
                    self.tool.and_then(|tool| tool.calls.iter().position(|other| std::ptr::eq(other, call)));
                if let Some(which) = which {
                    let attempt =
                        Attempt { which, reader, opened: at, at, furthest: at, through: Through::List };
                    self.state = State::Reading(attempt);
                }
                Flow::On
            }
        }
    }
}
