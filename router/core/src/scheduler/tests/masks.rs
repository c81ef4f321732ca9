//! Constrained sequences: what they get, how they end, and what a late mask costs.

use std::sync::Arc;
use std::time::Duration;

use penstock_proto::ids::TokenId;
use penstock_proto::{CostModel, Masks};

use super::harness::{Every, Harness, STEP, every, every_forcing, spec, tiny, u32s};
use crate::constraint::{Grammar, Matcher};
use crate::scheduler::cost::Work;
use crate::scheduler::policy::Drafting;
use crate::scheduler::submission::{Finish, Release, Sampling, SequenceFailure, SequenceSpec};
use crate::worker::mock::MockConfig;

fn config() -> MockConfig {
    MockConfig { pages: 60, ..tiny() }
}

fn constrained(prompt: &[u32], new: u32, grammar: Option<Arc<dyn Grammar>>) -> SequenceSpec {
    SequenceSpec { constraint: grammar, ..spec(prompt, new) }
}

#[test]
fn a_grammar_that_is_complete_ends_its_sequence_with_that_token() {
    let mut harness = Harness::new(config(), 4, 64);
    let id = harness.submit(constrained(&[3, 4, 5], 40, every(5, 7, None)));
    let free = harness.submit(spec(&[3, 4, 5], 20));
    harness.run_to_end();
    let client = harness.client(id);
    assert_eq!((client.tokens.len(), client.end.clone()), (7, Some(Ok(Finish::Complete))));
    let mut last = 0;
    for (at, token) in client.ids().into_iter().enumerate() {
        assert_eq!(token % 5, (at as u32 + last) % 5, "token {at}");
        last = token;
    }
    assert_eq!(harness.client(free).tokens.len(), 20);
    assert_eq!(harness.core.counters.late_masks, 0);
    harness.check_against_reference();
}

#[test]
fn a_grammar_cut_off_by_length_ends_by_length() {
    let mut harness = Harness::new(config(), 4, 64);
    let id = harness.submit(constrained(&[3, 4, 5], 6, every(5, 30, None)));
    harness.run_to_end();
    assert_eq!(harness.client(id).end, Some(Ok(Finish::Length)));
    harness.check_against_reference();
}

#[test]
fn constrained_sequences_run_beside_others_with_two_plans_in_flight() {
    let mut harness = Harness::new(config(), 4, 64);
    let ids = [0, 1, 2].map(|salt| harness.submit(constrained(&[3, 4, 5 + salt], 20, every(4, 20, None))));
    assert_eq!(harness.plan(), 2, "the second plan continues rows whose masks are not known");
    let mut steps = 0;
    while harness.step().is_some() {
        steps += 1;
    }
    assert!(steps <= 23, "{steps} steps for three times 20 tokens side by side");
    for id in ids {
        assert_eq!(harness.client(id).tokens.len(), 20);
    }
    harness.check_against_reference();
}

#[test]
fn a_late_mask_costs_its_row_the_step_and_others_nothing() {
    let mut harness = Harness::new(config(), 4, 64);
    let late = harness.submit(constrained(&[3, 4, 5, 6, 7, 8], 12, every(5, 12, None)));
    let other = harness.submit(spec(&[9, 8, 7], 30));
    harness.step();
    harness.mask_delay = 3;
    let before = harness.client(other).tokens.len();
    for _ in 0..10 {
        harness.step();
    }
    assert_eq!(harness.client(other).tokens.len(), before + 10, "a token in every step");
    assert!(harness.core.counters.late_masks >= 2);
    harness.mask_delay = 0;
    harness.run_to_end();
    assert_eq!(harness.client(late).tokens.len(), 12);
    harness.check_against_reference();
}

/// Whose steps are expected to take so long.
fn expecting(step: Duration) -> Harness {
    let cost = CostModel { fixed_ns: step.as_nanos() as f64, per_token_ns: 1.0, per_context_token_ns: 0.0 };
    Harness::new(MockConfig { cost, eos_one_in: 0, ..config() }, 8, 64)
}

fn expected(harness: &Harness) -> [Duration; 2] {
    [false, true].map(|prompts| harness.core.cost.expect(Work { tokens: 4, prompts, ..Work::default() }))
}

