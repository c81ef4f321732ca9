//! From what a client wrote to token ids: chat template, tokenizer, truncation. Shared by every
//! request; the work runs on a bounded number of blocking threads, never on the async ones. The dialects
//! call it to render chats and to tokenize, `generation` to encode prompts and to spell tokens.

mod byte_level;
mod files;
mod growth;
mod post_processor;
#[cfg(test)]
pub mod samples;
mod slices;
mod special_tokens;
mod token_count;
mod vocabulary;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use penstock_proto::ids::TokenId;
pub use penstock_template::{Chat, InvalidChat, may_be_default};
use penstock_template::{ChatError, ChatTemplates};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::blocking::{BlockingPool, SHORT, Undone};
use crate::tenant::Tenant;
use files::ModelFiles;
pub use files::{LoadError, problems as problems_of_files};
pub use vocabulary::{DecoderKind, Vocabulary};

/// Tokenizer and chat templates of the served model.
pub struct Prompt {
    vocabulary: Arc<Vocabulary>,
    /// `None` for a model that has no chat template.
    template: Option<ChatTemplates>,
    /// The tokenizer's own end-of-sequence token.
    eos: Option<TokenId>,
    /// For prompts.
    pool: BlockingPool,
    /// For texts whose tokens are to be told: they may be longer than any prompt, and need more memory, so that one
    /// of each class of sizes is worked on at once, and no prompt waits for them.
    listing: BlockingPool,
}

/// Said at the start, and to whoever sends a chat.
const NO_TEMPLATE: &str = "this model has no chat template, so that chats cannot be served. Send texts instead \
                           (`/v1/completions`, `/generate`), or give the model one: a chat_template.jinja in its \
                           folder, or `chat_template` in the file of --tokenizer-config-path";

/// What a prompt is made of.
#[derive(Clone, Debug)]
pub enum Input {
    /// Special tokens are added as the tokenizer does by default.
    Text(String),
    /// From a chat template, which wrote its special tokens itself.
    Rendered(String),
    Tokens(Vec<TokenId>),
}

/// What becomes of a prompt that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
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

/// Why a prompt was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    #[error("the prompt has more than {limit} tokens")]
    TooLong { limit: usize },
    /// More than is tokenized, where `limit` tokens may be. It may have fewer: a token may be many spaces.
    #[error("the prompt's text has {given} bytes, and may have {most}")]
    TooMuchText { limit: usize, most: usize, given: usize },
    #[error(transparent)]
    Chat(#[from] InvalidChat),
    /// The model has no usable chat template, or it refused these messages, in these words.
    #[error("{0}")]
    Template(String),
    #[error("the tokenizer failed on this prompt")]
    Tokenizer,
    #[error("the prompt could not be prepared")]
    Undone(#[from] Undone),
}

/// A text and its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokenized {
    pub text: String,
    pub tokens: Vec<TokenSpan>,
}

/// A token and the bytes of the text that it stands for; none for a token that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSpan {
    pub id: TokenId,
    pub start: usize,
    pub stop: usize,
}

impl Tokenized {
    /// What a token stands for.
    pub fn text_of(&self, token: &TokenSpan) -> Cow<'_, str> {
        String::from_utf8_lossy(self.text.as_bytes().get(token.start..token.stop).unwrap_or_default())
    }
}

impl Prompt {
    /// Reads tokenizer.json, tokenizer_config.json (or the files given instead of them) and the chat
    /// templates of the model in `dir`. At most `workers` prompts of each class of sizes are worked on at once. A
    /// chat template that does not compile is a warning here, and an error when it is asked for.
    pub fn load(
        dir: &Path,
        tokenizer: Option<&Path>,
        tokenizer_config: Option<&Path>,
        workers: u32,
    ) -> Result<Self, LoadError> {
        Self::load_with(dir, tokenizer, tokenizer_config, &Map::new(), workers)
    }

