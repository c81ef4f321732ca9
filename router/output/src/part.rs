//! Parts of a text that is to be, as grammars are made of them.

use serde_json::{Map, Value};

/// A part of a text. Where a text or a marker has the name of a special token in it, that token is meant; free text has
/// no special tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Exactly this.
    Text(String),
    /// This, after space and line breaks or at once.
    Opening(String),
    /// JSON that the schema accepts. `at` is where the client gave it, for errors.
    Json {
        schema: Value,
        at: String,
    },
    /// What stands between the quotes of a JSON string whose text is one of this grammar, in Lark's notation. `at` is where
    /// the client gave it.
    Quoted {
        lark: String,
        at: String,
    },
    /// Any JSON object.
    JsonObject,
    /// Any value as Gemma 4 writes it: objects with bare keys, and strings between two of this mark.
    Braced(&'static str),
    /// A key of such an object, of any name; or that between two of the mark.
    BareKey(&'static str),
    /// A text that the client's expression matches.
    Regex(String),
    /// A text that the server's expression matches. It stands in no free text.
    Expression(&'static str),
    /// One of these texts.
    Choice(Vec<String>),
    /// A number of up to three digits.
    Number,
    /// Space and line breaks, or none.
    Space,
    /// Any text up to the first `marker`, and the marker. It neither holds one of `without` nor begins with `not_first`.
    Until {
        marker: String,
        without: Vec<String>,
        not_first: Option<String>,
    },
    /// Any text, or none, that neither holds one of `without` nor begins with `not_first`.
    Free {
        without: Vec<String>,
        not_first: Option<String>,
    },
    /// One of `words` as it stands, then `close`. It holds none of `without`, and its first character is none of `not_first`.
    Words {
        words: Vec<Words>,
        without: Vec<String>,
        not_first: String,
        close: String,
    },
    OneOf(Vec<Vec<Part>>),
    /// `asked`, or, where that cannot be compiled, `instead`; then the grammar says why. `at` is where the client asked for it.
    IfPossible {
        asked: Vec<Part>,
        instead: Vec<Part>,
        at: String,
    },
    /// `part` so many times, with `between` between two.
    Repeat {
        part: Vec<Part>,
        between: Vec<Part>,
        least: u32,
        most: Option<u32>,
    },
    /// One or more of `members`, in their order, with `between` between two.
    SomeOf {
        members: Vec<Vec<Part>>,
        between: Vec<Part>,
    },
}

/// Text that is an argument without quotes.
#[derive(Clone, Debug, PartialEq)]
pub enum Words {
    /// What these keywords of a JSON schema accept: lengths, `pattern`, `format`. `at` is where the client gave them.
    String {
        schema: Map<String, Value>,
        at: String,
    },
    Exactly(Vec<String>),
    /// What the server's expression matches.
    Expression(&'static str),
}

impl Words {
    /// Bytes of what clients gave of it, about.
    pub fn bytes(&self) -> usize {
        match self {
            Words::String { schema, .. } => {
                schema.iter().map(|(key, value)| key.len() + value.to_string().len()).sum()
            }
            Words::Exactly(texts) => texts.iter().map(String::len).sum(),
            Words::Expression(_) => 0,
        }
    }
}

/// A function whose calls are to be right.
#[derive(Clone, Debug, PartialEq)]
pub struct Callable {
    pub name: String,
    /// JSON schema of its arguments; null for one that takes none.
    pub schema: Value,
    /// Where the client gave the schema, or the grammar.
    pub at: String,
    /// The grammar, in Lark's notation, of its one argument `input`, a text.
    pub lark: Option<String>,
    /// Where its calls cannot be held to that, there are none: else they are held to nothing, and the client is told.
    pub is_strict: bool,
}
