//! Formats by name and by chat template.

use crate::Start;
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
    /// Where the answer to this rendered prompt begins: inside reasoning, when the template has opened it already.
    pub fn start_after(&self, prompt: &str) -> Start {
        let prompt = prompt.trim_end();
        let is_open = match self.open {
            [] => prompt.ends_with("<|channel|>analysis<|message|>"),
            open => open.iter().any(|open| prompt.ends_with(open.trim_end())),
        };
        if is_open { Start::Reasoning } else { Start::Content }
    }

    /// Whether the prompt has closed reasoning where the answer begins: the model is not to reason.
    pub fn is_closed_after(&self, prompt: &str) -> bool {
        let ends = if self.off.is_empty() { self.close } else { self.off };
        let is_behind = |end: &&str| match end.ends_with(char::is_whitespace) {
            // By it the head of a message has ended.
            true => prompt.ends_with(*end),
            false => prompt.trim_end().ends_with(*end),
        };
        ends.iter().any(is_behind)
    }

    /// Whether the text opens reasoning and does not close it. A prompt's messages may do so in their own words.
    pub fn is_open_in(&self, text: &str) -> bool {
        let last = |markers: &[&str]| markers.iter().filter_map(|marker| text.rfind(marker)).max();
        last(self.open).is_some_and(|open| last(self.close) < Some(open))
    }

    /// Whether reasoning is what the text begins with, and goes on behind it.
    pub fn is_open_from(&self, text: &str) -> bool {
        let opens = |open: &&str| text.trim_start().starts_with(open.trim_end());
        self.open.iter().any(opens) && !self.close.iter().any(|close| text.contains(close))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::formats::{Body, Closes};
    use crate::readers::MARKER;

    #[test]
    fn a_name_means_one_format() {
        let mut seen = HashSet::new();
        for format in TOOLS {
            for name in [&[format.name], format.aliases].concat() {
                assert!(seen.insert(name), "{name}");
                assert_eq!(tool_format(name).map(|found| found.name), Some(format.name));
            }
        }
        let mut seen = HashSet::new();
        for format in REASONING {
            for name in [&[format.name], format.aliases].concat() {
                assert!(seen.insert(name), "{name}");
            }
        }
        assert!(tool_format("").is_none() && reasoning_format("no such format").is_none());
    }

    /// In a list the first marker that fits is taken: one that begins with another has to stand before it.
    #[test]
    fn longer_markers_stand_first() {
        let mut lists: Vec<Vec<&str>> = Vec::new();
        for format in TOOLS {
            lists.extend(
                format.section.iter().flat_map(|section| [section.open.to_vec(), section.close.to_vec()]),
            );
            for call in format.calls {
                lists.extend([call.open.to_vec(), call.close.to_vec()]);
                if let Body::Named(name, arguments) = &call.body {
                    lists.extend([name.ends.to_vec(), name.stops.to_vec()]);
                    if let crate::formats::Arguments::Parameters(parameters) = arguments {
                        lists.push(parameters.head_ends.to_vec());
                        lists.extend(match parameters.closes {
                            Closes::Markers(markers) => Some(markers.to_vec()),
                            Closes::Key(..) => None,
                        });
                    }
                }
            }
        }
        lists.extend(REASONING.iter().flat_map(|format| [format.open.to_vec(), format.close.to_vec()]));
        for list in lists {
            // With what of a character is cut off.
            assert!(list.iter().all(|marker| marker.len() + 3 <= MARKER), "{list:?}");
            for (at, marker) in list.iter().enumerate().filter(|(_, marker)| !marker.is_empty()) {
                assert!(!list[at + 1..].iter().any(|later| later.starts_with(marker)), "{list:?}");
            }
        }
    }

    /// What the models' own templates say of calls and reasoning, and nothing else of them.
    #[test]
    fn templates_of_models_choose_their_formats() {
        for (template, tool, reasoning) in [
            ("'<|open|>' + tag … '<|sep|>' … open_tag('tools') … open_tag('think')", "kimi_k3", "kimi_k3"),
            ("<|tool_calls_section_begin|>… '<think>' …", "kimi_k2", "kimi_k2"),
            ("<|tool_calls_section_begin|>", "kimi_k2", ""),
            (
                "\"<|begin|>assistant<|think|>\" … \"<|tool_call:begin|>\" + tool_call.id … <|tool_response:begin|>",
                "solar_open",
                "solar_open",
            ),
            (
                "set dsml_token = \"｜DSML｜\" … <{{ dsml_token }}function_calls> … \"<think>\"",
                "deepseek_v32",
                "think",
            ),
            (
                "set dsml_token = \"｜DSML｜\" … <{{ dsml_token }}tool_calls> … \"<think>\"",
                "deepseek_v4",
                "think",
            ),
            ("'<｜tool▁calls▁begin｜>' … '\\n```json\\n' … '</think>'", "deepseek_v3", "think"),
            ("'<｜tool▁calls▁begin｜>' … '<｜tool▁sep｜>' … '</think>'", "deepseek_v31", "think"),
            (
                "<minimax:tool_call> … <invoke name=… '\\n<response>' … '<think>' '</think>'",
                "minimax_m2",
                "think",
            ),
            ("]<]minimax[>[<tool_call> … <mm:think>", "minimax_m3", "minimax_m3"),
            ("<seed:tool_call>\\n<function=f>\\n<parameter=p> … '<seed:think>'", "seed_oss", "seed_oss"),
            ("<tool_call>\\n<function=' … '<parameter=' … '<think>\\n'", "qwen3_coder", "think"),
            (
                "<function=f>\\n<parameter=p>v</parameter>\\n … is preserved exactly as-is, including … '<think></think>'",
                "mimo",
                "think",
            ),
            (
                "<function=f>\\n<parameter=example_parameter_1>value_1</parameter>\\n … '<think>'",
                "mimo",
                "think",
            ),
            ("<tool_call>{function-name}\\n<arg_key> … '</think>'", "glm45", "think"),
            ("<tool_calls> … <tool_call> … <tool_sep> … <arg_key> … <think>", "hunyuan_v3", "hunyuan_v3"),
            ("'<|tool_call>call:' … '<|channel>thought\\n<channel|>'", "gemma4", "gemma4"),
            ("<start_function_call>call:", "functiongemma", ""),
            ("\"<|tool_call_start|>[\" … \"<think>\"", "lfm2", "think"),
            ("\"List of tools: [\" … \"<|im_start|>\" … \"</think>\"", "lfm2", "think"),
            ("<function_calls>", "olmo3", ""),
            ("<|START_ACTION|>[ … <|START_THINKING|>", "command_a", "command_a"),
            ("[TOOL_CALLS] … [THINK]", "mistral", "mistral"),
            (
                "'role': 'function call' … role_sep=\"<|role_sep|>\\n\", message_sep=\"<|message_sep|>\\n\\n\"",
                "gigachat3",
                "",
            ),
            (
                "'<|im_start|>tool_list\\n' … '<|im_start|>assistant -> tool/function_call\\n' … '<|im_start|>assistant/think\\n'",
                "hyperclovax",
                "hyperclovax",
            ),
            (
                "'<|im_start|>tool_list\\n' … '<|im_start|>assistant -> tool/function_call\\n'",
                "hyperclovax",
                "",
            ),
            ("<|start_header_id|> … <TOOLCALL>[ … '</think>'", "nemotron", "think"),
            ("'<|tool|>' … '<|/tool|>' … <|tool_call|>", "phi4_mini", ""),
            ("<|start_of_role|> … <|tool_call|>", "granite", ""),
            (
                "<|start_of_role|> … <|tool_call|> … Write your thought process after 'Here is",
                "granite",
                "granite",
            ),
            (
                "<|start_of_role|> … <|tool_call|> … In the thought process, … between <think></think> … <response></response>",
                "granite",
                "ernie45",
            ),
            ("<|tools_prefix|> … <|inner_prefix|>", "apertus", "apertus"),
            ("<longcat_tool_call>", "longcat", ""),
            ("<tool_call>\\n{\\\"name\\\": … '<think>'", "hermes", "think"),
            ("<global_setting>\\nthink_mode=True\\n … '<response>\\n' … '<think>\\n'", "", "ernie45"),
            ("<|start_header_id|> … {\\\"name\\\": function name, \\\"parameters\\\": …", "llama3_json", ""),
            ("<|start_header_id|> … [func_name1(params_name1=… ", "pythonic", ""),
            ("<|channel|>analysis<|message|> … <|start|>assistant", "harmony", "harmony"),
            (
                "\"<|message_model|><|content_thinking|>\" … \"<|message_model|>\" ~ fn.name ~ \"<|content_invoke_tool_json|>\"",
                "inkling",
                "inkling",
            ),
            ("make calls in a single JSON array: \\n\\n[{\\\"name\\\": … <|im_start|>", "json", ""),
            ("<|im_start|>", "", ""),
        ] {
            let (found_tool, found_reasoning) = of_template(template);
            let found = (
                found_tool.map_or("", |format| format.name),
                found_reasoning.map_or("", |format| format.name),
            );
            assert_eq!(found, (tool, reasoning), "{template}");
        }
    }

    #[test]
    fn a_prompt_may_end_in_reasoning() {
        let think = reasoning_format("think").expect("it exists");
        assert_eq!(think.start_after("<|im_start|>assistant\n<think>\n"), Start::Reasoning);
        assert_eq!(think.start_after("<|im_start|>assistant\n<think>\n\n</think>\n\n"), Start::Content);
        assert_eq!(think.start_after("<|im_start|>assistant\n"), Start::Content);
        assert!(think.is_closed_after("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
        for text in ["<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n"] {
            assert!(!think.is_closed_after(text), "{text}");
        }
        let solar = reasoning_format("solar_open").expect("it exists");
        assert!(solar.is_closed_after("Hi<|end|><|begin|>assistant<|think|><|end|><|begin|>assistant"));
        assert!(!solar.is_closed_after("<|begin|>user<|content|>Hi<|end|><|begin|>assistant"));
        // Every prompt ends as reasoning does.
        let inkling = reasoning_format("inkling").expect("it exists");
        let prompt = "<|message_user|><|content_text|>Hi<|end_message|><|message_model|>";
        assert!(!inkling.is_closed_after(prompt) && inkling.start_after(prompt) == Start::Content);
        // Whether to reason is asked for, or not, or left to the model.
        let hyperclova = reasoning_format("hyperclovax").expect("it exists");
        for (head, start, is_closed) in
            [("/think\n", Start::Reasoning, false), ("\n", Start::Content, true), ("", Start::Content, false)]
        {
            let prompt = format!("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant{head}");
            assert_eq!(hyperclova.start_after(&prompt), start, "{prompt:?}");
            assert_eq!(hyperclova.is_closed_after(&prompt), is_closed, "{prompt:?}");
        }
        let gemma = reasoning_format("gemma4").expect("it exists");
        assert_eq!(gemma.start_after("<|turn>model\n<|channel>thought\n<channel|>"), Start::Content);
        let seed = reasoning_format("seed_oss").expect("it exists");
        let added = "<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>";
        assert!(seed.is_open_in(added) && !seed.is_open_in("<seed:bos>assistant\n"));
        assert!(!seed.is_open_in(&format!("{added}</seed:cot_budget_reflect></seed:think>")));
        assert!(think.is_open_from("<think>\nFirst") && think.is_open_from(" <think>"));
        for text in ["", "First <think>", "<think>\nFirst</think>", "<think>a</think><think>"] {
            assert!(!think.is_open_from(text), "{text}");
        }
        let harmony = reasoning_format("harmony").expect("it exists");
        assert!(!harmony.is_open_in("<|channel|>") && !harmony.is_open_from("<|channel|>"));
        assert_eq!(harmony.start_after("<|start|>assistant<|channel|>analysis<|message|>"), Start::Reasoning);
        assert_eq!(harmony.start_after("<|start|>assistant"), Start::Content);
    }
}
