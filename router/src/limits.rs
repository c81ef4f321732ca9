//! The limits of this server, derived from flags and the loaded model. Knows no HTTP; `http::request_fields` says
//! which field of a request has which of them.

use penstock_core::adapter::Adapters;
use penstock_proto::ModelDescription;

use crate::config::RouterArgs;

/// The bounds that this server was started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_input_tokens: u32,
    pub max_total_tokens: u32,
    /// Of an encoder-decoder, what its decoder has positions for.
    pub max_new_tokens: u32,
    pub max_best_of: u32,
    pub max_stop_sequences: u32,
    pub max_top_n_tokens: u32,
    pub max_client_batch_size: u32,
    pub max_concurrent_requests: u32,
    /// Every token id is below it.
    pub vocab_size: u32,
    /// The lowest number that a request's `priority` may be.
    pub highest_priority: i32,
    /// What has no effect is refused.
    pub strict_requests: bool,
    /// The model reads images, of which none is served: `images`.
    pub images_left_out: bool,
    /// What a request's adapter may be.
    pub adapters: Adapters,
}

/// What a priority may be; the lower number goes first.
pub const PRIORITIES: std::ops::RangeInclusive<i32> = -1000..=1000;

/// A flag that contradicts another flag, the model or the machine. One line, for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FlagError(pub String);

/// What can be said of the flags before a model is known; the launcher asks before it downloads one.
pub fn check_flags(args: &RouterArgs) -> Result<(), FlagError> {
    let wrong = |text: String| Err(FlagError(text));
    if let (Some(input), Some(total)) = (args.max_input_tokens, args.max_total_tokens)
        && input >= total
    {
        return wrong(format!(
            "--max-input-tokens {input} must be less than --max-total-tokens {total}: a request needs room for \
             at least one new token"
        ));
    }
    if let (Some(cache), Some(total)) = (args.max_batch_total_tokens, args.max_total_tokens)
        && cache < u64::from(total)
    {
        return wrong(format!(
            "--max-batch-total-tokens {cache} must be at least --max-total-tokens {total}: the KV cache has to \
             hold one whole sequence"
        ));
    }
    if let (Some(cache), Some(input)) = (args.max_batch_total_tokens, args.max_input_tokens)
        && cache <= u64::from(input)
    {
        return wrong(format!(
            "--max-batch-total-tokens {cache} must be more than --max-input-tokens {input}: the KV cache has to \
             hold one whole sequence"
        ));
    }
    Ok(())
}

/// Input and output together of a model that has no longest input of its own, unless `--max-total-tokens` asks
/// for more: what its encoder reads in one step takes memory.
const UNBOUNDED_TOTAL: u32 = 4096;

/// For the longest sequence that the workers are asked to prepare, with what a model has beside input and output. 0: nobody
/// has said more than that it is the model's own, and where memory has room for less, less is served.
pub fn asked_sequence_tokens(args: &RouterArgs, model: &ModelDescription) -> Result<u32, FlagError> {
    let longest = max_sequence_tokens(args, model)?;
    if args.max_total_tokens.is_none() && longest == model.max_positions {
        return Ok(0);
    }
    Ok(longest.saturating_add(model.positions_beside()))
}

/// Of input and output together: what `--max-total-tokens` asks, or the model's own.
fn max_sequence_tokens(args: &RouterArgs, model: &ModelDescription) -> Result<u32, FlagError> {
    match args.max_total_tokens {
        Some(total) if total > model.max_positions && !model.positions_go_on => Err(FlagError(format!(
            "--max-total-tokens {total} is more than the {} positions this model was made for",
            model.max_positions
        ))),
        Some(total) => Ok(total),
        None => match args.max_input_tokens {
            Some(input) if input >= model.max_positions => Err(FlagError(format!(
                "--max-input-tokens {input} must be less than the {} positions this model was made for",
                model.max_positions
            ))),
            _ if model.is_encoder_decoder() && model.max_side_positions == 0 => {
                Ok(model.max_positions.min(UNBOUNDED_TOTAL))
            }
            _ => Ok(model.max_positions),
        },
    }
}

/// The longest input, where input and output together may have `total` tokens.
fn max_input_tokens(args: &RouterArgs, model: &ModelDescription, total: u32) -> Result<u32, FlagError> {
    let side = match model.max_side_positions {
        0 => u32::MAX,
        side => side,
    };
    let input = args.max_input_tokens.unwrap_or((total - 1).min(side));
    if input >= total {
        return Err(FlagError(format!(
            "--max-input-tokens {input} must be less than the {total} tokens that a whole sequence may have here"
        )));
    }
    if input > side {
        return Err(FlagError(format!(
            "--max-input-tokens {input} is more than the {side} positions that this model's encoder has"
        )));
    }
    Ok(input)
}

