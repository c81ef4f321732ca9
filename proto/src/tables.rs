//! In which tables the pages of a sequence's blocks are, and how far back the layers of each look.
//! Pure arithmetic: the scheduler's block pool moves pages by it, and its policy and the worker group compute
//! capacities with it.

use crate::Prepared;
use crate::ids::BlockId;

/// What a block consists of: a page in each table, as `Prepared` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    pub block_size: u32,
    /// Of layers that attend to every earlier token.
    pub full: u32,
    /// Of layers that attend to a window. What is behind it is given back.
    pub windowed: u32,
    pub window: u32,
    pub chunked: bool,
}

impl Tables {
    pub fn of(prepared: &Prepared, block_size: u32) -> Self {
        let Prepared { full_tables, windowed_tables, window, chunked, .. } = *prepared;
        Self { block_size, full: full_tables, windowed: windowed_tables, window, chunked }
    }

    /// Pages of a block.
    pub fn count(&self) -> u32 {
        self.full + self.windowed
    }

    /// The first block that a token at `position`, or any after it, reads in the windowed tables.
    pub fn first_read(&self, position: u32) -> u32 {
        if self.windowed == 0 {
            return u32::MAX;
        }
        let first = match self.chunked {
            true => position / self.window * self.window,
            false => (position + 1).saturating_sub(self.window),
        };
        first / self.block_size
    }

    /// The most blocks whose windowed pages a row that feeds `count` tokens needs.
    pub fn most_windowed(&self, count: u32) -> u32 {
        (self.window.saturating_add(count)).div_ceil(self.block_size) + 1
    }

    /// Pages that a table takes while its sequence grows to `tokens` tokens, in steps of at most `count`.
    pub fn growth(&self, table: &Table, tokens: u32, count: u32) -> u32 {
        let blocks = tokens.div_ceil(self.block_size);
        let missing = blocks.saturating_sub(table.blocks.len() as u32);
        if self.windowed == 0 {
            return self.full * missing;
        }
        let held = (table.blocks.len() as u32).saturating_sub(table.first_windowed);
        let windowed = blocks.min(self.most_windowed(count)).saturating_sub(held);
        self.full * missing + self.windowed * windowed.min(missing)
    }

    /// Tokens of the longest sequence that finds room in `pages`, fed in steps of at most `count`. Without tables any does.
    pub fn longest(&self, pages: u32, count: u32) -> u32 {
        let whole = pages.checked_div(self.count()).unwrap_or(u32::MAX);
        let most = self.most_windowed(count);
        let blocks = match whole >= most && self.windowed > 0 {
            true => (pages - self.windowed * most).checked_div(self.full).unwrap_or(u32::MAX),
            false => whole,
        };
        blocks.saturating_mul(self.block_size)
    }

    /// Tokens that `pages` hold where nothing is behind a window; 0 without tables, which hold none.
    pub fn tokens(&self, pages: u32) -> u64 {
        u64::from(pages.checked_div(self.count()).unwrap_or(0)) * u64::from(self.block_size)
    }
}

/// The blocks of a sequence, in the order of its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub blocks: Vec<BlockId>,
    /// It holds the windowed pages of its blocks from this one on.
    pub first_windowed: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: Tables = Tables { block_size: 4, full: 1, windowed: 2, window: 10, chunked: false };

    #[test]
    fn a_window_reaches_back_from_the_token_itself() {
        let first = |position| MIXED.first_read(position);
        assert_eq!([first(0), first(9), first(12), first(13), first(17)], [0, 0, 0, 1, 2]);
        let chunked = Tables { window: 8, chunked: true, ..MIXED };
        assert_eq!([7, 8, 15, 16].map(|position| chunked.first_read(position)), [0, 2, 2, 4]);
    }

    #[test]
    fn what_a_row_reads_is_never_more_than_the_most() {
        for tables in [MIXED, Tables { window: 8, chunked: true, ..MIXED }] {
            for (position, count) in
                (0u32..60).flat_map(|position| (1u32..20).map(move |count| (position, count)))
            {
                let needed = (position + count).div_ceil(4) - tables.first_read(position);
                assert!(needed <= tables.most_windowed(count), "{position} and {count} more");
            }
        }
    }

    #[test]
    fn the_longest_sequence_fits_and_one_block_more_does_not() {
        let plain = Tables { full: 1, windowed: 0, window: 0, ..MIXED };
        assert_eq!(plain.longest(24, 8), 96);
        // 18 tokens are 6 blocks with their windowed pages; the pages that are left hold whole context.
        assert_eq!(MIXED.longest(18, 8), 24);
        assert_eq!(MIXED.longest(40, 8), (40 - 2 * 6) * 4);
        assert_eq!(MIXED.longest(19, 8), 28, "one page more is one block more of whole context");
        assert_eq!(Tables { full: 0, ..MIXED }.longest(12, 8), u32::MAX);
        assert_eq!(Tables { full: 0, ..MIXED }.longest(11, 8), 20);
    }

    #[test]
    fn without_tables_a_sequence_of_any_length_takes_no_pages() {
        let none = Tables { full: 0, windowed: 0, window: 0, ..MIXED };
        assert_eq!((none.longest(0, 8), none.tokens(7)), (u32::MAX, 0));
        assert_eq!(none.growth(&Table::default(), 1000, 8), 0);
    }
}
