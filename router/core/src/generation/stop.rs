//! Finds stop strings in a text that arrives piece by piece, wherever they fall. `output_processor`
//! feeds it what the detokenizer emits; it never sees the prompt.
//!
//! The text ends where the first stop string is complete, so the result does not depend on how the text
//! was cut into tokens. Of several that end at the same place the longest counts.

use crate::generation::request::StopText;

pub struct StopStrings {
    candidates: Vec<Candidate>,
    stop_text: StopText,
    /// What may be the beginning of a stop string that is to be left out, from `shown` on.
    held: String,
    shown: usize,
    /// The candidate that ended the text.
    ended_by: Option<usize>,
}

/// What becomes of a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub enum Checked {
    /// This much can be shown; the rest waits.
    Goes(String),
    /// A stop string is complete: this is the rest of the text.
    Ends(String),
}

impl StopStrings {
    /// An empty string never matches.
    pub fn new(strings: &[String], stop_text: StopText) -> Self {
        let candidates =
            strings.iter().filter(|string| !string.is_empty()).map(|s| Candidate::new(s)).collect();
        Self { candidates, stop_text, held: String::new(), shown: 0, ended_by: None }
    }

    pub fn has_any(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// Takes a piece of the text in which none may end it, and returns what can be shown.
    pub fn pass(&mut self, piece: String) -> String {
        for &byte in piece.as_bytes() {
            for candidate in &mut self.candidates {
                if candidate.advance(byte) {
                    candidate.matched = candidate.shorter[candidate.matched];
                }
            }
        }
        self.go(piece)
    }

    /// Takes the next piece of the text. After `Ends` it must not be called again.
    pub fn push(&mut self, piece: String) -> Checked {
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            let mut longest = 0;
            for (index, candidate) in self.candidates.iter_mut().enumerate() {
                if candidate.advance(byte) && candidate.bytes.len() > longest {
                    longest = candidate.bytes.len();
                    self.ended_by = Some(index);
                }
            }
            if longest > 0 {
                // A stop string is whole characters, and so is what precedes its end.
                let upto = &piece[..=at];
                self.held.push_str(upto);
                let end = self.held.len() - if self.stop_text == StopText::Omit { longest } else { 0 };
                let text = self.held[self.shown..end].to_owned();
                self.held.clear();
                self.shown = 0;
                return Checked::Ends(text);
            }
        }
        Checked::Goes(self.go(piece))
    }

    /// Whether something waits to be shown.
    pub fn holds(&self) -> bool {
        self.shown < self.held.len()
    }

    /// The text ends here, or a special token follows: what was held back is no stop string, nor begins one.
    pub fn flush(&mut self) -> String {
        for candidate in &mut self.candidates {
            candidate.matched = 0;
        }
        self.show(self.held.len())
    }

    /// Whether the name of a special token, which is no part of the text, is a stop string: then it ends the text.
    pub fn is_name(&mut self, name: &str) -> bool {
        let names = [name, name.trim()].map(str::as_bytes);
        let found = self.candidates.iter().position(|candidate| names.contains(&&*candidate.bytes));
        self.ended_by = self.ended_by.or(found);
        found.is_some()
    }

    /// The stop string that has ended the text.
    pub fn ended_by(&self) -> Option<String> {
        let candidate = self.ended_by.map(|index| &self.candidates[index])?;
        Some(String::from_utf8_lossy(&candidate.bytes).into_owned())
    }

    /// What of a piece that ends nothing can be shown.
    fn go(&mut self, piece: String) -> String {
        match self.stop_text {
            _ if self.candidates.is_empty() => piece,
            StopText::Keep => piece,
            StopText::Omit => {
                self.held.push_str(&piece);
                let begun = self.candidates.iter().map(|candidate| candidate.matched).max().unwrap_or(0);
                self.show(self.held.len() - begun)
            }
        }
    }

    fn show(&mut self, upto: usize) -> String {
        let text = self.held[self.shown..upto].to_owned();
        self.shown = upto;
        // Moving what is left costs no more than was shown since the last time.
        if self.shown * 2 >= self.held.len() {
            self.held.drain(..self.shown);
            self.shown = 0;
        }
        text
    }
}

