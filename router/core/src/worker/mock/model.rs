//! Executes plans as a model would, with a hash in the place of keys and values: what is stored for a
//! position depends on its token and on what is stored for the position before it, found through the block
//! tables. What is sampled depends on what is stored for the last position. So a block that is wrong, stale,
//! shared too early or written twice changes the tokens, and mostly is noticed at once. What is stored for a
//! token that an encoder reads depends on all that it reads.
//!
//! A recurrent state is the same hash, kept for each slot and each snapshot, and advanced by whatever a slot is fed. What is
//! sampled depends on it too, so a state that is not of exactly the tokens before changes the tokens; where there are
//! keys and values, it is compared with what is stored for them.

use bytes::Bytes;
use penstock_proto::ids::TokenId;
use penstock_proto::starts::StartColumns;
use penstock_proto::tables::Tables;
use penstock_proto::{Masks, RowError, RowFlag, StepPlan, StepResult};

use super::{MockConfig, Verify};
use crate::scheduler::{PromptLogprob, Sampling, SequenceSpec};

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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stored {
    token: u32,
    position: u32,
    /// Of this and all tokens before it.
    chain: u64,
}

/// A recurrent state: of how many tokens, and their hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    len: u32,
    chain: u64,
}

const NO_STATE: State = State { len: 0, chain: ROOT };

struct Slot {
    /// Of each block, its page in each table.
    pages: Vec<u32>,
    blocks: u32,
    /// Behind each token of its last row, oldest first.
    states: Vec<State>,
    /// The last token fed.
    last: u32,
    encoder: Encoder,
    /// Positions that it has, fed or found in filled blocks.
    len: u32,
    sampled: Option<(u32, u32)>,
    /// Its end, had all drafts of its last row been accepted: the most that the router can think that it has.
    most: u32,
    /// Its last row sampled nothing: what one that is in flight feeds is nobody's.
    skipped: bool,
    key: SamplingKey,
    top_tokens: u32,
}

/// What a sequence is sampled with, as far as it is not the model's.
#[derive(Clone, Debug)]
struct SamplingKey {
    seed: u64,
    samples: bool,
    bias: u64,
    /// All of the sequence, and how much of it is output, when a penalty is on.
    history: Option<(Vec<u32>, u32)>,
    /// What is not sampled, and below which position.
    held_back: (Vec<u32>, u32),
    watermark: u64,
}

/// One row's result.
struct Sampled {
    token: u32,
    logprob: f32,
    top: Vec<(u32, f32)>,
}

/// The part of a sequence that an encoder reads: its tokens, and the positions that they fill with padding.
#[derive(Clone, Copy, Debug, Default)]
struct Encoder {
    tokens: u32,
    positions: u32,
}

/// In the place of a page behind the window.
const NO_PAGE: u32 = u32::MAX;

/// In the place of a snapshot, at position 0.
const NO_SNAPSHOT: u32 = u32::MAX;

const ROOT: u64 = 0x9e37_79b9_7f4a_7c15;

/// splitmix64's finalizer (Steele, Lea, Flood 2014), over a running value.
fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_add(ROOT);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn extend(chain: u64, token: u32, position: u32) -> u64 {
    mix(mix(chain, u64::from(token)), u64::from(position))
}

/// What stands for all that an encoder has read.
fn read(tokens: impl Iterator<Item = u32>) -> u64 {
    tokens.fold(mix(ROOT, 17), |chain, token| mix(chain, u64::from(token)))
}

