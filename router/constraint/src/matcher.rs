//! A compiled grammar, and a matcher that walks one text through it.
//!
//! Matchers share nothing that changes while they work: each has its own lexer states and parser rows, so one request can
//! neither slow nor break another's, and a panic of the parser ends one matcher only. What one has learned others begin with.

use std::sync::Arc;

use llguidance::TokenParser;

use crate::{
    automaton::{Edge, Ended, KnownMask, Node, Spot},
    error::{CompileError, Kind, MatchError, first_line, too_complex},
    forced::Speller,
    free_text::{FreeText, Passed},
    known::Known,
    lagging::{Lagging, guarded},
    learned::{Beginning, Learned},
    vocabulary::Vocabulary,
    within::{self, Within, has},
};

/// After so many masks, and twice as many each time, a text that goes on gives back what it learned: to copy its lexer takes up
/// to half a millisecond.
const FIRST_LESSON: u64 = 32;

/// A grammar that was compiled; starts matchers without compiling again.
pub struct Grammar {
    vocabulary: Arc<Vocabulary>,
    /// Bits of the tokens that it may ask for at all, less those that end a text.
    may: Arc<[u32]>,
    /// A parser at its start, with the lexer states that the first mask needed, and those of earlier texts.
    learned: Arc<Learned>,
    first_mask: Arc<[u32]>,
    /// None: the text is bound everywhere.
    free_text: Option<FreeText>,
    /// The text is free from its beginning on.
    begins_free: bool,
    /// Its only text is the empty one.
    only_end: bool,
    bytes: usize,
    /// Why parts of it are not as they were asked for: each `Part::IfPossible` that was not.
    pub unbound: Vec<CompileError>,
}

impl Grammar {
    /// Takes over a parser that was just made, and computes the first mask. `written` is the size of what it was made of;
    /// `is_terminal`: it is a lexer's terminal and nothing else.
    pub(crate) fn new(
        vocabulary: Arc<Vocabulary>,
        may: Arc<[u32]>,
        free_text: Option<FreeText>,
        mut parser: TokenParser,
        written: usize,
        is_terminal: bool,
    ) -> Result<Grammar, CompileError> {
        // Without tokens it only notices a grammar whose only text is empty.
        let started = guarded(&mut parser, |parser| {
            parser.start_without_prompt();
            parser.check_stop().map_err(|cause| cause.to_string())
        });
        started.map_err(|cause| CompileError::new(Kind::Invalid, first_line(&cause)))?;
        let mut first_mask = vec![0; vocabulary.words];
        let mut matcher = Matcher {
            vocabulary: vocabulary.clone(),
            may: may.clone(),
            parser: Lagging::new(parser),
            beginning: None,
            state: State::Open,
            first: None,
            last: None,
            free_text: free_text.clone(),
            free: None,
            within: None,
            known: None,
            masks: 0,
            only_end: false,
        };
        matcher.mask(&mut first_mask).map_err(|error| match error {
            MatchError::Stuck => {
                CompileError::new(Kind::Unsatisfiable, "no text of this vocabulary matches the grammar")
            }
            error => CompileError::new(Kind::TooLarge, error.to_string()),
        })?;
        // The rules of the grammar cannot be asked for their size; they grow with what they were written from. Over 1,000
        // grammars (lists of texts, objects, schemas of all shapes) between a fifth and nine tenths of this was resident.
        let lexer = matcher.parser.lexer_stats();
        let bytes =
            2 * lexer.num_bytes + 64 * lexer.num_ast_nodes + 60 * written + 4 * vocabulary.words + (16 << 10);
        let only_end = matcher.only_end;
        let budget = vocabulary.budget.clone();
        Ok(Grammar {
            vocabulary,
            may,
            begins_free: matcher.free.is_some(),
            learned: Learned::new(budget, matcher.parser.into_parser(), is_terminal),
            first_mask: first_mask.into(),
            free_text,
            only_end,
            bytes,
            unbound: Vec::new(),
        })
    }

