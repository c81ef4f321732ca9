//! JSON as a model writes it, byte by byte: where a value ends, whether it is one, and what a client gets of it.
//!
//! Two mistakes that models make often are mended, because what is meant is certain: a control character inside a string
//! (a line break, mostly) and a backslash that begins no escape. Everything else that is wrong is told to the caller.
//! The grammar is RFC 8259. Nesting is kept in a vector and limited, so no text overflows a stack.

use serde_json::Value;

/// Objects and arrays within each other. serde_json reads 128.
pub(crate) const MAX_DEPTH: usize = 120;

/// Finds the end of one JSON value.
#[derive(Debug)]
pub(crate) struct Scanner {
    /// Open objects (`true`) and arrays, outermost first.
    open: Vec<bool>,
    expects: Expects,
}

#[derive(Clone, Copy, Debug)]
enum Expects {
    Value,
    FirstItem,
    FirstKey,
    Key,
    Colon,
    /// A comma or the end of what is innermost.
    Comma,
    Text {
        key: bool,
        escape: Escape,
    },
    Number(Number),
    Word(&'static [u8]),
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Escape {
    None,
    Backslash,
    /// Hexadecimal digits that were read after `\u`.
    Hex(u8),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scan {
    /// The byte belongs to the value, which goes on.
    More,
    /// The byte is the value's last.
    Last,
    /// The value, a number, ended before this byte.
    Before,
    /// A control character inside a string: it has to be escaped.
    Control,
    /// What began with the last backslash is no escape. The byte was not read yet.
    NoEscape,
    /// This is not JSON. The byte was not read.
    Wrong,
}

impl Scanner {
    pub(crate) fn new() -> Self {
        Self { open: Vec::new(), expects: Expects::Value }
    }

    /// Bytes of the escape that is being read, which is not known to be one yet.
    pub(crate) fn unsettled(&self) -> usize {
        match self.expects {
            Expects::Text { escape: Escape::Backslash, .. } => 1,
            Expects::Text { escape: Escape::Hex(digits), .. } => 2 + usize::from(digits),
            _ => 0,
        }
    }

    pub(crate) fn read(&mut self, byte: u8) -> Scan {
        match self.expects {
            Expects::Text { key, escape } => self.read_text(key, escape, byte),
            Expects::Number(number) => match after_digit(number, byte) {
                Some(next) => self.then(Expects::Number(next)),
                None if matches!(number, Number::Zero | Number::Digits | Number::Fraction)
                    || number == Number::ExponentDigits =>
                {
                    self.value_ended();
                    if self.open.is_empty() { Scan::Before } else { self.read(byte) }
                }
                None => Scan::Wrong,
            },
            Expects::Word(rest) if rest.first() == Some(&byte) => {
                if rest.len() == 1 {
                    self.ended()
                } else {
                    self.then(Expects::Word(&rest[1..]))
                }
            }
            Expects::Word(_) | Expects::Nothing => Scan::Wrong,
            _ if byte.is_ascii_whitespace() => Scan::More,
            Expects::FirstItem if byte == b']' => self.close(),
            Expects::Value | Expects::FirstItem => self.read_value(byte),
            Expects::FirstKey if byte == b'}' => self.close(),
            Expects::FirstKey | Expects::Key if byte == b'"' => {
                self.then(Expects::Text { key: true, escape: Escape::None })
            }
            Expects::FirstKey | Expects::Key => Scan::Wrong,
            Expects::Colon if byte == b':' => self.then(Expects::Value),
            Expects::Colon => Scan::Wrong,
            Expects::Comma => match (self.open.last(), byte) {
                (Some(true), b'}') | (Some(false), b']') => self.close(),
                (Some(true), b',') => self.then(Expects::Key),
                (Some(false), b',') => self.then(Expects::Value),
                _ => Scan::Wrong,
            },
        }
    }

    fn read_value(&mut self, byte: u8) -> Scan {
        match byte {
            b'{' | b'[' if self.open.len() == MAX_DEPTH => Scan::Wrong,
            b'{' => {
                self.open.push(true);
                self.then(Expects::FirstKey)
            }
            b'[' => {
                self.open.push(false);
                self.then(Expects::FirstItem)
            }
            b'"' => self.then(Expects::Text { key: false, escape: Escape::None }),
            b'-' => self.then(Expects::Number(Number::Minus)),
            b'0' => self.then(Expects::Number(Number::Zero)),
            b'1'..=b'9' => self.then(Expects::Number(Number::Digits)),
            b't' => self.then(Expects::Word(b"rue")),
            b'f' => self.then(Expects::Word(b"alse")),
            b'n' => self.then(Expects::Word(b"ull")),
            _ => Scan::Wrong,
        }
    }

    fn read_text(&mut self, key: bool, escape: Escape, byte: u8) -> Scan {
        let next = match (escape, byte) {
            (Escape::None, b'"') if key => return self.then(Expects::Colon),
            (Escape::None, b'"') => return self.ended(),
            (Escape::None, b'\\') => Escape::Backslash,
            (Escape::None, 0..=0x1f) => return Scan::Control,
            (Escape::None, _) => Escape::None,
            (Escape::Backslash, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Escape::None,
            (Escape::Backslash, b'u') => Escape::Hex(0),
            (Escape::Hex(3), byte) if byte.is_ascii_hexdigit() => Escape::None,
            (Escape::Hex(digits), byte) if byte.is_ascii_hexdigit() => Escape::Hex(digits + 1),
            _ => {
                self.expects = Expects::Text { key, escape: Escape::None };
                return Scan::NoEscape;
            }
        };
        self.then(Expects::Text { key, escape: next })
    }

    fn then(&mut self, expects: Expects) -> Scan {
        self.expects = expects;
        Scan::More
    }

    fn close(&mut self) -> Scan {
        self.open.pop();
        self.ended()
    }

    fn ended(&mut self) -> Scan {
        self.value_ended();
        if self.open.is_empty() { Scan::Last } else { Scan::More }
    }

    fn value_ended(&mut self) {
        self.expects = if self.open.is_empty() { Expects::Nothing } else { Expects::Comma };
    }
}

fn after_digit(number: Number, byte: u8) -> Option<Number> {
    match (number, byte) {
        (Number::Minus, b'0') => Some(Number::Zero),
        (Number::Minus, b'1'..=b'9') | (Number::Digits, b'0'..=b'9') => Some(Number::Digits),
        (Number::Zero | Number::Digits, b'.') => Some(Number::Point),
        (Number::Point | Number::Fraction, b'0'..=b'9') => Some(Number::Fraction),
        (Number::Zero | Number::Digits | Number::Fraction, b'e' | b'E') => Some(Number::Exponent),
        (Number::Exponent, b'+' | b'-') => Some(Number::ExponentSign),
        (Number::Exponent | Number::ExponentSign | Number::ExponentDigits, b'0'..=b'9') => {
            Some(Number::ExponentDigits)
        }
        _ => None,
    }
}

/// How far `copy` came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Copied {
    /// All was read but for the last bytes, an escape that may go on. The number is what was read.
    Some(usize),
    /// The value ended; the number is what was read.
    All(usize),
    /// What follows the read bytes is not JSON.
    Wrong(usize),
}

/// Copies a value's next part to `json`, mended. `text` continues where the last call said that it had read to.
pub(crate) fn copy(scanner: &mut Scanner, text: &str, json: &mut String) -> Copied {
    let bytes = text.as_bytes();
    // What a former call left is read again: an escape that was cut off.
    let mut at = scanner.unsettled().min(bytes.len());
    let mut from = 0;
    while at < bytes.len() {
        let unsettled = scanner.unsettled();
        match scanner.read(bytes[at]) {
            Scan::More => at += 1,
            Scan::Last => {
                json.push_str(&text[from..=at]);
                return Copied::All(at + 1);
            }
            Scan::Before => {
                json.push_str(&text[from..at]);
                return Copied::All(at);
            }
            Scan::Control => {
                json.push_str(&text[from..at]);
                push_escaped(json, char::from(bytes[at]));
                at += 1;
                from = at;
            }
            Scan::NoEscape => {
                json.push_str(&text[from..at - unsettled]);
                json.push('\\');
                from = at - unsettled;
            }
            Scan::Wrong => {
                json.push_str(&text[from..at]);
                return Copied::Wrong(at);
            }
        }
    }
    let end = bytes.len() - scanner.unsettled().min(bytes.len() - from);
    json.push_str(&text[from..end]);
    Copied::Some(end)
}

/// One character of a JSON string's inside.
pub(crate) fn push_escaped(json: &mut String, character: char) {
    match character {
        '"' => json.push_str("\\\""),
        '\\' => json.push_str("\\\\"),
        '\n' => json.push_str("\\n"),
        '\r' => json.push_str("\\r"),
        '\t' => json.push_str("\\t"),
        '\0'..='\x1f' => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            let code = character as usize;
            json.push_str("\\u00");
            json.push(char::from(DIGITS[code >> 4]));
            json.push(char::from(DIGITS[code & 15]));
        }
        _ => json.push(character),
    }
}

/// A text as the inside of a JSON string.
pub(crate) fn push_text(json: &mut String, text: &str) {
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte < 0x20 || byte == b'"' || byte == b'\\' {
            json.push_str(&text[from..at]);
            push_escaped(json, char::from(byte));
            from = at + 1;
        }
    }
    json.push_str(&text[from..]);
}

pub(crate) fn push_quoted(json: &mut String, text: &str) {
    json.push('"');
    push_text(json, text);
    json.push('"');
}

/// The text without white space around it, if it is one JSON value.
pub(crate) fn value(text: &str) -> Option<&str> {
    let text = text.trim();
    let mut scanner = Scanner::new();
    for (at, byte) in text.bytes().enumerate() {
        match scanner.read(byte) {
            Scan::More => {}
            Scan::Last => return (at + 1 == text.len()).then_some(text),
            _ => return None,
        }
    }
    let number = matches!(
        scanner.expects,
        Expects::Number(Number::Zero | Number::Digits | Number::Fraction | Number::ExponentDigits)
    );
    (number && scanner.open.is_empty()).then_some(text)
}

/// The text of a JSON string, quotes included; none when it is not one.
pub(crate) fn text(quoted: &str) -> Option<String> {
    serde_json::from_str(quoted).ok()
}

/// A value as Python's `json.dumps` and the templates' `tojson` write it, and so most models: with a blank behind commas and colons.
pub fn dumps(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Array(items) => format!("[{}]", list(items.iter().map(dumps).collect())),
        Value::Object(members) => {
            let one = |(key, value): (&String, &Value)| {
                let mut member = String::new();
                push_quoted(&mut member, key);
                member + ": " + &dumps(value)
            };
            format!("{{{}}}", list(members.iter().map(one).collect()))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        let text = r#"{"é\"": [1, -2.5, "a\nb", {}, []], "b": {"c": null, "d": true}}"#;
        let value: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(dumps(&value), text);
    }

    fn copy_all(parts: &[&str]) -> (String, Option<bool>) {
        let mut scanner = Scanner::new();
        let (mut json, mut text) = (String::new(), String::new());
        for part in parts {
            text.push_str(part);
            match copy(&mut scanner, &text, &mut json) {
                Copied::Some(read) => text.drain(..read),
                Copied::All(_) => return (json, Some(true)),
                Copied::Wrong(_) => return (json, Some(false)),
            };
        }
        (json, None)
    }

    #[test]
    fn a_value_ends_where_it_ends_however_it_is_cut() {
        for value in [
            r#"{"a": [1, -2.5e+3, true, null, {"b": "x\"y\\"}], "c": ""}"#,
            r#""é\u00e9\n""#,
            "[]",
            "{}",
            r#"[[[{"a":[]}],[]],"]}"]"#,
        ] {
            let with_more = format!("{value} and more");
            for cut in (0..with_more.len()).filter(|&cut| with_more.is_char_boundary(cut)) {
                let (json, ended) = copy_all(&[&with_more[..cut], &with_more[cut..]]);
                assert_eq!((json.as_str(), ended), (value, Some(true)), "{with_more} at {cut}");
            }
        }
    }

    #[test]
    fn line_breaks_and_backslashes_in_strings_are_mended_however_they_are_cut() {
        let text = "{\"a\": \"x\ny\\d\\u12g\\'é\\\n\", \"b\": 1}";
        let mended = r#"{"a": "x\ny\\d\\u12g\\'é\\\n", "b": 1}"#;
        serde_json::from_str::<serde_json::Value>(mended).expect("mended JSON is JSON");
        let bytes = (1..text.len()).filter(|&cut| text.is_char_boundary(cut));
        for cut in bytes {
            assert_eq!(copy_all(&[&text[..cut], &text[cut..]]), (mended.to_owned(), Some(true)), "at {cut}");
        }
    }

    #[test]
    fn what_is_no_json_is_told_where_it_begins() {
        for (text, copied) in [
            ("{'a': 1}", "{"),
            ("{\"a\": 1,}", "{\"a\": 1,"),
            ("[1 2]", "[1 "),
            ("{\"a\": 01}", "{\"a\": 0"),
            ("{\"a\": NaN}", "{\"a\": "),
            ("{\"a\": trve}", "{\"a\": tr"),
            ("}", ""),
        ] {
            assert_eq!(copy_all(&[text]), (copied.to_owned(), Some(false)));
        }
        assert_eq!(copy_all(&["[".repeat(MAX_DEPTH + 1).as_str()]).1, Some(false));
    }

    #[test]
    fn values_are_told_from_texts() {
        for good in ["1", " -0.5e3 ", "\"a\"", "[1, 2]", "null", "{\"a\": {}}"] {
            assert_eq!(value(good), Some(good.trim()));
        }
        for bad in ["", "a", "1 2", "-", "1.", "\"a", "[1", "{} {}", "tru"] {
            assert_eq!(value(bad), None, "{bad}");
        }
    }
}