macro_rules! require {
    ($condition:expr, $($message:tt)+) => {
        if !$condition { return Err(format!($($message)+)); }
    };
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
        }
    }

    pub fn with_drafts(self, max_step_drafts: u32) -> Self {
        Self { max_step_drafts, ..self }
    }

    /// What an undisturbed run of `spec` samples, with its end.
    pub fn reference(config: &MockConfig, spec: &SequenceSpec) -> Vec<u32> {
        let mut key = SamplingKey::of(&spec.sampling);
        let ends: Vec<u32> =
            config.eos_ids.iter().copied().chain(spec.stop_token_ids.iter().map(|id| id.0)).collect();
        if spec.sampling.min_new_tokens > 0 {
            let from = spec.prompt.len() as u32
                + Encoder::new(spec.encoder.len() as u32, config.block_size).positions;
            key.held_back = (ends, from + spec.sampling.min_new_tokens);
        }
        let encoder = Encoder::new(spec.encoder.len() as u32, config.block_size);
        let mut chain = match encoder.positions {
            0 => ROOT,
            positions => mix(read(spec.encoder.iter().map(|token| token.0)), u64::from(positions - 1)),
        };
        let prompt = spec.prompt.iter().map(|token| token.0);
        let before = encoder.positions + spec.prompt.len() as u32;
        for (token, position) in prompt.clone().zip(encoder.positions..) {
            chain = extend(chain, token, position);
        }
        if let Some((history, _)) = &mut key.history {
            history.extend(prompt);
        }
        let mut matcher = spec.constraint.as_ref().map(|grammar| grammar.matcher());
        let mut output = Vec::new();
        while output.len() < spec.max_new_tokens as usize {
            let position = before + output.len() as u32;
            let allowed = matcher.as_mut().map(|matcher| {
                let mut words = vec![0; config.vocab_size.div_ceil(32) as usize];
                matcher.mask(&mut words).expect("the grammar goes on");
                (0..config.vocab_size)
                    .filter(|t| words[(t / 32) as usize] >> (t % 32) & 1 == 1)
                    .collect::<Vec<_>>()
            });
            let last = output.last().copied().or(spec.prompt.last().map(|token| token.0)).unwrap_or(0);
            let seen = if config.state_bytes > 0 { mix(chain, chain) } else { chain };
            let sampled = key.sample(config, seen, position, last, 0, allowed.as_deref());
            let sampled = sampled.expect("a grammar allows a token").token;
            output.push(sampled);
            let goes_on = spec.ignore_eos && spec.constraint.is_none();
            let eos = config.eos_ids.contains(&sampled) && !goes_on;
            if eos || spec.stop_token_ids.iter().any(|stop| stop.0 == sampled) {
                break;
            }
            if let Some(matcher) = &mut matcher {
                matcher.advance(TokenId(sampled)).expect("the token was allowed");
                if matcher.is_complete() {
                    break;
                }
            }
            key.remember(sampled);
            chain = extend(chain, sampled, position);
        }
        output
    }

    /// The log probabilities of `spec`'s prompt.
    pub fn reference_prompt(config: &MockConfig, spec: &SequenceSpec) -> Vec<PromptLogprob> {
        let mut chain = ROOT;
        let mut logprobs = vec![PromptLogprob::default()];
        for (pair, position) in spec.prompt.windows(2).zip(0..) {
            chain = extend(chain, pair[0].0, position);
            logprobs.push(PromptLogprob {
                logprob: Some(prompt_logprob(chain, pair[1].0)),
                top: (0..spec.top_tokens)
                    .map(|n| alternative(config, chain, n))
                    .map(|(token, logprob)| (TokenId(token), logprob))
                    .collect(),
            });
        }
        logprobs
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
        let mut masks = masks.map(|masks| self.read_masks(&rows, masks)).transpose()?;
        require!(rows.slots.len() <= self.max_slots as usize, "{} rows", rows.slots.len());
        let tokens: u64 = rows.counts.iter().map(|&n| u64::from(n)).sum();
        require!(tokens <= u64::from(self.max_step_tokens), "{tokens} tokens in one step");
        let drafts: u64 = rows.drafts.iter().map(|&n| u64::from(n)).sum();
        require!(drafts <= u64::from(self.max_step_drafts), "{drafts} drafts in one step");
        require!(
            drafts == 0 || self.config.state_bytes == 0,
            "{drafts} drafts, and a state cannot be rewound"
        );
        let mut seen = std::collections::HashSet::new();
        for &slot in &rows.slots {
            require!(slot < self.max_slots, "slot {slot} of {}", self.max_slots);
            require!(seen.insert(slot), "slot {slot} is twice in one plan");
        }
        // Within a layer every row's keys and values are written before any is read. So all rows write
        // first, and what they then attend to is checked afterwards.
        let mut cursor = Cursor { sources: self.read_sources(&rows)?, ..Cursor::default() };
        for at in 0..rows.slots.len() {
            self.write(&rows, at, &mut cursor)?;
        }
        cursor.check_all_read(&rows)?;
        self.save(&rows)?;
        let mut result = StepResult { number: plan.number, ..StepResult::default() };
        let mut columns = ResultColumns::default();
        for at in 0..rows.slots.len() {
            let is_masked = rows.flags[at] & RowFlag::Masked as u8 != 0;
            let mask = masks.as_mut().filter(|_| is_masked).map(|masks| masks.remove(0));
            self.attend(&rows, at, mask, &mut cursor.targets_read, &mut columns)?;
        }
        columns.write(&mut result);
        Ok(result)
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

    fn write(&mut self, rows: &Rows, at: usize, cursor: &mut Cursor) -> Result<(), String> {
        let (slot, count, drafts) = (rows.slots[at], rows.counts[at], rows.drafts[at]);
        let mut position = rows.positions[at];
        let flag = |flag: RowFlag| rows.flags[at] & flag as u8 != 0;
        require!(count >= 1, "row {at} feeds nothing");
        require!(drafts < count, "row {at} feeds {count} tokens, {drafts} of them drafts");
        let plain = flag(RowFlag::Sample) && !flag(RowFlag::PromptLogprobs);
        require!(drafts == 0 || plain, "row {at} has drafts and flags {}", rows.flags[at]);
        require!(drafts == 0 || self.config.decoder_start_ids.is_empty(), "drafts for an encoder-decoder");
        if flag(RowFlag::Start) {
            if let Some(old) = self.slots[slot as usize].take() {
                self.let_go(&old.pages);
            }
            self.slots[slot as usize] = Some(cursor.start(rows, &self.config)?);
        }
        let mut state = self.slots[slot as usize]
            .take()
            .ok_or_else(|| format!("row {at}: slot {slot} was not started"))?;
        state.blocks += rows.new_block_counts[at];

        if flag(RowFlag::Continue)
            && let Some((sampled_at, _)) = state.sampled
        {
            let possible = sampled_at..=state.most.max(sampled_at);
            require!(possible.contains(&position), "row {at} continues at {position}, not in {possible:?}");
            position = sampled_at;
        }
        self.forget(&mut state, position);
        for page in cursor.new_pages(rows, at, self.tables.count())? {
            let (block, table) = self.place(state.pages.len());
            if page == NO_PAGE {
                let is_behind = table >= self.tables.full && block < self.tables.first_read(position);
                require!(
                    is_behind,
                    "row {at}: block {block} has no page in table {table}, and {position} reads it"
                );
            } else {
                require!(page < self.config.pages, "row {at}: page {page} of {}", self.config.pages);
                require!(!state.pages.contains(&page), "row {at}: page {page} is twice in its tables");
                self.holders[page as usize] += 1;
            }
            state.pages.push(page);
        }
        let fed: Vec<u32> = if flag(RowFlag::Continue) {
            require!(count == 1 + drafts, "row {at} continues with {count} tokens");
            require!(state.sampled.is_some() || state.skipped, "row {at} continues and nothing was sampled");
            let last = state.sampled.map_or(0, |(_, token)| token);
            std::iter::once(last).chain(cursor.tokens(rows, drafts)?.iter().copied()).collect()
        } else {
            cursor.tokens(rows, count)?.to_vec()
        };
        let end = position + count;
        require!(end <= self.config.max_positions, "row {at} reaches position {end}");
        let size = self.config.block_size;
        require!(state.blocks * size >= end, "row {at}: its tables do not reach {end}");
        if flag(RowFlag::Start) {
            let mut read = self.each_table().flat_map(|table| {
                (self.first_visible(table, position)..position).map(move |before| (table, before))
            });
            let shared = read.all(|(table, before)| self.stored(&state.pages, table, before).is_some());
            require!(shared, "row {at} starts at {position}, and not all before it is there");
            require!(position.is_multiple_of(size), "row {at} starts in the middle of a block");
        } else {
            require!(position == state.len, "row {at} feeds {position}, its slot is at {}", state.len);
        }
        let encoder = state.encoder;
        let cut = position < encoder.positions && (position > 0 || end < encoder.positions);
        require!(!cut, "row {at} feeds {position} to {end}, a part of its encoder's {}", encoder.positions);
        if let Some((history, _)) = state.key.history.as_ref().filter(|_| !state.skipped) {
            let mut fed = (position..end).zip(&fed).filter(|(p, _)| *p >= encoder.positions);
            let known = fed
                .by_ref()
                .take((count - drafts) as usize)
                .all(|(p, t)| history.get((p - encoder.positions) as usize) == Some(t));
            require!(known, "row {at}: its history is not what it feeds");
        }
        let mut chain = match position.checked_sub(1) {
            None => ROOT,
            Some(_) if self.tables.count() == 0 => state.state().chain,
            Some(before) => match self.stored(&state.pages, 0, before) {
                Some(stored) => stored.chain,
                None => return Err(format!("row {at}: position {before} is empty")),
            },
        };
        let mut recurrent = state.state();
        if self.config.state_bytes > 0 {
            let of = recurrent.len;
            require!(of == position, "row {at} feeds {position}, and its state is of {of} tokens");
            require!(
                recurrent.chain == chain,
                "row {at} feeds {position}, and its state is another sequence's"
            );
        }
        state.states.clear();
        let read = read(fed.iter().copied().take(encoder.tokens as usize));
        for (&token, position) in fed.iter().zip(position..) {
            require!(token < self.config.vocab_size, "row {at} feeds token {token}");
            chain = match position < encoder.positions {
                true => mix(read, u64::from(position)),
                false => extend(chain, token, position),
            };
            if self.config.state_bytes > 0 {
                recurrent = State { len: position + 1, chain: extend(recurrent.chain, token, position) };
                state.states.push(recurrent);
            }
            let from = (position / size * self.tables.count()) as usize;
            for &page in &state.pages[from..][..self.tables.count() as usize] {
                require!(page != NO_PAGE, "row {at} writes {position}, which has no page");
                let holders = self.holders[page as usize];
                require!(holders == 1, "row {at} writes page {page}, which {holders} slots hold");
                self.kv[(page * size + position % size) as usize] = Some(Stored { token, position, chain });
            }
        }
        self.fed.extend_from_slice(&fed);
        (state.len, state.most) = (end, rows.positions[at] + count);
        state.last = fed.last().copied().unwrap_or(0);
        state.sampled = None;
        self.slots[slot as usize] = Some(state);
        Ok(())
    }

    /// What each START row's state begins with, read before any row runs.
    fn read_sources(&self, rows: &Rows) -> Result<Vec<State>, String> {
        let starts = rows.flags.iter().zip(&rows.positions);
        let starts = starts.filter(|(flags, _)| **flags & RowFlag::Start as u8 != 0);
        let named = &rows.starts.state_sources;
        if self.config.state_bytes == 0 {
            require!(named.is_empty(), "a model without a state begins with snapshots");
            return Ok(vec![NO_STATE; rows.starts.seeds.len()]);
        }
        let mut sources = Vec::new();
        for ((_, &position), &place) in starts.zip(named) {
            sources.push(match place {
                NO_SNAPSHOT => NO_STATE,
                place => {
                    let saved = self.snapshots.get(place as usize).copied().flatten();
                    saved.ok_or_else(|| format!("snapshot {place} was not saved"))?
                }
            });
            let of = sources.last().map_or(0, |source| source.len);
            require!(
                of == position,
                "a row starts at {position} with a state of {of} tokens, snapshot {place}"
            );
        }
        let (has, needs) = (sources.len(), rows.starts.seeds.len());
        require!(has == needs, "{has} rows begin with a state, and {needs} start");
        Ok(sources)
    }

    /// Copies states to their places.
    fn save(&mut self, rows: &Rows) -> Result<(), String> {
        let mut before = None;
        let mut written = std::collections::HashSet::new();
        for save in rows.saves.chunks(3) {
            let &[row, tokens, place] = save else { return Err(format!("saves end with {save:?}")) };
            require!(before < Some((row, tokens)), "save {save:?} comes after {before:?}");
            before = Some((row, tokens));
            require!((row as usize) < rows.slots.len(), "save {save:?} is of no row");
            let count = rows.counts[row as usize];
            require!((1..=count).contains(&tokens), "save {save:?} in a row of {count} tokens");
            require!(place < self.config.snapshots, "save {save:?} into {} places", self.config.snapshots);
            require!(written.insert(place), "snapshot {place} is written twice in a plan");
            let slot = self.slots[rows.slots[row as usize] as usize].as_ref();
            let state = slot.and_then(|slot| slot.states.get(tokens as usize - 1)).copied();
            self.snapshots[place as usize] = state;
        }
        Ok(())
    }

    fn attend(
        &mut self,
        rows: &Rows,
        at: usize,
        mask: Option<Vec<u32>>,
        targets_read: &mut usize,
        columns: &mut ResultColumns,
    ) -> Result<(), String> {
        let slot = rows.slots[at] as usize;
        let mut state = self.slots[slot].take().expect("written before");
        if self.config.verify == Verify::All {
            for table in self.each_table() {
                self.check_visible(&state, table, state.len - rows.counts[at])
                    .map_err(|why| format!("row {at}: {why}"))?;
            }
        }
        if rows.flags[at] & RowFlag::PromptLogprobs as u8 != 0 {
            let (from, count) = (rows.positions[at], rows.counts[at] as usize);
            let targets = rows.prompt_targets.get(*targets_read..*targets_read + count);
            let targets = targets.ok_or("prompt_targets is too short")?;
            *targets_read += count;
            for (&target, position) in targets.iter().zip(from..) {
                let chain = match self.tables.count() {
                    0 => state.states[(position - from) as usize].chain,
                    _ => self.stored(&state.pages, 0, position).map_or(0, |stored| stored.chain),
                };
                let known = target != u32::MAX;
                columns.prompt_logprobs.push(if known { prompt_logprob(chain, target) } else { f32::NAN });
                for (token, logprob) in (0..state.top_tokens).map(|n| alternative(&self.config, chain, n)) {
                    columns.prompt_top_tokens.push(token);
                    columns.prompt_top_logprobs.push(logprob);
                }
            }
        }
        if rows.flags[at] & RowFlag::Sample as u8 != 0 {
            self.sample(&mut state, rows, at, mask, columns)?;
        }
        self.slots[slot] = Some(state);
        Ok(())
    }

    /// Samples behind the last token before the row's drafts, and behind each of those that it accepts.
    fn sample(
        &self,
        state: &mut Slot,
        rows: &Rows,
        at: usize,
        mask: Option<Vec<u32>>,
        columns: &mut ResultColumns,
    ) -> Result<(), String> {
        let drafts = rows.drafts[at];
        let fed_to = state.len;
        let is_skipped = mask.as_ref().is_some_and(Vec::is_empty);
        for len in fed_to - drafts..=fed_to {
            if let Some((history, _)) = state.key.history.as_ref().filter(|_| !is_skipped) {
                let (has, needs) = (history.len(), len - state.encoder.positions);
                require!(has == needs as usize, "row {at}: samples at {needs} with a history of {has}");
            }
            let stored = |position| self.stored(&state.pages, 0, position);
            // The drafts of a masked row are what may follow.
            let forced = mask.is_some() && len < fed_to && !is_skipped;
            let only = forced.then(|| stored(len).map(|draft| vec![draft.token])).flatten();
            let mask = only.as_deref().or(mask.as_deref());
            let (mut chain, last) = match self.tables.count() {
                0 => (state.state().chain, state.last),
                _ => stored(len - 1).map_or((0, 0), |stored| (stored.chain, stored.token)),
            };
            if self.config.state_bytes > 0 {
                chain = mix(chain, state.state().chain);
            }
            let sampled = state.key.sample(&self.config, chain, len, last, state.top_tokens, mask);
            state.skipped = sampled.is_none();
            let sampled = sampled.unwrap_or(Sampled {
                token: 0,
                logprob: 0.0,
                top: vec![(0, 0.0); state.top_tokens as usize],
            });
            columns.sampled.push(sampled.token);
            columns.logprobs.push(sampled.logprob);
            for (token, logprob) in sampled.top {
                columns.top_tokens.push(token);
                columns.top_logprobs.push(logprob);
            }
            if state.skipped {
                continue;
            }
            state.key.remember(sampled.token);
            state.sampled = Some((len, sampled.token));
            state.len = len;
            if stored(len).is_none_or(|draft| len == fed_to || draft.token != sampled.token) {
                break;
            }
        }
        if drafts > 0 {
            columns.accepted.push(state.len + drafts - fed_to);
        }
        Ok(())
    }

    /// The allowed tokens of each masked row.
    fn read_masks(&self, rows: &Rows, masks: &Masks) -> Result<Vec<Vec<u32>>, String> {
        require!(
            masks.number == self.number,
            "masks of plan {} came with plan {}",
            masks.number,
            self.number
        );
        let masked = rows.flags.iter().filter(|flags| **flags & RowFlag::Masked as u8 != 0).count();
        let (words, width) = (u32s(&masks.words), self.config.vocab_size.div_ceil(32) as usize);
        require!(words.len() == masked * width, "{} words of masks for {masked} rows", words.len());
        let allowed = |mask: &[u32]| {
            (0..self.config.vocab_size)
                .filter(|token| mask[(token / 32) as usize] >> (token % 32) & 1 == 1)
                .collect()
        };
        Ok(words.chunks(width).map(allowed).collect())
    }

    fn let_go(&mut self, pages: &[u32]) {
        for &page in pages.iter().filter(|page| **page != NO_PAGE) {
            self.holders[page as usize] -= 1;
        }
    }

    /// What no token from `position` on reads may be another's by now.
    fn forget(&mut self, state: &mut Slot, position: u32) {
        let first = self.tables.first_read(position);
        for at in 0..state.pages.len() {
            let (block, table) = self.place(at);
            if table >= self.tables.full && block < first && state.pages[at] != NO_PAGE {
                self.holders[state.pages[at] as usize] -= 1;
                state.pages[at] = NO_PAGE;
            }
        }
    }

    /// Block and table of an entry of a slot's pages.
    fn place(&self, at: usize) -> (u32, u32) {
        (at as u32 / self.tables.count(), at as u32 % self.tables.count())
    }

    fn each_table(&self) -> std::ops::Range<u32> {
        0..self.tables.count()
    }

    /// The first position that the token at `position` sees in a table.
    fn first_visible(&self, table: u32, position: u32) -> u32 {
        let window = self.tables.window;
        match table < self.tables.full {
            true => 0,
            false if self.tables.chunked => position / window * window,
            false => (position + 1).saturating_sub(window),
        }
    }

    /// All that a row which begins at `position` sees in a table is its sequence's.
    fn check_visible(&self, state: &Slot, table: u32, position: u32) -> Result<(), String> {
        let Encoder { tokens, positions } = state.encoder;
        let read = read((0..tokens).filter_map(|p| self.stored(&state.pages, table, p)).map(|s| s.token));
        let mut before = Some(ROOT);
        let first = self.first_visible(table, position);
        if first > 0 {
            before = None;
        }
        for position in first..state.len {
            let stored = self.stored(&state.pages, table, position);
            let stored =
                stored.ok_or_else(|| format!("position {position} was overwritten in table {table}"))?;
            let chain = match (position < positions, before) {
                (true, _) => mix(read, u64::from(position)),
                (false, Some(chain)) => extend(chain, stored.token, position),
                // What comes before is behind the window; a full table tells.
                (false, None) if self.tables.full > 0 => {
                    self.stored(&state.pages, 0, position).map_or(0, |stored| stored.chain)
                }
                (false, None) => stored.chain,
            };
            require!(chain == stored.chain, "position {position} follows another sequence in table {table}");
            before = Some(chain);
        }
        Ok(())
    }

    /// What is stored for a position in a table, if it is what should be there.
    fn stored(&self, pages: &[u32], table: u32, position: u32) -> Option<Stored> {
        let size = self.config.block_size;
        let page = *pages.get((position / size * self.tables.count() + table) as usize)?;
        let at = (page != NO_PAGE).then_some(page * size + position % size)?;
        self.kv[at as usize].filter(|stored| stored.position == position)
    }
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
}

