//! LoRA adapters: low-rank changes of the model's weights that were loaded with it, one of which a sequence may be computed with. Knows what
//! the workers say of them. Requests name them (`Adapters::named`); plans number them.

use std::num::NonZeroU32;

use penstock_proto::ModelDescription;

/// Of a name, in characters.
const LONGEST_NAME: usize = 256;

/// What a sequence is computed with instead of the model alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its place in the model's description, counted from 1.
    pub number: NonZeroU32,
    /// SHA-256 of what it was made of. With it nothing that is cached is another one's, on this server or any other.
    pub digest: [u8; 32],
}

/// Those that a model was loaded with, in the order of its description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters(Vec<(String, Adapter)>);

impl Adapters {
    /// Fails for a name that is none, or there twice, and for a digest that is none.
    pub fn of(model: &ModelDescription) -> Result<Self, String> {
        let mut adapters = Self::default();
        for (number, penstock_proto::Adapter { name, digest }) in (1..).zip(&model.adapters) {
            let number = NonZeroU32::new(number).expect("counted from 1");
            if !is_name(name) {
                return Err(format!(
                    "its adapter {number} has the name {name:?}: a name has 1 to {LONGEST_NAME} characters, none of them =, a \
                     comma, @ or a control character"
                ));
            }
            if adapters.named(name).is_some() {
                return Err(format!("two of its adapters have the name {name:?}"));
            }
            let Some(digest) = sha256(digest) else {
                return Err(format!(
                    "its adapter {name:?} has the digest {digest:?}, not one of 64 hexadecimal digits"
                ));
            };
            adapters.0.push((name.clone(), Adapter { number, digest }));
        }
        Ok(adapters)
    }

    pub fn named(&self, name: &str) -> Option<Adapter> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, adapter)| *adapter)
    }

    /// Of one of these.
    pub fn name(&self, adapter: Adapter) -> Option<&str> {
        self.0.iter().find(|(_, own)| *own == adapter).map(|(name, _)| name.as_str())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn is_name(name: &str) -> bool {
    let is_long = name.chars().nth(LONGEST_NAME).is_some();
    !name.is_empty() && !is_long && !name.contains(|c: char| matches!(c, '=' | ',' | '@') || c.is_control())
}

fn sha256(hexadecimal: &str) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = hexadecimal.as_bytes().try_into().ok()?;
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(adapters: &[(&str, &str)]) -> Result<Adapters, String> {
        let adapter = |&(name, digest): &(&str, &str)| penstock_proto::Adapter {
            name: name.to_owned(),
            digest: digest.to_owned(),
        };
        let adapters = adapters.iter().map(adapter).collect();
        Adapters::of(&ModelDescription { adapters, ..ModelDescription::default() })
    }

    #[test]
    fn adapters_are_numbered_in_the_order_of_the_description() {
        let (one, other) = ("0f".repeat(32), "A0".repeat(32));
        let adapters = of(&[("a", &one), ("org/b", &other)]).expect("both are right");
        assert_eq!(adapters.names().collect::<Vec<_>>(), ["a", "org/b"]);
        let named = adapters.named("org/b").expect("it is there");
        assert_eq!((named.number.get(), named.digest), (2, [0xa0; 32]));
        assert_eq!(adapters.named("a").map(|adapter| adapter.digest), Some([0x0f; 32]));
        assert_eq!(adapters.named("b"), None);
    }

    #[test]
    fn a_name_that_is_none_or_twice_and_a_digest_that_is_none_are_refused() {
        let digest = "00".repeat(32);
        let long = "n".repeat(257);
        for name in ["", "a=b", "a,b", "a@b", "a\n", &long] {
            let why = of(&[("first", &digest), (name, &digest)]).expect_err(name);
            assert!(why.starts_with("its adapter 2 has the name"), "{why}");
            assert!(!why.contains('\n'), "{why}");
        }
        assert!(of(&[(&"ä".repeat(256), &digest)]).is_ok());
        let why = of(&[("a", &digest), ("b", &digest), ("a", &digest)]).expect_err("it is there twice");
        assert_eq!(why, "two of its adapters have the name \"a\"");
        for digest in ["", "0f", &"0g".repeat(32), &"ä".repeat(32)] {
            let why = of(&[("a", digest)]).expect_err(digest);
            assert!(why.starts_with("its adapter \"a\" has the digest"), "{why}");
        }
    }
}
