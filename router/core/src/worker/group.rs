//! A group of ranks that hold one model: started from a `WorkerSource`, described and prepared here, then
//! run by `stream`. Knows the rare calls of the contract; knows no sequences.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use penstock_proto::tables::Tables;
use penstock_proto::worker_client::WorkerClient;
use penstock_proto::{CONTRACT, CacheGroup, DescribeRequest, ModelDescription, PrepareRequest, Prepared};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::connection::{BLAME, connect, loss};
use super::endpoint::Endpoint;
use super::source::{GiveUp, Loss, LossKind, WorkerSource};
use crate::adapter::Adapters;
use crate::clock;

/// What `Prepare` is asked for; the same for every rank and after every restart. See PrepareRequest.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareLimits {
    pub max_slots: u32,
    pub max_step_tokens: u32,
    /// 0: the model's own limit, or what fits.
    pub max_sequence_tokens: u32,
    /// 0: as much as is useful and fits.
    pub max_cache_tokens: u64,
    pub memory_fraction: f32,
    pub max_step_drafts: u32,
}

/// Why a group could not be started. The texts are for the operator.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    GaveUp(#[from] GiveUp),
    /// The model and the flags do not go together.
    #[error("{0}")]
    Limits(String),
    /// A worker answered that it cannot: too little memory, for one.
    #[error("a worker cannot serve: {0}")]
    Refused(String),
    /// The workers were lost again and again before they were ready.
    #[error("the workers were lost {0} times in a row while they were made ready; the last time: {1}")]
    Lost(u32, Loss),
    /// The model was served before.
    #[error("workers in the place of lost ones found too little memory {0} times in a row: {1}")]
    NoRoom(u32, String),
}

/// How long it took to make a group ready.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StartupTimings {
    /// Until the source had workers that answer.
    pub process: Duration,
    /// Until `Describe` was answered: the weights are loaded.
    pub load: Duration,
    /// Until `Prepare` was answered: the KV cache is there and everything is warm.
    pub prepare: Duration,
}

/// Prepared workers, one per rank.
#[derive(Clone, Debug)]
pub struct Group {
    endpoints: Vec<Endpoint>,
    limits: PrepareLimits,
    description: ModelDescription,
    prepared: Prepared,
    tables: Tables,
    startup_timings: StartupTimings,
}

/// Losses in a row, between the source's answer and `Prepared`, after which nothing better is expected. The
/// source counts failures before that by itself.
const LOSSES: u32 = 3;
/// Replacements in a row that find too little memory. What a dead process had may not be given back yet, or somebody else may
/// have it for a while: as often as the launcher starts one that finds too little for the weights.
const REFUSALS: u32 = 5;

/// A replacement may take this many times longer than the first group to load and to prepare, and
/// `SLACK` more, before it counts as hung.
const SLOWER: u32 = 10;
const SLACK: Duration = Duration::from_secs(60);
/// How long the first `Prepare` takes nobody knows: it compiles, and times what it compiled. Large models on GPUs are seen
/// to take some minutes.
const FIRST_PREPARE: Duration = Duration::from_secs(1800);

impl Group {
    /// Asks `source` for workers and readies them. `limits` is asked once, when the model is loaded and
    /// before memory is taken, and may refuse.
    pub async fn start(
        source: &dyn WorkerSource,
        limits: impl FnOnce(&ModelDescription) -> Result<PrepareLimits, String> + Send,
    ) -> Result<Self, StartError> {
        let mut choose = Some(limits);
        let mut chosen = None;
        let mut lost = None;
        for _ in 0..LOSSES {
            let begun = clock::now();
            let endpoints = source.fresh(lost.as_ref()).await?;
            let mut startup_timings =
                StartupTimings { process: clock::since(begun), ..StartupTimings::default() };
            let result = async {
                let mut ranks = connect(&endpoints).await?;
                let begun = clock::now();
                let (description, states) = in_time("Describe", SLACK, describe(&mut ranks)).await?;
                startup_timings.load = clock::since(begun);
                if let Some(choose) = choose.take() {
                    chosen = Some(choose(&description).map_err(StartError::Limits)?);
                }
                let limits = chosen.clone().expect("chosen when the first group was described");
                let begun = clock::now();
                let preparing = prepare(&mut ranks, &limits, &description, &states);
                let (prepared, tables) = in_time("Prepare", FIRST_PREPARE, preparing).await?;
                startup_timings.prepare = clock::since(begun);
                Ok(Self { endpoints, limits, description, prepared, tables, startup_timings })
            };
            match result.await {
                Ok(group) => return Ok(group),
                Err(Unready::Final(error)) => return Err(error),
                Err(Unready::NoRoom { why, .. }) => return Err(StartError::Refused(why)),
                Err(Unready::Lost(loss)) => {
                    tracing::warn!(%loss, "lost the workers before they were ready");
                    lost = Some(loss);
                }
            }
        }
        Err(StartError::Lost(LOSSES, lost.expect("the loop ends early unless a group was lost")))
    }

