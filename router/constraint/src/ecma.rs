//! Expressions of JSON schema's `pattern`, which are ECMAScript's, in the syntax of regex-syntax and llguidance.
//!
//! The two syntaxes share most of their text and differ in what it means: `.`, `\s` and `\d` match other characters,
//! and a brace or a bracket may stand for itself. Source: ECMA-262, section "Regular Expression (RegExp) Objects".

use llguidance::derivre::RegexBuilder;

use crate::{
    complement,
    other_texts::{beginning_with_none_of, other_than_lines, plain_texts},
    pattern::{
        NOTHING, Strings, UNWRITTEN, can_be_written, check_repetitions, group_end, has_top_level_bar,
        literal, reason,
    },
    weight::{self, Cases},
};

/// White space that every engine takes for it, as the inside of a class; and what some do. A text is to be valid whoever
/// checks it, so what lies between is neither space nor anything else.
const SPACE: &str = r"\t-\r ";
const MAYBE_SPACE: &str =
    r"\t-\r\x1C-\x1F \u{85}\u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";
/// Line ends for any engine, and for every one.
const LINE_ENDS: &str = r"\n\r\u{2028}\u{2029}";
const LINE_END: &str = r"\n";
/// Conditions at the start of an expression; the time of llguidance doubles with each that must hold together. With what follows them they are
/// as many as a schema may bring together.
const MOST_LOOK_AHEADS: usize = 15;

/// Whether an expression has what some engines read into it and others do not.
#[derive(Clone, Copy, PartialEq)]
enum Doubtful {
    /// What it matches is matched by every engine.
    Out,
    /// What any engine matches is matched by it.
    In,
}

/// An ECMAScript expression that may match anywhere in a string, as expressions which must all match.
pub(crate) fn from_ecma(expression: &str, strings: Strings) -> Result<Vec<String>, String> {
    let mut conjuncts = Vec::new();
    let mut rest = expression.to_owned();
    // `^(?=X)Y` says that both X and Y match from the start; `^(?!X)Y`, that X does not.
    while let Some(ahead) = rest.strip_prefix("^(?=").or_else(|| rest.strip_prefix("^(?!")) {
        if conjuncts.len() == MOST_LOOK_AHEADS {
            return Err(format!("more than {MOST_LOOK_AHEADS} look-aheads are not supported"));
        }
        let end = group_end(ahead).ok_or("a group is not closed")?;
        let (inside, after) = (&ahead[..end], &ahead[end + 1..]);
        if after.starts_with(['*', '+', '?', '{']) || has_top_level_bar(after) {
            break;
        }
        if rest.starts_with("^(?=") {
            conjuncts.push(translate(&format!("^(?:{inside})"), strings, Doubtful::Out)?);
        } else {
            conjuncts.push(not_at_start(inside, strings)?);
        }
        rest = format!("^{}", after.strip_prefix('^').unwrap_or(after));
    }
    conjuncts.push(translate(&rest, strings, Doubtful::Out)?);
    checked(conjuncts)
}

fn checked(expressions: Vec<String>) -> Result<Vec<String>, String> {
    for expression in &expressions {
        check_repetitions(expression)?;
        weight::check(weight::of_expression(expression, Cases::Own))?;
        RegexBuilder::new().mk_regex_for_serach(expression).map_err(|cause| reason(&cause.to_string()))?;
    }
    Ok(expressions)
}

/// An expression for every string that an ECMAScript expression does not match at its start.
fn not_at_start(expression: &str, strings: Strings) -> Result<String, String> {
    let (inside, is_whole) =
        expression.strip_suffix('$').map_or((expression, false), |inside| (inside, true));
    match plain_texts(inside) {
        Some(texts) if is_whole => Ok(other_than_lines(&texts)),
        Some(texts) => Ok(beginning_with_none_of(&texts)),
        None => complement::not_at_start(&translate(expression, strings, Doubtful::In)?, strings),
    }
}

