//! Executes a record (`recording`) again and compares what comes back. On a worker every result has to be the same; where there is
//! none, the mock's model follows the record, samples what it says, and checks every plan as it checks those of tests. Of `penstock
//! replay`; ends at the first difference, and names it.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use bytemuck::allocation::pod_collect_to_vec;
use penstock_proto::record_entry::What;
use penstock_proto::tables::Tables;
use penstock_proto::{
    CONTRACT, Masks, ModelDescription, PrepareRequest, Prepared, RecordHead, RowFlag, StepPlan, StepResult,
};

use super::group::{Group, PrepareLimits, StartError};
use super::mock::{MockConfig, MockModel};
use super::recording::RecordReader;
use super::source::{Loss, WorkerSource};
use super::stream::Run;

/// Why a record was not executed to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// It was made with another contract, or says what cannot be.
    #[error("{0}")]
    Unusable(String),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("run {run}, plan {plan}: {loss}")]
    Lost { run: u32, plan: u64, loss: Loss },
    /// What came back is not what was recorded, or the plan is wrong.
    #[error("run {run}, plan {plan}: {why}")]
    Differs { run: u32, plan: u64, why: String },
}

/// What was executed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub runs: u32,
    pub plans: u64,
    pub rows: u64,
    pub tokens: u64,
    /// Between log probabilities, which may differ where the order of sums does.
    pub largest_difference: f32,
    /// Of the recorded model.
    pub model: String,
    /// Why the record ends; `None`: its writer was killed.
    pub end: Option<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, plans, rows, tokens, model, .. } = self;
        write!(f, "{model}: {runs} runs, {plans} plans, {rows} rows, {tokens} tokens fed")?;
        if self.largest_difference > 0.0 {
            write!(f, "; log probabilities differ by {:e} at most", self.largest_difference)?;
        }
        match &self.end {
            Some(why) => write!(f, "; the record ends: {why}"),
            None => write!(f, "; the record breaks off: its server was killed, or still runs"),
        }
    }
}

/// How long a worker may take for a step.
const STEP: Duration = Duration::from_secs(600);

enum Executor {
    /// Follows the record.
    Model(Box<MockModel>),
    Workers(Box<Run>),
}

/// On workers of `source`, which hold the recorded model; on a mock if there is none.
pub async fn replay(record: &Path, source: Option<&dyn WorkerSource>) -> Result<Report, ReplayError> {
    let most = Most::of(record)?;
    let mut entries = RecordReader::open(record)?;
    let mut report = Report::default();
    let mut executor = None;
    // Sent and not answered yet, with their masks.
    let mut open: std::collections::VecDeque<(StepPlan, Option<Masks>)> = Default::default();
    loop {
        let unusable = |why: &str| Err(ReplayError::Unusable(why.into()));
        match entries.next_entry()? {
            Some(What::Head(head)) => {
                report.runs += 1;
                open.clear();
                // The one before has to be gone: a worker has one Run at a time.
                drop(executor.take());
                let head = Head::read(head)?;
                report.model = format!("{} in {}", head.model.model_type, head.model.dtype);
                executor = Some(head.executor(source, most).await?);
            }
            Some(What::Plan(plan)) => open.push_back((plan, None)),
            Some(What::Masks(masks)) => match open.iter_mut().find(|(plan, _)| plan.number == masks.number) {
                Some((_, place)) => *place = Some(masks),
                None => return unusable("masks are recorded of a plan that is not"),
            },
            Some(What::Result(recorded)) => {
                let (Some(executor), Some((plan, masks))) = (&mut executor, open.pop_front()) else {
                    return unusable("a result is recorded of a plan that is not");
                };
                let step = Step { run: report.runs, plan: &plan, masks, recorded: &recorded };
                let difference = step.execute(executor).await?;
                report.largest_difference = report.largest_difference.max(difference);
                report.plans += 1;
                report.rows += plan.flags.len() as u64;
                report.tokens += numbers(&plan.counts).iter().map(|&count| u64::from(count)).sum::<u64>();
            }
            Some(What::End(end)) => {
                report.end = Some(end.why);
                return Ok(report);
            }
            None if report.runs == 0 => return unusable("this is no record of a router's"),
            None => return Ok(report),
        }
    }
}

