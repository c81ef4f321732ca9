//! Writes step plans: rows in, columns out, as proto/penstock.proto lays them out. Knows the wire, decides
//! nothing. One builder lives as long as one Run of the workers, whose numbers and digest it keeps.

use std::ops::Range;

use bytes::Bytes;
use penstock_proto::ids::{SlotId, SpanRef, TokenId};
use penstock_proto::starts::StartColumns;
use penstock_proto::{RowFlag, StepPlan};

use super::submission::Sampling;

// Columns are little-endian arrays, written here by a plain copy.
const _: () = assert!(cfg!(target_endian = "little"), "plans are written for little-endian machines");

const NO_TARGET: u32 = u32::MAX;

/// What a row feeds.
pub(super) enum Feed<'a> {
    Tokens(&'a [TokenId]),
    /// What the slot sampled last, and what may follow it.
    Continue {
        drafts: &'a [TokenId],
        /// Of each the number of the draft before it, from 1 on, 0: none; empty: they are a chain.
        parents: &'a [u32],
        /// Or so many that the workers' draft model makes.
        own: u32,
    },
}

/// What the log probabilities of a row's prompt tokens are wanted of.
pub(super) struct PromptTargets<'a> {
    /// The tokens of the prompt that follow those fed, as far as there are any.
    pub following: &'a [TokenId],
}

pub(super) struct Row<'a> {
    pub slot: SlotId,
    pub position: u32,
    pub feed: Feed<'a>,
    pub new_blocks: u32,
    /// Of each new block in each table.
    pub new_pages: &'a [u32],
    pub sample: bool,
    pub masked: bool,
    pub prompt_targets: Option<PromptTargets<'a>>,
    pub start: Option<Start<'a>>,
    pub trace: Option<SpanRef>,
}

/// What a START row says once.
pub(super) struct Start<'a> {
    pub sampling: &'a Sampling,
    pub top_tokens: u32,
    /// All of the sequence so far.
    pub tokens: &'a [TokenId],
    pub prompt_len: u32,
    pub encoder: Encoder,
    /// The snapshot with which its recurrent state begins; `None`: the model has none.
    pub state_source: Option<u32>,
    /// The adapter that it is computed with, counted from 1, or 0; `None`: the model has none.
    pub adapter: Option<u32>,
    /// What ends a sequence, of this server and of this one.
    pub ends: [&'a [TokenId]; 2],
}

/// The part of a sequence that an encoder reads; nothing of a decoder's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Encoder {
    /// Its tokens, at least 1.
    pub tokens: u32,
    /// Positions that they take with the padding behind them: whole blocks.
    pub positions: u32,
}

impl Encoder {
    pub fn new(tokens: u32, block_size: u32) -> Self {
        Self { tokens, positions: tokens.next_multiple_of(block_size) }
    }

    /// The positions behind its tokens, which are nobody's.
    pub fn padding(&self) -> Range<usize> {
        self.tokens as usize..self.positions as usize
    }
}

#[derive(Default)]
pub(super) struct PlanBuilder {
    number: u64,
    digest: crc32fast::Hasher,
    columns: Columns,
    starts: StartColumns,
    traces: Vec<u8>,
    drafts: Vec<u32>,
    /// (row, tokens, snapshot) of each.
    saves: Vec<u32>,
    /// Of every draft so far.
    draft_parents: Vec<u32>,
    has_trees: bool,
    /// (source, target) of each.
    copies: Vec<u32>,
}

/// Kept from plan to plan, so that a plan costs one copy per column and no growing.
#[derive(Default)]
struct Columns {
    released: Vec<u32>,
    slots: Vec<u32>,
    flags: Vec<u8>,
    positions: Vec<u32>,
    counts: Vec<u32>,
    tokens: Vec<u32>,
    new_block_counts: Vec<u32>,
    new_pages: Vec<u32>,
    prompt_targets: Vec<u32>,
}

impl PlanBuilder {
    pub fn release(&mut self, slot: SlotId) {
        self.columns.released.push(slot.0);
    }

