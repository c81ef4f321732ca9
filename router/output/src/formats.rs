//! What formats are made of: markers, where a call's name stands, how arguments are written. A format is a table of this,
//! in `tables.rs`; `parser.rs` and the readers know the parts and no format by name.
//!
//! In every list of markers one that begins with another stands before it.

/// How a family of models writes tool calls.
#[derive(Debug)]
pub struct ToolFormat {
    pub name: &'static str,
    /// Other names: vLLM's, SGLang's.
    pub aliases: &'static [&'static str],
    /// A chat template that has all texts of one of these is for this format.
    pub(crate) signs: &'static [&'static [&'static str]],
    pub(crate) section: Option<Section>,
    /// Of those that begin with the same marker the first that fits is taken.
    pub(crate) calls: &'static [Call],
    /// Markers that enclose an answer's content. They are left out.
    pub(crate) silent: &'static [&'static str],
    /// Ends an answer without calls, as every message of the template ends. It is left out. Empty: nothing does.
    pub(crate) end: &'static str,
    /// Tokens that end an answer, also where the model's files do not say so.
    pub stop_tokens: &'static [&'static str],
}

impl ToolFormat {
    /// The whole answer is made of channels: GPT-OSS.
    pub(crate) fn has_channels(&self) -> bool {
        matches!(self.calls[0].body, Body::Harmony)
    }

    /// The whole answer is made of messages of one kind each: Inkling.
    pub(crate) fn has_messages(&self) -> bool {
        matches!(self.calls[0].body, Body::Inkling)
    }

    /// Markers of calls within reasoning: those that stand before all calls. Of a format whose calls may do without there are
    /// none.
    pub(crate) fn marks_in_reasoning(&self) -> impl Iterator<Item = &'static str> {
        let is_marked = !self.calls.iter().any(|call| call.open.contains(&""));
        let sections = self.section.iter().flat_map(|section| section.open);
        let calls = self.calls.iter().filter(|_| self.section.is_none()).flat_map(|call| call.open);
        sections.chain(calls).copied().filter(move |_| is_marked)
    }
}

/// How a family of models writes reasoning.
#[derive(Debug)]
pub struct ReasoningFormat {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub(crate) signs: &'static [&'static [&'static str]],
    pub(crate) open: &'static [&'static str],
    pub(crate) close: &'static [&'static str],
    pub(crate) ends_at_call: EndsAtCall,
    pub(crate) silent: &'static [&'static str],
    /// What a prompt ends with that has the model not reason; none: what closes reasoning. White space at its end ends the head
    /// of the answer's message.
    pub(crate) off: &'static [&'static str],
}

impl ReasoningFormat {
    /// As `ToolFormat::has_channels`.
    pub(crate) fn has_channels(&self) -> bool {
        self.open.is_empty()
    }

    /// Where a prompt leaves it to the model whether to reason, the answer begins with the rest of its message's head: white space
    /// before a text is no part of it.
    pub(crate) fn begins_in_head(&self) -> bool {
        self.off.iter().any(|off| off.ends_with(char::is_whitespace))
    }
}

/// Whether a call within reasoning ends it, which then was not closed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EndsAtCall {
    /// It is reasoning.
    Never,
    /// If the answer ends with it: models forget to close reasoning, and they also try out calls within it.
    IfLast,
    /// The model goes from reasoning to calls without closing it.
    Always,
}

/// What stands around all calls. Calls without it are calls too.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) open: &'static [&'static str],
    pub(crate) close: &'static [&'static str],
}

#[derive(Debug)]
pub(crate) struct Call {
    /// The empty marker: a call may begin where the answer does.
    pub(crate) open: &'static [&'static str],
    /// May be missing from the text.
    pub(crate) close: &'static [&'static str],
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    /// `{"name": "f", "arguments": {}}`, or a list of these.
    Envelope(Envelope),
    /// A name, then arguments.
    Named(Name, Arguments),
    /// `f(a=1)`, or a list of these.
    Python,
    /// GPT-OSS: channels and recipients, in `harmony.rs`.
    Harmony,
    /// Inkling: messages of one kind each, in `inkling.rs`.
    Inkling,
}

#[derive(Debug)]
pub(crate) struct Envelope {
    /// Keys of the name. None: the name is itself the key, and its value the arguments.
    pub(crate) name: &'static [&'static str],
    pub(crate) arguments: &'static [&'static str],
    /// A call without arguments may leave them out.
    pub(crate) optional_arguments: bool,
}

/// Where a name ends, and what stands around it.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) ends: &'static [&'static str],
    /// End the name too, and belong to what follows.
    pub(crate) stops: &'static [&'static str],
    /// The name is the value of this attribute: `name="f"`.
    pub(crate) attribute: Option<&'static str>,
    pub(crate) prefix: &'static str,
    /// Stands between the call's id and the name.
    pub(crate) id_end: Option<&'static str>,
    /// The name ends before the last of these.
    pub(crate) cut: Option<&'static str>,
}

