//! A client's Lark grammar, as the grammar of what stands between the quotes of a JSON string: every character that JSON
//! escapes is written with its escape. Each character has one spelling, so that the rules stay as they are.
//!
//! llguidance reads terminals greedily, with one byte to look ahead. Two escapes begin with the same byte, so a terminal that
//! has one behind its first character could not be told from the one that follows it: a grammar with such terminals is
//! written character by character instead, its terminals as rules. What cannot be taken over is refused, since it would let
//! other texts through.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write,
};

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

use crate::{
    error::{CompileError, Kind},
    lark::{position, quoted},
};

/// What JSON writes with a backslash and a letter. Other control characters are not written at all: the compiler allows
/// no `\u` in strings, since each text is to have one spelling.
const ESCAPED: [(char, &str); 7] = [
    ('"', "\\\""),
    ('\\', "\\\\"),
    ('\u{8}', "\\b"),
    ('\u{9}', "\\t"),
    ('\u{a}', "\\n"),
    ('\u{c}', "\\f"),
    ('\u{d}', "\\r"),
];

/// Terminals of Lark's library. Source: `common.lark` of the parser generator Lark.
const LIBRARY: [(&str, &str); 21] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9A-Fa-f]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("_EXP", "[eE][+-]?[0-9]+"),
    ("FLOAT", r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("SIGNED_FLOAT", r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"),
    ("NUMBER", r"[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("SIGNED_NUMBER", r"[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"),
    ("ESCAPED_STRING", r#""([^"\\\n]|\\[^\n])*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
];

/// The grammar of the string's inside. `text` is a grammar that compiles.
pub(crate) fn lark(text: &str) -> Result<String> {
    let mut reader = Reader { text, at: 0, tokens: Vec::new() };
    while reader.at < text.len() {
        reader.token()?;
    }
    let tokens = reader.tokens;
    let ignored = ignored(&tokens);
    let in_lexemes = tokens.iter().enumerate().all(|(at, token)| match &token.kind {
        TokenKind::Expression(hir) => ignored.contains(&at) || is_lexeme(hir),
        _ => true,
    });
    let out = String::with_capacity(text.len() * 2);
    Writer { text, tokens: &tokens, ignored: &ignored, in_lexemes, out }.write()
}

type Result<T, E = CompileError> = std::result::Result<T, E>;

struct Token<'a> {
    kind: TokenKind<'a>,
    /// The byte where it begins.
    at: usize,
}

enum TokenKind<'a> {
    /// Of a terminal.
    Terminal(&'a str),
    /// A literal, a range or a regular expression.
    Expression(Hir),
    Ignore,
    /// All else, as it stands.
    Other(&'a str),
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    tokens: Vec<Token<'a>>,
}

fn refused(text: &str, at: usize, what: &str) -> CompileError {
    let reason = format!("{what} is not supported within a call's JSON");
    CompileError::at(Kind::Unsupported, position(text, at), reason)
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn refused(&self, what: &str) -> CompileError {
        refused(self.text, self.at, what)
    }

    /// What is here up to `rest`.
    fn push(&mut self, kind: TokenKind<'a>, rest: &'a str) {
        self.tokens.push(Token { kind, at: self.at });
        self.at = self.text.len() - rest.len();
    }

    fn token(&mut self) -> Result<()> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(()) };
        let after = |taken: &dyn Fn(char) -> bool| rest.trim_start_matches(taken);
        match first {
            '#' => self.comment(),
            '/' if rest.starts_with("//") => self.comment(),
            '"' => return self.string(),
            '/' => return self.expression(),
            '%' => return self.statement(),
            '@' | '<' => return Err(self.refused("a reference or a special token")),
            '~' if !rest[1..].trim_start().starts_with(|next: char| next.is_ascii_digit()) => {
                return Err(self.refused("`~` before an expression"));
            }
            _ if first.is_ascii_alphabetic() || first == '_' => {
                let after = after(&|next| next.is_ascii_alphanumeric() || next == '_' || next == '-');
                let name = &rest[..rest.len() - after.len()];
                let is_terminal = name.starts_with(|first: char| first.is_ascii_uppercase() || first == '_')
                    && !name.contains(|next: char| next.is_ascii_lowercase());
                let kind = if is_terminal { TokenKind::Terminal(name) } else { TokenKind::Other(name) };
                self.push(kind, after);
            }
            _ => {
                let after = &rest[first.len_utf8()..];
                self.push(TokenKind::Other(&rest[..first.len_utf8()]), after);
            }
        }
        Ok(())
    }

    fn comment(&mut self) {
        self.at += self.rest().find('\n').unwrap_or(self.rest().len());
    }

    /// The text between two marks, the first of which is here; and what follows the second.
    fn between(&self, mark: char) -> Result<(&'a str, &'a str)> {
        let inside = &self.rest()[1..];
        let mut is_escaped = false;
        for (at, character) in inside.char_indices() {
            match character {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                _ if character == mark => return Ok((&inside[..at], &inside[at + 1..])),
                _ => {}
            }
        }
        Err(self.refused("a literal without an end"))
    }

    /// A literal, or a range of characters between two.
    fn string(&mut self) -> Result<()> {
        let (literal, after) = self.literal()?;
        if let Some(after) = after.strip_prefix('i') {
            let hir = self.parsed(&format!("(?i){}", regex_syntax::escape(&literal)))?;
            self.push(TokenKind::Expression(hir), after);
        } else if let Some(end) = after.trim_start_matches([' ', '\t']).strip_prefix("..") {
            let end = end.trim_start_matches([' ', '\t']);
            let last = Reader { text: end, at: 0, tokens: Vec::new() };
            if !end.starts_with('"') {
                return Err(self.refused("a range without an end"));
            }
            let (last, after) = last.literal()?;
            let range = format!("[{}-{}]", regex_syntax::escape(&literal), regex_syntax::escape(&last));
            let hir = self.parsed(&range)?;
            self.push(TokenKind::Expression(hir), after);
        } else {
            self.push(TokenKind::Expression(Hir::literal(literal.into_bytes())), after);
        }
        Ok(())
    }

    /// The literal that is here, and what follows it.
    fn literal(&self) -> Result<(String, &'a str)> {
        let (inside, after) = self.between('"')?;
        let json = format!("\"{}\"", hexadecimal(inside));
        let literal = serde_json::from_str(&json).map_err(|_| self.refused("this literal"))?;
        Ok((literal, after))
    }

    fn expression(&mut self) -> Result<()> {
        let (inside, after) = self.between('/')?;
        let rest = after.trim_start_matches(['i', 'm', 's', 'l', 'u', 'x']);
        // Expressions are of Unicode whether they say so or not.
        let flags: String = after[..after.len() - rest.len()].chars().filter(|flag| *flag != 'u').collect();
        let hir =
            self.parsed(&if flags.is_empty() { inside.to_owned() } else { format!("(?{flags}){inside}") })?;
        self.push(TokenKind::Expression(hir), rest);
        Ok(())
    }

    fn parsed(&self, expression: &str) -> Result<Hir> {
        regex_syntax::parse(expression).map_err(|_| self.refused("this expression"))
    }

    /// A line that begins with `%`.
    fn statement(&mut self) -> Result<()> {
        let rest = self.rest();
        if let Some(after) = rest.strip_prefix("%ignore") {
            self.push(TokenKind::Ignore, after);
            return Ok(());
        }
        let end = rest.find('\n').unwrap_or(rest.len());
        let line = rest[..end].split("//").next().unwrap_or_default().split('#').next().unwrap_or_default();
        let Some(import) = line.strip_prefix("%import").map(str::trim) else {
            return Err(self.refused(line.split_whitespace().next().unwrap_or("%")));
        };
        let Some(names) = import.strip_prefix("common").map(str::trim) else {
            return Err(self.refused("an import from elsewhere than `common`"));
        };
        if let Some(names) = names.strip_prefix('(').and_then(|names| names.strip_suffix(')')) {
            for name in names.split(',') {
                self.import(name.trim(), name.trim())?;
            }
        } else {
            let one = names.strip_prefix('.').unwrap_or_default();
            let (name, alias) = one.split_once("->").unwrap_or((one, one));
            self.import(name.trim(), alias.trim())?;
        }
        self.at += end;
        Ok(())
    }

    /// As a definition.
    fn import(&mut self, name: &str, alias: &'a str) -> Result<()> {
        let known = LIBRARY.iter().find(|(known, _)| *known == name);
        let (_, expression) = known.ok_or_else(|| self.refused(&format!("the import of {name:?}")))?;
        let hir = self.parsed(expression)?;
        for kind in [
            TokenKind::Terminal(alias),
            TokenKind::Other(": "),
            TokenKind::Expression(hir),
            TokenKind::Other("\n"),
        ] {
            self.tokens.push(Token { kind, at: self.at });
        }
        Ok(())
    }
}

/// `\xHH`, which JSON does not have, as `\u00HH`.
fn hexadecimal(literal: &str) -> String {
    let mut out = String::with_capacity(literal.len());
    let mut characters = literal.chars();
    while let Some(character) = characters.next() {
        out.push(character);
        if character == '\\' {
            match characters.next() {
                Some('x') => out.push_str("u00"),
                Some(other) => out.push(other),
                None => {}
            }
        }
    }
    out
}

/// The expressions that are ignored, where each is one character, repeated or not, written where it is ignored or as a
/// terminal that is used nowhere else: what is ignored is repeated anyway.
fn ignored(tokens: &[Token]) -> HashSet<usize> {
    let is_blank = |token: &Token| matches!(token.kind, TokenKind::Other(" " | "\t"));
    let of_characters = |at: usize| match &tokens.get(at)?.kind {
        TokenKind::Expression(hir) => repeated(hir).map(|_| at),
        _ => None,
    };
    // How often it is there, and where first.
    let mut terminals: HashMap<&str, (usize, usize)> = HashMap::new();
    for (at, token) in tokens.iter().enumerate() {
        if let TokenKind::Terminal(name) = token.kind {
            terminals.entry(name).or_insert((0, at)).0 += 1;
        }
    }
    let mut ignored = HashSet::new();
    for at in (0..tokens.len()).filter(|at| matches!(tokens[*at].kind, TokenKind::Ignore)) {
        let Some(next) = (at + 1..tokens.len()).find(|next| !is_blank(&tokens[*next])) else { continue };
        if let TokenKind::Terminal(name) = tokens[next].kind
            && let Some((2, defined)) = terminals.get(name)
        {
            let body = (defined + 1..tokens.len()).find(|at| {
                !is_blank(&tokens[*at]) && !matches!(tokens[*at].kind, TokenKind::Other(":" | ": "))
            });
            // All of the definition.
            let ends = |at: &usize| {
                tokens.get(at + 1).is_none_or(|token| matches!(token.kind, TokenKind::Other("\n" | "\r")))
            };
            ignored.extend(body.filter(ends).and_then(of_characters));
        } else {
            ignored.extend(of_characters(next));
        }
    }
    ignored
}

/// The one character that is repeated.
fn repeated(hir: &Hir) -> Option<&Hir> {
    match hir.kind() {
        HirKind::Repetition(repetition) if repetition.min <= 1 && repetition.max.is_none() => {
            is_character(&repetition.sub).then_some(&repetition.sub)
        }
        _ => is_character(hir).then_some(hir),
    }
}

fn is_character(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => {
            std::str::from_utf8(&literal.0).is_ok_and(|text| text.chars().count() == 1)
        }
        HirKind::Class(_) => true,
        _ => false,
    }
}

/// What is written with a backslash is its first character, or it has nothing such.
fn is_lexeme(hir: &Hir) -> bool {
    is_character(hir) || !has_escapes(hir)
}

fn has_escapes(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => {
            literal.0.iter().any(|byte| *byte < b' ' || *byte == b'"' || *byte == b'\\')
        }
        HirKind::Class(Class::Unicode(class)) => ESCAPED.iter().any(|(escaped, _)| has(class, *escaped)),
        HirKind::Class(Class::Bytes(_)) | HirKind::Empty | HirKind::Look(_) => false,
        HirKind::Repetition(repetition) => has_escapes(&repetition.sub),
        HirKind::Capture(capture) => has_escapes(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(has_escapes),
    }
}

fn has(class: &ClassUnicode, character: char) -> bool {
    class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&character))
}

