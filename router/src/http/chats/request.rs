//! A chat that asks for an answer. Each dialect reads it from its own fields, and says what it calls them; with its prompt
//! it is `Prepared`, from where on all dialects are one code.

use penstock_core::generation::{GenerationRequest, Input};
use penstock_core::prompt::Chat;
use penstock_output::{ReasoningFormat, Start};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::http::chats::effort::{Effort, Thinking};
use crate::http::chats::messages::text_of;
use crate::http::chats::reader::Reading;
use crate::http::chats::tools::{Bound, Tools};
use crate::http::error::{ApiError, FieldNames};
use crate::http::openai::params::GenerationParams;
use crate::http::state::Loaded;

pub struct ChatRequest {
    pub params: GenerationParams,
    pub chat: Chat,
    pub effort: Option<Effort>,
    pub thinking: Option<Thinking>,
    pub tools: Option<Tools>,
    pub max_tokens: Option<u32>,
    pub logprobs: bool,
    pub top_logprobs: u32,
    /// What the client calls the fields.
    pub names: FieldNames,
}

/// A request with its prompt.
pub struct Prepared {
    /// Its warnings are not settled yet.
    pub params: GenerationParams,
    pub request: GenerationRequest,
    pub logprobs: bool,
    /// How its answers are read.
    pub reading: Reading,
    pub prompt_characters: usize,
    pub names: FieldNames,
}

impl ChatRequest {
    pub fn render(&mut self, loaded: &Loaded, client: &CancellationToken) -> Result<String, ApiError> {
        loaded.chats.rewrite(&mut self.chat.messages, self.tools.is_some());
        if let Some(tools) = &self.tools {
            tools.show(&mut self.chat, &loaded.chats);
        }
        let manners = &loaded.chats.manners;
        manners.parts_alone.write(&mut self.chat.messages);
        let mut is_off = false;
        if let Some(thinking) = self.thinking {
            let (has_effort, warnings) = (self.effort.is_some(), &mut self.params.warnings);
            is_off = manners.efforts.think(thinking, has_effort, &mut self.chat.variables, warnings);
        }
        if let Some(effort) = self.effort.as_ref().filter(|_| !is_off) {
            manners.efforts.write(effort, &mut self.chat.variables, &mut self.params.warnings);
        }
        loaded.serving.prompt.render(&self.chat, client).map_err(|error| self.names.error(error))
    }

    /// Where the answer begins.
    fn start(
        &self,
        format: &ReasoningFormat,
        rendered: &str,
        loaded: &Loaded,
        client: &CancellationToken,
    ) -> Start {
        let start = format.start_after(rendered);
        if start == Start::Reasoning || !format.is_open_in(rendered) {
            return start;
        }
        // A message may speak of the marker: it counts in one that is continued, and in what the template adds for a new turn.
        let last = self.chat.messages.last().filter(|message| message["role"] == "assistant");
        let last = last.map(|message| text_of(&message["content"]));
        let is_last =
            |text: &String| !text.trim().is_empty() && rendered.trim_end().ends_with(text.trim_end());
        let is_open = match last.filter(is_last) {
            Some(text) => format.is_open_from(&text),
            None => {
                let ended = Chat {
                    continue_final_message: Some(false),
                    add_generation_prompt: Some(false),
                    ..self.chat.clone()
                };
                let before = loaded.serving.prompt.render(&ended, client).ok();
                let added = before.as_deref().and_then(|before| rendered.strip_prefix(before));
                added.is_some_and(|added| format.is_open_in(added))
            }
        };
        if is_open { Start::Reasoning } else { Start::Content }
    }

    pub fn prepare(mut self, loaded: &Loaded, client: &CancellationToken) -> Result<Prepared, ApiError> {
        let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
        let calls_before = self.chat.messages.iter().map(calls).sum();
        let rendered = self.render(loaded, client)?;
        let formats = &loaded.chats;
        let prompt_characters = rendered.chars().count();
        let start =
            formats.reasoning.map_or(Start::Content, |format| self.start(format, &rendered, loaded, client));
        let has_asked = self.params.grammar.is_some();
        let bound = match &self.tools {
            Some(tools) => {
                let asked = self.params.grammar.take();
                tools.bind(formats, start, calls_before, asked, &mut self.params.warnings)?
            }
            None => {
                let reading = Reading { reasoning: formats.reasoning, start, ..Reading::plain() };
                Bound::of_text(formats, reading, self.params.grammar.take())
            }
        };
        if let Some(calls) = bound.grammar.as_ref().filter(|_| self.params.ignore_eos && !has_asked) {
            self.params.warnings.no_effect("ignore_eos", &format!("beside `{}`", calls.field));
        }
        self.params.grammar = bound.grammar;
        let grammar_is_optional = bound.grammar_is_optional;
        let request = GenerationRequest {
            top_tokens: self.top_logprobs,
            grammar: self.params.take_grammar(grammar_is_optional)?,
            grammar_is_optional,
            ..self.params.request(Input::Rendered(rendered), self.max_tokens)
        };
        let (params, logprobs, reading, names) = (self.params, self.logprobs, bound.reading, self.names);
        Ok(Prepared { params, request, logprobs, reading, prompt_characters, names })
    }
}
