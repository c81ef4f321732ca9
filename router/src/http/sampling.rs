//! What all dialects share about choosing: when a temperature means greedy, and which of several answers is best.

use penstock_core::generation::{Done, TokenEvent};

/// Below it a temperature is as good as greedy, and the quotients of the logits would leave 32 bits.
const MIN_TEMPERATURE: f64 = 1e-5;

/// As the worker takes it: 0 is greedy.
pub fn temperature(given: f64) -> f32 {
    if given >= MIN_TEMPERATURE { given as f32 } else { 0.0 }
}

/// A seed for a request that names none. It is told, to be sent again: below 2^53, as JavaScript's numbers are exact, and Java's
/// and .NET's `long` has it.
pub fn drawn_seed() -> u64 {
    rand::random::<u64>() >> 11
}

/// For `best_of`: by the mean log probability of a token.
pub fn most_likely_first(candidates: &mut [(Vec<TokenEvent>, Done)]) {
    let likelihood = |(tokens, _): &(Vec<TokenEvent>, Done)| {
        tokens.iter().map(|token| token.logprob).sum::<f32>() / tokens.len().max(1) as f32
    };
    candidates.sort_by(|one, other| likelihood(other).total_cmp(&likelihood(one)));
}
