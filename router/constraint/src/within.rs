//! Texts within a terminal: most tokens of a string go on in it, and of these the parser need not be asked.
//!
//! A state of the lexer says which tokens stay within the terminal, and how others would end it: where, and with what behind its end. What
//! may stand there is the parser's to say, and that stays as it is until the terminal ends. So a text that has been told once of the
//! end of its terminal has the masks of all the states within it, until a token ends it. Its parser takes the tokens later, in one go.
//! A grammar's texts share the places; states have the same numbers in all of them (`learned.rs`).

use std::sync::Arc;

use llguidance::{derivre::StateID, earley::ParserRecognizer, toktrie::SimpleVob};

use crate::{
    learned::Learned,
    places::{Ends, Place},
    slicer::Slicer,
};

/// Where a text is within a terminal.
#[derive(Clone)]
pub(crate) struct Within {
    place: Arc<Place>,
    /// What may stand behind the terminal, by number; `None`: not known.
    may_stand: Vec<Option<bool>>,
    /// Of the ends of a place those that may follow.
    allowed: Option<(Ends, Vec<u32>)>,
}

impl Within {
    /// Behind a mask that was computed by the parser.
    pub(crate) fn new(place: Arc<Place>, mask: &[u32]) -> Within {
        let mut within = Within { place, may_stand: Vec::new(), allowed: None };
        within.learn(mask);
        within
    }

    /// What the mask of its place says of the ends of its terminal.
    pub(crate) fn learn(&mut self, mask: &[u32]) {
        for &(token, rest) in &*self.place.ends {
            let rest = rest as usize;
            if self.may_stand.len() <= rest {
                self.may_stand.resize(rest + 1, None);
            }
            self.may_stand[rest] = Some(has(mask, token));
        }
    }

    /// The mask of its place, if it is known. Of an end of sequence none has the bit.
    pub(crate) fn mask(&mut self, words: &mut [u32]) -> bool {
        let ends = &self.place.ends;
        if self.allowed.as_ref().is_none_or(|(of, _)| !Arc::ptr_eq(of, ends)) {
            let mut allowed = Vec::new();
            for &(token, rest) in &**ends {
                match self.may_stand.get(rest as usize) {
                    Some(Some(true)) => allowed.push(token),
                    Some(Some(false)) => {}
                    _ => return false,
                }
            }
            self.allowed = Some((ends.clone(), allowed));
        }
        words.copy_from_slice(&self.place.tokens);
        for &token in self.allowed.iter().flat_map(|(_, allowed)| allowed) {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        true
    }

    /// Goes on by a token that stays within the terminal, to a place that is known; says the lexer's state there. `state_behind`: of the lexer,
    /// behind the token in this state, if both have numbers that all texts know.
    pub(crate) fn advance(
        &mut self,
        token: u32,
        learned: &Learned,
        state_behind: impl FnOnce(StateID) -> Option<StateID>,
    ) -> Option<StateID> {
        if !has(&self.place.tokens, token) {
            return None;
        }
        let from = self.place.state;
        let known = learned.places().next.get(&(from, token)).cloned();
        let next = known.or_else(|| {
            let state = state_behind(StateID::new(from))?;
            let mut places = learned.places();
            let next = places.at(state)?;
            if learned.pays(size_of::<((u32, u32), usize)>() + 16) {
                places.next.insert((from, token), next.clone());
            }
            Some(next)
        })?;
        self.place = next;
        Some(StateID::new(self.place.state))
    }

    /// At another state of the lexer within the same terminal, if that is a place.
    pub(crate) fn moved(self, state: StateID, learned: &Learned) -> Option<Within> {
        Some(Within { place: learned.places().at(state)?, ..self })
    }
}

/// The place that the parser is at, if it is one. None: a text may end here, one byte alone may follow, or a state has no
/// number that all texts know, which those below `states` have.
pub(crate) fn place(
    recognizer: &mut ParserRecognizer<'_>,
    slicer: &Slicer,
    may: &[u32],
    states: usize,
    learned: &Learned,
) -> Option<Arc<Place>> {
    let state = recognizer.lexer_state();
    if !has_number(state, states) || state.is_dead() {
        return None;
    }
    if let Some(known) = learned.places().at(state) {
        return Some(known);
    }
    let lexer = recognizer.lexer_mut();
    // Of a state it also says whether the lexer has come to one of its limits.
    if !lexer.subsume_possible(state) || !lexer.try_lexeme_end(state).is_error() {
        return None;
    }
    let stays = |byte: &u8| behind(recognizer, state, &[*byte]).is_some();
    if (0..=u8::MAX).filter(stays).take(2).count() < 2 {
        return None;
    }
    let (tokens, mut ends) = slicer.within(recognizer);
    ends.retain(|end| has(may, end.token));
    let is_whole = recognizer.lexer_mut().subsume_possible(state);
    if !is_whole || ends.iter().any(|end| !has_number(end.state, states)) {
        return None;
    }
    let tokens: Vec<u32> = words_of(&tokens, may);
    let most = size_of_val(&tokens[..]) + ends.iter().map(|end| end.rest.len() + 96).sum::<usize>() + 256;
    if !learned.pays(most) {
        return None;
    }
    let (place, bytes) = learned.places().keep(state, tokens, ends);
    learned.is_paid_back(most.saturating_sub(bytes));
    Some(place)
}

/// The state behind bytes that stay within a terminal.
pub(crate) fn behind(
    recognizer: &mut ParserRecognizer<'_>,
    mut state: StateID,
    bytes: &[u8],
) -> Option<StateID> {
    let lexer = recognizer.lexer_mut();
    for &byte in bytes {
        state = lexer.transition_start_state(state, Some(byte), &None);
        if state.is_dead() || state.has_lowest_match() {
            return None;
        }
    }
    Some(state)
}

/// States below that mean the same in all texts.
pub(crate) fn has_number(state: StateID, states: usize) -> bool {
    state.as_usize() < states
}

fn words_of(tokens: &SimpleVob, may: &[u32]) -> Vec<u32> {
    let words = tokens.as_slice();
    may.iter().enumerate().map(|(at, may)| may & words.get(at).copied().unwrap_or(0)).collect()
}

pub(crate) fn has(words: &[u32], token: u32) -> bool {
    words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}
