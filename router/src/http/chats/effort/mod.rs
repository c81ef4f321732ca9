//! How much the model is to reason. Clients send the efforts that OpenAI's and Anthropic's references name for all models. Some
//! templates refuse those that their model does not know, others take them for one that it knows: which ones, `known` finds out.

use std::cmp::Reverse;

use serde_json::{Map, Value};

use crate::http::shortened::shortened;
use crate::http::warnings::Warnings;

mod known;

const NONE: &str = "none";
/// What is asked for with reasoning of no effort.
const HIGH: &str = "high";
/// From the least to the most.
const KNOWN: [&str; 7] = [NONE, "minimal", "low", "medium", "high", "xhigh", "max"];
/// What templates call it.
const VARIABLE: &str = "reasoning_effort";
/// Whether the model reasons at all; a template reads one of them.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];
/// What few templates call it (Command A Reasoning, MiniMax M3, HyperCLOVA X SEED Think), and others may call something else: these go
/// in where the prompt depends on them.
const RARE_SWITCHES: [&str; 4] = ["reasoning", "thinking_mode", "force_reasoning", "skip_reasoning"];

/// Whether the model is to reason, as `/v1/messages` asks for it. Templates that have no word for the second take it for the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    Disabled,
    /// As it finds it needed.
    Adaptive,
    Enabled,
}

/// As a request asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effort {
    pub field: &'static str,
    pub given: String,
}

/// What the template makes of efforts; by default it knows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Efforts {
    /// Of those above: the template refuses them, or takes them for another one.
    not_known: Vec<&'static str>,
    refuses_others: bool,
    /// Of those above: the template reads them.
    rare_switches: Vec<&'static str>,
    /// The template reads a switch.
    has_switch: bool,
    /// Without an effort the model does not reason.
    is_off_without: bool,
    /// Nor does it with one, unless it is switched on.
    needs_switching_on: bool,
    /// The effort with which the model does not reason, where with `none` it does (Solar Open).
    off: Option<&'static str>,
    /// The prompt has opened reasoning, and neither a switch nor `none` changes it.
    always_reasons: bool,
}

impl Efforts {
    /// Asks for the effort, or else for the nearest that the template knows. A variable that a request gives itself goes before.
    pub fn write(
        &self,
        Effort { field, given }: &Effort,
        variables: &mut Map<String, Value>,
        warnings: &mut Warnings,
    ) {
        let rank = KNOWN.iter().position(|known| known == given);
        let is_known = rank.map_or(!self.refuses_others, |rank| !self.not_known.contains(&KNOWN[rank]));
        if let Some(off) = self.off.filter(|_| given == NONE) {
            self.switch(Thinking::Disabled, variables);
            variables.entry(VARIABLE).or_insert(off.into());
        } else if is_known || variables.contains_key(VARIABLE) {
            self.ask_for(given, variables);
            if given == NONE {
                self.warn_of_reasoning(field, given, warnings);
            }
        } else if given == NONE && (self.has_switch || self.is_off_without) {
            self.switch(Thinking::Disabled, variables);
        } else if let Some(nearest) = rank.and_then(|rank| self.nearest(rank)) {
            self.ask_for(nearest, variables);
            let given = shortened(given);
            warnings.no_effect(
                field,
                &format!("as {given:?}, which the model's chat template does not know: {nearest:?} is taken"),
            );
        } else {
            let given = shortened(given);
            warnings.no_effect(field, &format!("here: the model's chat template does not know {given:?}"));
        }
    }

    /// Asks for reasoning, or for none: where the template has efforts in place of a switch by one of them, reasoning unless the request
    /// has one itself. A variable that a request gives itself goes before. Whether the request's effort must not be written: with it
    /// the model would reason all the same.
    pub fn think(
        &self,
        thinking: Thinking,
        has_effort: bool,
        variables: &mut Map<String, Value>,
        warnings: &mut Warnings,
    ) -> bool {
        self.switch(thinking, variables);
        let is_asked_for_none = thinking == Thinking::Disabled && !self.has_switch;
        let effort = match thinking {
            Thinking::Disabled => self.off.filter(|_| is_asked_for_none),
            Thinking::Adaptive | Thinking::Enabled
                if !has_effort && self.is_off_without && !self.needs_switching_on =>
            {
                KNOWN.iter().position(|known| *known == HIGH).and_then(|rank| self.nearest(rank))
            }
            Thinking::Adaptive | Thinking::Enabled => None,
        };
        if let Some(effort) = effort {
            variables.entry(VARIABLE).or_insert(effort.into());
        }
        if thinking == Thinking::Disabled {
            self.warn_of_reasoning("thinking", "disabled", warnings);
        }
        is_asked_for_none && (self.off.is_some() || self.is_off_without)
    }

