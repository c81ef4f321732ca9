//! What is stored, and where: pages, the tables of slots, copies, and what a window leaves visible.

use penstock_proto::RowFlag;

use super::{MockModel, Slot};
use crate::worker::mock::columns::{Encoder, Rows};
use crate::worker::mock::sampling::{extend, mix, read, root};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub token: u32,
    pub position: u32,
    /// Of this and all tokens before it.
    pub chain: u64,
}

/// In the place of a page behind the window.
pub(super) const NO_PAGE: u32 = u32::MAX;

impl MockModel {
    /// Copies pages, before anything is written. Whoever has a target by then is started anew by the plan.
    pub(super) fn copy(&mut self, rows: &Rows) -> Result<(), String> {
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
    pub(super) fn check_copies(&self, rows: &Rows) -> Result<(), String> {
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

    pub(super) fn let_go(&mut self, pages: &[u32]) {
        for &page in pages.iter().filter(|page| **page != NO_PAGE) {
            self.holders[page as usize] -= 1;
        }
    }

    /// What no token from `position` on reads may be another's by now.
    pub(super) fn forget(&mut self, state: &mut Slot, position: u32) {
        for at in 0..state.pages.len() {
            let (block, table) = self.place(at);
            if self.is_behind(table, block, position) && state.pages[at] != NO_PAGE {
                self.holders[state.pages[at] as usize] -= 1;
                state.pages[at] = NO_PAGE;
            }
        }
    }

    /// Block and table of an entry of a slot's pages.
    pub(super) fn place(&self, at: usize) -> (u32, u32) {
        (at as u32 / self.tables.count(), at as u32 % self.tables.count())
    }

    pub(super) fn each_table(&self) -> std::ops::Range<u32> {
        0..self.tables.count()
    }

    /// The first position that the token at `position` sees in a table.
    pub(super) fn first_visible(&self, table: u32, position: u32) -> u32 {
        let window = self.tables.window_of(table);
        window.map_or(0, |window| self.tables.windows()[window].first_visible(position))
    }

    /// No token from `position` on reads a block in a table.
    pub(super) fn is_behind(&self, table: u32, block: u32, position: u32) -> bool {
        (block + 1) * self.config.block_size <= self.first_visible(table, position)
    }

    /// A page is in a slot's tables, and not behind a window: such a page may be another's, of which no plan tells.
    fn sees(&self, slot: &Slot, page: u32) -> bool {
        let mut entries = slot.pages.iter().enumerate().filter(|(_, of)| **of == page);
        entries.any(|(at, _)| {
            let (block, table) = self.place(at);
            !self.is_behind(table, block, slot.len)
        })
    }

    /// All that a row which begins at `position` sees in a table is its sequence's.
    pub(super) fn check_visible(&self, state: &Slot, table: u32, position: u32) -> Result<(), String> {
        let Encoder { tokens, positions } = state.encoder;
        let its = (0..tokens).filter_map(|p| self.stored(&state.pages, table, p)).map(|s| s.token);
        let read = read(state.adapter, its);
        let mut before = Some(root(state.adapter));
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
    pub(super) fn stored(&self, pages: &[u32], table: u32, position: u32) -> Option<Stored> {
        self.stored_at(pages, table, position, position)
    }

    /// The same where another position's place has it.
    pub(super) fn stored_at(&self, pages: &[u32], table: u32, place: u32, position: u32) -> Option<Stored> {
        let at = self.place_of(pages, table, place)?;
        self.kv[at].filter(|stored| stored.position == position)
    }

    /// Where a slot's table has a token; none behind its window.
    pub(super) fn place_of(&self, pages: &[u32], table: u32, place: u32) -> Option<usize> {
        let size = self.config.block_size;
        let page = *pages.get((place / size * self.tables.count() + table) as usize)?;
        (page != NO_PAGE).then_some((page * size + place % size) as usize)
    }
}
