//! Arguments that are elements, `<parameter=city>Paris</parameter>`, as a JSON object that grows with the text.
//!
//! Texts are passed on while they come. A value of another type by the schema is held until it ends, because only then
//! is it known whether it is of that type.

use std::sync::Arc;

use serde_json::Value;

use crate::Tool;
use crate::formats::{Closes, Parameters, Seen, Unknown, after_space, at_most, attributes, find, seen};
use crate::json::{Scan, Scanner, push_quoted, push_text};
use crate::schema::{Lookups, Types};

/// Bytes of a value that is held. A longer one is passed on as a text.
const MAX_VALUE: usize = 1 << 20;

/// Bytes of an element's head: its marker, the key, attributes.
pub(crate) const MAX_HEAD: usize = 512;

/// Elements within each other in one value.
const MAX_DEPTH: usize = 32;

#[derive(Debug)]
pub(crate) struct ParameterStream {
    parameters: &'static Parameters,
    tools: Arc<[Tool]>,
    /// The tool that is called; none where any name will do.
    tool: Option<usize>,
    is_first: bool,
    /// What was read last is content, and white space after it as well.
    in_content: bool,
    /// What ends every value, where that does not depend on its key.
    ends: Option<Arc<Ends>>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Between,
    /// From an element's marker on; what was looked at.
    Head(usize),
    /// The head is complete, and the value's own marker is missing.
    Opening(Head, usize),
    Text(Arc<Ends>),
    Held(Held),
}

/// A value that is held until it ends.
#[derive(Debug)]
struct Held {
    form: Form,
    ends: Arc<Ends>,
    /// What was looked at.
    at: usize,
    /// Reads it as an object or a list, whose texts may hold the closing marker. None: it is not one, or its end was passed.
    json: Option<Scanner>,
}

#[derive(Debug)]
struct Head {
    key: String,
    /// What the element says of its value.
    is_text: Option<bool>,
}

#[derive(Debug)]
struct Form {
    key: String,
    types: Types,
    forced: bool,
}

/// What ends a value.
#[derive(Debug, Default)]
struct Ends {
    /// The first are the element's own, and the others belong to what follows.
    markers: Vec<String>,
    own: usize,
    next: Option<NextElement>,
    /// Few bytes of a value are one of them.
    first_bytes: Vec<u8>,
}

/// The element of another argument, which ends a value too. A tool may have very many: its key is looked for among them.
#[derive(Debug)]
struct NextElement {
    /// Up to the key.
    open: String,
    head_end: &'static str,
    /// Bytes of the longest key.
    longest: usize,
}

/// What one step made of the text.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// This many bytes were read, and there may be more to do.
    Read(usize),
    /// This many bytes are no arguments.
    Content(usize),
    NotYet,
    /// The call has ended; this many bytes were its closing marker.
    Ends(usize),
}

/// What may follow the last element.
pub(crate) struct Around<'a> {
    pub(crate) close: &'a [&'a str],
    /// End the call too, and are not part of it.
    pub(crate) beyond: &'a [&'a str],
}

impl ParameterStream {
    pub(crate) fn new(parameters: &'static Parameters, tools: Arc<[Tool]>, tool: Option<usize>) -> Self {
        Self { parameters, tools, tool, is_first: true, in_content: false, ends: None, stage: Stage::Between }
    }

