//! What is checked and quoted of Lark grammars before llguidance reads them.

use std::collections::HashSet;

use crate::{
    error::{CompileError, Kind},
    weight::{self, Cases},
};

/// Rules and terminals of a grammar; each may name the next one.
const MOST_DEFINITIONS: usize = 1_000;

/// Uses of `&`; the time of llguidance doubles with each expression that must match together.
const MOST_INTERSECTIONS: usize = 12;

/// The choices of a rule take the square of their number: so many of them, squared, weigh one.
const CHOICES_OF_WEIGHT: usize = 8;

/// Refuses what would let text past the grammar, or bytes that are not text.
pub(crate) fn check(text: &str) -> Result<(), CompileError> {
    if text.trim().is_empty() {
        return Err(CompileError::new(Kind::Invalid, "the grammar is empty"));
    }
    for (word, why) in [
        ("x-guidance", "options of a nested schema are not for clients"),
        ("allow_invalid_utf8", "text is always UTF-8"),
        ("%json", "a schema within a grammar is not supported; send the schema itself"),
    ] {
        if let Some(at) = text.find(word) {
            return Err(CompileError::at(Kind::Unsupported, position(text, at), format!("`{word}`: {why}")));
        }
    }
    if text.matches('&').count() > MOST_INTERSECTIONS {
        let reason = format!("the grammar has more than {MOST_INTERSECTIONS} intersections (`&`)");
        return Err(CompileError::new(Kind::TooLarge, reason));
    }
    // llguidance limits how deep groups nest, but it follows names recursively. A definition takes a line.
    let is_definition = |line: &&str| line.contains(':') || line.trim_start().starts_with('%');
    if text.lines().filter(is_definition).count() > MOST_DEFINITIONS {
        return Err(CompileError::new(
            Kind::TooLarge,
            format!("the grammar has more than {MOST_DEFINITIONS} rules, terminals and statements"),
        ));
    }
    weight::check(weight(text)).map_err(|_| {
        CompileError::new(Kind::TooLarge, "the grammar's terminals have too many characters, sets or ranges")
    })
}

/// What reading the grammar costs, as [`weight::of_expression`] has it.
fn weight(text: &str) -> usize {
    let mut weight = 0_usize;
    let mut definition = Definition::default();
    let mut rest = text;
    while let Some(at) = rest.find(['"', '/', '#']) {
        weight = weight.saturating_add(definition.read(&rest[..at]));
        let (mark, inside) = (rest.as_bytes()[at], &rest[at + 1..]);
        if mark == b'#' || mark == b'/' && inside.starts_with('/') {
            rest = &inside[inside.find('\n').unwrap_or(inside.len())..];
            continue;
        }
        let mut is_escaped = false;
        let end = inside.bytes().position(|byte| {
            let ends = byte == mark && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            ends
        });
        // Without an end it is no grammar.
        let Some(end) = end else { return weight };
        rest = &inside[end + 1..];
        let flags = &rest[..rest.len() - rest.trim_start_matches(['i', 'm', 's', 'l', 'u', 'x']).len()];
        let cases = if flags.contains('i') { Cases::Both } else { Cases::Own };
        let inside = &inside[..end];
        weight = weight.saturating_add(match mark {
            b'/' => weight::of_expression(inside, cases),
            _ => weight::of_text(inside, cases),
        });
    }
    weight.saturating_add(definition.read(rest)).saturating_add(definition.weight())
}

/// The rule or terminal that is being read.
#[derive(Default)]
struct Definition {
    is_terminal: bool,
    /// What may be left out, and the choices.
    options: usize,
    bars: usize,
}

impl Definition {
    /// Goes on in text without literals and expressions. The weight of what ends in it.
    fn read(&mut self, text: &str) -> usize {
        let mut weight = 0_usize;
        let mut is_first = false;
        for character in text.chars() {
            match character {
                '\n' => is_first = true,
                '?' | '*' | '{' | '~' => self.options += 1,
                '|' => self.bars += 1,
                _ if is_first && character.is_ascii_alphabetic() => {
                    weight = weight.saturating_add(self.weight());
                    *self =
                        Definition { is_terminal: character.is_ascii_uppercase(), ..Definition::default() };
                }
                _ => {}
            }
            is_first &= character.is_whitespace() || matches!(character, '_' | '!' | '?');
        }
        weight
    }

