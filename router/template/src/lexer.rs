//! Template source to tokens, with the whitespace rules of Jinja2 as transformers sets it: `trim_blocks` and
//! `lstrip_blocks`. Called by the parser.

use std::sync::Arc;

use super::text::{is_space, trim_end};

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// Text outside of tags.
    Data(Arc<str>),
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name(Arc<str>),
    Str(Arc<str>),
    Int(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

/// A template that cannot be compiled: what is wrong and in which line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct SyntaxError {
    pub line: u32,
    pub reason: String,
}

/// Longest first, where one begins like another.
const OPERATORS: [&str; 27] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";", "!",
];

pub fn tokenize(source: &str) -> Result<Vec<(Token, u32)>, SyntaxError> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    Lexer { rest: &source, line: 1, line_starting: true, tokens: Vec::new() }.run()
}

struct Lexer<'s> {
    rest: &'s str,
    line: u32,
    /// What was read last ended a line, so that blanks before a tag may be stripped.
    line_starting: bool,
    tokens: Vec<(Token, u32)>,
}

impl<'s> Lexer<'s> {
    fn run(mut self) -> Result<Vec<(Token, u32)>, SyntaxError> {
        while let Some(start) = next_tag(self.rest) {
            let kind = self.rest.as_bytes()[start + 1];
            let after = &self.rest[start + 2..];
            let sign = after.chars().next().filter(|c| matches!(c, '-' | '+'));
            let mut text = &self.rest[..start];
            match sign {
                Some('-') => text = trim_end(text),
                Some(_) => {}
                None if kind != b'{' => {
                    let line = text.rfind('\n').map_or(0, |at| at + 1);
                    if (line > 0 || self.line_starting) && text[line..].chars().all(is_space) {
                        text = &text[..line];
                    }
                }
                None => {}
            }
            if !text.is_empty() {
                self.push(Token::Data(text.into()));
            }
            // Lines are counted over what was stripped too.
            self.advance(start + 2 + sign.map_or(0, char::len_utf8));
            match kind {
                b'#' => self.comment()?,
                b'{' => {
                    self.push(Token::VariableBegin);
                    self.code("}}")?;
                    self.push(Token::VariableEnd);
                }
                _ => {
                    if let Some(length) = raw_tag(self.rest, "raw") {
                        self.advance(length);
                        self.raw()?;
                    } else {
                        self.push(Token::BlockBegin);
                        self.code("%}")?;
                        self.push(Token::BlockEnd);
                    }
                }
            }
        }
        if !self.rest.is_empty() {
            let rest = Arc::from(self.rest);
            self.push(Token::Data(rest));
            self.advance(self.rest.len());
        }
        self.push(Token::End);
        Ok(self.tokens)
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { line: self.line, reason: reason.into() })
    }

    fn advance(&mut self, bytes: usize) {
        let (done, rest) = self.rest.split_at(bytes);
        self.line += done.bytes().filter(|byte| *byte == b'\n').count() as u32;
        self.line_starting = done.ends_with('\n');
        self.rest = rest;
    }

    /// The end of a tag whose closing mark has `mark` bytes before what follows it.
    fn close(&mut self, mark: usize, sign: Option<u8>, trims_newline: bool) {
        let mut length = mark;
        let after = &self.rest[mark..];
        match sign {
            Some(b'-') => length += after.len() - after.trim_start_matches(is_space).len(),
            Some(_) => {}
            None if trims_newline && after.starts_with('\n') => length += 1,
            None => {}
        }
        self.advance(length);
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let Some(end) = self.rest.find("#}") else {
            return self.fail("a comment does not end");
        };
        let sign = self.rest.as_bytes()[..end].last().copied().filter(|byte| matches!(byte, b'-' | b'+'));
        self.close(end + 2, sign, true);
        Ok(())
    }

    fn raw(&mut self) -> Result<(), SyntaxError> {
        let mut from = 0;
        loop {
            let Some(start) = self.rest[from..].find("{%").map(|at| from + at) else {
                return self.fail("a raw block does not end");
            };
            let inner = &self.rest[start + 2..];
            let sign = inner.bytes().next().filter(|byte| matches!(byte, b'-' | b'+'));
            let inner = &inner[usize::from(sign.is_some())..];
            let name = inner.trim_start_matches(is_space);
            let end = name.strip_prefix("endraw").map(|rest| rest.trim_start_matches(is_space));
            let Some(end) = end else {
                from = start + 2;
                continue;
            };
            let end_sign = end.bytes().next().filter(|byte| matches!(byte, b'-' | b'+'));
            if !end[usize::from(end_sign.is_some())..].starts_with("%}") {
                from = start + 2;
                continue;
            }
            let mut text = &self.rest[..start];
            match sign {
                Some(b'-') => text = trim_end(text),
                Some(_) => {}
                None => {
                    let line = text.rfind('\n').map_or(0, |at| at + 1);
                    if (line > 0 || self.line_starting) && text[line..].chars().all(is_space) {
                        text = &text[..line];
                    }
                }
            }
            if !text.is_empty() {
                self.push(Token::Data(text.into()));
            }
            let mark = self.rest.len() - end.len() + usize::from(end_sign.is_some()) + 2;
            self.close(mark, end_sign, true);
            return Ok(());
        }
    }

    /// The tokens of a tag up to its `end`, which does not count inside of brackets.
    fn code(&mut self, end: &str) -> Result<(), SyntaxError> {
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let blank = self.rest.len() - self.rest.trim_start_matches(is_space).len();
            self.advance(blank);
            if open.is_empty() {
                let sign =
                    self.rest.bytes().next().filter(|byte| *byte == b'-' || (*byte == b'+' && end == "%}"));
                let mark = usize::from(sign.is_some());
                if self.rest.get(mark..).is_some_and(|rest| rest.starts_with(end)) {
                    self.close(mark + 2, sign, end == "%}");
                    return Ok(());
                }
            }
            let Some(first) = self.rest.chars().next() else {
                return self.fail(format!("a tag does not end with `{end}`"));
            };
            if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphanumeric() {
                let is_part = |c: char| c == '_' || c.is_alphanumeric();
                let length = self.rest.len() - self.rest.trim_start_matches(is_part).len();
                self.push(Token::Name(self.rest[..length].into()));
                self.advance(length);
            } else if matches!(first, '\'' | '"') {
                self.string(first)?;
            } else if let Some(operator) = OPERATORS.iter().find(|operator| self.rest.starts_with(**operator))
            {
                match *operator {
                    "(" => open.push(")"),
                    "[" => open.push("]"),
                    "{" => open.push("}"),
                    ")" | "]" | "}" if open.pop() != Some(operator) => {
                        return self.fail(format!("`{operator}` closes nothing"));
                    }
                    "!" | ";" => return self.fail(format!("`{operator}` is not known")),
                    _ => {}
                }
                self.push(Token::Operator(operator));
                self.advance(operator.len());
            } else {
                return self.fail(format!("`{first}` is not known"));
            }
        }
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        let after_dot = matches!(self.tokens.last(), Some((Token::Operator("."), _)));
        let (length, is_float) = number_length(self.rest, after_dot);
        let digits: String = self.rest[..length].chars().filter(|c| *c != '_').collect();
        let lower = digits.to_ascii_lowercase();
        let radix =
            [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find(|(prefix, _)| lower.starts_with(prefix));
        let token = match radix {
            Some((_, radix)) => i128::from_str_radix(&lower[2..], radix).ok().map(Token::Int),
            None if is_float => digits.parse().ok().map(Token::Float),
            None => digits.parse().ok().map(Token::Int),
        };
        let Some(token) = token else {
            return self.fail(format!("`{digits}` is no number that fits"));
        };
        self.push(token);
        self.advance(length);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), SyntaxError> {
        let mut escaped = false;
        let mut end = None;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == quote => {
                    end = Some(at);
                    break;
                }
                _ => {}
            }
        }
        let Some(end) = end else {
            return self.fail("a string does not end");
        };
        let Some(text) = unescape(&self.rest[1..end]) else {
            return self.fail("a string has an escape that is not valid");
        };
        self.push(Token::Str(text.into()));
        self.advance(end + 1);
        Ok(())
    }
}

