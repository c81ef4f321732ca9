//! Reasoning before calls and before text of a schema: what stands in it is free, but for calls as the model's template writes them.

use penstock_constraint::Part;
use penstock_output::{Callable, Calls, Start, after_reasoning, reasoning_format, tool_format};
use serde_json::json;

use super::{World, answer, calls, functions, read};

/// A call that a model writes within reasoning, as its template writes calls, is bound too: it is one where reasoning is not
/// closed.
#[test]
fn a_call_in_reasoning_is_bound() {
    let functions: Vec<Callable> =
        functions().into_iter().filter(|function| function.name == "get_weather").collect();
    let coder = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>";
    let dsml = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" \
                string=\"true\">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \
                \"Paris\"}<|tool_call_end|><|tool_calls_section_end|>";
    for (name, reasoning, call) in [
        ("qwen3_coder", "think", coder),
        (
            "hermes",
            "think",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
        ),
        (
            "glm45",
            "think",
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        ),
        ("deepseek_v4", "think", dsml),
        ("gemma4", "gemma4", "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>}<tool_call|>"),
        ("kimi_k2", "kimi_k2", kimi),
    ] {
        let (format, reasoning) = (tool_format(name).unwrap(), reasoning_format(reasoning));
        let (open, close) = reasoning.unwrap().markers("");
        let wrong = call.replace("city", "town");
        for (has_special, start) in [false, true]
            .into_iter()
            .flat_map(|special| [(special, Start::Content), (special, Start::Reasoning)])
        {
            let world = World::new(format, has_special);
            let opening = if start == Start::Content { open } else { "" };
            for several in [true, false] {
                let calls =
                    Calls { reasoning, start, may_be_several: several, ..calls(format, "", &functions) };
                let grammar = world.compile(calls.possible().unwrap().parts);
                for good in [call.to_owned(), format!("Hm. 1 < 2.\n{call}"), format!("Hm.{close}{call}")] {
                    let good = format!("{opening}{good}");
                    assert!(
                        world.accepts(&grammar, &good),
                        "{name} {has_special} {start:?} {several}: {good}"
                    );
                    let answer = answer(Some(format), reasoning, &functions, start, &good);
                    assert_eq!(answer.calls.len(), 1, "{name}: {good}");
                }
                for bad in [wrong.clone(), format!("Hm.\n{wrong}"), format!("Hm.{close}{wrong}")] {
                    let bad = format!("{opening}{bad}");
                    assert!(
                        !world.accepts(&grammar, &bad),
                        "{name} {has_special} {start:?} {several}: {bad}"
                    );
                }
                let tried = format!("{opening}Hm.\n{call} is right.{close}{call}");
                let is_tried = world.accepts(&grammar, &tried);
                assert!(is_tried || name == "kimi_k2", "{name} {has_special} {start:?} {several}: {tried}");
            }
        }
    }
    // Reasoning about how calls are written is free.
    let calls = Calls {
        reasoning: reasoning_format("think"),
        start: Start::Reasoning,
        ..calls(tool_format("qwen3_coder").unwrap(), "", &functions)
    };
    let world = World::new(calls.format, false);
    let grammar = world.compile(calls.possible().unwrap().parts);
    for text in
        ["<tool_call> is how.</think>Hello.", "I write <tool_call> and <function=f> in it.</think>Hello."]
    {
        assert!(world.accepts(&grammar, text), "{text}");
    }
}

#[test]
fn a_call_without_a_marker_is_bound_after_reasoning_and_not_within() {
    let functions = functions();
    for (name, call) in [
        ("json", "[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]"),
        ("llama3_json", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}"),
        ("pythonic", "[get_weather(city=\"Paris\")]"),
    ] {
        let format = tool_format(name).unwrap();
        let world = World::new(format, true);
        let wrong = call.replace("city", "town");
        for start in [Start::Content, Start::Reasoning] {
            let calls =
                Calls { reasoning: reasoning_format("think"), start, ..calls(format, "", &functions) };
            let grammar = world.compile(calls.possible().unwrap().parts);
            let opening = if start == Start::Content { "<think>" } else { "" };
            let thought = |after: &str| format!("{opening}{wrong} Hm.</think>{after}");
            for good in ["Hello.", call, &format!("\n\n{call}")] {
                assert!(world.accepts(&grammar, &thought(good)), "{name} {start:?}: {good}");
            }
            for bad in [&wrong, &format!("\n\n{wrong}")] {
                assert!(!world.accepts(&grammar, &thought(bad)), "{name} {start:?}: {bad}");
            }
            // Cut off.
            assert!(world.accepts(&grammar, &format!("{opening}{wrong}")), "{name} {start:?}");
            if start == Start::Content {
                assert!(world.accepts(&grammar, "Hello.") && world.accepts(&grammar, call), "{name}");
                assert!(!world.accepts(&grammar, &wrong), "{name}");
            }
        }
    }
}