    /// A group to replace this one, which was lost: the same model with the same limits.
    pub async fn replace(&self, source: &dyn WorkerSource, loss: Loss) -> Result<Self, StartError> {
        let mut loss = loss;
        let (mut losses, mut refusals) = (0, 0);
        loop {
            let begun = clock::now();
            let endpoints = source.fresh(Some(&loss)).await?;
            let process = clock::since(begun);
            loss = match self.ready_again(endpoints, process).await {
                Ok(group) => return Ok(group),
                Err(Unready::Final(error)) => return Err(error),
                Err(Unready::NoRoom { why, .. }) if refusals + 1 == REFUSALS => {
                    return Err(StartError::NoRoom(REFUSALS, why));
                }
                Err(Unready::NoRoom { rank, why }) => {
                    refusals += 1;
                    Loss::of(rank, LossKind::NoRoom, why)
                }
                Err(Unready::Lost(again)) if losses + 1 == LOSSES => {
                    return Err(StartError::Lost(LOSSES, again));
                }
                Err(Unready::Lost(again)) => {
                    losses += 1;
                    again
                }
            };
            tracing::warn!(%loss, "lost the workers again before they were ready");
        }
    }

    async fn ready_again(&self, endpoints: Vec<Endpoint>, process: Duration) -> Result<Self, Unready> {
        let mut ranks = connect(&endpoints).await?;
        let begun = clock::now();
        let limit = again(self.startup_timings.load);
        let (description, states) = in_time("Describe", limit, describe(&mut ranks)).await?;
        let load = clock::since(begun);
        if identity(&description) != identity(&self.description) {
            let why = format!("after a restart it serves another model: {description:?}");
            return Err(Unready::Final(StartError::Refused(why)));
        }
        let begun = clock::now();
        let preparing = prepare(&mut ranks, &self.limits, &description, &states);
        let limit = again(self.startup_timings.prepare);
        let (prepared, tables) = in_time("Prepare", limit, preparing).await?;
        let startup_timings = StartupTimings { process, load, prepare: clock::since(begun) };
        Ok(Self { endpoints, limits: self.limits.clone(), description, prepared, tables, startup_timings })
    }

    /// Rank 0's.
    pub fn description(&self) -> &ModelDescription {
        &self.description
    }

    /// The rank that answers plans: the first of the last stage.
    pub fn output_rank(&self) -> u32 {
        output_rank(&self.description)
    }

    /// The fewest pages and places for states of any rank that has some, the shortest of what each takes for the longest sequence, what all together keep in each group of caches, and otherwise what the one that answers plans says, which measures whole
    /// steps.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    pub fn limits(&self) -> &PrepareLimits {
        &self.limits
    }

    pub fn startup_timings(&self) -> StartupTimings {
        self.startup_timings
    }

    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// What a block consists of.
    pub(crate) fn tables(&self) -> Tables {
        self.tables
    }

    /// Tokens that the KV cache holds where nothing is behind a window. Where no layer has keys and values nothing but
    /// the slots limits what all sequences may have together.
    pub fn cache_tokens(&self) -> u64 {
        match self.tables().count() {
            0 => u64::from(self.limits.max_slots) * u64::from(self.max_sequence_tokens()),
            _ => self.tables().tokens(self.prepared.pages),
        }
    }

    /// Longest sequence that this group can hold: of the model, the limits and the KV cache.
    pub fn max_sequence_tokens(&self) -> u32 {
        let in_cache = self.tables().longest(self.prepared.pages, self.limits.max_step_tokens);
        self.prepared.max_sequence_tokens.min(in_cache)
    }

    /// Most tokens that input and output of a request may have together.
    pub fn max_request_tokens(&self) -> u32 {
        self.max_sequence_tokens().saturating_sub(self.description.positions_beside())
    }
}

