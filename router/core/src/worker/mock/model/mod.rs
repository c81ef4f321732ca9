//! Executes plans as a model would, with a hash in the place of keys and values: what is stored for a
//! position depends on its token and on what is stored for the position before it, found through the block
//! tables. What is sampled depends on what is stored for the last position. So a block that is wrong, stale,
//! shared too early or written twice changes the tokens, and mostly is noticed at once. What is stored for a
//! token that an encoder reads depends on all that it reads.
//!
//! A recurrent state is the same hash, kept for each slot and each snapshot, and advanced by whatever a slot is fed. What is
//! sampled depends on it too, so a state that is not of exactly the tokens before changes the tokens; where there are
//! keys and values, it is compared with what is stored for them.
//!
//! A plan runs in two passes: each row `feed`s, then each `attend`s, over `pages` and `states`.

mod attend;
mod feed;
mod pages;
mod states;

use std::collections::VecDeque;

use penstock_proto::starts::StartColumns;
use penstock_proto::tables::Tables;
use penstock_proto::{Masks, RowError, RowFlag, StepPlan, StepResult};

use self::pages::Stored;
use self::states::State;
use super::MockConfig;
use super::columns::{Cursor, Encoder, ResultColumns, Rows, Start, u32s};
use super::sampling::SamplingKey;

/// One per incarnation of a mock worker; also used without a worker, as the far side of the scheduler's core.
pub struct MockModel {
    config: MockConfig,
    max_slots: u32,
    max_step_tokens: u32,
    max_step_drafts: u32,
    number: u64,
    digest: crc32fast::Hasher,
    tables: Tables,
    /// What is stored, `block_size` for each page.
    kv: Vec<Option<Stored>>,
    /// In how many slots' tables each page is.
    holders: Vec<u32>,
    slots: Vec<Option<Slot>>,
    /// What each place for a snapshot has.
    snapshots: Vec<Option<State>>,
    /// All tokens fed in the last plan.
    fed: Vec<u32>,
    /// Of each row of the next plan, where a record is followed.
    recorded_drafts: Vec<Vec<u32>>,
    /// It was not told the masks of rows, as ranks that do not sample are not: what it stores for the tokens of those, and others begin
    /// with, are its own guesses.
    guesses_tokens: bool,
}

struct Slot {
    /// Of each block, its page in each table.
    pages: Vec<u32>,
    blocks: u32,
    /// Behind each token of its last row, oldest first, until it is known which are accepted; then up to the last of those.
    states: Vec<State>,
    /// The last token fed that is no draft.
    last: u32,
    encoder: Encoder,
    adapter: u32,
    /// Positions that it has, fed or found in filled blocks. Of a row whose drafts are a tree those before them, until it is known which
    /// are accepted.
    len: u32,
    /// Of its last row: the position of the last token that is no draft, and behind it the drafts.
    base: u32,
    drafts: Vec<Draft>,
    /// Places that it has for the states in front of the drafts of its last row.
    before_drafts: u32,
    sampled: Option<(u32, u32)>,
    /// Its end, had all drafts of its last row been accepted: the most that the router can think that it has.
    most: u32,
    /// It verified drafts under masks that this rank was not told: how many were accepted only the router knows.
    is_blind: bool,
    /// Its last row sampled nothing: what one that is in flight feeds is nobody's.
    skipped: bool,
    key: SamplingKey,
    top_tokens: u32,
}

/// A token that a row verifies. Its number in the row, from 1 on, is how far behind the row's base its slot has it stored.
#[derive(Clone, Copy, Debug)]
struct Draft {
    token: u32,
    /// The number of the draft before it; 0: none.
    parent: u32,
    depth: u32,
}

impl MockModel {
    pub fn new(config: MockConfig, max_slots: u32, max_step_tokens: u32) -> Self {
        Self {
            tables: config.tables(),
            kv: vec![None; config.pages as usize * config.block_size as usize],
            holders: vec![0; config.pages as usize],
            slots: (0..max_slots).map(|_| None).collect(),
            snapshots: vec![None; config.snapshots as usize],
            config,
            max_slots,
            max_step_tokens,
            max_step_drafts: 0,
            number: 0,
            digest: crc32fast::Hasher::new(),
            fed: Vec::new(),
            recorded_drafts: Vec::new(),
            guesses_tokens: false,
        }
    }

    pub fn with_drafts(self, max_step_drafts: u32) -> Self {
        Self { max_step_drafts, ..self }
    }

    /// All tokens that the last plan fed.
    pub fn fed(&self) -> &[u32] {
        &self.fed
    }

    /// Executes a plan without masked rows, or as a rank that does not sample.
    pub fn execute(&mut self, plan: &StepPlan) -> Result<StepResult, String> {
        self.execute_masked(plan, None)
    }

