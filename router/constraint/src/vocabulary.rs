//! The model's vocabulary as llguidance wants it: a trie of the tokens' bytes.
//!
//! Special tokens are left out of the trie, and text has none: only the server's own grammars ask for some by id. What a vocabulary must have for constrained
//! text is checked here, once, at start.

use std::sync::Arc;

use llguidance::{
    Logger, ParserFactory, TokenParser,
    api::{GrammarInit, ParserLimits, TopLevelGrammar},
    earley::{Parser, perf::ParserPerfCounters},
    panic_utils,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie},
};

use crate::{
    budget::Budget,
    forced::{Speller, Tokenize},
    limits::Limits,
    slicer::{self, Slicer},
    spelling::Spelling,
};

/// One token of the model's vocabulary; its id is its index.
#[derive(Clone, Debug)]
pub struct Token {
    /// The bytes it adds to the text.
    pub bytes: Vec<u8>,
    /// It is never part of the text: ends, roles, padding, reserved ids.
    pub special: bool,
}

/// The trie has ten bits for the length of a token.
const LONGEST_TOKEN: usize = 1000;
/// The trie has 22 bits for its nodes.
const MOST_TOKENS: usize = 2_000_000;

/// The vocabulary with what every mask needs of it.
pub(crate) struct Vocabulary {
    env: TokEnv,
    /// Of no grammar in particular: what a parser has beside its grammar.
    blank: TokenParser,
    pub(crate) slicer: Arc<Slicer>,
    parser_limits: ParserLimits,
    /// Bits of the tokens that text may have: not special, not empty, within the logits.
    text: Arc<[u32]>,
    /// Of them, those that may stand anywhere between two characters.
    between_characters: Vec<u32>,
    /// Names and ids of the special tokens that do not end a text, the longest first.
    special: Vec<(Vec<u8>, u32)>,
    /// None: every character can be spelled.
    pub(crate) spelling: Option<Spelling>,
    /// What a grammar forces can be told in the model's own tokens.
    pub(crate) speller: Option<Speller>,
    /// What its grammars may learn of their texts.
    pub(crate) budget: Arc<Budget>,
    /// The most that a matcher's lexer may hold, in bytes.
    pub(crate) matcher_bytes: usize,
    /// The ids that end a text; sorted, each within the logits.
    pub(crate) eos: Vec<u32>,
    /// Words of 32 tokens in a mask.
    pub(crate) words: usize,
}

impl Vocabulary {
    pub(crate) fn new(
        tokens: Vec<Token>,
        vocab_size: usize,
        eos_ids: &[u32],
        limits: &Limits,
        tokenize: Option<Tokenize>,
    ) -> Result<Vocabulary, String> {
        if vocab_size == 0 || vocab_size > MOST_TOKENS || tokens.len() > MOST_TOKENS {
            return Err(format!("a vocabulary of {vocab_size} tokens cannot be constrained"));
        }
        if eos_ids.is_empty() {
            return Err("the model has no end-of-sequence token, so no constrained text could end".into());
        }
        let mut eos = eos_ids.to_vec();
        eos.sort_unstable();
        eos.dedup();
        if let Some(id) = eos.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(format!("end-of-sequence token {id} is outside the {vocab_size} logits"));
        }

        let words = vocab_size.div_ceil(32);
        let mut text = vec![0u32; words];
        let mut between_characters = vec![0u32; words];
        let mut in_trie = vec![Vec::new(); vocab_size];
        let mut single = [false; 256];
        let mut spelling = Spelling::default();
        let mut too_long = 0;
        let mut special = Vec::new();
        for (id, token) in tokens.into_iter().enumerate().take(vocab_size) {
            // 0xff never occurs in UTF-8, and llguidance reads it as the mark of a special token.
            let is_text = !token.special && !token.bytes.is_empty() && !token.bytes.contains(&0xff);
            let ends = eos.binary_search(&(id as u32)).is_ok();
            if token.special && !ends && !token.bytes.is_empty() {
                special.push((token.bytes, id as u32));
                continue;
            }
            if !is_text || ends {
                continue;
            }
            if token.bytes.len() > LONGEST_TOKEN {
                too_long += 1;
                continue;
            }
            if let [byte] = token.bytes[..] {
                single[byte as usize] = true;
            }
            spelling.add(&token.bytes);
            text[id / 32] |= 1 << (id % 32);
            // The last character may go on in the next token.
            if !matches!(std::str::from_utf8(&token.bytes), Err(error) if error.error_len().is_some()) {
                between_characters[id / 32] |= 1 << (id % 32);
            }
            in_trie[id] = token.bytes;
        }
        let missing: Vec<char> =
            (0x20..0x7f_u8).filter(|&byte| !single[byte as usize]).map(char::from).collect();
        if !missing.is_empty() {
            let shown: String = missing.iter().take(10).collect();
            return Err(format!(
                "the vocabulary has no token of its own for {} of the 95 printable ASCII characters ({shown:?}), so JSON \
                 could not always be spelled",
                missing.len()
            ));
        }
        if too_long > 0 {
            tracing::warn!(
                tokens = too_long,
                "tokens longer than {LONGEST_TOKEN} bytes are left out of constrained text"
            );
        }

