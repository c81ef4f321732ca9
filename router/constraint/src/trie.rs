//! Tokens as a trie that is walked along the lexer's states, with the parser asked only where a terminal ends.

use llguidance::{
    derivre::StateID,
    earley::ParserRecognizer,
    toktrie::{Recognizer, SimpleVob, TokTrie},
};

use crate::places::End;

/// Nodes depth first: the nodes below one follow it.
pub(crate) struct Trie {
    nodes: Vec<Node>,
    /// The most bytes of a token.
    depth: usize,
    /// Tokens that have the bytes of the first one.
    twins: Vec<(u32, u32)>,
}

#[derive(Clone, Copy)]
struct Node {
    /// The token that ends here, or [`NO_TOKEN`].
    token: u32,
    /// Nodes, with itself and those below.
    size: u32,
    /// Bytes before its own.
    depth: u16,
    byte: u8,
    /// Length of the longest token here and below, in characters.
    longest: u8,
}

const NO_TOKEN: u32 = u32::MAX;

impl Trie {
    /// Of tokens with their lengths in characters.
    pub(crate) fn new(tokens: &[(u8, u32)], bytes: &TokTrie) -> Trie {
        let mut tokens: Vec<(&[u8], u8, u32)> =
            tokens.iter().map(|(length, token)| (bytes.token(*token), *length, *token)).collect();
        tokens.sort_unstable();
        let mut nodes: Vec<Node> = Vec::new();
        let mut twins = Vec::new();
        // The nodes of the token before.
        let mut path: Vec<usize> = Vec::new();
        let mut last: &[u8] = &[];
        for (bytes, length, token) in &tokens {
            let common = bytes.iter().zip(last).take_while(|(one, other)| one == other).count();
            for closed in path.drain(common..) {
                nodes[closed].size = (nodes.len() - closed) as u32;
            }
            for (depth, byte) in bytes.iter().enumerate().skip(common) {
                path.push(nodes.len());
                nodes.push(Node { token: NO_TOKEN, size: 0, depth: depth as u16, byte: *byte, longest: 0 });
            }
            for node in &path {
                nodes[*node].longest = nodes[*node].longest.max(*length);
            }
            if let Some(end) = path.last() {
                let end = &mut nodes[*end];
                match end.token {
                    NO_TOKEN => end.token = *token,
                    first => twins.push((first, *token)),
                }
            }
            last = bytes;
        }
        for closed in path {
            nodes[closed].size = (nodes.len() - closed) as u32;
        }
        let depth = nodes.iter().map(|node| usize::from(node.depth) + 1).max().unwrap_or(0);
        Trie { nodes, depth, twins }
    }

    /// Allows the tokens of more than `known` characters that may follow; it may leave out others.
    pub(crate) fn walk(&self, recognizer: &mut ParserRecognizer<'_>, mask: &mut SimpleVob, known: u8) {
        let mut walk = Walk::new(self, recognizer.lexer_state(), known);
        // How many bytes the parser has.
        let mut pushed = 0;
        recognizer.trie_started("walk");
        while let Some(nodes) = walk.next_end(recognizer, mask) {
            let depth = usize::from(nodes[0].depth);
            let valid = walk.valid.min(pushed);
            recognizer.pop_bytes(pushed - valid);
            for byte in &walk.path[valid..depth] {
                recognizer.try_push_byte(*byte);
            }
            (pushed, walk.valid) = (depth, depth);
            walk_with_parser(nodes, recognizer, mask);
        }
        recognizer.pop_bytes(pushed);
        recognizer.trie_finished();
        self.allow_twins(mask);
    }

