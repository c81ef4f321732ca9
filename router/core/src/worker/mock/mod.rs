//! A worker without a model, for `replay`, which needs its model alone, and for the tests and benchmarks of everything above the
//! worker contract. It
//! speaks the same gRPC over unix sockets; `model` executes its plans and refuses every wrong one (`columns` reads them,
//! `sampling` chooses tokens, `reference` is what they have to be), `server` is the process, `source` restarts it. It fails when
//! and how a test tells it to.

/// Of what is executed: ends the function with what is wrong.
macro_rules! require {
    ($condition:expr, $($message:tt)+) => {
        if !$condition { return Err(format!($($message)+)); }
    };
}

mod columns;
#[cfg(test)]
pub(super) mod memory;
mod model;
mod reference;
mod sampling;
#[cfg(any(test, feature = "mock"))]
mod server;
#[cfg(any(test, feature = "mock"))]
mod source;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_proto::tables::{Tables, Window};
use penstock_proto::{CONTRACT, CacheGroup, CacheKind, CostModel, ModelDescription, Prepared};
#[cfg(any(test, feature = "mock"))]
use sha2::{Digest, Sha256};

pub use model::MockModel;
#[cfg(any(test, feature = "mock"))]
pub use source::MockSource;

/// What a mock worker pretends to be.
#[derive(Clone, Debug)]
pub struct MockConfig {
    pub vocab_size: u32,
    /// The first one is what it samples when a sequence shall end.
    pub eos_ids: Vec<u32>,
    /// About one of so many tokens ends its sequence; 0: none.
    pub eos_one_in: u64,
    /// All but about one of so many tokens follow from the one before alone, so that its text repeats itself; 0: none.
    pub surprise_one_in: u64,
    /// So many different tokens may then follow the same one.
    pub followers: u64,
    pub pages: u32,
    pub block_size: u32,
    /// Of the groups in `Prepared`. A window reaches at least 2, and chunked ones go with full tables: what is stored for a
    /// position depends on the one before it.
    pub full_tables: u32,
    pub windows: Vec<Window>,
    /// Of a model with recurrent layers, and places for copies of it; 0: it has no state. Without tables the state is all
    /// that a model remembers.
    pub state_bytes: u64,
    pub snapshots: u32,
    /// Places for the states in front of drafts.
    pub draft_states: u32,
    pub max_positions: u32,
    /// Tokens of the longest sequence that it has room for; asked for its own limit, it offers no more, and it feeds none behind.
    pub fits: u32,
    /// Of an encoder-decoder; empty: it is a decoder.
    pub decoder_start_ids: Vec<u32>,
    /// Names of those that it was loaded with.
    pub adapters: Vec<String>,
    pub world_size: u32,
    pub stages: u32,
    pub step_fixed: Duration,
    pub step_per_token: Duration,
    pub cost: CostModel,
    /// About one of so many drafts of its draft model is wrong; 0: it has none.
    pub wrong_draft_one_in: u64,
    pub draft_cost: CostModel,
    /// It verifies drafts that are a tree.
    pub draft_trees: bool,
    pub verify: Verify,
    pub dictation: Dictation,
    /// What it says that it was made with.
    pub contract: u32,
}

/// What a mock writes, where a test says so: texts begin with these tokens, as far as their masks allow it. Of rows with a penalty
/// alone, since a worker is told of these how many tokens are output already.
#[derive(Clone, Debug, Default)]
pub struct Dictation(Arc<Mutex<Vec<u32>>>);

impl Dictation {
    /// For the texts that begin from now on.
    pub fn say(&self, tokens: Vec<u32>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tokens;
    }

    fn token(&self, at: u32) -> Option<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(at as usize).copied()
    }
}

/// How much of what a row attends to is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Every position of every row in every step.
    All,
    /// The position before the first token fed: for benchmarks.
    Last,
}

impl MockConfig {
    /// What a mock has to be that is sent the plans of a worker which answered this; or what is wrong with that.
    pub fn of(model: &ModelDescription, prepared: &Prepared) -> Result<Self, String> {
        let tables = Tables::of(&prepared.groups, model.block_size)?;
        Ok(Self {
            vocab_size: model.vocab_size,
            eos_ids: model.eos_ids.clone(),
            pages: prepared.pages,
            block_size: model.block_size,
            full_tables: tables.full,
            windows: tables.windows().to_vec(),
            state_bytes: model.state_bytes,
            snapshots: prepared.snapshots,
            draft_states: prepared.draft_states,
            // Whoever follows a record needs none of its own.
            wrong_draft_one_in: u64::from(prepared.draft_cost.is_some()),
            draft_trees: prepared.draft_trees,
            max_positions: u32::MAX,
            decoder_start_ids: model.decoder_start_ids.clone(),
            adapters: model.adapters.iter().map(|adapter| adapter.name.clone()).collect(),
            world_size: model.world_size,
            stages: model.stages,
            ..Self::default()
        })
    }

