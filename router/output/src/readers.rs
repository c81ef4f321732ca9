//! The beginning of a call, from its marker to the place where it is certain to be a call of a known tool.
//!
//! A reader sees the text from its marker on, again with every part that comes, and remembers where it was. What it
//! finds depends on the text alone and never on how it was cut. Until it says `Begins` nothing was given out, and all
//! of the text can still become content.

use crate::formats::{
    Arguments, Call, Envelope, Name, Parameters, Seen, after_space, at_most, attributes, find, seen,
};
use crate::json::{self, Scan, Scanner};
use crate::python::{self, CallEnd, End};
use crate::{Tool, braces};

/// Bytes of a tool's name: of 256 characters, which requests may give it, each has at most four.
pub(crate) const MAX_NAME: usize = 1024;

/// Bytes of a call's id.
const MAX_ID: usize = 256;

/// Bytes of what a name stands in, up to its end.
pub(crate) const MAX_HEAD: usize = MAX_NAME + MAX_ID;

/// Bytes beyond what is looked at in which a marker has room that begins at its end.
pub(crate) const MARKER: usize = 128;

/// Bytes of a key that may be a name, as JSON writes it: four bytes of it may be two escapes of six.
const MAX_KEY: usize = 3 * MAX_NAME + 2;

/// Keys that a call's envelope may have beside name and arguments. They tell the client nothing.
const OTHER_KEYS: &[&str] = &["id", "type", "index", "tool_call_id", "call_id"];

/// What a reader sees.
pub(crate) struct View<'a> {
    pub(crate) text: &'a str,
    pub(crate) over: bool,
    pub(crate) tools: &'a [Tool],
}