/// What any run's plans may ask for. After a recovery the workers may have had more or less memory than before; one worker executes
/// all runs, and is prepared once.
#[derive(Clone, Copy, Default)]
struct Most {
    pages: u32,
    sequence_tokens: u32,
}

impl Most {
    fn of(record: &Path) -> io::Result<Self> {
        let (mut entries, mut most) = (RecordReader::open(record)?, Self::default());
        while let Some(what) = entries.next_entry()? {
            if let What::Head(RecordHead { prepared: Some(prepared), .. }) = what {
                most.pages = most.pages.max(prepared.pages);
                most.sequence_tokens = most.sequence_tokens.max(prepared.max_sequence_tokens);
            }
        }
        Ok(most)
    }
}

/// What a Run was recorded of.
struct Head {
    model: ModelDescription,
    limits: PrepareRequest,
    prepared: Prepared,
}

impl Head {
    fn read(head: RecordHead) -> Result<Self, ReplayError> {
        if head.contract != CONTRACT {
            return Err(ReplayError::Unusable(format!(
                "it was recorded by Penstock {} with another contract ({:08x}) than this program's ({CONTRACT:08x})",
                head.version, head.contract
            )));
        }
        match (head.model, head.limits, head.prepared) {
            (Some(model), Some(limits), Some(prepared)) => Ok(Self { model, limits, prepared }),
            _ => Err(ReplayError::Unusable("it does not say what its workers were".into())),
        }
    }

    /// `most`: for which a worker is prepared.
    async fn executor(&self, source: Option<&dyn WorkerSource>, most: Most) -> Result<Executor, ReplayError> {
        let Some(source) = source else {
            let config = MockConfig::of(&self.model, &self.prepared).map_err(ReplayError::Unusable)?;
            let model = MockModel::new(config, self.limits.max_slots, self.limits.max_step_tokens);
            return Ok(Executor::Model(Box::new(model.with_drafts(self.limits.max_step_drafts))));
        };
        let tables =
            Tables::of(&self.prepared.groups, self.model.block_size).map_err(ReplayError::Unusable)?;
        let limits = PrepareLimits {
            max_cache_tokens: tables.tokens(most.pages),
            max_sequence_tokens: most.sequence_tokens,
            ..PrepareLimits::from(&self.limits)
        };
        let group = Group::start(source, |_| Ok(limits)).await?;
        let here = group.prepared();
        if here.pages < self.prepared.pages
            || here.snapshots < self.prepared.snapshots
            || here.draft_states < self.prepared.draft_states
            || group.tables() != tables
        {
            return Err(ReplayError::Unusable(format!(
                "the worker has another KV cache, {here:?}, than the recorded one, {:?}",
                self.prepared
            )));
        }
        let run = Run::open(&group).await;
        run.map(|run| Executor::Workers(Box::new(run))).map_err(|loss| ReplayError::Lost {
            run: 0,
            plan: 0,
            loss,
        })
    }
}

struct Step<'a> {
    run: u32,
    plan: &'a StepPlan,
    masks: Option<Masks>,
    recorded: &'a StepResult,
}

