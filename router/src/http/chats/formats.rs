//! How the served model writes calls and reasoning: as flags say, or else its chat template.

use penstock_core::prompt::{Chat, Prompt};
use penstock_output::{ReasoningFormat, ToolFormat, of_template, tool_format};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{FormatFlag, KNOWN_FORMATS};
use crate::http::chats::manners::Manners;
use crate::http::chats::messages::fill_in_contents;
use crate::http::chats::template_places::{ToolPlace, fill_in_arguments, shorten_ids};

/// How the model writes, and what its template does with tools.
#[derive(Debug, Default)]
pub struct ChatFormats {
    pub calls: Option<&'static ToolFormat>,
    /// Whether the template shows tools in no format that is known: `calls` is then JSON, which nothing asks the model for.
    pub is_unknown: bool,
    pub reasoning: Option<&'static ReasoningFormat>,
    /// Names of tokens that end an answer, whatever else does.
    pub stop_tokens: &'static [&'static str],
    /// The template of chats with tools.
    pub template: String,
    pub manners: Manners,
}

impl ChatFormats {
    /// Logs what was chosen.
    pub fn of(
        prompt: &Prompt,
        tool_call_parser: &FormatFlag<ToolFormat>,
        reasoning_parser: &FormatFlag<ReasoningFormat>,
    ) -> Self {
        let template = |with_tools| prompt.chat_template(with_tools).unwrap_or_default();
        let render = |chat: &Chat| prompt.render(chat, &CancellationToken::new()).ok();
        let found =
            Self::of_templates([template(true), template(false)], tool_call_parser, reasoning_parser, render);
        if found.is_unknown {
            warn!(
                "the chat template shows tools in no format of calls that is known: calls in JSON are read, others are \
                 content. {KNOWN_FORMATS}"
            );
        }
        if !found.template.is_empty() {
            info!(
                "the chat template's calls are read as {}, its reasoning as {}",
                found.calls.map_or("text", |format| format.name),
                found.reasoning.map_or("text", |format| format.name)
            );
        }
        found
    }

    /// Of the templates of chats with tools and without, which `render` renders; it gives None where one refuses a chat.
    pub fn of_templates(
        [with_tools, without]: [&str; 2],
        tool_call_parser: &FormatFlag<ToolFormat>,
        reasoning_parser: &FormatFlag<ReasoningFormat>,
        render: impl Fn(&Chat) -> Option<String>,
    ) -> Self {
        let reasoning = reasoning_parser.or(of_template(without).1);
        // A template that says nothing of calls or tools leaves it to the prompt, which asks for JSON.
        let json = tool_format("json");
        let of_its_own = of_template(with_tools).0;
        let mut calls = tool_call_parser.or(of_its_own.or(json));
        // The model writes them, whether its calls are read or not.
        let writes = match tool_call_parser {
            FormatFlag::Named(format) => Some(*format),
            FormatFlag::Auto | FormatFlag::Off => of_its_own,
        };
        let stop_tokens = writes.map_or(&[][..], |format| format.stop_tokens);
        let mut manners = Manners::default();
        let mut is_unknown = false;
        if !with_tools.is_empty() {
            manners = Manners::of(with_tools, calls, reasoning, &render);
            is_unknown = of_its_own.is_none()
                && manners.tools != ToolPlace::LastMessage
                && matches!(tool_call_parser, FormatFlag::Auto);
            // So does one that shows no tools, though it may show calls: DeepSeek R1's, which its distilled models have, too.
            let is_asked_for_json =
                manners.tools == ToolPlace::LastMessage && matches!(tool_call_parser, FormatFlag::Auto);
            if is_asked_for_json && calls.map(|format| format.name) != json.map(|format| format.name) {
                calls = json;
                manners = Manners::of(with_tools, calls, reasoning, &render);
            }
        }
        Self { calls, is_unknown, reasoning, stop_tokens, template: with_tools.to_owned(), manners }
    }

    /// Makes of messages what the template reads, and brings earlier calls, each with arguments, and their results to where it shows them.
    pub fn rewrite(&self, messages: &mut Vec<Value>, beside_tools: bool) {
        fill_in_contents(messages);
        let manners = &self.manners;
        let (place, message_manners) = match beside_tools {
            true => (manners.calls_beside_tools, &manners.messages_beside_tools),
            false => (manners.calls, &manners.messages),
        };
        message_manners.rewrite(messages);
        fill_in_arguments(messages);
        if let Some(calls) = self.calls {
            place.rewrite(messages, &self.template, calls);
        }
        if self.manners.nine_ids {
            shorten_ids(messages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_ends_its_answers_whether_its_calls_are_read_or_not() {
        let of = |parser: FormatFlag<ToolFormat>| {
            let template = "{{ messages }} -> tool/function_call";
            ChatFormats::of_templates([template; 2], &parser, &FormatFlag::Auto, |_| None).stop_tokens
        };
        let named = |name: &str| FormatFlag::Named(tool_format(name).expect("it exists"));
        for (parser, ends) in [
            (FormatFlag::Auto, &["<|stop|>", "<|endofturn|>"][..]),
            (FormatFlag::Off, &["<|stop|>", "<|endofturn|>"]),
            (named("llama3_json"), &["<|eom_id|>"]),
            (named("hermes"), &[]),
        ] {
            assert_eq!(of(parser.clone()), ends, "{parser:?}");
        }
    }
}
