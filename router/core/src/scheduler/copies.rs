//! Within which block a sequence may begin: one that runs has the same tokens in its block there, and the page is copied before
//! the step writes (`StepPlan.copies`). So the choices of one request (`n`, `best_of`) share the last, partly filled block of their prompt until
//! they write to it, each to a copy of its own; only whole blocks are shared themselves. Asked by `planning`.
//!
//! Copies run before all rows of their plan, so what is copied was written by an earlier plan. Choices arrive together: where it takes longer to compute
//! what is left of a prompt again than a step takes, a choice in the queue waits for the one plan that has it computed.

use super::core::Core;
use super::cost::Work;
use super::in_flight::RowRecord;
use super::sequence::Sequence;

/// Sequences on either side, in the order of those that run, that are looked at: the choices of a request come one after the other.
const NEIGHBOURS: usize = 16;

/// Of a sequence that starts: who has its next tokens in the block behind those that it holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CopySource {
    /// The sequence whose block has the most of them, and how many.
    pub found: Option<(usize, u32)>,
    /// As many as some sequence has once the plan that is being built has run.
    pub planned: u32,
}

impl Core {
    /// `rows` are those of the plan so far.
    pub(super) fn copy_source(&self, key: usize, rows: &[RowRecord]) -> CopySource {
        let mut source = CopySource::default();
        let (sequence, block_size) = (&self.sequences[key], self.pool.block_size());
        let (held, from) = (sequence.table.blocks.len(), sequence.num_scheduled_tokens);
        let has_whole_blocks = from == held as u32 * block_size;
        let may =
            sequence.start_due && has_whole_blocks && sequence.reads_cache() && sequence.encoder.tokens == 0;
        // A recurrent state has to begin where a copy of it is.
        if !may || self.pool.has_states() || self.pool.tables().count() == 0 {
            return source;
        }
        let most = (sequence.tokens.len() as u32 - 1 - from).min(block_size - 1);
        let (Ok(at) | Err(at)) = self.running_index(key);
        let near = at.saturating_sub(NEIGHBOURS)..self.running.len().min(at + NEIGHBOURS + 1);
        for &other in self.running[near].iter().filter(|&&other| other != key && most > 0) {
            let running = &self.sequences[other];
            let has_windows = running.table.first_windowed.iter().all(|&first| first as usize <= held);
            if !has_windows || !running.goes_on_from(sequence) {
                continue;
            }
            let alike = sequence.alike(running, from, most);
            if alike == 0 {
                continue;
            }
            // What a draft model keeps of an output may not be there yet.
            let planned = running.num_scheduled_tokens.min(running.prompt_len);
            // Of one that starts in this plan as well, blocks before its row may be another's of this plan.
            let row = rows.iter().rev().find(|row| row.key == other);
            let written = match row {
                Some(_) if running.start_plan == self.builder.number() => 0,
                Some(row) => planned.min(row.end.saturating_sub(row.tokens)),
                None => planned,
            };
            let there = |until: u32| alike.min(until.saturating_sub(from));
            source.planned = source.planned.max(there(planned));
            if there(written) > source.found.map_or(0, |(_, tokens)| tokens) {
                source.found = Some((other, there(written)));
            }
        }
        source
    }

    /// Whether a sequence in the queue had better begin in the next plan, with a copy of what this one computes.
    pub(super) fn waits_for_copy(&self, key: usize, rows: &[RowRecord]) -> bool {
        let CopySource { found, planned } = self.copy_source(key, rows);
        let more = planned - found.map_or(0, |(_, tokens)| tokens).min(planned);
        let position = self.sequences[key].num_scheduled_tokens;
        let expect = |tokens| {
            let mut work = Work::default();
            work.add(position, tokens);
            self.cost.expect(work)
        };
        more > 0 && expect(more + 1).saturating_sub(expect(1)) >= expect(1)
    }

    /// Has the plan copy the block behind those that a sequence held, of which it has a new one by now. Returns how many of its tokens
    /// it then has: none if the other one had to give its block away meanwhile.
    pub(super) fn copy_block(&mut self, key: usize, held: usize, (other, tokens): (usize, u32)) -> u32 {
        let (own, running) = (&self.sequences[key].table, &self.sequences[other].table);
        let Some((&source, &target)) = running.blocks.get(held).zip(own.blocks.get(held)) else { return 0 };
        self.builder.copy(self.pool.pages_in_tables(source), self.pool.pages_in_tables(target));
        self.counters.copied_tokens += u64::from(tokens);
        tokens
    }
}

impl Sequence {
    /// It has a block behind those of a sequence that starts, and the same before it.
    fn goes_on_from(&self, starts: &Self) -> bool {
        let (own, held) = (&self.table, &starts.table.blocks);
        self.started
            && self.namespace == starts.namespace
            && own.blocks.len() > held.len()
            && held.last().is_none_or(|last| own.blocks[held.len() - 1] == *last)
    }

    /// How many tokens from `from` on, `most` at most, two sequences have alike.
    fn alike(&self, other: &Self, from: u32, most: u32) -> u32 {
        let own = self.tokens[from as usize..].iter().take(most as usize);
        let others = other.tokens.iter().skip(from as usize);
        own.zip(others).take_while(|(one, other)| one == other).count() as u32
    }
}
