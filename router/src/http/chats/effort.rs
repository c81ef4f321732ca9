//! How much the model is to reason. Clients send the efforts that OpenAI's and Anthropic's references name for all models, and some
//! templates refuse those that their model does not know: which ones, is found by rendering.

use std::cmp::Reverse;

use serde_json::{Map, Value};

use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

const NONE: &str = "none";
/// From the least to the most.
const KNOWN: [&str; 7] = [NONE, "minimal", "low", "medium", "high", "xhigh", "max"];
/// In place of all others.
const OTHER: &str = "penstock looks for efforts";
/// What templates call it.
const VARIABLE: &str = "reasoning_effort";
/// Whether the model reasons at all; a template reads one of them.
pub const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// As a request asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effort {
    pub field: &'static str,
    pub given: String,
}

/// What the template makes of efforts; by default it takes all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Efforts {
    /// Of the known ones.
    refused: Vec<&'static str>,
    refuses_others: bool,
    /// The template reads a switch.
    has_switch: bool,
}

impl Efforts {
    /// `render` gives None where the template refuses a chat with these variables.
    pub fn of(render: impl Fn(Map<String, Value>) -> Option<String>) -> Self {
        let with = |write: &dyn Fn(&mut Map<String, Value>)| {
            let mut variables = Map::new();
            write(&mut variables);
            render(variables)
        };
        let Some(without) = with(&|_| {}) else { return Self::default() };
        let refuses = |effort: &str| with(&|variables| ask_for(effort, variables)).is_none();
        Self {
            refused: KNOWN.into_iter().filter(|effort| refuses(effort)).collect(),
            refuses_others: refuses(OTHER),
            has_switch: with(&switch_off).is_some_and(|text| text != without),
        }
    }

    /// Asks for the effort, or else for the nearest that the template takes. A variable that a request gives itself goes before.
    pub fn write(
        &self,
        Effort { field, given }: &Effort,
        variables: &mut Map<String, Value>,
        warnings: &mut Warnings,
    ) {
        let rank = KNOWN.iter().position(|known| known == given);
        let is_refused = rank.map_or(self.refuses_others, |rank| self.refused.contains(&KNOWN[rank]));
        if !is_refused || variables.contains_key(VARIABLE) {
            ask_for(given, variables);
        } else if given == NONE && self.has_switch {
            switch_off(variables);
        } else if let Some(nearest) = rank.and_then(|rank| self.nearest(rank)) {
            ask_for(nearest, variables);
            let given = shortened(given);
            warnings.no_effect(
                field,
                &format!("as {given:?}, which the model's chat template refuses: {nearest:?} is taken"),
            );
        } else {
            let given = shortened(given);
            warnings.no_effect(field, &format!("here: the model's chat template refuses {given:?}"));
        }
    }

    /// Of two the higher: it is the one of which more was trained (Qwen 3.8 has `xhigh` for `high`). Some effort never becomes none.
    fn nearest(&self, rank: usize) -> Option<&'static str> {
        let taken =
            KNOWN.into_iter().enumerate().skip(1).filter(|(_, effort)| !self.refused.contains(effort));
        taken.min_by_key(|(other, _)| (other.abs_diff(rank), Reverse(*other))).map(|(_, effort)| effort)
    }
}

fn ask_for(effort: &str, variables: &mut Map<String, Value>) {
    if effort == NONE {
        switch_off(variables);
    }
    variables.entry(VARIABLE).or_insert(effort.into());
}

fn switch_off(variables: &mut Map<String, Value>) {
    for name in SWITCHES {
        variables.entry(name).or_insert(false.into());
    }
}

#[cfg(test)]
mod tests {
    use penstock_core::prompt::Chat;
    use penstock_template::ChatTemplates;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Qwen 3.8's rule.
    const STRICT: &str = "{% set effort = reasoning_effort | default('xhigh') %}{% if enable_thinking is not defined or enable_thinking %}\
                          {% if effort not in ['xhigh', 'medium', 'low'] %}{{ raise_exception('Unexpected ' ~ effort) }}{% endif %}\
                          {{ effort }}{% else %}off{% endif %}";

