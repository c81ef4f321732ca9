//! What formats that are made of messages share: what a message's text is, and the arguments of a call that is one.

use crate::formats::{Seen, find};
use crate::json::{self, Copied, Scanner};
use crate::out::Out;
use crate::readers::View;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Body {
    Content,
    Reasoning,
    /// A message that is not for the client: with its markers.
    Verbatim,
}

impl Body {
    pub(crate) fn tell(self, text: &str, out: &mut Out) {
        match self {
            Self::Reasoning => out.reasoning(text),
            Self::Content | Self::Verbatim => out.content(text),
        }
    }
}

/// What has come of a call's arguments, and the bytes that were read.
pub(crate) enum Arguments {
    Whole(usize),
    /// No JSON: the rest is told as it is.
    Wrong(usize),
    /// The call has ended.
    CutOff(usize),
    /// None: more text is needed.
    Part(Option<usize>),
}

pub(crate) fn arguments(scanner: &mut Scanner, view: &View, call: usize, out: &mut Out) -> Arguments {
    let mut json = String::new();
    let copied = json::copy(scanner, view.text, &mut json);
    out.arguments(call, &json);
    match copied {
        Copied::All(bytes) => Arguments::Whole(bytes),
        Copied::Wrong(bytes) => Arguments::Wrong(bytes),
        Copied::Some(bytes) if view.over => {
            out.arguments(call, &view.text[bytes..]);
            out.ends(call, false);
            Arguments::CutOff(view.text.len())
        }
        Copied::Some(bytes) => Arguments::Part((bytes > 0).then_some(bytes)),
    }
}

/// The rest of wrong arguments, which one of `markers` ends: the bytes that were read, and whether the call has ended.
pub(crate) fn wrong_arguments(
    markers: &[&str],
    view: &View,
    call: usize,
    out: &mut Out,
) -> (Option<usize>, bool) {
    let (end, found) = find(markers, view.text, 0, view.over);
    out.arguments(call, &view.text[..end]);
    let has_ended = matches!(found, Seen::Found(..)) || view.over;
    if has_ended {
        out.ends(call, false);
    }
    ((has_ended || end > 0).then_some(end), has_ended)
}