    /// `defaults` are variables of chats that do not give these themselves; they go before those of the model's files.
    pub fn load_with(
        dir: &Path,
        tokenizer: Option<&Path>,
        tokenizer_config: Option<&Path>,
        defaults: &Map<String, Value>,
        workers: u32,
    ) -> Result<Self, LoadError> {
        let files = ModelFiles::read(dir, tokenizer, tokenizer_config)?;
        let eos = files.named_tokens.get("eos_token").and_then(Value::as_str);
        let eos = eos.and_then(|name| files.tokenizer.token_to_id(name)).map(TokenId);
        let mut variables = files.template_defaults;
        variables.extend(defaults.clone());
        let template = files.chat_templates.map(|(sources, file)| {
            if !variables.is_empty() {
                let shown = Value::from(variables.clone());
                tracing::info!("chats that say nothing else have the template's variables {shown}");
            }
            let templates = ChatTemplates::compile(&sources, files.named_tokens, |name, reason| {
                tracing::warn!("{}", files::does_not_compile(&file, name, &reason));
            });
            templates.with_defaults(variables)
        });
        if template.is_none() {
            tracing::info!("{NO_TEMPLATE}");
        }
        Ok(Self {
            vocabulary: Arc::new(Vocabulary::new(files.tokenizer, &files.special)),
            template,
            eos,
            pool: BlockingPool::new(workers),
            listing: BlockingPool::new(1),
        })
    }

    /// The token ids of a tenant's prompt.
    pub async fn encode(
        &self,
        tenant: Tenant,
        input: Input,
        length: Length,
    ) -> Result<Vec<TokenId>, PromptError> {
        match input {
            Input::Text(text) => self.encode_text(tenant, text, true, length).await,
            Input::Rendered(text) => self.encode_text(tenant, text, false, length).await,
            Input::Tokens(tokens) => Ok(length.cut(tokens, &[])),
        }
    }

    /// The tokens of `text`, at most so many, with the tokenizer's special tokens added or not, and where each is in
    /// it, in bytes.
    pub async fn tokenize(
        &self,
        tenant: Tenant,
        text: String,
        add_special_tokens: bool,
        most: usize,
    ) -> Result<Tokenized, PromptError> {
        refuse_text(most, &text)?;
        let vocabulary = self.vocabulary.clone();
        let listed = self.listing.run(tenant, text.len(), move |_| {
            refuse_above(most, &vocabulary, &text)?;
            let encoding =
                vocabulary.tokenizer().encode(text.as_str(), add_special_tokens).map_err(no_tokens)?;
            if encoding.len() > most {
                return Err(PromptError::TooLong { limit: most });
            }
            let spans = encoding.get_ids().iter().zip(encoding.get_offsets());
            let spans = spans.map(|(&id, &(start, stop))| TokenSpan { id: TokenId(id), start, stop });
            Ok(Tokenized { tokens: spans.collect(), text })
        });
        listed.await.unwrap_or_else(|undone| Err(undone.into()))
    }

    /// The prompt text of a chat, for `Input::Rendered`. Takes a while: to be called on a blocking thread. Ends soon
    /// after `client` is cancelled.
    pub fn render(&self, chat: &Chat, client: &CancellationToken) -> Result<String, PromptError> {
        match &self.template {
            Some(template) => Ok(template.render(chat, client)?),
            None => Err(PromptError::Template(NO_TEMPLATE.into())),
        }
    }

    /// What a chat is rendered with, as the model's files have it: the template for chats with tools, or the other one.
    pub fn chat_template(&self, with_tools: bool) -> Option<&str> {
        self.template.as_ref()?.source(with_tools)
    }

