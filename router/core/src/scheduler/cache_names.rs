//! Names of what is cached that are the same on every server with the same model, and after every restart: the namespace in
//! which sequences share blocks, and the content hash of a block. SHA-256 (FIPS 180-4), the first 128 bits of it: what clients say of
//! themselves is in there, and nobody can look for two texts with one name. `docs/block-events.md` tells others how to make them.

use std::fmt;

use penstock_proto::ids::TokenId;
use sha2::{Digest, Sha256};

/// Who shares cached blocks: the model and its revision, the API key, a salt, the adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(pub u128);

impl Namespace {
    /// Of parts in their order, each of any length.
    pub fn of(parts: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        Self::digest(Sha256::new(), parts)
    }

    /// A part of it.
    pub fn within(self, parts: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        let mut digest = Sha256::new();
        add(&mut digest, &self.0.to_be_bytes());
        Self::digest(digest, parts)
    }

    fn digest(mut digest: Sha256, parts: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        parts.into_iter().for_each(|part| add(&mut digest, part.as_ref()));
        Self(first_half(digest))
    }
}

/// Of a block's tokens and all before them, in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(u128);

impl BlockHash {
    /// What the first block follows.
    pub(super) fn root(namespace: Namespace) -> Self {
        Self(namespace.0)
    }

    /// Of the block with these tokens behind this one.
    pub(super) fn then(self, tokens: &[TokenId]) -> Self {
        let mut digest = Sha256::new();
        digest.update(self.0.to_be_bytes());
        // Little-endian, as in a plan's columns.
        tokens.iter().for_each(|token| digest.update(token.0.to_le_bytes()));
        Self(first_half(digest))
    }
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

fn add(digest: &mut Sha256, part: &[u8]) {
    digest.update((part.len() as u64).to_le_bytes());
    digest.update(part);
}

fn first_half(digest: Sha256) -> u128 {
    let bytes: [u8; 32] = digest.finalize().into();
    let (half, _) = bytes.split_first_chunk().expect("32 bytes are more than 16");
    u128::from_be_bytes(*half)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `docs/block-events.md` computes them, in Python.
    #[test]
    fn names_are_what_the_docs_say() {
        let model = Namespace::of(["org/model", "main", "abc"].map(str::as_bytes));
        assert_eq!(BlockHash::root(model).to_string(), "d1e9f0a6c07e2aca3146465ba4c53287");
        let salted = model.within([&b""[..], b"salt"]);
        assert_eq!(BlockHash::root(salted).to_string(), "56f6204a3bdc49ca3e2fba731bdf953f");
        let tokens: Vec<_> = (0..32).map(TokenId).collect();
        let first = BlockHash::root(model).then(&tokens[..16]);
        assert_eq!(first.to_string(), "6fae6326d5536b3539de346c8011b7ff");
        assert_eq!(first.then(&tokens[16..]).to_string(), "d84823587c1b9020043d0e75f4a86f4c");
    }

    #[test]
    fn parts_are_not_run_together() {
        let of = |parts: &[&str]| Namespace::of(parts.iter().map(|part| part.as_bytes()));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
        assert_ne!(of(&["a"]).within([&b"b"[..]]), of(&["a", "b"]));
    }
}
