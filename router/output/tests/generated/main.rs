//! Answers that are written at random in each format, with a seed: the parser finds in them what they were written
//! from, however they are cut; and of answers that were spoiled it loses nothing.

mod random;
mod writers;

use penstock_output::{
    Answer, Delta, Parser, ReasoningFormat, Start, Tool, ToolFormat, reasoning_format, reasoning_formats,
    tool_format, tool_formats,
};
use random::{Random, Wanted, arguments, prose, sentinel, sentinels, tools};
use serde_json::Value;
use writers::{Writer, answer, harmony, inkling, writers};

/// Answers of each writer. PENSTOCK_OUTPUT_ANSWERS asks for more.
fn answers() -> usize {
    std::env::var("PENSTOCK_OUTPUT_ANSWERS").ok().and_then(|number| number.parse().ok()).unwrap_or(60)
}

#[derive(Clone, Copy)]
struct Formats {
    tool: Option<&'static ToolFormat>,
    reasoning: Option<&'static ReasoningFormat>,
}

fn deltas<'a>(formats: Formats, tools: &[Tool], parts: impl IntoIterator<Item = &'a str>) -> Vec<Delta> {
    let mut parser = Parser::new(formats.tool, formats.reasoning, tools.into(), Start::Content);
    let mut deltas = Vec::new();
    for part in parts {
        parser.push(part, &mut deltas);
    }
    parser.finish(&mut deltas);
    deltas
}

fn cuts(text: &str) -> Vec<usize> {
    text.char_indices().map(|(at, _)| at).skip(1).collect()
}

fn pieces<'a>(random: &mut Random, text: &'a str) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let (mut from, often) = (0, 1 + random.below(30));
    for at in cuts(text) {
        if random.chance(often) {
            pieces.push(&text[from..at]);
            from = at;
        }
    }
    pieces.push(&text[from..]);
    pieces
}

/// What holds of every text: calls are counted in order, their deltas follow each other, and complete arguments are JSON.
fn check(deltas: &[Delta], text: &str) {
    let mut open: Option<usize> = None;
    let mut count = 0;
    for delta in deltas {
        match delta {
            Delta::CallBegins { index, .. } => {
                assert!(open.is_none() && *index == count, "{text:?}: {deltas:?}");
                open = Some(*index);
                count += 1;
            }
            Delta::Arguments { index, json } => {
                assert!(open == Some(*index) && !json.is_empty(), "{text:?}: {deltas:?}");
            }
            Delta::CallEnds { index, .. } => {
                assert_eq!(open.take(), Some(*index), "{text:?}: {deltas:?}");
            }
            Delta::Content(part) | Delta::Reasoning(part) => assert!(!part.is_empty(), "{text:?}"),
        }
    }
    assert_eq!(open, None, "{text:?}: {deltas:?}");
    for call in Answer::of(deltas).calls {
        if call.complete {
            let arguments: Value = serde_json::from_str(&call.arguments)
                .unwrap_or_else(|error| panic!("{error}: {:?} of {text:?}", call.arguments));
            assert!(arguments.is_object(), "{text:?}: {}", call.arguments);
        }
    }
}

fn check_splits(formats: Formats, tools: &[Tool], text: &str, random: &mut Random, every: bool) -> Answer {
    let whole = deltas(formats, tools, [text]);
    check(&whole, text);
    let whole = Answer::of(&whole);
    let by_character: Vec<&str> = {
        let mut ends = cuts(text);
        ends.push(text.len());
        let mut from = 0;
        ends.iter()
            .map(|&end| {
                let part = &text[from..end];
                from = end;
                part
            })
            .collect()
    };
    let split = deltas(formats, tools, by_character);
    check(&split, text);
    assert_eq!(Answer::of(&split), whole, "character by character: {text:?}");
    for _ in 0..4 {
        let pieces = pieces(random, text);
        let split = Answer::of(&deltas(formats, tools, pieces.iter().copied()));
        assert_eq!(split, whole, "in {pieces:?}");
    }
    if every {
        for at in cuts(text) {
            let split = Answer::of(&deltas(formats, tools, [&text[..at], &text[at..]]));
            assert_eq!(split, whole, "{:?} and {:?}", &text[..at], &text[at..]);
        }
    }
    whole
}