impl Encoder {
    fn new(tokens: u32, block_size: u32) -> Self {
        Self { tokens, positions: tokens.next_multiple_of(block_size) }
    }
}

fn watermark((delta, greens): (f32, u32)) -> u64 {
    if delta > 0.0 { mix(u64::from(delta.to_bits()), u64::from(greens)) } else { 0 }
}

/// The `n`-th most likely token where the tokens before are hashed to `chain`.
fn alternative(config: &MockConfig, chain: u64, n: u32) -> (u32, f32) {
    ((mix(chain, 100 + u64::from(n)) % u64::from(config.vocab_size)) as u32, -(n as f32))
}

fn prompt_logprob(chain: u64, target: u32) -> f32 {
    -((mix(chain, u64::from(target)) % 1000) as f32) / 100.0
}

impl Slot {
    /// Behind the last token fed.
    fn state(&self) -> State {
        self.states.last().copied().unwrap_or(NO_STATE)
    }
}

impl SamplingKey {
    fn of(sampling: &Sampling) -> Self {
        let penalised = sampling.repetition_penalty != 1.0
            || sampling.frequency_penalty != 0.0
            || sampling.presence_penalty != 0.0;
        Self {
            seed: sampling.seed,
            samples: sampling.temperature > 0.0,
            bias: sampling
                .logit_bias
                .iter()
                .fold(0, |bias, &(token, value)| mix(bias, u64::from(token.0) ^ u64::from(value.to_bits()))),
            history: penalised.then(|| (Vec::new(), 0)),
            held_back: (Vec::new(), 0),
            watermark: watermark(sampling.watermark.map_or((0.0, 0), |mark| (mark.delta, mark.greens))),
        }
    }