        let parser_limits = ParserLimits {
            max_items_in_row: limits.row_items,
            initial_lexer_fuel: limits.lexer_fuel,
            step_lexer_fuel: limits.step_lexer_fuel,
            step_max_items: limits.step_items,
            max_lexer_states: limits.lexer_states,
            max_grammar_size: limits.symbols,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let build = || -> Result<(TokEnv, TokenParser, Arc<Slicer>, Option<Speller>), String> {
            let info = TokRxInfo::new(vocab_size as u32, eos[0]);
            let trie = TokTrie::from(&info, &in_trie).with_eos_tokens(&eos);
            let speller = tokenize.and_then(|tokenize| Speller::new(tokenize, &trie));
            // One that says of itself that it is not canonical, so that llguidance forces nothing by itself.
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let refused = |cause: String| format!("the vocabulary cannot be indexed: {cause}");
            let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &[])
                .map_err(|cause| refused(cause.to_string()))?;
            factory.quiet();
            // Not a client's, so that no limit is for it.
            let mut any = factory
                .create_parser(TopLevelGrammar::from_lark("start: /(?s:.*)/\n".into()))
                .map_err(|cause| refused(cause.to_string()))?;
            *factory.limits_mut() = parser_limits.clone();
            let mut blank = factory
                .create_parser(TopLevelGrammar::from_lark("start: \"a\"\n".into()))
                .map_err(|cause| refused(cause.to_string()))?;
            let mut slicer = Slicer::new(env.clone());
            any.start_without_prompt();
            any.parser.with_recognizer(|recognizer| slicer.measure(recognizer));
            let slicer = Arc::new(slicer);
            blank.bias_computer = slicer.clone();
            Ok((env, blank, slicer, speller))
        };
        let (env, blank, slicer, speller) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(build))
            .unwrap_or_else(|_| {
                Err("the vocabulary cannot be indexed: its tokens do not fit a trie".into())
            })?;
        special.sort_unstable_by_key(|(name, id)| (std::cmp::Reverse(name.len()), *id));
        let matcher_bytes = limits.matcher_bytes;
        Ok(Vocabulary {
            env,
            blank,
            slicer,
            parser_limits,
            text: text.into(),
            between_characters,
            special,
            spelling: spelling.settled(),
            speller,
            budget: Arc::new(Budget::new(limits)),
            matcher_bytes,
            eos,
            words,
        })
    }

    /// A parser of this grammar. As llguidance makes them, but with lexemes of our own to compute masks with.
    pub(crate) fn parser(&self, grammar: TopLevelGrammar) -> Result<TokenParser, String> {
        let build = || {
            let limits = || self.parser_limits.clone();
            let grammar = GrammarInit::Serialized(grammar).to_cgrammar(
                Some(self.env.clone()),
                &mut Logger::new(0, 0),
                limits(),
                slicer::lexemes(),
            )?;
            let counters = Arc::new(ParserPerfCounters::default());
            Parser::new(self.env.clone(), grammar, limits(), counters)
        };
        let mut parser = self.blank.clone();
        parser.parser = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(build))
            .map_err(|cause| cause.to_string())?;
        Ok(parser)
    }

    /// Bits of the tokens that text may have, and of these special ones.
    pub(crate) fn text_and(&self, special: &[u32]) -> Arc<[u32]> {
        if special.is_empty() {
            return self.text.clone();
        }
        let mut bits = self.text.to_vec();
        for id in special {
            bits[*id as usize / 32] |= 1 << (id % 32);
        }
        bits.into()
    }

    /// The mask has every token that text may go on with between two characters, and lets the text end.
    pub(crate) fn is_free(&self, mask: &[u32]) -> bool {
        let has_all = mask.iter().zip(&self.between_characters).all(|(mask, all)| all & !mask == 0);
        has_all && self.eos.iter().all(|&id| mask[id as usize / 32] >> (id % 32) & 1 == 1)
    }

    pub(crate) fn is_text(&self, token: u32) -> bool {
        self.text.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Of a token that is text.
    pub(crate) fn bytes(&self, token: u32) -> &[u8] {
        self.env.tok_trie().token(token)
    }

    /// The first special token whose name is in `text`: where, the length of the name, the id.
    pub(crate) fn special_in(&self, text: &str) -> Option<(usize, usize, u32)> {
        let text = text.as_bytes();
        (0..text.len()).find_map(|at| {
            let (name, id) = self.special.iter().find(|(name, _)| text[at..].starts_with(name))?;
            Some((at, name.len(), *id))
        })
    }

    pub(crate) fn is_eos(&self, token: u32) -> bool {
        self.eos.binary_search(&token).is_ok()
    }
}