/// Writes an ECMAScript expression in the syntax of regex-syntax.
fn translate(expression: &str, strings: Strings, doubtful: Doubtful) -> Result<String, String> {
    let mut from = Reader { characters: expression.chars().collect(), at: 0, strings, doubtful };
    let mut out = String::new();
    // An inline flag at the start is not ECMAScript, but in wide use.
    for (flag, kept) in [("(?i)", "(?i)"), ("(?u)", "")] {
        if expression.starts_with(flag) {
            from.at = flag.len();
            out.push_str(kept);
        }
    }
    while let Some(character) = from.next() {
        match character {
            '\\' => out.push_str(&escape(&mut from, Within::Nothing)?.text),
            '[' => class(&mut from, &mut out)?,
            '.' => {
                out.push_str("[^");
                out.push_str(if doubtful == Doubtful::In { LINE_END } else { LINE_ENDS });
                out.push(']');
            }
            '(' if from.peek(0) == Some('?') => {
                let (second, third) = (from.peek(1), from.peek(2));
                match (second, third) {
                    (Some(':'), _) => {
                        from.at += 2;
                        out.push_str("(?:");
                    }
                    (Some('='), _) | (Some('!'), _) | (Some('<'), Some('=' | '!')) => {
                        return Err("a look-ahead other than at the start, behind `^`, or a look-behind is not supported".into());
                    }
                    (Some('<'), _) | (Some('P'), Some('<')) => {
                        while from.next().is_some_and(|character| character != '>') {}
                        out.push_str("(?:");
                    }
                    _ => return Err("an inline flag is not supported".into()),
                }
            }
            '{' => match repetition(&from) {
                Some(length) => {
                    out.push('{');
                    out.extend(&from.characters[from.at..from.at + length]);
                    from.at += length;
                }
                None => out.push_str("\\{"),
            },
            '}' => out.push_str("\\}"),
            ']' => out.push_str("\\]"),
            other if from.takes(other) => out.push(other),
            _ => out.push_str(NOTHING),
        }
    }
    Ok(out)
}

struct Reader {
    characters: Vec<char>,
    at: usize,
    strings: Strings,
    doubtful: Doubtful,
}

impl Reader {
    /// Whether the character may be in a string.
    fn takes(&self, character: char) -> bool {
        self.strings == Strings::Plain || can_be_written(character)
    }

    fn next(&mut self) -> Option<char> {
        let character = self.characters.get(self.at).copied();
        self.at += usize::from(character.is_some());
        character
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.characters.get(self.at + ahead).copied()
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let text: String = self.characters.get(self.at..self.at + digits)?.iter().collect();
        if !text.chars().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        self.at += digits;
        u32::from_str_radix(&text, 16).ok()
    }
}

/// The length of `n}`, `n,}` or `n,m}` here, if it is one.
fn repetition(from: &Reader) -> Option<usize> {
    let rest = &from.characters[from.at..];
    let end = rest.iter().position(|&character| !(character.is_ascii_digit() || character == ','))?;
    if rest[end] != '}' {
        return None;
    }
    let inside: String = rest[..end].iter().collect();
    let (least, most) = inside.split_once(',').unwrap_or((&inside, ""));
    let digits = |text: &str| text.chars().all(|digit| digit.is_ascii_digit());
    (!least.is_empty() && digits(least) && digits(most)).then_some(end + 1)
}

/// Where an escape stands.
#[derive(Clone, Copy, PartialEq)]
enum Within {
    Nothing,
    Class,
    /// One that begins with `^`.
    Negated,
}

/// What an escape stands for, as an expression or, within a class, as its part.
struct Escape {
    text: String,
    /// None for a set of characters.
    character: Option<char>,
}