    fn warn_of_reasoning(&self, field: &str, given: &str, warnings: &mut Warnings) {
        if self.always_reasons {
            let why = format!("as {given:?}: the model's chat template has it reason all the same");
            warnings.no_effect(field, &why);
        }
    }

    fn ask_for(&self, effort: &str, variables: &mut Map<String, Value>) {
        if effort == NONE {
            self.switch(Thinking::Disabled, variables);
        } else if self.needs_switching_on {
            self.switch(Thinking::Enabled, variables);
        }
        variables.entry(VARIABLE).or_insert(effort.into());
    }

    fn switch(&self, thinking: Thinking, variables: &mut Map<String, Value>) {
        for name in SWITCHES.iter().chain(&self.rare_switches) {
            set(name, thinking, variables);
        }
    }

    /// Of two the higher: it is the one of which more was trained (Qwen 3.8 has `xhigh` for `high`). Some effort never becomes none.
    fn nearest(&self, rank: usize) -> Option<&'static str> {
        let known =
            KNOWN.into_iter().enumerate().skip(1).filter(|(_, effort)| !self.not_known.contains(effort));
        known.min_by_key(|(other, _)| (other.abs_diff(rank), Reverse(*other))).map(|(_, effort)| effort)
    }
}

fn set(switch: &str, thinking: Thinking, variables: &mut Map<String, Value>) {
    let value: Value = match (switch, thinking) {
        ("thinking_mode", Thinking::Disabled) => "disabled".into(),
        ("thinking_mode", Thinking::Adaptive) => "adaptive".into(),
        ("thinking_mode", Thinking::Enabled) => "enabled".into(),
        // One for each way: without both the model decides.
        ("force_reasoning", _) => (thinking == Thinking::Enabled).into(),
        ("skip_reasoning", _) => (thinking == Thinking::Disabled).into(),
        _ => (thinking != Thinking::Disabled).into(),
    };
    variables.entry(switch).or_insert(value);
}

#[cfg(test)]
mod tests {
    use penstock_core::prompt::Chat;
    use penstock_output::reasoning_format;
    use penstock_template::ChatTemplates;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Qwen 3.8's rule.
    const STRICT: &str = "{% set effort = reasoning_effort | default('xhigh') %}{% if enable_thinking is not defined or enable_thinking %}\
                          {% if effort not in ['xhigh', 'medium', 'low'] %}{{ raise_exception('Unexpected ' ~ effort) }}{% endif %}\
                          {{ effort }}{% else %}off{% endif %}";

    /// Hunyuan 3's rule, in two versions.
    const HUNYUAN: &str = "{% set e = reasoning_effort | default('no_think') %}{% if e not in ['high', 'low', 'no_think'] %}\
                           {% set e = 'no_think' %}{% endif %}<effort>{{ e }}<think>{% if e == 'no_think' %}</think>{% endif %}";
    const STRICT_HUNYUAN: &str = "{% set e = reasoning_effort | default('no_think') %}{% if e not in ['high', 'low', 'no_think'] %}\
                                  {{ raise_exception('effort') }}{% endif %}<effort>{{ e }}<think>{% if e == 'no_think' %}</think>{% endif %}";
    /// Solar Open's rule.
    const SOLAR: &str = "{% set e = reasoning_effort if reasoning_effort is defined else 'high' %}\
                         {% if e in ['low', 'minimal'] %}<|begin|>assistant<|think|><|end|>{% endif %}<|begin|>assistant";

    /// What a template is given for an effort: the prompt, the variables, and what is said of it.
    fn asked(template: &str, given: &str, own: Value) -> (Option<String>, Value, Vec<String>) {
        asked_of(template, "think", own, |efforts, variables, warnings| {
            let effort = Effort { field: "reasoning.effort", given: given.to_owned() };
            efforts.write(&effort, variables, warnings);
        })
    }

    /// The same of a template whose model reasons in this format.
    fn asked_of(
        template: &str,
        reasoning: &str,
        own: Value,
        ask: impl Fn(&Efforts, &mut Map<String, Value>, &mut Warnings),
    ) -> (Option<String>, Value, Vec<String>) {
        let sources = [("default".to_owned(), template.to_owned())];
        let templates = ChatTemplates::compile(&sources, Map::new(), |name, why| panic!("{name}: {why}"));
        let render = |variables| {
            templates.render(&Chat { variables, ..Chat::default() }, &CancellationToken::new()).ok()
        };
        let mut variables = own.as_object().expect("an object").clone();
        let mut warnings = Warnings::default();
        let efforts = Efforts::of(render, reasoning_format(reasoning));
        ask(&efforts, &mut variables, &mut warnings);
        let lines = warnings.lines().into_iter().map(str::to_owned).collect();
        (render(variables.clone()), variables.into(), lines)
    }