#[test]
fn late_masks_do_not_make_the_next_steps_wait_longer() {
    let mut harness = expecting(STEP);
    for salt in 0..4 {
        harness.submit(constrained(&[3, 4, 5 + salt], 80, every(4 + salt, 80, None)));
    }
    harness.mask_delay = 2;
    let steps = harness.count_steps();
    assert!(steps > 200 && harness.core.counters.late_masks > 100, "{steps} steps");
    for expected in expected(&harness) {
        assert!(expected < STEP * 2, "{expected:?} for a step of {STEP:?}");
    }
    harness.check_against_reference();
}

#[test]
fn a_step_that_goes_on_behind_late_masks_was_thought_too_short() {
    let mut harness = expecting(STEP / 10);
    harness.mask_time = STEP / 2;
    harness.submit(constrained(&[3, 4, 5], 90, every(5, 90, None)));
    harness.run_to_end();
    let [expected, _] = expected(&harness);
    assert!(expected > STEP / 2, "{expected:?} for a step of {STEP:?}");
}

#[test]
fn a_mask_for_a_sequence_that_is_gone_is_dropped_and_its_row_samples_nothing() {
    let mut harness = Harness::new(config(), 4, 64);
    let gone = harness.submit(constrained(&[3, 4, 5], 40, every(5, 30, None)));
    let other = harness.submit(constrained(&[3, 4, 6], 40, every(5, 12, None)));
    harness.step();
    let jobs = harness.core.take_mask_jobs();
    assert_eq!(jobs.len(), 2, "both have a token that their grammars look at");
    harness.plan();
    harness.release(gone, Release::Cancelled);
    // Its slot is another's by the time that its mask is there.
    let next = harness.submit(constrained(&[7, 8, 9], 40, every(5, 7, None)));
    for job in jobs {
        harness.core.take_mask(job.run(), harness.now);
    }
    let masks = harness.core.masks(harness.now).expect("nobody is waited for");
    assert_eq!(
        u32s(&masks.only),
        [Masks::NONE, Masks::OF_WORDS],
        "the tokens that the row of each may sample"
    );
    harness.masks.push_back(masks);
    let tokens = harness.client(gone).tokens.len();
    harness.run_to_end();
    assert_eq!(harness.client(gone).tokens.len(), tokens);
    for (id, length) in [(other, 12), (next, 7)] {
        let client = harness.client(id);
        assert_eq!((client.tokens.len(), client.end.clone()), (length, Some(Ok(Finish::Complete))));
    }
    harness.check_against_reference();
}

/// What a plan with one row, masked or not, is refused with, whose masks are of plan `number`, say this of samples and have so many words.
fn refusal(masked: bool, number: u64, only: &[u32], words: usize) -> String {
    let mut harness = Harness::new(config(), 4, 64);
    let grammar = if masked { every(5, 30, None) } else { None };
    harness.submit(constrained(&[3, 4, 5], 40, grammar));
    let jobs = harness.core.take_mask_jobs();
    for job in jobs {
        harness.core.take_mask(job.run(), harness.now);
    }
    let plan = harness.core.plan(harness.now).expect("there is something to do");
    let only = only.iter().flat_map(|only| only.to_le_bytes()).collect();
    let masks = Masks { number, only, words: vec![0xff; words * size_of::<u32>()].into() };
    let executed = harness.model.execute_masked(&plan, Some(&masks));
    executed.expect_err("a worker refuses it")
}

#[test]
fn the_mock_refuses_masks_of_another_width_or_plan_and_for_rows_that_are_not_there() {
    let width = config().vocab_size.div_ceil(u32::BITS) as usize;
    let listed = Masks::OF_WORDS;
    for (masked, number, only, words, why) in [
        (true, 1, &[listed][..], width + 1, "words of 1 masks"),
        (true, 1, &[listed], 2 * width, "words of 1 masks"),
        (true, 1, &[7], width, "words of 0 masks"),
        (true, 1, &[listed, 7], width, "2 entries in masks.only, and masked rows sample 1"),
        (true, 1, &[], 0, "0 entries in masks.only, and masked rows sample 1"),
        (true, 1, &[50], 0, "token 50 is the only one"),
        (false, 1, &[listed], width, "1 entries in masks.only, and masked rows sample 0"),
        (true, 0, &[listed], width, "masks of plan 0 came with plan 1"),
        (true, 2, &[listed], width, "masks of plan 2 came with plan 1"),
    ] {
        let refusal = refusal(masked, number, only, words);
        assert!(refusal.contains(why), "{refusal}");
    }
}