    fn weight(&self) -> usize {
        match self.is_terminal {
            true => weight::of_options(self.options),
            false => weight::squared(self.options + self.bars, CHOICES_OF_WEIGHT),
        }
    }
}

/// `line:column`, from one.
pub(crate) fn position(text: &str, at: usize) -> String {
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("{line}:{column}")
}

/// Takes llguidance's `at 3(7): reason` or `3(7): reason` apart into `3:7` and the reason.
pub(crate) fn location(text: &str) -> (String, String) {
    let rest = text.strip_prefix("at ").unwrap_or(text);
    let parse = || {
        let (place, reason) = rest.split_once("): ")?;
        let (line, column) = place.split_once('(')?;
        let number = |digits: &str| digits.parse::<u32>().ok();
        Some((format!("{}:{}", number(line)?, number(column)?), reason.to_owned()))
    };
    parse().unwrap_or_else(|| (String::new(), text.to_owned()))
}

/// A string literal of Lark that stands for `text`.
pub(crate) fn quoted(text: &str) -> String {
    // JSON's escapes are Lark's; llguidance's lexer refuses a raw DEL.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Literals with `|` between them.
pub(crate) fn choices(texts: &[String]) -> Result<String, CompileError> {
    if texts.is_empty() {
        return Err(CompileError::new(Kind::Invalid, "a choice needs at least one text"));
    }
    let mut seen = HashSet::new();
    let mut grammar = String::new();
    for (index, text) in texts.iter().enumerate() {
        if !seen.insert(text) {
            return Err(CompileError::at(
                Kind::Invalid,
                format!("/{index}"),
                "the choice has this text twice",
            ));
        }
        if index > 0 {
            grammar.push_str(" | ");
        }
        grammar.push_str(&quoted(text));
    }
    Ok(grammar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_errors_are_found() {
        assert_eq!(location("at 3(7): no such rule"), ("3:7".into(), "no such rule".into()));
        assert_eq!(location("12(1): lexer error"), ("12:1".into(), "lexer error".into()));
        assert_eq!(location("no start rule found"), (String::new(), "no start rule found".into()));
    }

    #[test]
    fn what_would_leave_the_grammar_is_refused_with_its_place() {
        let error = check("start: a\na: %json {}").unwrap_err();
        assert_eq!((error.kind, error.path.as_str()), (Kind::Unsupported, "2:4"));
        assert!(check("start: \"a\"").is_ok());
    }

    #[test]
    fn what_takes_long_to_read_is_refused() {
        for grammar in [
            format!("start: /{}/", r"\w".repeat(20_000)),
            format!("start: {}", r"/\w/ ".repeat(20_000)),
            format!("start: \"{}\"i", "a".repeat(200_000)),
            format!("start: /{}/i", "a".repeat(200_000)),
            format!("start: \"a\" {}", "| \"a\" ".repeat(100_000)),
            format!("start: A\n\nA: {}", "\"a\"? ".repeat(10_000)),
            format!("start: \"a\"\n{}", "%ignore / /\n".repeat(2_000)),
        ] {
            assert_eq!(
                check(&grammar).map_err(|error| error.kind),
                Err(Kind::TooLarge),
                "{}",
                &grammar[..30]
            );
        }
        for grammar in [
            format!("start: A\nA: \"a\" {}", "| \"b\" ".repeat(50_000)),
            format!("start: \"{}\" # {}", "?".repeat(10_000), "?".repeat(10_000)),
            format!("start: \"a\" // {}\n  | \"\\\"{}\"", "?".repeat(10_000), "?".repeat(10_000)),
        ] {
            assert_eq!(check(&grammar), Ok(()), "{}", &grammar[..30]);
        }
    }
}
