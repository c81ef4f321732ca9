//! Turns sampled tokens into token events: text, stop strings, finish reason. Owned by a generation; knows nothing of
//! mailboxes or time.

use std::collections::VecDeque;
use std::sync::Arc;

use penstock_proto::ids::TokenId;

use crate::generation::detokenizer::Detokenizer;
use crate::generation::event::{FinishReason, TextToken, TokenEvent};
use crate::generation::request::StopText;
use crate::generation::stop::{Checked, StopStrings};
use crate::prompt::Vocabulary;
use crate::scheduler::{Finish, SampledToken};

pub struct OutputProcessor {
    vocabulary: Arc<Vocabulary>,
    detokenizer: Detokenizer,
    stop: StopStrings,
    /// In the text of so many tokens no stop string counts.
    min_tokens: u32,
    /// Any token may turn out to have been the last, so one is always kept back for `time_up`.
    keeps_last: bool,
    text: String,
    /// A stop string has ended the text.
    stopped: bool,
    tokens: u32,
    /// The last event, while some of its text is held back or any token may have been the last. If no token with text
    /// follows, what was held back is still its own.
    waiting: Option<TokenEvent>,
}

impl OutputProcessor {
    pub fn new(
        vocabulary: Arc<Vocabulary>,
        prompt: &[TokenId],
        stop: &[String],
        stop_text: StopText,
        min_tokens: u32,
    ) -> Self {
        Self {
            detokenizer: Detokenizer::new(vocabulary.clone(), prompt),
            vocabulary,
            stop: StopStrings::new(stop, stop_text),
            min_tokens,
            keeps_last: false,
            text: String::new(),
            stopped: false,
            tokens: 0,
            waiting: None,
        }
    }

    /// The text may end by `time_up`.
    pub fn keep_last(self) -> Self {
        Self { keeps_last: true, ..self }
    }

    pub fn has_stop_strings(&self) -> bool {
        self.stop.has_any()
    }

    /// Tells the events that one more token makes known, and why the text has ended if it has: then none may follow.
    /// `finish` says that the token is the last.
    pub fn process(
        &mut self,
        token: SampledToken,
        finish: Option<Finish>,
        told: &mut VecDeque<TokenEvent>,
    ) -> Option<FinishReason> {
        // What ends the sequence is never text, whatever the tokenizer calls it.
        let special = self.vocabulary.is_special(token.id) || finish == Some(Finish::Eos);
        let mut ended = finish.map(|finish| match finish {
            Finish::Eos | Finish::Complete => FinishReason::EosToken,
            Finish::Length => FinishReason::Length,
        });
        if special {
            self.settle(&mut ended);
        }
        self.tokens += 1;
        let text = if special {
            let name = self.vocabulary.name(token.id);
            if finish != Some(Finish::Eos) && self.tokens > self.min_tokens && self.stop.is_name(&name) {
                ended = Some(FinishReason::StopSequence);
            }
            name
        } else {
            let piece = self.detokenizer.push(token.id);
            self.pass(piece, &mut ended)
        };

        // Held-back text is told already or is now the new token's, so that the one before it is complete.
        told.extend(self.waiting.take());
        self.waiting = Some(TokenEvent {
            index: self.tokens,
            id: token.id,
            text,
            logprob: token.logprob,
            special,
            top: each_alone(&self.vocabulary, &token.top),
            last: false,
            prefill: Vec::new(),
        });
        if ended.is_some() {
            self.end(&mut ended, told);
        } else if !(self.keeps_last || self.detokenizer.holds() || self.stop.holds()) {
            told.extend(self.waiting.take());
        }
        ended
    }

    /// No token follows: the last one was the last. There must have been one, and `keep_last`.
    pub fn time_up(&mut self, told: &mut VecDeque<TokenEvent>) -> Option<FinishReason> {
        let mut ended = Some(FinishReason::Length);
        self.end(&mut ended, told);
        ended
    }

    fn end(&mut self, ended: &mut Option<FinishReason>, told: &mut VecDeque<TokenEvent>) {
        self.settle(ended);
        if let Some(mut event) = self.waiting.take() {
            event.last = true;
            told.push_back(event);
        }
    }

    /// Gives what was held back to the token that it belongs to: no token follows, or a special one. Readers of calls and
    /// reasoning take that for a marker, so text before it must not come out behind it, and no stop string goes across it.
    fn settle(&mut self, ended: &mut Option<FinishReason>) {
        if self.stopped {
            return;
        }
        let tail = self.detokenizer.finish();
        let mut rest = self.pass(tail, ended);
        if !self.stopped {
            let held = self.stop.flush();
            self.text.push_str(&held);
            rest.push_str(&held);
        }
        if let Some(event) = self.waiting.as_mut().filter(|event| !event.special) {
            event.text.push_str(&rest);
        }
    }

