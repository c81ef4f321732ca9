//! Turns a client's grammar into masks over a model's vocabulary: JSON, JSON schema, a regular expression, a choice of
//! texts, or a Lark grammar.
//!
//! ```text
//! Source --content--> cache? --schema::to_core, pattern, lark--> llguidance --> Grammar --matcher()--> Matcher
//! ```
//!
//! A [`Compiler`] holds the vocabulary and compiles; a [`Grammar`] is shared between requests; a [`Matcher`] belongs to
//! one text. The rule that everything here keeps: a text that a mask lets through is valid, and what cannot be held to
//! that is refused when it is compiled. [`schema`] therefore rewrites a schema into the keywords that llguidance
//! treats soundly, and refuses the rest with the place and the reason.

mod automaton;
mod blame;
mod budget;
mod cache;
mod compiler;
mod complement;
mod ecma;
mod error;
mod forced;
mod free_text;
mod grammar;
mod guidance;
mod known;
mod lagging;
mod lark;
mod learned;
mod limits;
mod matcher;
mod other_texts;
mod parts;
mod pattern;
mod places;
mod quoted;
mod schema;
mod slicer;
mod source;
mod spelling;
mod spread;
mod stop;
mod trie;
mod vocabulary;
mod weight;
mod within;
mod yields;

pub use compiler::{CacheCounts, Compiler};
pub use error::{CompileError, Kind, MatchError};
pub use forced::Tokenize;
pub use limits::Limits;
pub use matcher::{Grammar, Matcher};
pub use penstock_output::{Part, Words};
pub use source::{Content, Source};
pub use stop::Cancel;
pub use vocabulary::Token;
