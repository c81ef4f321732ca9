//! What every field of a request may hold: one table, which validation (`fields`), the OpenAPI document and the docs
//! read. A bound is fixed, or one of this server's `Limits`.

use crate::limits::{Limits, PRIORITIES};

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
    /// A whole number; how low it may be is a limit of this server.
    Priority,
    Number {
        low: Low,
        high: f64,
    },
    /// A text that goes to the tokenizer: `--payload-limit` and the limits of tokens bound it.
    Prompt,
    /// A string of at most so many characters.
    Text {
        longest: usize,
    },
    /// A string, or a list of at most so many, none of them empty, each of at most `longest` characters.
    Texts {
        most: Most,
        longest: usize,
    },
    Object,
    List {
        most: Most,
    },
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
    /// As many as this server ever has at once.
    Sequences,
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
            Kind::Integer { least, most } => {
                format!("a whole number >= {least} and <= {}", limits.describe(most))
            }
            Kind::Priority => {
                let (least, most) = (limits.highest_priority, PRIORITIES.end());
                format!("a whole number >= {least} (--highest-priority) and <= {most}")
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
            Kind::Prompt => "a string".into(),
            Kind::Text { longest } => format!("a string of at most {longest} characters"),
            Kind::Texts { most, longest } => {
                let most = limits.describe(most);
                format!("a string or a list of at most {most} strings, of at most {longest} characters each")
            }
            Kind::Object => "an object".into(),
            Kind::List { .. } => "a list".into(),
            Kind::Any => "of another type".into(),
        }
    }
}

