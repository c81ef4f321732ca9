//! What a row feeds: its slot is started or goes on, its tokens and drafts are checked, and what is stored for them is written.

use penstock_proto::RowFlag;

use super::pages::{NO_PAGE, Stored};
use super::states::State;
use super::{Draft, MockModel, Slot};
use crate::worker::mock::columns::{Cursor, Rows};
use crate::worker::mock::sampling::{SamplingKey, extend, mix, read, root};

impl MockModel {
    pub(super) fn write(
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
        state.before_drafts = self.take_draft_states(at, drafts, count)?;
        state.blocks += rows.new_block_counts[at];

        if flag(RowFlag::Continue)
            && let Some((sampled_at, _)) = state.sampled
        {
            if state.is_blind {
                position = position.min(sampled_at);
                state.len = position;
            } else {
                let possible = sampled_at..=state.most.max(sampled_at);
                require!(
                    possible.contains(&position),
                    "row {at} continues at {position}, not in {possible:?}"
                );
                position = sampled_at;
            }
        } else if flag(RowFlag::Continue) && state.skipped {
            position = position.min(state.len);
        }
        self.forget(&mut state, position);
        for page in cursor.new_pages(rows, at, self.tables.count())? {
            let (block, table) = self.place(state.pages.len());
            if page == NO_PAGE {
                require!(
                    self.is_behind(table, block, position),
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
        let longest = self.config.max_positions.min(self.config.fits);
        require!(end <= longest, "row {at} reaches position {end} of {longest}");
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
        let says = (end - drafts).saturating_sub(encoder.positions.max(position));
        require!(
            !flag(RowFlag::Sample) || says > 0,
            "row {at} samples, and feeds nothing of its decoder's before"
        );
        if let Some((history, _)) = state.key.history.as_ref().filter(|_| !(state.skipped || state.is_blind))
        {
            let mut fed = (position..end).zip(&fed).filter(|(p, _)| *p >= encoder.positions);
            let known = fed
                .by_ref()
                .take((count - drafts) as usize)
                .all(|(p, t)| history.get((p - encoder.positions) as usize) == Some(t));
            require!(known, "row {at}: its history is not what it feeds");
        }
        let mut chain = match position.checked_sub(1) {
            None => root(state.adapter),
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
        if self.config.state_bytes > 0 && !state.is_blind {
            let of = recurrent.len;
            require!(of == position, "row {at} feeds {position}, and its state is of {of} tokens");
            require!(
                self.guesses_tokens || recurrent.chain == chain,
                "row {at} feeds {position}, and its state is another sequence's"
            );
        }
        let base = position + count - drafts - 1;
        state.drafts = self.tree(rows, at, &fed)?;
        let is_tree = state.drafts.iter().zip(1..).any(|(draft, number)| draft.depth != number);
        state.states.clear();
        let read = read(state.adapter, fed.iter().copied().take(encoder.tokens as usize));
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
        state.last = fed[(count - drafts) as usize - 1];
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
}
