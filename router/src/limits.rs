//! What every field of a request may hold: one table, which validation, the OpenAPI document and the
//! docs read; and the limits of this server, derived from flags and the loaded model. Knows no HTTP.

use crate::config::RouterArgs;
use crate::worker::proto::ModelDescription;

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
    /// Every token id is below it.
    pub vocab_size: u32,
    /// What has no effect is refused.
    pub strict_requests: bool,
}

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

/// The longest sequence to prepare the workers for: what `--max-total-tokens` asks, or the model's own.
pub fn max_sequence_tokens(args: &RouterArgs, model: &ModelDescription) -> Result<u32, FlagError> {
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
    /// `cache_tokens` is the longest sequence that the prepared KV cache of the workers holds.
    pub fn derive(
        args: &RouterArgs,
        model: &ModelDescription,
        cache_tokens: u32,
    ) -> Result<Limits, FlagError> {
        let longest = max_sequence_tokens(args, model)?;
        let fits = cache_tokens.saturating_sub(model.positions_beside());
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
            vocab_size: model.vocab_size,
            strict_requests: args.strict_requests,
        })
    }

    fn value(&self, most: Most) -> (u64, Option<&'static str>) {
        match most {
            Most::Is(value) => (value, None),
            Most::BestOf => (self.max_best_of.into(), Some("--max-best-of")),
            Most::StopSequences => (self.max_stop_sequences.into(), Some("--max-stop-sequences")),
            Most::TopTokens => (self.max_top_n_tokens.into(), Some("--max-top-n-tokens")),
            Most::InputTokens => (self.max_input_tokens.into(), Some("--max-input-tokens")),
            Most::Prompts => (self.max_client_batch_size.into(), Some("--max-client-batch-size")),
        }
    }

    /// The largest value or count that a field may have.
    pub fn most(&self, most: Most) -> u64 {
        self.value(most).0
    }

    /// A limit as a message says it: the number, and the flag that sets it.
    pub fn describe(&self, most: Most) -> String {
        match self.value(most) {
            (value, None) => value.to_string(),
            (value, Some(flag)) => format!("{value} ({flag})"),
        }
    }
}

/// One field of a request.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    /// What it is when absent or null, as the docs say it.
    pub default: &'static str,
    pub about: &'static str,
}

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Boolean,
    /// A whole number, `least..=most`.
    Integer {
        least: i64,
        most: Most,
    },
    Number {
        low: Low,
        high: f64,
    },
    Text,
    /// A string, or a list of at most so many, none of them empty.
    Texts {
        most: Most,
    },
    Object,
    List,
    /// Read by the route itself, which says in `about` what it takes.
    Any,
}

/// An upper bound, fixed or a limit of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
    Is(u64),
    BestOf,
    StopSequences,
    TopTokens,
    InputTokens,
    Prompts,
}

/// A lower bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Low {
    AtLeast(f64),
    Above(f64),
}

impl Kind {
    /// What a field of this kind must be, to follow "`name` must be ".
    pub fn expects(&self, limits: &Limits) -> String {
        match *self {
            Kind::Boolean => "true or false".into(),
            Kind::Integer { least, most: Most::Is(most) } if most >= i64::MAX as u64 => {
                format!("a whole number >= {least}")
            }
            Kind::Integer { least, most } => {
                format!("a whole number >= {least} and <= {}", limits.describe(most))
            }
            Kind::Number { low, high } => {
                let low = match low {
                    Low::AtLeast(low) => format!(">= {low}"),
                    Low::Above(low) => format!("> {low}"),
                };
                if high.is_finite() {
                    format!("a number {low} and <= {high}")
                } else {
                    format!("a finite number {low}")
                }
            }
            Kind::Text => "a string".into(),
            Kind::Texts { most } => {
                format!("a string or a list of at most {} strings", limits.describe(most))
            }
            Kind::Object => "an object".into(),
            Kind::List => "a list".into(),
            Kind::Any => "of another type".into(),
        }
    }
}

