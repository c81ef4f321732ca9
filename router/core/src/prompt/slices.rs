//! The tokens of a long text, counted slice by slice, so that no more of it is tokenized at once than its limit asks for:
//! the tokenizer takes about a kilobyte of memory for each token, whose text may be a byte. Called by `Prompt` where
//! `token_count`, which only looks at bytes, does not know. Tokens depend on what is next to them, so that a text has not
//! exactly as many as its slices have together; but only near a cut, for which `JOIN` is allowed.

use tokenizers::{Result, Tokenizer};

/// A text of two slices or less is tokenized as it is.
const SLICE: usize = 32 << 10;

/// So many more tokens a slice may have for being cut out. Byte-pair merges, a word's longest pieces and the space that
/// SentencePiece puts before a text change a few; and a word of more than 100 characters is one token of WordPiece's, of which each
/// end of the slice may have 100 that are one each.
const JOIN: usize = 256;

/// How far before its end a slice may be cut to be cut between words.
const WORD: usize = 1 << 10;

/// Whether a text has more than `most` tokens, special ones not counted.
pub fn is_above(tokenizer: &Tokenizer, most: usize, text: &str) -> Result<bool> {
    above(tokenizer, most, text, SLICE)
}

/// The end of a text that has its last `most` tokens, and more.
pub fn tail<'a>(tokenizer: &Tokenizer, most: usize, text: &'a str) -> Result<&'a str> {
    end_with(tokenizer, most, text, SLICE)
}

fn above(tokenizer: &Tokenizer, most: usize, text: &str, size: usize) -> Result<bool> {
    let mut tokens = 0;
    let mut begin = 0;
    if text.len() <= most.max(2 * size) {
        return Ok(false);
    }
    for cut in cuts(text, size) {
        tokens += certain(tokenizer, &text[begin..cut.place])?;
        if tokens > most {
            return Ok(true);
        }
        begin = cut.place;
    }
    Ok(false)
}

fn end_with<'a>(tokenizer: &Tokenizer, most: usize, text: &'a str, size: usize) -> Result<&'a str> {
    if text.len() <= 2 * size {
        return Ok(text);
    }
    let cuts: Vec<Cut> = cuts(text, size).collect();
    let mut tokens = 0;
    let mut end = text.len();
    // The last cut is the text's end.
    for cut in cuts.iter().rev().skip(1) {
        tokens += certain(tokenizer, &text[cut.place..end])?;
        if tokens > most && cut.between_words {
            return Ok(&text[cut.place..]);
        }
        end = cut.place;
    }
    Ok(text)
}

/// So many tokens of a slice its text has too.
fn certain(tokenizer: &Tokenizer, slice: &str) -> Result<usize> {
    Ok(tokenizer.encode_fast(slice, false)?.len().saturating_sub(JOIN))
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    place: usize,
    /// Before whitespace that follows something else.
    between_words: bool,
}

/// The ends of a text's slices of about `size` bytes.
fn cuts(text: &str, size: usize) -> impl Iterator<Item = Cut> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        if begin == text.len() {
            return None;
        }
        let cut = next_cut(text, begin, size);
        begin = cut.place;
        Some(cut)
    })
}

fn next_cut(text: &str, begin: usize, size: usize) -> Cut {
    if text.len() - begin <= size + size / 2 {
        return Cut { place: text.len(), between_words: true };
    }
    let latest = boundary_up_to(text, begin + size);
    let earliest = boundary_up_to(text, latest - WORD.min(size / 2));
    let mut following = text[latest..].chars().next();
    for (at, c) in text[earliest..latest].char_indices().rev() {
        if following.is_some_and(char::is_whitespace) && !c.is_whitespace() {
            return Cut { place: earliest + at + c.len_utf8(), between_words: true };
        }
        following = Some(c);
    }
    Cut { place: latest, between_words: false }
}

/// The last place up to `at` that is not within a character.
fn boundary_up_to(text: &str, at: usize) -> usize {
    // A character has at most four bytes.
    (0..4)
        .map(|back| at.min(text.len()).saturating_sub(back))
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::samples;
    use proptest::prelude::*;

    const SMALL: usize = 1000;

    fn tokenizers() -> Vec<Tokenizer> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../server/penstock/tiny/model/tokenizer.json");
        let shipped = Tokenizer::from_file(file).unwrap();
        vec![shipped, samples::byte_level(), samples::sentencepiece(), samples::wordpiece()]
    }

    fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    /// Words, runs of one character, and what has no spaces.
    fn texts() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            "[a-z]{1,9}( [a-z]{1,9}){0,40}",
            "(a b c d ){1,100}",
            "[ \n\t]{1,30}",
            ("[ae~0é😀]", 1..900_usize).prop_map(|(c, times)| c.repeat(times)),
            "[日本語]{1,300}",
        ];
        prop::collection::vec(part, 1..40).prop_map(|parts| parts.concat())
    }

    #[test]
    fn a_text_of_short_words_is_known_to_be_too_long() {
        let text = "a b c d ".repeat(50_000);
        for tokenizer in tokenizers() {
            let tokens = ids(&tokenizer, &text).len();
            assert!(is_above(&tokenizer, tokens * 9 / 10, &text).unwrap(), "{tokens}");
            assert!(!is_above(&tokenizer, tokens, &text).unwrap());
            assert!(tail(&tokenizer, 1000, &text).unwrap().len() <= 3 * SLICE);
        }
    }

    #[test]
    fn slices_are_cut_between_words_and_characters() {
        let words = "word ".repeat(1000);
        let all: Vec<Cut> = cuts(&words, SMALL).collect();
        assert!(all.len() == 5 && all.iter().all(|cut| cut.between_words), "{all:?}");
        assert!(all[..4].iter().all(|cut| words[cut.place..].starts_with(" word")), "{all:?}");
        let one = "é".repeat(2000);
        let places: Vec<usize> = cuts(&one, SMALL - 1).map(|cut| cut.place).collect();
        assert_eq!(places, [998, 1996, 2994, 4000]);
        assert_eq!(cuts("", SMALL).count(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        #[test]
        fn what_is_said_to_be_too_long_is(text in texts(), share in 0.0..1.2) {
            for tokenizer in tokenizers() {
                let tokens = ids(&tokenizer, &text).len();
                let most = (tokens as f64 * share) as usize;
                prop_assert!(!above(&tokenizer, most, &text, SMALL).unwrap() || tokens > most);
            }
        }

        #[test]
        fn the_end_has_the_last_tokens(text in texts(), most in 1..500_usize) {
            for tokenizer in tokenizers() {
                let whole = ids(&tokenizer, &text);
                let end = ids(&tokenizer, end_with(&tokenizer, most, &text, SMALL).unwrap());
                let last = |ids: &[u32]| ids[ids.len().saturating_sub(most)..].to_vec();
                prop_assert_eq!(last(&end), last(&whole));
            }
        }
    }
}
