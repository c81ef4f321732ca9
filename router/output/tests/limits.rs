//! What no text may do: take more than linear time, make the parser hold back much, or make it recurse.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_output::{Answer, Delta, Parser, Start, Tool, reasoning_formats, tool_format, tool_formats};
use serde_json::json;

const MEGABYTE: usize = 1_000_000;

/// For a megabyte, a byte at a time: ten times what the slowest of these took on a busy machine.
const LIMIT: Duration = Duration::from_secs(4);

fn tools() -> Vec<Tool> {
    vec![Tool {
        name: "f".to_owned(),
        parameters: json!({"properties": {"a": {"type": "string"}, "b": {"type": "array"}}}),
    }]
}

fn by_byte(format: &str, text: &str) -> (Answer, Duration) {
    let begin = Instant::now();
    let reasoning =
        reasoning_formats().find(|other| other.name == format).or_else(|| reasoning_formats().last());
    let mut parser = Parser::new(tool_format(format), reasoning, tools().into(), Start::Content);
    let (mut answer, mut deltas) = (Answer::default(), Vec::new());
    let mut characters = text.char_indices().map(|(at, _)| at).skip(1).collect::<Vec<_>>();
    characters.push(text.len());
    let mut from = 0;
    for end in characters {
        parser.push(&text[from..end], &mut deltas);
        deltas.drain(..).for_each(|delta: Delta| answer.add(&delta));
        from = end;
    }
    parser.finish(&mut deltas);
    deltas.iter().for_each(|delta| answer.add(delta));
    (answer, begin.elapsed())
}

fn whole(format: &str, text: &str) -> (Answer, Duration) {
    let begin = Instant::now();
    let reasoning =
        reasoning_formats().find(|other| other.name == format).or_else(|| reasoning_formats().last());
    let mut parser = Parser::new(tool_format(format), reasoning, tools().into(), Start::Content);
    let mut deltas = Vec::new();
    parser.push(text, &mut deltas);
    parser.finish(&mut deltas);
    (Answer::of(&deltas), begin.elapsed())
}

/// A beginning, again and again, up to a megabyte: less than what is held back, so that no limit ends it.
fn repeated(beginning: &str, part: &str) -> String {
    let mut text = beginning.to_owned();
    while text.len() < MEGABYTE {
        text.push_str(part);
    }
    text
}

fn check(format: &str, beginning: &str, part: &str) {
    let text = repeated(beginning, part);
    let (at_once, time_at_once) = whole(format, &text);
    let (answer, time) = by_byte(format, &text);
    let beginning: String = beginning.chars().take(80).collect();
    assert!(at_once == answer, "{format}: {beginning:?} and {part:?} differ");
    eprintln!("{format:14} {time_at_once:9.1?} {time:9.1?} {beginning:?} {part:?}");
    assert!(
        time < LIMIT && time_at_once < LIMIT,
        "{format}: {beginning:?} and {part:?} took {time:?}, {time_at_once:?}"
    );
}

