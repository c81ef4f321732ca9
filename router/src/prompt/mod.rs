//! From what a client wrote to token ids: chat template, tokenizer, truncation. Shared by every
//! request; the work runs on a bounded number of blocking threads, never on the async ones. The dialects
//! call it to render chats and to tokenize, `generation` to encode prompts and to spell tokens.

mod fewest;
mod files;
mod jinja;
#[cfg(test)]
pub mod samples;
mod template;
mod vocabulary;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::generation::Input;
use crate::ids::TokenId;
pub use files::LoadError;
use files::ModelFiles;
use template::ChatTemplates;
pub use vocabulary::{Spelling, Vocabulary};

/// Tokenizer and chat templates of the served model.
pub struct Prompt {
    vocabulary: Arc<Vocabulary>,
    /// `None` for a model that has no chat template.
    template: Arc<Option<ChatTemplates>>,
    /// The tokenizer's own end-of-sequence token.
    eos: Option<TokenId>,
    /// One permit for each prompt that may be worked on at once.
    workers: Arc<Semaphore>,
    /// The same for short ones, so that they do not wait for long ones.
    quick_workers: Arc<Semaphore>,
}

/// Bytes of a prompt that is worked on in a millisecond or so.
const SHORT: usize = 16 << 10;

/// What becomes of a prompt that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Nothing.
    Any,
    /// The caller refuses more than so many tokens, so that such a prompt need not be tokenized to its end. One
    /// of more may yet come back.
    Within(u32),
    /// It is cut to so many at its beginning, as transformers does with `truncation_side="left"`: what the
    /// tokenizer has added around a text (`<s>`) stays.
    Last(u32),
}

impl Length {
    /// `added` has a 1 for each token that is not of the text; it may be shorter than `tokens`.
    fn cut(self, mut tokens: Vec<TokenId>, added: &[u32]) -> Vec<TokenId> {
        let Self::Last(most) = self else { return tokens };
        let over = tokens.len().saturating_sub(most as usize);
        let before = added.iter().take_while(|mark| **mark == 1).count();
        let around = added.iter().filter(|mark| **mark == 1).count();
        let begin = if around <= most as usize { before } else { 0 };
        tokens.drain(begin..begin + over);
        tokens
    }
}

/// Why a prompt was not made. The texts are for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The prompt cannot be served as it is; names the field and the limit.
    #[error("{0}")]
    Invalid(String),
    /// The model has no usable chat template, or it refused these messages.
    #[error("{0}")]
    Template(String),
    /// The tokenizer failed.
    #[error("{0}")]
    Failed(String),
}

/// What a chat template is given.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// As the client sent them, each an object with a `role`.
    pub messages: Vec<Value>,
    /// The last message is left open for the model to go on with. When neither this nor
    /// `add_generation_prompt` says otherwise, a last message of the assistant is continued.
    pub continue_final_message: Option<bool>,
    /// Ends the prompt with the beginning of a new turn of the assistant.
    pub add_generation_prompt: Option<bool>,
    /// Schemas of the functions that may be called, each an object.
    pub tools: Option<Vec<Value>>,
    /// More variables for the template (`chat_template_kwargs`). `chat_template` is no variable but the name
    /// of the template to use, of a model that has several; `documents` is a list of objects.
    pub variables: Map<String, Value>,
}

/// A token of a text and the bytes of the text that it stands for; none for a token that was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpan {
    pub id: TokenId,
    pub text: String,
    pub start: usize,
    pub stop: usize,
}