    /// A matcher at the start of the text.
    pub fn matcher(&self) -> Matcher {
        let (mut parser, beginning) = self.learned.begin();
        // Neither free text nor terminals that end after so many tokens are the same at each place.
        let is_even = self.free_text.is_none() && parser.parser.grammar().lexer_spec().can_rollback();
        let known =
            is_even.then(|| Known::at_start(&beginning, &mut parser, &self.first_mask, self.only_end));
        Matcher {
            vocabulary: self.vocabulary.clone(),
            may: self.may.clone(),
            parser: Lagging::new(parser),
            beginning: Some(beginning),
            state: State::Open,
            first: Some(self.first_mask.clone()),
            last: None,
            free_text: self.free_text.clone(),
            free: self.begins_free.then(|| self.first_mask.clone()),
            within: None,
            known,
            masks: 0,
            only_end: self.only_end,
        }
    }

    #[cfg(test)]
    pub(crate) fn learned(&self) -> &Learned {
        &self.learned
    }

    /// Words of 32 tokens that a mask has.
    pub fn mask_words(&self) -> usize {
        self.vocabulary.words
    }

    /// Memory it holds, as estimated.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// One text on its way through a grammar.
pub struct Matcher {
    vocabulary: Arc<Vocabulary>,
    /// As its grammar's.
    may: Arc<[u32]>,
    parser: Lagging,
    /// Gives back what the text learned, now and then and when it is dropped. The matcher that computes the first mask has none.
    beginning: Option<Beginning>,
    state: State,
    /// The mask of the start, until a token is taken.
    first: Option<Arc<[u32]>>,
    /// The last token that was taken.
    last: Option<u32>,
    free_text: Option<FreeText>,
    /// The mask here and until a marker begins, where the text is free.
    free: Option<Arc<[u32]>>,
    /// Where it is within a terminal, if that is a place that its grammar's texts know.
    within: Option<Within>,
    known: Option<Known>,
    /// Masks that were computed.
    masks: u64,
    /// The last mask had nothing but the end.
    only_end: bool,
}

#[derive(Clone)]
enum State {
    Open,
    /// An end-of-sequence token was taken.
    Ended,
    Failed(MatchError),
}

impl Matcher {
    /// Another matcher at the same place, which goes its own way. It shares the lexer's states, and teaches nothing.
    pub fn fork(&self) -> Matcher {
        Matcher {
            vocabulary: self.vocabulary.clone(),
            may: self.may.clone(),
            parser: self.parser.clone(),
            beginning: None,
            state: self.state.clone(),
            first: self.first.clone(),
            last: self.last,
            free_text: self.free_text.clone(),
            free: self.free.clone(),
            within: self.within.clone(),
            known: self.known.clone(),
            masks: self.masks,
            only_end: self.only_end,
        }
    }

    /// Takes a token that was sampled.
    pub fn advance(&mut self, token: u32) -> Result<(), MatchError> {
        match &self.state {
            State::Open => {}
            State::Ended => return Err(MatchError::Ended("the text has ended".into())),
            State::Failed(error) => return Err(error.clone()),
        }
        let result = self.take(token);
        if let Err(error) = &result {
            self.state = State::Failed(error.clone());
        }
        result
    }

    /// Takes a token that was sampled without a mask, if it may follow. If not, the matcher stays where it is.
    pub fn try_advance(&mut self, token: u32) -> Result<bool, MatchError> {
        let may_follow = match &self.state {
            State::Failed(error) => return Err(error.clone()),
            State::Ended => false,
            State::Open if self.vocabulary.is_eos(token) => self.may_end()?,
            State::Open if !self.may_have(token) || self.is_complete() => false,
            State::Open => {
                if self.goes_on(token)? {
                    return Ok(true);
                }
                let valid = guarded(self.parser.at_text()?, |parser| {
                    parser.validate_tokens_raw(&[token]).map_err(|cause| cause.to_string())
                });
                valid.map_err(|cause| too_complex(&cause))? == 1
            }
        };
        if may_follow {
            self.advance(token)?;
        }
        Ok(may_follow)
    }

    /// Every token of text may follow, and the end. It stays so until a marker begins, which `mask` finds out: this is what
    /// the last mask said.
    pub fn is_free(&self) -> bool {
        self.free.is_some() && matches!(self.state, State::Open)
    }

    /// How many masks were computed; those of free text are one.
    pub fn masks_computed(&self) -> u64 {
        self.masks
    }