/// Where the next tag begins.
fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(1))
        .find(|&at| bytes[at] == b'{' && matches!(bytes[at + 1], b'{' | b'%' | b'#'))
}

/// The length of ` raw %}` at the beginning of a block tag.
fn raw_tag(rest: &str, name: &str) -> Option<usize> {
    let after = rest.trim_start_matches(is_space).strip_prefix(name)?.trim_start_matches(is_space);
    let rest_of_it = match after.strip_prefix("-%}") {
        Some(after) => after.trim_start_matches(is_space),
        None => after.strip_prefix("%}")?,
    };
    Some(rest.len() - rest_of_it.len())
}

/// Bytes of the number that `text` begins with, and whether it is a float.
fn number_length(text: &str, after_dot: bool) -> (usize, bool) {
    let bytes = text.as_bytes();
    let run = |from: usize, is_digit: fn(u8) -> bool| {
        let mut at = from;
        while at < bytes.len() {
            if is_digit(bytes[at]) {
                at += 1;
            } else if bytes[at] == b'_' && at > from && bytes.get(at + 1).copied().is_some_and(is_digit) {
                at += 2;
            } else {
                break;
            }
        }
        at
    };
    if bytes[0] == b'0' && bytes.len() > 2 {
        let radix: Option<fn(u8) -> bool> = match bytes[1].to_ascii_lowercase() {
            b'x' => Some(|byte| byte.is_ascii_hexdigit()),
            b'o' => Some(|byte| matches!(byte, b'0'..=b'7')),
            b'b' => Some(|byte| matches!(byte, b'0' | b'1')),
            _ => None,
        };
        if let Some(is_digit) = radix {
            let end = run(2, is_digit);
            if end > 2 {
                return (end, false);
            }
        }
    }
    let whole = run(0, |byte| byte.is_ascii_digit());
    if after_dot {
        return (whole, false);
    }
    let mut end = whole;
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end = run(end + 1, |byte| byte.is_ascii_digit());
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let digits = end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if bytes.get(digits).is_some_and(u8::is_ascii_digit) {
            end = run(digits, |byte| byte.is_ascii_digit());
        }
    }
    (end, end > whole)
}