fn wanted(random: &mut Random, writer: &Writer) -> Wanted {
    let tools = tools();
    let mut wanted = Wanted::default();
    if random.chance(2) {
        wanted.reasoning = prose(random);
    }
    if writer.takes_text && random.chance(2) {
        wanted.before = prose(random) + *random.of(&["", " ", "\n", "\n\n"]);
    }
    let count = if writer.many { random.below(4) } else { random.below(2) };
    for _ in 0..count {
        let tool = random.of(&tools);
        wanted.calls.push((tool.name.clone(), arguments(random, &tool.name, writer.forbidden)));
    }
    if writer.takes_text && random.chance(3) {
        // White space where content begins is not content.
        let space = if wanted.calls.is_empty() && wanted.before.is_empty() {
            ""
        } else {
            random.of(&["", " ", "\n"])
        };
        wanted.after = format!("{space}{}", prose(random));
    }
    wanted
}

fn assert_found(found: &Answer, wanted: &Wanted, text: &str) {
    assert_eq!(found.reasoning, wanted.reasoning, "reasoning of {text:?}");
    let calls: Vec<(String, Value)> = found
        .calls
        .iter()
        .map(|call| (call.name.clone(), serde_json::from_str(&call.arguments).unwrap_or_default()))
        .collect();
    let wanted_calls: Vec<(String, Value)> =
        wanted.calls.iter().map(|(name, arguments)| (name.clone(), Value::from(arguments.clone()))).collect();
    assert_eq!(calls, wanted_calls, "calls of {text:?}");
    assert_eq!(found.content, format!("{}{}", wanted.before, wanted.after), "content of {text:?}");
}

fn formats_of(writer: &Writer) -> Formats {
    Formats {
        tool: Some(tool_format(writer.format).expect("the format exists")),
        reasoning: Some(reasoning_format(writer.reasoning).expect("the format exists")),
    }
}

#[test]
fn every_format_gives_back_what_was_written() {
    let tools = tools();
    for (number, writer) in writers().iter().enumerate() {
        let formats = formats_of(writer);
        for seed in 0..answers() {
            let mut random = Random((number * 1_000_000 + seed) as u64);
            let wanted = wanted(&mut random, writer);
            let text = answer(writer, &wanted);
            let found = check_splits(formats, &tools, &text, &mut random, seed % 4 == 0);
            assert_found(&found, &wanted, &text);
        }
    }
}

#[test]
fn every_format_is_written() {
    let writers = writers();
    for format in tool_formats().map(|format| format.name).filter(|name| of_messages(name).is_none()) {
        assert!(writers.iter().any(|writer| writer.format == format), "{format}");
    }
    for format in reasoning_formats().map(|format| format.name).filter(|name| of_messages(name).is_none()) {
        assert!(writers.iter().any(|writer| writer.reasoning == format), "{format}");
    }
}

#[test]
fn formats_of_messages_give_back_what_was_written() {
    let tools = tools();
    let writer = writers().remove(0);
    for name in ["harmony", "inkling"] {
        let formats = Formats { tool: tool_format(name), reasoning: reasoning_format(name) };
        let write = of_messages(name).expect("it is one");
        for seed in 0..answers() * 2 {
            let mut random = Random(seed as u64);
            let wanted = wanted(&mut random, &writer);
            let text = write(&wanted);
            let found = check_splits(formats, &tools, &text, &mut random, seed % 4 == 0);
            assert_found(&found, &wanted, &text);
        }
    }
}

/// How all of an answer is written in formats that are made of messages.
fn of_messages(format: &str) -> Option<fn(&Wanted) -> String> {
    match format {
        "harmony" => Some(harmony),
        "inkling" => Some(inkling),
        _ => None,
    }
}

/// Markers of all formats, to be put where they do not belong.
const MARKERS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call|>",
    "</function>",
    "{",
    "}",
    "[",
    "]",
    "<function=ping>",
    "<parameter=x>",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "\"",
    "\\",
    ",",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "```",
    "```json\n",
    "<｜DSML｜invoke name=\"ping\">",
    "</｜DSML｜invoke>",
    "<｜DSML｜parameter name=\"x\" string=\"false\">",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|begin|>assistant",
    "<|content|>",
    "<|open|>call ",
    "<|sep|>",
    "<|close|>argument<|sep|>",
    "<|\"|>",
    "<|tool_call>call:",
    "<tool_call|>",
    "]<]minimax[>[<",
    "]<]minimax[>[</",
    "]<]minimax[>[<invoke name=\"ping\">",
    "<invoke name=\"ping\">",
    "ping(",
    ")",
    "'",
    "(",
    "{\"name\": \"ping\", \"arguments\": {",
    "<|tool_call_start|>",
    "<function_calls>",
    "functools",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "\n\n\n",
    ";",
    " ",
    "=",
    ":",
    "null",
    "<|channel>",
    "<channel|>",
    "[THINK]",
    "[/THINK]",
    "◁think▷",
    "◁/think▷",
    "<response>",
    "<answer>",
    "Action:\n```json\n",
];

