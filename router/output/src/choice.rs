//! Formats by name and by chat template.

use crate::formats::{ReasoningFormat, ToolFormat};
use crate::tables::{REASONING, TOOLS};

/// The names that `tool_format` takes first of; each format has other names too.
pub fn tool_formats() -> impl Iterator<Item = &'static ToolFormat> {
    TOOLS.iter()
}

pub fn reasoning_formats() -> impl Iterator<Item = &'static ReasoningFormat> {
    REASONING.iter()
}

pub fn tool_format(name: &str) -> Option<&'static ToolFormat> {
    TOOLS.iter().find(|format| format.name == name || format.aliases.contains(&name))
}

pub fn reasoning_format(name: &str) -> Option<&'static ReasoningFormat> {
    REASONING.iter().find(|format| format.name == name || format.aliases.contains(&name))
}

/// What a model with this chat template writes, as far as its markers tell.
pub fn of_template(template: &str) -> (Option<&'static ToolFormat>, Option<&'static ReasoningFormat>) {
    // A template in JSON or in a Python string may have its quotes escaped.
    let template = template.replace("\\\"", "\"");
    let has = |signs: &[&[&str]]| signs.iter().any(|all| all.iter().all(|sign| template.contains(sign)));
    (TOOLS.iter().find(|format| has(format.signs)), REASONING.iter().find(|format| has(format.signs)))
}

impl ReasoningFormat {
    /// Whether the answer to this prompt begins inside reasoning, because the template has opened it already.
    pub fn is_open_after(&self, prompt: &str) -> bool {
        if self.name == "harmony" {
            return prompt.ends_with("<|channel|>analysis<|message|>");
        }
        let prompt = prompt.trim_end();
        self.open.iter().any(|open| prompt.ends_with(open.trim_end()))
    }
}
