//! Where in a request something is: a field of its body, and the way from there, kept as steps until a sentence is made of it.
//! Dialects make the places of their own fields and entries, so that nobody has to find names in a finished text.

use std::borrow::Cow;
use std::fmt;

/// Such as `tools[0].function.name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    field: Cow<'static, str>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Entry(usize),
    Member(Cow<'static, str>),
}

impl Place {
    /// Of a name with points in it: a field, and its members.
    pub fn path(dotted: &'static str) -> Self {
        let mut names = dotted.split('.');
        let field = Self::from(names.next().unwrap_or_default());
        names.fold(field, |place, name| place.member(name))
    }

    /// The field of the body that it is in.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// An entry of the list that is here.
    pub fn entry(&self, index: usize) -> Self {
        self.step(Step::Entry(index))
    }

    /// A member of the object that is here.
    pub fn member(&self, name: impl Into<Cow<'static, str>>) -> Self {
        self.step(Step::Member(name.into()))
    }

    /// The same within an object that is the field's.
    pub fn within(self, field: &'static str) -> Self {
        let inner = Step::Member(self.field);
        Self { field: field.into(), steps: std::iter::once(inner).chain(self.steps).collect() }
    }

    /// Where a JSON pointer leads from here. A step that is a number is taken for an entry.
    pub fn pointer(&self, pointer: &str) -> Self {
        let mut place = self.clone();
        for step in pointer.split('/').skip(1) {
            place.steps.push(match step.parse() {
                Ok(index) => Step::Entry(index),
                Err(_) => Step::Member(step.replace("~1", "/").replace("~0", "~").into()),
            });
        }
        place
    }

    /// The JSON pointer that leads here from the field.
    pub fn to_pointer(&self) -> String {
        let step = |step: &Step| match step {
            Step::Entry(index) => format!("/{index}"),
            Step::Member(name) => format!("/{}", name.replace('~', "~0").replace('/', "~1")),
        };
        self.steps.iter().map(step).collect()
    }

    fn step(&self, step: Step) -> Self {
        let mut place = self.clone();
        place.steps.push(step);
        place
    }
}

impl From<&'static str> for Place {
    fn from(field: &'static str) -> Self {
        Self { field: field.into(), steps: Vec::new() }
    }
}

impl From<String> for Place {
    fn from(field: String) -> Self {
        Self { field: field.into(), steps: Vec::new() }
    }
}

impl From<&Place> for Place {
    fn from(place: &Place) -> Self {
        place.clone()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        self.steps.iter().try_for_each(|step| match step {
            Step::Entry(index) => write!(f, "[{index}]"),
            Step::Member(name) => write!(f, ".{name}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_as_clients_write_it() {
        let tool = Place::from("tools").entry(2);
        assert_eq!(tool.member("function").member("name").to_string(), "tools[2].function.name");
        assert_eq!(tool.pointer("/parameters/anyOf/1/a~1b").to_string(), "tools[2].parameters.anyOf[1].a/b");
        assert_eq!(tool.clone().within("body").to_string(), "body.tools[2]");
        assert_eq!(tool.pointer("/a~1b").to_pointer(), "/2/a~1b");
        assert_eq!((tool.pointer("").to_string(), tool.field()), ("tools[2]".to_owned(), "tools"));
    }
}
