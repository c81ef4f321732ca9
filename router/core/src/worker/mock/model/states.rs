//! Recurrent states: what rows begin with, and the snapshots that are kept.

use penstock_proto::RowFlag;

use super::{MockModel, Slot};
use crate::worker::mock::columns::Rows;
use crate::worker::mock::sampling::{ROOT, root};

/// A recurrent state: of how many tokens, and their hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub len: u32,
    pub chain: u64,
}

pub(super) const NO_STATE: State = State { len: 0, chain: ROOT };

/// In the place of a snapshot, at position 0.
const NO_SNAPSHOT: u32 = u32::MAX;

impl MockModel {
    /// What each START row's state begins with, read before any row runs.
    pub(super) fn read_sources(&self, rows: &Rows) -> Result<Vec<State>, String> {
        let starts = rows.flags.iter().zip(&rows.positions);
        let starts = starts.filter(|(flags, _)| **flags & RowFlag::Start as u8 != 0);
        let named = &rows.starts.state_sources;
        if self.config.state_bytes == 0 {
            require!(named.is_empty(), "a model without a state begins with snapshots");
            return Ok(vec![NO_STATE; rows.starts.seeds.len()]);
        }
        let mut sources = Vec::new();
        for (((_, &position), &place), at) in starts.zip(named).zip(0..) {
            let adapter = rows.starts.adapters.get(at).copied().unwrap_or(0);
            sources.push(match place {
                NO_SNAPSHOT => State { chain: root(adapter), ..NO_STATE },
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

    /// A row takes places for the states in front of its drafts. Its slot has given back those of the row before.
    pub(super) fn take_draft_states(&self, at: usize, drafts: u32, count: u32) -> Result<u32, String> {
        if self.config.state_bytes == 0 {
            return Ok(0);
        }
        require!(
            drafts == 0 || count == 1 + drafts,
            "row {at} of a model with a state feeds more than drafts"
        );
        let held: u32 = self.slots.iter().flatten().map(|slot| slot.before_drafts).sum();
        let places = self.config.draft_states;
        require!(
            held + drafts <= places,
            "row {at} has {drafts} drafts, and {held} of {places} states are taken"
        );
        Ok(drafts)
    }

    /// Copies states to their places.
    pub(super) fn save(&mut self, rows: &Rows) -> Result<(), String> {
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
}

impl Slot {
    /// Behind the last token that it has.
    pub(super) fn state(&self) -> State {
        self.states.last().copied().unwrap_or(NO_STATE)
    }
}
