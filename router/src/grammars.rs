//! Compiles what requests ask for through `penstock-constraint`, and gives the scheduler its matchers. Knows the types of
//! both sides; made once when the model is loaded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_constraint::{Cancel, CompileError, Compiler, Content, Kind, Limits, Source, Token, Tokenize};
use penstock_core::constraint::{
    Grammar, GrammarCompiler, GrammarError, GrammarRequest, GrammarSource, Matcher,
};
use penstock_core::prompt::Vocabulary;
use penstock_output::Unbound;
use penstock_proto::ModelDescription;
use penstock_proto::ids::TokenId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::config::RouterArgs;

#[derive(Debug)]
struct Grammars(Compiler);

#[derive(Debug)]
struct Compiled(Arc<penstock_constraint::Grammar>);

/// The scheduler makes one for each sequence. To copy what the grammar begins with may take a part of a millisecond, so the first
/// job of the sequence does it, on a thread for masks.
struct Following {
    grammar: Arc<penstock_constraint::Grammar>,
    matcher: Option<penstock_constraint::Matcher>,
}

impl Following {
    fn begun(&mut self) -> &mut penstock_constraint::Matcher {
        self.matcher.get_or_insert_with(|| self.grammar.matcher())
    }
}

/// The compiler of this model's grammars, or why there is none, for clients. Blocks for up to a second.
pub fn compiler(
    args: &RouterArgs,
    vocabulary: &Arc<Vocabulary>,
    model: &ModelDescription,
    eos: &[TokenId],
) -> Result<Arc<dyn GrammarCompiler>, String> {
    if args.disable_grammar_support {
        return Err("this server was started with --disable-grammar-support".into());
    }
    let began = Instant::now();
    let token = |id| {
        let id = TokenId(id);
        Token { bytes: vocabulary.bytes(id), special: vocabulary.is_special(id) || eos.contains(&id) }
    };
    let tokens = (0..model.vocab_size).map(token).collect();
    let ends: Vec<u32> = eos.iter().map(|id| id.0).collect();
    let limits = Limits { timeout: Duration::from_millis(args.grammar_timeout_ms), ..Limits::default() };
    let spelling = vocabulary.clone();
    let tokenize = move |text: &str| match spelling.tokenizer().encode_fast(text, false) {
        Ok(encoding) => encoding.get_ids().to_vec(),
        Err(_) => Vec::new(),
    };
    let tokenize: Tokenize = Arc::new(tokenize);
    match Compiler::with_tokenizer(tokens, model.vocab_size as usize, &ends, limits, Some(tokenize)) {
        Ok(compiler) => {
            info!("indexed the vocabulary for grammars in {:.1} s", began.elapsed().as_secs_f64());
            Ok(Arc::new(Grammars(compiler)))
        }
        Err(why) => {
            warn!("requests with a grammar will be refused: {why}");
            Err(format!("this model's vocabulary cannot be constrained: {why}"))
        }
    }
}

/// What a request asks for; or why nothing of its size or depth is compiled. As fast as the source is read.
pub fn request(source: GrammarSource) -> Result<GrammarRequest, String> {
    let source = to_compile(source);
    let content = source.content(&Limits::default()).map_err(|error| error.to_string())?;
    let Content { digest, bytes } = content;
    Ok(GrammarRequest::new(as_asked(source), digest, bytes))
}

impl GrammarCompiler for Grammars {
    fn find(&self, request: &GrammarRequest) -> Option<Arc<dyn Grammar>> {
        let content = Content { digest: request.digest(), bytes: request.bytes() };
        Some(Arc::new(Compiled(self.0.find(&content)?)))
    }

    fn compile(
        &self,
        request: GrammarRequest,
        cancelled: &CancellationToken,
    ) -> Result<Arc<dyn Grammar>, GrammarError> {
        let cancel = Cancel::new();
        let (gone, told) = (cancelled.clone(), cancel.clone());
        let _watch = AbortOnDropHandle::new(tokio::spawn(async move {
            gone.cancelled().await;
            told.cancel();
        }));
        match self.0.compile(to_compile(request.into_source()), &cancel) {
            Ok(grammar) => Ok(Arc::new(Compiled(grammar))),
            Err(error) => {
                let text = error.to_string();
                Err(match error.kind {
                    Kind::Busy => GrammarError::Busy(text),
                    Kind::Internal => GrammarError::Internal(text),
                    _ => GrammarError::Invalid(text),
                })
            }
        }
    }
}

fn to_compile(source: GrammarSource) -> Source {
    match source {
        GrammarSource::JsonObject => Source::JsonObject,
        GrammarSource::JsonSchema(schema) => Source::JsonSchema(schema),
        GrammarSource::Regex(pattern) => Source::Regex(pattern),
        GrammarSource::Choice(texts) => Source::Choice(texts),
        GrammarSource::Lark(text) => Source::Lark(text),
        GrammarSource::Parts(parts) => Source::Parts(parts),
    }
}

fn as_asked(source: Source) -> GrammarSource {
    match source {
        Source::JsonObject => GrammarSource::JsonObject,
        Source::JsonSchema(schema) => GrammarSource::JsonSchema(schema),
        Source::Regex(pattern) => GrammarSource::Regex(pattern),
        Source::Choice(texts) => GrammarSource::Choice(texts),
        Source::Lark(text) => GrammarSource::Lark(text),
        Source::Parts(parts) => GrammarSource::Parts(parts),
    }
}

impl Grammar for Compiled {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(Following { grammar: self.0.clone(), matcher: None })
    }

    fn unbound(&self) -> Vec<Unbound> {
        let told = |error: &CompileError| Unbound { at: error.path.clone(), why: error.reason.clone() };
        self.0.unbound.iter().map(told).collect()
    }
}

impl Matcher for Following {
    fn advance(&mut self, token: TokenId) -> Result<(), String> {
        self.begun().advance(token.0).map_err(|error| error.to_string())
    }

    fn try_advance(&mut self, token: TokenId) -> Result<bool, String> {
        self.begun().try_advance(token.0).map_err(|error| error.to_string())
    }

    fn is_free(&self) -> bool {
        self.matcher.as_ref().is_some_and(penstock_constraint::Matcher::is_free)
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        self.begun().mask(words).map_err(|error| error.to_string())
    }

    fn take_forced(&mut self, most: usize) -> Result<Vec<TokenId>, String> {
        let taken = self.begun().take_forced(most).map_err(|error| error.to_string())?;
        Ok(taken.into_iter().map(TokenId).collect())
    }

    fn is_complete(&self) -> bool {
        self.matcher.as_ref().is_some_and(penstock_constraint::Matcher::is_complete)
    }

    fn fork(&mut self) -> Box<dyn Matcher> {
        Box::new(Following { grammar: self.grammar.clone(), matcher: Some(self.begun().fork()) })
    }
}