    fn take(&mut self, token: u32) -> Result<(), MatchError> {
        if self.vocabulary.is_eos(token) {
            if !self.may_end()? {
                return Err(MatchError::NotAllowed(token));
            }
            self.state = State::Ended;
            return Ok(());
        }
        if !self.may_have(token) || self.is_complete() {
            return Err(MatchError::NotAllowed(token));
        }
        if self.goes_on(token)? {
            return Ok(());
        }
        self.take_by_parser(token)?;
        if let Some(free_text) = &mut self.free_text {
            let passed = match self.vocabulary.is_text(token) {
                true => free_text.pass(self.vocabulary.bytes(token)),
                false => {
                    free_text.interrupt();
                    Passed::Marker
                }
            };
            if passed != Passed::Plain {
                self.free = None;
            }
        }
        Ok(())
    }

    /// Takes a token whose way is known; the parser takes it later.
    fn goes_on(&mut self, token: u32) -> Result<bool, MatchError> {
        let Some(known) = &mut self.known else { return Ok(false) };
        let bytes = || self.vocabulary.bytes(token);
        if let Some(spot) = known.spot.clone()
            && spot.mask().is_some_and(|mask| has(&mask.words, token))
        {
            let mut edge = known.learned.automaton().edge(&spot, token);
            if edge.is_none()
                && self.vocabulary.is_text(token)
                && within::has_number(spot.state, known.states)
            {
                let state = self.parser.state_behind(spot.state, bytes())?;
                let state = state.filter(|state| within::has_number(*state, known.states));
                let mut automaton = known.learned.automaton();
                edge = state
                    .and_then(|state| automaton.spot_within(spot.node, state))
                    .map(|to| Edge { to, stays: true });
                if let Some(edge) = &edge {
                    automaton.learn_edge(&spot, token, edge.clone());
                }
            }
            if let Some(Edge { to, stays }) = edge
                && (to.mask().is_some() || to.is_complete)
            {
                let within = self.within.take().filter(|_| stays);
                self.within = within.and_then(|within| within.moved(to.state, &known.learned));
                (known.node, known.spot) = (Some(to.node), Some(to));
                (self.first, self.last) = (None, Some(token));
                self.parser.put_off(token)?;
                return Ok(true);
            }
        }
        let Some(within) = &mut self.within else { return Ok(false) };
        let mut failed = Ok(());
        let stays = within.advance(token, &known.learned, |state| {
            if !within::has_number(state, known.states) {
                return None;
            }
            let state = self.parser.state_behind(state, bytes()).unwrap_or_else(|error| {
                failed = Err(error);
                None
            })?;
            within::has_number(state, known.states).then_some(state)
        });
        failed?;
        let Some(state) = stays else { return Ok(false) };
        let spot = known.node.and_then(|node| known.learned.automaton().spot(node, state, true, false));
        known.go(spot, token, true);
        (self.first, self.last) = (None, Some(token));
        self.parser.put_off(token)?;
        Ok(true)
    }

    /// Has the parser take a token, and notes where that leads to.
    fn take_by_parser(&mut self, token: u32) -> Result<(), MatchError> {
        let behind = self.node_behind(token)?;
        self.within = None;
        (self.first, self.last) = (None, Some(token));
        self.parser.take(token)?;
        let Some(known) = &mut self.known else { return Ok(()) };
        let stays = behind.is_some_and(|(_, stays)| stays);
        known.node = behind.map(|(node, _)| node);
        let spot = self.spot()?;
        if let Some(known) = &mut self.known {
            known.go(spot, token, stays);
        }
        Ok(())
    }

    /// Where the parser would be behind a token, and whether that stays within the terminal.
    fn node_behind(&mut self, token: u32) -> Result<Option<(Node, bool)>, MatchError> {
        let Some(known) = &self.known else { return Ok(None) };
        let Some(node) = known.node else { return Ok(None) };
        let (learned, states) = (&known.learned, known.states);
        if !self.vocabulary.is_text(token) {
            let Some(spot) = &known.spot else { return Ok(None) };
            return Ok(learned.automaton().behind_special(spot, token).map(|node| (node, false)));
        }
        let bytes = self.vocabulary.bytes(token);
        let ended = guarded(self.parser.at_text()?, |parser| {
            Ok(parser
                .parser
                .with_recognizer(|recognizer| Ended::by(recognizer, bytes, states, learned.space.as_ref())))
        });
        let Some(ended) = ended.map_err(|cause| too_complex(&cause))? else { return Ok(None) };
        Ok(learned.automaton().behind(node, &ended).map(|node| (node, ended.is_none)))
    }