/// Python's escapes in strings. One that it does not know stays as it is written.
fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let code = |chars: &mut std::iter::Peekable<std::str::Chars>, digits: usize| {
            let hex: String = chars.by_ref().take(digits).collect();
            let valid = hex.len() == digits && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
            if valid { u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32) } else { None }
        };
        match chars.next()? {
            '\n' => {}
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'v' => out.push('\u{b}'),
            c @ ('\\' | '\'' | '"') => out.push(c),
            'x' => out.push(code(&mut chars, 2)?),
            'u' => out.push(code(&mut chars, 4)?),
            'U' => out.push(code(&mut chars, 8)?),
            c @ '0'..='7' => {
                let mut value = c.to_digit(8)?;
                for _ in 0..2 {
                    let Some(digit) = chars.peek().and_then(|c| c.to_digit(8)) else { break };
                    value = value * 8 + digit;
                    chars.next();
                }
                out.push(char::from_u32(value)?);
            }
            c => out.extend(['\\', c]),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(source: &str) -> String {
        tokenize(source)
            .unwrap()
            .into_iter()
            .filter_map(|(token, _)| match token {
                Token::Data(text) => Some(text.to_string()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn blanks_around_tags_go_as_in_jinja() {
        assert_eq!(data("a\n  {% if x %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
        assert_eq!(data("a {%- if x -%} \n b {%+ endif +%}\nc"), "ab \nc");
        assert_eq!(data("  {{ x }}\n{# y #}\nz"), "  \nz");
        assert_eq!(data("{% raw %}{{ x }}{% endraw %}!"), "{{ x }}!");
    }

    #[test]
    fn strings_and_numbers_are_pythons() {
        let tokens = |source: &str| -> Vec<Token> {
            let all = tokenize(&format!("{{{{ {source} }}}}")).unwrap();
            all[1..all.len() - 2].iter().map(|(token, _)| token.clone()).collect()
        };
        assert_eq!(tokens(r"'a\n\x41\u00e9\d'"), [Token::Str("a\nAé\\d".into())]);
        assert_eq!(
            tokens("1_000 0x1F 1e3 2.5"),
            [Token::Int(1000), Token::Int(31), Token::Float(1000.0), Token::Float(2.5)]
        );
    }

    #[test]
    fn what_does_not_end_is_an_error_with_its_line() {
        for source in ["\n{{ 'a }}", "\n{% if", "\n{# a", "\n{{ (1] }}"] {
            assert_eq!(tokenize(source).unwrap_err().line, 2, "{source}");
        }
    }
}