    /// `text` begins where the last step had read to. JSON is appended to `json`.
    pub(crate) fn step(&mut self, text: &str, over: bool, around: &Around, json: &mut String) -> Step {
        match &mut self.stage {
            Stage::Between => self.between(text, over, around, json),
            Stage::Head(at) => {
                let limit = at_most(text, 2 * MAX_HEAD);
                let (end, found) =
                    find(self.parameters.head_ends, &text[..limit], *at, over && limit == text.len());
                *at = end;
                match found {
                    _ if end > MAX_HEAD => self.give_up(),
                    Seen::Found(bytes, ()) => match self.head(&text[self.parameters.open.len()..end]) {
                        None => self.give_up(),
                        Some(head) if self.parameters.value_open.is_some() => {
                            self.stage = Stage::Opening(head, end + bytes);
                            Step::Read(0)
                        }
                        Some(head) => {
                            self.begin(head, around, json);
                            Step::Read(end + bytes)
                        }
                    },
                    _ if over => self.give_up(),
                    _ => Step::NotYet,
                }
            }
            Stage::Opening(head, at) => {
                let begin = after_space(text, *at);
                let open = self.parameters.value_open.unwrap_or_default();
                match seen(&[open], text, begin, over) {
                    _ if begin - *at > MAX_HEAD => self.give_up(),
                    Seen::Found(bytes, ()) => {
                        let head = Head { key: std::mem::take(&mut head.key), is_text: head.is_text };
                        self.begin(head, around, json);
                        Step::Read(begin + bytes)
                    }
                    Seen::Partly => Step::NotYet,
                    Seen::Nothing if begin == text.len() && !over => Step::NotYet,
                    Seen::Nothing => self.give_up(),
                }
            }
            Stage::Text(ends) => {
                let schema = self.tool.map_or(&Value::Null, |tool| &self.tools[tool].parameters);
                let (end, found) = ends.find(text, 0, over, schema);
                push_text(json, &text[..end]);
                match found {
                    Seen::Found(bytes, ()) => {
                        json.push('"');
                        self.stage = Stage::Between;
                        Step::Read(end + bytes)
                    }
                    _ if end > 0 => Step::Read(end),
                    _ => Step::NotYet,
                }
            }
            Stage::Held(held) => {
                let schema = self.tool.map_or(&Value::Null, |tool| &self.tools[tool].parameters);
                let limit = at_most(text, MAX_VALUE);
                let ends_here = over && limit == text.len();
                if held.is_within_json(&text[..limit], over || limit < text.len()) {
                    return Step::NotYet;
                }
                let (end, found) = held.ends.find(&text[..limit], held.at, ends_here, schema);
                held.at = end;
                match found {
                    Seen::Found(bytes, ()) => {
                        json.push_str(&held.form.json(&text[..end], self.parameters, schema));
                        self.stage = Stage::Between;
                        Step::Read(end + bytes)
                    }
                    _ if limit < text.len() => {
                        json.push('"');
                        self.stage = Stage::Text(held.ends.clone());
                        Step::Read(0)
                    }
                    _ if over => {
                        json.push_str(&held.form.json(text, self.parameters, schema));
                        self.stage = Stage::Text(Arc::default());
                        Step::Read(text.len())
                    }
                    _ => Step::NotYet,
                }
            }
        }
    }

    /// The called tool's JSON schema.
    fn schema(&self) -> &Value {
        self.tool.map_or(&Value::Null, |tool| &self.tools[tool].parameters)
    }

    fn between(&mut self, text: &str, over: bool, around: &Around, json: &mut String) -> Step {
        let begin = after_space(text, 0);
        if begin > 0 && !self.in_content {
            return Step::Read(begin);
        }
        if text.is_empty() {
            return Step::NotYet;
        }
        let open = [self.parameters.open];
        for (markers, is_close) in [(around.close, true), (around.beyond, false)] {
            match seen(markers, text, 0, over) {
                Seen::Found(bytes, ()) => {
                    json.push_str(if self.is_first { "{}" } else { "}" });
                    return Step::Ends(if is_close { bytes } else { 0 });
                }
                Seen::Partly => return Step::NotYet,
                Seen::Nothing => {}
            }
        }
        match seen(&open, text, 0, over) {
            Seen::Found(bytes, ()) => {
                self.stage = Stage::Head(bytes);
                return Step::Read(0);
            }
            Seen::Partly => return Step::NotYet,
            Seen::Nothing => {}
        }
        let markers: Vec<&str> = [around.close, around.beyond, &open].concat();
        let first = text.chars().next().map_or(1, char::len_utf8);
        self.in_content = true;
        Step::Content(find(&markers, text, first, over).0)
    }