#[test]
fn a_sequence_whose_time_is_up_keeps_the_token_that_its_grammar_has() {
    let mut harness = Harness::new(config(), 4, 64);
    harness.mask_delay = 4;
    let stop_at = Some(harness.now + STEP * 1000);
    let id = harness.submit(SequenceSpec { stop_at, ..constrained(&[3, 4], 30, every(5, 30, None)) });
    while harness.core.counters.generated_tokens < 2 {
        harness.step();
    }
    harness.now += STEP * 2000;
    harness.run_to_end();
    let tokens = harness.client(id).tokens.len() as u64;
    assert_eq!(harness.client(id).end, Some(Ok(Finish::Length)));
    assert_eq!(tokens, harness.core.counters.generated_tokens, "no token is lost");
    harness.check_against_reference();
}

#[test]
fn what_a_grammar_forces_is_fed_at_once_and_the_text_is_the_same() {
    let mut texts = Vec::new();
    // Two rows are in flight when a run of four is known, and sample one each.
    for (drafts, most_steps) in [(0, 60), (16, 40)] {
        let mut harness = Harness::new(config(), 4, 64);
        harness.core.capacity.max_step_drafts = drafts;
        let id = harness.submit(constrained(&[3, 4, 5], 90, every_forcing(5, 50, None, 4)));
        let mut steps = 0;
        while harness.step().is_some() {
            steps += 1;
        }
        assert!(steps <= most_steps, "{steps} steps for 50 tokens, of which 26 are forced in fours");
        let client = harness.client(id);
        assert_eq!((client.tokens.len(), client.end.clone()), (50, Some(Ok(Finish::Complete))));
        assert!(client.tokens.iter().all(|token| !token.is_draft), "no guesses");
        texts.push(client.ids());
        assert_eq!(harness.core.counters.forced_tokens, 26);
        assert_eq!((harness.core.counters.drafts, harness.core.counters.accepted_drafts), (0, 0));
        harness.check_against_reference();
    }
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn a_text_of_forced_tokens_alone_ends_with_the_last() {
    for length in 1..12 {
        let mut harness = Harness::new(config(), 4, 64);
        let id = harness.submit(constrained(&[3, 4, 5], 90, every_forcing(5, length, None, 90)));
        harness.run_to_end();
        let client = harness.client(id);
        assert_eq!((client.tokens.len() as u32, client.end.clone()), (length, Some(Ok(Finish::Complete))));
        harness.check_against_reference();
    }
}

#[test]
fn forced_tokens_stop_at_the_most_that_a_client_wants() {
    for new in 1..12 {
        let mut harness = Harness::new(config(), 4, 64);
        let id = harness.submit(constrained(&[3, 4, 5], new, every_forcing(5, 50, None, 5)));
        harness.run_to_end();
        let client = harness.client(id);
        assert_eq!((client.tokens.len() as u32, client.end.clone()), (new, Some(Ok(Finish::Length))));
        harness.check_against_reference();
    }
}

#[test]
fn late_masks_and_crashes_lose_no_forced_token() {
    let mut harness = Harness::new(config(), 4, 64);
    let id = harness.submit(constrained(&[3, 4, 5, 6, 7, 8], 60, every_forcing(5, 40, None, 3)));
    for round in 0..8 {
        harness.mask_delay = round % 3;
        for _ in 0..4 {
            harness.step();
        }
        if round % 2 == 1 {
            harness.crash();
        }
    }
    harness.mask_delay = 0;
    harness.run_to_end();
    assert_eq!(harness.client(id).tokens.len(), 40);
    harness.check_against_reference();
}

/// Again and again the same three tokens, then `values` of any kind, as an object's keys and what follows them; `length` in all.
#[derive(Clone, Copy, Debug)]
struct Skeleton {
    key: u32,
    values: u32,
    length: u32,
}

#[derive(Clone)]
struct SkeletonMatcher {
    grammar: Skeleton,
    count: u32,
}

impl SkeletonMatcher {
    fn only(&self) -> Option<u32> {
        let place = self.count % (3 + self.grammar.values);
        (place < 3).then_some(self.grammar.key + place)
    }
}

impl Grammar for Skeleton {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(SkeletonMatcher { grammar: *self, count: 0 })
    }
}

