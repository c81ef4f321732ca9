//! Which efforts and which switches of reasoning a chat template knows, found by rendering some.

use penstock_output::{ReasoningFormat, Start};
use serde_json::{Map, Value};

use super::{Efforts, KNOWN, NONE, RARE_SWITCHES, Thinking, set};

/// In place of all others.
const OTHER: &str = "penstock looks for efforts";

impl Efforts {
    /// `render` gives None where the template refuses a chat with these variables; by `reasoning` the end of a prompt tells whether the
    /// model is to reason.
    pub fn of(
        render: impl Fn(Map<String, Value>) -> Option<String>,
        reasoning: Option<&ReasoningFormat>,
    ) -> Self {
        let with = |write: &dyn Fn(&mut Map<String, Value>)| {
            let mut variables = Map::new();
            write(&mut variables);
            render(variables)
        };
        let is_off = |prompt: &str| reasoning.is_some_and(|format| format.is_closed_after(prompt));
        let Some(without) = with(&|_| {}) else { return Self::default() };
        let reads = |name: &&str| {
            let as_asked = |thinking| with(&|variables| set(name, thinking, variables));
            let (off, on) = (as_asked(Thinking::Disabled), as_asked(Thinking::Enabled));
            off.is_some() && on.is_some() && off != on
        };
        let rare_switches = RARE_SWITCHES.into_iter().filter(reads).collect();
        let mut found = Self { rare_switches, is_off_without: is_off(&without), ..Self::default() };
        let switched = |thinking| with(&|variables| found.switch(thinking, variables));
        let (off, on) = (switched(Thinking::Disabled), switched(Thinking::Enabled));
        // Where the end of a prompt tells that the model does not reason, one that does not tell so leaves it to the model.
        let tells = off.as_deref().is_some_and(is_off);
        let needs_switching_on = on.is_some_and(|on| on != without) && (found.is_off_without || !tells);
        found.has_switch = off.is_some_and(|off| off != without);
        found.needs_switching_on = needs_switching_on;
        let asked = |effort: &str| with(&|variables| found.ask_for(effort, variables));
        let prompts = KNOWN.map(|effort| (effort, asked(effort)));
        let other = asked(OTHER);
        let is_taken_for_another = |effort: &str| match &other {
            Some(prompt) => falls_back(prompt, &prompts, is_off, effort),
            None => false,
        };
        let not_known = prompts.iter().filter(|(effort, prompt)| match prompt {
            Some(_) if *prompt == other => is_taken_for_another(effort),
            prompt => prompt.is_none(),
        });
        let not_known = not_known.map(|(effort, _)| *effort).collect();
        let [(_, none), efforts @ ..] = &prompts;
        let reasons_with_none = none.as_deref().is_some_and(|prompt| !is_off(prompt)) && *none == other;
        let turns_off = |(_, prompt): &&(&str, Option<String>)| prompt.as_deref().is_some_and(is_off);
        let off = efforts.iter().find(turns_off).filter(|_| reasons_with_none).map(|(effort, _)| *effort);
        let is_open = reasoning.is_some_and(|format| format.start_after(&without) == Start::Reasoning);
        let always_reasons = is_open && off.is_none() && none.as_ref() == Some(&without);
        Self { not_known, refuses_others: other.is_none(), off, always_reasons, ..found }
    }
}

/// Whether a template takes this effort, which has the same prompt as one that nobody knows, for another: the prompt names that one (GLM:
/// "Max"), or has the model not reason (Hunyuan 3). A prompt that does neither may be the right one of an effort between two others.
fn falls_back(
    prompt: &str,
    prompts: &[(&'static str, Option<String>)],
    is_off: impl Fn(&str) -> bool,
    effort: &str,
) -> bool {
    let words = |text: &str, wanted: &str| {
        let words = text.split(|character: char| !character.is_alphanumeric());
        words.filter(|word| word.eq_ignore_ascii_case(wanted)).count()
    };
    let others: Vec<&str> =
        prompts.iter().filter_map(|(_, other)| other.as_deref()).filter(|other| *other != prompt).collect();
    // Templates have such words elsewhere, too.
    let names = |known: &str| others.iter().any(|other| words(prompt, known) > words(other, known));
    let same = prompts.iter().filter(|(_, other)| other.as_deref() == Some(prompt));
    match same.map(|(known, _)| *known).find(|known| names(known)) {
        Some(named) => named != effort,
        None => effort != NONE && is_off(prompt) && others.iter().any(|other| !is_off(other)),
    }
}