impl Limits {
    fn value(&self, most: Most) -> (u64, Option<&'static str>) {
        match most {
            Most::Is(value) => (value, None),
            Most::BestOf => (self.max_best_of.into(), Some("--max-best-of")),
            Most::StopSequences => (self.max_stop_sequences.into(), Some("--max-stop-sequences")),
            Most::TopTokens => (self.max_top_n_tokens.into(), Some("--max-top-n-tokens")),
            Most::InputTokens => (self.max_input_tokens.into(), Some("--max-input-tokens")),
            Most::Prompts => (self.max_client_batch_size.into(), Some("--max-client-batch-size")),
            Most::Sequences => (self.max_concurrent_requests.into(), Some("--max-concurrent-requests")),
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

/// A string that names something.
const fn name(name: &'static str, default: &'static str, about: &'static str) -> Field {
    field(name, Kind::Text { longest: NAME_LENGTH }, default, about)
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

/// Keeps counts within 32 bits: a request's sequences are bounded together, once its prompts are known.
const SEQUENCES: Most = Most::Is(u32::MAX as u64);

/// More than any model has positions; keeps lengths within 32 bits.
const TOKENS: Most = Most::Is(u32::MAX as u64);

pub const INPUTS: Field = field("inputs", Kind::Prompt, "required", "The prompt");
pub const PARAMETERS: Field = field("parameters", Kind::Object, "{}", "How to generate");
pub const INSTANCES: Field = field(
    "instances",
    // Batch predictions of Vertex AI send 64 at once unless told otherwise.
    Kind::List { most: Most::Sequences },
    "required",
    "Requests of `/generate` or chats, answered together",
);
pub const KSERVE_ID: Field = name("id", "none", "Comes back in the answer");
pub const KSERVE_INPUTS: Field = field(
    "inputs",
    Kind::List { most: Most::Prompts },
    "required",
    "Tensors of a text each: `name`, `shape`, `datatype` \"BYTES\", `data` (one string, or bytes as numbers)",
);
pub const KSERVE_OUTPUTS: Field = field(
    "outputs",
    Kind::List { most: Most::Prompts },
    "the names of `inputs`",
    "A `name` for the answer to each input",
);
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
pub const DO_SAMPLE: Field = flag(
    "do_sample",
    "Sample; so do a `temperature` other than 1, `top_k`, and `top_p` and `typical_p` below 1, beside false too. Without any of these the \
     most likely token is taken",
);
pub const MAX_NEW_TOKENS: Field =
    count("max_new_tokens", 1, TOKENS, "as many as fit", "Most tokens to generate");
pub const RETURN_FULL_TEXT: Field = flag(
    "return_full_text",
    "Put the prompt before the generated text; at `/` and `/invocations` true unless given, where the model's task on the hub is \
     `text-generation`, or not known of a decoder",
);
pub const STOP: Field = field(
    "stop",
    Kind::Texts { most: Most::StopSequences, longest: STOP_LENGTH },
    "[]",
    "Strings that end the text where they appear; a special token ends it by its whole name",
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
    "`{\"type\": ..., \"value\": ...}`: what the text has to be, by `json`, `json_schema`, `regex`, `choice` or `lark`, see \
     structured-output.md",
);
pub const ADAPTER_ID: Field =
    name("adapter_id", "none", "The loaded LoRA adapter to answer with (`--lora-adapters`), by its name");

pub const MAX_TIME: Field = field(
    "max_time",
    Kind::Number { low: Low::Above(0.0), high: DAY },
    "none",
    "Seconds after the request's arrival at which the text ends, with the token under way and reason `length`",
);

pub const CACHE_SALT: Field = name(
    "cache_salt",
    "none",
    "Share cached prefixes of prompts only with requests that have the same salt, and the same API key",
);
pub const PROMPT_CACHE_KEY: Field = name(
    "prompt_cache_key",
    "none",
    "Has no effect: at OpenAI it leads requests with one prefix to one machine; here prefixes are found without it",
);

pub const PRIORITY: Field = field(
    "priority",
    Kind::Priority,
    "that of the API key, or 0",
    "As in vLLM, the lower number goes first, before fairness between tenants and before age",
);
pub const SERVICE_TIER: Field = name(
    "service_tier",
    "auto",
    "OpenAI's: `flex` is `priority` 10, `priority` is -10 as far as it is allowed, `auto`, `default` and `scale` are the usual one",
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
    &CACHE_SALT,
    &PRIORITY,
];

pub const MODEL: Field = name(
    "model",
    "the served model",
    "Any name; echoed in the answer. That of a loaded LoRA adapter (`--lora-adapters`) chooses it",
);
pub const MESSAGES: Field = field(
    "messages",
    Kind::List { most: Most::Is(MESSAGES_MOST) },
    "required",
    "The conversation. Without one, and with an `input`, the body is read as one of `/v1/responses`, and answered as a chat: Cursor's \
     agent asks so",
);
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
/// Of dialects that TGI does not have. With 0 the most likely token is taken.
pub const NEWER_TOP_P: Field = Field { kind: Kind::Number { low: Low::AtLeast(0.0), high: 1.0 }, ..TOP_P };
/// Of dialects that TGI does not have. OpenAI's seeds may be negative.
pub const NEWER_SEED: Field =
    count("seed", i64::MIN, Most::Is(u64::MAX), "random", "Makes sampling repeatable; -1 is a random one");
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
pub const N: Field = count(
    "n",
    1,
    SEQUENCES,
    "1",
    "Answers to generate, with seeds seed, seed + 1, ...; those to all prompts together are at most `--max-concurrent-requests`",
);
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
pub const ECHO: Field = flag(
    "echo",
    "Put the prompt before the generated text. In a stream, with `logprobs`, 128 tokens of it in a chunk",
);
pub const STREAM_OPTIONS: Field = field(
    "stream_options",
    Kind::Object,
    "{}",
    "`include_usage`: a last chunk with the token counts. `include_obfuscation` has no effect",
);
pub const INCLUDE_USAGE: Field = flag("include_usage", "Send a last chunk with the token counts");
pub const CHAT_TEMPLATE_KWARGS: Field =
    field("chat_template_kwargs", Kind::Object, "{}", "More variables for the chat template");
pub const ADD_GENERATION_PROMPT: Field = field(
    "add_generation_prompt",
    Kind::Boolean,
    "true, unless the last message is continued",
    "Ask the template for a new assistant turn",
);
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
    "In OpenAI's shapes and TGI's: what the text has to be, see structured-output.md",
);
pub const GUIDED_JSON: Field =
    field("guided_json", Kind::Any, "none", "vLLM's name for a `response_format` with a JSON schema");
pub const GUIDED_REGEX: Field =
    field("guided_regex", Kind::Any, "none", "vLLM's name for a `response_format` of type `regex`");
pub const GUIDED_CHOICE: Field =
    field("guided_choice", Kind::Any, "none", "vLLM's name for a `response_format` of type `choice`");
pub const GUIDED_GRAMMAR: Field =
    field("guided_grammar", Kind::Any, "none", "vLLM's name for a `response_format` of type `lark`");
pub const STRUCTURED_OUTPUTS: Field = field(
    "structured_outputs",
    Kind::Object,
    "none",
    "vLLM's object with one of `json`, `regex`, `choice`, `grammar` and `json_object`",
);
pub const TOOLS: Field = field(
    "tools",
    Kind::List { most: Most::Is(TOOLS_MOST) },
    "[]",
    "Functions that the model may call, see tool-calls.md",
);
pub const TOOL_CHOICE: Field = field(
    "tool_choice",
    Kind::Any,
    "auto",
    "`none`, `auto`, `required`, a function of `tools`, or OpenAI's `allowed_tools`",
);
pub const PARALLEL_TOOL_CALLS: Field =
    field("parallel_tool_calls", Kind::Boolean, "true", "Whether one answer may have several calls");
pub const TOOL_PROMPT: Field = field(
    "tool_prompt",
    Kind::Prompt,
    "none",
    "TGI's: put behind the last message; of a model whose chat template has no place for tools, behind their list",
);
pub const COMPLETION_BEST_OF: Field = count(
    "best_of",
    1,
    SEQUENCES,
    "`n`",
    "Generate so many sequences and answer with the `n` most likely ones; where more than `n`, at most `--max-best-of`",
);
/// Of chats.
pub const CHAT_BEST_OF: Field = count("best_of", 1, Most::Is(1), "1", "Not supported for chats: `n` is");
pub const SUFFIX: Field =
    field("suffix", Kind::Prompt, "none", "Not supported: put what follows the text into the prompt");
pub const MIN_TOKENS: Field = count(
    "min_tokens",
    0,
    TOKENS,
    "0",
    "No end-of-sequence token, `stop_token_ids` or `stop` ends the text before so many tokens",
);
pub const STOP_TOKEN_IDS: Field = field(
    "stop_token_ids",
    Kind::List { most: Most::Is(STOP_TOKENS) },
    "[]",
    "Tokens that end the text like an end-of-sequence token",
);

pub const USER: Field = name(
    "user",
    "none",
    "Whose request this is: where no API key is asked for, the queue is fair between the users of an address",
);

/// The members that both of OpenAI's dialects read.
const OPENAI: [&Field; 32] = [
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
    &MAX_COMPLETION_TOKENS,
    &MIN_TOKENS,
    &WATERMARK,
    &ADAPTER_ID,
    &RESPONSE_FORMAT,
    &GUIDED_JSON,
    &GUIDED_REGEX,
    &GUIDED_CHOICE,
    &GUIDED_GRAMMAR,
    &STRUCTURED_OUTPUTS,
    &USER,
    &CACHE_SALT,
    &PROMPT_CACHE_KEY,
    &PRIORITY,
    &SERVICE_TIER,
];
const CHAT: [&Field; 13] = [
    &MESSAGES,
    &MAX_TOKENS,
    &LOGPROBS,
    &TOP_LOGPROBS,
    &ADD_GENERATION_PROMPT,
    &CONTINUE_FINAL_MESSAGE,
    &CHAT_TEMPLATE_KWARGS,
    &TOOLS,
    &TOOL_CHOICE,
    &PARALLEL_TOOL_CALLS,
    &TOOL_PROMPT,
    &REASONING_EFFORT,
    &CHAT_BEST_OF,
];
const COMPLETION: [&Field; 6] =
    [&PROMPT, &COMPLETION_MAX_TOKENS, &COMPLETION_LOGPROBS, &ECHO, &SUFFIX, &COMPLETION_BEST_OF];

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

pub const REASONING_EFFORT: Field = name(
    "reasoning_effort",
    "as the template has it",
    "For templates that have it; one that the template refuses is the nearest that it takes, and named in `warnings`; \
     `none`: no reasoning, where a template can",
);
pub const INPUT: Field =
    field("input", Kind::Any, "required", "A text, or items: messages, calls and their results");
pub const INSTRUCTIONS: Field =
    field("instructions", Kind::Prompt, "none", "A system message before the input");
pub const MAX_OUTPUT_TOKENS: Field = Field { name: "max_output_tokens", ..MAX_COMPLETION_TOKENS };
pub const TEXT: Field =
    field("text", Kind::Object, "text", "`format`: `text`, `json_object` or `json_schema`");
pub const REASONING: Field = field(
    "reasoning",
    Kind::Object,
    "none",
    "`effort`: as `reasoning_effort` of chats; `summary`: reasoning is told as one",
);
pub const INCLUDE: Field = field(
    "include",
    Kind::List { most: Most::Is(16) },
    "[]",
    "`message.output_text.logprobs`, with `top_logprobs`; `reasoning.encrypted_content`; what else OpenAI has has no effect",
);
pub const STORE: Field = field("store", Kind::Boolean, "false", "Named in `warnings`: no answer is kept");
pub const RESPONSE_METADATA: Field = field("metadata", Kind::Object, "{}", "Told back");
pub const TRUNCATION: Field = name(
    "truncation",
    "disabled",
    "`disabled` or `auto`, which has no effect: a prompt that is too long is refused",
);
pub const SAFETY_IDENTIFIER: Field =
    name("safety_identifier", "none", "Told back, and has no other effect: `user` says who asks");
const BACKGROUND: Field = field("background", Kind::Boolean, "false", "Refused: answers are not kept");

/// The members of a request to `/v1/responses`.
pub fn responses_fields() -> Vec<&'static Field> {
    vec![
        &MODEL,
        &INPUT,
        &INSTRUCTIONS,
        &STREAM,
        &MAX_OUTPUT_TOKENS,
        &OPENAI_TEMPERATURE,
        &NEWER_TOP_P,
        &OPENAI_TOP_K,
        &MIN_P,
        &NEWER_SEED,
        &STOP,
        &FREQUENCY_PENALTY,
        &PRESENCE_PENALTY,
        &TEXT,
        &TOOLS,
        &TOOL_CHOICE,
        &PARALLEL_TOOL_CALLS,
        &REASONING,
        &INCLUDE,
        &TOP_LOGPROBS,
        &STORE,
        &BACKGROUND,
        &TRUNCATION,
        &RESPONSE_METADATA,
        &SAFETY_IDENTIFIER,
        &USER,
        &CACHE_SALT,
        &PROMPT_CACHE_KEY,
        &PRIORITY,
        &SERVICE_TIER,
        &CHAT_TEMPLATE_KWARGS,
    ]
}

pub const SYSTEM: Field =
    field("system", Kind::Any, "none", "A text, or blocks of text, before the messages");
pub const STOP_SEQUENCES: Field = Field { name: "stop_sequences", ..STOP };
pub const ANTHROPIC_METADATA: Field =
    field("metadata", Kind::Object, "none", "`user_id`: as `user` of chats");
pub const THINKING: Field = field(
    "thinking",
    Kind::Object,
    "as the template has it",
    "`type`: `enabled`, `adaptive`, `disabled` or `between_tools`; for templates of models that can do both. `budget_tokens` is not kept to",
);
pub const OUTPUT_CONFIG: Field = field(
    "output_config",
    Kind::Object,
    "none",
    "`format`: a JSON schema that the text has to follow; `effort`: as `reasoning_effort` of chats",
);
pub const OUTPUT_FORMAT: Field = field("output_format", Kind::Object, "none", "The same, by its older name");

const ANTHROPIC_MESSAGES: Field = Field { about: "The conversation", ..MESSAGES };

/// The members of a request to `/v1/messages`. `max_tokens` is required there.
pub fn anthropic_fields() -> Vec<&'static Field> {
    vec![
        &MODEL,
        &ANTHROPIC_MESSAGES,
        &SYSTEM,
        &MAX_TOKENS,
        &STREAM,
        &STOP_SEQUENCES,
        &OPENAI_TEMPERATURE,
        &NEWER_TOP_P,
        &OPENAI_TOP_K,
        &TOOLS,
        &TOOL_CHOICE,
        &THINKING,
        &OUTPUT_CONFIG,
        &OUTPUT_FORMAT,
        &ANTHROPIC_METADATA,
        &CACHE_SALT,
        &PRIORITY,
    ]
}

/// Fields that mean nothing to this server but that clients of OpenAI's API send as a matter of
/// course: accepted, and named in `warnings`.
pub const WITHOUT_EFFECT: &[&str] = &["metadata", "store"];

/// How many prompts one request to /v1/completions may carry.
pub const PROMPTS: Most = Most::Prompts;

/// Messages of one conversation: each is an object for the template, however small it is in the body.
pub const MESSAGES_MOST: u64 = 4096;

/// Functions of one request. OpenAI takes 128; agents that gather the tools of several servers send more.
pub const TOOLS_MOST: u64 = 1024;

/// Characters of a name: of a model, an adapter, a user, a function, a tensor, and of an id. They are echoed (the
/// model in every event of a stream), logged, or kept as long as the request lives. The hub's names have at most
/// 96, OpenAI's functions 64.
pub const NAME_LENGTH: usize = 256;

/// Characters of a stop string: each takes some ten bytes while its request lives, and is compared with every
/// byte of the text.
pub const STOP_LENGTH: usize = 1024;

/// How deep arrays and objects may be nested in a field: serde_json's bound, under which it and the templates
/// do not run out of stack.
pub const DEPTH: usize = 127;

/// OpenAI's bound on a bias.
pub const BIAS: f64 = 100.0;

/// Entries of `stop_token_ids`.
pub const STOP_TOKENS: u64 = 256;

/// Entries of `logit_bias`: OpenAI's bound.
pub const BIASES: usize = 300;

/// Fields that ask for what is not there yet, and are read nowhere else: refused rather than ignored,
/// since an answer without their effect would be wrong.
pub const NOT_YET: &[&str] = &["functions", "function_call"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::tests::limits;

    #[test]
    fn every_bound_of_the_table_can_be_said() {
        let limits = Limits { max_input_tokens: 63, ..limits() };
        for field in TGI_PARAMETERS {
            assert!(!field.kind.expects(&limits).is_empty(), "{}", field.name);
        }
        assert_eq!(SEED.kind.expects(&limits), "a whole number >= 0 and <= 18446744073709551615");
        assert_eq!(TOP_P.kind.expects(&limits), "a number > 0 and <= 1");
        assert_eq!(TRUNCATE.kind.expects(&limits), "a whole number >= 1 and <= 63 (--max-input-tokens)");
    }
}