    #[test]
    fn an_effort_that_a_template_refuses_is_the_nearest_that_it_takes() {
        for (given, taken) in [("minimal", "low"), ("high", "xhigh"), ("max", "xhigh")] {
            let (prompt, _, lines) = asked(STRICT, given, json!({}));
            assert_eq!(prompt.as_deref(), Some(taken));
            let line = format!(
                "`reasoning.effort` has no effect as {given:?}, which the model's chat template does not know: {taken:?} is taken"
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
            ["`reasoning.effort` has no effect here: the model's chat template does not know \"ultra\""]
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

    /// Hunyuan 3's rules, and those of GLM 5.2 and 5.3.
    #[test]
    fn an_effort_that_a_template_takes_for_another_is_the_nearest_that_it_knows() {
        const GLM: &str = "Answer with max care. Reasoning Effort: {{ 'High' if reasoning_effort == 'high' else 'Max' }}<think>\
                           {% if enable_thinking is false %}</think>{% endif %}";
        const THINKING_GLM: &str = "{% set e = reasoning_effort if reasoning_effort in ['low', 'high'] else 'max' %}\
                                    Reasoning Effort: {{ e | capitalize }}<think>";
        for (template, given, shown, is_told) in [
            (HUNYUAN, "minimal", "<effort>low<think>", true),
            (HUNYUAN, "low", "<effort>low<think>", false),
            (HUNYUAN, "medium", "<effort>high<think>", true),
            (HUNYUAN, "high", "<effort>high<think>", false),
            (HUNYUAN, "max", "<effort>high<think>", true),
            (HUNYUAN, "none", "<effort>no_think<think></think>", false),
            (STRICT_HUNYUAN, "medium", "<effort>high<think>", true),
            (STRICT_HUNYUAN, "none", "<effort>no_think<think></think>", false),
            (GLM, "minimal", "Answer with max care. Reasoning Effort: High<think>", true),
            (GLM, "medium", "Answer with max care. Reasoning Effort: High<think>", true),
            (GLM, "high", "Answer with max care. Reasoning Effort: High<think>", false),
            (GLM, "max", "Answer with max care. Reasoning Effort: Max<think>", false),
            (GLM, "none", "Answer with max care. Reasoning Effort: Max<think></think>", false),
            (THINKING_GLM, "none", "Reasoning Effort: Low<think>", true),
            (THINKING_GLM, "minimal", "Reasoning Effort: Low<think>", true),
            (THINKING_GLM, "low", "Reasoning Effort: Low<think>", false),
            (THINKING_GLM, "medium", "Reasoning Effort: High<think>", true),
            (THINKING_GLM, "xhigh", "Reasoning Effort: Max<think>", true),
            (THINKING_GLM, "max", "Reasoning Effort: Max<think>", false),
        ] {
            let (prompt, _, lines) = asked(template, given, json!({}));
            assert_eq!((prompt.as_deref(), lines.len()), (Some(shown), usize::from(is_told)), "{given}");
        }
        // What has no branch is what the model does by itself.
        let deepseek = "{% if reasoning_effort == 'max' %}Think as long as you can.{% endif %}<think>";
        for given in ["low", "high"] {
            let (prompt, _, lines) = asked(deepseek, given, json!({}));
            assert_eq!((prompt.as_deref(), lines.len()), (Some("<think>"), 0), "{given}");
        }
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
        assert_eq!(Efforts::of(|_| None, reasoning_format("think")), Efforts::default());
    }

    /// EXAONE 4's rule (and MiMo V2 Flash's, small Qwen 3.5's), Gemma 4's and Qwen 3's.
    #[test]
    fn an_effort_switches_reasoning_on_where_the_template_has_it_off() {
        const EXAONE: &str = "{% if enable_thinking is defined and enable_thinking is true %}<think>{% else %}<think></think>{% endif %}";
        const GEMMA: &str = "{% if enable_thinking %}Think. {% endif %}<turn>";
        const QWEN: &str = "<turn>{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}";
        for (template, given, own, shown, entered) in [
            (EXAONE, "high", json!({}), "<think>", Some(true)),
            (EXAONE, "minimal", json!({}), "<think>", Some(true)),
            (EXAONE, "ultra", json!({}), "<think>", Some(true)),
            (EXAONE, "none", json!({}), "<think></think>", Some(false)),
            (EXAONE, "high", json!({"enable_thinking": false}), "<think></think>", Some(false)),
            (GEMMA, "low", json!({}), "Think. <turn>", Some(true)),
            (GEMMA, "none", json!({}), "<turn>", Some(false)),
            (QWEN, "high", json!({}), "<turn>", None),
            (QWEN, "none", json!({}), "<turn><think></think>", Some(false)),
        ] {
            let (prompt, variables, lines) = asked(template, given, own);
            assert_eq!((prompt.as_deref(), lines.len()), (Some(shown), 0), "{given}");
            assert_eq!(variables["enable_thinking"].as_bool(), entered, "{template} {given}");
        }
    }

    #[test]
    fn a_switch_has_the_name_and_the_words_of_the_template() {
        const COMMAND_A: &str = "{% set reasoning = reasoning if reasoning is not undefined else true %}\
                                 {% if reasoning %}<|START_THINKING|>{% else %}<|START_THINKING|><|END_THINKING|>{% endif %}";
        const MINIMAX: &str = "Mode: {{ thinking_mode | default('adaptive') }}.{% if thinking_mode == 'disabled' %}</mm:think>\
                               {% elif thinking_mode == 'enabled' %}<mm:think>{% endif %}";
        let effort = |given: &str, shown: &str, template: &str, reasoning: &str| {
            let (prompt, variables, lines) =
                asked_of(template, reasoning, json!({}), |efforts, variables, warnings| {
                    let effort = Effort { field: "reasoning_effort", given: given.to_owned() };
                    efforts.write(&effort, variables, warnings);
                });
            assert_eq!((prompt.as_deref(), lines.len()), (Some(shown), 0), "{given}");
            variables
        };
        let off = effort("none", "<|START_THINKING|><|END_THINKING|>", COMMAND_A, "command_a");
        assert!(off["reasoning"] == false && off.get("thinking_mode").is_none());
        assert!(effort("high", "<|START_THINKING|>", COMMAND_A, "command_a").get("reasoning").is_none());
        effort("none", "Mode: disabled.</mm:think>", MINIMAX, "minimax_m3");
        // The model itself decides, as without an effort.
        effort("high", "Mode: adaptive.", MINIMAX, "minimax_m3");
        for (thinking, shown, other) in [
            (Thinking::Disabled, "Mode: disabled.</mm:think>", "<|START_THINKING|><|END_THINKING|>"),
            (Thinking::Adaptive, "Mode: adaptive.", "<|START_THINKING|>"),
            (Thinking::Enabled, "Mode: enabled.<mm:think>", "<|START_THINKING|>"),
        ] {
            for (template, reasoning, shown) in
                [(MINIMAX, "minimax_m3", shown), (COMMAND_A, "command_a", other)]
            {
                let think =
                    |efforts: &Efforts, variables: &mut Map<String, Value>, warnings: &mut Warnings| {
                        efforts.think(thinking, false, variables, warnings);
                    };
                let (prompt, variables, lines) = asked_of(template, reasoning, json!({}), think);
                assert_eq!((prompt.as_deref(), lines.len()), (Some(shown), 0), "{thinking:?}");
                assert_eq!(variables["enable_thinking"], thinking != Thinking::Disabled);
            }
        }
    }

    #[test]
    fn none_is_the_effort_with_which_the_model_does_not_reason() {
        for (given, own, shown) in [
            ("none", json!({}), "<|begin|>assistant<|think|><|end|><|begin|>assistant"),
            ("none", json!({"reasoning_effort": "high"}), "<|begin|>assistant"),
            ("low", json!({}), "<|begin|>assistant<|think|><|end|><|begin|>assistant"),
            ("medium", json!({}), "<|begin|>assistant"),
            ("high", json!({}), "<|begin|>assistant"),
        ] {
            let (prompt, _, lines) = asked_of(SOLAR, "solar_open", own, |efforts, variables, warnings| {
                let effort = Effort { field: "reasoning_effort", given: given.to_owned() };
                efforts.write(&effort, variables, warnings);
            });
            assert_eq!((prompt.as_deref(), lines.len()), (Some(shown), 0), "{given}");
        }
    }

    /// HyperCLOVA X SEED Think's rule.
    #[test]
    fn a_model_that_decides_whether_to_reason_is_told_where_it_is_asked_for() {
        const RULE: &str = "<|im_end|>{{ '\n' }}<|im_start|>assistant{% if force_reasoning %}{{ '/think\n' }}\
                            {% elif skip_reasoning %}{{ '\n' }}{% endif %}";
        let head = |(prompt, _, lines): (Option<String>, Value, Vec<String>)| {
            assert!(lines.is_empty(), "{lines:?}");
            prompt.and_then(|prompt| {
                prompt.strip_prefix("<|im_end|>\n<|im_start|>assistant").map(str::to_owned)
            })
        };
        for (thinking, own, shown) in [
            (Thinking::Disabled, json!({}), "\n"),
            (Thinking::Adaptive, json!({}), ""),
            (Thinking::Enabled, json!({}), "/think\n"),
            (Thinking::Disabled, json!({"skip_reasoning": false}), ""),
        ] {
            let found = asked_of(RULE, "hyperclovax", own, |efforts, variables, warnings| {
                efforts.think(thinking, false, variables, warnings);
            });
            assert_eq!(head(found).as_deref(), Some(shown), "{thinking:?}");
        }
        for (given, shown) in [("none", "\n"), ("low", ""), ("high", "")] {
            let found = asked_of(RULE, "hyperclovax", json!({}), |efforts, variables, warnings| {
                let effort = Effort { field: "reasoning_effort", given: given.to_owned() };
                efforts.write(&effort, variables, warnings);
            });
            assert_eq!(head(found).as_deref(), Some(shown), "{given}");
        }
    }

    /// `thinking` of `/v1/messages`.
    #[test]
    fn thinking_is_an_effort_where_the_template_knows_no_switch() {
        const LOW: &str = "<|begin|>assistant<|think|><|end|><|begin|>assistant";
        let (solar, hunyuan, strict) = ((SOLAR, "solar_open"), (HUNYUAN, "think"), (STRICT_HUNYUAN, "think"));
        let (high, off) = ("<effort>high<think>", "<effort>no_think<think></think>");
        for ((template, reasoning), thinking, effort, own, shown) in [
            (solar, Thinking::Disabled, None, json!({}), LOW),
            (solar, Thinking::Disabled, None, json!({"reasoning_effort": "high"}), "<|begin|>assistant"),
            (solar, Thinking::Disabled, Some("high"), json!({}), LOW),
            (hunyuan, Thinking::Disabled, Some("high"), json!({}), off),
            (strict, Thinking::Disabled, Some("max"), json!({}), off),
            (solar, Thinking::Enabled, None, json!({}), "<|begin|>assistant"),
            (hunyuan, Thinking::Disabled, None, json!({}), off),
            (hunyuan, Thinking::Enabled, None, json!({}), high),
            (hunyuan, Thinking::Adaptive, None, json!({}), high),
            (hunyuan, Thinking::Enabled, Some("low"), json!({}), "<effort>low<think>"),
            (hunyuan, Thinking::Enabled, None, json!({"reasoning_effort": "no_think"}), off),
            (strict, Thinking::Enabled, None, json!({}), high),
            (strict, Thinking::Enabled, Some("low"), json!({}), "<effort>low<think>"),
        ] {
            let (prompt, _, lines) = asked_of(template, reasoning, own, |efforts, variables, warnings| {
                let is_off = efforts.think(thinking, effort.is_some(), variables, warnings);
                if let Some(given) = effort.filter(|_| !is_off) {
                    let effort = Effort { field: "output_config.effort", given: given.to_owned() };
                    efforts.write(&effort, variables, warnings);
                }
            });
            assert_eq!((prompt.as_deref(), lines.len()), (Some(shown), 0), "{template} {thinking:?}");
        }
    }

    /// DeepSeek R1's, MiniMax M2's.
    #[test]
    fn it_is_told_where_a_model_reasons_all_the_same() {
        let line = |lines: Vec<String>| -> String { lines.join("; ") };
        let (_, _, lines) = asked("<think>", "none", json!({}));
        assert_eq!(
            line(lines),
            "`reasoning.effort` has no effect as \"none\": the model's chat template has it reason all the same"
        );
        let think = |efforts: &Efforts, variables: &mut Map<String, Value>, warnings: &mut Warnings| {
            efforts.think(Thinking::Disabled, false, variables, warnings);
        };
        let (_, _, lines) = asked_of("<think>", "think", json!({}), think);
        assert_eq!(
            line(lines),
            "`thinking` has no effect as \"disabled\": the model's chat template has it reason all the same"
        );
        // What a model does of its own accord the prompt does not tell.
        assert_eq!(line(asked("<turn>", "none", json!({})).2), "");
        assert_eq!(line(asked("<think></think>", "none", json!({})).2), "");
    }
}
