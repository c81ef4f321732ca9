//! Python's literals and calls, as models write them: `get_weather(city='Paris', days=3)`.
//!
//! `CallEnd` finds where a call ends while it comes; `arguments` and `literal` then make JSON of it in one pass. Literals
//! are Python's (strings with prefixes, three quotes and escapes; numbers; lists, tuples, dictionaries) and JSON's words
//! `true`, `false` and `null`, because models that see schemas mix them.

use crate::json::{self, push_quoted};

const MAX_DEPTH: usize = 64;

/// Finds the parenthesis that ends a call.
#[derive(Debug, Default)]
pub(crate) struct CallEnd {
    depth: usize,
    quote: Option<Quote>,
}

/// Whether the end of something was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    /// It is right before the position.
    Found,
    NotYet,
    /// What was read cannot be the beginning of it.
    Never,
}

#[derive(Clone, Copy, Debug)]
struct Quote {
    byte: u8,
    three: bool,
}

impl CallEnd {
    /// Looks on from `at`, which moves past what was read. With `over` there is no more text.
    pub(crate) fn find(&mut self, text: &str, at: &mut usize, over: bool) -> End {
        let bytes = text.as_bytes();
        while let Some(&byte) = bytes.get(*at) {
            let rest = bytes.len() - *at;
            match self.quote {
                // Two more bytes say whether a quote is one of three.
                _ if matches!(byte, b'"' | b'\'') && rest < 3 && !over && self.needs_three(byte) => {
                    return End::NotYet;
                }
                Some(_) if byte == b'\\' && rest < 2 => return End::NotYet,
                Some(_) if byte == b'\\' => *at += 2,
                Some(quote) if byte == quote.byte && !quote.three => {
                    self.quote = None;
                    *at += 1;
                }
                Some(quote) if byte == quote.byte && bytes[*at..].starts_with(&[byte; 3]) => {
                    self.quote = None;
                    *at += 3;
                }
                Some(_) => *at += 1,
                None if matches!(byte, b'"' | b'\'') => {
                    let three = bytes[*at..].starts_with(&[byte; 3]);
                    self.quote = Some(Quote { byte, three });
                    *at += if three { 3 } else { 1 };
                }
                None => {
                    *at += 1;
                    match byte {
                        b'(' | b'[' | b'{' => self.depth += 1,
                        b')' if self.depth == 0 => return End::Found,
                        b']' | b'}' if self.depth == 0 => return End::Never,
                        b')' | b']' | b'}' => self.depth -= 1,
                        _ => {}
                    }
                }
            }
        }
        End::NotYet
    }

    fn needs_three(&self, byte: u8) -> bool {
        self.quote.is_none_or(|quote| quote.three && quote.byte == byte)
    }
}

/// What stands between a call's parentheses, keyword arguments, as a JSON object.
pub(crate) fn arguments(text: &str) -> Option<String> {
    let mut reader = Reader { text, at: 0, json: String::with_capacity(text.len() + 2) };
    reader.json.push('{');
    reader.space();
    while reader.at < text.len() {
        let name = reader.name()?;
        if reader.json.len() > 1 {
            reader.json.push_str(", ");
        }
        push_quoted(&mut reader.json, name);
        reader.json.push_str(": ");
        reader.space();
        reader.take(b'=')?;
        reader.value(0)?;
        reader.space();
        if reader.at < text.len() {
            reader.take(b',')?;
            reader.space();
        }
    }
    reader.json.push('}');
    Some(reader.json)
}

