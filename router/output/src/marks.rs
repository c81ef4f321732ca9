//! The markers that a parser looks for in prose, by what surrounds it.

use crate::formats::{EndsAtCall, ReasoningFormat, Seen, ToolFormat, seen};

/// Markers to look for in one kind of text.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    marks: Vec<(&'static str, Mark)>,
    first_bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mark {
    Silent,
    CloseReasoning,
    OpenSection,
    CloseSection,
    /// The call of this number.
    Open(usize),
}

pub(crate) const OUTSIDE: usize = 0;
pub(crate) const IN_SECTION: usize = 1;
pub(crate) const IN_REASONING: usize = 2;

impl Marks {
    fn new(mut marks: Vec<(&'static str, Mark)>) -> Self {
        marks.retain(|(marker, _)| !marker.is_empty());
        // Of two markers of which one begins with the other, the longer one is looked for first.
        marks.sort_by_key(|(marker, _)| std::cmp::Reverse(marker.len()));
        let mut first_bytes: Vec<u8> = marks.iter().map(|(marker, _)| marker.as_bytes()[0]).collect();
        first_bytes.sort_unstable();
        first_bytes.dedup();
        Self { marks, first_bytes }
    }

    pub(crate) fn at(&self, text: &str, at: usize, over: bool) -> Seen<Mark> {
        for (marker, mark) in &self.marks {
            match seen(&[marker], text, at, over) {
                Seen::Found(bytes, ()) => return Seen::Found(bytes, *mark),
                Seen::Partly => return Seen::Partly,
                Seen::Nothing => {}
            }
        }
        Seen::Nothing
    }

    pub(crate) fn find(&self, text: &str, over: bool) -> (usize, Seen<Mark>) {
        for (at, byte) in text.bytes().enumerate() {
            if self.first_bytes.contains(&byte) {
                match self.at(text, at, over) {
                    Seen::Nothing => {}
                    seen => return (at, seen),
                }
            }
        }
        (text.len(), Seen::Nothing)
    }
}

/// Those of content, of content after a call, and of reasoning, by the constants above.
pub(crate) fn marks(
    tool: Option<&'static ToolFormat>,
    reasoning: Option<&'static ReasoningFormat>,
) -> [Marks; 3] {
    let silent = tool
        .map_or(&[][..], |tool| tool.silent)
        .iter()
        .chain(tool.map(|tool| &tool.end))
        .chain(reasoning.map_or(&[][..], |format| format.silent));
    let silent: Vec<_> = silent.map(|&marker| (marker, Mark::Silent)).collect();
    let (mut sections, mut closes, mut opens) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(tool) = tool {
        if let Some(section) = &tool.section {
            sections.extend(section.open.iter().map(|&marker| (marker, Mark::OpenSection)));
            closes.extend(section.close.iter().map(|&marker| (marker, Mark::CloseSection)));
        }
        for (which, call) in tool.calls.iter().enumerate() {
            for &marker in call.open {
                if !opens.iter().any(|(other, _)| *other == marker) {
                    opens.push((marker, Mark::Open(which)));
                }
            }
        }
    }
    let begins = [sections, opens].concat();
    let mut in_reasoning: Vec<_> = reasoning
        .map_or(&[][..], |format| format.close)
        .iter()
        .map(|&marker| (marker, Mark::CloseReasoning))
        .collect();
    if reasoning.is_some_and(|format| format.ends_at_call != EndsAtCall::Never) {
        let markers: Vec<_> = tool.into_iter().flat_map(ToolFormat::marks_in_reasoning).collect();
        in_reasoning.extend(begins.iter().filter(|(marker, _)| markers.contains(marker)));
    }
    [
        Marks::new([silent.clone(), begins.clone()].concat()),
        Marks::new([silent, begins, closes].concat()),
        Marks::new(in_reasoning),
    ]
}
