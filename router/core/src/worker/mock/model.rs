//! Executes plans as a model would, with a hash in the place of keys and values: what is stored for a
//! position depends on its token and on what is stored for the position before it, found through the block
//! tables. What is sampled depends on what is stored for the last position. So a block that is wrong, stale,
//! shared too early or written twice changes the tokens, and mostly is noticed at once. What is stored for a
//! token that an encoder reads depends on all that it reads.
//!
//! A recurrent state is the same hash, kept for each slot and each snapshot, and advanced by whatever a slot is fed. What is
//! sampled depends on it too, so a state that is not of exactly the tokens before changes the tokens; where there are
//! keys and values, it is compared with what is stored for them.

use penstock_proto::starts::StartColumns;
use penstock_proto::tables::Tables;
use penstock_proto::{Masks, RowError, RowFlag, StepPlan, StepResult};

use super::columns::{Cursor, Encoder, ResultColumns, Rows, Start, u32s};
use super::sampling::{ROOT, Sampled, SamplingKey, alternative, extend, mix, prompt_logprob, read};
use super::{MockConfig, Verify};

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
    /// Positions that it has, fed or found in filled blocks. Of a row whose drafts are a tree those before them, until it is known which
    /// are accepted.
    len: u32,
    /// Of its last row: the position of the last token that is no draft, and behind it the drafts.
    base: u32,
    drafts: Vec<Draft>,
    sampled: Option<(u32, u32)>,
    /// Its end, had all drafts of its last row been accepted: the most that the router can think that it has.
    most: u32,
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

/// In the place of a page behind the window.
const NO_PAGE: u32 = u32::MAX;

