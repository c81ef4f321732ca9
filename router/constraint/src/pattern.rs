//! Regular expressions: those of JSON schema's `pattern`, which are ECMAScript's, in the syntax of llguidance, and
//! those that a client sends as a whole grammar.
//!
//! The two syntaxes share most of their text and differ in what it means: `.`, `\s` and `\d` match other characters,
//! and a brace or a bracket may stand for itself. Source: ECMA-262, section "Regular Expression (RegExp) Objects".

use std::borrow::Cow;

use llguidance::derivre::RegexBuilder;
use regex_syntax::{
    ast::{self, Ast, RepetitionKind},
    hir::{ClassUnicode, ClassUnicodeRange},
};

use crate::complement;

/// White space that every engine takes for it, as the inside of a class; and what some do. A text is to be valid whoever
/// checks it, so what lies between is neither space nor anything else.
const SPACE: &str = r"\t-\r ";
const MAYBE_SPACE: &str =
    r"\t-\r\x1C-\x1F \u{85}\u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";
/// Matches nothing.
pub(crate) const NOTHING: &str = r"[^\x00-\u{10FFFF}]";
/// What `can_be_written` says no of, as the inside of a class.
const UNWRITTEN: &str = r"\x00-\x07\x0B\x0E-\x1F\x7F";
/// Line ends for any engine, and for every one.
const LINE_ENDS: &str = r"\n\r\u{2028}\u{2029}";
const LINE_END: &str = r"\n";
/// The largest count in a repetition.
const MOST_REPETITIONS: u32 = 100_000;
/// Conditions at the start of an expression; the time of llguidance doubles with each that must hold together. With what follows them they are
/// as many as a schema may bring together.
const MOST_LOOK_AHEADS: usize = 15;
/// What the expressions of one source may weigh together: a second or two for who reads them, who cannot be interrupted, and some
/// 50 MB.
const MOST_WEIGHT: usize = 4_000_000;
/// Of a character that stands for itself, of one that stands for both cases or for more, and of a set of Unicode, which is hundreds of
/// ranges.
const WEIGHT_OF_SEVERAL: usize = 8;
const WEIGHT_OF_CASES: usize = 32;
const WEIGHT_OF_SET: usize = 512;
/// Of a negative look-ahead, of which an automaton is made.
const WEIGHT_OF_OPPOSITE: usize = 2_048;
/// What may be left out makes a lexer take together all that may follow: this many, squared, weigh one.
const OPTIONS_OF_WEIGHT: usize = 2;
/// The ranges of a class are kept in order as they are read: so many of them, squared, weigh one.
const RANGES_OF_WEIGHT: usize = 16;
/// The longest text that an expression for every other text is made of; groups nest as deep.
pub(crate) const LONGEST_TEXT: usize = 60;