impl Matcher for SkeletonMatcher {
    fn advance(&mut self, token: TokenId) -> Result<(), String> {
        if self.is_complete() || token.0 < 3 || self.only().is_some_and(|only| only != token.0) {
            return Err(format!("{} is not allowed", token.0));
        }
        self.count += 1;
        Ok(())
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        words.fill(0);
        let only = self.only();
        let allowed = (3..tiny().vocab_size).filter(|&token| only.is_none_or(|only| only == token));
        allowed.for_each(|token| words[(token / 32) as usize] |= 1 << (token % 32));
        Ok(())
    }

    fn take_forced(&mut self, most: usize) -> Result<Vec<TokenId>, String> {
        let mut taken = Vec::new();
        while let Some(only) = self.only()
            && taken.len() < most
            && !self.is_complete()
        {
            self.advance(TokenId(only))?;
            taken.push(TokenId(only));
        }
        Ok(taken)
    }

    fn is_complete(&self) -> bool {
        self.count == self.grammar.length
    }

    fn fork(&mut self) -> Box<dyn Matcher> {
        Box::new(self.clone())
    }
}

/// The text says the same behind the same token, mostly.
fn repeating() -> MockConfig {
    MockConfig { pages: 400, max_positions: 600, surprise_one_in: 40, ..tiny() }
}

#[test]
fn what_is_forced_and_what_is_guessed_go_into_the_same_rows() {
    for drafting in [Drafting::Always(6), Drafting::Adaptive(6)] {
        let (mut without, mut with, mut mixed, mut accepted, mut forced) = (0, 0, 0, 0, 0);
        for key in 3..13 {
            let grammar: Arc<dyn Grammar> = Arc::new(Skeleton { key: 3 * key, values: 5, length: 240 });
            let spec = constrained(&[3, 4, 5], 400, Some(grammar));
            let mut harness = Harness::new(repeating(), 4, 64);
            let id = harness.submit(spec.clone());
            without += harness.count_steps();
            let text = harness.client(id).ids();
            let mut harness = Harness::new(repeating(), 4, 64).speculating(drafting);
            let id = harness.submit(spec);
            while harness.plan() > 0 {
                let rows = harness.core.in_flight.iter().flat_map(|step| &step.rows);
                mixed += rows.filter(|row| 0 < row.forced && row.forced < row.drafts).count();
                harness.step();
            }
            let counters = harness.core.counters;
            with += counters.steps as u32;
            accepted += counters.accepted_drafts;
            forced += counters.forced_tokens;
            assert_eq!(counters.late_masks, 0);
            assert_eq!(harness.client(id).ids(), text);
            harness.check_against_reference();
        }
        assert!(with * 4 < without * 3, "{with} steps, {without} without drafts");
        assert!(mixed > 10 && accepted > 300 && forced > 300, "{mixed}, {accepted} and {forced} tokens");
    }
}

#[test]
fn guesses_whose_masks_are_late_cost_no_token_and_no_step() {
    for drafting in [Drafting::Always(6), Drafting::Adaptive(6)] {
        let mut harness = Harness::new(repeating(), 4, 64).speculating(drafting);
        let grammar = || Some(Arc::new(Skeleton { key: 12, values: 5, length: 240 }) as Arc<dyn Grammar>);
        let ids = [1, 2].map(|salt| harness.submit(constrained(&[3, 4, salt], 400, grammar())));
        for round in 0.. {
            harness.mask_delay = if round % 7 < 2 { 0 } else { 1 };
            if round % 29 == 28 {
                harness.crash();
            }
            if harness.step().is_none() {
                break;
            }
        }
        assert!(harness.core.counters.accepted_drafts > 20, "{:?}", harness.core.counters);
        for id in ids {
            assert_eq!(harness.client(id).tokens.len(), 240);
        }
        harness.check_against_reference();
    }
}

/// Token 4 or 5 in each place; behind each 5 come `run` times 4. `length` in all.
#[derive(Clone, Copy, Debug)]
struct Stutter {
    run: u32,
    length: u32,
}