    /// `last`: the token before. `mask`: the tokens that are allowed. `None`: there is none.
    fn sample(
        &self,
        config: &MockConfig,
        chain: u64,
        position: u32,
        last: u32,
        top: u32,
        mask: Option<&[u32]>,
    ) -> Option<Sampled> {
        let mut h = mix(mix(chain, self.bias), self.watermark);
        if self.samples {
            h = mix(h, mix(self.seed, u64::from(position)));
        }
        if let Some((history, outputs)) = &self.history {
            h = history.iter().fold(mix(h, u64::from(*outputs)), |h, &token| mix(h, u64::from(token)));
        }
        let (held_back, first_end) = &self.held_back;
        let may = |token: u32| position >= *first_end || !held_back.contains(&token);
        let ends = config.eos_one_in > 0 && mix(h, 1).is_multiple_of(config.eos_one_in);
        let next = (mix(u64::from(last), 5) % u64::from(config.vocab_size)) as u32;
        let follows = config.surprise_one_in > 0 && !mix(h, 4).is_multiple_of(config.surprise_one_in);
        let token = match mask {
            Some(allowed) => *allowed.get(mix(h, 2).checked_rem(allowed.len() as u64)? as usize)?,
            None if ends && may(config.eos_ids[0]) => config.eos_ids[0],
            None if follows && may(next) && !config.eos_ids.contains(&next) => next,
            None => (0..)
                .map(|n| (mix(h, 2 + n) % u64::from(config.vocab_size)) as u32)
                .find(|token| !config.eos_ids.contains(token) && may(*token))
                .expect("not every token ends a sequence"),
        };
        let top = (0..top).map(|n| alternative(config, h, n)).collect();
        Some(Sampled { token, logprob: -((h % 1000) as f32) / 100.0, top })
    }

