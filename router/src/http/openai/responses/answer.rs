//! What `/v1/responses` answers, whole and as events, as types: their members stand in the order in which they are written, and
//! OpenAPI's schemas come of them.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::http::openai::chat::LogprobEntry;
use crate::http::warnings::Warnings;

/// An answer as it is now.
#[derive(JsonSchema, Serialize)]
pub struct Response<'a> {
    pub id: &'a str,
    pub object: &'static str,
    /// In seconds since 1970.
    pub created_at: u64,
    /// Once the answer is there, whole.
    pub completed_at: Option<u64>,
    pub status: Status,
    pub background: bool,
    /// Why a stream ends before the answer does; what fails earlier has an error's status.
    pub error: Option<Failure<'a>>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub model: &'a str,
    pub output: Vec<&'a Item>,
    pub previous_response_id: Option<&'static str>,
    pub service_tier: &'static str,
    pub store: bool,
    pub truncation: &'static str,
    /// Once it has ended.
    pub usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub echo: &'a Echo,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    pub warnings: Warnings,
}

#[derive(Clone, Copy, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Status {
    InProgress,
    Incomplete,
    Completed,
    Failed,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ResponseFailure")]
pub struct Failure<'a> {
    pub code: &'static str,
    pub message: &'a str,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub struct IncompleteDetails {
    pub reason: &'static str,
}

