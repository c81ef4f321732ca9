//! What is known of the states of a lexer within a terminal, for all texts of a grammar: see `within.rs`, which finds it out.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::Arc,
};

use llguidance::derivre::StateID;

/// A token that ends the terminal.
pub(crate) struct End {
    pub token: u32,
    /// The state of the lexer in which it ends.
    pub state: StateID,
    /// What the token has behind its end.
    pub rest: Vec<u8>,
}

/// A state of the lexer within a terminal, which no text may end in.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) state: u32,
    /// Bits of the tokens that may follow whatever the parser says.
    pub(crate) tokens: Arc<[u32]>,
    /// The others: a token, and the number of what it has behind the terminal.
    pub(crate) ends: Ends,
}

pub(crate) type Ends = Arc<[(u32, u32)]>;

/// The places of a grammar.
#[derive(Default)]
pub(crate) struct Places {
    by_state: HashMap<u32, Arc<Place>>,
    /// Behind a token that stays within the terminal.
    pub(crate) next: HashMap<(u32, u32), Arc<Place>>,
    tokens: HashSet<Arc<[u32]>>,
    ends: HashSet<Ends>,
    /// Numbers of what may stand behind a terminal, by the state in which it ends.
    rests: HashMap<(StateID, Vec<u8>), u32>,
}

impl Places {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_state.len()
    }

    pub(crate) fn at(&self, state: StateID) -> Option<Arc<Place>> {
        self.by_state.get(&state.as_u32()).cloned()
    }

    /// Keeps what a walk found; says how many bytes that takes.
    pub(crate) fn keep(&mut self, state: StateID, tokens: Vec<u32>, ends: Vec<End>) -> (Arc<Place>, usize) {
        let mut bytes = size_of::<Place>() + 64;
        let ends = ends.into_iter().map(|end| {
            let next = self.rests.len() as u32;
            let length = end.rest.len();
            let number = *self.rests.entry((end.state, end.rest)).or_insert_with(|| {
                bytes += length + 64;
                next
            });
            (end.token, number)
        });
        let ends: Vec<(u32, u32)> = ends.collect();
        let (tokens, more) = interned(&mut self.tokens, tokens);
        bytes += more;
        let (ends, more) = interned(&mut self.ends, ends);
        bytes += more;
        let place = Arc::new(Place { state: state.as_u32(), tokens, ends });
        self.by_state.insert(state.as_u32(), place.clone());
        (place, bytes)
    }
}

/// The slice that is kept with this content, and how many bytes it takes more.
fn interned<T: Eq + Hash>(kept: &mut HashSet<Arc<[T]>>, content: Vec<T>) -> (Arc<[T]>, usize) {
    if let Some(known) = kept.get(&content[..]) {
        return (known.clone(), 0);
    }
    let bytes = size_of_val(&content[..]);
    let content: Arc<[T]> = content.into();
    kept.insert(content.clone());
    (content, bytes)
}