    fn remember(&mut self, token: u32) {
        if let Some((history, outputs)) = &mut self.history {
            history.push(token);
            *outputs += 1;
        }
    }
}

/// A plan's columns as arrays.
struct Rows {
    slots: Vec<u32>,
    flags: Vec<u8>,
    positions: Vec<u32>,
    counts: Vec<u32>,
    tokens: Vec<u32>,
    new_block_counts: Vec<u32>,
    new_pages: Vec<u32>,
    prompt_targets: Vec<u32>,
    drafts: Vec<u32>,
    saves: Vec<u32>,
    starts: StartColumns,
}

impl Rows {
    fn read(plan: &StepPlan) -> Result<Self, String> {
        let mut rows = Self {
            slots: u32s(&plan.slots),
            flags: plan.flags.to_vec(),
            positions: u32s(&plan.positions),
            counts: u32s(&plan.counts),
            tokens: u32s(&plan.tokens),
            new_block_counts: u32s(&plan.new_block_counts),
            new_pages: u32s(&plan.new_pages),
            prompt_targets: u32s(&plan.prompt_targets),
            drafts: u32s(&plan.drafts),
            saves: u32s(&plan.saves),
            starts: plan.starts.as_ref().map_or(Ok(StartColumns::default()), StartColumns::read)?,
        };
        let n = rows.slots.len();
        require!(n > 0, "a plan without rows");
        let lengths =
            [rows.flags.len(), rows.positions.len(), rows.counts.len(), rows.new_block_counts.len()];
        require!(lengths == [n; 4], "columns of {n} rows have lengths {lengths:?}");
        let drafts = rows.drafts.len();
        require!(drafts == 0 || drafts == n, "{drafts} entries in drafts of {n} rows");
        rows.drafts.resize(n, 0);
        let starts = &rows.starts;
        let named =
            starts.first_ends.iter().zip(&starts.end_counts).all(|(first, n)| (*first == 0) == (*n == 0));
        require!(named, "tokens are held back from no position, or none below one");
        Ok(rows)
    }
}