struct Writer<'a> {
    text: &'a str,
    tokens: &'a [Token<'a>],
    ignored: &'a HashSet<usize>,
    /// Terminals stay terminals.
    in_lexemes: bool,
    out: String,
}

impl Writer<'_> {
    fn write(mut self) -> Result<String> {
        for (at, token) in self.tokens.iter().enumerate() {
            match &token.kind {
                TokenKind::Terminal(name) if self.in_lexemes => self.out.push_str(name),
                TokenKind::Terminal(name) => {
                    let _ =
                        write!(self.out, "terminal-{}", name.trim_start_matches('_').to_ascii_lowercase());
                    if name.starts_with('_') {
                        self.out.push_str("-hidden");
                    }
                }
                TokenKind::Ignore if self.in_lexemes => self.out.push_str("%ignore"),
                // It would be ignored within terminals too.
                TokenKind::Ignore => {
                    return Err(refused(
                        self.text,
                        token.at,
                        "`%ignore` beside terminals with quotes, backslashes or line ends",
                    ));
                }
                TokenKind::Other("&" | "[") if !self.in_lexemes => {
                    return Err(refused(
                        self.text,
                        token.at,
                        "`&` or `[` beside terminals with quotes, backslashes or line ends",
                    ));
                }
                TokenKind::Other(text) => self.out.push_str(text),
                TokenKind::Expression(hir) => {
                    let is_ignored = self.ignored.contains(&at);
                    let hir = if is_ignored { repeated(hir).unwrap_or(hir) } else { hir };
                    let written = if self.in_lexemes && !has_escapes(hir) && !is_empty(hir) {
                        (!has_looks(hir))
                            .then(|| format!("/{}/", llguidance::regex_to_lark(&hir.to_string(), "")))
                    } else if self.in_lexemes && !is_empty(hir) {
                        one_of(hir)
                    } else {
                        characters(hir)
                    };
                    let what = "an expression with anchors, or with characters that JSON writes as `\\u`,";
                    self.out.push_str(&written.ok_or_else(|| refused(self.text, token.at, what))?);
                }
            }
        }
        Ok(self.out)
    }
}

