//! Where a text is free: any token of text may follow, until a marker begins. The masks are all the same there, so they are
//! computed once, and rows may be sampled without. Matchers ask; what is free is what a mask said, not what is known here.

use std::sync::Arc;

/// The markers of a grammar's free text, and how one text stands to them.
#[derive(Clone)]
pub(crate) struct FreeText {
    markers: Arc<[Vec<u8>]>,
    /// The end of the text, as far as a marker may have begun in it.
    tail: Vec<u8>,
}

/// What a token did to free text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Passed {
    /// The text stands where it would at its beginning.
    Plain,
    /// A marker may have begun, or a character.
    Begun,
    /// A marker has ended in it.
    Marker,
}

impl FreeText {
    /// Without markers only special tokens end free text.
    pub(crate) fn new(markers: Vec<String>) -> FreeText {
        let mut markers: Vec<Vec<u8>> =
            markers.into_iter().map(String::into_bytes).filter(|marker| !marker.is_empty()).collect();
        markers.sort_unstable();
        markers.dedup();
        FreeText { markers: markers.into(), tail: Vec::new() }
    }

    /// Takes the bytes of a token.
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> Passed {
        self.tail.extend_from_slice(bytes);
        let ends = |marker: &Vec<u8>| self.tail.windows(marker.len()).any(|part| part == marker);
        let has_ended = self.markers.iter().any(ends);
        let begun = |marker: &Vec<u8>| {
            let most = (marker.len() - 1).min(self.tail.len());
            (1..=most).rev().find(|&length| self.tail.ends_with(&marker[..length])).unwrap_or(0)
        };
        let begun = self.markers.iter().map(begun).max().unwrap_or(0);
        let is_whole = !matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none());
        // One may also have ended that begins a longer one.
        self.tail.drain(..self.tail.len() - begun);
        if has_ended {
            return Passed::Marker;
        }
        if begun == 0 && is_whole { Passed::Plain } else { Passed::Begun }
    }

    /// A token that is no text came.
    pub(crate) fn interrupt(&mut self) {
        self.tail.clear();
    }

    /// No marker has begun.
    pub(crate) fn is_plain(&self) -> bool {
        self.tail.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_however_they_are_cut() {
        let free = FreeText::new(vec!["<tool_call>".into(), "<think>".into(), String::new()]);
        for (tokens, passed) in [
            (vec!["a", "b<b>"], vec![Passed::Plain, Passed::Plain]),
            (
                vec!["a <", "tool", "_call", ">x"],
                vec![Passed::Begun, Passed::Begun, Passed::Begun, Passed::Marker],
            ),
            (vec!["<tool", "s"], vec![Passed::Begun, Passed::Plain]),
            (vec!["<<", "think>"], vec![Passed::Begun, Passed::Marker]),
            (vec!["x<think>y", "z"], vec![Passed::Marker, Passed::Plain]),
            (vec!["<think><tool", "_call>"], vec![Passed::Marker, Passed::Marker]),
        ] {
            let mut free = free.clone();
            let found: Vec<Passed> = tokens.iter().map(|token| free.pass(token.as_bytes())).collect();
            assert_eq!(found, passed, "{tokens:?}");
        }
        let longer = FreeText::new(vec!["<call>".into(), "<call>\n{".into()]);
        for tokens in [vec!["<call>", "\n", "{"], vec!["x<ca", "ll>\n{"], vec!["<call>\n", "{x"]] {
            let mut longer = longer.clone();
            let found: Vec<Passed> = tokens.iter().map(|token| longer.pass(token.as_bytes())).collect();
            assert_eq!(found.last(), Some(&Passed::Marker), "{tokens:?}");
            assert_eq!((longer.pass(b"x"), longer.is_plain()), (Passed::Plain, true), "{tokens:?}");
        }
        let mut free = free;
        assert_eq!(free.pass(&"ü".as_bytes()[..1]), Passed::Begun);
        assert_eq!(free.pass(b"<thi"), Passed::Begun);
        assert!(!free.is_plain());
        free.interrupt();
        assert_eq!((free.is_plain(), free.pass(b"nk>")), (true, Passed::Plain));
        let mut none = FreeText::new(vec![]);
        assert_eq!((none.pass(b"a <b>"), none.pass(&"ü".as_bytes()[..1])), (Passed::Plain, Passed::Begun));
        assert!(none.is_plain());
    }
}
