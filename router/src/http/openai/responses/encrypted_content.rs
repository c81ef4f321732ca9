//! What `encrypted_content` of a reasoning item says: its text in plain words, behind a mark that tells it from what other servers have
//! encrypted. It hides nothing, since the item's `content` or `summary` has the same text: it is for clients that send no item back
//! without it, or nothing else of one.

const MARK: &str = "penstock:";

pub fn written(reasoning: &str) -> String {
    format!("{MARK}{reasoning}")
}

/// The reasoning, `None` where another server has written it.
pub fn read(given: &str) -> Option<&str> {
    given.strip_prefix(MARK)
}
