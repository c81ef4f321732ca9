//! The rules of thumb, each with its reason: how much of a step prompts may take, and how much room a
//! sequence must find before it leaves the queue. Pure arithmetic, asked by `planning`.

use std::time::Duration;

use penstock_proto::tables::Tables;

use super::cost::{StepCost, Work};
use super::sequence::Sequence;
use super::snapshots::SnapshotDistances;

/// Plans sent and not answered: one for each stage of the pipeline, and one more, so that the work of router and
/// wire hides behind the workers' own. Yet another would only delay admissions and waste more rows at a
/// sequence's end.
pub(super) fn plans_in_flight(stages: u32) -> usize {
    stages.max(1) as usize + 1
}

/// Which sequences that decode may have a row in the next plan.
///
/// A sequence's next token needs its last one, which the last stage of a pipeline samples. So that all stages
/// have work, the sequences that decode are divided over as many plans as there are stages, and one that is in the
/// latest of those waits for its turn. None is two tokens ahead of what is known of it.
pub(super) struct MicrobatchSchedule {
    /// Most decodes in one plan.
    pub max_rows: u32,
    /// Who samples in a plan of this number or a later one has had its turn.
    pub since: u64,
    /// Where there are several stages, only the last one knows how long a slot is that verified drafts.
    knows_lengths: bool,
}

impl MicrobatchSchedule {
    /// For `decoding` sequences, when `last` is the number of the latest plan in flight.
    pub fn new(stages: u32, decoding: u32, last: u64) -> Self {
        let groups = stages.min(decoding).max(1);
        Self {
            max_rows: decoding.div_ceil(groups),
            since: (last + 2).saturating_sub(u64::from(groups)),
            knows_lengths: stages <= 1,
        }
    }

    pub fn may_decode(&self, sequence: &Sequence) -> bool {
        sequence.samples_in_flight == 0
            || (sequence.samples_in_flight == 1
                && sequence.last_plan < self.since
                && (self.knows_lengths || sequence.drafts_in_flight == 0))
    }
}

/// So much longer than its expected time a step waits for masks, before the rows that lack theirs go without.
pub(super) const MASK_BUDGET: Duration = Duration::from_millis(10);

/// A step of which a part is enough to wait for masks, by a timer that counts milliseconds.
pub(super) const LONG_STEP: Duration = Duration::from_millis(2);

/// A step may take this many times its expected time, and `step_timeout`, before its worker counts as hung.
pub(super) const HUNG_FACTOR: u32 = 20;

/// A step of a size that its workers have not run yet may take so many `step_timeout`s more, while they answer `Check`:
/// they may have to compile or tune for it.
pub(super) const FIRST_RUN_FACTOR: u32 = 30;

/// Blocks by which every running sequence must be able to grow when another one is admitted. Small, since
/// most sequences stop long before their `max_new_tokens`; not zero, since a preemption at once after an
/// admission would compute a prompt for nothing.
const LOOKAHEAD_BLOCKS: u32 = 2;

/// How far ahead room must be for all when a sequence that was preempted so many times comes back. Doubling
/// bounds its preemptions by the logarithm of the longest output: the pool cannot thrash.
pub(super) fn lookahead(preemptions: u32, block_size: u32) -> u32 {
    let blocks = LOOKAHEAD_BLOCKS.saturating_mul(1u32.checked_shl(preemptions).unwrap_or(u32::MAX));
    blocks.saturating_mul(block_size)
}

/// A head of the queue that lacks pages is looked up in the prefix cache when so many sequences have left since the last
/// time, whatever they left: to look up a long prompt takes as long as to plan many steps.
pub(super) const DEPARTURES_PER_LOOKUP: u64 = 16;

/// Pages that a sequence will take until it has `lookahead` more tokens, or ends, when it is fed at most `chunk`
/// tokens at a time. Its last token is never fed, so it needs no room.
pub(super) fn growth(sequence: &Sequence, lookahead: u32, tables: &Tables, chunk: u32) -> u32 {
    let tokens = sequence.len().saturating_add(lookahead).min(sequence.final_len() - 1);
    let remaining = sequence.len().saturating_sub(sequence.num_scheduled_tokens).max(1);
    tables.growth(&sequence.table, tokens, remaining.min(chunk))
}

