//! What can go wrong with a client's grammar, in words for the client.
//!
//! A [`CompileError`] names where in the source the trouble is and why; a [`MatchError`] is what a matcher says when a
//! token does not fit. Both quote the client's text only shortened and escaped, so that an answer stays small and a log
//! line stays one line.

use std::fmt::{self, Display};

/// The longest text an error shows, in bytes.
const LONGEST: usize = 500;
/// Of which this much may be the path.
pub(crate) const LONGEST_PATH: usize = 160;

/// Why a grammar is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The source, or what it compiles to, is over a limit of size.
    TooLarge,
    /// The schema or the grammar is nested too deeply.
    TooDeep,
    /// Compiling took longer than the limit.
    TimedOut,
    /// The request is gone.
    Cancelled,
    /// Well-formed, but it says something that cannot be turned into a grammar without accepting invalid text.
    Unsupported,
    /// Not a schema, a regular expression or a grammar at all.
    Invalid,
    /// No text matches it, or none that this vocabulary can spell.
    Unsatisfiable,
    /// Every thread that compiles is at work, for longer than a request waits. Not the client's fault.
    Busy,
    /// The compiler failed where it should not have. Not the client's fault.
    Internal,
}

impl Kind {
    /// It would be refused at any other time, too.
    pub(crate) fn is_of_the_source(self) -> bool {
        match self {
            Kind::TooLarge | Kind::TooDeep | Kind::Unsupported | Kind::Invalid | Kind::Unsatisfiable => true,
            Kind::TimedOut | Kind::Cancelled | Kind::Busy | Kind::Internal => false,
        }
    }
}

/// A grammar that is refused, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    pub kind: Kind,
    /// A JSON pointer into the schema, `line:column` for Lark, empty where the whole source is meant.
    pub path: String,
    pub reason: String,
}

impl std::error::Error for CompileError {}

impl CompileError {
    pub(crate) fn new(kind: Kind, reason: impl Into<String>) -> CompileError {
        CompileError { kind, path: String::new(), reason: reason.into() }
    }

    pub(crate) fn at(kind: Kind, path: impl Into<String>, reason: impl Into<String>) -> CompileError {
        CompileError { kind, path: path.into(), reason: reason.into() }
    }
}

impl Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if !self.path.is_empty() {
            text.push_str(&shortened(&self.path, LONGEST_PATH));
            text.push_str(": ");
        }
        text.push_str(&shortened(&self.reason, LONGEST - LONGEST_PATH - 8));
        f.write_str(&text)
    }
}

/// Why a matcher goes no further. The matcher stays unusable after it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    #[error("token {0} does not follow in the grammar")]
    NotAllowed(u32),
    #[error("the grammar allows no token of this vocabulary here")]
    Stuck,
    #[error("the grammar is too ambiguous here: {0}")]
    TooComplex(String),
    #[error("the mask has {got} words of 32 tokens, the vocabulary needs {needed}")]
    MaskSize { got: usize, needed: usize },
    #[error("the matcher has already ended: {0}")]
    Ended(String),
}

/// `text` in at most `most` bytes, with control characters escaped and a cut marked.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let mut out = String::new();
    for character in text.chars() {
        let mut buffer = [0; 4];
        let escaped;
        let piece: &str = if character.is_control() || character == '\u{2028}' || character == '\u{2029}' {
            escaped = character.escape_default().to_string();
            &escaped
        } else {
            character.encode_utf8(&mut buffer)
        };
        if out.len() + piece.len() + '…'.len_utf8() > most {
            out.push('…');
            return out;
        }
        out.push_str(piece);
    }
    out
}

/// With the limit that llguidance names, in our words.
pub(crate) fn too_complex(text: &str) -> MatchError {
    let after = |words: &str| {
        let (_, rest) = text.split_once(words)?;
        rest.split(|letter: char| !letter.is_ascii_digit()).next()
    };
    MatchError::TooComplex(if let Some(limit) = after("items; max is ") {
        format!("it needs more than {limit} parser items for a byte")
    } else if let Some(limit) = after("Too many items (limit ") {
        format!("it needs more than {limit} parser items for a mask")
    } else if let Some(limit) = after("too many states: ").and_then(|_| after(" >= ")) {
        format!("its lexer needs more than {limit} states")
    } else if text.contains("too many expressions constructed") {
        "its lexer takes too many steps for a mask".into()
    } else {
        first_line(text)
    })
}

/// The first line of what llguidance says; the rest is its state, or a backtrace.
pub(crate) fn first_line(text: &str) -> String {
    shortened(text.lines().next().unwrap_or_default(), 300)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sent_is_escaped_and_cut() {
        let error = CompileError::at(Kind::Invalid, "/a\n/b".repeat(200), "x\u{0}".repeat(4000));
        let text = error.to_string();
        assert!(text.len() <= LONGEST, "{}", text.len());
        assert!(!text.chars().any(char::is_control));
        assert!(text.starts_with("/a\\n/b"));
        assert!(text.ends_with('…'));
    }

    #[test]
    fn a_short_error_is_whole() {
        let error = CompileError::at(Kind::Unsupported, "/properties/a", "`contains` is not supported");
        assert_eq!(error.to_string(), "/properties/a: `contains` is not supported");
        assert_eq!(CompileError::new(Kind::TimedOut, "late").to_string(), "late");
    }
}
