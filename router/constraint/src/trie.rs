//! Tokens as a trie that is walked along the lexer's states, with the parser asked only where a terminal ends.

use llguidance::{
    earley::ParserRecognizer,
    toktrie::{Recognizer, SimpleVob, TokTrie},
};

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
        // The lexer's states after so many bytes of the path.
        let mut states = vec![recognizer.lexer_state(); self.depth + 1];
        let mut path = vec![0; self.depth];
        // How many bytes the parser has, and how many of them are the path's.
        let (mut pushed, mut valid) = (0, 0);
        recognizer.trie_started("walk");
        let mut at = 0;
        loop {
            let lexer = recognizer.lexer_mut();
            let end_of_terminal = loop {
                let Some(node) = self.nodes.get(at) else { break None };
                if node.longest <= known {
                    at += node.size as usize;
                    continue;
                }
                let depth = usize::from(node.depth);
                let state = states[depth];
                let next = lexer.transition_start_state(state, Some(node.byte), &None);
                if !next.is_dead() && !next.has_lowest_match() {
                    states[depth + 1] = next;
                    path[depth] = node.byte;
                    valid = valid.min(depth);
                    if node.token != NO_TOKEN {
                        mask.allow_token(node.token);
                    }
                    at += 1;
                } else if next.is_dead() && lexer.try_lexeme_end(state).is_error() {
                    at += node.size as usize;
                } else {
                    break Some(node);
                }
            };
            let Some(node) = end_of_terminal else { break };
            let depth = usize::from(node.depth);
            valid = valid.min(depth);
            recognizer.pop_bytes(pushed - valid);
            for byte in &path[valid..depth] {
                recognizer.try_push_byte(*byte);
            }
            (pushed, valid) = (depth, depth);
            let end = at + node.size as usize;
            walk_with_parser(&self.nodes[at..end], recognizer, mask);
            at = end;
        }
        recognizer.pop_bytes(pushed);
        recognizer.trie_finished();
        for (first, twin) in &self.twins {
            if mask.is_allowed(*first) {
                mask.allow_token(*twin);
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
