//! What an undisturbed run of a request gives, as a function of its text alone.

use std::collections::VecDeque;

use penstock_proto::ids::TokenId;

use super::columns::Encoder;
use super::sampling::{SamplingKey, alternative, extend, mix, prompt_logprob, read, root};
use super::{MockConfig, MockModel};
use crate::scheduler::{PromptLogprob, SequenceSpec};

/// Of its adapter, as plans have it.
fn number(spec: &SequenceSpec) -> u32 {
    spec.adapter.map_or(0, |adapter| adapter.number.get())
}

impl MockModel {
    /// What an undisturbed run of `spec` samples, with its end.
    pub fn reference(config: &MockConfig, spec: &SequenceSpec) -> Vec<u32> {
        let mut key = SamplingKey::of(&spec.sampling);
        let ends: Vec<u32> =
            config.eos_ids.iter().copied().chain(spec.stop_token_ids.iter().map(|id| id.0)).collect();
        if spec.sampling.min_new_tokens > 0 {
            let from = spec.prompt.len() as u32
                + Encoder::new(spec.encoder.len() as u32, config.block_size).positions;
            key.held_back = (ends, from + spec.sampling.min_new_tokens);
        }
        let encoder = Encoder::new(spec.encoder.len() as u32, config.block_size);
        let adapter = number(spec);
        let mut chain = match encoder.positions {
            0 => root(adapter),
            positions => {
                mix(read(adapter, spec.encoder.iter().map(|token| token.0)), u64::from(positions - 1))
            }
        };
        let prompt = spec.prompt.iter().map(|token| token.0);
        let before = encoder.positions + spec.prompt.len() as u32;
        for (token, position) in prompt.clone().zip(encoder.positions..) {
            chain = extend(chain, token, position);
        }
        if let Some((history, _)) = &mut key.history {
            history.extend(prompt);
        }
        let mut matcher = spec.constraint.as_ref().map(|grammar| grammar.matcher());
        let mut output = Vec::new();
        let mut forced = VecDeque::new();
        while output.len() < spec.max_new_tokens as usize {
            let position = before + output.len() as u32;
            let last = output.last().copied().or(spec.prompt.last().map(|token| token.0)).unwrap_or(0);
            let seen = if config.state_bytes > 0 { mix(chain, chain) } else { chain };
            let sample = |mask: Option<&[u32]>| {
                let sampled = key.sample(config, seen, position, last, 0, mask);
                sampled.expect("a grammar allows a token").token
            };
            if let Some(matcher) = matcher.as_mut().filter(|_| forced.is_empty()) {
                forced = matcher.take_forced(usize::MAX).expect("the grammar goes on").into();
            }
            let only: Option<TokenId> = forced.pop_front();
            let sampled = match (only, &mut matcher) {
                (Some(only), _) => only.0,
                (None, None) => sample(None),
                (None, Some(matcher)) => {
                    let mut words = vec![0; config.vocab_size.div_ceil(32) as usize];
                    matcher.mask(&mut words).expect("the grammar goes on");
                    let may = |token: &u32| words[(token / 32) as usize] >> (token % 32) & 1 == 1;
                    // In a free place without a mask, unless that gives what may not follow.
                    let freely = (key.samples && matcher.is_free()).then(|| sample(None)).filter(may);
                    let sampled = freely.unwrap_or_else(|| {
                        sample(Some(&(0..config.vocab_size).filter(may).collect::<Vec<_>>()))
                    });
                    matcher.advance(TokenId(sampled)).expect("the token was allowed");
                    sampled
                }
            };
            output.push(sampled);
            let goes_on = spec.ignore_eos && spec.constraint.is_none();
            let eos = config.eos_ids.contains(&sampled) && !goes_on;
            if eos || spec.stop_token_ids.iter().any(|stop| stop.0 == sampled) {
                break;
            }
            if forced.is_empty() && matcher.as_ref().is_some_and(|matcher| matcher.is_complete()) {
                break;
            }
            key.remember(sampled);
            chain = extend(chain, sampled, position);
        }
        output
    }

    /// The log probabilities of `spec`'s prompt.
    pub fn reference_prompt(config: &MockConfig, spec: &SequenceSpec) -> Vec<PromptLogprob> {
        let mut chain = root(number(spec));
        let mut logprobs = vec![PromptLogprob::default()];
        for (pair, position) in spec.prompt.windows(2).zip(0..) {
            chain = extend(chain, pair[0].0, position);
            logprobs.push(PromptLogprob {
                logprob: Some(prompt_logprob(chain, pair[1].0)),
                top: (0..spec.top_tokens)
                    .map(|n| alternative(config, chain, n))
                    .map(|(token, logprob)| (TokenId(token), logprob))
                    .collect(),
            });
        }
        logprobs
    }
}