    /// Where the parser is, which is at the text.
    fn spot(&mut self) -> Result<Option<Arc<Spot>>, MatchError> {
        let Some(known) = &self.known else { return Ok(None) };
        let Some(node) = known.node else { return Ok(None) };
        let parser = self.parser.at_text()?;
        let is_complete = parser.stopped();
        let begun = parser.parser.has_pending_lexeme_bytes();
        let state = guarded(parser, |parser| {
            Ok(parser.parser.with_recognizer(|recognizer| recognizer.lexer_state()))
        });
        let state = state.map_err(|cause| too_complex(&cause))?;
        if state.is_dead() || !within::has_number(state, known.states) {
            return Ok(None);
        }
        Ok(known.learned.automaton().spot(node, state, begun, is_complete))
    }

    /// Where the parser is within a terminal, at a place that is known or can be: what this mask says of its end.
    fn learn_place(&mut self, mask: &[u32]) {
        let Some(known) = &mut self.known else { return };
        if let Some(within) = &mut self.within {
            within.learn(mask);
            return;
        }
        let found = self.parser.lexer_stats().num_states;
        let is_new = std::mem::replace(&mut known.found, found) != found;
        let Ok(parser) = self.parser.at_text() else { return };
        // To find a place is to compute its mask again, which must not take what is left of a mask's limits.
        if is_new || !parser.parser.has_pending_lexeme_bytes() {
            return;
        }
        let (slicer, may) = (&self.vocabulary.slicer, &self.may);
        let place = guarded(parser, |parser| {
            Ok(parser.parser.with_recognizer(|recognizer| {
                within::place(recognizer, slicer, may, known.states, &known.learned)
            }))
        });
        self.within = place.ok().flatten().map(|place| Within::new(place, mask));
    }

    /// Sets the bit of every token that may follow: bit `i % 32` of word `i / 32` for token `i`. The buffer is
    /// overwritten. Where the text may end, the bits of all end-of-sequence tokens are set, else none of them.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), MatchError> {
        if words.len() != self.vocabulary.words {
            return Err(MatchError::MaskSize { got: words.len(), needed: self.vocabulary.words });
        }
        match &self.state {
            State::Open => {}
            State::Ended => {
                words.fill(0);
                self.set_eos(words);
                return Ok(());
            }
            State::Failed(error) => return Err(error.clone()),
        }
        if let Some(known) = self.first.as_ref().or(self.free.as_ref()) {
            words.copy_from_slice(known);
            return Ok(());
        }
        let result = self.compute(words);
        if let Err(error) = &result {
            self.state = State::Failed(error.clone());
        }
        result
    }

    fn compute(&mut self, words: &mut [u32]) -> Result<(), MatchError> {
        if self.is_complete() {
            words.fill(0);
            self.set_eos(words);
            return Ok(());
        }
        if let Some(known) = self.spot_mask() {
            words.copy_from_slice(&known.words);
            self.only_end = known.only_end;
            return Ok(());
        }
        if let Some(within) = &mut self.within
            && within.mask(words)
        {
            self.known.iter().for_each(|known| known.learn_mask(words, false));
            return Ok(());
        }
        self.masks += 1;
        let mask = guarded(self.parser.at_text()?, |parser| {
            parser.compute_mask().map_err(|cause| cause.to_string())
        });
        let allowed = mask.map_err(|text| {
            // llguidance's name for a mask without a token.
            if text.contains("NoExtensionBias") { MatchError::Stuck } else { too_complex(&text) }
        })?;
        let held = self.parser.lexer_stats().num_bytes;
        if held > self.vocabulary.matcher_bytes {
            return Err(MatchError::TooComplex(format!(
                "its lexer needs more than {} MiB",
                self.vocabulary.matcher_bytes >> 20
            )));
        }
        if let Some(beginning) = &mut self.beginning
            && self.masks >= FIRST_LESSON
            && self.masks.is_power_of_two()
        {
            beginning.teach();
            if let Some(known) = &mut self.known {
                known.states = beginning.states();
            }
            // Its state may have a number now.
            let spot = self.spot()?;
            if let Some(known) = &mut self.known {
                known.spot = spot;
            }
        }
        let allowed = allowed.as_slice();
        let mut any = 0;
        for (index, (word, may)) in words.iter_mut().zip(&*self.may).enumerate() {
            *word = may & allowed.get(index).copied().unwrap_or(0);
            any |= *word;
        }
        if self.may_end()? {
            self.set_eos(words);
            self.only_end = any == 0;
        } else if any == 0 {
            return Err(MatchError::Stuck);
        } else {
            self.learn_place(words);
        }
        self.known.iter().for_each(|known| known.learn_mask(words, self.only_end));
        let is_plain = self.free_text.as_ref().is_some_and(FreeText::is_plain);
        if is_plain && self.vocabulary.is_free(words) {
            self.free = Some((&*words).into());
        }
        Ok(())
    }