/// The most tokens of a step: what `--max-batch-prefill-tokens` asks, or `usual`. An encoder reads an input in one
/// step, which it shares with the decodes of all other slots.
pub fn max_step_tokens(
    args: &RouterArgs,
    model: &ModelDescription,
    max_slots: u32,
    usual: u32,
) -> Result<u32, FlagError> {
    let total = max_sequence_tokens(args, model)?;
    let usual = usual.min(total);
    if !model.is_encoder_decoder() || total < 2 {
        return Ok(args.max_batch_prefill_tokens.unwrap_or(usual));
    }
    let input = max_input_tokens(args, model, total)?;
    let least = input.next_multiple_of(model.block_size).saturating_add(max_slots);
    match args.max_batch_prefill_tokens {
        Some(asked) if asked < least => Err(FlagError(format!(
            "--max-batch-prefill-tokens {asked} is less than {least}: the encoder of this model reads an input of up to \
             {input} tokens in one step, beside {max_slots} decodes. Raise it, or lower --max-input-tokens or \
             --max-batch-size"
        ))),
        Some(asked) => Ok(asked),
        None => Ok(usual.max(least)),
    }
}

impl Limits {
    /// `prepared_tokens` are those of the longest sequence that the workers are prepared for, and their KV cache holds.
    pub fn derive(
        args: &RouterArgs,
        model: &ModelDescription,
        prepared_tokens: u32,
    ) -> Result<Limits, FlagError> {
        let longest = max_sequence_tokens(args, model)?;
        let fits = prepared_tokens.saturating_sub(model.positions_beside());
        if let Some(total) = args.max_total_tokens
            && total > fits
        {
            return Err(FlagError(format!(
                "--max-total-tokens {total} is more than the KV cache holds: {fits} tokens fit. Lower it, or \
                 raise --max-batch-total-tokens or --memory-fraction"
            )));
        }
        let max_total_tokens = longest.min(fits);
        if max_total_tokens < 2 {
            return Err(FlagError(format!(
                "the KV cache holds {fits} tokens, too few for a prompt and one new token; raise \
                 --max-batch-total-tokens or --memory-fraction"
            )));
        }
        let start = model.decoder_start_ids.len() as u32;
        let max_new_tokens = match model.max_side_positions {
            0 => u32::MAX,
            side => side.saturating_sub(start).max(1),
        };
        Ok(Limits {
            max_input_tokens: max_input_tokens(args, model, max_total_tokens)?,
            max_total_tokens,
            max_new_tokens,
            max_best_of: args.max_best_of,
            max_stop_sequences: args.max_stop_sequences,
            max_top_n_tokens: args.max_top_n_tokens.min(model.max_top_tokens),
            max_client_batch_size: args.max_client_batch_size,
            max_concurrent_requests: args.max_concurrent_requests,
            vocab_size: model.vocab_size,
            highest_priority: args.highest_priority,
            strict_requests: args.strict_requests,
            images_left_out: false,
            adapters: Adapters::of(model).map_err(FlagError)?,
        })
    }

    /// The most tokens that `/tokenize` and `/chat_tokenize` tell, and `/v1/messages/count_tokens` counts.
    pub fn most_told(&self) -> usize {
        self.max_total_tokens.max(TOLD) as usize
    }
}