#[derive(Clone)]
struct StutterMatcher {
    grammar: Stutter,
    count: u32,
    /// So many times 4 has to come now.
    owed: u32,
}

impl Grammar for Stutter {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(StutterMatcher { grammar: *self, count: 0, owed: 0 })
    }
}

impl Matcher for StutterMatcher {
    fn advance(&mut self, token: TokenId) -> Result<(), String> {
        self.owed = match token.0 {
            4 => self.owed.saturating_sub(1),
            5 if self.owed == 0 => self.grammar.run,
            other => return Err(format!("{other} is not allowed")),
        };
        self.count += 1;
        Ok(())
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        words.fill(0);
        words[0] = if self.owed > 0 { 1 << 4 } else { 1 << 4 | 1 << 5 };
        Ok(())
    }

    fn take_forced(&mut self, most: usize) -> Result<Vec<TokenId>, String> {
        let left = self.owed.min(self.grammar.length - self.count) as usize;
        let taken = vec![TokenId(4); left.min(most)];
        taken.iter().try_for_each(|&token| self.advance(token))?;
        Ok(taken)
    }

    fn is_complete(&self) -> bool {
        self.count == self.grammar.length
    }

    fn fork(&mut self) -> Box<dyn Matcher> {
        Box::new(self.clone())
    }
}

#[test]
fn masks_wait_behind_outdated_drafts_that_happen_to_be_what_the_grammar_forces() {
    let mut seen = 0;
    for (salt, run) in (6..26).flat_map(|salt| [(salt, 2), (salt, 4), (salt, 6)]) {
        let config = MockConfig { surprise_one_in: 0, ..repeating() };
        let mut harness = Harness::new(config, 4, 64).speculating(Drafting::Always(4));
        let grammar: Arc<dyn Grammar> = Arc::new(Stutter { run, length: 120 });
        let id = harness.submit(constrained(&[salt, 4, 4, 4, 4], 200, Some(grammar)));
        while harness.step().is_some() {
            harness.compute_masks();
            harness.plan();
            harness.compute_masks();
            let steps = &harness.core.in_flight;
            let [first, second] = [0, 1].map(|at| steps.get(at).and_then(|step| step.rows.first()));
            let (Some(first), Some(_)) = (first, second) else { continue };
            let forced = harness.core.sequences[first.key].forced().0.take(first.guesses.len());
            if first.drafts > 0 && first.is_misled() && forced.eq(first.guesses.iter().copied()) {
                seen += 1;
                assert!(steps[1].owes_masks(), "where the second row begins the first one's result tells");
            }
        }
        assert_eq!(harness.client(id).end, Some(Ok(Finish::Complete)));
        harness.check_against_reference();
    }
    assert!(seen > 50, "{seen} times");
}

#[test]
fn in_free_text_and_behind_it_guesses_change_nothing() {
    let (mut accepted, mut refused, mut forced_tokens) = (0, 0, 0);
    let cases = (0..8).flat_map(|marker| [(marker, 6, 0), (marker, 6, 3), (marker, 60, 0), (marker, 60, 2)]);
    for (marker, surprise_one_in, forced) in cases {
        for drafting in [Drafting::Always(5), Drafting::Adaptive(5)] {
            let config = MockConfig { surprise_one_in, ..repeating() };
            let mut harness = Harness::new(config, 4, 64).speculating(drafting);
            for salt in 0..3 {
                let sampling = Sampling { temperature: [0.0, 0.7][salt as usize % 2], ..Sampling::default() };
                let spec = constrained(&[3, 4, 5 + salt], 200, lazily_forcing(marker, forced, 150));
                harness.submit(SequenceSpec { sampling, ..spec });
            }
            harness.run_to_end();
            accepted += harness.core.counters.accepted_drafts;
            forced_tokens += harness.core.counters.forced_tokens;
            refused += harness.core.counters.refused_tokens;
            harness.check_against_reference();
        }
    }
    assert!(
        accepted > 500 && refused > 50 && forced_tokens > 500,
        "{accepted} accepted, {refused} refused, {forced_tokens} forced"
    );
}

/// Everything but `SPECIAL` may follow, until a token that is `marker` modulo 8; then four tokens of one kind have to, the first
/// `forced` of which are spelled in one way, though another token would do. `length` in all.
#[derive(Clone, Copy, Debug)]
struct Lazy {
    marker: u32,
    forced: u32,
    length: u32,
}