fn is_empty(hir: &Hir) -> bool {
    matches!(hir.kind(), HirKind::Empty)
        || matches!(hir.kind(), HirKind::Literal(literal) if literal.0.is_empty())
}

fn has_looks(hir: &Hir) -> bool {
    !hir.properties().look_set().is_empty() || !hir.properties().is_utf8()
}

/// One character as one expression.
fn one_of(hir: &Hir) -> Option<String> {
    let choices = choices(hir)?;
    let expressions: Vec<String> = choices
        .iter()
        .map(|choice| match choice {
            Choice::Plain(expression) => expression.clone(),
            Choice::Escape(text) => regex_syntax::escape(text),
        })
        .collect();
    Some(format!("/{}/", llguidance::regex_to_lark(&expressions.join("|"), "")))
}

enum Choice {
    Plain(String),
    Escape(&'static str),
}

/// The spellings of one character.
fn choices(hir: &Hir) -> Option<Vec<Choice>> {
    let class = match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => class.clone(),
        HirKind::Literal(literal) => {
            let character = std::str::from_utf8(&literal.0).ok()?.chars().next()?;
            ClassUnicode::new([ClassUnicodeRange::new(character, character)])
        }
        _ => return None,
    };
    let mut plain = class.clone();
    plain.difference(&ClassUnicode::new([
        ClassUnicodeRange::new('\0', '\u{1f}'),
        ClassUnicodeRange::new('"', '"'),
        ClassUnicodeRange::new('\\', '\\'),
    ]));
    let mut choices = Vec::new();
    if !plain.ranges().is_empty() {
        choices.push(Choice::Plain(Hir::class(Class::Unicode(plain)).to_string()));
    }
    let escaped = ESCAPED.iter().filter(|(escaped, _)| has(&class, *escaped));
    choices.extend(escaped.map(|(_, spelling)| Choice::Escape(spelling)));
    (!choices.is_empty()).then_some(choices)
}

