//! Regular expressions in the syntax of llguidance: those that a client sends as a whole grammar, and what expressions are written
//! of. `ecma` translates JSON schema's, `complement` and `other_texts` write opposites, `weight` says what reading one costs.

use std::borrow::Cow;

use llguidance::derivre::RegexBuilder;
use regex_syntax::{
    ast::{self, Ast, RepetitionKind},
    hir::{ClassUnicode, ClassUnicodeRange},
};

use crate::weight::{self, Cases};

/// Matches nothing.
pub(crate) const NOTHING: &str = r"[^\x00-\u{10FFFF}]";
/// What `can_be_written` says no of, as the inside of a class.
pub(crate) const UNWRITTEN: &str = r"\x00-\x07\x0B\x0E-\x1F\x7F";
/// The largest count in a repetition.
const MOST_REPETITIONS: u32 = 100_000;

/// A client's expression for the whole text, ready to stand between the slashes of a Lark terminal.
pub(crate) fn whole_text(expression: &str) -> Result<String, String> {
    check_repetitions(expression)?;
    weight::check(weight::of_expression(expression, Cases::Own))?;
    let unnamed = expression.replace("(?P<stop>", "(?:").replace("(?<stop>", "(?:");
    let unnamed = with_least_counts(&unnamed);
    RegexBuilder::new().mk_regex(&unnamed).map_err(|cause| reason(&cause.to_string()))?;
    if unnamed.is_empty() {
        return Ok("(?:)".into());
    }
    Ok(llguidance::regex_to_lark(&unnamed, ""))
}

/// The expression with `{0,n}` for `{,n}`, which TGI read so, as Python does, and regex-syntax does not by itself. An expression of
/// ECMAScript, where `{,n}` stands for itself, comes here with the brace escaped.
fn with_least_counts(expression: &str) -> Cow<'_, str> {
    if !expression.contains("{,") {
        return expression.into();
    }
    let Ok(tree) = ast::parse::ParserBuilder::new().empty_min_range(true).build().parse(expression) else {
        // What is wrong is told by whoever reads it next.
        return expression.into();
    };
    let braces = ast::visit(&tree, Braces { expression, without_least: Vec::new() });
    let mut written = expression.to_owned();
    for brace in braces.unwrap_or_default().into_iter().rev() {
        written.insert(brace + 1, '0');
    }
    written.into()
}

/// Finds the braces of repetitions that lack the lower count.
struct Braces<'e> {
    expression: &'e str,
    without_least: Vec<usize>,
}