/// Who drafts, and at most how many tokens a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Drafting {
    #[default]
    Off,
    Adaptive(u32),
    /// As many as there can be, good or bad.
    #[cfg(test)]
    Always(u32),
}

impl Drafting {
    pub fn up_to(most: u32) -> Self {
        if most == 0 { Self::Off } else { Self::Adaptive(most) }
    }

    pub fn most(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Adaptive(most) => most,
            #[cfg(test)]
            Self::Always(most) => most,
        }
    }
}

/// How often the recurrent state of a sequence is copied. In a prompt, so that one that parts from it somewhere computes
/// 512 tokens again at most, a part of a step; more often, and a long prompt would take the places of many others. In an
/// output, so that the next turn of a chat computes 64 at most of the last answer, which costs little more than the step that
/// it needs anyhow, while one copy is little beside the 64 times that the steps between read and write the state itself.
pub(super) const SNAPSHOT_DISTANCES: SnapshotDistances = SnapshotDistances { prompt: 512, output: 64 };

/// What prompts may still take of a step that is being planned.
pub(super) struct PromptBudget {
    /// Tokens left of the step's limit, the decodes' already taken off.
    pub tokens: u32,
    /// The decodes and the prompt chunks so far.
    pub work: Work,
    /// Set when there are decodes to protect.
    pub target: Option<Duration>,
}

impl PromptBudget {
    /// The most tokens that a prompt at `position` may feed. The step's first chunk may always have a block,
    /// so that prompts advance even when decodes alone take longer than the target. Where its log probabilities are told
    /// (`is_told`), it takes as long as so many more tokens: nobody waits longer for such a step than for a full one.
    pub fn chunk(&self, cost: &StepCost, position: u32, block_size: u32, is_told: bool) -> u32 {
        let least = if self.work.prompts { 0 } else { block_size };
        let tokens = match is_told {
            true => cost.told_in_place_of(self.tokens).max(least).min(self.tokens),
            false => self.tokens,
        };
        let Some(target) = self.target else { return tokens };
        let work = Work { prompts: true, ..self.work };
        cost.chunk_within(target, work, position, is_told).max(least).min(tokens)
    }

    pub fn take(&mut self, cost: &StepCost, position: u32, count: u32, is_told: bool) {
        let taken = if is_told { (f64::from(count) * cost.target_weight()).ceil() as u32 } else { count };
        // What cannot be cut may exceed what is left.
        self.tokens = self.tokens.saturating_sub(taken);
        self.work.add(position, count);
        self.work.targets += if is_told { count } else { 0 };
        self.work.prompts = true;
    }
}

/// Cuts a chunk that does not reach the prompt's end at a block boundary: whoever has the same prompt can
/// then share what was computed, and go on from there. If it reaches none it is not cut, so that a small
/// budget still advances; but not `beside` another chunk, for which this one may only have to wait.
pub(super) fn align(position: u32, count: u32, remaining: u32, block_size: u32, beside: bool) -> u32 {
    if count >= remaining {
        return remaining;
    }
    let end = (position + count) / block_size * block_size;
    match end > position {
        true => end - position,
        false if beside => 0,
        false => count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_at_block_boundaries_unless_they_end_the_prompt() {
        assert_eq!(align(0, 100, 500, 16, false), 96);
        assert_eq!(align(8, 100, 500, 16, true), 88, "from 8 to 96");
        assert_eq!(align(0, 100, 100, 16, true), 100);
        assert_eq!(align(0, 5, 100, 16, false), 5, "a budget below a block still advances");
        assert_eq!(align(0, 5, 100, 16, true), 0, "but not beside another chunk");
        assert_eq!(align(10, 6, 100, 16, true), 6);
    }

    #[test]
    fn the_room_asked_for_doubles_with_each_preemption() {
        assert_eq!(lookahead(0, 16), 32);
        assert_eq!(lookahead(3, 16), 256);
        assert_eq!(lookahead(40, 16), u32::MAX);
    }
}
