//! The ids that travel between crates, each its own type so that they cannot be mixed up.

use bytemuck::{Pod, Zeroable};

/// Index into the model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct TokenId(pub u32);

/// A row of the workers' slot table: one running sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct SlotId(pub u32);

/// A KV block: `block_size` tokens of keys and values in every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct BlockId(pub u32);

/// One sequence for as long as it lives, unique within the process. Older sequences have lower ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A span of a trace that is recorded, as W3C's trace context names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanRef {
    pub trace: [u8; 16],
    pub span: [u8; 8],
}