/// Llama 4's own template asks for JSON, and shows earlier calls so.
#[test]
fn calls_are_bound_as_the_template_asks_for_them() {
    const LLAMA_4: &str = "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its \
                           value}. … '<|python_start|>'";
    let functions = functions();
    let format = tool_format("pythonic").unwrap();
    let json = |body: &str| format!("{{\"name\": \"get_weather\", \"parameters\": {body}}}");
    let (right, wrong) =
        (json("{\"city\": \"Paris\", \"days\": 3}"), json("{\"city\": \"Paris\", \"days\": \"three\"}"));
    for has_special in [false, true] {
        let world = World::new(format, has_special);
        let calls = calls(format, LLAMA_4, &functions);
        let grammar = world.compile(calls.possible().unwrap().parts);
        for good in [right.clone(), format!("{right}{right}"), "Hello.".to_owned()] {
            assert!(world.accepts(&grammar, &good), "{has_special}: {good}");
        }
        assert_eq!(read(format, &functions, &format!("{right}{right}")).calls.len(), 2);
        let python = "<|python_start|>[get_weather(days=\"three\")]<|python_end|>";
        for bad in [wrong.as_str(), &format!("{right}{wrong}"), python, &format!("Hm. {python}")] {
            assert!(!world.accepts(&grammar, bad), "{has_special}: {bad}");
        }
        let must = world.compile(calls.required().0);
        assert!(world.accepts(&must, &right) && !world.accepts(&must, &wrong), "{has_special}");
    }
}