impl Step<'_> {
    /// The largest difference of a log probability.
    async fn execute(self, executor: &mut Executor) -> Result<f32, ReplayError> {
        let (run, plan) = (self.run, self.plan.number);
        let differs = |why: String| ReplayError::Differs { run, plan, why };
        if self.recorded.number != plan {
            return Err(differs(format!("it was answered as plan {}", self.recorded.number)));
        }
        match executor {
            Executor::Model(model) => {
                let result = model.follow(self.plan, self.masks.as_ref(), self.recorded).map_err(differs)?;
                let lengths = |result: &StepResult| (result.sampled.len(), result.accepted.clone());
                match lengths(&result) == lengths(self.recorded) {
                    true => Ok(0.0),
                    false => Err(differs(format!(
                        "drafts {:?} were accepted instead of {:?}",
                        numbers(&self.recorded.accepted),
                        numbers(&result.accepted)
                    ))),
                }
            }
            Executor::Workers(workers) => {
                workers.send(Some(self.plan.clone()), self.masks.clone());
                let result = match tokio::time::timeout(STEP, workers.next()).await {
                    Ok(result) => result.map_err(|loss| ReplayError::Lost { run, plan, loss })?,
                    Err(_) => return Err(differs(format!("no result in {STEP:.0?}"))),
                };
                self.compare(&result).map_err(differs)
            }
        }
    }

    /// Names the first row that differs.
    fn compare(&self, result: &StepResult) -> Result<f32, String> {
        let slots = numbers(&self.plan.slots);
        let name = |row: usize| format!("row {row} (slot {})", slots.get(row).copied().unwrap_or_default());
        let errors = |of: &StepResult| -> Vec<u32> { of.errors.iter().map(|error| error.row).collect() };
        if errors(result) != errors(self.recorded) {
            let (before, now) = (errors(self.recorded), errors(result));
            return Err(format!("rows {now:?} failed, and recorded are {before:?}"));
        }
        let samples = |of: &StepResult| self.samples(of);
        let (before, now) = (samples(self.recorded), samples(result));
        if let Some((row, before, now)) =
            (0..).zip(before.iter().zip(&now)).find(|(_, (b, n))| b != n).map(|(row, (b, n))| (row, b, n))
        {
            return Err(format!("{} sampled {now:?} instead of {before:?}", name(row)));
        }
        let floats = |of: &StepResult| -> Vec<f32> {
            let columns = [&of.logprobs, &of.prompt_logprobs, &of.top_logprobs, &of.prompt_top_logprobs];
            columns.into_iter().flat_map(|column| pod_collect_to_vec::<u8, f32>(column)).collect()
        };
        let (before, now) = (floats(self.recorded), floats(result));
        if before.len() != now.len() {
            return Err(format!("{} log probabilities instead of {}", now.len(), before.len()));
        }
        let difference = |(before, now): (&f32, &f32)| match before.to_bits() == now.to_bits() {
            true => 0.0,
            false => (before - now).abs(),
        };
        Ok(before.iter().zip(&now).map(difference).fold(0.0, f32::max))
    }

    /// What each row sampled; of one in error, or whose mask allowed nothing, that is undefined.
    fn samples(&self, result: &StepResult) -> Vec<Vec<u32>> {
        let mut sampled = numbers(&result.sampled).into_iter();
        let mut accepted = numbers(&result.accepted).into_iter();
        let drafts = numbers(&self.plan.drafts);
        let only = self.masks.as_ref().map(|masks| numbers(&masks.only)).unwrap_or_default();
        let mut masks = only.into_iter();
        let row = |(row, flags): (usize, &u8)| {
            let drafts = drafts.get(row).copied().unwrap_or(0);
            let more = if drafts > 0 { accepted.next() } else { None };
            let is_masked = flags & RowFlag::Masked as u8 != 0;
            let first = if is_masked {
                masks.by_ref().take(1 + drafts as usize).reduce(|first, _| first)
            } else {
                None
            };
            let is_skipped = first == Some(Masks::NONE);
            let count = match flags & RowFlag::Sample as u8 {
                0 => 0,
                _ => 1 + more.unwrap_or(0) as usize,
            };
            let tokens: Vec<u32> = sampled.by_ref().take(count).collect();
            let is_error = result.errors.iter().any(|error| error.row as usize == row);
            if is_error || is_skipped { Vec::new() } else { tokens }
        };
        self.plan.flags.iter().enumerate().map(row).collect()
    }
}

impl From<&PrepareRequest> for PrepareLimits {
    fn from(request: &PrepareRequest) -> Self {
        Self {
            max_slots: request.max_slots,
            max_step_tokens: request.max_step_tokens,
            max_sequence_tokens: request.max_sequence_tokens,
            max_cache_tokens: request.max_cache_tokens,
            memory_fraction: request.memory_fraction,
            max_step_drafts: request.max_step_drafts,
        }
    }
}

fn numbers(column: &[u8]) -> Vec<u32> {
    pod_collect_to_vec(column)
}