fn escape(from: &mut Reader, within: Within) -> Result<Escape, String> {
    let Some(character) = from.next() else { return Err("the expression ends within an escape".into()) };
    let set = |inside: &str, negated: bool| {
        let text = match (within, negated) {
            (Within::Class | Within::Negated, false) => inside.to_owned(),
            (Within::Nothing, false) => format!("[{inside}]"),
            (_, true) => format!("[^{inside}]"),
        };
        Ok(Escape { text, character: None })
    };
    // Of space and of what is none, the class is to have no more than every engine takes for it, or all that any does.
    let (space, not_space) = if (within == Within::Negated) == (from.doubtful == Doubtful::Out) {
        (MAYBE_SPACE, SPACE)
    } else {
        (SPACE, MAYBE_SPACE)
    };
    let other = |text: &str| Ok(Escape { text: text.to_owned(), character: None });
    let character = match character {
        'd' => return set("0-9", false),
        'D' => return set("0-9", true),
        'w' => return set("0-9A-Za-z_", false),
        'W' => return set("0-9A-Za-z_", true),
        's' => return set(space, false),
        'S' => return set(not_space, true),
        't' => '\t',
        'n' => '\n',
        'r' => '\r',
        'f' => '\x0c',
        'v' => '\x0b',
        'b' if within != Within::Nothing => '\x08',
        'b' | 'B' => return Err("a word boundary is not supported".into()),
        '0' if !from.peek(0).is_some_and(|digit| digit.is_ascii_digit()) => '\0',
        '0'..='9' => return Err("a back-reference is not supported".into()),
        'k' => return Err("a back-reference is not supported".into()),
        'c' => match from.next() {
            Some(letter) if letter.is_ascii_alphabetic() => char::from(letter as u8 & 0x1f),
            _ => return Err("a control escape lacks its letter".into()),
        },
        'x' => from.hex(2).and_then(char::from_u32).unwrap_or('x'),
        'u' if from.peek(0) == Some('{') => {
            from.at += 1;
            let mut digits = String::new();
            while let Some(digit) = from.next().filter(|&digit| digit != '}') {
                digits.push(digit);
            }
            let character = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
            character.ok_or("an escape names no character")?
        }
        'u' => match from.hex(4) {
            Some(high @ 0xd800..0xdc00) if from.peek(0) == Some('\\') && from.peek(1) == Some('u') => {
                from.at += 2;
                let low = from.hex(4).filter(|low| (0xdc00..0xe000).contains(low));
                let low = low.ok_or("half of a surrogate pair is not supported")?;
                let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                char::from_u32(code).ok_or("an escape names no character")?
            }
            Some(code) => char::from_u32(code).ok_or("half of a surrogate pair is not supported")?,
            None => 'u',
        },
        'p' | 'P' if from.peek(0) == Some('{') => {
            let mut property = format!("\\{character}");
            while let Some(next) = from.next() {
                property.push(next);
                if next == '}' {
                    break;
                }
            }
            return other(&property);
        }
        // Python's ends of the string, which ECMAScript lacks.
        'A' if within == Within::Nothing => return other("^"),
        'Z' | 'z' if within == Within::Nothing => return other("$"),
        letter if letter.is_ascii_alphabetic() => {
            return Err(format!("the escape \\{letter} is not supported"));
        }
        other => other,
    };
    let is_text = within != Within::Nothing || from.takes(character);
    let text = if is_text { literal(character) } else { NOTHING.to_owned() };
    Ok(Escape { text, character: Some(character) })
}