    /// Where nobody asks for a longest sequence.
    pub fn prepared(&self) -> Prepared {
        let beside = match self.decoder_start_ids.len() as u32 {
            0 => 0,
            start => start + self.block_size - 1,
        };
        Prepared {
            pages: self.pages,
            cost: Some(self.cost),
            cache_bytes: u64::from(self.pages) * u64::from(self.block_size),
            free_bytes: 1 << 30,
            groups: self.groups(),
            snapshots: self.snapshots,
            draft_states: self.draft_states,
            draft_cost: (self.wrong_draft_one_in > 0).then_some(self.draft_cost),
            draft_trees: self.draft_trees,
            max_sequence_tokens: self.max_positions.saturating_add(beside).min(self.fits),
        }
    }

    fn groups(&self) -> Vec<CacheGroup> {
        let group = |kind: CacheKind, tables, reach, bytes| CacheGroup {
            kind: kind.into(),
            tables,
            reach,
            layers: 1,
            bytes,
        };
        let full = (self.full_tables > 0).then(|| group(CacheKind::Full, self.full_tables, 0, 4));
        let windows = self.windows.iter().map(|window| {
            let kind = if window.chunked { CacheKind::Chunk } else { CacheKind::Window };
            group(kind, window.tables, window.reach, 4)
        });
        let state = (self.state_bytes > 0).then(|| group(CacheKind::State, 0, 0, self.state_bytes));
        full.into_iter().chain(windows).chain(state).collect()
    }

    /// As a description has them, each with a digest of its name.
    #[cfg(any(test, feature = "mock"))]
    pub fn described_adapters(&self) -> Vec<penstock_proto::Adapter> {
        let described = |name: &String| {
            let digest = Sha256::digest(name);
            let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            penstock_proto::Adapter { name: name.clone(), digest }
        };
        self.adapters.iter().map(described).collect()
    }

    /// The first rank of the last stage.
    #[cfg(any(test, feature = "mock"))]
    fn output_rank(&self) -> u32 {
        self.world_size - self.world_size / self.stages.max(1)
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables::new(self.block_size, self.full_tables, &self.windows)
    }
}

impl Default for MockConfig {
    fn default() -> Self {
        Self {
            vocab_size: 1000,
            eos_ids: vec![2],
            eos_one_in: 0,
            surprise_one_in: 0,
            followers: 1,
            pages: 256,
            block_size: 16,
            full_tables: 1,
            windows: Vec::new(),
            state_bytes: 0,
            snapshots: 0,
            draft_states: 0,
            max_positions: 4096,
            fits: u32::MAX,
            decoder_start_ids: Vec::new(),
            adapters: Vec::new(),
            world_size: 1,
            stages: 1,
            step_fixed: Duration::ZERO,
            step_per_token: Duration::ZERO,
            cost: CostModel { fixed_ns: 1e5, per_token_ns: 1e3, per_context_token_ns: 1.0 },
            wrong_draft_one_in: 0,
            draft_cost: CostModel { fixed_ns: 1e4, per_token_ns: 1e2, per_context_token_ns: 0.0 },
            draft_trees: false,
            verify: Verify::All,
            dictation: Dictation::default(),
            contract: CONTRACT,
        }
    }
}

/// What goes wrong in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process ends, before it answers.
    Die,
    /// The step takes so much longer, and `Check` is answered meanwhile.
    Slow(Duration),
    /// It never answers again, to `Check` neither.
    Hang,
    /// It waits for another rank and never ends the step, but answers `Check`.
    Wait,
    /// It says that its connection to another rank broke.
    LosePeer,
    /// It says that the plan is out of step.
    Refuse,
    /// This row's logits are not numbers.
    RowError(u32),
    /// It samples a token that is not in the vocabulary.
    OutsideVocabulary,
    /// It answers another plan's number.
    WrongNumber,
    /// A column is cut short.
    ShortColumn,
}

/// A step, as far as a script of faults may want to know it.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// 1 for the first worker, 2 for the one after the first restart, ...
    pub incarnation: u32,
    pub rank: u32,
    /// Plan number in this incarnation.
    pub number: u64,
    pub rows: u32,
    /// All tokens fed, those of CONTINUE rows too.
    pub fed: &'a [u32],
}

/// Asked at every step whether something goes wrong.
pub type Script = Box<dyn FnMut(Step<'_>) -> Option<Fault> + Send>;
