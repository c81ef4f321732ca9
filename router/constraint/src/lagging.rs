//! A parser that may be some tokens behind its text. Where the text goes is often known without it (`automaton.rs`, `within.rs`); it takes those
//! tokens when it is asked something. Only [`Lagging::at_text`] gives it out, so that nobody asks it at another place.

use std::collections::VecDeque;

use llguidance::{TokenParser, api::StopReason, derivre::StateID, earley::regexvec::LexerStats, panic_utils};

use crate::{
    error::{MatchError, first_line, too_complex},
    within,
};

/// The most tokens that it is behind: to take them holds up the token after them, each for one to two microseconds.
const MOST_BEHIND: usize = 32;

#[derive(Clone)]
pub(crate) struct Lagging {
    parser: TokenParser,
    /// What it has still to take.
    behind: VecDeque<u32>,
}

impl Lagging {
    pub(crate) fn new(parser: TokenParser) -> Lagging {
        Lagging { parser, behind: VecDeque::new() }
    }

    pub(crate) fn into_parser(self) -> TokenParser {
        debug_assert!(self.behind.is_empty());
        self.parser
    }

    /// The parser, where the text is.
    pub(crate) fn at_text(&mut self) -> Result<&mut TokenParser, MatchError> {
        while let Some(token) = self.behind.pop_front() {
            self.consume(token)?;
        }
        Ok(&mut self.parser)
    }

    /// Has the parser take a token that may follow.
    pub(crate) fn take(&mut self, token: u32) -> Result<(), MatchError> {
        self.at_text()?;
        self.consume(token)
    }

    /// A token of which all is known; the parser takes it later.
    pub(crate) fn put_off(&mut self, token: u32) -> Result<(), MatchError> {
        self.behind.push_back(token);
        match self.behind.len() > MOST_BEHIND {
            true => self.behind.pop_front().map_or(Ok(()), |oldest| self.consume(oldest)),
            false => Ok(()),
        }
    }

    /// It is at the text, and nothing more may follow.
    pub(crate) fn is_stopped(&self) -> bool {
        self.behind.is_empty()
            && matches!(self.parser.stop_reason(), StopReason::NoExtension | StopReason::EndOfSentence)
    }

    pub(crate) fn lexer_stats(&self) -> LexerStats {
        self.parser.parser.lexer_stats()
    }

    /// The lexer's state behind bytes that stay within a terminal. Asks nothing of the parser, so it need not be at the text.
    pub(crate) fn state_behind(
        &mut self,
        state: StateID,
        bytes: &[u8],
    ) -> Result<Option<StateID>, MatchError> {
        guarded(&mut self.parser, |parser| {
            Ok(parser.parser.with_recognizer(|recognizer| within::behind(recognizer, state, bytes)))
        })
        .map_err(|cause| too_complex(&cause))
    }

    fn consume(&mut self, token: u32) -> Result<(), MatchError> {
        let taken = guarded(&mut self.parser, |parser| {
            // None of our grammars has the rules that take tokens back.
            let taken = parser.consume_token(token).and_then(|_| parser.check_stop()).map(drop);
            taken.map_err(|cause| cause.to_string())
        });
        taken.map_err(|text| {
            if text.contains("satisfy the grammar") || text.contains("fails parse") {
                MatchError::NotAllowed(token)
            } else {
                too_complex(&text)
            }
        })
    }
}

/// A panic of the parser is an error of one matcher.
pub(crate) fn guarded<T>(
    parser: &mut TokenParser,
    step: impl FnOnce(&mut TokenParser) -> Result<T, String>,
) -> Result<T, String> {
    let done = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| Ok(step(parser))));
    done.map_err(|cause| first_line(&cause.to_string()))?
}