/// Translates a class, after its bracket.
fn class(from: &mut Reader, out: &mut String) -> Result<(), String> {
    let negated = from.peek(0) == Some('^');
    from.at += usize::from(negated);
    let within = if negated { Within::Negated } else { Within::Class };
    let mut inside = String::new();
    // What may be the lower end of a range; it is not behind a set or another range.
    let mut low = None;
    let mut in_range = false;
    let (mut has_taken, mut may_leave_one) = (false, false);
    loop {
        let item = match from.next() {
            None => return Err("a class is not closed".into()),
            Some(']') => break,
            Some('\\') => {
                may_leave_one |= matches!(from.peek(0), Some('D' | 'W' | 'S' | 'p' | 'P'));
                escape(from, within)?
            }
            Some('-') => {
                let before_set = from.peek(0) == Some('\\')
                    && matches!(from.peek(1), Some('d' | 'w' | 's' | 'D' | 'W' | 'S'));
                if low.is_some() && !in_range && from.peek(0) != Some(']') && !before_set {
                    inside.push('-');
                    in_range = true;
                    continue;
                }
                Escape { text: "\\-".into(), character: Some('-') }
            }
            Some(other @ ('[' | '&' | '~' | '^')) => {
                Escape { text: format!("\\{other}"), character: Some(other) }
            }
            Some(other) => Escape { text: other.to_string(), character: Some(other) },
        };
        inside.push_str(&item.text);
        may_leave_one |= item.character == Some(char::MAX);
        has_taken |= match (item.character, low) {
            (None, _) => true,
            (Some(high), Some(low)) if in_range => (low..=high).any(|character| from.takes(character)),
            (Some(character), _) => from.takes(character),
        };
        low = item.character.filter(|_| !in_range);
        in_range = false;
    }
    match (inside.is_empty(), negated) {
        // `[]` matches nothing, `[^]` any character.
        (true, true) => out.push_str("[\\x00-\\u{10FFFF}]"),
        (true, false) => out.push_str(NOTHING),
        // llguidance leaves out a class of one character that no string has.
        (false, false) if !has_taken => out.push_str(NOTHING),
        (false, _) => {
            out.push_str(if negated { "[^" } else { "[" });
            out.push_str(&inside);
            if negated && may_leave_one && from.strings == Strings::OfJson {
                out.push_str(UNWRITTEN);
            }
            out.push(']');
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::{tests::matches, whole_text};

    fn ecma(expression: &str, text: &str) -> bool {
        matches(&from_ecma(expression, Strings::Plain).unwrap(), text)
    }

    #[test]
    fn sets_are_those_of_ecmascript() {
        assert!(ecma(r"^\d$", "7") && !ecma(r"^\d$", "٣"));
        assert!(ecma(r"^\w$", "_") && !ecma(r"^\w$", "é"));
        assert!(ecma(r"^\s$", "\t") && !ecma(r"^\s$", "\u{85}") && !ecma(r"^\s$", "\u{feff}"));
        assert!(ecma(r"^[^\S]$", " ") && !ecma(r"^[\S]$", " ") && !ecma(r"^\S$", "\u{feff}"));
        for between in ["\u{85}", "\u{a0}", "\u{3000}", "\u{feff}", "\u{1f}"] {
            for set in
                [r"^\s$", r"^\S$", r"^[\s]$", r"^[\S]$", r"^[^\s]$", r"^[^\S]$", r"^[^-\s@]$", r"^[^\S\n]$"]
            {
                assert!(!ecma(set, between), "{set} and {between:?}");
            }
        }
        assert!(ecma(r"^[^\s-]$", "a") && !ecma(r"^[^\s-]$", "-") && ecma(r"^[\S\n]$", "\n"));
        assert!(ecma("^.$", "\u{85}") && !ecma("^.$", "\r") && !ecma("^.$", "\u{2028}"));
    }

    #[test]
    fn what_stands_for_itself_does() {
        assert!(ecma(r"^\/a\-b{$", "/a-b{"));
        assert!(ecma("^a{,3}$", "a{,3}") && !ecma("^a{,3}$", "aa"));
        assert!(ecma(r"^[a&&b[~]+$", "&[~"));
        assert!(ecma(r"^[\w-.]+$", "a-.") && ecma(r"^[.-\w]+$", "a-.") && ecma(r"^[a-c-e]+$", "abc-e"));
        assert!(ecma(r"^[\\w-z]$", "x") && ecma(r"^[\\w-z]$", "\\") && !ecma(r"^[\\w-z]$", "-"));
        assert!(ecma(r"^[\]-a]$", "^") && !ecma(r"^[\]-a]$", "-") && ecma(r"^[\D-\d]$", "-"));
        assert!(ecma(r"^\u00e9\x41\u{1F600}\uD83D\uDE00\cA$", "éA😀😀\u{1}"));
        assert!(ecma("a]b}", "xa]b}x"));
    }

    #[test]
    fn an_expression_without_anchors_matches_anywhere() {
        assert!(ecma("b+", "abbc") && !ecma("b+", "ac"));
        assert!(ecma("^a|c$", "abc") && ecma("^a|c$", "xc") && !ecma("^a|c$", "bcd"));
    }

    #[test]
    fn look_aheads_at_the_start_are_conditions_beside_the_rest() {
        let expression = r"^(?=.*\d)(?=.*[a-z]).{3,5}$";
        assert!(ecma(expression, "a1b") && !ecma(expression, "abc") && !ecma(expression, "a1bcde"));
        assert!(from_ecma("a(?=b)", Strings::Plain).is_err());
        assert!(from_ecma("^(?:(?!a)b)", Strings::Plain).is_err());
        assert!(ecma("^(?!a+)b", "b") && !ecma("^(?!a+)[ab]", "ab") && !ecma("^(?!a+$)[ab]", "a"));
        // What engines read differently is left out.
        assert!(!ecma(r"^(?!.*@@)[^#]+$", "a\r@@") && ecma(r"^(?!.*@@)[^#]+$", "a\n@@"));
        assert!(!ecma(r"^(?!\s)", "\u{a0}") && !ecma(r"^(?!\S)", "\u{a0}") && ecma(r"^(?![^\s])", " "));
        assert!(!ecma(r"^(?!(?:no|nope)$)", "no\n") && ecma(r"^(?!(?:no|nope)$)", "nop\n"));
        assert!(ecma(r"^(?!(?:no|nope)$)\w+$", "not") && !ecma(r"^(?!(?:no|nope)$)\w+$", "nope"));
        assert!(ecma(r"^(?!@@)[\w@]+$", "@a@@") && !ecma(r"^(?!@@)[\w@]+$", "@@a"));
        assert!(ecma(r"^(?!(ab|a|b))\w*$", "") && !ecma(r"^(?!(ab|a|b))\w*$", "ax"));
    }

    #[test]
    fn look_aheads_have_an_end() {
        let expression = |count| format!("^{}a+$", "(?=a)".repeat(count));
        assert!(from_ecma(&expression(MOST_LOOK_AHEADS), Strings::Plain).is_ok());
        let refused = from_ecma(&expression(MOST_LOOK_AHEADS + 1), Strings::Plain).unwrap_err();
        assert!(refused.contains("look-aheads"), "{refused}");
    }

    #[test]
    fn a_brace_is_a_repetition_or_itself() {
        assert!(ecma("^a{2}b{1,}c{0,3}$", "aabccc") && !ecma("^a{2}$", "a"));
        for text in ["a{", "a{}", "a{,2}", "a{1,2,3}", "a{1 }", "a{x}", "a{1,{"] {
            assert!(ecma(&format!("^{text}$"), text), "{text}");
        }
        assert!(ecma("^a{{2}$", "a{{"));
        assert!(translate(&"{1".repeat(300_000), Strings::Plain, Doubtful::Out).is_ok());
    }

    #[test]
    fn what_cannot_be_is_said() {
        for expression in [r"(a)\1", r"\bword\b", "(?<=a)b", "(", "[a", r"a\", "a{1000000}", "[z-a]", r"\q"] {
            assert!(from_ecma(expression, Strings::Plain).is_err(), "{expression}");
        }
        assert!(whole_text(r"a\").is_err());
        assert!(whole_text("(a").is_err());
    }
}