/// Character by character, as a group of a rule.
fn characters(hir: &Hir) -> Option<String> {
    let all = |parts: &[Hir]| parts.iter().map(characters).collect::<Option<Vec<_>>>();
    Some(match hir.kind() {
        HirKind::Empty => "\"\"".to_owned(),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            let spelled = text.chars().map(|character| {
                let escape = ESCAPED.iter().find(|(escaped, _)| *escaped == character);
                match escape {
                    Some((_, spelling)) => Some(quoted(spelling)),
                    None => (character >= ' ').then(|| quoted(&character.to_string())),
                }
            });
            let spelled = spelled.collect::<Option<Vec<_>>>()?;
            if spelled.is_empty() { "\"\"".to_owned() } else { format!("({})", spelled.join(" ")) }
        }
        HirKind::Class(Class::Unicode(_)) => {
            let written = choices(hir)?.into_iter().map(|choice| match choice {
                Choice::Plain(expression) => format!("/{}/", llguidance::regex_to_lark(&expression, "")),
                Choice::Escape(text) => quoted(text),
            });
            format!("({})", written.collect::<Vec<_>>().join(" | "))
        }
        HirKind::Class(Class::Bytes(_)) | HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => {
            let most = repetition.max.map_or(String::new(), |most| most.to_string());
            format!("({}){{{},{most}}}", characters(&repetition.sub)?, repetition.min)
        }
        HirKind::Capture(capture) => characters(&capture.sub)?,
        HirKind::Concat(parts) => format!("({})", all(parts)?.join(" ")),
        HirKind::Alternation(parts) => format!("({})", all(parts)?.join(" | ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_stay_terminals_where_escapes_are_single() {
        for (grammar, written) in [
            (
                "start: \"a\" NL // \"not this\"\nNL: \"\\n\"",
                r#"start: /a/ NL 
NL: /\\n/"#,
            ),
            ("A: \"a\"..\"c\"", "A: /[a-c]/"),
            ("A: \"\\x41\" | \"\"", "A: /A/ | \"\""),
            ("A: /\\//", r"A: /\//"),
            ("%import common (INT, LETTER)\n", "INT: /[0-9]+/\nLETTER: /[A-Za-z]/\n\n"),
            ("x: \"a\" ~ 3", "x: /a/ ~ 3"),
            ("%ignore /[ \\n]+/", r"%ignore / |\\n/"),
            (
                "start: \"a\"\n%import common.WS\n%ignore WS",
                "start: /a/\nWS: / |\\\\t|\\\\n|\\\\f|\\\\r/\n\n%ignore WS",
            ),
        ] {
            assert_eq!(lark(grammar).expect(grammar), written);
        }
    }

    #[test]
    fn terminals_become_rules_where_they_are_not() {
        assert_eq!(
            lark("start: NAME TEXT\nNAME: \"a\"\nTEXT: /\"[^\"]*\"/").expect("valid"),
            r#"start: terminal-name terminal-text
terminal-name: ("a")
terminal-text: (("\\\"") ((/[ !\#-\[\]-LAST]/ | "\\\\" | "\\b" | "\\t" | "\\n" | "\\f" | "\\r")){0,} ("\\\""))"#
                .replace("LAST", "\u{10ffff}")
        );
    }

    #[test]
    fn what_cannot_be_taken_over_is_refused_with_its_place() {
        for (grammar, place) in [
            ("start: /^a/", "1:8"),
            ("start: \"\\u0001\"", "1:8"),
            ("start: a\na: %regex {}", "2:4"),
            ("start: ~\"a\"", "1:8"),
            ("start: <|end|>", "1:8"),
            ("start: @other", "1:8"),
            ("start: A\n%import python.NAME", "2:1"),
            ("start: A\n%import common.C_COMMENT -> A", "2:1"),
            ("start: A\nA: /a\\n/\n%ignore \" \"", "3:1"),
            ("start: A\nA: /a\\n/ & /a./", "2:10"),
        ] {
            let error = lark(grammar).expect_err(grammar);
            assert_eq!((error.kind, error.path.as_str()), (Kind::Unsupported, place), "{grammar}: {error}");
        }
    }
}
