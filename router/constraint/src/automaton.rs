//! What the texts of a grammar found out token by token. Texts of one schema go the same ways again and again: where one has been, the
//! others know the mask, what is forced, and where a token leads to, and ask their parser nothing.
//!
//! Where a text is ([`Spot`]) is the state of its parser, the state of its lexer, and whether a lexeme has begun. The parser's state is not to be
//! had, but what it follows from is: the lexemes that it took, in their order, whatever bytes they had. So it is named by the one
//! before and a lexeme ([`Node`]). Space between lexemes, of which the parser copies its state, gives no new name. Lexers' states have
//! the same numbers in all texts (`learned.rs`); a text that has none for its state is at no spot.

use std::sync::{Arc, OnceLock};

use llguidance::{
    derivre::StateID,
    earley::{CGrammar, ParserRecognizer, lexerspec::LexemeIdx},
    toktrie::Recognizer,
};

use crate::{budget::Budget, spread::Spread};

/// A state of the parser, by number. Numbers are given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node(u64);

impl Node {
    /// Before any lexeme.
    pub(crate) const START: Node = Node(0);
}

/// How a node follows from the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// By this lexeme.
    Lexeme(u32),
    /// By those that end in this state of the lexer, where that may be several.
    EndedIn(u32),
    /// By the lexeme that has only this byte.
    Byte(u8),
    /// The same, directly behind space, where this byte may be space itself.
    ByteBehindSpace(u8),
    /// From this spot by a token that is no text.
    Special(u64, u32),
}

/// Where texts are.
pub(crate) struct Spot {
    id: u64,
    pub node: Node,
    /// Of the lexer.
    pub state: StateID,
    /// Nothing may follow.
    pub is_complete: bool,
    mask: OnceLock<KnownMask>,
    /// Nothing is forced here, whatever token is the last one.
    is_open: OnceLock<()>,
}

#[derive(Clone)]
pub(crate) struct KnownMask {
    pub words: Arc<[u32]>,
    /// It has nothing but the end.
    pub only_end: bool,
}

/// Where a token leads to.
#[derive(Clone)]
pub(crate) struct Edge {
    pub to: Arc<Spot>,
    /// It stays within the terminal.
    pub stays: bool,
}

impl Spot {
    pub(crate) fn mask(&self) -> Option<&KnownMask> {
        self.mask.get()
    }

    /// Its lexeme may go on.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.get().is_some()
    }

    pub(crate) fn set_open(&self) {
        // Whoever was first said the same.
        let _ = self.is_open.set(());
    }
}

/// Of one grammar.
pub(crate) struct Automaton {
    budget: Arc<Budget>,
    nodes: Spread<(Node, Step), Node>,
    spots: Spread<(Node, u32, bool), Arc<Spot>>,
    edges: Spread<(u64, u32), Edge>,
    /// Tokens that alone may follow at a spot behind the last token.
    forced: Spread<(u64, Option<u32>), Arc<[u32]>>,
    /// By a hash of their own.
    masks: Spread<u64, Arc<[u32]>>,
    /// Parts of tables that go with what is learned next, one by one.
    forgotten: Vec<Box<dyn Send>>,
    /// Numbers that were given to nodes and spots.
    given: u64,
    /// Taken from the budget.
    bytes: usize,
}

