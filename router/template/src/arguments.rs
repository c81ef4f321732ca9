//! What calls give to macros, methods, filters and tests.

use std::sync::Arc;

use super::budget::Budget;
use super::value::Value;
use super::{Error, ErrorKind};

/// What a call gives, evaluated.
#[derive(Clone, Default)]
pub struct Given {
    pub positional: Vec<Value>,
    pub named: Vec<(Arc<str>, Value)>,
}

impl Given {
    /// One value for each of `names`, by position or by name.
    pub fn bind<const N: usize>(&self, names: [&str; N]) -> Result<[Option<Value>; N], Error> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            return Err(Error::new(ErrorKind::Type, format!("{N} arguments at most")));
        }
        for (slot, value) in bound.iter_mut().zip(&self.positional) {
            *slot = Some(value.clone());
        }
        for (name, value) in &self.named {
            match names.iter().position(|known| **known == **name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value.clone()),
                _ => {
                    return Err(Error::new(
                        ErrorKind::Type,
                        format!("the argument `{name}` is not expected"),
                    ));
                }
            }
        }
        Ok(bound)
    }

    pub fn len(&self) -> usize {
        self.positional.len() + self.named.len()
    }

    /// Counts a visit of each byte of its texts.
    pub fn read(&self, budget: &Budget) -> Result<(), Error> {
        let named = self.named.iter().map(|(_, value)| value);
        self.positional
            .iter()
            .chain(named)
            .try_for_each(|value| budget.read(value.as_str().unwrap_or_default()))
    }

    /// The first one by position, which there is, and the others.
    pub fn without_first(&self, budget: &Budget) -> Result<(Value, Self), Error> {
        budget.step(self.len() / 8)?;
        let mut rest = self.clone();
        let first = rest.positional.remove(0);
        Ok((first, rest))
    }
}