impl Prompt {
    /// Reads tokenizer.json, tokenizer_config.json (or the files given instead of them) and the chat
    /// templates of the model in `dir`. At most `workers` prompts are worked on at once. A chat template
    /// that does not compile is a warning here, and an error when it is asked for.
    pub fn load(
        dir: &Path,
        tokenizer: Option<&Path>,
        tokenizer_config: Option<&Path>,
        workers: u32,
    ) -> Result<Self, LoadError> {
        let files = ModelFiles::read(dir, tokenizer, tokenizer_config)?;
        let eos = files.named_tokens.get("eos_token").and_then(Value::as_str);
        let eos = eos.and_then(|name| files.tokenizer.token_to_id(name)).map(TokenId);
        let template = files.chat_templates.map(|(sources, file)| {
            ChatTemplates::compile(&sources, files.named_tokens, |name, reason| {
                tracing::warn!(
                    "{}: the chat template `{name}` does not compile, so that chats cannot be served with \
                     it: {reason}",
                    file.display()
                );
            })
        });
        Ok(Self {
            vocabulary: Arc::new(Vocabulary::new(files.tokenizer, &files.special)),
            template: Arc::new(template),
            eos,
            workers: Arc::new(Semaphore::new(workers.max(1) as usize)),
            quick_workers: Arc::new(Semaphore::new(workers.max(1) as usize)),
        })
    }

    /// The prompt's token ids.
    pub async fn encode(&self, input: Input, length: Length) -> Result<Vec<TokenId>, PromptError> {
        match input {
            Input::Text(text) => self.encode_text(text, true, length).await,
            Input::Rendered(text) => self.encode_text(text, false, length).await,
            Input::Tokens(tokens) => Ok(length.cut(tokens, &[])),
        }
    }

    /// The tokens of `text`, with the tokenizer's special tokens added or not, and where each is in it, in
    /// bytes.
    pub async fn tokenize(
        &self,
        text: String,
        add_special_tokens: bool,
    ) -> Result<Vec<TokenSpan>, PromptError> {
        let vocabulary = self.vocabulary.clone();
        self.work(text.len(), move || {
            let encoding =
                vocabulary.tokenizer().encode(text.as_str(), add_special_tokens).map_err(no_tokens)?;
            let spans = encoding.get_ids().iter().zip(encoding.get_offsets()).map(|(&id, &(start, stop))| {
                let bytes = text.as_bytes().get(start..stop).unwrap_or_default();
                TokenSpan { id: TokenId(id), text: String::from_utf8_lossy(bytes).into_owned(), start, stop }
            });
            Ok(spans.collect())
        })
        .await
    }

    /// The prompt text of a chat, for `Input::Rendered`.
    pub async fn render(&self, chat: Chat) -> Result<String, PromptError> {
        let template = self.template.clone();
        let bytes = chat.messages.iter().chain(chat.tools.iter().flatten()).map(bytes_of).sum();
        self.work(bytes, move || match &*template {
            Some(template) => template.render(&chat),
            None => Err(PromptError::Template("this model has no chat template".into())),
        })
        .await
    }

    /// The text of a prompt given as token ids, special tokens left out.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        self.vocabulary.decode(tokens)
    }

    /// The bytes that a token adds to a text, its name if it is a special token. A token may hold a part
    /// of a character.
    pub fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        self.vocabulary.bytes(token)
    }

    /// The end-of-sequence token that the tokenizer's files name.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    async fn encode_text(
        &self,
        text: String,
        add_special_tokens: bool,
        length: Length,
    ) -> Result<Vec<TokenId>, PromptError> {
        let vocabulary = self.vocabulary.clone();
        self.work(text.len(), move || {
            // A short one is tokenized as fast as it is looked at.
            if let Length::Within(most) = length
                && text.len() > SHORT.max(most as usize)
                && vocabulary.is_above(most as usize, &text)
            {
                let message = format!("`inputs` must have <= {most} tokens. Given: more than {most}");
                return Err(PromptError::Invalid(message));
            }
            let encoding =
                vocabulary.tokenizer().encode_fast(text.as_str(), add_special_tokens).map_err(no_tokens)?;
            let tokens = encoding.get_ids().iter().copied().map(TokenId).collect();
            Ok(length.cut(tokens, encoding.get_special_tokens_mask()))
        })
        .await
    }

    /// Runs work on a prompt of so many bytes on a blocking thread when one is free. A caller that is dropped
    /// while it waits costs nothing.
    async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        task: impl FnOnce() -> Result<T, PromptError> + Send + 'static,
    ) -> Result<T, PromptError> {
        let workers = if bytes <= SHORT { &self.quick_workers } else { &self.workers };
        let permit = workers.clone().acquire_owned().await.expect("the semaphore is never closed");
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            task()
        });
        // It panicked, or the server is stopping.
        done.await.unwrap_or_else(|_| Err(PromptError::Failed("the prompt could not be prepared".into())))
    }
}