    /// As `decode`, on a blocking thread.
    pub async fn decode_apart(&self, tenant: Tenant, tokens: Vec<TokenId>) -> Result<String, PromptError> {
        let vocabulary = self.vocabulary.clone();
        self.work(tenant, size_of_val(&*tokens), move |_| Ok(vocabulary.decode(&tokens))).await
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
        tenant: Tenant,
        text: String,
        add_special_tokens: bool,
        length: Length,
    ) -> Result<Vec<TokenId>, PromptError> {
        if let Length::Within(most) = length {
            // Here and not on the thread, so that the text is let go of and waits for none.
            refuse_text(most as usize, &text)?;
        }
        let vocabulary = self.vocabulary.clone();
        self.work(tenant, text.len(), move |_| {
            let text = match length {
                // A short one is tokenized as fast as it is looked at.
                Length::Within(_) if text.len() <= SHORT => text.as_str(),
                Length::Within(most) => {
                    refuse_above(most as usize, &vocabulary, &text)?;
                    text.as_str()
                }
                Length::Last(most) => {
                    let most = most as usize;
                    let tail = slices::tail(vocabulary.tokenizer(), most, &text).map_err(no_tokens)?;
                    refuse_text(most, tail)?;
                    tail
                }
            };
            let encoding = vocabulary.tokenizer().encode_fast(text, add_special_tokens).map_err(no_tokens)?;
            let tokens = encoding.get_ids().iter().copied().map(TokenId).collect();
            Ok(length.cut(tokens, encoding.get_special_tokens_mask()))
        })
        .await
    }

    /// Runs work on a prompt of so many bytes on a blocking thread when one is free.
    async fn work<T: Send + 'static>(
        &self,
        tenant: Tenant,
        bytes: usize,
        task: impl FnOnce(&CancellationToken) -> Result<T, PromptError> + Send + 'static,
    ) -> Result<T, PromptError> {
        self.pool.run(tenant, bytes, task).await.unwrap_or_else(|undone| Err(undone.into()))
    }
}

impl From<ChatError> for PromptError {
    fn from(error: ChatError) -> Self {
        match error {
            ChatError::Invalid(invalid) => Self::Chat(invalid),
            ChatError::Template(text) => Self::Template(text),
        }
    }
}

/// Bytes of a text that are tokenized whole, where few tokens are allowed: the tokenizer takes some 50 bytes of memory for each,
/// and a chat template can make megabytes of a short body.
const TEXT: usize = 4 << 20;

/// Bytes of a token that are allowed for where many tokens are. Of plain text it has four or five.
const LONG_TOKENS: usize = 16;

/// A text that is too much to be tokenized, whatever tokens it has.
fn refuse_text(limit: usize, text: &str) -> Result<(), PromptError> {
    let most = TEXT.max(limit.saturating_mul(LONG_TOKENS));
    if text.len() <= most { Ok(()) } else { Err(PromptError::TooMuchText { limit, most, given: text.len() }) }
}

/// As soon as it is known that a text has more than so many tokens; not every such text is.
fn refuse_above(most: usize, vocabulary: &Vocabulary, text: &str) -> Result<(), PromptError> {
    let above = text.len() > most
        && (vocabulary.is_above(most, text)
            || slices::is_above(vocabulary.tokenizer(), most, text).map_err(no_tokens)?);
    if above { Err(PromptError::TooLong { limit: most }) } else { Ok(()) }
}

