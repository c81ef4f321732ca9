//! How long a prompt and its text may be together. Asked by `serving`, once a prompt is tokens.

use penstock_proto::ids::TokenId;

use crate::generation::event::{InvalidRequest, Part};

/// Bounds that depend on the prompt's length, and of token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptLimits {
    pub max_input_tokens: u32,
    pub max_total_tokens: u32,
    /// Of an encoder-decoder, what its decoder has positions for.
    pub max_new_tokens: u32,
    /// The model's; token ids below it are valid.
    pub vocab_size: u32,
}

impl PromptLimits {
    /// Tokens of a prompt. The workers' memory may allow for less than the flag does.
    pub fn most_input(&self) -> u32 {
        self.max_input_tokens.min(self.max_total_tokens.saturating_sub(1))
    }

    /// How many tokens may be generated: as many as asked for, or as fit.
    pub fn check(&self, prompt: &[TokenId], asked: Option<u32>) -> Result<u32, InvalidRequest> {
        let Self { max_total_tokens, max_new_tokens, vocab_size, .. } = *self;
        let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if prompt.is_empty() {
            return Err(InvalidRequest::EmptyPrompt);
        }
        if let Some(TokenId(id)) = prompt.iter().find(|token| token.0 >= vocab_size) {
            return Err(InvalidRequest::TokenId { limit: vocab_size, given: *id });
        }
        if asked == Some(0) {
            return Err(InvalidRequest::NoNewTokens);
        }
        let most = self.most_input();
        if let Some(new) = asked
            && new > max_new_tokens
        {
            return Err(InvalidRequest::NewTokens { limit: max_new_tokens, given: new });
        }
        if let Some(new) = asked
            && length.saturating_add(new) > max_total_tokens
        {
            let blames = if length > most { Part::Prompt { most } } else { Part::NewTokens };
            return Err(InvalidRequest::TotalTokens { limit: max_total_tokens, prompt: length, new, blames });
        }
        if length > most {
            return Err(InvalidRequest::PromptTokens { limit: most, given: length });
        }
        Ok(asked.unwrap_or(max_new_tokens.min(max_total_tokens - length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked_against_limits_that_the_error_names() {
        let limits = PromptLimits {
            max_input_tokens: 8,
            max_total_tokens: 10,
            max_new_tokens: u32::MAX,
            vocab_size: 100,
        };
        let check = |length: u32, asked| limits.check(&vec![TokenId(1); length as usize], asked);
        let too_many = |prompt, new, blames| InvalidRequest::TotalTokens { limit: 10, prompt, new, blames };
        assert_eq!(check(4, Some(6)), Ok(6));
        assert_eq!(check(4, None), Ok(6));
        assert_eq!(check(8, None), Ok(2));
        assert_eq!(check(4, Some(7)), Err(too_many(4, 7, Part::NewTokens)));
        assert_eq!(check(9, Some(7)), Err(too_many(9, 7, Part::Prompt { most: 8 })));
        assert_eq!(check(4, Some(u32::MAX)), Err(too_many(4, u32::MAX, Part::NewTokens)));
        let too_long = InvalidRequest::PromptTokens { limit: 8, given: 9 };
        assert_eq!((check(9, None), check(9, Some(1))), (Err(too_long), Err(too_long)));
        assert_eq!(check(0, None), Err(InvalidRequest::EmptyPrompt));
        assert_eq!(check(1, Some(0)), Err(InvalidRequest::NoNewTokens));
        let strange = limits.check(&[TokenId(99), TokenId(100)], None);
        assert_eq!(strange, Err(InvalidRequest::TokenId { limit: 100, given: 100 }));
        // Restarted workers may leave room for less than the flags allow.
        let shrunk = PromptLimits { max_total_tokens: 6, ..limits };
        assert_eq!(shrunk.check(&[TokenId(1); 5], None), Ok(1));
        assert!(shrunk.check(&[TokenId(1); 6], None).is_err());
        // A decoder beside an encoder has positions of its own.
        let short = PromptLimits { max_new_tokens: 3, ..limits };
        assert_eq!(
            (short.check(&[TokenId(1); 4], None), short.check(&[TokenId(1); 8], None)),
            (Ok(3), Ok(2))
        );
        let refused = short.check(&[TokenId(1); 4], Some(4));
        assert_eq!(refused, Err(InvalidRequest::NewTokens { limit: 3, given: 4 }));
    }
}