const fn field(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Field {
    Field { name, kind, default, about }
}

const fn above_zero(name: &'static str, about: &'static str) -> Field {
    field(name, Kind::Number { low: Low::Above(0.0), high: f64::INFINITY }, "1", about)
}

const fn penalty(name: &'static str, about: &'static str) -> Field {
    field(name, Kind::Number { low: Low::AtLeast(-2.0), high: 2.0 }, "0", about)
}

const fn probability(name: &'static str, about: &'static str) -> Field {
    field(name, Kind::Number { low: Low::Above(0.0), high: 1.0 }, "1", about)
}

const fn count(
    name: &'static str,
    least: i64,
    most: Most,
    default: &'static str,
    about: &'static str,
) -> Field {
    field(name, Kind::Integer { least, most }, default, about)
}

const fn flag(name: &'static str, about: &'static str) -> Field {
    field(name, Kind::Boolean, "false", about)
}

/// The longest time that a request may give itself, in seconds.
const DAY: f64 = 86_400.0;

/// The header by which a client says after how many milliseconds it will not want the answer any more.
pub const DEADLINE: Field = count(
    "x-request-deadline-ms",
    1,
    Most::Is(DAY as u64 * 1000),
    "none",
    "Milliseconds after the request's arrival by which the answer must be complete",
);

/// More than any model has positions; keeps lengths within 32 bits.
const TOKENS: Most = Most::Is(u32::MAX as u64);

pub const INPUTS: Field = field("inputs", Kind::Text, "required", "The prompt");
pub const PARAMETERS: Field = field("parameters", Kind::Object, "{}", "How to generate");
pub const INSTANCES: Field =
    field("instances", Kind::List, "required", "Requests of `/generate` or chats, answered together");
pub const KSERVE_ID: Field = field("id", Kind::Text, "none", "Comes back in the answer");
pub const KSERVE_INPUTS: Field = field(
    "inputs",
    Kind::List,
    "required",
    "Tensors of a text each: `name`, `shape`, `datatype` \"BYTES\", `data` (one string, or bytes as numbers)",
);
pub const KSERVE_OUTPUTS: Field =
    field("outputs", Kind::List, "the names of `inputs`", "A `name` for the answer to each input");
/// The members of a request to KServe's `infer`.
pub const KSERVE: &[&Field] = &[&KSERVE_ID, &KSERVE_INPUTS, &PARAMETERS, &KSERVE_OUTPUTS];
pub const STREAM: Field = flag("stream", "Answer with server-sent events, one per token");

pub const BEST_OF: Field =
    count("best_of", 1, Most::BestOf, "1", "Generate so many sequences and return the most likely one");
pub const TEMPERATURE: Field = above_zero("temperature", "Divides the logits before sampling");
pub const REPETITION_PENALTY: Field =
    above_zero("repetition_penalty", "Hugging Face's penalty on tokens of prompt and output; 1 is none");
pub const FREQUENCY_PENALTY: Field =
    penalty("frequency_penalty", "OpenAI's penalty on each earlier occurrence in the output");
pub const PRESENCE_PENALTY: Field =
    penalty("presence_penalty", "OpenAI's penalty on tokens that are in the output");
pub const TOP_K: Field =
    count("top_k", 1, Most::Is(i32::MAX as u64), "off", "Sample from the so many most likely tokens");
pub const TOP_P: Field =
    probability("top_p", "Sample from the most likely tokens that together have this probability");
pub const TYPICAL_P: Field =
    probability("typical_p", "Sample from the most typical tokens that together have this probability");
pub const DO_SAMPLE: Field = flag("do_sample", "Sample; otherwise the most likely token is taken");
pub const MAX_NEW_TOKENS: Field =
    count("max_new_tokens", 1, TOKENS, "as many as fit", "Most tokens to generate");
pub const RETURN_FULL_TEXT: Field = flag("return_full_text", "Put the prompt before the generated text");
pub const STOP: Field = field(
    "stop",
    Kind::Texts { most: Most::StopSequences },
    "[]",
    "Strings that end the text where they appear",
);
pub const TRUNCATE: Field =
    count("truncate", 1, Most::InputTokens, "off", "Keep only the last so many tokens of the prompt");
pub const WATERMARK: Field =
    flag("watermark", "Mark the text as generated (`--watermark-gamma`, `--watermark-delta`)");
pub const DETAILS: Field = flag("details", "Report every token and why the text ended");
pub const DECODER_INPUT_DETAILS: Field =
    flag("decoder_input_details", "Report the prompt's tokens with their log probabilities");
pub const SEED: Field = count("seed", 0, Most::Is(u64::MAX), "random", "Makes sampling repeatable");
pub const TOP_N_TOKENS: Field =
    count("top_n_tokens", 0, Most::TopTokens, "0", "Report so many alternatives for every token");
pub const GRAMMAR: Field = field(
    "grammar",
    Kind::Any,
    "none",
    "`{\"type\": \"json\" | \"json_schema\" | \"regex\", \"value\": ...}`: checked, but not supported yet",
);
pub const ADAPTER_ID: Field =
    field("adapter_id", Kind::Text, "none", "A loaded LoRA adapter; none can be loaded yet");

pub const MAX_TIME: Field = field(
    "max_time",
    Kind::Number { low: Low::Above(0.0), high: DAY },
    "none",
    "Seconds after the request's arrival at which the text ends, with the token under way and reason `length`",
);

/// The members of `parameters` on TGI's routes.
pub const TGI_PARAMETERS: &[&Field] = &[
    &BEST_OF,
    &TEMPERATURE,
    &REPETITION_PENALTY,
    &FREQUENCY_PENALTY,
    &TOP_K,
    &TOP_P,
    &TYPICAL_P,
    &DO_SAMPLE,
    &MAX_NEW_TOKENS,
    &RETURN_FULL_TEXT,
    &STOP,
    &TRUNCATE,
    &WATERMARK,
    &DETAILS,
    &DECODER_INPUT_DETAILS,
    &SEED,
    &TOP_N_TOKENS,
    &GRAMMAR,
    &ADAPTER_ID,
    &MAX_TIME,
];

pub const MODEL: Field = field("model", Kind::Text, "the served model", "Any name; echoed in the answer");
pub const MESSAGES: Field = field("messages", Kind::List, "required", "The conversation");
pub const PROMPT: Field = field(
    "prompt",
    Kind::Any,
    "required",
    "A string, a list of strings, a list of token ids, or a list of such lists",
);
pub const OPENAI_TEMPERATURE: Field = field(
    "temperature",
    Kind::Number { low: Low::AtLeast(0.0), high: f64::INFINITY },
    "1",
    "Divides the logits before sampling; 0 takes the most likely token",
);
pub const OPENAI_TOP_K: Field =
    count("top_k", -1, Most::Is(i32::MAX as u64), "off", "Sample from the so many most likely tokens");
pub const MIN_P: Field = field(
    "min_p",
    Kind::Number { low: Low::AtLeast(0.0), high: 1.0 },
    "0",
    "Sample from tokens at least this likely, relative to the most likely one",
);
pub const MAX_TOKENS: Field = count("max_tokens", 1, TOKENS, "as many as fit", "Most tokens to generate");
pub const COMPLETION_MAX_TOKENS: Field =
    count("max_tokens", 0, TOKENS, "as many as fit", "Most tokens to generate; 0 only together with `echo`");
pub const MAX_COMPLETION_TOKENS: Field =
    count("max_completion_tokens", 1, TOKENS, "as many as fit", "The same as `max_tokens`");
pub const N: Field = count("n", 1, Most::BestOf, "1", "Answers to generate, with seeds seed, seed + 1, ...");
pub const LOGPROBS: Field = flag("logprobs", "Report the log probability of every token");
pub const TOP_LOGPROBS: Field =
    count("top_logprobs", 0, Most::TopTokens, "0", "Report so many alternatives for every token");
pub const COMPLETION_LOGPROBS: Field = count(
    "logprobs",
    0,
    Most::TopTokens,
    "off",
    "Report the log probability of every token, of an echoed prompt too, and so many alternatives",
);
pub const LOGIT_BIAS: Field = field(
    "logit_bias",
    Kind::Object,
    "{}",
    "Token ids, each with a number of -100..100 to add to its logit. A list of numbers, as TGI takes it, has no effect",
);
pub const IGNORE_EOS: Field = flag("ignore_eos", "Generate on after an end-of-sequence token");
pub const ECHO: Field = flag("echo", "Put the prompt before the generated text");
pub const STREAM_OPTIONS: Field =
    field("stream_options", Kind::Object, "{}", "`include_usage`: a last chunk with the token counts");
pub const INCLUDE_USAGE: Field = flag("include_usage", "Send a last chunk with the token counts");
pub const CHAT_TEMPLATE_KWARGS: Field =
    field("chat_template_kwargs", Kind::Object, "{}", "More variables for the chat template");
pub const ADD_GENERATION_PROMPT: Field =
    field("add_generation_prompt", Kind::Boolean, "see about", "Ask the template for a new assistant turn");
pub const CONTINUE_FINAL_MESSAGE: Field = field(
    "continue_final_message",
    Kind::Boolean,
    "true when the last message is the assistant's",
    "Let the answer continue the last message",
);
pub const RESPONSE_FORMAT: Field = field(
    "response_format",
    Kind::Object,
    "text",
    "In OpenAI's shapes and TGI's: checked, but only `{\"type\": \"text\"}` is supported yet",
);
pub const TOOLS: Field = field("tools", Kind::List, "[]", "Functions: checked, but not supported yet");
pub const TOOL_CHOICE: Field = field(
    "tool_choice",
    Kind::Any,
    "auto",
    "`none`, `auto`, `required`, or a function of `tools`: checked, but not supported yet",
);
pub const OPENAI_BEST_OF: Field = count(
    "best_of",
    1,
    Most::BestOf,
    "`n`",
    "Generate so many sequences and answer with the `n` most likely ones",
);
pub const SUFFIX: Field =
    field("suffix", Kind::Text, "none", "Not supported: put what follows the text into the prompt");
pub const MIN_TOKENS: Field = count(
    "min_tokens",
    0,
    TOKENS,
    "0",
    "No end-of-sequence token, `stop_token_ids` or `stop` ends the text before so many tokens",
);
pub const STOP_TOKEN_IDS: Field =
    field("stop_token_ids", Kind::List, "[]", "Tokens that end the text like an end-of-sequence token");

pub const USER: Field = field(
    "user",
    Kind::Text,
    "none",
    "Whose request this is: where no API key is asked for, the queue is fair between users",
);

/// The members that both of OpenAI's dialects read.
const OPENAI: [&Field; 26] = [
    &MODEL,
    &STREAM,
    &STREAM_OPTIONS,
    &OPENAI_TEMPERATURE,
    &TOP_P,
    &OPENAI_TOP_K,
    &MIN_P,
    &TYPICAL_P,
    &REPETITION_PENALTY,
    &FREQUENCY_PENALTY,
    &PRESENCE_PENALTY,
    &LOGIT_BIAS,
    &SEED,
    &STOP,
    &STOP_TOKEN_IDS,
    &IGNORE_EOS,
    &N,
    &OPENAI_BEST_OF,
    &MAX_COMPLETION_TOKENS,
    &MIN_TOKENS,
    &WATERMARK,
    &ADAPTER_ID,
    &RESPONSE_FORMAT,
    &TOOLS,
    &TOOL_CHOICE,
    &USER,
];
const CHAT: [&Field; 7] = [
    &MESSAGES,
    &MAX_TOKENS,
    &LOGPROBS,
    &TOP_LOGPROBS,
    &ADD_GENERATION_PROMPT,
    &CONTINUE_FINAL_MESSAGE,
    &CHAT_TEMPLATE_KWARGS,
];
const COMPLETION: [&Field; 5] = [&PROMPT, &COMPLETION_MAX_TOKENS, &COMPLETION_LOGPROBS, &ECHO, &SUFFIX];

/// The members of a request of TGI's routes, outside `parameters`.
pub const TGI: &[&Field] = &[&INPUTS, &PARAMETERS, &STREAM];

/// The members of a request to `/v1/chat/completions`.
pub fn chat_fields() -> Vec<&'static Field> {
    CHAT.into_iter().chain(OPENAI).collect()
}