fn no_tokens(error: tokenizers::Error) -> PromptError {
    tracing::warn!("the tokenizer failed: {error}");
    PromptError::Tokenizer
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Length = Length::Within(u32::MAX);
    const NOBODY: Tenant = Tenant::Anonymous;

    fn prompt(tokenizer: tokenizers::Tokenizer, workers: u32) -> Prompt {
        Prompt {
            vocabulary: Arc::new(Vocabulary::new(tokenizer, &[])),
            template: None,
            eos: None,
            pool: BlockingPool::new(workers),
            listing: BlockingPool::new(1),
        }
    }

    #[tokio::test]
    async fn text_gets_special_tokens_and_rendered_chats_do_not() {
        let prompt = prompt(samples::sentencepiece(), 1);
        let text = prompt.encode(NOBODY, Input::Text("lo".into()), ANY).await.unwrap();
        assert_eq!(text[0], TokenId(1));
        let rendered = prompt.encode(NOBODY, Input::Rendered("lo".into()), ANY).await.unwrap();
        assert_eq!(rendered, text[1..]);
    }

    /// As DeepSeek's are published: tokenizer.json adds nothing.
    #[tokio::test]
    async fn a_text_begins_with_the_token_that_only_the_configuration_asks_for() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
        write("tokenizer.json", samples::byte_level().to_string(false).unwrap());
        let config = serde_json::json!({
            "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true,
            "bos_token": {"__type": "AddedToken", "content": "<|end|>"}, "chat_template": "{{ bos_token }}hello"
        });
        write("tokenizer_config.json", config.to_string());
        // A file that an operator names for its chat template says nothing of tokens.
        let mine = folder.path().join("mine.json");
        std::fs::write(&mine, serde_json::json!({"chat_template": "<|end|>hello"}).to_string()).unwrap();
        for config in [None, Some(&*mine)] {
            let prompt = Prompt::load(folder.path(), None, config, 1).unwrap();
            let encode = |input, length| prompt.encode(NOBODY, input, length);
            let text = || Input::Text("hello hello".into());
            let all = encode(text(), ANY).await.unwrap();
            let bos = TokenId(prompt.vocabulary().tokenizer().token_to_id("<|end|>").unwrap());
            assert_eq!(all.iter().filter(|token| **token == bos).count(), 1);
            assert_eq!(all[0], bos);
            let listed = prompt.tokenize(NOBODY, "hello hello".into(), true, 10).await.unwrap();
            assert_eq!(listed.tokens.iter().map(|token| token.id).collect::<Vec<_>>(), all);
            assert_eq!(encode(text(), Length::Last(2)).await.unwrap(), [bos, all[2]]);
            let chat = prompt.render(&Chat::default(), &CancellationToken::new()).unwrap();
            assert_eq!(encode(Input::Rendered(chat), ANY).await.unwrap(), all[..2]);
        }
    }

    #[tokio::test]
    async fn a_special_token_written_in_the_prompt_is_one_token() {
        let prompt = prompt(samples::byte_level(), 1);
        let tokens = prompt.encode(NOBODY, Input::Rendered("hello<|end|>".into()), ANY).await.unwrap();
        assert_eq!(tokens.len(), 2);
        assert_eq!(prompt.decode(&tokens), "hello");
        assert_eq!(prompt.token_bytes(tokens[1]), b"<|end|>");
    }

    #[tokio::test]
    async fn truncation_keeps_the_end() {
        let prompt = prompt(samples::byte_level(), 1);
        let ids: Vec<TokenId> = (0..10).map(TokenId).collect();
        for input in [Input::Tokens(ids.clone()), Input::Text(prompt.decode(&ids))] {
            let all = prompt.encode(NOBODY, input.clone(), ANY).await.unwrap();
            assert_eq!(
                prompt.encode(NOBODY, input.clone(), Length::Last(3)).await.unwrap(),
                all[all.len() - 3..]
            );
            assert_eq!(prompt.encode(NOBODY, input, Length::Last(1000)).await.unwrap(), all);
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
        let all = prompt.encode(NOBODY, input(), ANY).await.unwrap();
        let last = |most| prompt.encode(NOBODY, input(), Length::Last(most));
        for most in 2..all.len() {
            let cut = [&all[..1], &all[all.len() - most + 1..]].concat();
            assert_eq!(last(most as u32).await.unwrap(), cut);
        }
        assert_eq!(last(1).await.unwrap(), all[all.len() - 1..]);
        assert_eq!(last(100).await.unwrap(), all);
        // A chat's own template has written its special tokens.
        let chat = prompt.encode(NOBODY, Input::Rendered("<s>a b c".into()), Length::Last(3)).await.unwrap();
        assert_eq!(chat, all[all.len() - 5..all.len() - 2]);
    }

    #[tokio::test]
    async fn what_is_certainly_too_long_is_not_tokenized() {
        let prompt = prompt(samples::byte_level(), 1);
        let text = || Input::Text("hello".repeat(SHORT));
        let error = prompt.encode(NOBODY, text(), Length::Within(100)).await.unwrap_err();
        assert_eq!(error, PromptError::TooLong { limit: 100 });
        for length in [Length::Within(SHORT as u32), Length::Last(SHORT as u32), ANY] {
            assert_eq!(prompt.encode(NOBODY, text(), length).await.unwrap().len(), SHORT);
        }
        // What nothing is certain of comes back whole: one word, of any length.
        let prompt = self::prompt(samples::wordpiece(), 1);
        assert!(prompt.encode(NOBODY, text(), Length::Within(100)).await.is_ok());
        let words = Input::Text("hello ".repeat(SHORT));
        assert_eq!(prompt.encode(NOBODY, words, Length::Within(100)).await.unwrap_err(), error);
    }

    /// A word that the vocabulary lacks is one token, however long it is.
    #[tokio::test]
    async fn a_text_of_few_tokens_has_a_length_in_bytes() {
        let prompt = prompt(samples::wordpiece(), 1);
        let text = |bytes: usize| "x".repeat(bytes);
        let too_much = |limit| PromptError::TooMuchText { limit, most: TEXT, given: TEXT + 1 };
        for length in [Length::Within(100), Length::Last(100)] {
            let rendered = |bytes| Input::Rendered(text(bytes));
            assert_eq!(prompt.encode(NOBODY, rendered(TEXT), length).await.map(|tokens| tokens.len()), Ok(1));
            assert_eq!(prompt.encode(NOBODY, rendered(TEXT + 1), length).await, Err(too_much(100)));
        }
        assert_eq!(prompt.tokenize(NOBODY, text(TEXT + 1), true, 200).await, Err(too_much(200)));
        // Where more tokens are allowed, so is more text.
        let more = prompt.encode(NOBODY, Input::Text(text(TEXT + 1)), Length::Within(TEXT as u32 / 16 + 1));
        assert!(more.await.is_ok());
    }

    #[tokio::test]
    async fn tokens_know_their_bytes_in_the_text() {
        let prompt = prompt(samples::sentencepiece(), 1);
        let listed = prompt.tokenize(NOBODY, "hello é lo".into(), true, 6).await.unwrap();
        let seen: Vec<_> = listed.tokens.iter().map(|t| (listed.text_of(t), t.start, t.stop)).collect();
        let expected = [("", 0, 0), ("hello", 0, 5), (" ", 5, 6), ("é", 6, 8), (" ", 8, 9), ("lo", 9, 11)];
        assert_eq!(seen, expected.map(|(text, start, stop)| (text.into(), start, stop)));
    }

    #[tokio::test]
    async fn a_list_of_tokens_has_a_length() {
        for tokenizer in [samples::byte_level(), samples::wordpiece()] {
            let prompt = prompt(tokenizer, 1);
            let text = || "hello ".repeat(100);
            let tokens = prompt.tokenize(NOBODY, text(), false, 1000).await.unwrap().tokens.len();
            assert_eq!(prompt.tokenize(NOBODY, text(), false, tokens).await.unwrap().tokens.len(), tokens);
            let error = prompt.tokenize(NOBODY, text(), false, tokens - 1).await.unwrap_err();
            assert_eq!(error, PromptError::TooLong { limit: tokens - 1 });
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_prompt_does_not_wait_for_a_text_whose_tokens_are_told() {
        let prompt = prompt(samples::byte_level(), 1);
        let text = || "hello".repeat(SHORT);
        let (held, release) = std::sync::mpsc::channel::<()>();
        let busy = prompt.listing.run(NOBODY, text().len(), move |_| release.recv());
        tokio::pin!(busy);
        assert!(futures::FutureExt::now_or_never(busy.as_mut()).is_none());
        assert!(prompt.encode(NOBODY, Input::Text(text()), ANY).await.is_ok());
        drop(held);
        busy.await.unwrap().unwrap_err();
    }

    #[tokio::test]
    async fn a_model_without_a_template_says_so() {
        let error =
            prompt(samples::byte_level(), 1).render(&Chat::default(), &CancellationToken::new()).unwrap_err();
        assert_eq!(error, PromptError::Template(NO_TEMPLATE.into()));
    }

    #[tokio::test]
    async fn a_panic_fails_its_own_prompt_only() {
        let prompt = prompt(samples::byte_level(), 1);
        let result: Result<(), _> = prompt.work(NOBODY, 1, |_| panic!("on purpose")).await;
        assert!(matches!(result, Err(PromptError::Undone(Undone::Lost))));
        assert!(prompt.encode(NOBODY, Input::Text("hello".into()), ANY).await.is_ok());
    }
}
