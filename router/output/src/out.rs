//! The deltas of one push: neighbours of one kind are joined, and calls are counted.

use crate::Delta;

pub(crate) struct Out<'a> {
    pub(crate) deltas: &'a mut Vec<Delta>,
    /// Deltas from here on are of this push.
    pub(crate) from: usize,
}

impl Out<'_> {
    pub(crate) fn content(&mut self, text: &str) {
        match self.last() {
            _ if text.is_empty() => {}
            Some(Delta::Content(content)) => content.push_str(text),
            _ => self.deltas.push(Delta::Content(text.to_owned())),
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        match self.last() {
            _ if text.is_empty() => {}
            Some(Delta::Reasoning(reasoning)) => reasoning.push_str(text),
            _ => self.deltas.push(Delta::Reasoning(text.to_owned())),
        }
    }

    pub(crate) fn arguments(&mut self, call: usize, text: &str) {
        match self.last() {
            _ if text.is_empty() => {}
            Some(Delta::Arguments { index, json }) if *index == call => json.push_str(text),
            _ => self.deltas.push(Delta::Arguments { index: call, json: text.to_owned() }),
        }
    }

    pub(crate) fn begins(&mut self, index: usize, name: String) {
        self.deltas.push(Delta::CallBegins { index, name });
    }

    pub(crate) fn ends(&mut self, index: usize, complete: bool) {
        self.deltas.push(Delta::CallEnds { index, complete });
    }

    /// Calls of a parser of its own, counted from `first` on. Other text is white space between them.
    pub(crate) fn calls(&mut self, deltas: Vec<Delta>, first: usize) {
        for delta in deltas {
            match delta {
                Delta::CallBegins { index, name } => self.begins(first + index, name),
                Delta::Arguments { index, json } => self.arguments(first + index, &json),
                Delta::CallEnds { index, complete } => self.ends(first + index, complete),
                Delta::Content(_) | Delta::Reasoning(_) => {}
            }
        }
    }

    fn last(&mut self) -> Option<&mut Delta> {
        self.deltas[self.from..].last_mut()
    }
}
