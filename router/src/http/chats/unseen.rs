//! Parts of tools' results that are no text, such as a screenshot. Nobody who could leave them out has chosen them: an agent's tool
//! returned one, and every further request of the session has it again. So the model is told in its place what was there, and the
//! answer's `warnings` name the first. Dialects call this where they read results; in other messages such parts are refused.

use crate::http::error::Place;
use crate::http::warnings::Warnings;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Image,
    Document,
    File,
    Audio,
}

impl Kind {
    fn noun(self) -> &'static str {
        match self {
            Self::Image => "an image",
            Self::Document => "a document",
            Self::File => "a file",
            Self::Audio => "a sound recording",
        }
    }

    /// What the model reads in its place.
    pub fn text(self) -> String {
        let noun = self.noun();
        format!("[The tool returned {noun} here, which cannot be shown to you: you read only text.]")
    }
}

/// Those of a request.
#[derive(Debug, Default)]
pub struct Unseen {
    first: Option<(Place, Kind)>,
    others: usize,
}

impl Unseen {
    pub fn add(&mut self, place: &Place, kind: Kind) {
        match self.first {
            None => self.first = Some((place.clone(), kind)),
            Some(_) => self.others += 1,
        }
    }

    /// One line for all: a long session has many, and `warnings` has room for what else has no effect.
    pub fn warn(self, warnings: &mut Warnings) {
        let Some((place, kind)) = self.first else { return };
        let others = match self.others {
            0 => String::new(),
            others => format!("; so it is with {others} more"),
        };
        let noun = kind.noun();
        let why = format!(
            "here: only text is supported, and the model is told that a tool returned {noun}{others}"
        );
        warnings.no_effect(&place.to_string(), &why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_one_warning_that_names_the_first() {
        let warned = |kinds: &[Kind]| {
            let (mut unseen, mut warnings) = (Unseen::default(), Warnings::default());
            for (index, kind) in kinds.iter().enumerate() {
                unseen.add(&Place::from("messages").entry(index), *kind);
            }
            unseen.warn(&mut warnings);
            warnings.lines().join("; ")
        };
        assert_eq!(warned(&[]), "");
        let one = "`messages[0]` has no effect here: only text is supported, and the model is told that a tool returned a file";
        assert_eq!(warned(&[Kind::File]), one);
        let many = warned(&[[Kind::File].as_slice(), &[Kind::Image; 99]].concat());
        assert_eq!(many, format!("{one}; so it is with 99 more"));
    }
}