fn spoil(random: &mut Random, text: &str) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for _ in 0..1 + random.below(3) {
        let at = random.below(characters.len() + 1);
        let end = (at + random.below(12)).min(characters.len());
        match random.below(7) {
            0 => characters.truncate(at),
            1 => drop(characters.drain(at..end)),
            2 => drop(characters.splice(at..at, random.of(MARKERS).chars())),
            3 => drop(characters.splice(at..end, random.of(MARKERS).chars())),
            4 => {
                let copy: Vec<char> = characters[at..end].to_vec();
                drop(characters.splice(at..at, copy));
            }
            5 => {
                let spoiled: String = characters.iter().collect();
                let name = random.of(&["get_weather", "search", "write_file", "ping"]).to_string();
                let other = format!("no_{}", sentinel(random));
                characters = spoiled.replacen(&name, &other, 1).chars().collect();
            }
            _ => {
                let word = format!(" {} ", sentinel(random));
                drop(characters.splice(at..at, word.chars()));
            }
        }
    }
    characters.into_iter().collect()
}

fn assert_nothing_lost(found: &Answer, text: &str) {
    let mut all = format!("{}\n{}", found.content, found.reasoning);
    for call in &found.calls {
        all = format!("{all}\n{}\n{}", call.name, call.arguments);
    }
    for word in sentinels(text) {
        assert!(all.contains(word), "{word} of {text:?} is lost in {found:?}");
    }
}

#[test]
fn spoiled_answers_lose_nothing() {
    let tools = tools();
    let mut all = writers();
    all.push(Writer { format: "harmony", reasoning: "harmony", ..writers().remove(0) });
    all.push(Writer { format: "inkling", reasoning: "inkling", ..writers().remove(0) });
    for (number, writer) in all.iter().enumerate() {
        let formats = formats_of(writer);
        for seed in 0..answers() * 4 {
            let mut random = Random((77_000_000 + number * 1_000_000 + seed) as u64);
            let wanted = wanted(&mut random, writer);
            let text = match of_messages(writer.format) {
                Some(write) => write(&wanted),
                None => answer(writer, &wanted),
            };
            let text = spoil(&mut random, &text);
            let found = check_splits(formats, &tools, &text, &mut random, seed % 16 == 0);
            assert_nothing_lost(&found, &text);
            // Without tools any name will do, and without a format all is content.
            check_splits(formats, &[], &text, &mut random, false);
            let none = Formats { tool: None, reasoning: None };
            assert_eq!(check_splits(none, &tools, &text, &mut random, false).content, text);
        }
    }
}

#[test]
fn every_format_takes_every_other_formats_answers() {
    let tools = tools();
    for (number, writer) in writers().iter().enumerate() {
        let mut random = Random(number as u64);
        let wanted = wanted(&mut random, writer);
        let text = answer(writer, &wanted);
        for other in writers() {
            let found = check_splits(formats_of(&other), &tools, &text, &mut random, false);
            assert_nothing_lost(&found, &text);
        }
    }
}

/// Markers and words in any order, with the markers of the format most of all.
#[test]
fn heaps_of_markers_lose_nothing() {
    let tools = tools();
    for (number, writer) in writers().iter().enumerate() {
        let formats = formats_of(writer);
        for seed in 0..answers() * 2 {
            let mut random = Random((900_000_000 + number * 1_000_000 + seed) as u64);
            let wanted = wanted(&mut random, writer);
            let own = answer(writer, &wanted);
            let characters: Vec<char> = own.chars().collect();
            let mut text = String::new();
            for _ in 0..random.below(25) {
                match random.below(6) {
                    0 => text += *random.of(MARKERS),
                    1 => text.push_str(&sentinel(&mut random)),
                    2 => text += *random.of(&[" ", "\n", "\n\n", "  \n  "]),
                    3 => text.extend(std::iter::repeat_n(' ', random.below(700))),
                    _ if characters.is_empty() => {}
                    _ => {
                        let at = random.below(characters.len());
                        let end = (at + 1 + random.below(40)).min(characters.len());
                        text.extend(&characters[at..end]);
                    }
                }
            }
            let found = check_splits(formats, &tools, &text, &mut random, seed % 16 == 0);
            assert_nothing_lost(&found, &text);
        }
    }
}