impl Automaton {
    pub(crate) fn new(budget: Arc<Budget>) -> Automaton {
        Automaton {
            budget,
            nodes: Spread::new(),
            spots: Spread::new(),
            edges: Spread::new(),
            forced: Spread::new(),
            masks: Spread::new(),
            forgotten: Vec::new(),
            given: 0,
            bytes: 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.spots.len()
    }

    /// Whether there is memory for so much more. If not, all is forgotten, so that there is some for what comes.
    fn pays(&mut self, bytes: usize) -> bool {
        self.forgotten.pop();
        let pays = self.bytes + bytes <= self.budget.most_automaton && self.budget.take(bytes);
        match pays {
            true => self.bytes += bytes,
            false => self.forget(),
        }
        pays
    }

    fn forget(&mut self) {
        self.forgotten.extend(self.nodes.take());
        self.forgotten.extend(self.spots.take());
        self.forgotten.extend(self.edges.take());
        self.forgotten.extend(self.forced.take());
        self.forgotten.extend(self.masks.take());
        self.budget.give_back(std::mem::take(&mut self.bytes));
    }

    fn next_number(&mut self) -> u64 {
        self.given += 1;
        self.given
    }

    fn node(&mut self, before: Node, step: Step) -> Option<Node> {
        if let Some(known) = self.nodes.get(&(before, step)) {
            return Some(*known);
        }
        if !self.pays(entry::<(Node, Step), Node>()) {
            return None;
        }
        let node = Node(self.next_number());
        self.nodes.insert((before, step), node);
        Some(node)
    }

    /// The spot of these states. `begun`: a lexeme has.
    pub(crate) fn spot(
        &mut self,
        node: Node,
        state: StateID,
        begun: bool,
        is_complete: bool,
    ) -> Option<Arc<Spot>> {
        let key = (node, state.as_u32(), begun);
        if let Some(known) = self.spots.get(&key) {
            return Some(known.clone());
        }
        if !self.pays(entry::<(Node, u32, bool), Arc<Spot>>() + size_of::<Spot>()) {
            return None;
        }
        let id = self.next_number();
        let (mask, is_open) = Default::default();
        let spot = Arc::new(Spot { id, node, state, is_complete, mask, is_open });
        self.spots.insert(key, spot.clone());
        Some(spot)
    }

    /// The spot within a terminal, if some text was there.
    pub(crate) fn spot_within(&self, node: Node, state: StateID) -> Option<Arc<Spot>> {
        self.spots.get(&(node, state.as_u32(), true)).cloned()
    }

    pub(crate) fn edge(&self, from: &Spot, token: u32) -> Option<Edge> {
        self.edges.get(&(from.id, token)).cloned()
    }

    pub(crate) fn learn_edge(&mut self, from: &Spot, token: u32, edge: Edge) {
        if self.pays(entry::<(u64, u32), Edge>()) {
            self.edges.insert((from.id, token), edge);
        }
    }

    pub(crate) fn learn_mask(&mut self, spot: &Spot, mask: &[u32], only_end: bool) {
        let hash = hash_of(mask);
        let known = self.masks.get(&hash).filter(|known| known[..] == *mask).cloned();
        if known.is_none() && !self.pays(entry::<u64, Arc<[u32]>>() + size_of_val(mask)) {
            return;
        }
        let words = known.unwrap_or_else(|| {
            let words: Arc<[u32]> = mask.into();
            if self.masks.get(&hash).is_none() {
                self.masks.insert(hash, words.clone());
            }
            words
        });
        // Whoever was first said the same.
        let _ = spot.mask.set(KnownMask { words, only_end });
    }

    pub(crate) fn forced(&self, spot: &Spot, last: Option<u32>) -> Option<Arc<[u32]>> {
        self.forced.get(&(spot.id, last)).cloned()
    }

    pub(crate) fn learn_forced(&mut self, spot: &Spot, last: Option<u32>, tokens: &[u32]) {
        if self.pays(entry::<(u64, Option<u32>), Arc<[u32]>>() + size_of_val(tokens)) {
            self.forced.insert((spot.id, last), tokens.into());
        }
    }

    /// The node behind a token that is no text.
    pub(crate) fn behind_special(&mut self, spot: &Spot, token: u32) -> Option<Node> {
        self.node(spot.node, Step::Special(spot.id, token))
    }

    /// The node behind lexemes that ended.
    pub(crate) fn behind(&mut self, node: Node, ended: &Ended) -> Option<Node> {
        ended.steps.iter().try_fold(node, |node, step| self.node(node, *step))
    }
}

/// Memory for one more entry of a table: while it grows it is there twice.
fn entry<K, V>() -> usize {
    2 * size_of::<(K, V)>()
}

/// Of a mask of 16 kB in about a microsecond, where the standard library's takes ten. Masks of the same hash are compared.
fn hash_of(mask: &[u32]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut lanes = [0_u64; 8];
    for words in mask.chunks(8) {
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = (*lane ^ u64::from(*word)).wrapping_mul(FACTOR).rotate_left(29);
        }
    }
    lanes.iter().fold(0, |hash, lane| (hash ^ lane).wrapping_mul(FACTOR).rotate_left(29))
}