    /// Executes a plan. An error is what a worker answers with FAILED_PRECONDITION: the plan is wrong.
    pub fn execute_masked(&mut self, plan: &StepPlan, masks: Option<&Masks>) -> Result<StepResult, String> {
        self.run(plan, masks, ResultColumns::default())
    }

    /// The same as a worker that sampled what `recorded` says.
    pub fn follow(
        &mut self,
        plan: &StepPlan,
        masks: Option<&Masks>,
        recorded: &StepResult,
    ) -> Result<StepResult, String> {
        self.recorded_drafts = drafts_of(&Rows::read(plan)?, recorded, self.config.vocab_size);
        let recorded = Some(u32s(&recorded.sampled).into_iter());
        self.run(plan, masks, ResultColumns { recorded, ..ResultColumns::default() })
    }

    fn run(
        &mut self,
        plan: &StepPlan,
        masks: Option<&Masks>,
        mut columns: ResultColumns,
    ) -> Result<StepResult, String> {
        self.number += 1;
        require!(plan.number == self.number, "plan {} came, expected {}", plan.number, self.number);
        self.check_digest(plan)?;
        self.fed.clear();
        for slot in u32s(&plan.released) {
            let held = self.slots.get_mut(slot as usize).and_then(Option::take);
            let held = held.ok_or_else(|| format!("slot {slot} is released and was not in use"))?;
            self.let_go(&held.pages);
        }
        let rows = Rows::read(plan)?;
        rows.check_adapters(self.config.adapters.len())?;
        let mut masks = masks.map(|masks| self.read_masks(&rows, masks)).transpose()?;
        self.guesses_tokens |=
            masks.is_none() && rows.flags.iter().any(|flags| flags & RowFlag::Masked as u8 != 0);
        require!(rows.slots.len() <= self.max_slots as usize, "{} rows", rows.slots.len());
        let tokens: u64 = rows.counts.iter().map(|&n| u64::from(n)).sum();
        require!(tokens <= u64::from(self.max_step_tokens), "{tokens} tokens in one step");
        let drafts: u64 = rows.drafts.iter().map(|&n| u64::from(n)).sum();
        require!(drafts <= u64::from(self.max_step_drafts), "{drafts} drafts in one step");
        let mut seen = std::collections::HashSet::new();
        for &slot in &rows.slots {
            require!(slot < self.max_slots, "slot {slot} of {}", self.max_slots);
            require!(seen.insert(slot), "slot {slot} is twice in one plan");
        }
        // Within a layer every row's keys and values are written before any is read. So all rows write
        // first, and what they then attend to is checked afterwards.
        let sources = self.read_sources(&rows)?;
        let mut cursor = Cursor::default();
        self.copy(&rows)?;
        for at in 0..rows.slots.len() {
            self.write(&rows, at, &sources, &mut cursor)?;
        }
        cursor.check_all_read(&rows)?;
        self.check_copies(&rows)?;
        self.save(&rows)?;
        let mut result =
            StepResult { number: plan.number, draft_ns: self.drafting_ns(&rows), ..StepResult::default() };
        for at in 0..rows.slots.len() {
            let is_masked = rows.flags[at] & RowFlag::Masked as u8 != 0;
            let masks = masks.as_mut().filter(|_| is_masked).and_then(VecDeque::pop_front);
            self.attend(&rows, at, masks, &mut cursor.targets_read, &mut columns)?;
        }
        columns.write(&mut result);
        Ok(result)
    }

    /// How long its draft model takes.
    fn drafting_ns(&self, rows: &Rows) -> u64 {
        let own = rows.flags.iter().zip(&rows.drafts);
        let own = own.filter(|(flags, _)| **flags & RowFlag::OwnDrafts as u8 != 0).map(|(_, drafts)| *drafts);
        let cost = self.config.draft_cost;
        let rounds = f64::from(own.clone().max().unwrap_or(0));
        (cost.fixed_ns * rounds + cost.per_token_ns * f64::from(own.sum::<u32>())) as u64
    }

    /// The same with some rows' logits not being numbers.
    pub fn execute_with_errors(
        &mut self,
        plan: &StepPlan,
        masks: Option<&Masks>,
        rows: &[u32],
    ) -> Result<StepResult, String> {
        let mut result = self.execute_masked(plan, masks)?;
        let error = |&row: &u32| RowError { row, message: "the model's output is not a number".into() };
        result.errors = rows.iter().map(error).collect();
        Ok(result)
    }