    /// Takes the tokens that alone may follow, spelled as the model's tokenizer spells their text, and returns them: at most
    /// `most`. The last letters of a forced text are left where what follows may belong to their token.
    pub fn take_forced(&mut self, most: usize) -> Result<Vec<u32>, MatchError> {
        let mut taken = Vec::new();
        let vocabulary = self.vocabulary.clone();
        let Some(speller) = &vocabulary.speller else { return Ok(taken) };
        while taken.len() < most && matches!(self.state, State::Open) && !self.is_complete() {
            let Some(forced) = self.forced(speller)? else { break };
            let fits = forced.iter().take(most - taken.len()).copied();
            let allowed: Vec<u32> = fits.take_while(|&token| self.may_have(token)).collect();
            if allowed.is_empty() {
                break;
            }
            for token in allowed {
                self.advance(token)?;
                taken.push(token);
            }
        }
        Ok(taken)
    }

    /// The tokens that alone may follow the last one. `None`: not even a byte is forced.
    fn forced(&mut self, speller: &Speller) -> Result<Option<Arc<[u32]>>, MatchError> {
        let spot = self.known.as_ref().and_then(|known| Some((known, known.spot.as_ref()?)));
        if let Some((known, spot)) = spot {
            if spot.is_open() {
                return Ok(None);
            }
            if let Some(forced) = known.learned.automaton().forced(spot, self.last) {
                return Ok(Some(forced));
            }
        }
        // At a place several bytes may follow.
        let forced = match self.within {
            Some(_) => None,
            None => guarded(self.parser.at_text()?, |parser| Ok(speller.forced(parser, self.last)))
                .map_err(|cause| too_complex(&cause))?,
        };
        if let Some((known, spot)) = spot {
            match &forced {
                Some(tokens) => known.learned.automaton().learn_forced(spot, self.last, tokens),
                None => spot.set_open(),
            }
        }
        Ok(forced.map(Arc::from))
    }

    /// Nothing but the end may follow: no further token need be sampled.
    pub fn is_complete(&self) -> bool {
        match self.state {
            State::Open => {
                let spot = self.known.as_ref().and_then(|known| known.spot.as_ref());
                self.only_end || self.parser.is_stopped() || spot.is_some_and(|spot| spot.is_complete)
            }
            State::Ended => true,
            State::Failed(_) => false,
        }
    }

    fn may_have(&self, token: u32) -> bool {
        self.may.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    fn may_end(&mut self) -> Result<bool, MatchError> {
        if self.is_complete() {
            return Ok(true);
        }
        if let Some(known) = self.spot_mask() {
            return Ok(has(&known.words, self.vocabulary.eos[0]));
        }
        if self.within.is_some() {
            return Ok(false);
        }
        guarded(self.parser.at_text()?, |parser| Ok(parser.is_accepting()))
            .map_err(|cause| too_complex(&cause))
    }

    fn spot_mask(&self) -> Option<KnownMask> {
        self.known.as_ref()?.spot.as_ref()?.mask().cloned()
    }

    fn set_eos(&self, words: &mut [u32]) {
        for &id in &self.vocabulary.eos {
            words[id as usize / 32] |= 1 << (id % 32);
        }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("complete", &self.is_complete()).finish_non_exhaustive()
    }
}

const _: () = {
    const fn send<T: Send>() {}
    const fn shared<T: Send + Sync>() {}
    send::<Matcher>();
    shared::<Grammar>();
};