#[derive(JsonSchema, Serialize)]
pub struct ResponseUsage {
    pub input_tokens: u32,
    pub input_tokens_details: InputTokensDetails,
    pub output_tokens: u32,
    pub output_tokens_details: OutputTokensDetails,
    pub total_tokens: u32,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub struct InputTokensDetails {
    pub cached_tokens: u32,
    /// Always 0: to keep a prompt costs nothing.
    pub cache_write_tokens: u32,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
pub struct OutputTokensDetails {
    pub reasoning_tokens: u32,
}

/// What was asked, as it was given, or its default.
#[derive(JsonSchema, Serialize)]
pub struct Echo {
    pub instructions: Value,
    pub max_output_tokens: Value,
    pub max_tool_calls: Value,
    pub metadata: Value,
    pub parallel_tool_calls: Value,
    pub prompt_cache_key: Value,
    pub safety_identifier: Value,
    pub temperature: Value,
    pub tool_choice: Value,
    pub tools: Value,
    pub top_logprobs: Value,
    pub top_p: Value,
    pub user: Value,
    pub text: Value,
    pub reasoning: Value,
}

/// A part of the answer.
#[derive(Clone, JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseItem")]
pub enum Item {
    Message {
        id: String,
        status: Status,
        role: Role,
        content: Vec<Part>,
    },
    Reasoning {
        id: String,
        status: Status,
        /// All of it, where `reasoning.summary` asks for one.
        summary: Vec<Part>,
        /// All of it elsewhere.
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<Vec<Part>>,
        /// The text once more, as it is, where `include` asks for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    FunctionCall {
        id: String,
        status: Status,
        call_id: String,
        /// Of a function that stands in one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        /// JSON.
        arguments: String,
    },
    CustomToolCall {
        id: String,
        status: Status,
        call_id: String,
        /// Of a tool that stands in one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        input: String,
    },
    /// A search for tools, which the client makes.
    ToolSearchCall {
        id: String,
        status: Status,
        call_id: String,
        execution: &'static str,
        /// Once it has ended.
        #[schemars(with = "serde_json::Map<String, Value>")]
        arguments: Value,
    },
}

#[derive(Clone, Copy, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Role {
    Assistant,
}

/// A text of an item.
#[derive(Clone, JsonSchema, Serialize)]
#[serde(tag = "type")]
#[schemars(rename = "ResponsePart")]
pub enum Part {
    #[serde(rename = "output_text")]
    Output {
        text: String,
        /// Always empty.
        annotations: Vec<String>,
        logprobs: Vec<LogprobEntry>,
    },
    #[serde(rename = "reasoning_text")]
    Reasoning { text: String },
    #[serde(rename = "summary_text")]
    Summary { text: String },
}

/// One event of a stream, in OpenAI's order.
#[derive(JsonSchema, Serialize)]
#[serde(tag = "type")]
pub enum Event<'a> {
    #[serde(rename = "response.created")]
    Created { sequence_number: u64, response: Response<'a> },
    #[serde(rename = "response.in_progress")]
    InProgress { sequence_number: u64, response: Response<'a> },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { sequence_number: u64, output_index: usize, item: &'a Item },
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        content_index: usize,
        part: Part,
    },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        content_index: usize,
        delta: &'a str,
        logprobs: &'a [LogprobEntry],
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        content_index: usize,
        text: &'a str,
        logprobs: &'a [LogprobEntry],
    },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        content_index: usize,
        delta: &'a str,
    },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        content_index: usize,
        text: &'a str,
    },
    #[serde(rename = "response.reasoning_summary_part.added")]
    SummaryAdded {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        summary_index: usize,
        part: Part,
    },
    #[serde(rename = "response.reasoning_summary_text.delta")]
    SummaryDelta {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        summary_index: usize,
        delta: &'a str,
    },
    #[serde(rename = "response.reasoning_summary_text.done")]
    SummaryDone {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        summary_index: usize,
        text: &'a str,
    },
    #[serde(rename = "response.reasoning_summary_part.done")]
    SummaryPartDone {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        summary_index: usize,
        part: Part,
    },
    #[serde(rename = "response.content_part.done")]
    PartDone { sequence_number: u64, item_id: &'a str, output_index: usize, content_index: usize, part: Part },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { sequence_number: u64, item_id: &'a str, output_index: usize, delta: &'a str },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        sequence_number: u64,
        item_id: &'a str,
        output_index: usize,
        name: &'a str,
        arguments: &'a str,
    },
    #[serde(rename = "response.custom_tool_call_input.delta")]
    InputDelta { sequence_number: u64, item_id: &'a str, output_index: usize, delta: &'a str },
    #[serde(rename = "response.custom_tool_call_input.done")]
    InputDone { sequence_number: u64, item_id: &'a str, output_index: usize, input: &'a str },
    #[serde(rename = "response.output_item.done")]
    ItemDone { sequence_number: u64, output_index: usize, item: &'a Item },
    #[serde(rename = "response.completed")]
    Completed { sequence_number: u64, response: Response<'a> },
    #[serde(rename = "response.incomplete")]
    Incomplete { sequence_number: u64, response: Response<'a> },
    /// The stream ends before the answer does, and `response.failed` follows.
    #[serde(rename = "error")]
    Error {
        sequence_number: u64,
        code: &'static str,
        message: &'a str,
        param: Option<&'a str>,
        error: ErrorDetail<'a>,
    },
    #[serde(rename = "response.failed")]
    Failed { sequence_number: u64, response: Response<'a> },
}

/// OpenAI's documentation has an error's members in the event, and its servers send them within `error`: some clients read these
/// there, some those.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "ResponseErrorDetail")]
pub struct ErrorDetail<'a> {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub code: &'static str,
    pub message: &'a str,
    pub param: Option<&'a str>,
}

impl Event<'_> {
    /// As the line `event:` has it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::InProgress { .. } => "response.in_progress",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::PartAdded { .. } => "response.content_part.added",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::TextDone { .. } => "response.output_text.done",
            Self::ReasoningDelta { .. } => "response.reasoning_text.delta",
            Self::ReasoningDone { .. } => "response.reasoning_text.done",
            Self::SummaryAdded { .. } => "response.reasoning_summary_part.added",
            Self::SummaryDelta { .. } => "response.reasoning_summary_text.delta",
            Self::SummaryDone { .. } => "response.reasoning_summary_text.done",
            Self::SummaryPartDone { .. } => "response.reasoning_summary_part.done",
            Self::PartDone { .. } => "response.content_part.done",
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
            Self::InputDelta { .. } => "response.custom_tool_call_input.delta",
            Self::InputDone { .. } => "response.custom_tool_call_input.done",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Error { .. } => "error",
            Self::Failed { .. } => "response.failed",
        }
    }
}