impl Drop for Automaton {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Lexemes that end within a token.
pub(crate) struct Ended {
    steps: Vec<Step>,
    /// There are none.
    pub is_none: bool,
}

impl Ended {
    /// Those of bytes that follow where the parser is; `None`: they may not follow, or a state has no number below `states`.
    pub(crate) fn by(
        recognizer: &mut ParserRecognizer<'_>,
        bytes: &[u8],
        states: usize,
        space: Option<&Space>,
    ) -> Option<Ended> {
        recognizer.trie_started("ended");
        let mut steps = Vec::new();
        let mut is_none = true;
        let walked = bytes.iter().try_for_each(|&byte| {
            let before = recognizer.lexer_state();
            let after = recognizer.lexer_mut().transition_start_state(before, Some(byte), &None);
            let rows = rows_of(recognizer);
            recognizer.try_push_byte(byte).then_some(())?;
            // The byte is the first one behind the lexeme, or its last one.
            let last = match (after.is_dead(), after.has_lowest_match()) {
                (true, _) => before,
                (false, true) => after,
                (false, false) => return Some(()),
            };
            if last.as_usize() >= states {
                return None;
            }
            is_none = false;
            let only = only_lexeme(recognizer, last);
            let is_space = space.is_some_and(|space| only == Some(space.lexeme));
            match only {
                Some(_) if is_space => {}
                Some(only) => steps.push(Step::Lexeme(only.0)),
                None => steps.push(Step::EndedIn(last.as_u32())),
            }
            // The byte may be a lexeme of its own besides. Where several may be it, space is.
            match rows_of(recognizer) - rows {
                1 => {}
                2 if after.is_dead() => match space.is_some_and(|space| space.is(recognizer, byte)) {
                    true if is_space => steps.push(Step::ByteBehindSpace(byte)),
                    true => {}
                    false => steps.push(Step::Byte(byte)),
                },
                _ => return None,
            }
            Some(())
        });
        // What was pushed goes with it.
        recognizer.trie_finished();
        walked.map(|()| Ended { steps, is_none })
    }
}

/// The lexeme that may be there in this state of the lexer, if it is only one.
fn only_lexeme(recognizer: &ParserRecognizer<'_>, state: StateID) -> Option<LexemeIdx> {
    let mut possible = recognizer.lexer().possible_lexemes(state).iter();
    possible.next().filter(|_| possible.next().is_none())
}

/// States that the parser came to.
fn rows_of(recognizer: &mut ParserRecognizer<'_>) -> usize {
    let stats = recognizer.stats_mut();
    stats.rows + stats.cached_rows
}

/// The lexeme between others that leaves the parser's state as it is.
pub(crate) struct Space {
    lexeme: LexemeIdx,
    /// Whether a byte alone is space.
    bytes: OnceLock<Box<[bool]>>,
}

impl Space {
    /// None where there are grammars within others: space may end one.
    pub(crate) fn of(grammar: &CGrammar) -> Option<Space> {
        match grammar.lexer_spec().skip_by_class[..] {
            [lexeme] => Some(Space { lexeme, bytes: OnceLock::new() }),
            _ => None,
        }
    }

    fn is(&self, recognizer: &mut ParserRecognizer<'_>, byte: u8) -> bool {
        let find = || {
            let lexer = recognizer.lexer_mut();
            let mut lexemes = lexer.lexer_spec().alloc_lexeme_set();
            lexemes.add(self.lexeme);
            let start = lexer.start_state(&lexemes);
            let mut is_space = |byte| {
                let state = lexer.transition_start_state(start, Some(byte), &None);
                !state.is_dead() && (state.has_lowest_match() || !lexer.try_lexeme_end(state).is_error())
            };
            (0..=u8::MAX).map(&mut is_space).collect()
        };
        self.bytes.get_or_init(find)[usize::from(byte)]
    }
}
