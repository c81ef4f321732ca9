//! `usage`: the tokens of an answer, as OpenAI counts them.

use schemars::JsonSchema;
use serde::Serialize;

use penstock_core::generation::Done;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: PromptTokensDetails,
    /// Only in chats with a model that reasons
    // Typed clients (openai-php of 2025) stop at an object without the members that OpenAI's has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
    /// Told beside the usage: Langfuse takes every number in `completion_tokens_details` for one with a price of its own, and refuses a
    /// usage with more members than OpenAI's; Helicone takes OpenAI's `accepted_prediction_tokens` for more output.
    #[serde(skip)]
    pub accepted_drafts: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(inline)]
pub struct PromptTokensDetails {
    pub cached_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(inline)]
pub struct CompletionTokensDetails {
    /// Those that brought text of reasoning
    pub reasoning_tokens: u32,
}

impl Usage {
    /// Of one prompt and its answers: the prompt counts once.
    pub fn of<'a>(answers: impl IntoIterator<Item = &'a Done>) -> Self {
        let mut usage = Usage::default();
        let mut cached: Option<u32> = None;
        for done in answers {
            usage.prompt_tokens = done.prompt_tokens;
            usage.completion_tokens += done.generated_tokens;
            usage.accepted_drafts += done.skipped_tokens;
            // What one of them found beyond this, another has just computed: they run side by side.
            cached = Some(cached.map_or(done.cached_tokens, |least| least.min(done.cached_tokens)));
        }
        usage.prompt_tokens_details.cached_tokens = cached.unwrap_or_default();
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage
    }

    pub fn add(&mut self, other: Usage) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.total_tokens += other.total_tokens;
        self.prompt_tokens_details.cached_tokens += other.prompt_tokens_details.cached_tokens;
        self.accepted_drafts += other.accepted_drafts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openai::AnswerHead;
    use crate::http::warnings::Warnings;
    use penstock_core::generation::FinishReason;
    use serde_json::json;

    #[test]
    fn usage_counts_a_prompt_once_and_all_of_its_answers() {
        let done = |generated, cached| Done {
            text: String::new(),
            finish_reason: FinishReason::Length,
            stop: None,
            generated_tokens: generated,
            skipped_tokens: generated - 1,
            seed: None,
            prompt_tokens: 10,
            cached_tokens: cached,
            timings: Default::default(),
        };
        let mut usage = Usage::of(&[done(3, 8), done(4, 9)]);
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (10, 7, 17));
        assert_eq!(usage.prompt_tokens_details.cached_tokens, 8);
        usage.add(Usage::of(&[done(1, 2)]));
        assert_eq!((usage.prompt_tokens, usage.total_tokens), (20, 28));
        assert_eq!(usage.accepted_drafts, 2 + 3);
        assert_eq!(usage.prompt_tokens_details.cached_tokens, 8 + 2);
        // In a stream they end in any order.
        for cold in [[done(3, 0), done(4, 8)], [done(4, 8), done(3, 0)]] {
            assert_eq!(Usage::of(&cold).prompt_tokens_details.cached_tokens, 0);
        }
        // Whoever reckons prices from it finds OpenAI's numbers alone.
        let told = serde_json::to_value(usage).expect("JSON");
        let expected = json!({
            "prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28,
            "prompt_tokens_details": {"cached_tokens": 10},
        });
        assert_eq!(told, expected);
        let head = AnswerHead::new("cmpl", "m".into());
        let beside = |usage: Option<Usage>| {
            let warnings = Warnings::default();
            let answer = head.answer("x", &[(); 0], usage, &warnings);
            serde_json::to_value(answer).expect("JSON").get("accepted_drafts").cloned()
        };
        assert_eq!(beside(Some(usage)), Some(json!(5)));
        assert_eq!((beside(Some(Usage { accepted_drafts: 0, ..usage })), beside(None)), (None, None));
    }
}
