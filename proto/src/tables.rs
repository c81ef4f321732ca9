//! In which tables the pages of a sequence's blocks are, and how far back the layers of each look.
//! Pure arithmetic: the scheduler's block pool moves pages by it, and its policy and the worker group compute
//! capacities with it.

use crate::ids::BlockId;
use crate::{CacheGroup, CacheKind};

/// Windows of different reach that a model may have; Prepare puts further ones into the widest.
pub const MOST_WINDOWS: usize = 4;

/// The tables of layers with the same window. What is behind it is given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub tables: u32,
    /// A token attends to so many, itself among them; or, `chunked`, to those of its own `reach` positions.
    pub reach: u32,
    pub chunked: bool,
}

impl Window {
    /// The first position that the token at `position` attends to.
    pub fn first_visible(&self, position: u32) -> u32 {
        match self.chunked {
            true => position / self.reach * self.reach,
            false => (position + 1).saturating_sub(self.reach),
        }
    }
}

/// What a block consists of: a page in each table, as the groups of `Prepared` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    pub block_size: u32,
    /// Of layers that attend to every earlier token.
    pub full: u32,
    /// Those behind the last have no tables.
    windows: [Window; MOST_WINDOWS],
    window_count: usize,
    count: u32,
}

impl CacheGroup {
    /// As people read it: `full`, `window 1024`.
    pub fn name(&self) -> String {
        match self.reach {
            0 => self.kind_name().into(),
            reach => format!("{} {reach}", self.kind_name()),
        }
    }

    pub fn kind_name(&self) -> &'static str {
        match self.kind() {
            CacheKind::Full => "full",
            CacheKind::Window => "window",
            CacheKind::Chunk => "chunk",
            CacheKind::State => "state",
            CacheKind::Index => "index",
        }
    }
}

impl Tables {
    /// At most `MOST_WINDOWS` windows, each with tables.
    pub fn new(block_size: u32, full: u32, windows: &[Window]) -> Self {
        let mut all = [Window::default(); MOST_WINDOWS];
        all[..windows.len()].copy_from_slice(windows);
        let count = full + windows.iter().map(|window| window.tables).sum::<u32>();
        Self { block_size, full, windows: all, window_count: windows.len(), count }
    }

    /// What is wrong with the groups, if they are no tables: there is at most one group of layers that attend to everything, and it
    /// comes first; windows have tables and a reach.
    pub fn of(groups: &[CacheGroup], block_size: u32) -> Result<Self, String> {
        let (mut full, mut windows) = (0, Vec::new());
        for (at, group) in groups.iter().enumerate() {
            let (tables, reach) = (group.tables, group.reach);
            let chunked = match CacheKind::try_from(group.kind) {
                Ok(CacheKind::Full) if at == 0 && tables > 0 => {
                    full = tables;
                    continue;
                }
                Ok(CacheKind::Window) => false,
                Ok(CacheKind::Chunk) => true,
                // They have no pages of their own.
                Ok(CacheKind::State | CacheKind::Index) if tables == 0 => continue,
                _ => return Err(format!("group {at} of its caches is out of place: {group:?}")),
            };
            if tables == 0 || reach == 0 || windows.len() == MOST_WINDOWS {
                return Err(format!("group {at} of its caches is no window: {group:?}"));
            }
            windows.push(Window { tables, reach, chunked });
        }
        Ok(Self::new(block_size, full, &windows))
    }

    /// Pages of a block.
    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn windows(&self) -> &[Window] {
        &self.windows[..self.window_count]
    }

    /// The tables of a window, by its place in `windows`.
    pub fn range_of(&self, window: usize) -> std::ops::Range<usize> {
        let before: u32 = self.windows[..window].iter().map(|window| window.tables).sum();
        let first = (self.full + before) as usize;
        first..first + self.windows[window].tables as usize
    }

    /// The window of a table, by its place in `windows`; `None`: its layers attend to every earlier token.
    pub fn window_of(&self, table: u32) -> Option<usize> {
        (0..self.windows().len()).find(|&window| self.range_of(window).contains(&(table as usize)))
    }

    /// The first block that a token at `position`, or any after it, reads in the tables of a window.
    pub fn first_read(&self, window: &Window, position: u32) -> u32 {
        window.first_visible(position) / self.block_size
    }

    /// The most blocks whose pages in the tables of a window a row that feeds `count` tokens needs.
    pub fn most_windowed(&self, window: &Window, count: u32) -> u32 {
        (window.reach.saturating_add(count)).div_ceil(self.block_size) + 1
    }

    /// Pages that a table takes while its sequence grows to `tokens` tokens, in steps of at most `count`.
    pub fn growth(&self, table: &Table, tokens: u32, count: u32) -> u32 {
        let blocks = tokens.div_ceil(self.block_size);
        let missing = blocks.saturating_sub(table.blocks.len() as u32);
        let mut pages = self.full * missing;
        for (window, first) in self.windows().iter().zip(table.first_windowed) {
            let held = (table.blocks.len() as u32).saturating_sub(first);
            let needed = blocks.min(self.most_windowed(window, count)).saturating_sub(held);
            pages += window.tables * needed.min(missing);
        }
        pages
    }

