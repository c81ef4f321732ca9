//! An answer as a row of blocks, each of one kind, for dialects that tell it so: Anthropic's content blocks, OpenAI's
//! output items.

use penstock_core::generation::{FinishReason, TokenEvent};
use penstock_output::Delta;

use crate::http::chats::reader::{Reader, Reading};

#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Reasoning,
    Text,
    Call { id: String, name: String },
}

/// What the next part of an answer does to its blocks, of which one is open at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockEvent {
    Begins(Block),
    /// A part of the open block's text, or of its call's arguments.
    Adds(Block, String),
    Ends(Block),
}

/// Reads a request's only choice.
pub struct Blocks {
    reader: Reader,
    open: Option<Block>,
    /// Words between two arguments of the open call: of blocks none is parted, so they follow it.
    between: String,
}

impl Blocks {
    pub fn new(reading: &Reading) -> Self {
        Self { reader: reading.reader(0), open: None, between: String::new() }
    }

    pub fn push(&mut self, token: &TokenEvent) -> Vec<BlockEvent> {
        let deltas = self.reader.push(token);
        self.events(deltas)
    }

    /// Tokens that brought text of reasoning.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reader.reasoning_tokens().unwrap_or_default()
    }

    /// The last block ends.
    pub fn finish(&mut self) -> Vec<BlockEvent> {
        let deltas = self.reader.finish();
        let mut events = self.events(deltas);
        self.end(&mut events);
        // What followed a call.
        self.end(&mut events);
        events
    }

    /// As of the reader.
    pub fn calls(&self, reason: FinishReason) -> bool {
        self.reader.calls(reason)
    }

    /// As of the reader.
    pub fn is_cut(&self) -> bool {
        self.reader.is_cut()
    }

    fn events(&mut self, deltas: Vec<Delta>) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        for delta in deltas {
            match delta {
                Delta::Content(text) if matches!(self.open, Some(Block::Call { .. })) => {
                    self.between.push_str(&text);
                }
                Delta::Content(text) => self.add(Block::Text, text, &mut events),
                Delta::Reasoning(text) => self.add(Block::Reasoning, text, &mut events),
                Delta::CallBegins { index, name } => {
                    let id = self.reader.id(index, &name);
                    self.begin(Block::Call { id, name }, &mut events);
                }
                Delta::Arguments { json, .. } => {
                    events.extend(self.open.clone().map(|block| BlockEvent::Adds(block, json)));
                }
                Delta::CallEnds { .. } => self.end(&mut events),
            }
        }
        events
    }

    fn add(&mut self, block: Block, text: String, events: &mut Vec<BlockEvent>) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref() != Some(&block) {
            self.begin(block.clone(), events);
        }
        events.push(BlockEvent::Adds(block, text));
    }

    fn begin(&mut self, block: Block, events: &mut Vec<BlockEvent>) {
        self.end(events);
        events.extend(self.open.replace(block.clone()).map(BlockEvent::Ends));
        events.push(BlockEvent::Begins(block));
    }

    /// Ends the open block, and begins one of the words that waited for that.
    fn end(&mut self, events: &mut Vec<BlockEvent>) {
        events.extend(self.open.take().map(BlockEvent::Ends));
        let between = std::mem::take(&mut self.between);
        self.add(Block::Text, between, events);
    }
}

/// A block that has ended, with its text or its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    pub block: Block,
    pub text: String,
}