#[test]
fn a_megabyte_takes_linear_time() {
    for format in tool_formats() {
        check(format.name, "", "some words, and <b>more</b> [1] {2} \n");
    }
    for (format, beginning, part) in [
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "text \\n <tool_call> "),
        ("hermes", "<tool_call>{\"arguments\": {\"a\": \"", "text \\n <tool_call> "),
        ("hermes", "", "<tool_call>"),
        ("hermes", "", "<tool_call>{\"name\": \"f\", \"arguments\": "),
        ("hermes", "", "<tool_call>{\"name\": \""),
        ("hermes", "<tool_call>", " "),
        ("hermes", "", "<tool_call>[{"),
        ("hermes", "<think>", "  \n"),
        ("hermes", "", "<think>a</think>"),
        (
            "hermes",
            "<tool_call>[{\"name\": \"f\", \"arguments\": {}}",
            ", {\"name\": \"f\", \"arguments\": {}}",
        ),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": ", "["),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", "{\"a\": "),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>", "text\n <parameter=b> </function>"),
        ("qwen3_coder", "<tool_call><function=f><parameter=b>", "text\n <parameter=b> </function>"),
        ("qwen3_coder", "<tool_call><function=f>", "<parameter="),
        ("qwen3_coder", "<function=f><parameter=a>1</parameter>", "junk <parameter"),
        ("qwen3_coder", "", "<tool_call><function="),
        ("qwen3_coder", "", "<tool_call><function=f>"),
        ("qwen3_coder", "<tool_call>", "\n"),
        ("glm45", "<tool_call>f", "<arg_key>a</arg_key>"),
        ("glm45", "<tool_call>f<arg_key>a</arg_key>", " "),
        ("minimax_m3", "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<b>", "]<]minimax[>[<item>"),
        (
            "minimax_m3",
            "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<b>",
            "]<]minimax[>[<item>x]<]minimax[>[</item>",
        ),
        (
            "minimax_m3",
            format!(
                "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<b>{}",
                "]<]minimax[>[<item>".repeat(20_000)
            )
            .as_str(),
            "]<]minimax[>[</item>",
        ),
        ("pythonic", "[f(a='", "text \\' [f("),
        ("pythonic", "[f(a=", "["),
        ("pythonic", "[", "f("),
        ("pythonic", "[f(a='b')", ", f(a='b')"),
        ("lfm2", "", "<|tool_call_start|>[f(a="),
        ("olmo3", "<function_calls>", "f()\n"),
        ("gemma4", "<|tool_call>call:f{a:<|\"|>", "text } <|tool_call>call:f{"),
        ("gemma4", "", "<|tool_call>call:f{"),
        ("gemma4", "<|tool_call>call:f{", "a:{"),
        ("mistral", "", "[TOOL_CALLS]"),
        ("mistral", "", "[TOOL_CALLS]f[ARGS]{}"),
        ("mistral", "", "[TOOL_CALLS]f"),
        ("deepseek_v32", "<｜DSML｜invoke name=\"f\">", "<｜DSML｜parameter "),
        ("deepseek_v32", "", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DS"),
        ("lfm2", "", "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"a\": ["),
        ("pythonic", "", "<|python_start|>[f(a={"),
        ("longcat", "", "<longcat_tool_call>f<longcat_arg_key>"),
        ("deepseek_v4", "", "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\">"),
        ("kimi_k2", "<think>", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>["),
        ("kimi_k3", "", "<|open|>call tool=\"f\" index=\"1\"<|sep|>"),
        ("json", "[", "{\"name\": \"f\", "),
        ("json", "", "```json\n{\"a\": 1}\n```\n"),
        ("llama3_json", "{\"name\": \"f\", \"parameters\": {\"a\": \"", "\\\\ \\d \n"),
        ("harmony", "", "<|start|>assistant"),
        ("harmony", "<|channel|>analysis<|message|>", "some words < "),
        ("harmony", "", "<|channel|>commentary to=functions.f<|message|>{\"a\": \"b\"}<|call|>"),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>{\"a\": ", "<|"),
        ("harmony", "<|channel|>", " "),
        ("inkling", "", "<|message_model|>"),
        ("inkling", "", "<|end_message|>f"),
        ("inkling", "<|content_thinking|>", "some words < "),
        (
            "inkling",
            "",
            "f<|content_invoke_tool_json|>{\"name\":\"f\",\"args\":{\"a\":\"b\"}}<|end_message|>",
        ),
        ("inkling", "<|content_invoke_tool_json|>{\"name\":\"f\",\"args\":{\"a\": ", "<|"),
        ("inkling", "<|content_invoke_tool_json|>{\"args\":{\"a\":\"", "x"),
        ("inkling", "f<|content_invoke_tool_json|>", " "),
    ] {
        check(format, beginning, part);
    }
}

/// Each may end, at any line, a value of another whose own end is missing.
#[test]
fn a_tool_may_have_very_many_arguments() {
    let properties: serde_json::Map<String, serde_json::Value> =
        (0..100_000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let tools: Arc<[Tool]> =
        [Tool { name: "f".to_owned(), parameters: json!({"properties": properties}) }].into();
    let value = "a line\n".repeat(20_000);
    let mut parser = Parser::new(tool_format("qwen3_coder"), None, tools, Start::Content);
    let (mut answer, mut deltas) = (Answer::default(), Vec::new());
    let begin = Instant::now();
    parser.push("<tool_call>\n<function=f>\n<parameter=p1>\n", &mut deltas);
    for at in 0..value.len() {
        parser.push(&value[at..=at], &mut deltas);
        deltas.drain(..).for_each(|delta: Delta| answer.add(&delta));
    }
    parser.push("\n<parameter=p99999>\n5\n</parameter>\n</function>\n</tool_call>", &mut deltas);
    parser.finish(&mut deltas);
    deltas.iter().for_each(|delta| answer.add(delta));
    let time = begin.elapsed();
    let arguments: serde_json::Value = serde_json::from_str(&answer.calls[0].arguments).expect("JSON");
    assert_eq!(arguments, json!({"p1": value, "p99999": "5"}));
    assert!(time < LIMIT, "{time:?}");
}

#[test]
fn what_may_be_a_call_is_held_back_up_to_a_limit() {
    let text = format!("[f(a='{}", "x".repeat(3 * MEGABYTE));
    let mut parser = Parser::new(tool_format("pythonic"), None, tools().into(), Start::Content);
    let (mut deltas, mut held, mut most) = (Vec::new(), 0, 0);
    for part in text.as_bytes().chunks(1000) {
        held += part.len();
        parser.push(std::str::from_utf8(part).expect("ASCII"), &mut deltas);
        for delta in deltas.drain(..) {
            match delta {
                Delta::Content(text) => held -= text.len(),
                other => panic!("{other:?}"),
            }
        }
        most = most.max(held);
    }
    parser.finish(&mut deltas);
    assert!(most > MEGABYTE / 2 && most <= (1 << 20) + 1000, "{most}");
}

#[test]
fn a_long_value_that_is_not_a_text_by_its_schema_comes_out_as_one() {
    let value = "[1, ".repeat(MEGABYTE / 2);
    let text = format!("<tool_call><function=f><parameter=b>{value}</parameter></function></tool_call>");
    let (answer, _) = whole("qwen3_coder", &text);
    assert_eq!(by_byte("qwen3_coder", &text).0, answer);
    assert!(answer.calls[0].complete);
    let arguments: serde_json::Value = serde_json::from_str(&answer.calls[0].arguments).expect("JSON");
    assert_eq!(arguments["b"], json!(value));
}

/// What is given up is given out up to a character's end.
#[test]
fn a_key_that_is_too_long_for_a_name_is_content() {
    for character in ["n", "é", "日", "\u{20000}"] {
        for shift in ["", "n", "nn"] {
            let text = format!("<tool_call>{}{{\"{shift}{}", " ".repeat(5000), character.repeat(4000));
            for (answer, _) in [whole("hermes", &text), by_byte("hermes", &text)] {
                assert!(answer.content == text && answer.calls.is_empty(), "{character} {shift:?}");
            }
        }
    }
}

#[test]
fn prose_is_given_out_at_once() {
    for format in tool_formats() {
        let mut parser = Parser::new(Some(format), None, tools().into(), Start::Content);
        let text = "Hello, this is an answer (f) with 1 < 2.";
        let mut deltas = Vec::new();
        if format.name == "inkling" {
            parser.push("<|content_text|>", &mut deltas);
        }
        for (at, _) in text.char_indices() {
            parser.push(&text[at..=at], &mut deltas);
            let given = Answer::of(&deltas).content;
            // A bracket or a letter may begin a marker, which is known one character later.
            assert!(given.len() + 2 > at, "{}: {given:?} at {at}", format.name);
        }
    }
}