/// How much of the ragged columns was read.
#[derive(Default)]
struct Cursor {
    tokens_read: usize,
    pages_read: usize,
    starts_read: usize,
    history_read: usize,
    biases_read: usize,
    ends_read: usize,
    targets_read: usize,
    /// The state with which each START row begins.
    sources: Vec<State>,
}

impl Cursor {
    fn tokens<'a>(&mut self, rows: &'a Rows, count: u32) -> Result<&'a [u32], String> {
        let from = self.tokens_read;
        self.tokens_read += count as usize;
        rows.tokens.get(from..self.tokens_read).ok_or("the tokens are too few".into())
    }

    fn new_pages(&mut self, rows: &Rows, at: usize, tables: u32) -> Result<Vec<u32>, String> {
        let from = self.pages_read;
        self.pages_read += (rows.new_block_counts[at] * tables) as usize;
        rows.new_pages.get(from..self.pages_read).map(<[u32]>::to_vec).ok_or("the pages are too few".into())
    }

    fn start(&mut self, rows: &Rows, config: &MockConfig) -> Result<Slot, String> {
        let (m, starts) = (self.starts_read, &rows.starts);
        self.starts_read += 1;
        require!(m < starts.seeds.len(), "{m} starts are too few");
        let (from, biases, ends) = (self.history_read, self.biases_read, self.ends_read);
        self.ends_read += starts.end_counts[m] as usize;
        let held_back = starts.end_tokens.get(ends..self.ends_read).ok_or("the end tokens are too few")?;
        self.history_read += starts.history_counts[m] as usize;
        self.biases_read += starts.bias_counts[m] as usize;
        let history = starts.history.get(from..self.history_read).ok_or("the history is too short")?;
        let penalties =
            [starts.repetition_penalties[m], starts.frequency_penalties[m], starts.presence_penalties[m]];
        let penalised = penalties != [1.0, 0.0, 0.0];
        require!(penalised != history.is_empty(), "a history is sent exactly with a penalty");
        let bias_tokens = starts.bias_tokens.get(biases..self.biases_read).ok_or("the biases are too few")?;
        let bias = bias_tokens.iter().zip(&starts.biases[biases..]);
        let encoder = starts.encoder_counts.get(m).copied().unwrap_or(0);
        let reads = !config.decoder_start_ids.is_empty();
        require!((encoder > 0) == reads, "a sequence with {encoder} encoder tokens");
        Ok(Slot {
            pages: Vec::new(),
            blocks: 0,
            states: vec![self.sources[m]],
            last: 0,
            encoder: Encoder::new(encoder, config.block_size),
            len: 0,
            sampled: None,
            most: 0,
            skipped: false,
            key: SamplingKey {
                seed: starts.seeds[m],
                samples: starts.temperatures[m] > 0.0,
                bias: bias.fold(0, |bias, (&token, value)| {
                    mix(bias, u64::from(token) ^ u64::from(value.to_bits()))
                }),
                history: penalised.then(|| (history.to_vec(), starts.history_outputs[m])),
                held_back: (held_back.to_vec(), starts.first_ends[m]),
                watermark: watermark((starts.watermark_deltas[m], starts.watermark_greens[m])),
            },
            top_tokens: starts.top_tokens[m],
        })
    }

    fn check_all_read(&self, rows: &Rows) -> Result<(), String> {
        let read = [
            self.tokens_read,
            self.pages_read,
            self.starts_read,
            self.history_read,
            self.biases_read,
            self.ends_read,
        ];
        let starts = &rows.starts;
        let there = [
            rows.tokens.len(),
            rows.new_pages.len(),
            starts.seeds.len(),
            starts.history.len(),
            starts.biases.len(),
            starts.end_tokens.len(),
        ];
        require!(read == there, "ragged columns have lengths {there:?}, the rows take {read:?}");
        Ok(())
    }
}