/// One stop string and how much of its beginning the text ends with (Knuth, Morris, Pratt 1977).
struct Candidate {
    bytes: Box<[u8]>,
    /// For each length of a matched beginning, the next shorter one that the text ends with as well.
    shorter: Box<[usize]>,
    matched: usize,
}

impl Candidate {
    fn new(string: &str) -> Self {
        let bytes: Box<[u8]> = string.as_bytes().into();
        let mut shorter = vec![0; bytes.len() + 1];
        let mut length = 0;
        for end in 1..bytes.len() {
            while length > 0 && bytes[end] != bytes[length] {
                length = shorter[length];
            }
            length += usize::from(bytes[end] == bytes[length]);
            shorter[end + 1] = length;
        }
        Self { bytes, shorter: shorter.into(), matched: 0 }
    }

    /// Whether the string is complete with this byte.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.shorter[self.matched];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What was shown after each piece, and the whole; stops at the end of the text.
    fn feed(stops: &[&str], stop_text: StopText, pieces: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut matcher = StopStrings::new(&stops, stop_text);
        let mut shown = Vec::new();
        for piece in pieces {
            match matcher.push((*piece).to_string()) {
                Checked::Goes(text) => shown.push(text),
                Checked::Ends(text) => {
                    shown.push(text);
                    return (shown, true);
                }
            }
        }
        shown.push(matcher.flush());
        (shown, false)
    }

    #[test]
    fn a_stop_string_inside_a_token_cuts_it() {
        assert_eq!(
            feed(&["\n"], StopText::Keep, &["one", ".\ntwo"]),
            (vec!["one".into(), ".\n".into()], true)
        );
        assert_eq!(feed(&["\n"], StopText::Omit, &["one", ".\ntwo"]), (vec!["one".into(), ".".into()], true));
    }

    #[test]
    fn the_beginning_of_an_omitted_stop_string_is_never_shown() {
        let (shown, ended) = feed(&["</end>"], StopText::Omit, &["text <", "/en", "d>", "more"]);
        assert_eq!((shown, ended), (vec!["text ".into(), "".into(), "".into()], true));
    }

    #[test]
    fn a_beginning_that_comes_to_nothing_is_shown_later() {
        let (shown, ended) = feed(&["</end>"], StopText::Omit, &["a <", "/e", "lse>", " <"]);
        assert_eq!(shown, ["a ", "", "</else>", " ", "<"]);
        assert!(!ended);
    }

    #[test]
    fn kept_text_never_waits() {
        let (shown, _) = feed(&["</end>"], StopText::Keep, &["a <", "/e", "lse>"]);
        assert_eq!(shown, ["a <", "/e", "lse>", ""]);
    }

    #[test]
    fn the_first_to_be_complete_wins_and_the_longest_of_those() {
        assert_eq!(feed(&["abcd", "bc"], StopText::Omit, &["xabcd"]).0, ["xa"]);
        assert_eq!(feed(&["bc", "abc"], StopText::Omit, &["xabc"]).0, ["x"]);
        assert_eq!(feed(&["bc", "abc"], StopText::Keep, &["xabcd"]).0, ["xabc"]);
    }

    #[test]
    fn what_ended_the_text_is_known() {
        let mut matcher = StopStrings::new(&["bc".into(), "abc".into(), "<|end|>".into()], StopText::Omit);
        assert_eq!(matcher.ended_by(), None);
        matcher.push("xabc".into());
        assert_eq!(matcher.ended_by().as_deref(), Some("abc"));
        let mut matcher = StopStrings::new(&["bc".into(), "<|end|>".into()], StopText::Omit);
        assert!(matcher.is_name("<|end|>"));
        assert_eq!(matcher.ended_by().as_deref(), Some("<|end|>"));
    }

    #[test]
    fn a_repeated_beginning_is_followed_to_the_right_place() {
        assert_eq!(
            feed(&["aab"], StopText::Omit, &["a", "a", "a", "b"]),
            (vec!["".into(), "".into(), "a".into(), "".into()], true)
        );
    }

