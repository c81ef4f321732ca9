//! Plans and results as arrays: reads a plan's columns, checks that they fit one another, and writes those of the result.
//! Knows no pages and no states.

use bytes::Bytes;
use penstock_proto::starts::StartColumns;
use penstock_proto::{StepPlan, StepResult};

use super::MockConfig;
use super::sampling::{SamplingKey, mix, watermark};

/// A plan's columns as arrays.
pub(super) struct Rows {
    pub slots: Vec<u32>,
    pub flags: Vec<u8>,
    pub positions: Vec<u32>,
    pub counts: Vec<u32>,
    pub tokens: Vec<u32>,
    pub new_block_counts: Vec<u32>,
    pub new_pages: Vec<u32>,
    pub prompt_targets: Vec<u32>,
    pub drafts: Vec<u32>,
    /// Of each row's drafts the number of the one before, from 1 on; 0: the token before them.
    pub parents: Vec<Vec<u32>>,
    pub saves: Vec<u32>,
    /// (source, target) of each.
    pub copies: Vec<u32>,
    pub starts: StartColumns,
}

impl Rows {
    pub fn read(plan: &StepPlan) -> Result<Self, String> {
        let mut rows = Self {
            slots: u32s(&plan.slots),
            flags: plan.flags.to_vec(),
            positions: u32s(&plan.positions),
            counts: u32s(&plan.counts),
            tokens: u32s(&plan.tokens),
            new_block_counts: u32s(&plan.new_block_counts),
            new_pages: u32s(&plan.new_pages),
            prompt_targets: u32s(&plan.prompt_targets),
            drafts: u32s(&plan.drafts),
            parents: Vec::new(),
            saves: u32s(&plan.saves),
            copies: u32s(&plan.copies),
            starts: plan.starts.as_ref().map_or(Ok(StartColumns::default()), StartColumns::read)?,
        };
        let n = rows.slots.len();
        require!(n > 0, "a plan without rows");
        let lengths =
            [rows.flags.len(), rows.positions.len(), rows.counts.len(), rows.new_block_counts.len()];
        require!(lengths == [n; 4], "columns of {n} rows have lengths {lengths:?}");
        let drafts = rows.drafts.len();
        require!(drafts == 0 || drafts == n, "{drafts} entries in drafts of {n} rows");
        rows.drafts.resize(n, 0);
        rows.parents = parents(&rows.drafts, &u32s(&plan.draft_parents))?;
        let starts = &rows.starts;
        let named =
            starts.first_ends.iter().zip(&starts.end_counts).all(|(first, n)| (*first == 0) == (*n == 0));
        require!(named, "tokens are held back from no position, or none below one");
        Ok(rows)
    }

    /// Each START row names one of so many adapters, or none of them.
    pub fn check_adapters(&self, count: usize) -> Result<(), String> {
        let StartColumns { adapters, seeds, .. } = &self.starts;
        require!(count > 0 || adapters.is_empty(), "starts.adapters names some to a model without adapters");
        require!(
            count == 0 || adapters.len() == seeds.len(),
            "starts.adapters is absent, of a model with {count} adapters"
        );
        let beyond = adapters.iter().find(|adapter| **adapter as usize > count);
        match beyond {
            Some(beyond) => Err(format!("starts.adapters names adapter {beyond} of {count}")),
            None => Ok(()),
        }
    }
}

/// Of rows with so many drafts each.
fn parents(drafts: &[u32], column: &[u32]) -> Result<Vec<Vec<u32>>, String> {
    if column.is_empty() {
        return Ok(drafts.iter().map(|&drafts| (0..drafts).collect()).collect());
    }
    let (has, needs) = (column.len(), drafts.iter().map(|&drafts| drafts as usize).sum::<usize>());
    require!(has == needs, "{has} entries in draft_parents of {needs} drafts");
    let mut rest = column;
    let mut of_row = |(row, &drafts): (usize, &u32)| {
        let (own, others) = rest.split_at(drafts as usize);
        rest = others;
        match (0..).zip(own).find(|(before, parent)| *parent > before) {
            Some((before, parent)) => Err(format!("row {row}: draft {} follows draft {parent}", before + 1)),
            None => Ok(own.to_vec()),
        }
    };
    drafts.iter().enumerate().map(&mut of_row).collect()
}

/// What a START row says.
pub(super) struct Start {
    /// Its place among the START rows of its plan.
    pub at: usize,
    pub encoder: Encoder,
    /// Counted from 1; 0: none.
    pub adapter: u32,
    pub key: SamplingKey,
    pub top_tokens: u32,
}

/// How much of the ragged columns was read.
#[derive(Default)]
pub(super) struct Cursor {
    tokens_read: usize,
    pages_read: usize,
    starts_read: usize,
    history_read: usize,
    biases_read: usize,
    ends_read: usize,
    pub targets_read: usize,
}

