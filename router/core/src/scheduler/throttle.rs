//! How large a step may be. All that the workers were prepared for, until a step kills them that no request of it
//! kills alone: then half of that, and slowly more again. Kept by the core across restarts; asked by `planning`.

/// A step that was as large as it may be, and did no harm, counts. After so many of them it may be larger; after each
/// step that killed the workers it takes twice as many.
const PATIENCE: u32 = 64;
const MOST_PATIENCE: u32 = 1 << 16;

/// Fewer tokens than these are no load: prompts are not fed in smaller pieces than this.
const LEAST_TOKENS: u32 = 128;

/// Growth is by this part of what is allowed, and at least by one.
const GROWTH: u32 = 8;

#[derive(Debug)]
pub(super) struct Throttle {
    rows: Bound,
    tokens: Bound,
}

#[derive(Debug)]
struct Bound {
    most: u32,
    now: u32,
    /// Harmless steps of this size.
    harmless: u32,
    patience: u32,
}

impl Throttle {
    pub fn new(max_slots: u32, max_step_tokens: u32) -> Self {
        Self { rows: Bound::new(max_slots), tokens: Bound::new(max_step_tokens) }
    }

    /// Sequences that may run at once.
    pub fn rows(&self) -> u32 {
        self.rows.now
    }

    /// Tokens that a step may feed; not fewer than its rows, if the workers were prepared for as many.
    pub fn tokens(&self) -> u32 {
        self.tokens.now.max(self.rows.now).min(self.tokens.most)
    }

    /// A step of so many rows killed the workers, which had so many tokens if there were prompts in it: of one that only
    /// decodes, nothing follows for prompts.
    pub fn shrink(&mut self, rows: u32, tokens: Option<u32>) {
        self.rows.shrink(rows, 1);
        if let Some(tokens) = tokens {
            self.tokens.shrink(tokens, LEAST_TOKENS);
        }
    }

    /// A step of this size came to its end.
    pub fn passed(&mut self, rows: u32, tokens: u32) {
        self.rows.passed(rows);
        self.tokens.passed(tokens);
    }
}

impl Bound {
    fn new(most: u32) -> Self {
        Self { most, now: most, harmless: 0, patience: PATIENCE / 2 }
    }

    fn shrink(&mut self, killed: u32, least: u32) {
        self.now = (self.now.min(killed) / 2).max(least.min(self.now));
        self.harmless = 0;
        self.patience = (self.patience * 2).min(MOST_PATIENCE);
    }

    fn passed(&mut self, size: u32) {
        // Chunks end at block boundaries, so that a full step may be a little smaller than the bound.
        if self.now == self.most || size + size / GROWTH < self.now {
            return;
        }
        self.harmless += 1;
        if self.harmless >= self.patience {
            self.harmless = 0;
            self.now = self.now.saturating_add((self.now / GROWTH).max(1)).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_as_large_as_the_workers_were_prepared_for() {
        let mut throttle = Throttle::new(32, 2048);
        throttle.passed(32, 2048);
        assert_eq!((throttle.rows(), throttle.tokens()), (32, 2048));
        assert_eq!(Throttle::new(128, 64).tokens(), 64, "more sequences may run than a step has tokens");
    }

    #[test]
    fn a_step_that_killed_the_workers_halves_them_and_harmless_ones_let_them_grow() {
        let mut throttle = Throttle::new(32, 2048);
        throttle.shrink(20, Some(500));
        assert_eq!((throttle.rows(), throttle.tokens()), (10, 250));
        for _ in 0..PATIENCE {
            throttle.passed(10, 10);
        }
        assert_eq!((throttle.rows(), throttle.tokens()), (11, 250), "only what was tried grows");
        for _ in 0..100_000 {
            throttle.passed(throttle.rows(), throttle.tokens());
        }
        assert_eq!((throttle.rows(), throttle.tokens()), (32, 2048));
    }

    #[test]
    fn prompts_are_not_cut_into_crumbs() {
        let mut throttle = Throttle::new(32, 2048);
        throttle.shrink(12, None);
        assert_eq!((throttle.rows(), throttle.tokens()), (6, 2048), "there were no prompts in it");
        throttle.shrink(6, Some(20));
        assert_eq!((throttle.rows(), throttle.tokens()), (3, LEAST_TOKENS));
    }

    #[test]
    fn steps_that_are_small_anyway_prove_nothing() {
        let mut throttle = Throttle::new(32, 2048);
        throttle.shrink(32, Some(2048));
        for _ in 0..100_000 {
            throttle.passed(3, 3);
        }
        assert_eq!((throttle.rows(), throttle.tokens()), (16, 1024));
    }

    #[test]
    fn each_time_it_grows_more_slowly_and_a_sequence_may_always_run() {
        let mut throttle = Throttle::new(8, 64);
        let mut waited = Vec::new();
        for _ in 0..6 {
            throttle.shrink(1, None);
            assert_eq!((throttle.rows(), throttle.tokens()), (1, 64));
            let steps = (0..).take_while(|_| {
                throttle.passed(1, 1);
                throttle.rows() == 1
            });
            waited.push(steps.count());
        }
        assert!(waited.windows(2).all(|pair| pair[1] > pair[0]), "{waited:?}");
    }
}