/// A client's expression for the whole text, ready to stand between the slashes of a Lark terminal.
pub(crate) fn whole_text(expression: &str) -> Result<String, String> {
    check_repetitions(expression)?;
    check_weight(weight(expression, Cases::Own))?;
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

/// What `from_ecma` gives, an expression that may match anywhere, as one for the whole text, ready for a Lark terminal.
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

/// What an ECMAScript expression weighs beside the expressions that are made of it.
pub(crate) fn weight_of_opposites(expression: &str) -> usize {
    expression.matches("(?!").count().saturating_mul(WEIGHT_OF_OPPOSITE)
}

fn checked(expressions: Vec<String>) -> Result<Vec<String>, String> {
    for expression in &expressions {
        check_repetitions(expression)?;
        check_weight(weight(expression, Cases::Own))?;
        RegexBuilder::new().mk_regex_for_serach(expression).map_err(|cause| reason(&cause.to_string()))?;
    }
    Ok(expressions)
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
fn check_repetitions(expression: &str) -> Result<(), String> {
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

pub(crate) fn check_weight(weight: usize) -> Result<(), String> {
    if weight > MOST_WEIGHT {
        return Err("the expression has too many characters, sets or ranges".into());
    }
    Ok(())
}

/// Whether letters stand for themselves in both cases.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Cases {
    Own,
    Both,
}

/// What reading an expression costs, about; some thousands take a millisecond.
pub(crate) fn weight(expression: &str, cases: Cases) -> usize {
    let in_both = cases == Cases::Both || expression.contains("(?i");
    let of_set = if in_both { 2 * WEIGHT_OF_SET } else { WEIGHT_OF_SET };
    let mut weight = weight_of_text(expression, if in_both { Cases::Both } else { cases });
    let mut options = 0;
    let mut ranges = None;
    let mut before = ' ';
    for character in expression.chars() {
        let is_escaped = before == '\\';
        match (character, &mut ranges) {
            ('p' | 'P' | 'w' | 'W' | 'd' | 'D' | 's' | 'S', _) if is_escaped => weight += of_set,
            (_, Some(ranges)) if is_escaped => *ranges += 1,
            (_, None) if is_escaped => {}
            (']', Some(count)) => {
                weight = weight.saturating_add(squared(*count, RANGES_OF_WEIGHT));
                ranges = None;
            }
            (_, Some(ranges)) => *ranges += 1,
            ('[', None) => {
                weight += WEIGHT_OF_SEVERAL;
                ranges = Some(0);
            }
            ('.', None) => weight += WEIGHT_OF_SEVERAL,
            ('*' | '{', None) => options += 1,
            ('?', None) if before != '(' => options += 1,
            _ => {}
        }
        before = if is_escaped { ' ' } else { character };
    }
    weight.saturating_add(squared(options, OPTIONS_OF_WEIGHT))
}

/// The weight of a text that stands for itself.
pub(crate) fn weight_of_text(text: &str, cases: Cases) -> usize {
    match cases {
        Cases::Own => text.len(),
        Cases::Both => text.len() * WEIGHT_OF_CASES,
    }
}

/// The weight of what takes the square of how many there are.
pub(crate) fn squared(count: usize, of_weight: usize) -> usize {
    (count / of_weight).saturating_mul(count / of_weight)
}

/// The weight of what may be left out, so often, in one terminal.
pub(crate) fn weight_of_options(count: usize) -> usize {
    squared(count, OPTIONS_OF_WEIGHT)
}

/// Where the group ends whose inside `text` starts with: the byte of its parenthesis.
fn group_end(text: &str) -> Option<usize> {
    scan(text, |depth, character| depth == 0 && character == ')')
}

fn has_top_level_bar(text: &str) -> bool {
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

/// An expression for every string that `expression` does not match, where that is a list of plain texts.
pub(crate) fn opposite(expression: &str) -> Option<String> {
    let inside = expression.strip_prefix('^')?.strip_suffix('$')?;
    Some(other_than_lines(&plain_texts(inside)?))
}

/// An expression for every string but these texts, also before a line end at the end: some engines take the place there for the end too.
fn other_than_lines(texts: &[&str]) -> String {
    let lines: Vec<String> = texts.iter().map(|text| format!("{text}\n")).collect();
    other_than(&lines.iter().map(String::as_str).chain(texts.iter().copied()).collect::<Vec<_>>())
}

/// An expression for every string that an ECMAScript expression does not match at its start.
fn not_at_start(expression: &str, strings: Strings) -> Result<String, String> {
    let (inside, is_whole) =
        expression.strip_suffix('$').map_or((expression, false), |inside| (inside, true));
    match plain_texts(inside) {
        Some(texts) if is_whole => Ok(other_than_lines(&texts)),
        Some(texts) => Ok(tree(&texts, beginning_otherwise)),
        None => complement::not_at_start(&translate(expression, strings, Doubtful::In)?, strings),
    }
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
fn plain_texts(expression: &str) -> Option<Vec<&str>> {
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

    fn matches(expressions: &[String], text: &str) -> bool {
        expressions.iter().all(|expression| {
            let mut builder = RegexBuilder::new();
            let expression = builder.mk_regex_for_serach(expression).unwrap();
            builder.to_regex(expression).is_match(text)
        })
    }

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
        assert!(ecma("^a{,3}$", "a{,3}"));
        assert!(ecma(r"^[a&&b[~]+$", "&[~"));
        assert!(ecma(r"^[\w-.]+$", "a-.") && ecma(r"^[.-\w]+$", "a-.") && ecma(r"^[a-c-e]+$", "abc-e"));
        assert!(ecma(r"^[\\w-z]$", "x") && ecma(r"^[\\w-z]$", "\\") && !ecma(r"^[\\w-z]$", "-"));
        assert!(ecma(r"^[\]-a]$", "^") && !ecma(r"^[\]-a]$", "-") && ecma(r"^[\D-\d]$", "-"));
        assert!(ecma(r"^\u00e9\x41\u{1F600}\uD83D\uDE00\cA$", "éA😀😀\u{1}"));
        assert!(ecma("a]b}", "xa]b}x"));
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
        assert!(ecma("^a{,3}$", "a{,3}") && !ecma("^a{,3}$", "aa"));
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
    fn expressions_that_take_long_to_read_are_refused() {
        let range = |at: u32| char::from_u32(0x10000 + 2 * at).unwrap();
        for expression in [
            r"\w".repeat(20_000),
            r"[\p{L}]".repeat(20_000),
            format!("(?i){}", "a".repeat(200_000)),
            "(?:ab)*".repeat(10_000),
            "a?".repeat(10_000),
            format!("[{}]", (0..100_000).rev().map(range).collect::<String>()),
        ] {
            assert!(whole_text(&expression).is_err(), "{}", expression.len());
        }
        for expression in ["a".repeat(1_000_000), r"\w+ ".repeat(2_000), format!("[{}]", "a-z".repeat(2_000))]
        {
            assert!(check_weight(weight(&expression, Cases::Own)).is_ok(), "{}", expression.len());
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        for expression in [r"(a)\1", r"\bword\b", "(?<=a)b", "(", "[a", r"a\", "a{1000000}", "[z-a]", r"\q"] {
            assert!(from_ecma(expression, Strings::Plain).is_err(), "{expression}");
        }
        assert!(whole_text(r"a\").is_err());
        assert!(whole_text("(a").is_err());
    }

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
