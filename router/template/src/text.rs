//! What Python's `str` knows of characters and lines, where Rust's differs.

use super::Error;
use super::budget::{MAX_ITEMS, too_long};

/// `str.isspace` of one character: Unicode's white space and the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

pub fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

pub fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// `str.splitlines`.
pub fn split_lines(text: &str, keep_ends: bool) -> Result<Vec<&str>, Error> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let mut end = at + c.len_utf8();
        match c {
            '\r' if chars.peek().is_some_and(|(_, next)| *next == '\n') => {
                chars.next();
                end += 1;
            }
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}' => {}
            _ => continue,
        }
        if lines.len() > MAX_ITEMS {
            return Err(too_long());
        }
        lines.push(&text[start..if keep_ends { end } else { at }]);
        start = end;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    Ok(lines)
}

/// `str.capitalize`.
pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return String::new() };
    // Beside the lower case of the rest, so that a final sigma is one.
    let lower = text.to_lowercase();
    let head: usize = first.to_lowercase().map(char::len_utf8).sum();
    title_of(first) + &lower[head..]
}

/// `str.title`: a letter after something that is no letter is large, every other one small.
pub fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        let cased = c.is_lowercase() || c.is_uppercase() || c.to_lowercase().next() != Some(c);
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.push_str(&title_of(c));
        }
        in_word = cased;
    }
    out
}

/// A character's title case: of those that become several letters only the first is large.
fn title_of(c: char) -> String {
    let mut upper = c.to_uppercase();
    let mut out: String = upper.next().into_iter().collect();
    out.extend(upper.flat_map(char::to_lowercase));
    out
}

/// The large letters small and the other way round: `str.swapcase`.
pub fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

/// `str.isprintable` of one character. Rust's own debug output escapes the same ones, and beside them
/// combining marks at the beginning of a text, hence the letter before.
pub fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{a0}' | '\u{ad}' => false,
        c => {
            let mut buffer = [0; 5];
            buffer[0] = b'a';
            let length = 1 + c.encode_utf8(&mut buffer[1..]).len();
            let text = std::str::from_utf8(&buffer[..length]).unwrap_or("a");
            text.escape_debug().nth(1) == Some(c)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_python_ends_them() {
        assert_eq!(split_lines("a\r\nb\u{2028}c\n\nd", false).unwrap(), ["a", "b", "c", "", "d"]);
        assert_eq!(split_lines("a\n", true).unwrap(), ["a\n"]);
        assert!(split_lines("", false).unwrap().is_empty());
    }

    #[test]
    fn printable_is_what_python_prints() {
        for c in ['a', 'é', '漢', '😀', '\u{301}', '"', '\''] {
            assert!(is_printable(c), "{c:?}");
        }
        for c in ['\u{200d}', '\u{feff}', '\u{a0}', '\u{ad}', '\u{7f}', '\u{e000}', '\u{3000}', '\u{2028}'] {
            assert!(!is_printable(c), "{c:?}");
        }
    }

    #[test]
    fn cases_are_pythons() {
        assert_eq!(capitalize("éLAN Vital"), "Élan vital");
        assert_eq!(title("they're bill's UK"), "They'Re Bill'S Uk");
        assert_eq!(title("ßa"), "Ssa");
    }
}