/// Of the texts in a JSON value.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes_of).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + bytes_of(value)).sum(),
        _ => 1,
    }
}

fn no_tokens(error: tokenizers::Error) -> PromptError {
    tracing::warn!("the tokenizer failed: {error}");
    PromptError::Failed("the tokenizer failed on this prompt".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn prompt(tokenizer: tokenizers::Tokenizer, workers: usize) -> Prompt {
        Prompt {
            vocabulary: Arc::new(Vocabulary::new(tokenizer, &[])),
            template: Arc::new(None),
            eos: None,
            workers: Arc::new(Semaphore::new(workers)),
            quick_workers: Arc::new(Semaphore::new(workers)),
        }
    }

    #[tokio::test]
    async fn text_gets_special_tokens_and_rendered_chats_do_not() {
        let prompt = prompt(samples::sentencepiece(), 1);
        let text = prompt.encode(Input::Text("lo".into()), Length::Any).await.unwrap();
        assert_eq!(text[0], TokenId(1));
        let rendered = prompt.encode(Input::Rendered("lo".into()), Length::Any).await.unwrap();
        assert_eq!(rendered, text[1..]);
    }

    #[tokio::test]
    async fn a_special_token_written_in_the_prompt_is_one_token() {
        let prompt = prompt(samples::byte_level(), 1);
        let tokens = prompt.encode(Input::Rendered("hello<|end|>".into()), Length::Any).await.unwrap();
        assert_eq!(tokens.len(), 2);
        assert_eq!(prompt.decode(&tokens), "hello");
        assert_eq!(prompt.token_bytes(tokens[1]), b"<|end|>");
    }

    #[tokio::test]
    async fn truncation_keeps_the_end() {
        let prompt = prompt(samples::byte_level(), 1);
        let ids: Vec<TokenId> = (0..10).map(TokenId).collect();
        for input in [Input::Tokens(ids.clone()), Input::Text(prompt.decode(&ids))] {
            let all = prompt.encode(input.clone(), Length::Any).await.unwrap();
            assert_eq!(prompt.encode(input.clone(), Length::Last(3)).await.unwrap(), all[all.len() - 3..]);
            assert_eq!(prompt.encode(input, Length::Last(1000)).await.unwrap(), all);
        }
    }

    #[tokio::test]
    async fn truncation_keeps_what_the_tokenizer_adds() {
        let mut both = samples::sentencepiece();
        let parts = serde_json::json!({
            "type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                               "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}
        });
        both.with_post_processor(Some(
            serde_json::from_value::<tokenizers::PostProcessorWrapper>(parts).unwrap(),
        ));
        let prompt = prompt(both, 1);
        let input = || Input::Text("a b c</s>".into());
        let all = prompt.encode(input(), Length::Any).await.unwrap();
        let last = |most| prompt.encode(input(), Length::Last(most));
        for most in 2..all.len() {
            let cut = [&all[..1], &all[all.len() - most + 1..]].concat();
            assert_eq!(last(most as u32).await.unwrap(), cut);
        }
        assert_eq!(last(1).await.unwrap(), all[all.len() - 1..]);
        assert_eq!(last(100).await.unwrap(), all);
        // A chat's own template has written its special tokens.
        let chat = prompt.encode(Input::Rendered("<s>a b c".into()), Length::Last(3)).await.unwrap();
        assert_eq!(chat, all[all.len() - 5..all.len() - 2]);
    }

    #[tokio::test]
    async fn what_is_certainly_too_long_is_not_tokenized() {
        let prompt = prompt(samples::byte_level(), 1);
        let text = || Input::Text("hello".repeat(SHORT));
        let error = prompt.encode(text(), Length::Within(100)).await.unwrap_err();
        let message = "`inputs` must have <= 100 tokens. Given: more than 100";
        assert_eq!(error, PromptError::Invalid(message.into()));
        for length in [Length::Within(SHORT as u32), Length::Last(SHORT as u32), Length::Any] {
            assert_eq!(prompt.encode(text(), length).await.unwrap().len(), SHORT);
        }
        // What nothing is certain of comes back whole.
        let prompt = self::prompt(samples::wordpiece(), 1);
        assert!(prompt.encode(text(), Length::Within(100)).await.is_ok());
    }

    #[tokio::test]
    async fn tokens_know_their_bytes_in_the_text() {
        let prompt = prompt(samples::sentencepiece(), 1);
        let spans = prompt.tokenize("hello é lo".into(), true).await.unwrap();
        let seen: Vec<(&str, usize, usize)> =
            spans.iter().map(|s| (s.text.as_str(), s.start, s.stop)).collect();
        assert_eq!(seen, [("", 0, 0), ("hello", 0, 5), (" ", 5, 6), ("é", 6, 8), (" ", 8, 9), ("lo", 9, 11)]);
    }

    #[tokio::test]
    async fn a_model_without_a_template_says_so() {
        let error = prompt(samples::byte_level(), 1).render(Chat::default()).await.unwrap_err();
        assert_eq!(error, PromptError::Template("this model has no chat template".into()));
    }

    #[tokio::test]
    async fn a_panic_fails_its_own_prompt_only() {
        let prompt = prompt(samples::byte_level(), 1);
        let result: Result<(), _> = prompt.work(1, || panic!("on purpose")).await;
        assert!(matches!(result, Err(PromptError::Failed(_))));
        assert!(prompt.encode(Input::Text("hello".into()), Length::Any).await.is_ok());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_short_prompt_does_not_wait_for_long_ones() {
        let prompt = Arc::new(prompt(samples::byte_level(), 1));
        let gate = Arc::new(Barrier::new(2));
        let busy = tokio::spawn({
            let (prompt, gate) = (prompt.clone(), gate.clone());
            async move { prompt.work(SHORT + 1, move || Ok(gate.wait().is_leader())).await }
        });
        while prompt.workers.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(prompt.encode(Input::Text("hello".into()), Length::Any).await.is_ok());
        let long = prompt.encode(Input::Text("hello".repeat(SHORT)), Length::Any);
        assert!(futures::FutureExt::now_or_never(long).is_none());
        gate.wait();
        busy.await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dropped_caller_that_waits_is_never_worked_for() {
        let prompt = Arc::new(prompt(samples::byte_level(), 1));
        let gate = Arc::new(Barrier::new(2));
        let ran = Arc::new(AtomicU32::new(0));

        let busy = tokio::spawn({
            let (prompt, gate) = (prompt.clone(), gate.clone());
            async move { prompt.work(1, move || Ok(gate.wait().is_leader())).await }
        });
        while prompt.quick_workers.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let count = ran.clone();
        let waiting = prompt.work(1, move || Ok(count.fetch_add(1, Ordering::SeqCst)));
        // Polled once, so that it waits for its turn; then its client leaves.
        assert!(futures::FutureExt::now_or_never(waiting).is_none());

        gate.wait();
        busy.await.unwrap().unwrap();
        let count = ran.clone();
        prompt.work(1, move || Ok(count.fetch_add(10, Ordering::SeqCst))).await.unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 10);
    }
}
