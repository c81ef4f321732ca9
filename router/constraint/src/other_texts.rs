//! Every text but some: where an expression is a list of plain texts, its opposite is written by the tree of their prefixes.
//! Of other expressions `complement` makes it.

use crate::pattern::{NOTHING, group_end, has_top_level_bar, literal};

/// The longest text that an expression for every other text is made of; groups nest as deep.
pub(crate) const LONGEST_TEXT: usize = 60;

/// An expression for every string that `expression` does not match, where that is a list of plain texts.
pub(crate) fn opposite(expression: &str) -> Option<String> {
    let inside = expression.strip_prefix('^')?.strip_suffix('$')?;
    Some(other_than_lines(&plain_texts(inside)?))
}

/// An expression for every string but these texts, also before a line end at the end: some engines take the place there for the end too.
pub(crate) fn other_than_lines(texts: &[&str]) -> String {
    let lines: Vec<String> = texts.iter().map(|text| format!("{text}\n")).collect();
    other_than(&lines.iter().map(String::as_str).chain(texts.iter().copied()).collect::<Vec<_>>())
}

/// The texts that `^(?!(a|b)$)` excludes, and the expression for the rest.
pub(crate) fn without_texts(expression: &str) -> Option<(Vec<&str>, String)> {
    let ahead = expression.strip_prefix("^(?!")?;
    let end = group_end(ahead)?;
    let (inside, after) = (&ahead[..end], &ahead[end + 1..]);
    if after.starts_with(['*', '+', '?', '{']) || has_top_level_bar(after) {
        return None;
    }
    let texts = plain_texts(inside.strip_suffix('$')?)?;
    Some((texts, format!("^{}", after.strip_prefix('^').unwrap_or(after))))
}

/// The alternatives of `a`, `(a|b)` or `(?:a|b)`, where they are plain texts.
pub(crate) fn plain_texts(expression: &str) -> Option<Vec<&str>> {
    let grouped = expression.strip_prefix("(?:").or_else(|| expression.strip_prefix('('));
    let (inside, is_grouped) = match grouped.and_then(|rest| rest.strip_suffix(')')) {
        Some(rest) => (rest, true),
        None => (expression, false),
    };
    let is_plain =
        |character: char| character.is_alphanumeric() || " _-/:,;@#%&=<>!'\"~`".contains(character);
    let texts: Vec<&str> = inside.split('|').collect();
    let plain = texts.iter().all(|text| text.chars().all(is_plain) && text.chars().count() <= LONGEST_TEXT);
    // Without a group, an anchor belongs to the first or the last alternative only.
    (plain && (is_grouped || texts.len() == 1)).then_some(texts)
}

/// An expression for every string but these, by the tree of their prefixes.
pub(crate) fn other_than(texts: &[&str]) -> String {
    tree(texts, other_than_tails)
}

/// An expression for every string that begins with none of these.
pub(crate) fn beginning_with_none_of(texts: &[&str]) -> String {
    tree(texts, beginning_otherwise)
}

fn tree(texts: &[&str], write: impl Fn(&[&[char]]) -> String) -> String {
    let mut texts: Vec<Vec<char>> = texts.iter().map(|text| text.chars().collect()).collect();
    texts.sort();
    texts.dedup();
    let texts: Vec<&[char]> = texts.iter().map(Vec::as_slice).collect();
    format!("^(?:{})$", write(&texts))
}

/// Every string that begins with none of these sorted, distinct ones.
fn beginning_otherwise(tails: &[&[char]]) -> String {
    if tails.first().is_some_and(|tail| tail.is_empty()) {
        // Nothing may follow here.
        return NOTHING.into();
    }
    let mut branches = vec![String::new()];
    let mut heads = String::new();
    let mut rest = tails;
    while let Some(head) = rest.first().map(|tail| tail[0]) {
        let count = rest.iter().take_while(|tail| tail[0] == head).count();
        let under: Vec<&[char]> = rest[..count].iter().map(|tail| &tail[1..]).collect();
        if !under[0].is_empty() {
            branches.push(format!("{}(?:{})", literal(head), beginning_otherwise(&under)));
        }
        heads.push_str(&literal(head));
        rest = &rest[count..];
    }
    branches.push(format!(r"[^{heads}][\x00-\u{{10FFFF}}]*"));
    branches.join("|")
}

/// Every string but these sorted, distinct ones. Recurses as deep as the longest is long; callers bound that.
fn other_than_tails(tails: &[&[char]]) -> String {
    if tails.is_empty() {
        return r"[\x00-\u{10FFFF}]*".into();
    }
    let has_empty = tails[0].is_empty();
    let mut branches = Vec::new();
    let mut heads = String::new();
    let mut rest = &tails[usize::from(has_empty)..];
    while let Some(head) = rest.first().map(|tail| tail[0]) {
        let count = rest.iter().take_while(|tail| tail[0] == head).count();
        let under: Vec<&[char]> = rest[..count].iter().map(|tail| &tail[1..]).collect();
        branches.push(format!("{}(?:{})", literal(head), other_than_tails(&under)));
        heads.push_str(&literal(head));
        rest = &rest[count..];
    }
    let other = if heads.is_empty() { r"[\x00-\u{10FFFF}]".to_owned() } else { format!("[^{heads}]") };
    branches.push(format!(r"{other}[\x00-\u{{10FFFF}}]*"));
    if !has_empty {
        branches.push(String::new());
    }
    branches.join("|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::tests::matches;

    #[test]
    fn texts_that_a_look_ahead_excludes_are_told_apart_from_the_rest() {
        let expected = Some((vec!["if", "for"], "^[a-z]+$".to_owned()));
        assert_eq!(without_texts("^(?!(if|for)$)[a-z]+$"), expected);
        for other in
            ["^(?!(if|for))[a-z]+$", "^(?!if|for$)[a-z]+$", "^(?!(a*)$)b", "^(?!(a)$)b|c", "^(?!(a)$)?b", "a"]
        {
            assert_eq!(without_texts(other), None, "{other}");
        }
    }

    #[test]
    fn everything_but_some_texts_is_an_expression() {
        let expression = [other_than(&["cat", "car", "", "c", "a\"b"])];
        for text in ["cat", "car", "", "c", "a\"b"] {
            assert!(!matches(&expression, text), "{text}");
        }
        for text in ["ca", "cats", "d", "ct", "a\"", "\n", "é"] {
            assert!(matches(&expression, text), "{text}");
        }
    }
}