    pub fn row(&mut self, row: Row<'_>) {
        let columns = &mut self.columns;
        let mut flags = RowFlag::None as u8;
        let count = match row.feed {
            Feed::Tokens(tokens) => {
                columns.tokens.extend_from_slice(bytemuck::cast_slice(tokens));
                self.drafts.push(0);
                tokens.len() as u32
            }
            Feed::Continue { drafts, parents, own } => {
                debug_assert!(own == 0 || drafts.is_empty());
                debug_assert!(parents.is_empty() || parents.len() == drafts.len());
                match parents.is_empty() {
                    true => self.draft_parents.extend(0..drafts.len() as u32 + own),
                    false => self.draft_parents.extend_from_slice(parents),
                }
                self.has_trees |= !parents.is_empty();
                flags |= RowFlag::Continue as u8;
                if own > 0 {
                    flags |= RowFlag::OwnDrafts as u8;
                }
                columns.tokens.extend_from_slice(bytemuck::cast_slice(drafts));
                self.drafts.push(drafts.len() as u32 + own);
                1 + drafts.len() as u32 + own
            }
        };
        if row.sample {
            flags |= RowFlag::Sample as u8;
        }
        if row.masked {
            flags |= RowFlag::Masked as u8;
        }
        if let Some(targets) = row.prompt_targets {
            flags |= RowFlag::PromptLogprobs as u8;
            columns.prompt_targets.extend_from_slice(bytemuck::cast_slice(targets.following));
            let unknown = count as usize - targets.following.len();
            columns.prompt_targets.extend(std::iter::repeat_n(NO_TARGET, unknown));
        }
        if let Some(start) = row.start {
            flags |= RowFlag::Start as u8;
            push_start(&mut self.starts, &start);
        }
        if let Some(trace) = row.trace {
            self.traces.extend_from_slice(&trace.trace);
            self.traces.extend_from_slice(&trace.span);
        }
        columns.slots.push(row.slot.0);
        columns.flags.push(flags);
        columns.positions.push(row.position);
        columns.counts.push(count);
        columns.new_block_counts.push(row.new_blocks);
        columns.new_pages.extend_from_slice(row.new_pages);
    }

    /// When the latest row has fed so many tokens, more than at its last save, its slot's recurrent state is copied.
    pub fn save(&mut self, tokens: u32, snapshot: u32) {
        let row = self.columns.slots.len() as u32 - 1;
        self.saves.extend([row, tokens, snapshot]);
    }

    /// Before any row writes, pages are copied to those of a block of the row that is next, which starts.
    pub fn copy(&mut self, sources: &[u32], targets: &[u32]) {
        let pairs = sources.iter().zip(targets).filter(|(source, target)| source != target);
        self.copies.extend(pairs.flat_map(|(&source, &target)| [source, target]));
    }

    /// The number of the plan that is being built.
    pub fn number(&self) -> u64 {
        self.number + 1
    }

    /// The plan of all rows since the last one, numbered and with its digest.
    pub fn finish(&mut self) -> StepPlan {
        self.number += 1;
        if self.drafts.iter().all(|&drafts| drafts == 0) {
            self.drafts.clear();
        }
        if !std::mem::take(&mut self.has_trees) {
            self.draft_parents.clear();
        }
        self.digest.update(&self.number.to_le_bytes());
        let digest = &mut self.digest;
        let columns = &mut self.columns;
        // In the order of the fields' numbers, which is the digest's.
        let mut plan = StepPlan {
            number: self.number,
            digest: 0,
            released: column(digest, &mut columns.released),
            slots: column(digest, &mut columns.slots),
            flags: column(digest, &mut columns.flags),
            positions: column(digest, &mut columns.positions),
            counts: column(digest, &mut columns.counts),
            tokens: column(digest, &mut columns.tokens),
            new_block_counts: column(digest, &mut columns.new_block_counts),
            new_pages: column(digest, &mut columns.new_pages),
            prompt_targets: column(digest, &mut columns.prompt_targets),
            starts: self.starts.finish(|column| digest.update(column)),
            traces: column(digest, &mut self.traces),
            drafts: column(digest, &mut self.drafts),
            saves: column(digest, &mut self.saves),
            draft_parents: column(digest, &mut self.draft_parents),
            copies: column(digest, &mut self.copies),
        };
        plan.digest = digest.clone().finalize();
        plan
    }
}

