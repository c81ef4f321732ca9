//! The limits a client's grammar is held to: on time, on the size of its source, and on what it compiles to.

use std::time::Duration;

/// What one grammar, and all that are kept, may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// What compiling one grammar may take of a processor (`--grammar-timeout-ms`); ten times as long whatever else runs there.
    pub timeout: Duration,
    /// The longest that a grammar waits for a thread to compile it.
    pub wait: Duration,
    /// Threads that compile at the same time, and one more for each class of sizes that has none. One that runs past the timeout is
    /// counted until it ends.
    pub threads: usize,
    /// The longest source, in bytes; of a schema, as compact JSON.
    pub source_bytes: usize,
    /// The deepest nesting of a schema's JSON.
    pub depth: usize,
    /// Schemas within a schema, counted after references are followed and `oneOf`, `not`, `if` are rewritten.
    pub schema_nodes: usize,
    /// The most properties that one object may name.
    pub properties: usize,
    /// The most steps that building the lexer may take; about 50,000 take a millisecond.
    pub lexer_fuel: u64,
    /// The most steps that the lexer may take for one mask; about 14,000 take a millisecond.
    pub step_lexer_fuel: u64,
    /// The most states of a matcher's lexer; each has one to two kB.
    pub lexer_states: usize,
    /// The most that a matcher's lexer may hold, in bytes.
    pub matcher_bytes: usize,
    /// The most symbols of a compiled grammar.
    pub symbols: usize,
    /// The most parser items for one byte. An object takes four for each optional property; ambiguous grammars take more.
    pub row_items: usize,
    /// The most parser items for one mask; about 20,000 take a millisecond.
    pub step_items: usize,
    /// Memory for compiled grammars that are kept for the next request, in bytes, as estimated. A quarter as much again is for
    /// what they learn of their texts.
    pub cache_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Limits {
            timeout: Duration::from_secs(1),
            wait: Duration::from_secs(5),
            threads: cores.clamp(1, 4),
            source_bytes: 1 << 20,
            depth: 128,
            schema_nodes: 40_000,
            properties: 2_000,
            lexer_fuel: 1_000_000,
            step_lexer_fuel: 200_000,
            lexer_states: 50_000,
            matcher_bytes: 32 << 20,
            symbols: 500_000,
            row_items: 4_200,
            step_items: 50_000,
            cache_bytes: 256 << 20,
        }
    }
}