const BOUND: u32 = 4;
/// Is no text.
const SPECIAL: u32 = 49;

#[derive(Clone)]
struct LazyMatcher {
    grammar: Lazy,
    count: u32,
    bound: u32,
    ended: bool,
    is_free: bool,
}

impl Grammar for Lazy {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(LazyMatcher { grammar: *self, count: 0, bound: 0, ended: false, is_free: false })
    }
}

impl LazyMatcher {
    fn allows(&self, token: u32) -> bool {
        match self.only() {
            Some(only) => token == only.0 || token == only.0 + 1,
            None if self.bound == 0 => token != SPECIAL,
            None => token > 2 && token.is_multiple_of(4),
        }
    }

    fn only(&self) -> Option<TokenId> {
        (self.bound > BOUND - self.grammar.forced).then_some(TokenId(4 + 4 * self.bound))
    }
}

impl Matcher for LazyMatcher {
    fn advance(&mut self, token: TokenId) -> Result<(), String> {
        if !self.allows(token.0) {
            return Err(format!("{} is not allowed", token.0));
        }
        self.ended |= tiny().eos_ids.contains(&token.0);
        self.count += 1;
        self.bound = match self.bound {
            0 if token.0 % 8 == self.grammar.marker => BOUND,
            bound => bound.saturating_sub(1),
        };
        Ok(())
    }

    fn try_advance(&mut self, token: TokenId) -> Result<bool, String> {
        Ok(self.allows(token.0) && self.advance(token).is_ok())
    }

    fn is_free(&self) -> bool {
        self.is_free
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        words.fill(0);
        let allowed = (0..tiny().vocab_size).filter(|&token| self.allows(token));
        allowed.for_each(|token| words[(token / 32) as usize] |= 1 << (token % 32));
        self.is_free = self.bound == 0;
        Ok(())
    }

    fn take_forced(&mut self, most: usize) -> Result<Vec<TokenId>, String> {
        let mut taken = Vec::new();
        while let Some(only) = self.only().filter(|_| taken.len() < most && !self.is_complete()) {
            self.advance(only)?;
            taken.push(only);
        }
        Ok(taken)
    }

    fn is_complete(&self) -> bool {
        self.ended || self.count == self.grammar.length
    }

    fn fork(&mut self) -> Box<dyn Matcher> {
        Box::new(self.clone())
    }
}

fn lazy(marker: u32, length: u32) -> Option<Arc<dyn Grammar>> {
    lazily_forcing(marker, 0, length)
}

pub fn lazily_forcing(marker: u32, forced: u32, length: u32) -> Option<Arc<dyn Grammar>> {
    Some(Arc::new(Lazy { marker, forced, length }))
}

/// Rows that were planned with a mask, and all that sample.
fn masked_rows(harness: &Harness) -> (usize, usize) {
    let flags = harness.plans.iter().flat_map(|plan| &plan.flags);
    let masked = flags.clone().filter(|flags| **flags & penstock_proto::RowFlag::Masked as u8 != 0).count();
    (masked, flags.count())
}

#[test]
fn free_text_needs_no_masks() {
    let mut harness = Harness::new(config(), 4, 64);
    // No token is 9 modulo 8.
    let id = harness.submit(constrained(&[3, 4, 6], 60, lazy(9, 60)));
    let (mut masked, mut all) = (0, 0);
    while harness.step().is_some() {
        let (more, rows) = masked_rows(&harness);
        (masked, all) = (masked + more, all + rows);
    }
    assert!(all > 40 && masked <= 6, "{masked} of {all} rows had a mask");
    assert!(harness.client(id).end.is_some());
    assert_eq!(harness.core.counters.refused_tokens, 0);
    harness.check_against_reference();
}

#[test]
fn what_may_not_follow_in_free_text_is_sampled_again_and_the_text_is_the_same() {
    let mut refused = 0;
    for marker in 0..8 {
        for (new, stop) in [(60, None), (7, None), (60, Some(11))] {
            let mut harness = Harness::new(config(), 4, 64);
            for salt in 0..3 {
                let spec = constrained(&[3, 4, 5 + salt], new, lazy(marker, 50));
                let stop_token_ids = stop.into_iter().map(TokenId).collect();
                harness.submit(SequenceSpec { stop_token_ids, ..spec });
            }
            harness.run_to_end();
            refused += harness.core.counters.refused_tokens;
            harness.check_against_reference();
        }
    }
    assert!(refused > 50, "only {refused} tokens were refused");
}