    /// What looked like an element is none: its marker is content, and what follows is looked at again.
    fn give_up(&mut self) -> Step {
        self.stage = Stage::Between;
        self.in_content = true;
        Step::Content(self.parameters.open.len())
    }

    fn head(&self, head: &str) -> Option<Head> {
        let Some(key) = self.parameters.key else {
            let key = head.trim();
            return (!key.is_empty()).then(|| Head { key: key.to_owned(), is_text: None });
        };
        let kind = self.parameters.kind;
        let attributes = match kind {
            Some((kind, _)) => attributes(head, &[key, kind])?,
            None => attributes(head, &[key])?,
        };
        let mut head = Head { key: String::new(), is_text: None };
        for (name, value) in attributes {
            match kind {
                _ if name == key => head.key = value,
                Some((_, text)) if value.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                    head.is_text = Some(value == text);
                }
                _ => return None,
            }
        }
        (!head.key.is_empty()).then_some(head)
    }

    fn ends(&mut self, key: &str, around: &Around) -> Arc<Ends> {
        if let Some(ends) = &self.ends {
            return ends.clone();
        }
        let mut markers: Vec<String> = match self.parameters.closes {
            Closes::Markers(markers) => markers.iter().map(|&marker| marker.to_owned()).collect(),
            Closes::Key(before, after) => vec![format!("{before}{key}{after}")],
        };
        let own = markers.len();
        let mut next = None;
        if self.parameters.may_stay_open {
            let keys = self.schema().get("properties").and_then(Value::as_object).into_iter().flatten();
            let head_end = self.parameters.head_ends.last();
            // A longer key is not read.
            let longest = keys.map(|(key, _)| key.len()).max().map(|longest| longest.min(MAX_HEAD));
            next = longest.zip(head_end).map(|(longest, &head_end)| NextElement {
                open: format!("\n{}", self.parameters.open),
                head_end,
                longest,
            });
            let closes = around.beyond.iter().filter(|marker| marker.starts_with("</"));
            markers.extend(closes.map(|close| format!("\n{}\n{close}", around.close.concat())));
        }
        let ends = Arc::new(Ends::new(markers, own, next));
        if matches!(self.parameters.closes, Closes::Markers(_)) {
            self.ends = Some(ends.clone());
        }
        ends
    }

    fn begin(&mut self, head: Head, around: &Around, json: &mut String) {
        json.push_str(if self.is_first { "{" } else { ", " });
        self.is_first = false;
        self.in_content = false;
        push_quoted(json, &head.key);
        json.push_str(": ");
        let ends = self.ends(&head.key, around);
        let types = Types::of(self.schema(), &head.key);
        let may_nest = matches!(self.parameters.closes, Closes::Key(..));
        let is_text = head.is_text.unwrap_or_else(|| {
            types.only_text() || (types.unknown() && self.parameters.unknown == Unknown::Text && !may_nest)
        });
        self.stage = if is_text {
            json.push('"');
            Stage::Text(ends)
        } else {
            let forced = head.is_text == Some(false);
            let form = Form { key: head.key, types, forced };
            Stage::Held(Held { form, ends, at: 0, json: Some(Scanner::new()) })
        };
    }
}

