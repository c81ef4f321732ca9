//! The metrics of a sequence's tokens and of its grammar, recorded where they come up. The router describes them, with all others.

use std::time::{Duration, Instant};

use metrics::{Counter, Histogram, counter, histogram};

/// Counts the tokens of one sequence as they come. The metrics are looked up once, not for every token.
pub struct Tokens {
    generated: Counter,
    between: Histogram,
}

/// A grammar was compiled, or found compiled, or refused.
pub fn grammar(took: Duration, compiled: bool) {
    let outcome = if compiled { "compiled" } else { "refused" };
    histogram!("penstock_grammar_compile_duration", "outcome" => outcome).record(took);
}

impl Default for Tokens {
    fn default() -> Self {
        Self {
            generated: counter!("penstock_generated_tokens"),
            between: histogram!("penstock_inter_token_duration"),
        }
    }
}

impl Tokens {
    /// One more, `last` being when the one before it was there.
    pub fn another(&self, at: Instant, last: Option<Instant>) {
        self.generated.increment(1);
        if let Some(last) = last {
            self.between.record(at.saturating_duration_since(last));
        }
    }
}
