//! What is checked and quoted of Lark grammars before llguidance reads them.

use std::collections::HashSet;

use crate::error::{CompileError, Kind};

/// Rules and terminals of a grammar; each may name the next one.
const MOST_DEFINITIONS: usize = 1_000;

/// Uses of `&`; the time of llguidance doubles with each expression that must match together.
const MOST_INTERSECTIONS: usize = 12;

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
    let definitions = text.lines().filter(|line| line.contains(':')).count();
    if definitions > MOST_DEFINITIONS {
        return Err(CompileError::new(
            Kind::TooLarge,
            format!("the grammar has more than {MOST_DEFINITIONS} rules and terminals"),
        ));
    }
    Ok(())
}

/// `line:column`, from one.
fn position(text: &str, at: usize) -> String {
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
}