#[test]
fn late_jobs_preemptions_and_crashes_lose_no_token_of_free_text() {
    for (marker, temperature) in (0..8).flat_map(|marker| [(marker, 0.0), (marker, 0.7)]) {
        let mut harness = Harness::new(MockConfig { pages: 26, ..tiny() }, 4, 64);
        for salt in 0..4 {
            let spec = constrained(&[3, 4, 5, 6 + salt], 60, lazily_forcing(marker, salt, 40));
            // A worker counts for it what was sampled, also in a row behind one that sampled nothing.
            let frequency_penalty = if salt % 2 == 0 { 0.0 } else { 0.1 };
            let sampling = Sampling { temperature, frequency_penalty, ..spec.sampling };
            harness.submit(SequenceSpec { sampling, ..spec });
        }
        for round in 0..12 {
            harness.mask_delay = round % 3;
            for _ in 0..4 {
                harness.step();
            }
            if round % 4 == 1 {
                harness.crash();
            }
        }
        harness.mask_delay = 0;
        harness.run_to_end();
        harness.check_against_reference();
    }
}

#[test]
fn the_time_of_a_sequence_may_be_up_while_its_tokens_are_looked_at() {
    for steps in 1..12 {
        let mut harness = Harness::new(config(), 4, 64);
        harness.mask_delay = 2;
        let stop_at = Some(harness.now + STEP * 1000);
        let id = harness.submit(SequenceSpec { stop_at, ..constrained(&[3, 4], 60, lazy(4, 60)) });
        for _ in 0..steps {
            harness.step();
        }
        harness.now += STEP * 2000;
        harness.run_to_end();
        assert!(harness.client(id).end.is_some());
        harness.check_against_reference();
    }
}

/// Goes wrong after so many tokens.
#[derive(Debug)]
struct Faulty {
    after: u32,
    panics: bool,
}

struct FaultyMatcher(Faulty);

impl Grammar for Faulty {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(FaultyMatcher(Faulty { ..*self }))
    }
}

impl Matcher for FaultyMatcher {
    fn advance(&mut self, _: TokenId) -> Result<(), String> {
        self.0.after -= 1;
        match self.0.after {
            0 if self.0.panics => panic!("on purpose"),
            0 => Err("the grammar has too many states".into()),
            _ => Ok(()),
        }
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        words.fill(0);
        words[0] = 1 << 8;
        Ok(())
    }

    fn take_forced(&mut self, _: usize) -> Result<Vec<TokenId>, String> {
        Ok(Vec::new())
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn fork(&mut self) -> Box<dyn Matcher> {
        Box::new(FaultyMatcher(Faulty { ..self.0 }))
    }
}

#[test]
fn a_matcher_that_fails_ends_its_sequence_alone_and_keeps_its_tokens() {
    for panics in [false, true] {
        let mut harness = Harness::new(config(), 4, 64);
        let grammar: Arc<dyn Grammar> = Arc::new(Faulty { after: 3, panics });
        let id = harness.submit(constrained(&[3, 4], 30, Some(grammar)));
        let other = harness.submit(spec(&[9, 8, 7], 30));
        harness.run_to_end();
        let client = harness.client(id);
        assert!(matches!(&client.end, Some(Err(SequenceFailure::Mask(_)))), "{:?}", client.end);
        assert_eq!(client.ids(), [8, 8, 8]);
        assert_eq!(harness.client(other).tokens.len(), 30);
    }
}

#[test]
fn a_grammar_without_a_next_token_is_an_error_and_not_a_wait() {
    let mut harness = Harness::new(config(), 4, 64);
    // Its first token would have to be 0, which it never allows.
    let grammar = Every { modulus: 50, length: 9, end: None, forced: 0, vocab_size: 50 };
    let id = harness.submit(constrained(&[3, 4], 30, Some(Arc::new(grammar))));
    harness.run_to_end();
    assert!(
        matches!(&harness.client(id).end, Some(Err(SequenceFailure::Mask(why))) if why.contains("no token"))
    );
}
