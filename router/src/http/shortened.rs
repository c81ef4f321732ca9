//! Clients' text, as messages and logs repeat it.

use std::borrow::Cow;

/// What a client sent, short enough for a message.
pub fn shortened(text: &str) -> Cow<'_, str> {
    shortened_to(60, text)
}

/// At most so many characters.
pub fn shortened_to(most: usize, text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
    }
}