impl Held {
    /// It is JSON as far as it is there, and not at its end. Once it is known to be none, markers are looked for from its
    /// beginning. With `over` no more of it comes.
    fn is_within_json(&mut self, text: &str, over: bool) -> bool {
        let Some(scanner) = &mut self.json else { return false };
        let first = text.as_bytes().get(after_space(text, 0));
        let may_be = matches!(first, Some(b'{' | b'[')) || (first == Some(&b'"') && self.form.forced);
        if first.is_some() && !may_be {
            self.json = None;
            return false;
        }
        while let Some(&byte) = text.as_bytes().get(self.at) {
            match scanner.read(byte) {
                Scan::More | Scan::Control => self.at += 1,
                // The byte is read again.
                Scan::NoEscape => {}
                Scan::Last => {
                    self.at += 1;
                    self.json = None;
                    return false;
                }
                Scan::Before | Scan::Wrong => {
                    (self.at, self.json) = (0, None);
                    return false;
                }
            }
        }
        if over {
            (self.at, self.json) = (0, None);
        }
        !over
    }
}

impl Ends {
    fn new(markers: Vec<String>, own: usize, next: Option<NextElement>) -> Self {
        let opens = markers.iter().chain(next.as_ref().map(|next| &next.open));
        let mut first_bytes: Vec<u8> = opens.filter_map(|marker| marker.bytes().next()).collect();
        first_bytes.sort_unstable();
        first_bytes.dedup();
        Self { markers, own, next, first_bytes }
    }

    /// The end of the value, with the bytes of the marker to pass. `schema` is the called tool's.
    fn find(&self, text: &str, from: usize, over: bool, schema: &Value) -> (usize, Seen<()>) {
        let (own, others) = self.markers.split_at(self.own);
        for at in from..text.len() {
            if !self.first_bytes.contains(&text.as_bytes()[at]) {
                continue;
            }
            match seen(own, text, at, over) {
                Seen::Nothing => {}
                seen => return (at, seen),
            }
            let next = self.next.as_ref().map_or(Seen::Nothing, |next| next.seen(text, at, over, schema));
            match next {
                Seen::Nothing => {}
                seen => return (at, seen),
            }
            match seen(others, text, at, over) {
                Seen::Nothing => {}
                Seen::Found(..) => return (at, Seen::Found(0, ())),
                Seen::Partly => return (at, Seen::Partly),
            }
        }
        (text.len(), Seen::Nothing)
    }
}

impl NextElement {
    /// None of its bytes are to be passed.
    fn seen(&self, text: &str, at: usize, over: bool, schema: &Value) -> Seen<()> {
        let key = match seen(&[&self.open], text, at, over) {
            Seen::Found(bytes, ()) => at + bytes,
            other => return other,
        };
        let limit = key + at_most(&text[key..], self.longest + self.head_end.len());
        match find(&[self.head_end], &text[..limit], key, over || limit < text.len()) {
            (end, Seen::Found(..)) if schema["properties"].get(&text[key..end]).is_some() => {
                Seen::Found(0, ())
            }
            (_, Seen::Partly) => Seen::Partly,
            (_, Seen::Nothing) if limit == text.len() && !over && limit - key <= self.longest => Seen::Partly,
            _ => Seen::Nothing,
        }
    }
}

impl Form {
    fn json(&self, text: &str, parameters: &Parameters, root: &Value) -> String {
        if let Closes::Key(close, end) = parameters.closes {
            let mut elements = Elements { open: parameters.open, close, end, schemas: Lookups::new(root) };
            let schema = elements.schemas.property(root, &self.key);
            if let Some(json) = elements.json(text, schema, 0) {
                return json;
            }
        }
        if (self.forced || (self.types.unknown() && parameters.unknown == Unknown::Json))
            && let Some(value) = crate::json::value(text)
        {
            return value.to_owned();
        }
        self.types.json(text)
    }
}

/// MiniMax M3's values: elements named by their keys, which may hold elements again.
struct Elements<'a> {
    open: &'a str,
    close: &'a str,
    end: &'a str,
    /// For all elements of the value, however many there are.
    schemas: Lookups<'a>,
}

