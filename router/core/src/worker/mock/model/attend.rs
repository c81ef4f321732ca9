//! What a row answers, of what is stored once all rows have written: log probabilities of its prompt, and the tokens that it samples.

use penstock_proto::RowFlag;

use super::{Draft, MockModel, Slot};
use crate::worker::mock::Verify;
use crate::worker::mock::columns::{ResultColumns, Rows};
use crate::worker::mock::sampling::{Sampled, alternative, mix, prompt_logprob};

impl MockModel {
    pub(super) fn attend(
        &mut self,
        rows: &Rows,
        at: usize,
        masks: Option<Vec<Vec<u32>>>,
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
            let path = self.sample(&mut state, at, rows.flags[at], masks, columns)?;
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
        flags: u8,
        masks: Option<Vec<Vec<u32>>>,
        columns: &mut ResultColumns,
    ) -> Result<Vec<u32>, String> {
        let mask_at = |at: usize| masks.as_ref().map(|masks| &masks[at]);
        // Behind a row that sampled nothing all is nobody's, until its slot starts again.
        state.skipped |= mask_at(0).is_some_and(Vec::is_empty);
        let drafts = std::mem::take(&mut state.drafts);
        let mut path: Vec<u32> = Vec::new();
        loop {
            let before = path.last().copied().unwrap_or(0);
            let len = state.base + 1 + path.len() as u32;
            let mut following =
                (1..).zip(&drafts).filter(move |(_, draft): &(u32, &Draft)| draft.parent == before);
            if let Some((history, _)) =
                state.key.history.as_ref().filter(|_| !(state.skipped || state.is_blind))
            {
                let (has, needs) = (history.len(), len - state.encoder.positions);
                require!(has == needs as usize, "row {at}: samples at {needs} with a history of {has}");
            }
            let mask = mask_at(path.len()).map(Vec::as_slice);
            let token = path.last().map_or(state.last, |&number| drafts[number as usize - 1].token);
            let reached = (state.states.len() + path.len()).checked_sub(drafts.len() + 1);
            let recurrent = reached.map_or(0, |at| state.states[at].chain);
            let (mut chain, last) = match self.tables.count() {
                0 => (recurrent, token),
                _ => {
                    let stored = self.stored_at(&state.pages, 0, state.base + before, len - 1);
                    stored.map_or((0, 0), |stored| (stored.chain, stored.token))
                }
            };
            if self.config.state_bytes > 0 {
                chain = mix(chain, recurrent);
            }
            let sampled = state.key.sample(&self.config, chain, len, last, state.top_tokens, mask);
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
            // Where this rank is not told the masks, as if all were.
            let is_blind = flags & RowFlag::Masked as u8 != 0 && masks.is_none();
            state.is_blind |= is_blind && !drafts.is_empty();
            let is_closed = mask_at((path.len() + 1).min(drafts.len())).is_some_and(Vec::is_empty);
            let is_it = |draft: &Draft| is_blind || (draft.token == sampled.token && !is_closed);
            match following.find(|(_, draft)| is_it(draft)) {
                Some((number, _)) => path.push(number),
                None => break,
            }
        }
        if !drafts.is_empty() {
            columns.accepted.push(path.len() as u32);
            state.states.truncate((state.states.len() + path.len()).saturating_sub(drafts.len()));
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
}