impl ast::Visitor for Braces<'_> {
    type Output = Vec<usize>;
    type Err = std::convert::Infallible;

    fn visit_post(&mut self, ast: &Ast) -> Result<(), Self::Err> {
        if let Ast::Repetition(repetition) = ast
            && let RepetitionKind::Range(_) = repetition.op.kind
        {
            let brace = repetition.op.span.start.offset;
            if self.expression[brace..].starts_with("{,") {
                self.without_least.push(brace);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<usize>, Self::Err> {
        self.without_least.sort_unstable();
        Ok(self.without_least)
    }
}

/// What `ecma` gives, an expression that may match anywhere, as one for the whole text, ready for a Lark terminal.
pub(crate) fn whole_of_search(expression: &str) -> Result<String, String> {
    const ANY: &str = "(?s:.)*";
    let (flag, mut rest) = match expression.strip_prefix("(?i)") {
        Some(rest) => ("(?i)", rest),
        None => ("", expression),
    };
    let mut alternatives = Vec::new();
    loop {
        let bar = scan(rest, |depth, character| depth == 0 && character == '|');
        let one = &rest[..bar.unwrap_or(rest.len())];
        let (before, one) = one.strip_prefix('^').map_or((ANY, one), |one| ("", one));
        let is_anchor = |one: &str| one.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0;
        let (one, after) = match one.strip_suffix('$').filter(|one| is_anchor(one)) {
            Some(one) => (one, ""),
            None => (one, ANY),
        };
        alternatives.push(format!("{before}(?:{one}){after}"));
        match bar {
            Some(bar) => rest = &rest[bar + 1..],
            None => break,
        }
    }
    whole_text(&format!("{flag}(?:{})", alternatives.join("|")))
}

/// Where the strings stand that an expression is of.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Strings {
    /// Between quotes, where a control character without an escape of its own is no part of them.
    OfJson,
    /// As they are.
    Plain,
}

/// The line of regex-syntax's report that names the error.
pub(crate) fn reason(report: &str) -> String {
    let line = report.lines().find_map(|line| line.strip_prefix("error: ")).or_else(|| report.lines().next());
    let line = line.unwrap_or_default();
    if line.contains("lookaround") {
        "the expression has an anchor or a word boundary other than at its ends".into()
    } else {
        format!("the expression is not supported: {line}")
    }
}

/// Refuses repetitions whose counts multiply beyond what a lexer holds.
pub(crate) fn check_repetitions(expression: &str) -> Result<(), String> {
    let mut digits = String::new();
    let mut within = false;
    for character in expression.chars() {
        match character {
            '{' => (within, digits) = (true, String::new()),
            ',' | '}' if within => {
                if digits.parse::<u64>().is_ok_and(|count| count > u64::from(MOST_REPETITIONS))
                    || digits.len() > 19
                {
                    return Err(format!(
                        "a repetition of more than {MOST_REPETITIONS} times is not supported"
                    ));
                }
                digits.clear();
                within = character == ',';
            }
            '0'..='9' if within => digits.push(character),
            _ => within = false,
        }
    }
    Ok(())
}

/// Where the group ends whose inside `text` starts with: the byte of its parenthesis.
pub(crate) fn group_end(text: &str) -> Option<usize> {
    scan(text, |depth, character| depth == 0 && character == ')')
}

pub(crate) fn has_top_level_bar(text: &str) -> bool {
    scan(text, |depth, character| depth == 0 && character == '|').is_some()
}

/// The first byte outside of classes and escapes where `found` says so, given the depth of groups before it.
fn scan(text: &str, found: impl Fn(usize, char) -> bool) -> Option<usize> {
    let mut depth = 0_usize;
    let mut in_class = false;
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        match character {
            '\\' => escaped = true,
            ']' if in_class => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            _ if found(depth, character) => return Some(at),
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// Whether a string of JSON may have the character as we let it be written: without `\u`, and llguidance takes DEL for one that
/// needs it.
pub(crate) fn can_be_written(character: char) -> bool {
    !character.is_ascii_control() || matches!(character, '\x08' | '\t' | '\n' | '\x0c' | '\r')
}

/// The characters of all strings.
pub(crate) fn characters(strings: Strings) -> ClassUnicode {
    let all = ('\0'..='\x7f').filter(|one| strings == Strings::Plain || can_be_written(*one));
    let ascii = all.map(|one| ClassUnicodeRange::new(one, one));
    ClassUnicode::new(ascii.chain([ClassUnicodeRange::new('\u{80}', char::MAX)]))
}

/// An expression for exactly this string of JSON.
pub(crate) fn text_of_json(text: &str) -> String {
    if text.chars().all(can_be_written) { literal_text(text) } else { NOTHING.to_owned() }
}

/// A character that stands for itself, inside a class and outside.
pub(crate) fn literal(character: char) -> String {
    // `\<` and `\>` are ends of words in regex-syntax.
    if character.is_ascii_alphanumeric() || matches!(character, '<' | '>') {
        character.to_string()
    } else if let '\t' | '\n' | '\r' = character {
        character.escape_default().collect()
    } else if character.is_ascii_punctuation() {
        format!("\\{character}")
    } else {
        format!("\\u{{{:X}}}", character as u32)
    }
}

/// An expression for exactly this text.
pub(crate) fn literal_text(text: &str) -> String {
    text.chars().map(literal).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn a_search_is_an_expression_for_the_whole_text() {
        for (expression, good, bad) in [
            ("^[a-z]+$", "abc", "ab1"),
            ("b|^c", "abc", "ac"),
            ("a$", "cba", "ab"),
            (r"\$", "a$b", "ab"),
            ("^(?:a|b)$", "b", "ab"),
            ("(?i)^ab", "ABc", "cab"),
            ("", "anything\n", "\u{0}never"),
        ] {
            let whole = whole_of_search(expression).unwrap_or_else(|why| panic!("{expression}: {why}"));
            let mut regex = RegexBuilder::new();
            let parsed = regex.mk_regex(&whole.replace("\\/", "/")).unwrap();
            let mut regex = regex.to_regex(parsed);
            assert!(regex.is_match(good), "{expression} and {good}");
            assert!(bad.starts_with('\0') || !regex.is_match(bad), "{expression} and {bad}");
        }
        assert!(whole_of_search("(?:^a|b$)").is_err());
    }

    pub(crate) fn matches(expressions: &[String], text: &str) -> bool {
        expressions.iter().all(|expression| {
            let mut builder = RegexBuilder::new();
            let expression = builder.mk_regex_for_serach(expression).unwrap();
            builder.to_regex(expression).is_match(text)
        })
    }

    /// outlines' `at_most` writes it.
    #[test]
    fn a_clients_own_repetition_may_lack_its_lower_count() {
        for (expression, written) in [
            ("([0-9]){,3}", "([0-9]){0,3}"),
            ("(?:a{,2}b){,2}?c", "(?:a{0,2}b){0,2}?c"),
            ("é{,2}é{1,2}é{,3}", "é{0,2}é{1,2}é{0,3}"),
            ("[{,3}]+", "[{,3}]+"),
            ("[a[b]{,3}]+x{,1}", "[a[b]{,3}]+x{0,1}"),
            (r"\{,3\}", r"\{,3\}"),
            (r"\\{,3}", r"\\{0,3}"),
            ("(?x)a # {,3}\n{,2}", "(?x)a # {,3}\n{0,2}"),
        ] {
            assert_eq!(with_least_counts(expression), written);
            assert!(whole_text(expression).is_ok(), "{expression}");
        }
        for expression in ["{,3}", "a{,}", "a{,3", "a{,b}", "a{,100001}"] {
            assert!(whole_text(expression).is_err(), "{expression}");
        }
    }
}