impl<'a> Elements<'a> {
    /// None when the text is not made of elements.
    fn json(&mut self, text: &str, schema: Option<&'a Value>, depth: usize) -> Option<String> {
        if depth > MAX_DEPTH || !text.trim_start().starts_with(self.open) {
            return None;
        }
        let mut rest = text;
        let mut elements = Vec::new();
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                break;
            }
            let (tag, after) = rest.strip_prefix(self.open)?.split_once(self.end)?;
            if tag.is_empty() || tag.starts_with('/') {
                return None;
            }
            let (inside, after) = self.inside(tag, after)?;
            elements.push((tag, inside));
            rest = after;
        }
        let is_list = elements.iter().all(|(tag, _)| *tag == "item")
            && schema.is_none_or(|schema| schema.get("properties").is_none());
        let mut json = String::from(if is_list { "[" } else { "{" });
        for (at, (tag, inside)) in elements.into_iter().enumerate() {
            if at > 0 {
                json.push_str(", ");
            }
            let schema = match (is_list, schema) {
                (true, Some(schema)) => self.schemas.items(schema),
                (false, Some(schema)) => self.schemas.property(schema, tag),
                (_, None) => None,
            };
            if !is_list {
                push_quoted(&mut json, tag);
                json.push_str(": ");
            }
            match self.json(inside, schema, depth + 1) {
                Some(nested) => json.push_str(&nested),
                None => {
                    let types = schema.map(|schema| self.schemas.types(schema)).unwrap_or_default();
                    json.push_str(&types.json(inside));
                }
            }
        }
        json.push(if is_list { ']' } else { '}' });
        Some(json)
    }

    /// What stands before the element's closing marker, and after it. Elements of the same name may be inside.
    fn inside<'t>(&self, tag: &str, text: &'t str) -> Option<(&'t str, &'t str)> {
        let open = format!("{}{tag}{}", self.open, self.end);
        let close = format!("{}{tag}{}", self.close, self.end);
        let (mut depth, mut at, mut end) = (0, 0, text.find(&close)?);
        loop {
            match text[at..end].find(&open) {
                Some(begin) => {
                    depth += 1;
                    at += begin + open.len();
                }
                None if depth == 0 => return Some((&text[..end], &text[end + close.len()..])),
                None => {
                    depth -= 1;
                    at = end + close.len();
                    end = at + text[at..].find(&close)?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Without it a value of a megabyte looks at a schema's alternatives for each of its elements.
    #[test]
    fn all_elements_of_a_value_have_one_budget() {
        let many: Vec<Value> =
            (0..900).map(|n| json!({"properties": {(format!("p{n}")): {"type": "integer"}}})).collect();
        let root = json!({
            "properties": {"points": {"type": "array", "items": {"$ref": "#/$defs/point"}}, "any": {"anyOf": many}},
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}, "name": {"type": "string"}}}},
        });
        let parsed = |key: &str, text: &str| {
            let mut elements = Elements { open: "<", close: "</", end: ">", schemas: Lookups::new(&root) };
            let schema = elements.schemas.property(&root, key);
            let json = elements.json(text, schema, 0).expect("elements");
            (serde_json::from_str::<Value>(&json).expect("JSON"), elements.schemas.looked_at())
        };
        let (points, looked_at) = parsed("points", &"<item><x>5</x><name>5</name></item>".repeat(20_000));
        assert!(
            points.as_array().expect("a list").iter().all(|point| *point == json!({"x": 5, "name": "5"}))
        );
        // What a point is, twice, and the types of its two properties.
        assert_eq!(looked_at, 2 + 2);
        let text: String = (0..2000).map(|n| format!("<x{n}>5</x{n}>")).collect();
        let (any, looked_at) = parsed("any", &format!("<p7>5</p7>{text}<p7>6</p7><p8>6</p8>"));
        // 2,000 times 900 are not looked at, and of what was not looked at before nothing is known.
        assert_eq!(looked_at, 10_000);
        assert_eq!((&any["p7"], &any["x0"], &any["p8"]), (&json!(6), &json!("5"), &json!("6")));
    }
}