/// Adds an entry to each column.
fn push_start(columns: &mut StartColumns, start: &Start<'_>) {
    let Start { sampling, top_tokens, tokens, prompt_len, encoder, state_source, adapter, ends } = *start;
    columns.seeds.push(sampling.seed);
    columns.temperatures.push(sampling.temperature);
    columns.top_ks.push(sampling.top_k);
    columns.top_ps.push(sampling.top_p);
    columns.typical_ps.push(sampling.typical_p);
    columns.min_ps.push(sampling.min_p);
    columns.repetition_penalties.push(sampling.repetition_penalty);
    columns.frequency_penalties.push(sampling.frequency_penalty);
    columns.presence_penalties.push(sampling.presence_penalty);
    columns.top_tokens.push(top_tokens);
    let penalised = sampling.repetition_penalty != 1.0
        || sampling.frequency_penalty != 0.0
        || sampling.presence_penalty != 0.0;
    if penalised {
        // What an encoder read is not repeated by a decoder that says it.
        let history = &tokens[encoder.positions as usize..];
        columns.history_counts.push(history.len() as u32);
        columns.history_outputs.push(tokens.len() as u32 - prompt_len);
        columns.history.extend_from_slice(bytemuck::cast_slice(history));
    } else {
        columns.history_counts.push(0);
        columns.history_outputs.push(0);
    }
    columns.bias_counts.push(sampling.logit_bias.len() as u32);
    for &(token, bias) in &sampling.logit_bias {
        columns.bias_tokens.push(token.0);
        columns.biases.push(bias);
    }
    // An absolute position: whoever starts the sequence again in its middle need not count.
    let first_end = if sampling.min_new_tokens > 0 { prompt_len + sampling.min_new_tokens } else { 0 };
    let held_back = ends.map(|some| if first_end > tokens.len() as u32 { some } else { &[] });
    let count = held_back.iter().map(|some| some.len() as u32).sum();
    columns.first_ends.push(if count > 0 { first_end } else { 0 });
    columns.end_counts.push(count);
    columns.end_tokens.extend(held_back.into_iter().flatten().map(|token| token.0));
    columns.watermark_deltas.push(sampling.watermark.map_or(0.0, |watermark| watermark.delta));
    columns.watermark_greens.push(sampling.watermark.map_or(0, |watermark| watermark.greens));
    if encoder.tokens > 0 {
        columns.encoder_counts.push(encoder.tokens);
    }
    columns.state_sources.extend(state_source);
    columns.adapters.extend(adapter);
}