impl View<'_> {
    pub(crate) fn knows(&self, name: &str) -> bool {
        let written = !name.is_empty() && name.len() <= MAX_NAME;
        let plain = |character: char| {
            !character.is_whitespace() && !character.is_control() && !"<>{}[]()\"'`,;".contains(character)
        };
        match self.tools {
            [] => written && name.chars().all(plain),
            tools => tools.iter().any(|tool| tool.name == name),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Read {
    NotYet,
    /// This is no call. Nothing was given out.
    NoCall,
    /// A call of this tool; its arguments follow.
    Begins(String, Given),
    /// The envelope ended, whose call has begun before.
    Ends,
}

/// How arguments come.
#[derive(Debug)]
pub(crate) enum Given {
    /// An object begins at the position.
    Json,
    /// Elements begin at the position.
    Parameters(&'static Parameters),
    /// All of them, in this text.
    Whole(String),
}

#[derive(Debug)]
pub(crate) enum Reader {
    Envelope(EnvelopeReader),
    Named(NamedReader),
    Python(PythonReader),
}

impl Reader {
    /// `at` moves past what was read.
    pub(crate) fn read(&mut self, view: &View, at: &mut usize) -> Read {
        match self {
            Self::Envelope(reader) => reader.read(view, at),
            Self::Named(reader) => reader.read(view, at),
            Self::Python(reader) => reader.read(view, at),
        }
    }

    /// The call is one of a list that a bracket has opened.
    pub(crate) fn in_list(&self) -> bool {
        match self {
            Self::Envelope(reader) => reader.in_list,
            Self::Python(reader) => reader.in_list,
            Self::Named(_) => false,
        }
    }
}

/// Reads `{"name": "f", "arguments": {}}`, whose keys come in any order.
#[derive(Debug)]
pub(crate) struct EnvelopeReader {
    envelope: &'static Envelope,
    in_list: bool,
    may_open_list: bool,
    stage: Stage,
    name: Option<String>,
    /// Arguments that came before the name.
    arguments: Option<String>,
    has_begun: bool,
}

#[derive(Debug)]
enum Stage {
    Begin,
    /// A key; the first one, or a brace, when true.
    Key(bool),
    InKey(usize, Scanner),
    Colon(Key),
    Value(Key),
    InValue(Key, usize, Scanner),
    /// A comma or the brace.
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Key {
    Name,
    Arguments,
    Other,
}

impl EnvelopeReader {
    pub(crate) fn new(envelope: &'static Envelope, in_list: bool) -> Self {
        Self {
            envelope,
            in_list,
            may_open_list: !in_list,
            stage: Stage::Begin,
            name: None,
            arguments: None,
            has_begun: false,
        }
    }

    /// What follows the arguments of a call that has begun.
    pub(crate) fn rest(&mut self, view: &View, at: &mut usize) -> Read {
        self.read(view, at)
    }

    pub(crate) fn in_list(&self) -> bool {
        self.in_list
    }

    pub(crate) fn read(&mut self, view: &View, at: &mut usize) -> Read {
        let text = view.text;
        while let Some(&byte) = text.as_bytes().get(*at) {
            let is_space = byte.is_ascii_whitespace();
            match &mut self.stage {
                Stage::InKey(from, scanner) => {
                    let scan = scanner.read(byte);
                    if matches!(scan, Scan::Wrong | Scan::Control | Scan::NoEscape) {
                        return Read::NoCall;
                    }
                    if *at - *from > MAX_KEY {
                        // This byte may be within a character.
                        *at = *from;
                        return Read::NoCall;
                    }
                    *at += 1;
                    if scan == Scan::Last {
                        let Some(key) = json::text(&text[*from..*at]).and_then(|key| self.key(view, key))
                        else {
                            return Read::NoCall;
                        };
                        self.stage = Stage::Colon(key);
                    }
                    continue;
                }
                Stage::InValue(key, from, scanner) => {
                    let (key, from) = (*key, *from);
                    match scanner.read(byte) {
                        Scan::Wrong => return Read::NoCall,
                        Scan::More | Scan::Control => *at += 1,
                        Scan::NoEscape => {}
                        scan @ (Scan::Last | Scan::Before) => {
                            *at += usize::from(scan == Scan::Last);
                            self.stage = Stage::Next;
                            if let Some(read) = self.value(view, key, &text[from..*at]) {
                                return read;
                            }
                        }
                    }
                    continue;
                }
                _ if is_space => {}
                Stage::Begin if byte == b'[' && self.may_open_list => {
                    self.in_list = true;
                    self.may_open_list = false;
                }
                Stage::Begin if byte == b'{' => self.stage = Stage::Key(true),
                Stage::Key(_) if byte == b'"' => {
                    self.stage = Stage::InKey(*at, Scanner::new());
                    continue;
                }
                Stage::Colon(key) if byte == b':' => self.stage = Stage::Value(*key),
                Stage::Value(key) => {
                    let key = *key;
                    if key == Key::Arguments
                        && byte == b'{'
                        && let Some(name) = self.name.take()
                    {
                        self.stage = Stage::Next;
                        self.has_begun = true;
                        return Read::Begins(name, Given::Json);
                    }
                    let fits = match key {
                        Key::Name => byte == b'"',
                        Key::Arguments => matches!(byte, b'{' | b'"' | b'n'),
                        Key::Other => !matches!(byte, b'{' | b'['),
                    };
                    if !fits {
                        return Read::NoCall;
                    }
                    self.stage = Stage::InValue(key, *at, Scanner::new());
                    continue;
                }
                Stage::Next if byte == b',' => self.stage = Stage::Key(false),
                Stage::Next | Stage::Key(true) if byte == b'}' => {
                    *at += 1;
                    if self.has_begun {
                        return Read::Ends;
                    }
                    if !self.envelope.optional_arguments {
                        return Read::NoCall;
                    }
                    self.has_begun = true;
                    // The brace is read again, as the envelope's end.
                    *at -= 1;
                    self.stage = Stage::Next;
                    return match self.name.take() {
                        Some(name) => Read::Begins(name, Given::Whole("{}".to_owned())),
                        None => Read::NoCall,
                    };
                }
                _ => return Read::NoCall,
            }
            *at += 1;
        }
        if view.over { Read::NoCall } else { Read::NotYet }
    }

    fn key(&mut self, view: &View, key: String) -> Option<Key> {
        if self.envelope.name.is_empty() {
            let is_call = !self.has_begun && self.name.is_none() && view.knows(&key);
            return is_call.then(|| {
                self.name = Some(key);
                Key::Arguments
            });
        }
        if self.envelope.name.contains(&key.as_str()) {
            (self.name.is_none() && !self.has_begun).then_some(Key::Name)
        } else if self.envelope.arguments.contains(&key.as_str()) {
            (self.arguments.is_none() && !self.has_begun).then_some(Key::Arguments)
        } else {
            OTHER_KEYS.contains(&key.as_str()).then_some(Key::Other)
        }
    }

    fn value(&mut self, view: &View, key: Key, written: &str) -> Option<Read> {
        match key {
            // An id, a number, a word: not a text, which would be lost.
            Key::Other => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"\"-_.:".contains(&byte);
                return (written.len() > MAX_ID || !written.bytes().all(plain)).then_some(Read::NoCall);
            }
            Key::Name => {
                let name = json::text(written).filter(|name| view.knows(name));
                if name.is_none() {
                    return Some(Read::NoCall);
                }
                self.name = name;
            }
            Key::Arguments => match whole_object(written) {
                Some(object) => self.arguments = Some(object),
                None => return Some(Read::NoCall),
            },
        }
        let arguments = self.arguments.take();
        match (self.name.take(), arguments) {
            (Some(name), Some(arguments)) => {
                self.has_begun = true;
                Some(Read::Begins(name, Given::Whole(arguments)))
            }
            (name, arguments) => {
                (self.name, self.arguments) = (name, arguments);
                None
            }
        }
    }
}

/// Arguments that are an object, a text that holds one, or nothing.
fn whole_object(written: &str) -> Option<String> {
    match written.as_bytes()[0] {
        b'n' => Some("{}".to_owned()),
        b'"' => {
            let text = mended(written).and_then(|written| json::text(&written))?;
            let object = json::value(&text)?;
            object.starts_with('{').then(|| object.to_owned())
        }
        _ => mended(written),
    }
}

fn mended(value: &str) -> Option<String> {
    let mut json = String::with_capacity(value.len());
    let copied = json::copy(&mut Scanner::new(), value, &mut json);
    (copied == json::Copied::All(value.len())).then_some(json)
}

/// Reads a name that a marker ends, and looks what its arguments begin with.
#[derive(Debug)]
pub(crate) struct NamedReader {
    call: &'static Call,
    name: &'static Name,
    arguments: &'static Arguments,
    /// Bytes of a name with what may stand beside it.
    most: usize,
    stage: NamedStage,
}

#[derive(Debug)]
enum NamedStage {
    /// A section was opened, and the call was not.
    Open,
    /// White space before the name.
    Before,
    /// The name begins here.
    Name(usize),
    Arguments(String),
    Braces(String, usize, braces::ObjectEnd),
}

impl NamedReader {
    pub(crate) fn new(
        call: &'static Call,
        name: &'static Name,
        arguments: &'static Arguments,
        longest_name: usize,
        opened: bool,
    ) -> Self {
        let stage = if opened { NamedStage::Before } else { NamedStage::Open };
        Self { call, name, arguments, most: longest_name + MAX_ID, stage }
    }

    fn read(&mut self, view: &View, at: &mut usize) -> Read {
        let text = view.text;
        loop {
            let not_yet = if view.over { Read::NoCall } else { Read::NotYet };
            match &mut self.stage {
                NamedStage::Open => {
                    *at = after_space(text, *at);
                    match seen(self.call.open, text, *at, view.over) {
                        Seen::Found(bytes, ()) => {
                            *at += bytes;
                            self.stage = NamedStage::Before;
                        }
                        Seen::Partly => return not_yet,
                        Seen::Nothing => return if *at == text.len() { not_yet } else { Read::NoCall },
                    }
                }
                NamedStage::Before => {
                    *at = after_space(text, *at);
                    if *at == text.len() {
                        return not_yet;
                    }
                    self.stage = NamedStage::Name(*at);
                }
                NamedStage::Name(from) => {
                    let from = *from;
                    let limit = at_most(text, from + self.most + MARKER);
                    let (end, found) = self.name_end(&text[..limit], *at, view.over && limit == text.len());
                    *at = end;
                    if end - from > self.most {
                        *at = from;
                        return Read::NoCall;
                    }
                    let Seen::Found(bytes, ()) = found else { return not_yet };
                    let Some(name) = self.named(&text[from..end]).filter(|name| view.knows(name)) else {
                        return Read::NoCall;
                    };
                    *at += bytes;
                    self.stage = NamedStage::Arguments(name);
                }
                NamedStage::Arguments(name) => {
                    *at = after_space(text, *at);
                    let begin = *at;
                    match seen(self.call.close, text, begin, view.over) {
                        Seen::Found(..) => {
                            return Read::Begins(std::mem::take(name), Given::Whole("{}".to_owned()));
                        }
                        Seen::Partly => return not_yet,
                        Seen::Nothing if begin == text.len() => return not_yet,
                        Seen::Nothing => {}
                    }
                    match self.arguments {
                        Arguments::Json if text.as_bytes()[begin] == b'{' => {
                            return Read::Begins(std::mem::take(name), Given::Json);
                        }
                        Arguments::Parameters(parameters) => {
                            match seen(&[parameters.open], text, begin, view.over) {
                                Seen::Found(..) => {
                                    return Read::Begins(std::mem::take(name), Given::Parameters(parameters));
                                }
                                Seen::Partly => return not_yet,
                                Seen::Nothing => return Read::NoCall,
                            }
                        }
                        Arguments::Braces(_) if text.as_bytes()[begin] == b'{' => {
                            let end = braces::ObjectEnd::default();
                            self.stage = NamedStage::Braces(std::mem::take(name), begin, end);
                        }
                        Arguments::Json | Arguments::Braces(_) => return Read::NoCall,
                    }
                }
                NamedStage::Braces(name, from, end) => {
                    let Arguments::Braces(quote) = self.arguments else { return Read::NoCall };
                    return match end.find(text, at, quote, view.over) {
                        End::NotYet => not_yet,
                        End::Never => Read::NoCall,
                        End::Found => match braces::object(&text[*from..*at], quote) {
                            Some(json) => Read::Begins(std::mem::take(name), Given::Whole(json)),
                            None => Read::NoCall,
                        },
                    };
                }
            }
        }
    }

    /// A stop is found with no bytes: it belongs to what follows.
    fn name_end(&self, text: &str, from: usize, over: bool) -> (usize, Seen<()>) {
        let (end, found) = find(self.name.ends, text, from, over);
        let (stop, stopped) = find(self.name.stops, &text[..end], from, over || end < text.len());
        match stopped {
            Seen::Found(..) => (stop, Seen::Found(0, ())),
            Seen::Partly => (stop, Seen::Partly),
            Seen::Nothing => (end, found),
        }
    }

    fn named(&self, head: &str) -> Option<String> {
        let name = match self.name.attribute {
            Some(name) => {
                let attributes = attributes(head, &[name, "index"])?;
                let index = attributes.iter().find(|(key, _)| *key == "index");
                if index.is_some_and(|(_, index)| index.parse::<u32>().is_err()) {
                    return None;
                }
                attributes.into_iter().find(|(key, _)| *key == name)?.1
            }
            None => head.trim().to_owned(),
        };
        let is_id =
            |id: &str| id.trim().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        let name = match self.name.id_end {
            Some(end) => name.split_once(end).filter(|(id, _)| is_id(id))?.1.trim_start(),
            None => name.as_str(),
        };
        let name = name.strip_prefix(self.name.prefix).unwrap_or(name);
        // Only a number or an id is cut off.
        let cut = self.name.cut.and_then(|cut| name.rsplit_once(cut));
        let cut = cut.filter(|(_, id)| is_id(id));
        Some(cut.map_or(name, |(name, _)| name).trim().to_owned())
    }
}

/// Reads `f(a=1)` to its end.
#[derive(Debug)]
pub(crate) struct PythonReader {
    in_list: bool,
    may_open_list: bool,
    stage: PythonStage,
}

#[derive(Debug)]
enum PythonStage {
    Begin,
    Name(usize),
    Arguments(String, usize, CallEnd),
}

impl PythonReader {
    pub(crate) fn new(in_list: bool, may_open_list: bool) -> Self {
        Self { in_list, may_open_list, stage: PythonStage::Begin }
    }

    fn read(&mut self, view: &View, at: &mut usize) -> Read {
        let text = view.text;
        loop {
            let not_yet = if view.over { Read::NoCall } else { Read::NotYet };
            match &mut self.stage {
                PythonStage::Begin => {
                    *at = after_space(text, *at);
                    match text[*at..].chars().next() {
                        None => return not_yet,
                        Some('[') if self.may_open_list => {
                            self.in_list = true;
                            self.may_open_list = false;
                            *at += 1;
                        }
                        Some(first) if begins_name(first) => self.stage = PythonStage::Name(*at),
                        Some(_) => return Read::NoCall,
                    }
                }
                PythonStage::Name(from) => {
                    let from = *from;
                    let rest = &text[*at..at_most(text, *at + 2 * MAX_NAME)];
                    let end = rest.find(|character: char| {
                        !begins_name(character) && !character.is_numeric() && character != '-'
                    });
                    *at += end.unwrap_or(rest.len());
                    if *at - from > MAX_NAME {
                        *at = from;
                        return Read::NoCall;
                    }
                    let name = &text[from..*at];
                    match text.as_bytes().get(*at) {
                        None => return not_yet,
                        Some(b'(') if view.knows(name) => {
                            *at += 1;
                            self.stage = PythonStage::Arguments(name.to_owned(), *at, CallEnd::default());
                        }
                        Some(_) => return Read::NoCall,
                    }
                }
                PythonStage::Arguments(name, from, end) => {
                    return match end.find(text, at, view.over) {
                        End::NotYet => not_yet,
                        End::Never => Read::NoCall,
                        End::Found => match python::arguments(&text[*from..*at - 1]) {
                            Some(json) => Read::Begins(std::mem::take(name), Given::Whole(json)),
                            None => Read::NoCall,
                        },
                    };
                }
            }
        }
    }
}

pub(crate) fn begins_name(character: char) -> bool {
    character.is_alphabetic() || character == '_' || character == '.'
}
