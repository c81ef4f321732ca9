//! What each page of the KV cache, each recurrent state and each snapshot holds, as plans say it: whose namespace, computed with which adapter, and
//! whether it is NaN. Knows one table for all layers, or none. NaN spreads as it does in a model: to all that a row writes
//! which attends to it or goes on from it, and to its logits.

use std::collections::{BTreeSet, HashMap};

use bytemuck::allocation::pod_collect_to_vec;
use penstock_proto::{RowFlag, StepPlan};

use crate::adapter::Adapter;
use crate::scheduler::cache_names::Namespace;
use crate::scheduler::core::Core;
use crate::scheduler::states::NO_SNAPSHOT;

#[derive(Default)]
pub struct Pages {
    /// Of each slot.
    tables: HashMap<u32, Vec<u32>>,
    owners: HashMap<u32, Owner>,
    nan: BTreeSet<u32>,
    /// Slots whose state is NaN, places of such snapshots, and whose each place is.
    nan_states: BTreeSet<u32>,
    nan_snapshots: BTreeSet<u32>,
    snapshot_owners: HashMap<u32, Owner>,
}

/// Between whom nothing is shared.
type Owner = (Namespace, Option<Adapter>);

struct Row {
    slot: u32,
    owner: Owner,
    /// Positions that it feeds.
    from: u32,
    to: u32,
    samples: bool,
}

impl Pages {
    /// Reads a plan that was just built. The logits of row `overflows`, if there is one, are not numbers, nor is what
    /// it writes. Returns the rows that sample from such logits.
    pub fn read(&mut self, plan: &StepPlan, core: &Core, overflows: Option<usize>) -> Vec<u32> {
        let block_size = core.pool.block_size();
        let column = |bytes: &[u8]| pod_collect_to_vec::<u8, u32>(bytes);
        let (slots, positions, counts) = (column(&plan.slots), column(&plan.positions), column(&plan.counts));
        let (new_blocks, new_pages) = (column(&plan.new_block_counts), column(&plan.new_pages));
        let tables = core.pool.tables().count();
        let mut new_pages = &new_pages[..];
        let sources = plan.starts.as_ref().map(|starts| column(&starts.state_sources)).unwrap_or_default();
        let mut sources = sources.into_iter();
        for copy in column(&plan.copies).chunks(2) {
            let [source, target] = [copy[0], copy[1]];
            self.owners.insert(target, self.owners[&source]);
            match self.nan.contains(&source) {
                true => self.nan.insert(target),
                false => self.nan.remove(&target),
            };
        }
        let mut rows = Vec::new();
        for (at, &slot) in slots.iter().enumerate() {
            let (from, to) = (positions[at], positions[at] + counts[at]);
            let starts = plan.flags[at] & RowFlag::Start as u8 != 0;
            let table = self.tables.entry(slot).or_default();
            if starts {
                table.clear();
            }
            let (own, rest) = new_pages.split_at((new_blocks[at] * tables) as usize);
            table.extend(own);
            new_pages = rest;
            let sequence = core
                .sequences
                .iter()
                .map(|(_, sequence)| sequence)
                .find(|sequence| sequence.slot.is_some_and(|s| s.0 == slot));
            let sequence = sequence.expect("a row's slot has a sequence");
            let owner = (sequence.namespace, sequence.adapter);
            if starts {
                self.nan_states.remove(&slot);
            }
            if starts && let Some(source) = sources.next().filter(|source| *source != NO_SNAPSHOT) {
                assert_eq!(
                    self.snapshot_owners[&source], owner,
                    "a state of another namespace or adapter is read"
                );
                if self.nan_snapshots.contains(&source) {
                    self.nan_states.insert(slot);
                }
            }
            for (block, &page) in table.iter().enumerate() {
                let begin = block as u32 * block_size;
                if begin >= from {
                    self.owners.insert(page, owner);
                    self.nan.remove(&page);
                } else if starts {
                    assert_eq!(self.owners[&page], owner, "a page of another namespace or adapter is read");
                }
            }
            rows.push(Row { slot, owner, from, to, samples: plan.flags[at] & RowFlag::Sample as u8 != 0 });
        }
        // All rows of a plan write before any reads.
        let mut bad: BTreeSet<usize> = overflows.into_iter().filter(|at| *at < rows.len()).collect();
        loop {
            for &at in &bad {
                let Row { slot, from, to, .. } = rows[at];
                let (first, end) = ((from / block_size) as usize, to.div_ceil(block_size) as usize);
                self.nan.extend(self.tables[&slot].iter().take(end).skip(first));
                self.nan_states.insert(slot);
            }
            let reads_nan = |row: &Row| {
                let mut read = self.tables[&row.slot].iter().take(row.to.div_ceil(block_size) as usize);
                let begins_with_nan = core.pool.has_states() && self.nan_states.contains(&row.slot);
                begins_with_nan || read.any(|page| self.nan.contains(page))
            };
            let before = bad.len();
            bad.extend(rows.iter().enumerate().filter(|(_, row)| reads_nan(row)).map(|(at, _)| at));
            if bad.len() == before {
                break;
            }
        }
        for save in column(&plan.saves).chunks(3) {
            let (row, place) = (&rows[save[0] as usize], save[2]);
            self.snapshot_owners.insert(place, row.owner);
            match bad.contains(&(save[0] as usize)) {
                true => self.nan_snapshots.insert(place),
                false => self.nan_snapshots.remove(&place),
            };
        }
        bad.into_iter().filter(|&at| rows[at].samples).map(|at| at as u32).collect()
    }
}
