//! What a text knows from its grammar's other texts, and where it is among what they know. A matcher has one unless its grammar is not the same
//! at each place.

use std::sync::Arc;

use llguidance::TokenParser;

use crate::{
    automaton::{Edge, Node, Spot},
    learned::{Beginning, Learned},
};

/// Of one text.
#[derive(Clone)]
pub(crate) struct Known {
    pub learned: Arc<Learned>,
    /// States of the lexer with numbers below are the same in all of them.
    pub states: usize,
    /// States that its lexer had at the last mask.
    pub found: usize,
    /// Where its parser would be at the text.
    pub node: Option<Node>,
    /// Where the text is.
    pub spot: Option<Arc<Spot>>,
}

impl Known {
    pub(crate) fn at_start(
        beginning: &Beginning,
        parser: &mut TokenParser,
        mask: &[u32],
        only_end: bool,
    ) -> Known {
        let (learned, states) = (beginning.learned().clone(), beginning.states());
        let state = parser.parser.with_recognizer(|recognizer| recognizer.lexer_state());
        let spot = {
            let mut automaton = learned.automaton();
            let spot = automaton.spot(Node::START, state, false, parser.stopped());
            if let Some(spot) = spot.as_ref().filter(|spot| spot.mask().is_none()) {
                automaton.learn_mask(spot, mask, only_end);
            }
            spot
        };
        // Without memory for one there is none for others.
        let node = spot.is_some().then_some(Node::START);
        Known { learned, states, found: states, node, spot }
    }

    /// Notes the mask of where the text is.
    pub(crate) fn learn_mask(&self, mask: &[u32], only_end: bool) {
        if let Some(spot) = self.spot.as_ref().filter(|spot| spot.mask().is_none()) {
            self.learned.automaton().learn_mask(spot, mask, only_end);
        }
    }

    /// Goes to a spot, if it is one, by a token.
    pub(crate) fn go(&mut self, spot: Option<Arc<Spot>>, token: u32, stays: bool) {
        let from = std::mem::replace(&mut self.spot, spot);
        if let (Some(from), Some(to)) = (from, &self.spot) {
            self.learned.automaton().learn_edge(&from, token, Edge { to: to.clone(), stays });
        }
    }
}