/// Why a group is not ready: lost, which another one may not be, or for good.
enum Unready {
    Lost(Loss),
    /// For good where a server starts, and perhaps not where it had room before.
    NoRoom {
        rank: u32,
        why: String,
    },
    Final(StartError),
}

impl From<Loss> for Unready {
    fn from(loss: Loss) -> Self {
        Self::Lost(loss)
    }
}

impl From<StartError> for Unready {
    fn from(error: StartError) -> Self {
        Self::Final(error)
    }
}

impl Unready {
    fn of(rank: u32, status: &Status) -> Self {
        match status.code() {
            // The worker is well and says no: the next one will say the same.
            Code::FailedPrecondition | Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented => {
                Self::Final(StartError::Refused(status.message().into()))
            }
            Code::ResourceExhausted => Self::NoRoom { rank, why: status.message().into() },
            _ => Self::Lost(loss(rank, status)),
        }
    }
}

/// The model as rank 0 describes it, with the state of a sequence on all ranks together; and which ranks have a part of it:
/// a stage of a pipeline may have no recurrent layer.
async fn describe(ranks: &mut [WorkerClient<Channel>]) -> Result<(ModelDescription, Vec<bool>), Unready> {
    let world_size = ranks.len() as u32;
    let descriptions = every(ranks.iter_mut().map(|rank| rank.describe(DescribeRequest {}))).await?;
    if descriptions.iter().any(|description| description.contract != CONTRACT) {
        let why = "it is of another version than this router: install binary and Python package together";
        return Err(refused(why.into()));
    }
    let states = descriptions.iter().map(ModelDescription::has_state).collect();
    let state_bytes = descriptions.iter().map(|description| description.state_bytes).sum();
    let mut descriptions = descriptions.into_iter();
    let first = descriptions.next().ok_or_else(|| refused("there are no workers".into()))?;
    let in_place = |description: &ModelDescription, rank| {
        description.rank == rank && description.world_size == world_size
    };
    if !in_place(&first, 0) {
        let (rank, size) = (first.rank, first.world_size);
        return Err(refused(format!("rank 0 of {world_size} says that it is rank {rank} of {size}")));
    }
    if first.block_size == 0 || first.vocab_size == 0 || first.max_positions == 0 {
        return Err(refused("its block size, vocabulary or context length is 0".into()));
    }
    if first.stages == 0 || !world_size.is_multiple_of(first.stages) {
        return Err(refused(format!("{world_size} ranks are no {} stages", first.stages)));
    }
    Adapters::of(&first).map_err(refused)?;
    for (rank, other) in (1..).zip(descriptions) {
        if !in_place(&other, rank) || identity(&other) != identity(&first) {
            return Err(refused(format!("rank {rank} and rank 0 do not hold the same model")));
        }
    }
    Ok((ModelDescription { state_bytes, ..first }, states))
}

async fn prepare(
    ranks: &mut [WorkerClient<Channel>],
    limits: &PrepareLimits,
    description: &ModelDescription,
    states: &[bool],
) -> Result<(Prepared, Tables), Unready> {
    let request = PrepareRequest {
        max_slots: limits.max_slots,
        max_step_tokens: limits.max_step_tokens,
        max_sequence_tokens: limits.max_sequence_tokens,
        max_cache_tokens: limits.max_cache_tokens,
        memory_fraction: limits.memory_fraction,
        max_step_drafts: limits.max_step_drafts,
    };
    let answers = every(ranks.iter_mut().map(|rank| rank.prepare(request))).await?;
    let pages = answers.iter().map(|prepared| prepared.pages).min().unwrap_or(0);
    let max_sequence_tokens = answers.iter().map(|prepared| prepared.max_sequence_tokens).min().unwrap_or(0);
    let with_state = answers.iter().zip(states).filter(|(_, has_state)| **has_state);
    let with_state = with_state.map(|(prepared, _)| prepared);
    let snapshots = with_state.clone().map(|prepared| prepared.snapshots).min().unwrap_or(0);
    let draft_states = with_state.map(|prepared| prepared.draft_states).min().unwrap_or(0);
    let output_rank = output_rank(description);
    let shape = |groups: &[CacheGroup]| -> Vec<CacheGroup> {
        groups.iter().map(|group| CacheGroup { bytes: 0, ..*group }).collect()
    };
    let mut prepared = answers[output_rank as usize].clone();
    let same = shape(&prepared.groups);
    if let Some((rank, _)) = (0..).zip(&answers).find(|(_, other)| shape(&other.groups) != same) {
        return Err(refused(format!("rank {rank} and rank {output_rank} divide the KV cache differently")));
    }
    for (at, group) in prepared.groups.iter_mut().enumerate() {
        group.bytes = answers.iter().map(|answer| answer.groups[at].bytes).sum();
    }
    let prepared = Prepared { pages, snapshots, draft_states, max_sequence_tokens, ..prepared };
    let tables = Tables::of(&prepared.groups, description.block_size).map_err(refused)?;
    let has_tables = tables.count() > 0;
    if !has_tables && !states.contains(&true) {
        return Err(refused("its KV cache has no tables".into()));
    }
    if has_tables && pages == 0 {
        return Err(refused("no memory is left for the KV cache".into()));
    }
    if max_sequence_tokens == 0 {
        return Err(refused("its longest sequence has 0 tokens".into()));
    }
    Ok((prepared, tables))
}