/// Texts of a schema with the reasoning that goes before them, and texts that are neither.
#[test]
fn text_of_a_schema_goes_after_reasoning() {
    const TEXT: &str = "{\"a\": 1}";
    const ANALYSIS: &str = "<|channel|>analysis<|message|>";
    const NEXT: &str = "<|end|><|start|>assistant";
    const FINAL: &str = "<|channel|>final<|message|>";
    let schema = json!({"properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false});
    let text = || vec![Part::Json { schema: schema.clone(), at: String::new() }];
    let functions = functions();
    for (name, tool, start, thoughtful, plain, bad) in [
        (
            "think",
            "hermes",
            Start::Reasoning,
            vec![format!("Hm.</think>{TEXT}"), format!("Hm.</think>\n\n{TEXT}")],
            vec![format!("</think>{TEXT}")],
            vec![TEXT.to_owned(), "Hm.".to_owned(), "Hm.</think>".to_owned(), "Hm.</think>No".to_owned()],
        ),
        (
            "think",
            "hermes",
            Start::Content,
            vec![format!("<think>Hm.</think>{TEXT}"), format!("<think>\nHm.\n</think>\n\n{TEXT}")],
            vec![TEXT.to_owned(), format!("<think>\n\n</think>\n\n{TEXT}")],
            vec![format!("Hm.</think>{TEXT}"), format!("\n{TEXT}"), "<think>Hm.".to_owned()],
        ),
        (
            "harmony",
            "harmony",
            Start::Content,
            vec![
                format!("{ANALYSIS}Hm.{NEXT}{FINAL}{TEXT}"),
                format!("{ANALYSIS}Hm.{NEXT}<|channel|>final <|constrain|>json<|message|>{TEXT}"),
            ],
            vec![format!("{FINAL}{TEXT}")],
            vec![
                TEXT.to_owned(),
                format!("{ANALYSIS}Hm.{NEXT}{TEXT}"),
                format!("<|channel|>commentary<|message|>{TEXT}"),
                format!("{FINAL}No"),
            ],
        ),
        (
            "harmony",
            "harmony",
            Start::Reasoning,
            vec![format!("Hm.{NEXT}{FINAL}{TEXT}")],
            vec![],
            vec![format!("{FINAL}{TEXT}"), format!("Hm.{NEXT}{TEXT}")],
        ),
        (
            "inkling",
            "inkling",
            Start::Content,
            vec![format!(
                "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>{TEXT}<|end_message|>"
            )],
            vec![format!("<|content_text|>{TEXT}<|end_message|>"), format!("<|content_text|>{TEXT}")],
            vec![
                TEXT.to_owned(),
                format!("<|content_text|>Hm. {TEXT}"),
                format!("<|content_thinking|>Hm.<|end_message|>{TEXT}"),
                format!("<|content_thinking|>Hm.<|end_message|><|message_model|>{TEXT}"),
                format!("<|content_thinking|>{TEXT}<|end_message|>"),
            ],
        ),
        (
            "inkling",
            "inkling",
            Start::Reasoning,
            vec![format!("Hm.<|end_message|><|message_model|><|content_text|>{TEXT}<|end_message|>")],
            vec![],
            vec![format!("<|content_text|>{TEXT}"), format!("Hm.<|end_message|><|message_model|>{TEXT}")],
        ),
        (
            "command_a",
            "command_a",
            Start::Content,
            vec![
                format!("<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>{TEXT}<|END_RESPONSE|>"),
                format!("<|START_THINKING|>Hm.<|END_THINKING|>{TEXT}"),
            ],
            vec![TEXT.to_owned(), format!("<|START_RESPONSE|>{TEXT}")],
            vec![format!("<|START_RESPONSE|>Hm. {TEXT}<|END_RESPONSE|>")],
        ),
        (
            "solar_open",
            "solar_open",
            Start::Content,
            vec![format!("<|think|>Hm.<|end|><|begin|>assistant<|content|>{TEXT}")],
            vec![format!("<|content|>{TEXT}"), TEXT.to_owned()],
            vec![format!("<|content|>Hm. {TEXT}"), "<|think|>Hm.<|end|><|begin|>assistant".to_owned()],
        ),
        (
            "hyperclovax",
            "hyperclovax",
            Start::Content,
            vec![
                format!("/think\nHm.<|im_end|>\n<|im_start|>assistant\n{TEXT}<|im_end|>"),
                format!("/think\nHm.<|im_end|>\n<|im_start|>assistant\n{TEXT}"),
            ],
            vec![format!("\n{TEXT}<|im_end|>"), format!("\n{TEXT}"), TEXT.to_owned()],
            vec![format!("\nHm. {TEXT}"), "/think\nHm.<|im_end|>\n<|im_start|>assistant".to_owned()],
        ),
        (
            "hyperclovax",
            "hyperclovax",
            Start::Reasoning,
            vec![format!("Hm.<|im_end|>\n<|im_start|>assistant\n{TEXT}<|im_end|>")],
            vec![],
            vec![TEXT.to_owned(), format!("Hm.<|im_end|>{TEXT}")],
        ),
    ] {
        let (reasoning, tool) = (reasoning_format(name).unwrap(), tool_format(tool).unwrap());
        let world = World::new(tool, true);
        let without_calls = after_reasoning(reasoning, "", start, text());
        let calls = Calls { reasoning: Some(reasoning), start, ..calls(tool, "", &functions) };
        for (parts, tool) in [(without_calls, None), (calls.or_text(text()).0, Some(tool))] {
            let grammar = world.compile(parts);
            for (good, thought) in
                thoughtful.iter().map(|text| (text, "Hm.")).chain(plain.iter().map(|text| (text, "")))
            {
                assert!(world.accepts(&grammar, good), "{name} refuses {good}");
                let answer = answer(tool, Some(reasoning), &functions, start, good);
                assert_eq!((answer.content.as_str(), answer.reasoning.as_str()), (TEXT, thought), "{good}");
            }
            for bad in &bad {
                assert!(!world.accepts(&grammar, bad), "{name} takes {bad}");
            }
        }
    }
}

/// Hunyuan's open checkpoints name it in each marker.
#[test]
fn markers_of_reasoning_are_the_templates() {
    let functions = functions();
    let (tool, reasoning) = (tool_format("hunyuan_v3").unwrap(), reasoning_format("hunyuan_v3"));
    let world = World::new(tool, false);
    for (template, end) in [("", ""), ("{% set end = ':opensource' %}", ":opensource")] {
        let calls = Calls { reasoning, start: Start::Reasoning, ..calls(tool, template, &functions[3..4]) };
        let call = format!(
            "<tool_calls{end}>\n<tool_call{end}>ping<tool_sep{end}>\n</tool_call{end}>\n</tool_calls{end}>"
        );
        let other = if end.is_empty() { ":opensource" } else { "" };
        let (must, may) = (world.compile(calls.required().0), world.compile(calls.possible().unwrap().parts));
        for grammar in [&must, &may] {
            assert!(world.accepts(grammar, &format!("Hm.</think{end}>{call}")), "{end}");
            assert!(!world.accepts(grammar, &format!("Hm.</think{end}><tool_calls{end}>\nx")), "{end}");
        }
        assert!(!world.accepts(&must, &format!("Hm.</think{other}>{call}")), "{end}");
    }
}