    /// What still waits, when the sequence breaks off.
    pub fn break_off(&mut self) -> Option<TokenEvent> {
        self.waiting.take()
    }

    /// The stop string that has ended the text.
    pub fn stopped_by(&self) -> Option<String> {
        self.stop.ended_by()
    }

    /// The whole text, once it has ended, and the number of tokens.
    pub fn take_text(&mut self) -> (String, u32) {
        (std::mem::take(&mut self.text), self.tokens)
    }

    /// What goes of a piece of text now. Sets `ended` if a stop string is complete.
    fn pass(&mut self, piece: String, ended: &mut Option<FinishReason>) -> String {
        let part = if self.tokens <= self.min_tokens {
            self.stop.pass(piece)
        } else {
            match self.stop.push(piece) {
                Checked::Goes(part) => part,
                Checked::Ends(part) => {
                    *ended = Some(FinishReason::StopSequence);
                    self.stopped = true;
                    part
                }
            }
        };
        self.text.push_str(&part);
        part
    }
}

/// A token with the text of itself alone.
pub fn each_alone(vocabulary: &Vocabulary, tokens: &[(TokenId, f32)]) -> Vec<TextToken> {
    tokens.iter().map(|&(id, logprob)| alone(vocabulary, id, Some(logprob))).collect()
}