    /// What a template is given for an effort: the prompt, the variables, and what is said of it.
    fn asked(template: &str, given: &str, own: Value) -> (Option<String>, Value, Vec<String>) {
        let sources = [("default".to_owned(), template.to_owned())];
        let templates = ChatTemplates::compile(&sources, Map::new(), |name, why| panic!("{name}: {why}"));
        let render = |variables| {
            templates.render(&Chat { variables, ..Chat::default() }, &CancellationToken::new()).ok()
        };
        let mut variables = own.as_object().expect("an object").clone();
        let mut warnings = Warnings::default();
        let effort = Effort { field: "reasoning.effort", given: given.to_owned() };
        Efforts::of(render).write(&effort, &mut variables, &mut warnings);
        let lines = warnings.lines().into_iter().map(str::to_owned).collect();
        (render(variables.clone()), variables.into(), lines)
    }

    #[test]
    fn an_effort_that_a_template_refuses_is_the_nearest_that_it_takes() {
        for (given, taken) in [("minimal", "low"), ("high", "xhigh"), ("max", "xhigh")] {
            let (prompt, _, lines) = asked(STRICT, given, json!({}));
            assert_eq!(prompt.as_deref(), Some(taken));
            let line = format!(
                "`reasoning.effort` has no effect as {given:?}, which the model's chat template refuses: {taken:?} is taken"
            );
            assert_eq!(lines, [line]);
        }
        for (given, prompt) in [("low", "low"), ("medium", "medium"), ("xhigh", "xhigh"), ("none", "off")] {
            let (shown, _, lines) = asked(STRICT, given, json!({}));
            assert_eq!((shown.as_deref(), lines.len()), (Some(prompt), 0), "{given}");
        }
        let (prompt, variables, lines) = asked(STRICT, "ultra", json!({}));
        assert_eq!((prompt.as_deref(), variables), (Some("xhigh"), json!({})));
        assert_eq!(
            lines,
            ["`reasoning.effort` has no effect here: the model's chat template refuses \"ultra\""]
        );
        // The client's own variable is its own.
        let own = json!({"reasoning_effort": "high"});
        assert_eq!(asked(STRICT, "low", own.clone()), (None, own, Vec::new()));
    }

    #[test]
    fn none_is_a_switch_where_the_template_knows_no_such_effort() {
        let off = json!({"enable_thinking": false, "thinking": false});
        let switched = "{% if reasoning_effort == 'none' %}{{ raise_exception('none') }}{% endif %}{{ thinking is false }}";
        assert_eq!(asked(switched, "none", json!({})), (Some("True".to_owned()), off, Vec::new()));
        // It always reasons.
        let refuses = "{% if enable_thinking is false or reasoning_effort in ['none', 'minimal'] %}{{ raise_exception('off') }}{% endif %}\
                       {{ reasoning_effort }}";
        let (prompt, variables, lines) = asked(refuses, "none", json!({}));
        assert_eq!((prompt.as_deref(), variables), (Some("low"), json!({"reasoning_effort": "low"})));
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn a_template_that_takes_all_gets_what_is_given() {
        for given in ["none", "high", "ultra"] {
            let (prompt, variables, lines) = asked("{{ reasoning_effort }}", given, json!({}));
            assert_eq!((prompt.as_deref(), lines.len()), (Some(given), 0));
            // Both names: Kimi K2.5 and DeepSeek V3.1 read the second.
            for name in SWITCHES {
                assert_eq!(variables.get(name) == Some(&json!(false)), given == "none");
            }
        }
        let own = json!({"enable_thinking": true});
        assert_eq!(asked("", "none", own).1["enable_thinking"], true);
    }

    #[test]
    fn a_template_that_refuses_everything_teaches_nothing() {
        assert_eq!(Efforts::of(|_| None), Efforts::default());
    }
}