    #[test]
    fn characters_of_several_bytes_are_not_cut() {
        assert_eq!(feed(&["€!"], StopText::Omit, &["é€", "€", "!é"]).0, ["é", "€", ""]);
    }

    #[test]
    fn what_passes_ends_nothing_but_may_begin_what_does() {
        for (stop_text, expected) in [(StopText::Omit, ["aab", ""]), (StopText::Keep, ["aabab", "ab"])] {
            let mut matcher = StopStrings::new(&["abab".into()], stop_text);
            let mut text = matcher.pass("aabab".into());
            if stop_text == StopText::Omit {
                assert_eq!(text, "aab", "its end may be the beginning of another");
            }
            assert_eq!(text, expected[0]);
            assert_eq!(matcher.push("ab".into()), Checked::Ends(expected[1].into()));
            let mut matcher = StopStrings::new(&["x".into()], stop_text);
            text = matcher.pass("axx".into());
            assert_eq!((text.as_str(), matcher.holds()), ("axx", false));
        }
    }

    #[test]
    fn no_stop_strings_and_empty_ones_change_nothing() {
        assert_eq!(feed(&[], StopText::Omit, &["a", "b"]).0, ["a", "b", ""]);
        assert_eq!(feed(&[""], StopText::Omit, &["a", "b"]).0, ["a", "b", ""]);
    }

    #[test]
    fn a_special_tokens_name_can_be_a_stop_string() {
        let mut matcher = StopStrings::new(&["<|im_end|>".into()], StopText::Omit);
        assert!(!matcher.is_name("<|im_start|>"));
        assert!(matcher.is_name("<|im_end|>"));
        // Of a name that has a space around it, too, and no part of a name is one.
        let parts = ["|", "<", "end", "<|end|>"].map(str::to_owned);
        let mut matcher = StopStrings::new(&parts, StopText::Omit);
        assert!(
            !matcher.is_name("<|channel|>") && !matcher.is_name("") && !matcher.is_name("<|end_of_text|>")
        );
        assert!(matcher.is_name(" <|end|>"));
        assert_eq!(matcher.ended_by().as_deref(), Some("<|end|>"));
    }

    /// The end of the text and the start of the stop string that ends it, found the slow way.
    fn naive(stops: &[String], text: &str) -> Option<(usize, usize)> {
        (0..=text.len()).find_map(|end| {
            let head = text.get(..end)?;
            stops
                .iter()
                .filter(|s| !s.is_empty() && head.ends_with(*s))
                .map(|s| (end, end - s.len()))
                .min_by_key(|m| m.1)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn agrees_with_searching_the_whole_text(
            pieces in prop::collection::vec("[abé€]{0,4}", 0..12),
            stops in prop::collection::vec("[abé€]{0,4}", 0..4),
            keep: bool,
        ) {
            let stop_text = if keep { StopText::Keep } else { StopText::Omit };
            let text: String = pieces.concat();
            let found = naive(&stops, &text);
            let expected = match found {
                None => &text[..],
                Some((end, start)) => &text[..if keep { end } else { start }],
            };

            let mut matcher = StopStrings::new(&stops, stop_text);
            let mut shown = String::new();
            let mut ended = false;
            let mut fed = String::new();
            for piece in &pieces {
                fed.push_str(piece);
                match matcher.push((*piece).to_string()) {
                    Checked::Goes(part) => {
                        shown.push_str(&part);
                        // Only what may be a beginning is held back.
                        let held = &fed[shown.len()..];
                        prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held)));
                        prop_assert_eq!(matcher.holds(), !held.is_empty());
                    }
                    Checked::Ends(part) => { shown.push_str(&part); ended = true; break; }
                }
                prop_assert!(expected.starts_with(&shown));
            }
            if !ended { shown.push_str(&matcher.flush()); }
            prop_assert_eq!(ended, found.is_some());
            prop_assert_eq!(shown, expected);
        }
    }
}