/// Tokens that `/tokenize` and `/chat_tokenize` tell, unless a request may have more: while a text is tokenized
/// each takes some 150 bytes, beside those that its text takes (`penstock_core::prompt`).
const TOLD: u32 = 1 << 18;

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    fn args(line: &[&str]) -> RouterArgs {
        let command = RouterArgs::augment_args(clap::Command::new("penstock"));
        let matches = command.get_matches_from([&["penstock"], line].concat());
        RouterArgs::from_arg_matches(&matches).expect("the flags of this test parse")
    }

    fn model(max_positions: u32) -> ModelDescription {
        ModelDescription { max_positions, vocab_size: 1000, max_top_tokens: 50, ..Default::default() }
    }

    #[test]
    fn the_defaults_follow_the_model_and_the_cache() {
        let derive = |cache| Limits::derive(&args(&[]), &model(4096), cache).expect("no contradiction");
        let limits = derive(100_000);
        assert_eq!((limits.max_input_tokens, limits.max_total_tokens), (4095, 4096));
        let limits = derive(512);
        assert_eq!((limits.max_input_tokens, limits.max_total_tokens), (511, 512));
        assert_eq!(limits.max_top_n_tokens, 20);
    }

    #[test]
    fn positions_that_go_on_are_a_default_and_no_limit() {
        let derive = |line: &[&str], positions_go_on| {
            let model = ModelDescription { positions_go_on, ..model(512) };
            Limits::derive(&args(line), &model, 100_000).map(|limits| limits.max_total_tokens)
        };
        assert_eq!(derive(&[], true).expect("no contradiction"), 512);
        assert_eq!(derive(&["--max-total-tokens", "600"], true).expect("no contradiction"), 600);
        let refused = derive(&["--max-total-tokens", "600"], false).expect_err("a limit");
        assert_eq!(
            refused.0,
            "--max-total-tokens 600 is more than the 512 positions this model was made for"
        );
    }

    #[test]
    fn a_contradiction_names_the_flag() {
        let wrong = |line: &[&str], cache| {
            let args = args(line);
            let error =
                check_flags(&args).and_then(|()| Limits::derive(&args, &model(4096), cache).map(|_| ()));
            error.expect_err("a contradiction").0
        };
        for (line, cache, starts) in [
            (
                ["--max-input-tokens", "10", "--max-total-tokens", "10"].as_slice(),
                9999,
                "--max-input-tokens 10",
            ),
            (
                &["--max-batch-total-tokens", "99", "--max-total-tokens", "100"],
                9999,
                "--max-batch-total-tokens 99",
            ),
            (
                &["--max-batch-total-tokens", "99", "--max-input-tokens", "99"],
                9999,
                "--max-batch-total-tokens 99",
            ),
            (
                &["--max-total-tokens", "4097"],
                9999,
                "--max-total-tokens 4097 is more than the 4096 positions",
            ),
            (&["--max-input-tokens", "4096"], 9999, "--max-input-tokens 4096 must be less than the 4096"),
            (
                &["--max-total-tokens", "4000"],
                3000,
                "--max-total-tokens 4000 is more than the KV cache holds",
            ),
            (&["--max-input-tokens", "3500"], 3000, "--max-input-tokens 3500 must be less than the 3000"),
        ] {
            let text = wrong(line, cache);
            assert!(text.starts_with(starts), "{text}");
        }
    }

    fn encoder_decoder(max_side_positions: u32) -> ModelDescription {
        let max_positions = if max_side_positions == 0 { 1 << 20 } else { 2 * max_side_positions - 2 };
        ModelDescription {
            max_side_positions,
            decoder_start_ids: vec![2, 0],
            block_size: 16,
            ..model(max_positions)
        }
    }

    #[test]
    fn an_encoder_and_a_decoder_have_a_limit_each() {
        let limits = Limits::derive(&args(&[]), &encoder_decoder(1024), 100_000).expect("no contradiction");
        assert_eq!(
            (limits.max_input_tokens, limits.max_total_tokens, limits.max_new_tokens),
            (1024, 2046, 1022)
        );
        let error = Limits::derive(&args(&["--max-input-tokens", "1025"]), &encoder_decoder(1024), 100_000);
        assert!(error.expect_err("too long").0.contains("1024 positions that this model's encoder has"));
        // Padding and the decoder's start take room in the cache.
        let limits = Limits::derive(&args(&[]), &encoder_decoder(1024), 512).expect("no contradiction");
        assert_eq!((limits.max_input_tokens, limits.max_total_tokens), (494, 495));
        let limits = Limits::derive(&args(&[]), &encoder_decoder(0), 100_000).expect("no contradiction");
        assert_eq!((limits.max_input_tokens, limits.max_total_tokens), (4095, 4096));
        let more = args(&["--max-total-tokens", "9000"]);
        let limits = Limits::derive(&more, &encoder_decoder(0), 100_000).expect("no contradiction");
        assert_eq!((limits.max_input_tokens, limits.max_total_tokens), (8999, 9000));
    }

    #[test]
    fn workers_are_asked_for_a_length_that_somebody_has_asked_for() {
        let asked = |line: &[&str], model| asked_sequence_tokens(&args(line), &model);
        assert_eq!(asked(&[], model(4096)), Ok(0));
        assert_eq!(asked(&["--max-batch-total-tokens", "512"], model(4096)), Ok(0));
        assert_eq!(asked(&["--max-input-tokens", "100"], model(4096)), Ok(0));
        assert_eq!(asked(&["--max-total-tokens", "4096"], model(4096)), Ok(4096));
        assert_eq!(asked(&[], encoder_decoder(1024)), Ok(0));
        let beside = encoder_decoder(1024).positions_beside();
        assert_eq!(asked(&["--max-total-tokens", "600"], encoder_decoder(1024)), Ok(600 + beside));
        // Of its own it has no limit.
        assert_eq!(asked(&[], encoder_decoder(0)), Ok(4096 + beside));
        assert!(asked(&["--max-input-tokens", "4096"], model(4096)).is_err());
    }

    #[test]
    fn a_step_holds_the_longest_input_of_an_encoder_beside_all_decodes() {
        let of = |line: &[&str], model| max_step_tokens(&args(line), &model, 256, 2048);
        assert_eq!(of(&[], encoder_decoder(1024)), Ok(2046));
        assert_eq!(of(&[], encoder_decoder(0)), Ok(4096 + 256));
        assert_eq!(of(&["--max-input-tokens", "100"], encoder_decoder(0)), Ok(2048));
        assert_eq!(of(&["--max-batch-prefill-tokens", "1280"], encoder_decoder(1024)), Ok(1280));
        let error =
            of(&["--max-batch-prefill-tokens", "1279"], encoder_decoder(1024)).expect_err("too few").0;
        assert!(error.starts_with("--max-batch-prefill-tokens 1279 is less than 1280"), "{error}");
        // A decoder's prompts are cut.
        assert_eq!(of(&["--max-batch-prefill-tokens", "1"], model(4096)), Ok(1));
        assert_eq!(of(&[], model(4096)), Ok(2048));
    }
}