    fn check_digest(&mut self, plan: &StepPlan) -> Result<(), String> {
        update_digest(&mut self.digest, plan);
        let own = self.digest.clone().finalize();
        require!(plan.digest == own, "plan {} has digest {}, expected {own}", plan.number, plan.digest);
        Ok(())
    }

    /// The plan with the digest that is due.
    #[cfg(test)]
    pub fn stamped(&self, plan: StepPlan) -> StepPlan {
        let mut digest = self.digest.clone();
        update_digest(&mut digest, &plan);
        StepPlan { digest: digest.finalize(), ..plan }
    }

    /// Of each masked row, for each of its samples the tokens that it may be.
    fn read_masks(&self, rows: &Rows, masks: &Masks) -> Result<VecDeque<Vec<Vec<u32>>>, String> {
        require!(
            masks.number == self.number,
            "masks of plan {} came with plan {}",
            masks.number,
            self.number
        );
        let is_masked = |flags: &u8| flags & RowFlag::Masked as u8 != 0;
        let samples = rows.flags.iter().zip(&rows.drafts).filter(|(flags, _)| is_masked(flags));
        let samples: Vec<usize> = samples.map(|(_, drafts)| 1 + *drafts as usize).collect();
        let (only, all) = (u32s(&masks.only), samples.iter().sum::<usize>());
        require!(only.len() == all, "{} entries in masks.only, and masked rows sample {all}", only.len());
        let listed = only.iter().filter(|only| **only == Masks::OF_WORDS).count();
        let (words, width) = (u32s(&masks.words), self.config.vocab_size.div_ceil(32) as usize);
        require!(words.len() == listed * width, "{} words of {listed} masks", words.len());
        let mut words = words.chunks(width);
        let mut allowed = |only: u32| match only {
            Masks::NONE => Ok(Vec::new()),
            Masks::OF_WORDS => {
                let mask = words.next().ok_or("too few masks")?;
                let has = |token: &u32| mask[(token / 32) as usize] >> (token % 32) & 1 == 1;
                let tokens: Vec<u32> = (0..self.config.vocab_size).filter(has).collect();
                require!(!tokens.is_empty(), "a mask without a token");
                Ok(tokens)
            }
            token if token < self.config.vocab_size => Ok(vec![token]),
            token => Err(format!("token {token} is the only one of a masked row")),
        };
        let mut only = only.into_iter();
        samples.iter().map(|&count| only.by_ref().take(count).map(&mut allowed).collect()).collect()
    }
}

/// Of each row the drafts that a worker's draft model made, as far as a record tells: those that were accepted, and in the place of
/// the others a token that was not sampled. Too few where the record is too short, which whoever follows it notices.
fn drafts_of(rows: &Rows, recorded: &StepResult, vocab_size: u32) -> Vec<Vec<u32>> {
    let mut sampled = u32s(&recorded.sampled).into_iter();
    let mut accepted = u32s(&recorded.accepted).into_iter();
    let of_row = |(flags, &drafts): (&u8, &u32)| {
        if flags & RowFlag::Sample as u8 == 0 {
            return Vec::new();
        }
        let right = if drafts > 0 { accepted.next().unwrap_or(0).min(drafts) as usize } else { 0 };
        let mut made: Vec<u32> = sampled.by_ref().take(right).collect();
        let wrong = sampled.next().map_or(0, |next| (next + 1) % vocab_size);
        made.resize(drafts as usize, wrong);
        made
    };
    rows.flags.iter().zip(&rows.drafts).map(of_row).collect()
}

fn update_digest(digest: &mut crc32fast::Hasher, plan: &StepPlan) {
    digest.update(&plan.number.to_le_bytes());
    let StepPlan { released, slots, flags, positions, counts, tokens, .. } = plan;
    let StepPlan { new_block_counts, new_pages, prompt_targets, .. } = plan;
    for column in [released, slots, flags, positions, counts, tokens, new_block_counts, new_pages] {
        digest.update(column);
    }
    digest.update(prompt_targets);
    if let Some(starts) = &plan.starts {
        StartColumns::digest(starts, |column| digest.update(column));
    }
    digest.update(&plan.traces);
    digest.update(&plan.drafts);
    digest.update(&plan.saves);
    digest.update(&plan.draft_parents);
    digest.update(&plan.copies);
}

impl Slot {
    fn new(start: Start, source: State) -> Self {
        let Start { encoder, adapter, key, top_tokens, .. } = start;
        Self {
            pages: Vec::new(),
            blocks: 0,
            states: vec![source],
            last: 0,
            encoder,
            adapter,
            len: 0,
            base: 0,
            drafts: Vec::new(),
            before_drafts: 0,
            sampled: None,
            most: 0,
            is_blind: false,
            skipped: false,
            key,
            top_tokens,
        }
    }
}