/// All blocks of an answer, and what made them.
pub fn whole(reading: &Reading, tokens: &[TokenEvent]) -> (Vec<Whole>, Blocks) {
    let mut blocks = Blocks::new(reading);
    let mut all: Vec<Whole> = Vec::new();
    let events: Vec<BlockEvent> = tokens.iter().flat_map(|token| blocks.push(token)).collect();
    for event in events.into_iter().chain(blocks.finish()) {
        match event {
            BlockEvent::Begins(block) => all.push(Whole { block, text: String::new() }),
            BlockEvent::Adds(_, text) => {
                if let Some(last) = all.last_mut() {
                    last.text.push_str(&text);
                }
            }
            BlockEvent::Ends(_) => {}
        }
    }
    (all, blocks)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use penstock_output::{Start, Tool, reasoning_format, tool_format};

    pub fn token(text: &str, special: bool) -> TokenEvent {
        TokenEvent {
            index: 1,
            id: penstock_proto::ids::TokenId(0),
            text: text.to_owned(),
            logprob: 0.0,
            special,
            top: Vec::new(),
            last: false,
            prefill: Vec::new(),
        }
    }

    fn reading() -> Reading {
        let tools = [Tool { name: "f".to_owned(), parameters: serde_json::Value::Null }];
        let (calls, reasoning) = (tool_format("hermes"), reasoning_format("think"));
        Reading { calls, reasoning, tools: tools.into(), start: Start::Content, ..Reading::plain() }
    }

    #[test]
    fn an_answer_is_a_row_of_blocks() {
        let parts = [
            ("<think>", true),
            ("Hm", false),
            ("m.", false),
            ("</think>", true),
            ("I look.", false),
            ("<tool_call>", true),
            ("{\"name\": \"f\", \"arguments\": {}}", false),
            ("</tool_call>", true),
            ("<|im_end|>", true),
        ];
        let tokens: Vec<TokenEvent> = parts.iter().map(|(text, special)| token(text, *special)).collect();
        let (all, _) = whole(&reading(), &tokens);
        let texts: Vec<&str> = all.iter().map(|one| one.text.as_str()).collect();
        assert_eq!(texts, ["Hmm.", "I look.", "{}"]);
        assert_eq!((&all[0].block, &all[1].block), (&Block::Reasoning, &Block::Text));
        assert!(matches!(&all[2].block, Block::Call { name, .. } if name == "f"));

        let mut blocks = Blocks::new(&reading());
        let mut events: Vec<BlockEvent> = tokens.iter().flat_map(|token| blocks.push(token)).collect();
        events.extend(blocks.finish());
        let begun = events.iter().filter(|event| matches!(event, BlockEvent::Begins(_))).count();
        let ended = events.iter().filter(|event| matches!(event, BlockEvent::Ends(_))).count();
        assert_eq!((begun, ended, blocks.calls(FinishReason::EosToken)), (3, 3, true));
    }

    /// A call's arguments are one text, whatever stands between them.
    #[test]
    fn words_between_two_arguments_follow_their_call() {
        let parameters = serde_json::json!({"properties": {"days": {"type": "integer"}}});
        let tools = [Tool { name: "f".to_owned(), parameters }];
        let reading = Reading { calls: tool_format("qwen3_coder"), tools: tools.into(), ..Reading::plain() };
        let parameter = |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
        let (city, days) = (parameter("city", "Paris"), parameter("days", "2"));
        let open = format!("I look.<tool_call>\n<function=f>\n{city}and\n");
        for (end, expected) in [
            (format!("{days}</function>\n</tool_call>"), r#"{"city": "Paris", "days": 2}"#),
            (format!("{days}</function>\n</tool_call>\nDone."), r#"{"city": "Paris", "days": 2}"#),
            (String::new(), r#"{"city": "Paris""#),
        ] {
            let text = format!("{open}{end}");
            let letters: Vec<TokenEvent> =
                text.chars().map(|letter| token(&letter.to_string(), false)).collect();
            for tokens in [letters, vec![token(&text, false)]] {
                let (all, _) = whole(&reading, &tokens);
                let texts: Vec<&str> = all.iter().map(|one| one.text.as_str()).collect();
                let after = if end.ends_with("Done.") { "and\n\nDone." } else { "and\n" };
                assert_eq!(texts, ["I look.", expected, after]);
                assert!(matches!(all[1].block, Block::Call { .. }) && all[2].block == Block::Text);
            }
        }
    }

    #[test]
    fn a_special_token_that_is_no_marker_is_no_text() {
        let (all, _) = whole(&reading(), &[token("a", false), token("<|other|>", true), token("b", false)]);
        assert_eq!(all, [Whole { block: Block::Text, text: "ab".to_owned() }]);
        assert_eq!(whole(&Reading::plain(), &[token("a", false), token("<tool_call>", true)]).0[0].text, "a");
        assert!(whole(&reading(), &[]).0.is_empty());
    }
}
