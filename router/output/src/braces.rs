//! Arguments as Gemma 4 and FunctionGemma write them: `{city:<|"|>Paris<|"|>,days:3,near:[{lat:1.5}]}`. Keys have no
//! quotes, and strings stand between two of one marker, without escapes.
//!
//! `ObjectEnd` finds where the object ends while it comes; `object` then makes JSON of it in one pass.

use crate::json;
use crate::python::End;

const MAX_DEPTH: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct ObjectEnd {
    depth: usize,
    quoted: bool,
}

impl ObjectEnd {
    /// Looks on from `at`, which moves past what was read; the first byte that it sees is the opening brace.
    pub(crate) fn find(&mut self, text: &str, at: &mut usize, quote: &str, over: bool) -> End {
        let bytes = text.as_bytes();
        while let Some(&byte) = bytes.get(*at) {
            let rest = &bytes[*at..];
            if rest.starts_with(quote.as_bytes()) {
                self.quoted = !self.quoted;
                *at += quote.len();
                continue;
            }
            if !over && quote.as_bytes().starts_with(rest) {
                return End::NotYet;
            }
            *at += 1;
            match byte {
                _ if self.quoted => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth == 0 => return End::Never,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return End::Found;
                    }
                }
                _ => {}
            }
        }
        End::NotYet
    }
}

/// A whole object, braces included, as JSON.
pub(crate) fn object(text: &str, quote: &str) -> Option<String> {
    let mut reader = Reader { text, at: 0, quote, json: String::with_capacity(text.len() * 2) };
    reader.object(0)?;
    (reader.at == text.len()).then_some(reader.json)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    quote: &'a str,
    json: String,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, marker: &str) -> Option<()> {
        self.rest().starts_with(marker).then(|| self.at += marker.len())
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.space();
        if self.take(self.quote).is_some() {
            let text = self.quoted()?;
            json::push_quoted(&mut self.json, text);
        } else if self.rest().starts_with('{') {
            self.object(depth)?;
        } else if self.rest().starts_with('[') {
            self.array(depth)?;
        } else {
            let bare = self.until([',', '}', ']']).trim();
            match json::value(bare) {
                Some(value) if !bare.starts_with('"') => self.json.push_str(value),
                _ if bare.is_empty() => return None,
                _ => json::push_quoted(&mut self.json, bare),
            }
        }
        Some(())
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let end = rest.find(self.quote)?;
        self.at += end + self.quote.len();
        Some(&rest[..end])
    }

    fn until<const N: usize>(&mut self, ends: [char; N]) -> &'a str {
        let rest = self.rest();
        let found = &rest[..rest.find(ends).unwrap_or(rest.len())];
        self.at += found.len();
        found
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.take("{")?;
        self.json.push('{');
        let begin = self.json.len();
        loop {
            self.space();
            if self.take("}").is_some() {
                self.json.push('}');
                return Some(());
            }
            if self.json.len() > begin {
                self.json.push_str(", ");
            }
            let key = if self.take(self.quote).is_some() {
                self.quoted()?
            } else {
                self.until([':', ',', '}']).trim()
            };
            if key.is_empty() {
                return None;
            }
            json::push_quoted(&mut self.json, key);
            self.space();
            self.take(":")?;
            self.json.push_str(": ");
            self.value(depth + 1)?;
            self.space();
            if !self.rest().starts_with('}') {
                self.take(",")?;
            }
        }
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.take("[")?;
        self.json.push('[');
        let begin = self.json.len();
        loop {
            self.space();
            if self.take("]").is_some() {
                self.json.push(']');
                return Some(());
            }
            if self.json.len() > begin {
                self.json.push_str(", ");
            }
            self.value(depth + 1)?;
            self.space();
            if !self.rest().starts_with(']') {
                self.take(",")?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const QUOTE: &str = "<|\"|>";

    #[test]
    fn objects_become_json() {
        for (text, expected) in [
            ("{}", json!({})),
            (
                "{a:<|\"|>x, }\"\n<|\"|>,b:3,c:true,d:null,e:-1.5}",
                json!({"a": "x, }\"\n", "b": 3, "c": true, "d": null, "e": -1.5}),
            ),
            (
                "{a:[1,<|\"|>two<|\"|>,[]],b:{c:{d:[{}]}}}",
                json!({"a": [1, "two", []], "b": {"c": {"d": [{}]}}}),
            ),
            ("{ <|\"|>a b<|\"|> : bare words , c : 1 }", json!({"a b": "bare words", "c": 1})),
        ] {
            let json = object(text, QUOTE).unwrap_or_else(|| panic!("{text} is an object"));
            assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), expected, "{text}");
        }
        let deep = "{a:".repeat(200) + "1" + &"}".repeat(200);
        for text in ["", "{", "{a}", "{a:}", "{a:1 b:2}x", "{:1}", "{a:<|\"|>x}", "{a:1}}", &deep] {
            assert_eq!(object(text, QUOTE), None, "{text}");
        }
    }

    #[test]
    fn an_object_ends_at_its_brace_however_it_is_cut() {
        let text = "{a:<|\"|>}<|<|\"|>,b:[{c:1}]} and more";
        let end = text.find(" and").expect("it is there");
        for cut in 0..text.len() {
            let (mut object, mut at) = (ObjectEnd::default(), 0);
            if object.find(&text[..cut], &mut at, QUOTE, false) == End::NotYet {
                assert_eq!(object.find(text, &mut at, QUOTE, true), End::Found, "cut at {cut}");
            }
            assert_eq!(at, end, "cut at {cut}");
        }
    }
}