/// In the place of a snapshot, at position 0.
const NO_SNAPSHOT: u32 = u32::MAX;

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
            let mask = masks.as_mut().filter(|_| is_masked).map(|masks| masks.remove(0));
            self.attend(&rows, at, mask, &mut cursor.targets_read, &mut columns)?;
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

    /// Copies pages, before anything is written. Whoever has a target by then is started anew by the plan.
    fn copy(&mut self, rows: &Rows) -> Result<(), String> {
        let size = self.config.block_size as usize;
        let starts = Self::starting(rows);
        require!(rows.copies.len().is_multiple_of(2), "{} entries in copies", rows.copies.len());
        for pair in rows.copies.chunks(2) {
            let pages = self.config.pages;
            require!(pair.iter().all(|page| *page < pages), "page {pair:?} is copied, of {pages}");
            let has_it = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| self.sees(slot, pair[1]));
            let others = (0..).zip(&self.slots).filter(|(_, slot)| has_it(slot));
            let other = others.map(|(slot, _)| slot).find(|slot| !starts.contains(slot));
            require!(other.is_none(), "page {} becomes a copy, and slot {other:?} has it", pair[1]);
            let [source, target] = [pair[0], pair[1]].map(|page| page as usize * size);
            self.kv.copy_within(source..source + size, target);
        }
        Ok(())
    }

    /// Each target is a page of a row that starts.
    fn check_copies(&self, rows: &Rows) -> Result<(), String> {
        let starts = Self::starting(rows);
        for target in rows.copies.iter().skip(1).step_by(2) {
            let mut tables = starts.iter().filter_map(|slot| self.slots[*slot as usize].as_ref());
            let is_there = tables.any(|slot| slot.pages.contains(target));
            require!(is_there, "page {target} is a copy, and no row that starts has it");
        }
        Ok(())
    }

    /// Slots whose rows start.
    fn starting(rows: &Rows) -> Vec<u32> {
        let rows = rows.slots.iter().zip(&rows.flags);
        rows.filter(|(_, flags)| **flags & RowFlag::Start as u8 != 0).map(|(slot, _)| *slot).collect()
    }

    fn write(
        &mut self,
        rows: &Rows,
        at: usize,
        sources: &[State],
        cursor: &mut Cursor,
    ) -> Result<(), String> {
        let (slot, count, drafts) = (rows.slots[at], rows.counts[at], rows.drafts[at]);
        let mut position = rows.positions[at];
        let flag = |flag: RowFlag| rows.flags[at] & flag as u8 != 0;
        require!(count >= 1, "row {at} feeds nothing");
        require!(drafts < count, "row {at} feeds {count} tokens, {drafts} of them drafts");
        let own = flag(RowFlag::OwnDrafts);
        let may = flag(RowFlag::Continue) && !flag(RowFlag::Masked) && drafts > 0;
        require!(!own || may, "row {at} asks for drafts, with flags {}", rows.flags[at]);
        require!(!own || self.config.wrong_draft_one_in > 0, "row {at} has a worker without a draft model");
        let plain = flag(RowFlag::Sample) && !flag(RowFlag::PromptLogprobs);
        require!(drafts == 0 || plain, "row {at} has drafts and flags {}", rows.flags[at]);
        require!(drafts == 0 || self.config.decoder_start_ids.is_empty(), "drafts for an encoder-decoder");
        if flag(RowFlag::Start) {
            if let Some(old) = self.slots[slot as usize].take() {
                self.let_go(&old.pages);
            }
            let start = cursor.start(rows, &self.config)?;
            let source = sources[start.at];
            self.slots[slot as usize] = Some(Slot::new(start, source));
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
        let mut fed: Vec<u32> = if flag(RowFlag::Continue) {
            require!(count == 1 + drafts, "row {at} continues with {count} tokens");
            require!(state.sampled.is_some() || state.skipped, "row {at} continues and nothing was sampled");
            let last = state.sampled.map_or(0, |(_, token)| token);
            let brought = if own { 0 } else { drafts };
            std::iter::once(last).chain(cursor.tokens(rows, brought)?.iter().copied()).collect()
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
            let block = (position / size * self.tables.count()) as usize..;
            let mut begun =
                state.pages.get(block).unwrap_or_default().iter().take(self.tables.count() as usize);
            let targets = rows.copies.iter().skip(1).step_by(2);
            let is_copy = begun.all(|page| targets.clone().any(|target| target == page));
            let is_within = !position.is_multiple_of(size);
            require!(!is_within || is_copy, "row {at} starts in the middle of a block");
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
        match self.recorded_drafts.get(at) {
            Some(made) if own => fed.extend(made),
            _ if own => self.draft(&state.key, chain, position, drafts, &mut fed),
            _ => {}
        }
        let mut recurrent = state.state();
        if self.config.state_bytes > 0 {
            let of = recurrent.len;
            require!(of == position, "row {at} feeds {position}, and its state is of {of} tokens");
            require!(
                recurrent.chain == chain,
                "row {at} feeds {position}, and its state is another sequence's"
            );
        }
        let base = position + count - drafts - 1;
        state.drafts = self.tree(rows, at, &fed)?;
        let is_tree = state.drafts.iter().zip(1..).any(|(draft, number)| draft.depth != number);
        state.states.clear();
        let read = read(fed.iter().copied().take(encoder.tokens as usize));
        let mut chains = Vec::new();
        for (&token, place) in fed.iter().zip(position..) {
            require!(token < self.config.vocab_size, "row {at} feeds token {token}");
            let draft = place.checked_sub(base + 1).map(|at| state.drafts[at as usize]);
            let position = draft.map_or(place, |draft| base + draft.depth);
            if let Some(draft) = draft {
                chain = chains[draft.parent as usize];
            }
            chain = match position < encoder.positions {
                true => mix(read, u64::from(position)),
                false => extend(chain, token, position),
            };
            if self.config.state_bytes > 0 {
                recurrent = State { len: position + 1, chain: extend(recurrent.chain, token, position) };
                state.states.push(recurrent);
            }
            if place >= base {
                chains.push(chain);
            }
            let from = (place / size * self.tables.count()) as usize;
            for &page in &state.pages[from..][..self.tables.count() as usize] {
                require!(page != NO_PAGE, "row {at} writes {place}, which has no page");
                let holders = self.holders[page as usize];
                require!(holders == 1, "row {at} writes page {page}, which {holders} slots hold");
                self.kv[(page * size + place % size) as usize] = Some(Stored { token, position, chain });
            }
        }
        self.fed.extend_from_slice(&fed);
        let deepest = state.drafts.iter().map(|draft| draft.depth).max().unwrap_or(0);
        state.base = base;
        state.len = if is_tree { base + 1 } else { end };
        state.most = rows.positions[at] + count - drafts + deepest;
        state.last = fed.last().copied().unwrap_or(0);
        state.sampled = None;
        self.slots[slot as usize] = Some(state);
        Ok(())
    }

    /// The drafts of a row that feeds these tokens.
    fn tree(&self, rows: &Rows, at: usize, fed: &[u32]) -> Result<Vec<Draft>, String> {
        let (count, drafts, flags) = (rows.counts[at], rows.drafts[at], rows.flags[at]);
        let is_tree = rows.parents[at].iter().zip(0..).any(|(parent, before)| *parent != before);
        let other = flags & (RowFlag::Masked as u8 | RowFlag::OwnDrafts as u8);
        require!(!is_tree || self.config.draft_trees, "row {at} has a tree, and the worker verifies chains");
        require!(!is_tree || (count == 1 + drafts && other == 0), "row {at} has a tree and flags {flags}");
        let mut tree: Vec<Draft> = Vec::new();
        for (&token, &parent) in fed[(count - drafts) as usize..].iter().zip(&rows.parents[at]) {
            let depth = if parent == 0 { 1 } else { tree[parent as usize - 1].depth + 1 };
            let is_new = tree.iter().all(|draft| (draft.parent, draft.token) != (parent, token));
            require!(!is_tree || depth <= 64, "row {at} has {depth} drafts on a path of a tree");
            require!(is_new, "row {at} has the same draft twice behind draft {parent}");
            tree.push(Draft { token, parent, depth });
        }
        Ok(tree)
    }

    /// Appends what its draft model makes of it: mostly what it will sample.
    fn draft(&self, key: &SamplingKey, chain: u64, position: u32, drafts: u32, fed: &mut Vec<u32>) {
        let (mut chain, mut key) = (chain, key.clone());
        for position in position..position + drafts {
            let last = fed[fed.len() - 1];
            chain = extend(chain, last, position);
            let sampled = key.sample(&self.config, chain, position + 1, last, 0, None);
            let right = sampled.map_or(0, |sampled| sampled.token);
            let is_wrong = mix(chain, 31).is_multiple_of(self.config.wrong_draft_one_in);
            let draft = if is_wrong { (right + 1) % self.config.vocab_size } else { right };
            key.remember(draft);
            fed.push(draft);
        }
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
                let position = state.base + 1 + rows.drafts[at] - rows.counts[at];
                self.check_visible(&state, table, position).map_err(|why| format!("row {at}: {why}"))?;
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
            let path = self.sample(&mut state, at, mask, columns)?;
            self.move_path(&state, &path);
        }
        self.slots[slot] = Some(state);
        Ok(())
    }

    /// Samples behind the last token before the row's drafts, and behind each of those that it accepts, whose numbers it returns.
    fn sample(
        &self,
        state: &mut Slot,
        at: usize,
        mask: Option<Vec<u32>>,
        columns: &mut ResultColumns,
    ) -> Result<Vec<u32>, String> {
        let is_skipped = mask.as_ref().is_some_and(Vec::is_empty);
        let drafts = std::mem::take(&mut state.drafts);
        let mut path: Vec<u32> = Vec::new();
        loop {
            let before = path.last().copied().unwrap_or(0);
            let len = state.base + 1 + path.len() as u32;
            let mut following =
                (1..).zip(&drafts).filter(move |(_, draft): &(u32, &Draft)| draft.parent == before);
            if let Some((history, _)) = state.key.history.as_ref().filter(|_| !is_skipped) {
                let (has, needs) = (history.len(), len - state.encoder.positions);
                require!(has == needs as usize, "row {at}: samples at {needs} with a history of {has}");
            }
            // The drafts of a masked row are what may follow.
            let forced = following.clone().next().filter(|_| mask.is_some() && !is_skipped);
            let only = forced.map(|(_, draft)| vec![draft.token]);
            let mask = only.as_deref().or(mask.as_deref());
            let (mut chain, last) = match self.tables.count() {
                0 => (state.state().chain, state.last),
                _ => {
                    let stored = self.stored_at(&state.pages, 0, state.base + before, len - 1);
                    stored.map_or((0, 0), |stored| (stored.chain, stored.token))
                }
            };
            if self.config.state_bytes > 0 {
                chain = mix(chain, state.state().chain);
            }
            let sampled = state.key.sample(&self.config, chain, len, last, state.top_tokens, mask);
            state.skipped = sampled.is_none();
            let mut sampled = sampled.unwrap_or(Sampled {
                token: 0,
                logprob: 0.0,
                top: vec![(0, 0.0); state.top_tokens as usize],
            });
            if let Some(recorded) = &mut columns.recorded {
                let token = recorded.next();
                sampled.token =
                    token.ok_or_else(|| format!("row {at} samples at {len}, and nothing is told of it"))?;
            }
            columns.sampled.push(sampled.token);
            columns.logprobs.push(sampled.logprob);
            for (token, logprob) in sampled.top {
                columns.top_tokens.push(token);
                columns.top_logprobs.push(logprob);
            }
            state.len = len;
            if !state.skipped {
                state.key.remember(sampled.token);
                state.sampled = Some((len, sampled.token));
            }
            let is_it = |draft: &Draft| is_skipped || draft.token == sampled.token;
            match following.find(|(_, draft)| is_it(draft)) {
                Some((number, _)) => path.push(number),
                None => break,
            }
        }
        if !drafts.is_empty() {
            columns.accepted.push(path.len() as u32);
        }
        Ok(path)
    }

    /// What is stored for the accepted drafts comes to their positions.
    fn move_path(&mut self, state: &Slot, path: &[u32]) {
        for (depth, &number) in (1..).zip(path) {
            for table in self.each_table() {
                let from = self.place_of(&state.pages, table, state.base + number);
                let to = self.place_of(&state.pages, table, state.base + depth);
                if let (Some(from), Some(to)) = (from, to) {
                    self.kv[to] = self.kv[from];
                }
            }
        }
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

    /// A page is in a slot's tables, and not behind a window: such a page may be another's, of which no plan tells.
    fn sees(&self, slot: &Slot, page: u32) -> bool {
        let mut entries = slot.pages.iter().enumerate().filter(|(_, of)| **of == page);
        entries.any(|(at, _)| {
            let (block, table) = self.place(at);
            (block + 1) * self.config.block_size > self.first_visible(table, slot.len)
        })
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
        self.stored_at(pages, table, position, position)
    }

    /// The same where another position's place has it.
    fn stored_at(&self, pages: &[u32], table: u32, place: u32, position: u32) -> Option<Stored> {
        let at = self.place_of(pages, table, place)?;
        self.kv[at].filter(|stored| stored.position == position)
    }

    /// Where a slot's table has a token; none behind its window.
    fn place_of(&self, pages: &[u32], table: u32, place: u32) -> Option<usize> {
        let size = self.config.block_size;
        let page = *pages.get((place / size * self.tables.count() + table) as usize)?;
        (page != NO_PAGE).then_some((page * size + place % size) as usize)
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
        let Start { encoder, key, top_tokens, .. } = start;
        Self {
            pages: Vec::new(),
            blocks: 0,
            states: vec![source],
            last: 0,
            encoder,
            len: 0,
            base: 0,
            drafts: Vec::new(),
            sampled: None,
            most: 0,
            skipped: false,
            key,
            top_tokens,
        }
    }

    /// Behind the last token fed.
    fn state(&self) -> State {
        self.states.last().copied().unwrap_or(NO_STATE)
    }
}
