//! What stands for the model's mathematics: hashes of tokens in the place of keys, values and logits, and a token chosen by
//! them. The same for `model`, which finds the hashes in pages and states, and for `reference`, which has the text.

use super::MockConfig;
use crate::scheduler::Sampling;

pub(super) const ROOT: u64 = 0x9e37_79b9_7f4a_7c15;

/// splitmix64's finalizer (Steele, Lea, Flood 2014), over a running value.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_add(ROOT);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What the first token follows, of a sequence that is computed with an adapter; 0: with none.
pub(super) fn root(adapter: u32) -> u64 {
    if adapter == 0 { ROOT } else { mix(ROOT, 1000 + u64::from(adapter)) }
}

pub(super) fn extend(chain: u64, token: u32, position: u32) -> u64 {
    mix(mix(chain, u64::from(token)), u64::from(position))
}

/// What stands for all that an encoder has read, with an adapter.
pub(super) fn read(adapter: u32, tokens: impl Iterator<Item = u32>) -> u64 {
    tokens.fold(mix(root(adapter), 17), |chain, token| mix(chain, u64::from(token)))
}

/// What a sequence is sampled with, as far as it is not the model's.
#[derive(Clone, Debug)]
pub(super) struct SamplingKey {
    pub seed: u64,
    pub samples: bool,
    pub bias: u64,
    /// All of the sequence, and how much of it is output, when a penalty is on.
    pub history: Option<(Vec<u32>, u32)>,
    /// What is not sampled, and below which position.
    pub held_back: (Vec<u32>, u32),
    pub watermark: u64,
}

/// One row's result.
pub(super) struct Sampled {
    pub token: u32,
    pub logprob: f32,
    pub top: Vec<(u32, f32)>,
}

pub(super) fn watermark((delta, greens): (f32, u32)) -> u64 {
    if delta > 0.0 { mix(u64::from(delta.to_bits()), u64::from(greens)) } else { 0 }
}

/// The `n`-th most likely token where the tokens before are hashed to `chain`.
pub(super) fn alternative(config: &MockConfig, chain: u64, n: u32) -> (u32, f32) {
    ((mix(chain, 100 + u64::from(n)) % u64::from(config.vocab_size)) as u32, -(n as f32))
}

pub(super) fn prompt_logprob(chain: u64, target: u32) -> f32 {
    -((mix(chain, u64::from(target)) % 1000) as f32) / 100.0
}

impl SamplingKey {
    pub fn of(sampling: &Sampling) -> Self {
        let penalised = sampling.repetition_penalty != 1.0
            || sampling.frequency_penalty != 0.0
            || sampling.presence_penalty != 0.0;
        Self {
            seed: sampling.seed,
            samples: sampling.temperature > 0.0,
            bias: sampling
                .logit_bias
                .iter()
                .fold(0, |bias, &(token, value)| mix(bias, u64::from(token.0) ^ u64::from(value.to_bits()))),
            history: penalised.then(|| (Vec::new(), 0)),
            held_back: (Vec::new(), 0),
            watermark: watermark(sampling.watermark.map_or((0.0, 0), |mark| (mark.delta, mark.greens))),
        }
    }

    /// `last`: the token before. `mask`: the tokens that are allowed. `None`: there is none.
    pub fn sample(
        &self,
        config: &MockConfig,
        chain: u64,
        position: u32,
        last: u32,
        top: u32,
        mask: Option<&[u32]>,
    ) -> Option<Sampled> {
        let mut h = mix(mix(chain, self.bias), self.watermark);
        if self.samples {
            h = mix(h, mix(self.seed, u64::from(position)));
            // As with probabilities: a mask that forbids anything moves a draw.
            if let Some(allowed) = mask.filter(|allowed| allowed.len() < config.vocab_size as usize) {
                h = allowed
                    .first()
                    .into_iter()
                    .fold(mix(h, allowed.len() as u64), |h, &first| mix(h, u64::from(first)));
            }
        }
        if let Some((history, outputs)) = &self.history {
            h = history.iter().fold(mix(h, u64::from(*outputs)), |h, &token| mix(h, u64::from(token)));
        }
        let (held_back, first_end) = &self.held_back;
        let may = |token: u32| position >= *first_end || !held_back.contains(&token);
        let ends = config.eos_one_in > 0 && mix(h, 1).is_multiple_of(config.eos_one_in);
        let follower = mix(h, 6) % config.followers.max(1);
        let next = (mix(u64::from(last), 5 + follower) % u64::from(config.vocab_size)) as u32;
        let follows = config.surprise_one_in > 0 && !mix(h, 4).is_multiple_of(config.surprise_one_in);
        let dictated = self.history.as_ref().and_then(|(_, outputs)| config.dictation.token(*outputs));
        let free = || match ends && may(config.eos_ids[0]) {
            true => config.eos_ids[0],
            false if follows && may(next) && !config.eos_ids.contains(&next) => next,
            false => (0..)
                .map(|n| (mix(h, 2 + n) % u64::from(config.vocab_size)) as u32)
                .find(|token| !config.eos_ids.contains(token) && may(*token))
                .expect("not every token ends a sequence"),
        };
        let free = || dictated.unwrap_or_else(free);
        // As with logits: a mask takes nothing but what it forbids.
        let token = match mask {
            None => free(),
            Some(allowed) if allowed.contains(&free()) => free(),
            Some(allowed) => {
                let which = if follows { mix(u64::from(last), 5 + follower) } else { mix(h, 2) };
                *allowed.get(which.checked_rem(allowed.len() as u64)? as usize)?
            }
        };
        let top = (0..top).map(|n| alternative(config, h, n)).collect();
        Some(Sampled { token, logprob: -((h % 1000) as f32) / 100.0, top })
    }

    pub fn remember(&mut self, token: u32) {
        if let Some((history, outputs)) = &mut self.history {
            history.push(token);
            *outputs += 1;
        }
    }
}