/// The answers of all ranks, in their order. Of several failures, the one that is no other one's consequence.
async fn every<T>(
    calls: impl Iterator<Item = impl Future<Output = Result<tonic::Response<T>, Status>>>,
) -> Result<Vec<T>, Unready> {
    let numbered = (0..).zip(calls).map(|(rank, call)| async move { (rank, call.await) });
    let mut calls: FuturesUnordered<_> = numbered.collect();
    let mut answers = Vec::new();
    let mut peer_lost = None;
    loop {
        let next = match peer_lost {
            None => calls.next().await,
            Some(_) => tokio::time::timeout(BLAME, calls.next()).await.unwrap_or(None),
        };
        match next {
            Some((rank, Ok(answer))) => answers.push((rank, answer.into_inner())),
            Some((rank, Err(status))) => match Unready::of(rank, &status) {
                Unready::Lost(loss) if loss.kind == LossKind::PeerLost => peer_lost = Some(loss),
                blamed => return Err(blamed),
            },
            None => break,
        }
    }
    if let Some(loss) = peer_lost {
        return Err(Unready::Lost(loss));
    }
    answers.sort_by_key(|(rank, _)| *rank);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// What must be the same on every rank and after every restart.
fn identity(model: &ModelDescription) -> impl PartialEq {
    let ModelDescription { model_type, eos_ids, dtype, decoder_start_ids, draft_model, .. } = model.clone();
    let ModelDescription { vocab_size, block_size, max_positions, parameters, .. } = *model;
    let ModelDescription { world_size, stages, .. } = *model;
    let ModelDescription { adapters, .. } = model.clone();
    let names = (model_type, eos_ids, dtype, decoder_start_ids, draft_model, adapters);
    let sizes = (vocab_size, block_size, max_positions, parameters, world_size, stages);
    (names, sizes)
}

fn output_rank(model: &ModelDescription) -> u32 {
    model.world_size - model.world_size / model.stages.max(1)
}

fn refused(why: String) -> Unready {
    Unready::Final(StartError::Refused(why))
}

/// The limit of a call that took so long the first time.
fn again(first_took: Duration) -> Duration {
    first_took.saturating_mul(SLOWER).saturating_add(SLACK)
}

async fn in_time<T>(
    call: &str,
    limit: Duration,
    answer: impl Future<Output = Result<T, Unready>>,
) -> Result<T, Unready> {
    match tokio::time::timeout(limit, answer).await {
        Ok(result) => result,
        Err(_) => {
            let why = format!("no answer to {call} in {limit:.0?}");
            Err(Unready::Lost(Loss::unnamed(LossKind::Hung, why)))
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_proto::Adapter;

    use super::*;

    #[test]
    fn a_model_with_other_adapters_is_another_model() {
        let of = |adapters: &[(&str, &str)]| {
            let adapter =
                |&(name, digest): &(&str, &str)| Adapter { name: name.into(), digest: digest.into() };
            let adapters = adapters.iter().map(adapter).collect();
            ModelDescription { adapters, ..ModelDescription::default() }
        };
        let one = of(&[("a", "0f"), ("b", "1f")]);
        let same = one.clone();
        assert!(identity(&one) == identity(&same));
        for other in
            [of(&[]), of(&[("a", "0f")]), of(&[("b", "1f"), ("a", "0f")]), of(&[("a", "0f"), ("b", "2f")])]
        {
            assert!(identity(&one) != identity(&other), "{:?}", other.adapters);
        }
    }
}
