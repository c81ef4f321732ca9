//! How byte-level BPE writes bytes in the names of its tokens. Used by `vocabulary` and `token_count`.

/// The bytes that a token's name stands for: the printable ones of Latin-1 are written as themselves, the other 68, in
/// order, as the characters from U+0100 on (GPT-2's `bytes_to_unicode`). A name with any other character is its own
/// UTF-8.
pub fn bytes_of_name(name: &str) -> Vec<u8> {
    let byte = |c: char| match u32::from(c) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    };
    name.chars().map(byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| name.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_in_byte_level_names() {
        // The crate's own table is private; its decoder is not.
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut bytes: Vec<u8> = alphabet.iter().flat_map(|c| bytes_of_name(&c.to_string())).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(bytes_of_name("Ġthe"), b" the");
        assert_eq!(bytes_of_name("Ċ"), b"\n");
        assert_eq!(bytes_of_name("<｜end｜>"), "<｜end｜>".as_bytes());
    }
}