    /// Allows those that stay within the terminal, and lists those that end it.
    pub(crate) fn walk_within(
        &self,
        recognizer: &mut ParserRecognizer<'_>,
        mask: &mut SimpleVob,
        known: u8,
        ends: &mut Vec<End>,
    ) {
        let mut walk = Walk::new(self, recognizer.lexer_state(), known);
        let first = ends.len();
        while let Some(nodes) = walk.next_end(recognizer, mask) {
            let depth = usize::from(nodes[0].depth);
            let (before, after) = (walk.states[depth], walk.after);
            // The byte is the terminal's last one, or the first behind it.
            let (state, own) = if after.is_dead() { (before, 0) } else { (after, 1) };
            let mut bytes = Vec::new();
            for node in nodes {
                bytes.truncate(usize::from(node.depth) - depth);
                bytes.push(node.byte);
                if node.token != NO_TOKEN {
                    ends.push(End { token: node.token, state, rest: bytes[own..].to_vec() });
                }
            }
        }
        self.allow_twins(mask);
        for at in first..ends.len() {
            let End { token, state, .. } = ends[at];
            for (_, twin) in self.twins.iter().filter(|(first, _)| *first == token) {
                ends.push(End { token: *twin, state, rest: ends[at].rest.clone() });
            }
        }
    }

    fn allow_twins(&self, mask: &mut SimpleVob) {
        for (first, twin) in &self.twins {
            if mask.is_allowed(*first) {
                mask.allow_token(*twin);
            }
        }
    }
}

/// Along the lexer's states, from one node at which the terminal ends to the next.
struct Walk<'a> {
    trie: &'a Trie,
    known: u8,
    at: usize,
    /// The lexer's states after so many bytes of the path.
    states: Vec<StateID>,
    path: Vec<u8>,
    /// How many bytes of the path are those of the last end.
    valid: usize,
    /// The state behind the node's byte.
    after: StateID,
}

impl<'a> Walk<'a> {
    fn new(trie: &'a Trie, state: StateID, known: u8) -> Walk<'a> {
        let (states, path) = (vec![state; trie.depth + 1], vec![0; trie.depth]);
        Walk { trie, known, at: 0, states, path, valid: 0, after: StateID::DEAD }
    }

    /// The node and those below it. Allows the tokens before it that stay within the terminal.
    fn next_end(
        &mut self,
        recognizer: &mut ParserRecognizer<'_>,
        mask: &mut SimpleVob,
    ) -> Option<&'a [Node]> {
        let lexer = recognizer.lexer_mut();
        loop {
            let node = self.trie.nodes.get(self.at)?;
            if node.longest <= self.known {
                self.at += node.size as usize;
                continue;
            }
            let depth = usize::from(node.depth);
            let state = self.states[depth];
            let next = lexer.transition_start_state(state, Some(node.byte), &None);
            if !next.is_dead() && !next.has_lowest_match() {
                self.states[depth + 1] = next;
                self.path[depth] = node.byte;
                self.valid = self.valid.min(depth);
                if node.token != NO_TOKEN {
                    mask.allow_token(node.token);
                }
                self.at += 1;
            } else if next.is_dead() && lexer.try_lexeme_end(state).is_error() {
                self.at += node.size as usize;
            } else {
                let nodes = &self.trie.nodes[self.at..self.at + node.size as usize];
                self.valid = self.valid.min(depth);
                self.at += node.size as usize;
                self.after = next;
                return Some(nodes);
            }
        }
    }
}

/// Allows the tokens of a node and those below it that may follow, where the parser has the bytes before the node.
fn walk_with_parser(nodes: &[Node], recognizer: &mut ParserRecognizer<'_>, mask: &mut SimpleVob) {
    let start = nodes.first().map_or(0, |node| usize::from(node.depth));
    let (mut at, mut pushed) = (0, start);
    while let Some(node) = nodes.get(at) {
        let depth = usize::from(node.depth);
        recognizer.pop_bytes(pushed - depth);
        pushed = depth;
        if recognizer.try_push_byte(node.byte) {
            pushed += 1;
            if node.token != NO_TOKEN {
                mask.allow_token(node.token);
            }
            at += 1;
        } else {
            at += node.size as usize;
        }
    }
    recognizer.pop_bytes(pushed - start);
}