#[derive(Default)]
struct ResultColumns {
    accepted: Vec<u32>,
    sampled: Vec<u32>,
    logprobs: Vec<f32>,
    top_tokens: Vec<u32>,
    top_logprobs: Vec<f32>,
    prompt_logprobs: Vec<f32>,
    prompt_top_tokens: Vec<u32>,
    prompt_top_logprobs: Vec<f32>,
}

impl ResultColumns {
    fn write(&self, result: &mut StepResult) {
        result.accepted = Bytes::copy_from_slice(bytemuck::cast_slice(&self.accepted));
        result.sampled = Bytes::copy_from_slice(bytemuck::cast_slice(&self.sampled));
        result.logprobs = Bytes::copy_from_slice(bytemuck::cast_slice(&self.logprobs));
        result.top_tokens = Bytes::copy_from_slice(bytemuck::cast_slice(&self.top_tokens));
        result.top_logprobs = Bytes::copy_from_slice(bytemuck::cast_slice(&self.top_logprobs));
        result.prompt_logprobs = Bytes::copy_from_slice(bytemuck::cast_slice(&self.prompt_logprobs));
        result.prompt_top_tokens = Bytes::copy_from_slice(bytemuck::cast_slice(&self.prompt_top_tokens));
        result.prompt_top_logprobs = Bytes::copy_from_slice(bytemuck::cast_slice(&self.prompt_top_logprobs));
    }
}

fn u32s(column: &[u8]) -> Vec<u32> {
    bytemuck::allocation::pod_collect_to_vec(column)
}