    /// Tokens of the longest sequence that finds room in `pages`, fed in steps of at most `count`. Without tables any does.
    pub fn longest(&self, pages: u32, count: u32) -> u32 {
        let Some(mut blocks) = pages.checked_div(self.count) else { return u32::MAX };
        loop {
            // What the windows take that so many blocks fill, and what a further block takes elsewhere.
            let (mut taken, mut of_a_block) = (0, self.full);
            for window in self.windows() {
                let most = self.most_windowed(window, count);
                match blocks >= most {
                    true => taken += window.tables * most,
                    false => of_a_block += window.tables,
                }
            }
            let Some(more) = (pages - taken).checked_div(of_a_block) else { return u32::MAX };
            if more <= blocks {
                return blocks.saturating_mul(self.block_size);
            }
            blocks = more;
        }
    }

    /// Tokens that `pages` hold where nothing is behind a window; 0 without tables, which hold none.
    pub fn tokens(&self, pages: u32) -> u64 {
        u64::from(pages.checked_div(self.count).unwrap_or(0)) * u64::from(self.block_size)
    }
}

/// The blocks of a sequence, in the order of its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub blocks: Vec<BlockId>,
    /// It holds the pages of its blocks in each window's tables from this one on.
    pub first_windowed: [u32; MOST_WINDOWS],
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Window = Window { tables: 2, reach: 10, chunked: false };

    fn mixed(full: u32, windows: &[Window]) -> Tables {
        Tables::new(4, full, windows)
    }

    #[test]
    fn a_window_reaches_back_from_the_token_itself() {
        let tables = mixed(1, &[NEAR]);
        let first = |position| tables.first_read(&NEAR, position);
        assert_eq!([first(0), first(9), first(12), first(13), first(17)], [0, 0, 0, 1, 2]);
        let chunked = Window { reach: 8, chunked: true, ..NEAR };
        assert_eq!([7, 8, 15, 16].map(|position| tables.first_read(&chunked, position)), [0, 2, 2, 4]);
    }

    #[test]
    fn what_a_row_reads_is_never_more_than_the_most() {
        let tables = mixed(1, &[NEAR]);
        for window in [NEAR, Window { reach: 8, chunked: true, ..NEAR }] {
            for (position, count) in
                (0u32..60).flat_map(|position| (1u32..20).map(move |count| (position, count)))
            {
                let needed = (position + count).div_ceil(4) - tables.first_read(&window, position);
                assert!(needed <= tables.most_windowed(&window, count), "{position} and {count} more");
            }
        }
    }

    #[test]
    fn the_longest_sequence_fits_and_one_block_more_does_not() {
        assert_eq!(mixed(1, &[]).longest(24, 8), 96);
        // 18 tokens are 6 blocks with their windowed pages; the pages that are left hold whole context.
        let tables = mixed(1, &[NEAR]);
        assert_eq!(tables.longest(18, 8), 24);
        assert_eq!(tables.longest(40, 8), (40 - 2 * 6) * 4);
        assert_eq!(tables.longest(19, 8), 28, "one page more is one block more of whole context");
        assert_eq!(mixed(0, &[NEAR]).longest(12, 8), u32::MAX);
        assert_eq!(mixed(0, &[NEAR]).longest(11, 8), 20);
    }

    #[test]
    fn each_window_takes_what_it_reaches() {
        let far = Window { tables: 1, reach: 30, chunked: true };
        let tables = mixed(1, &[NEAR, far]);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|table| tables.window_of(table)),
            [None, Some(0), Some(0), Some(1), None]
        );
        for pages in 0..100 {
            let longest = tables.longest(pages, 8) / 4;
            let taken = |blocks: u32| blocks + 2 * blocks.min(6) + blocks.min(11);
            assert!(
                taken(longest) <= pages && taken(longest + 1) > pages,
                "{longest} blocks in {pages} pages"
            );
            assert_eq!(tables.growth(&Table::default(), longest * 4, 8), taken(longest));
        }
        // Of 12 blocks it has 5 in the near window's tables, and 9 in the other's.
        let table = Table { blocks: vec![BlockId(0); 12], first_windowed: [7, 3, 0, 0] };
        assert_eq!(tables.growth(&table, 13 * 4, 8), 1 + 2 + 1);
        assert_eq!(tables.growth(&table, 20 * 4, 8), 8 + 2 + 2);
    }

    #[test]
    fn groups_are_tables_or_are_refused() {
        let group = |kind: CacheKind, tables, reach| CacheGroup {
            kind: kind.into(),
            tables,
            reach,
            ..CacheGroup::default()
        };
        let full = group(CacheKind::Full, 1, 0);
        let near = group(CacheKind::Window, 2, 10);
        let state = group(CacheKind::State, 0, 0);
        assert_eq!(Tables::of(&[full, near, state], 4), Ok(mixed(1, &[NEAR])));
        assert_eq!(Tables::of(&[state], 4), Ok(mixed(0, &[])));
        for wrong in [
            vec![near, full],
            vec![group(CacheKind::Full, 0, 0)],
            vec![group(CacheKind::Window, 0, 8)],
            vec![group(CacheKind::Chunk, 1, 0)],
            vec![group(CacheKind::State, 1, 0)],
            vec![near; 5],
        ] {
            assert!(Tables::of(&wrong, 4).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn without_tables_a_sequence_of_any_length_takes_no_pages() {
        let none = mixed(0, &[]);
        assert_eq!((none.longest(0, 8), none.tokens(7)), (u32::MAX, 0));
        assert_eq!(none.growth(&Table::default(), 1000, 8), 0);
    }
}