/// Digests, copies and empties a column.
fn column<T: bytemuck::NoUninit>(digest: &mut crc32fast::Hasher, values: &mut Vec<T>) -> Bytes {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    digest.update(bytes);
    let column = Bytes::copy_from_slice(bytes);
    values.clear();
    column
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Watermark;

    fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    fn u32s(bytes: &Bytes) -> Vec<u32> {
        bytemuck::allocation::pod_collect_to_vec(bytes)
    }

    #[test]
    fn rows_become_the_columns_of_the_contract() {
        let mut builder = PlanBuilder::default();
        let sampling = Sampling {
            repetition_penalty: 1.2,
            seed: 7,
            logit_bias: vec![(TokenId(3), -1.5)],
            min_new_tokens: 4,
            watermark: Some(Watermark { greens: 50, delta: 2.0 }),
            ..Default::default()
        };
        let (eos, stop) = (tokens(&[2]), tokens(&[8, 9]));
        let all = tokens(&[10, 11, 12]);
        builder.release(SlotId(9));
        builder.row(Row {
            slot: SlotId(2),
            position: 0,
            feed: Feed::Tokens(&all),
            new_blocks: 2,
            new_pages: &[4, 5],
            sample: true,
            masked: false,
            prompt_targets: Some(PromptTargets { following: &all[1..] }),
            start: Some(Start {
                sampling: &sampling,
                top_tokens: 2,
                tokens: &all,
                prompt_len: 2,
                encoder: Encoder::default(),
                state_source: None,
                adapter: None,
                ends: [&eos, &stop],
            }),
            trace: Some(SpanRef { trace: [7; 16], span: [9; 8] }),
        });
        builder.row(Row {
            slot: SlotId(1),
            position: 33,
            feed: Feed::Continue { drafts: &[], parents: &[], own: 0 },
            new_blocks: 0,
            new_pages: &[],
            sample: true,
            masked: false,
            prompt_targets: None,
            start: None,
            trace: None,
        });
        let plan = builder.finish();
        assert_eq!(plan.number, 1);
        assert_eq!(u32s(&plan.released), [9]);
        assert_eq!(u32s(&plan.slots), [2, 1]);
        assert_eq!(plan.flags.as_ref(), [1 + 4 + 8, 2 + 4]);
        assert_eq!(u32s(&plan.positions), [0, 33]);
        assert_eq!(u32s(&plan.counts), [3, 1]);
        assert_eq!(u32s(&plan.tokens), [10, 11, 12]);
        assert_eq!(u32s(&plan.new_block_counts), [2, 0]);
        assert_eq!(u32s(&plan.new_pages), [4, 5]);
        assert_eq!(u32s(&plan.prompt_targets), [11, 12, u32::MAX]);
        assert_eq!(plan.traces.as_ref(), [[7; 16].as_slice(), &[9; 8]].concat());
        let starts = plan.starts.expect("there is a START row");
        assert_eq!(starts.seeds.as_ref(), 7u64.to_le_bytes());
        assert_eq!(u32s(&starts.history), [10, 11, 12]);
        assert_eq!(u32s(&starts.history_outputs), [1]);
        assert_eq!(u32s(&starts.bias_tokens), [3]);
        assert_eq!(starts.biases.as_ref(), (-1.5f32).to_le_bytes());
        assert_eq!(u32s(&starts.first_ends), [6]);
        assert_eq!((u32s(&starts.end_counts), u32s(&starts.end_tokens)), (vec![3], vec![2, 8, 9]));
        assert_eq!(starts.watermark_deltas.as_ref(), 2f32.to_le_bytes());
        assert_eq!(u32s(&starts.watermark_greens), [50]);
        assert!(starts.encoder_counts.is_empty());
    }

    #[test]
    fn a_history_has_nothing_of_what_an_encoder_read() {
        let mut builder = PlanBuilder::default();
        let sampling = Sampling { repetition_penalty: 1.2, min_new_tokens: 2, ..Default::default() };
        // Three tokens for the encoder, padded to a block of four; the decoder's start; one of output.
        let all = tokens(&[10, 11, 12, 0, 1, 30]);
        builder.row(Row {
            slot: SlotId(0),
            position: 0,
            feed: Feed::Tokens(&all),
            new_blocks: 0,
            new_pages: &[],
            sample: true,
            masked: false,
            prompt_targets: None,
            start: Some(Start {
                sampling: &sampling,
                top_tokens: 0,
                tokens: &all,
                prompt_len: 5,
                encoder: Encoder::new(3, 4),
                state_source: None,
                adapter: None,
                ends: [&tokens(&[2]), &[]],
            }),
            trace: None,
        });
        let starts = builder.finish().starts.expect("there is a START row");
        assert_eq!(u32s(&starts.encoder_counts), [3]);
        assert_eq!((u32s(&starts.history), u32s(&starts.history_outputs)), (vec![1, 30], vec![1]));
        assert_eq!(u32s(&starts.first_ends), [7]);
    }

    #[test]
    fn what_ends_a_sequence_is_named_only_while_it_is_held_back() {
        let eos = tokens(&[2]);
        for (min_new_tokens, known, first_end) in [(0, 3, 0), (1, 3, 4), (4, 6, 7), (4, 7, 0)] {
            let mut builder = PlanBuilder::default();
            let sampling = Sampling { min_new_tokens, ..Default::default() };
            let all = tokens(&(0..known).collect::<Vec<_>>());
            builder.row(Row {
                slot: SlotId(0),
                position: 0,
                feed: Feed::Tokens(&all),
                new_blocks: 0,
                new_pages: &[],
                sample: true,
                masked: false,
                prompt_targets: None,
                start: Some(Start {
                    sampling: &sampling,
                    top_tokens: 0,
                    tokens: &all,
                    prompt_len: 3,
                    encoder: Encoder::default(),
                    state_source: None,
                    adapter: None,
                    ends: [&eos, &[]],
                }),
                trace: None,
            });
            let starts = builder.finish().starts.expect("there is a START row");
            let case = format!("{min_new_tokens} of {known}");
            assert_eq!(u32s(&starts.first_ends), [first_end], "{case}");
            assert_eq!(u32s(&starts.end_counts), [u32::from(first_end > 0)], "{case}");
        }
    }

    #[test]
    fn saves_name_their_row_and_starts_the_snapshot_that_they_begin_with() {
        let mut builder = PlanBuilder::default();
        let all = tokens(&[10, 11, 12, 13]);
        for (slot, state_source) in [(0, None), (1, Some(7)), (2, Some(u32::MAX))] {
            builder.row(Row {
                slot: SlotId(slot),
                position: 4,
                feed: Feed::Tokens(&all),
                new_blocks: 0,
                new_pages: &[],
                sample: false,
                masked: false,
                prompt_targets: None,
                start: state_source.is_some().then_some(Start {
                    sampling: &Sampling::default(),
                    top_tokens: 0,
                    tokens: &all,
                    prompt_len: 4,
                    encoder: Encoder::default(),
                    state_source,
                    adapter: None,
                    ends: [&[], &[]],
                }),
                trace: None,
            });
            if slot != 1 {
                builder.save(2, slot);
                builder.save(4, 10 + slot);
            }
        }
        let plan = builder.finish();
        assert_eq!(u32s(&plan.starts.expect("there are START rows").state_sources), [7, u32::MAX]);
        assert_eq!(u32s(&plan.saves), [0, 2, 0, 0, 4, 10, 2, 2, 2, 2, 4, 12]);
        builder.release(SlotId(0));
        assert!(builder.finish().saves.is_empty());
    }

    #[test]
    fn every_start_row_names_its_adapter_where_the_model_has_some() {
        let all = tokens(&[10]);
        let adapters_of = |adapters: &[Option<u32>]| {
            let mut builder = PlanBuilder::default();
            for (slot, &adapter) in (0..).zip(adapters) {
                builder.row(Row {
                    slot: SlotId(slot),
                    position: 0,
                    feed: Feed::Tokens(&all),
                    new_blocks: 0,
                    new_pages: &[],
                    sample: true,
                    masked: false,
                    prompt_targets: None,
                    start: Some(Start {
                        sampling: &Sampling::default(),
                        top_tokens: 0,
                        tokens: &all,
                        prompt_len: 1,
                        encoder: Encoder::default(),
                        state_source: None,
                        adapter,
                        ends: [&[], &[]],
                    }),
                    trace: None,
                });
            }
            u32s(&builder.finish().starts.expect("there are START rows").adapters)
        };
        assert_eq!(adapters_of(&[Some(2), Some(0), Some(1)]), [2, 0, 1]);
        assert!(adapters_of(&[None, None]).is_empty());
    }

    #[test]
    fn a_verify_row_feeds_its_drafts_behind_what_its_slot_sampled() {
        let mut builder = PlanBuilder::default();
        let drafts = tokens(&[7, 8]);
        for (slot, drafts) in [(0, &drafts[..]), (1, &[])] {
            builder.row(Row {
                slot: SlotId(slot),
                position: 33,
                feed: Feed::Continue { drafts, parents: &[], own: 0 },
                new_blocks: 0,
                new_pages: &[],
                sample: true,
                masked: false,
                prompt_targets: None,
                start: None,
                trace: None,
            });
        }
        let plan = builder.finish();
        assert_eq!((u32s(&plan.counts), u32s(&plan.tokens)), (vec![3, 1], vec![7, 8]));
        assert_eq!(u32s(&plan.drafts), [2, 0]);
    }

    #[test]
    fn the_digest_runs_over_all_plans_and_is_that_of_the_contract() {
        let mut builder = PlanBuilder::default();
        let mut expected = crc32fast::Hasher::new();
        for number in 1u64..=3 {
            builder.row(Row {
                slot: SlotId(0),
                position: 5,
                feed: Feed::Continue { drafts: &[], parents: &[], own: 0 },
                new_blocks: 0,
                new_pages: &[],
                sample: true,
                masked: false,
                prompt_targets: None,
                start: None,
                trace: Some(SpanRef { trace: [number as u8; 16], span: [1; 8] }),
            });
            builder.save(1, number as u32);
            let plan = builder.finish();
            expected.update(&number.to_le_bytes());
            for column in [&plan.released, &plan.slots, &plan.flags, &plan.positions, &plan.counts] {
                expected.update(column);
            }
            for column in [&plan.tokens, &plan.new_block_counts, &plan.new_pages, &plan.prompt_targets] {
                expected.update(column);
            }
            expected.update(&plan.traces);
            expected.update(&plan.saves);
            assert!(plan.drafts.is_empty(), "no row has any");
            assert_eq!(plan.digest, expected.clone().finalize());
        }
    }
}