pub fn alone(vocabulary: &Vocabulary, id: TokenId, logprob: Option<f32>) -> TextToken {
    TextToken { id, text: vocabulary.text(id), logprob, special: vocabulary.is_special(id) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::samples;
    use proptest::prelude::*;

    fn vocabulary() -> Arc<Vocabulary> {
        Arc::new(Vocabulary::new(samples::byte_level(), &[]))
    }

    /// `<|end|>` is a special token.
    fn ids(text: &str) -> Vec<TokenId> {
        let encoding = samples::byte_level().encode_fast(text, false).unwrap();
        encoding.get_ids().iter().copied().map(TokenId).collect()
    }

    fn sampled(id: TokenId) -> SampledToken {
        SampledToken { id, logprob: -0.5, top: vec![(id, -0.5)], is_draft: false }
    }

    /// What one more token makes known.
    struct Processed {
        events: Vec<TokenEvent>,
        ended: Option<FinishReason>,
    }

    fn process(output: &mut OutputProcessor, token: SampledToken, finish: Option<Finish>) -> Processed {
        let mut told = VecDeque::new();
        let ended = output.process(token, finish, &mut told);
        Processed { events: told.into(), ended }
    }

    struct Outcome {
        /// The texts of the events that each token brought.
        steps: Vec<Vec<String>>,
        events: Vec<TokenEvent>,
        reason: FinishReason,
        text: String,
        tokens: u32,
    }

    /// Writes the tokens of `text`, the last of them with `finish`, up to the end.
    fn write(text: &str, stop: &[&str], stop_text: StopText, finish: Finish) -> Outcome {
        let stop: Vec<String> = stop.iter().map(|s| s.to_string()).collect();
        let mut output = OutputProcessor::new(vocabulary(), &[], &stop, stop_text, 0);
        let tokens = ids(text);
        let (mut steps, mut events) = (Vec::new(), Vec::new());
        for (at, &id) in tokens.iter().enumerate() {
            let processed = process(&mut output, sampled(id), (at + 1 == tokens.len()).then_some(finish));
            steps.push(processed.events.iter().map(|event| event.text.clone()).collect());
            events.extend(processed.events);
            if let Some(reason) = processed.ended {
                let (text, tokens) = output.take_text();
                return Outcome { steps, events, reason, text, tokens };
            }
        }
        panic!("the last token ends the text");
    }

    fn joined(events: &[TokenEvent]) -> String {
        events.iter().filter(|event| !event.special).map(|event| event.text.as_str()).collect()
    }

    #[test]
    fn each_token_is_told_when_it_is_there() {
        let outcome = write("hello hello!", &[], StopText::Omit, Finish::Length);
        assert_eq!(outcome.steps, [vec!["hello"], vec![" hello"], vec!["!"]]);
        assert_eq!(outcome.text, "hello hello!");
        assert_eq!((outcome.reason, outcome.tokens), (FinishReason::Length, 3));
        assert_eq!(outcome.events.iter().map(|e| e.index).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(outcome.events.iter().map(|e| e.last).collect::<Vec<_>>(), [false, false, true]);
        let id = outcome.events[1].id;
        let top = TextToken { id, text: " hello".into(), logprob: Some(-0.5), special: false };
        assert_eq!(outcome.events[1].top, [top]);
    }

    #[test]
    fn the_token_that_ends_it_has_its_name_and_adds_nothing() {
        let outcome = write("hello<|end|>", &[], StopText::Omit, Finish::Eos);
        assert_eq!(outcome.steps, [vec!["hello"], vec!["<|end|>"]]);
        assert!(outcome.events[1].special);
        assert_eq!((outcome.text.as_str(), outcome.reason), ("hello", FinishReason::EosToken));
        // Also one that the tokenizer does not call special.
        let outcome = write("hello!", &[], StopText::Omit, Finish::Eos);
        assert_eq!((outcome.text.as_str(), outcome.events[1].special), ("hello", true));
    }

    #[test]
    fn text_held_back_to_the_end_belongs_to_its_own_token() {
        let outcome = write("a</<|end|>", &["</stop>"], StopText::Omit, Finish::Eos);
        assert_eq!(outcome.steps, [vec!["a"], vec![], vec![""], vec!["</", "<|end|>"]]);
        assert_eq!(outcome.text, "a</");
        let outcome = write("a<<|end|><|end|>", &["</stop>"], StopText::Omit, Finish::Length);
        assert_eq!(outcome.steps, [vec!["a"], vec![], vec!["<", "<|end|>"], vec!["<|end|>"]]);
        assert_eq!(outcome.text, "a<");
    }

    #[test]
    fn held_back_text_comes_out_before_a_special_token() {
        let outcome = write("a<<|end|>b", &["</stop>"], StopText::Omit, Finish::Length);
        assert_eq!(outcome.steps, [vec!["a"], vec![], vec!["<", "<|end|>"], vec!["b"]]);
        assert_eq!(outcome.text, "a<b");
        // Bytes of a character too.
        let euro = ids("€");
        let mut output = OutputProcessor::new(vocabulary(), &[], &[], StopText::Omit, 0);
        let told = [euro[0], ids("<|end|>")[0]].map(|id| process(&mut output, sampled(id), None).events);
        let texts = told.map(|events| events.into_iter().map(|event| event.text).collect::<Vec<_>>());
        assert_eq!(texts, [vec![], vec!["\u{FFFD}".to_owned(), "<|end|>".to_owned()]]);
    }

    #[test]
    fn no_stop_string_goes_across_a_special_token() {
        for stop_text in [StopText::Omit, StopText::Keep] {
            let outcome = write("a<|end|>ba", &["ab"], stop_text, Finish::Length);
            assert_eq!((outcome.text.as_str(), outcome.reason), ("aba", FinishReason::Length));
            let outcome = write("a<|end|>bab", &["ab"], stop_text, Finish::Length);
            assert_eq!(outcome.reason, FinishReason::StopSequence);
        }
    }

    #[test]
    fn an_incomplete_character_at_the_end_is_a_replacement_character() {
        let mut output = OutputProcessor::new(vocabulary(), &[], &[], StopText::Keep, 0);
        let euro = ids("€");
        assert_eq!(euro.len(), 2);
        let processed = process(&mut output, sampled(euro[0]), Some(Finish::Length));
        assert_eq!(processed.events[0].text, "\u{FFFD}");
        assert_eq!(output.take_text().0, "\u{FFFD}");
    }

    #[test]
    fn a_stop_string_ends_the_text_whatever_else_would() {
        for finish in [Finish::Length, Finish::Eos] {
            let outcome = write("hello. hello<|end|>", &["."], StopText::Keep, finish);
            assert_eq!(
                (outcome.text.as_str(), outcome.reason, outcome.tokens),
                ("hello.", FinishReason::StopSequence, 2)
            );
            assert!(outcome.events[1].last);
        }
        let outcome = write("hello.", &["lo."], StopText::Omit, Finish::Length);
        assert_eq!((outcome.text.as_str(), outcome.reason), ("hel", FinishReason::StopSequence));
        assert_eq!(outcome.events.iter().map(|e| e.text.as_str()).collect::<Vec<_>>(), ["hel", ""]);
    }

    #[test]
    fn the_name_of_a_special_token_can_be_a_stop_string() {
        let outcome = write("hello<|end|>hello", &["<|end|>"], StopText::Omit, Finish::Length);
        assert_eq!(
            (outcome.text.as_str(), outcome.reason, outcome.tokens),
            ("hello", FinishReason::StopSequence, 2)
        );
        let outcome = write("hello<|end|>", &["<|end|>"], StopText::Omit, Finish::Eos);
        assert_eq!(outcome.reason, FinishReason::EosToken);
        // A part of it is none.
        let outcome = write("hello<|end|> hello", &["|", "end"], StopText::Omit, Finish::Length);
        assert_eq!((outcome.text.as_str(), outcome.reason), ("hello hello", FinishReason::Length));
    }

    #[test]
    fn a_stop_string_does_not_count_before_the_minimum() {
        for (min_tokens, text, count) in [(0, "hello", 1), (1, "hello hello", 2), (2, "hello hello!", 3)] {
            let stop = ["lo".to_string(), "!".to_string()];
            let mut output = OutputProcessor::new(vocabulary(), &[], &stop, StopText::Keep, min_tokens);
            let processed = ids("hello hello!").into_iter().map(|id| process(&mut output, sampled(id), None));
            let reason = processed.map(|processed| processed.ended).find(Option::is_some).expect("it ends");
            assert_eq!(reason, Some(FinishReason::StopSequence));
            assert_eq!(output.take_text(), (text.to_string(), count), "after {min_tokens}");
        }
        // What a special token makes known is of the token before it.
        let mut output = OutputProcessor::new(vocabulary(), &[], &["\u{FFFD}".into()], StopText::Keep, 1);
        let ends = [ids("€")[0], ids("<|end|>")[0]].map(|id| process(&mut output, sampled(id), None).ended);
        assert_eq!(ends, [None, None]);
        // The name of a special token neither.
        let mut output = OutputProcessor::new(vocabulary(), &[], &["<|end|>".into()], StopText::Omit, 1);
        let ends = ids("<|end|><|end|>").into_iter().map(|id| process(&mut output, sampled(id), None).ended);
        assert_eq!(ends.collect::<Vec<_>>(), [None, Some(FinishReason::StopSequence)]);
    }

    fn any_part() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["hello", "<|end|>", "é", "€", "é ", "a", "b", "😀"])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn the_texts_of_the_tokens_are_the_text(
            parts in prop::collection::vec(any_part(), 1..10),
            stops in prop::collection::vec("[abé€]{1,3}", 0..3),
            keep: bool,
            eos: bool,
            cut: bool,
        ) {
            let stop_text = if keep { StopText::Keep } else { StopText::Omit };
            let mut tokens = ids(&parts.concat());
            if cut && tokens.len() > 1 { tokens.pop(); }
            let finish = if eos { Finish::Eos } else { Finish::Length };
            let vocabulary = vocabulary();
            let mut output = OutputProcessor::new(vocabulary.clone(), &[], &stops, stop_text, 0);
            let mut events = Vec::new();
            let mut reason = None;
            for (at, &id) in tokens.iter().enumerate() {
                let processed = process(&mut output, sampled(id), (at + 1 == tokens.len()).then_some(finish));
                events.extend(processed.events);
                if processed.ended.is_some() { reason = processed.ended; break; }
                prop_assert!(events.iter().all(|event| !event.last));
            }
            let (text, count) = output.take_text();
            prop_assert_eq!(joined(&events), &text[..]);
            prop_assert_eq!(events.len() as u32, count);
            prop_assert!(events.iter().zip(1..).all(|(event, index)| event.index == index));
            prop_assert!(events.iter().zip(&tokens).all(|(event, id)| event.id == *id));
            prop_assert_eq!(events.iter().filter(|event| event.last).count(), 1);
            prop_assert!(events.last().unwrap().last);
            // What stands before a special token is told before it, and no stop string goes across one.
            let told: Vec<&[TokenEvent]> = events.split(|event| event.special).collect();
            let ids = &tokens[..events.len()];
            let (mut parts, mut from) = (Vec::new(), 0);
            for at in (0..events.len()).filter(|&at| events[at].special).chain([events.len()]) {
                parts.push(vocabulary.decode(&ids[from..at]));
                from = at + 1;
            }
            let whole = parts.len() - usize::from(reason == Some(FinishReason::StopSequence));
            for (told, part) in told.iter().zip(&parts).take(whole) {
                prop_assert_eq!(joined(told), &part[..]);
            }
            let has_stop = told.iter().any(|part| stops.iter().any(|stop| joined(part).contains(stop.as_str())));
            if reason == Some(FinishReason::StopSequence) {
                prop_assert_eq!(has_stop, keep);
            } else {
                let visible = if eos { &tokens[..tokens.len() - 1] } else { &tokens[..] };
                prop_assert_eq!(&text, &vocabulary.decode(visible));
                prop_assert!(!has_stop);
            }
        }
    }
}
