//! What a constrained sequence may say: what a request asks for, who compiles it, and, as the scheduler sees it, a grammar
//! that starts matchers. Knows no compiler; `generation` calls one, the scheduler calls matchers.

use std::fmt::Debug;
use std::sync::Arc;

use penstock_output::{Part, Unbound};
use penstock_proto::ids::TokenId;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::blocking::SHORT;

/// What the text has to be.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    JsonSchema(Value),
    /// The whole text matches it.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    Lark(String),
    /// What the server composes, around schemas of the client.
    Parts(Vec<Part>),
}

/// A grammar that a request asks for, and what it is found by. Copies share the source, which may have many times the memory of
/// its text.
#[derive(Clone, Debug)]
pub struct GrammarRequest {
    source: Arc<GrammarSource>,
    digest: ContentDigest,
    bytes: usize,
}

/// Of a source's content: two with the same are the same grammar, whoever asks.
pub type ContentDigest = [u8; 32];

impl GrammarRequest {
    /// `bytes` are those of the source, about: what compiling takes grows with them.
    pub fn new(source: GrammarSource, digest: ContentDigest, bytes: usize) -> Self {
        Self { source: Arc::new(source), digest, bytes }
    }

    pub fn digest(&self) -> ContentDigest {
        self.digest
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A copy where others have it too.
    pub fn into_source(mut self) -> GrammarSource {
        match Arc::get_mut(&mut self.source) {
            Some(own) => {
                self.bytes = 0;
                std::mem::replace(own, GrammarSource::JsonObject)
            }
            None => GrammarSource::clone(&self.source),
        }
    }
}

impl Drop for GrammarRequest {
    /// To let go of a long source takes as long as to read it, and that is no work for an async thread.
    fn drop(&mut self) {
        if self.bytes > SHORT
            && let Some(own) = Arc::get_mut(&mut self.source)
            && let Ok(runtime) = Handle::try_current()
        {
            let source = std::mem::replace(own, GrammarSource::JsonObject);
            runtime.spawn_blocking(move || drop(source));
        }
    }
}

pub trait GrammarCompiler: Debug + Send + Sync {
    /// The grammar, if it is compiled already.
    fn find(&self, request: &GrammarRequest) -> Option<Arc<dyn Grammar>>;

    /// Blocks. Ends soon after `cancelled` is, and within the compiler's own limit of time.
    fn compile(
        &self,
        request: GrammarRequest,
        cancelled: &CancellationToken,
    ) -> Result<Arc<dyn Grammar>, GrammarError>;
}

/// Why a grammar was not compiled. Texts are for the client.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GrammarError {
    /// What of it cannot be compiled, where, and why.
    #[error("{0}")]
    Invalid(String),
    /// The server has too much to compile.
    #[error("{0}")]
    Busy(String),
    /// The compiler is at fault. Not for the client.
    #[error("{0}")]
    Internal(String),
}

/// A compiled grammar, shared by all sequences that have it.
pub trait Grammar: Debug + Send + Sync {
    fn matcher(&self) -> Box<dyn Matcher>;

    /// What it is not held to, of what was asked for where it can be.
    fn unbound(&self) -> Vec<Unbound> {
        Vec::new()
    }
}

/// The state of one sequence's grammar. Its calls may take milliseconds: they run on threads of their own. An error's text
/// is for the client.
pub trait Matcher: Send {
    /// Takes a token that was sampled.
    fn advance(&mut self, token: TokenId) -> Result<(), String>;

    /// Takes a token that was sampled without a mask, if it may follow. If not, the matcher stays where it is.
    fn try_advance(&mut self, token: TokenId) -> Result<bool, String> {
        self.advance(token).map(|()| true)
    }

    /// Every token of text may follow here, and the end: rows need no mask, and `try_advance` looks at their tokens. Known
    /// once `mask` was asked.
    fn is_free(&self) -> bool {
        false
    }

    /// Overwrites `words` with the tokens that may follow, as the contract's `Masks` has them. Those that end the
    /// sequence are among them exactly when the grammar may end here.
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String>;

    /// Takes the tokens that alone may follow, as the text would be tokenized, and says which: at most `most`.
    fn take_forced(&mut self, most: usize) -> Result<Vec<TokenId>, String>;

    /// Nothing may follow but the end.
    fn is_complete(&self) -> bool;

    /// Another matcher at the same place: where it goes, this one does not.
    fn fork(&mut self) -> Box<dyn Matcher>;
}