#[derive(Debug)]
pub(crate) enum Arguments {
    Json,
    Parameters(Parameters),
    /// An object with bare keys; strings stand between two of this marker.
    Braces(&'static str),
}

/// One element for each argument. Its value ends at its own closing marker.
#[derive(Debug)]
pub(crate) struct Parameters {
    pub(crate) open: &'static str,
    pub(crate) head_ends: &'static [&'static str],
    /// The key is the value of this attribute; none: it is the head.
    pub(crate) key: Option<&'static str>,
    /// An attribute, and its value for texts. Other values are JSON.
    pub(crate) kind: Option<(&'static str, &'static str)>,
    /// Stands between head and value, after white space.
    pub(crate) value_open: Option<&'static str>,
    pub(crate) closes: Closes,
    /// Models leave the closing marker out. A value then ends before a line that begins the element of another argument
    /// that the tool has, and before lines that close the call and its section.
    pub(crate) may_stay_open: bool,
    /// What a value is when the schema does not say.
    pub(crate) unknown: Unknown,
}

#[derive(Debug)]
pub(crate) enum Closes {
    Markers(&'static [&'static str]),
    /// These two with the key between them; what is inside may be elements again (`open`), of an object or, when they
    /// are all `item`, of a list.
    Key(&'static str, &'static str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unknown {
    Text,
    /// JSON if it is, else a text.
    Json,
}

/// What stands at a place of the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Seen<T> {
    /// A marker of this many bytes.
    Found(usize, T),
    /// A marker's beginning, and more text may come.
    Partly,
    Nothing,
}

/// Looks for one of `markers` at `at`. With `over` no more text comes.
pub(crate) fn seen<M: AsRef<str>>(markers: &[M], text: &str, at: usize, over: bool) -> Seen<()> {
    let rest = &text.as_bytes()[at..];
    for marker in markers {
        let marker = marker.as_ref().as_bytes();
        if rest.starts_with(marker) {
            return Seen::Found(marker.len(), ());
        }
        if !over && marker.starts_with(rest) {
            return Seen::Partly;
        }
    }
    Seen::Nothing
}

/// The next place at or after `from` where one of `markers` stands or begins.
pub(crate) fn find(markers: &[&str], text: &str, from: usize, over: bool) -> (usize, Seen<()>) {
    for at in from..text.len() {
        let byte = text.as_bytes()[at];
        if markers.iter().any(|marker| marker.as_bytes().first() == Some(&byte)) {
            match seen(markers, text, at, over) {
                Seen::Nothing => {}
                seen => return (at, seen),
            }
        }
    }
    (text.len(), Seen::Nothing)
}

/// Where the white space that begins at `at` ends.
pub(crate) fn after_space(text: &str, at: usize) -> usize {
    let rest = &text.as_bytes()[at..];
    at + rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// The end of the longest part of `text` with at most this many bytes.
pub(crate) fn at_most(text: &str, bytes: usize) -> usize {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// What `name="f" string="true"` holds, with or without quotes. None when it is not made of attributes of these names.
pub(crate) fn attributes<'a>(head: &'a str, names: &[&str]) -> Option<Vec<(&'a str, String)>> {
    let mut rest = head.trim();
    let mut attributes = Vec::new();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        let (key, after) = (key.trim(), after.trim_start());
        let end = match after.chars().next()? {
            quote @ ('"' | '\'') => 2 + after[1..].find(quote)?,
            _ => after.find(char::is_whitespace).unwrap_or(after.len()),
        };
        let value = after[..end].trim_matches(['"', '\'']);
        if !names.contains(&key) {
            return None;
        }
        attributes.push((key, value.replace("&quot;", "\"").replace("&amp;", "&")));
        rest = after[end..].trim_start();
    }
    Some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_in_any_order() {
        let names = ["name", "string"];
        for head in ["name=\"f\" string=\"true\"", " name='f' string='true' ", "name=f string=true"] {
            let expected = vec![("name", "f".to_owned()), ("string", "true".to_owned())];
            assert_eq!(attributes(head, &names), Some(expected), "{head}");
            assert_eq!(attributes(head, &["name"]), None, "{head}");
        }
        let escaped = attributes("name=\"a &quot;b&quot; &amp;quot;\"", &names);
        assert_eq!(escaped, Some(vec![("name", "a \"b\" &quot;".to_owned())]));
        for head in ["name=\"f", "name", "name=\"f\" and more", "name="] {
            assert_eq!(attributes(head, &names), None, "{head}");
        }
    }
}