impl Cursor {
    pub fn tokens<'a>(&mut self, rows: &'a Rows, count: u32) -> Result<&'a [u32], String> {
        let from = self.tokens_read;
        self.tokens_read += count as usize;
        rows.tokens.get(from..self.tokens_read).ok_or("the tokens are too few".into())
    }

    pub fn new_pages(&mut self, rows: &Rows, at: usize, tables: u32) -> Result<Vec<u32>, String> {
        let from = self.pages_read;
        self.pages_read += (rows.new_block_counts[at] * tables) as usize;
        rows.new_pages.get(from..self.pages_read).map(<[u32]>::to_vec).ok_or("the pages are too few".into())
    }

    pub fn start(&mut self, rows: &Rows, config: &MockConfig) -> Result<Start, String> {
        let (m, starts) = (self.starts_read, &rows.starts);
        self.starts_read += 1;
        require!(m < starts.seeds.len(), "{m} starts are too few");
        let (from, biases, ends) = (self.history_read, self.biases_read, self.ends_read);
        self.ends_read += starts.end_counts[m] as usize;
        let held_back = starts.end_tokens.get(ends..self.ends_read).ok_or("the end tokens are too few")?;
        if let Some(beyond) = held_back.iter().find(|token| **token >= config.vocab_size) {
            return Err(format!("end token {beyond} is beyond the vocabulary"));
        }
        self.history_read += starts.history_counts[m] as usize;
        self.biases_read += starts.bias_counts[m] as usize;
        let history = starts.history.get(from..self.history_read).ok_or("the history is too short")?;
        let penalties =
            [starts.repetition_penalties[m], starts.frequency_penalties[m], starts.presence_penalties[m]];
        let penalised = penalties != [1.0, 0.0, 0.0];
        require!(penalised != history.is_empty(), "a history is sent exactly with a penalty");
        let bias_tokens = starts.bias_tokens.get(biases..self.biases_read).ok_or("the biases are too few")?;
        let bias = bias_tokens.iter().zip(&starts.biases[biases..]);
        let encoder = starts.encoder_counts.get(m).copied().unwrap_or(0);
        let reads = !config.decoder_start_ids.is_empty();
        require!((encoder > 0) == reads, "a sequence with {encoder} encoder tokens");
        Ok(Start {
            at: m,
            adapter: starts.adapters.get(m).copied().unwrap_or(0),
            encoder: Encoder::new(encoder, config.block_size),
            key: SamplingKey {
                seed: starts.seeds[m],
                samples: starts.temperatures[m] > 0.0,
                bias: bias.fold(0, |bias, (&token, value)| {
                    mix(bias, u64::from(token) ^ u64::from(value.to_bits()))
                }),
                history: penalised.then(|| (history.to_vec(), starts.history_outputs[m])),
                held_back: (held_back.to_vec(), starts.first_ends[m]),
                watermark: watermark((starts.watermark_deltas[m], starts.watermark_greens[m])),
            },
            top_tokens: starts.top_tokens[m],
        })
    }

    pub fn check_all_read(&self, rows: &Rows) -> Result<(), String> {
        let read = [
            self.tokens_read,
            self.pages_read,
            self.starts_read,
            self.history_read,
            self.biases_read,
            self.ends_read,
        ];
        let starts = &rows.starts;
        let there = [
            rows.tokens.len(),
            rows.new_pages.len(),
            starts.seeds.len(),
            starts.history.len(),
            starts.biases.len(),
            starts.end_tokens.len(),
        ];
        require!(read == there, "ragged columns have lengths {there:?}, the rows take {read:?}");
        Ok(())
    }
}

/// A result, as rows fill it.
#[derive(Default)]
pub(super) struct ResultColumns {
    /// What rows sample, in their order, where that is known already.
    pub recorded: Option<std::vec::IntoIter<u32>>,
    pub accepted: Vec<u32>,
    pub sampled: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub top_tokens: Vec<u32>,
    pub top_logprobs: Vec<f32>,
    pub prompt_logprobs: Vec<f32>,
    pub prompt_top_tokens: Vec<u32>,
    pub prompt_top_logprobs: Vec<f32>,
}

impl ResultColumns {
    pub fn write(&self, result: &mut StepResult) {
        result.accepted = Bytes::copy_from_slice(bytemuck::cast_slice(&self.accepted));
        result.sampled = Bytes::copy_from_slice(bytemuck::cast_slice(&self.sampled));
        result.logprobs = Bytes::copy_from_slice(bytemuck::cast_slice(&self.logprobs));
        result.top_tokens = Bytes::copy_from_slice(bytemuck::cast_slice(&self.top_tokens));
        result.top_logprobs = Bytes::copy_from_slice(bytemuck::cast_slice(&self.top_logprobs));
        result.prompt_logprobs = Bytes::copy_from_slice(bytemuck::cast_slice(&self.prompt_logprobs));
        result.prompt_top_tokens = Bytes::copy_from_slice(bytemuck::cast_slice(&self.prompt_top_tokens));
        result.prompt_top_logprobs = Bytes::copy_from_slice(bytemuck::cast_slice(&self.prompt_top_logprobs));
    }
}

/// The part of a sequence that an encoder reads: its tokens, and the positions that they fill with padding.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Encoder {
    pub tokens: u32,
    pub positions: u32,
}

impl Encoder {
    pub fn new(tokens: u32, block_size: u32) -> Self {
        Self { tokens, positions: tokens.next_multiple_of(block_size) }
    }
}

pub(super) fn u32s(column: &[u8]) -> Vec<u32> {
    bytemuck::allocation::pod_collect_to_vec(column)
}