/// One literal as JSON.
pub(crate) fn literal(text: &str) -> Option<String> {
    let mut reader = Reader { text, at: 0, json: String::with_capacity(text.len()) };
    reader.value(0)?;
    reader.space();
    (reader.at == text.len()).then_some(reader.json)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    json: String,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek() == Some(byte)).then(|| self.at += 1)
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Any word: models have parameters named `from` and `class`, which Python would not take.
    fn name(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let end = rest.find(|character: char| !character.is_alphanumeric() && !"_-.".contains(character));
        let name = &rest[..end.unwrap_or(rest.len())];
        self.at += name.len();
        (!name.is_empty()).then_some(name)
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.space();
        match self.peek()? {
            b'[' => self.items(b']', depth),
            b'(' => self.items(b')', depth),
            b'{' => self.entries(depth),
            b'"' | b'\'' => {
                let text = self.strings()?;
                push_quoted(&mut self.json, &text);
                Some(())
            }
            b'+' | b'-' | b'.' | b'0'..=b'9' => self.number(),
            _ => self.word(),
        }
    }

    fn items(&mut self, close: u8, depth: usize) -> Option<()> {
        self.at += 1;
        self.json.push('[');
        let begin = self.json.len();
        loop {
            self.space();
            if self.take(close).is_some() {
                self.json.push(']');
                return Some(());
            }
            if self.json.len() > begin {
                self.json.push_str(", ");
            }
            self.value(depth + 1)?;
            self.space();
            if self.peek()? != close {
                self.take(b',')?;
            }
        }
    }

    fn entries(&mut self, depth: usize) -> Option<()> {
        self.at += 1;
        self.json.push('{');
        let begin = self.json.len();
        loop {
            self.space();
            if self.take(b'}').is_some() {
                self.json.push('}');
                return Some(());
            }
            if self.json.len() > begin {
                self.json.push_str(", ");
            }
            let key = self.json.len();
            self.value(depth + 1)?;
            match self.json.as_bytes()[key] {
                b'"' => {}
                b'[' | b'{' => return None,
                // JSON's keys are texts.
                _ => {
                    self.json.insert(key, '"');
                    self.json.push('"');
                }
            }
            self.space();
            self.take(b':')?;
            self.json.push_str(": ");
            self.value(depth + 1)?;
            self.space();
            if self.peek()? != b'}' {
                self.take(b',')?;
            }
        }
    }

    fn word(&mut self) -> Option<()> {
        let word = self.name()?;
        if matches!(self.peek(), Some(b'"' | b'\'')) && word.len() <= 2 {
            let raw = word.contains(['r', 'R']);
            if !word.bytes().all(|byte| b"rRuUfFbB".contains(&byte)) || word.contains(['f', 'F', 'b', 'B']) {
                return None;
            }
            let text = self.string(raw)?;
            push_quoted(&mut self.json, &text);
            return Some(());
        }
        self.json.push_str(match word {
            "True" | "true" => "true",
            "False" | "false" => "false",
            "None" | "null" => "null",
            _ => return None,
        });
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        let rest = &self.text[self.at..];
        let end =
            rest.find(|character: char| !character.is_ascii_alphanumeric() && !"+-._".contains(character));
        let written = &rest[..end.unwrap_or(rest.len())];
        self.at += written.len();
        let digits = written.replace('_', "");
        let digits = digits.strip_prefix('+').unwrap_or(&digits);
        if let Some(number) = json::value(digits) {
            self.json.push_str(number);
            return Some(());
        }
        let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
        // 007, .5 and 5. are numbers here and not in JSON.
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let whole = whole.trim_start_matches('0');
        let whole = if whole.is_empty() || whole.starts_with(['e', 'E']) {
            format!("0{whole}")
        } else {
            whole.to_owned()
        };
        let number = match fraction {
            "" => format!("{sign}{whole}"),
            _ => format!("{sign}{whole}.{fraction}"),
        };
        self.json
            .push_str(json::value(&number).filter(|_| digits.bytes().any(|byte| byte.is_ascii_digit()))?);
        Some(())
    }

    /// Strings side by side are one.
    fn strings(&mut self) -> Option<String> {
        let mut text = self.string(false)?;
        loop {
            let end = self.at;
            self.space();
            if !matches!(self.peek(), Some(b'"' | b'\'')) {
                self.at = end;
                return Some(text);
            }
            text.push_str(&self.string(false)?);
        }
    }

    fn string(&mut self, raw: bool) -> Option<String> {
        let quote = self.peek()?;
        let three = self.text.as_bytes()[self.at..].starts_with(&[quote; 3]);
        let quotes = if three { 3 } else { 1 };
        self.at += quotes;
        let mut text = String::new();
        loop {
            let rest = &self.text[self.at..];
            let end = rest.find([char::from(quote), '\\'])?;
            text.push_str(&rest[..end]);
            self.at += end;
            let rest = &rest.as_bytes()[end..];
            if rest[0] == quote {
                if !three || rest.starts_with(&[quote; 3]) {
                    self.at += quotes;
                    return Some(text);
                }
                text.push(char::from(quote));
                self.at += 1;
            } else if raw {
                text.push('\\');
                self.at += 1;
                let next = self.text[self.at..].chars().next()?;
                text.push(next);
                self.at += next.len_utf8();
            } else {
                self.at += 1;
                self.escape(&mut text)?;
            }
        }
    }

    /// After a backslash. What is no escape is kept as it is: models write paths and expressions between quotes without escaping them.
    fn escape(&mut self, text: &mut String) -> Option<()> {
        let character = self.text[self.at..].chars().next()?;
        self.at += character.len_utf8();
        match character {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'a' => text.push('\x07'),
            'b' => text.push('\x08'),
            'f' => text.push('\x0c'),
            'v' => text.push('\x0b'),
            '\\' | '\'' | '"' => text.push(character),
            '\n' => {}
            '0'..='7' => {
                let digits = self.text.as_bytes()[self.at - 1..].iter().take(3);
                let count = digits.take_while(|byte| matches!(byte, b'0'..=b'7')).count();
                let code = u32::from_str_radix(&self.text[self.at - 1..self.at - 1 + count], 8).ok()?;
                self.at += count - 1;
                text.push(char::from_u32(code)?);
            }
            'x' | 'u' | 'U' => {
                let begin = self.at;
                match self.coded(character) {
                    Some(coded) => text.push(coded),
                    None => {
                        self.at = begin;
                        text.push('\\');
                        text.push(character);
                    }
                }
            }
            _ => {
                text.push('\\');
                text.push(character);
            }
        }
        Some(())
    }

    /// The character whose number follows.
    fn coded(&mut self, escape: char) -> Option<char> {
        let code = self.hex(match escape {
            'x' => 2,
            'u' => 4,
            _ => 8,
        })?;
        let is_high = escape == 'u' && (0xd800..0xdc00).contains(&code);
        if is_high && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            let low = self.hex(4)?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
            return char::from_u32(0x10000 + ((code - 0xd800) << 10) + low);
        }
        char::from_u32(code)
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let written = self.text.get(self.at..self.at + digits)?;
        self.at += digits;
        if !written.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        u32::from_str_radix(written, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn literals_are_read_as_python_reads_them() {
        for (text, expected) in [
            ("'a'", json!("a")),
            (r#""it's""#, json!("it's")),
            (r"'it\'s\n\x41\u00e9\101\d'", json!("it's\nAéA\\d")),
            (r"'\ud83d\ude00'", json!("😀")),
            (r"'C:\users\x\U \ud83d \ud83d\u0041'", json!(r"C:\users\x\U \ud83d \ud83dA")),
            ("'''a 'b' \"c\"\nd'''", json!("a 'b' \"c\"\nd")),
            ("'a' \"b\"", json!("ab")),
            (r"r'\d'", json!("\\d")),
            ("''", json!("")),
            ("[1, -2.5, 1e3, True, null, None, ()]", json!([1, -2.5, 1e3, true, null, null, []])),
            ("{'a': {1: [2]}, \"b\": false,}", json!({"a": {"1": [2]}, "b": false})),
            ("007", json!(7)),
            (".5", json!(0.5)),
            ("5.", json!(5)),
            ("1_000", json!(1000)),
            ("+3", json!(3)),
        ] {
            let json = literal(text).unwrap_or_else(|| panic!("{text} is a literal"));
            assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_literal_is_refused() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in [
            "", "a", "1 + 2", "f'a'", "b'a'", "'a", "[1", "[1 2]", "{'a' 1}", "{[1]: 2}", "1j", "0x", "-",
            ".", &deep,
        ] {
            assert_eq!(literal(text), None, "{text}");
        }
    }

    #[test]
    fn calls_end_at_their_parenthesis_however_they_are_cut() {
        let text = "a='(\\')', b=\"\"\" ) \" \"\"\", c=[(1)], d='', e=\"\") and more";
        let end = text.find(" and").expect("it is there");
        for cut in 0..text.len() {
            let (mut call, mut at) = (CallEnd::default(), 0);
            if call.find(&text[..cut], &mut at, false) == End::NotYet {
                assert_eq!(call.find(text, &mut at, true), End::Found, "cut at {cut}");
            }
            assert_eq!(at, end, "cut at {cut}");
        }
        let json = arguments(&text[..end - 1]).expect("arguments");
        let expected = json!({"a": "(')", "b": " ) \" ", "c": [[1]], "d": "", "e": ""});
        assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), expected);
    }

    #[test]
    fn arguments_need_names() {
        assert_eq!(arguments("").as_deref(), Some("{}"));
        assert_eq!(arguments(" from = 1 ,").as_deref(), Some("{\"from\": 1}"));
        for text in ["1", "a", "a=", "a=1 b=2", "=1", "a=b", "**{}"] {
            assert_eq!(arguments(text), None, "{text}");
        }
    }
}