/// The members of a request to `/v1/completions`.
pub fn completion_fields() -> Vec<&'static Field> {
    COMPLETION.into_iter().chain(OPENAI).collect()
}

/// Fields that mean nothing to this server but that clients of OpenAI's API send as a matter of
/// course: accepted, and named in `warnings`.
pub const WITHOUT_EFFECT: &[&str] =
    &["parallel_tool_calls", "metadata", "store", "service_tier", "tool_prompt"];

/// How many prompts one request to /v1/completions may carry.
pub const PROMPTS: Most = Most::Prompts;

/// Messages of one conversation: each is an object for the template, however small it is in the body.
pub const MESSAGES_MOST: usize = 4096;

/// How deep arrays and objects may be nested in a field: serde_json's bound, under which it and the templates
/// do not run out of stack.
pub const DEPTH: usize = 127;

/// OpenAI's bound on a bias.
pub const BIAS: f64 = 100.0;

/// Entries of `stop_token_ids`.
pub const STOP_TOKENS: usize = 256;

/// Entries of `logit_bias`: OpenAI's bound.
pub const BIASES: usize = 300;

/// Fields that ask for what is not there yet, and are read nowhere else: refused rather than ignored,
/// since an answer without their effect would be wrong.
pub const NOT_YET: &[&str] = &[
    "functions",
    "function_call",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
];

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

    #[test]
    fn every_bound_of_the_table_can_be_said() {
        let limits = Limits::derive(&args(&[]), &model(64), 64).expect("no contradiction");
        for field in TGI_PARAMETERS {
            assert!(!field.kind.expects(&limits).is_empty(), "{}", field.name);
        }
        assert_eq!(SEED.kind.expects(&limits), "a whole number >= 0");
        assert_eq!(TOP_P.kind.expects(&limits), "a number > 0 and <= 1");
        assert_eq!(TRUNCATE.kind.expects(&limits), "a whole number >= 1 and <= 63 (--max-input-tokens)");
    }
}
