//! Tries a format on anybody's transcripts: `cargo run --example parse -- --format NAME < transcripts.jsonl`.
//!
//! A line is `{"tools": [...], "text": "..."}`, tools as in OpenAI's API or as `{"name", "parameters"}`. Printed is what
//! the whole text gives, and with how many sizes of deltas it was compared; a difference ends the program with 1.
//! `--reasoning NAME`, `--in-reasoning` (the prompt ends inside it), `--template FILE` (formats of a chat template).

use std::io::{BufRead, stdin};
use std::process::ExitCode;

use penstock_output::{
    Answer, Parser, ReasoningFormat, Start, Tool, ToolFormat, of_template, reasoning_format,
    reasoning_formats, tool_format, tool_formats,
};
use serde_json::{Value, json};

/// Texts of so many characters are parsed in deltas of every size.
const EVERY_SIZE: usize = 4_000;

#[derive(Clone, Copy)]
struct Formats {
    tool: Option<&'static ToolFormat>,
    reasoning: Option<&'static ReasoningFormat>,
    start: Start,
}

fn main() -> ExitCode {
    let formats = match formats(std::env::args().skip(1)) {
        Ok(formats) => formats,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let mut all_equal = true;
    for (number, line) in stdin().lock().lines().enumerate() {
        let line = match line {
            Ok(line) if line.trim().is_empty() => continue,
            Ok(line) => line,
            Err(error) => {
                eprintln!("standard input: {error}");
                return ExitCode::from(2);
            }
        };
        match transcript(&line) {
            Ok((tools, text)) => all_equal &= show(formats, &tools, &text),
            Err(error) => {
                eprintln!("line {}: {error}", number + 1);
                return ExitCode::from(2);
            }
        }
    }
    if all_equal { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn formats(mut arguments: impl Iterator<Item = String>) -> Result<Formats, String> {
    let mut formats = Formats { tool: None, reasoning: None, start: Start::Content };
    let usage = || {
        let tools: Vec<_> = tool_formats().map(|format| format.name).collect();
        let reasoning: Vec<_> = reasoning_formats().map(|format| format.name).collect();
        format!(
            "parse --format NAME [--reasoning NAME] [--in-reasoning] | --template FILE\nformats: {}\nreasoning: {}",
            tools.join(", "),
            reasoning.join(", ")
        )
    };
    while let Some(argument) = arguments.next() {
        if argument == "--in-reasoning" {
            formats.start = Start::Reasoning;
            continue;
        }
        let value = arguments.next().ok_or_else(usage)?;
        match argument.as_str() {
            "--format" => formats.tool = Some(tool_format(&value).ok_or_else(usage)?),
            "--reasoning" => formats.reasoning = Some(reasoning_format(&value).ok_or_else(usage)?),
            "--template" => {
                let template =
                    std::fs::read_to_string(&value).map_err(|error| format!("{value}: {error}"))?;
                (formats.tool, formats.reasoning) = of_template(&template);
                let names =
                    (formats.tool.map(|format| format.name), formats.reasoning.map(|format| format.name));
                eprintln!("{value}: calls {:?}, reasoning {:?}", names.0, names.1);
            }
            _ => return Err(usage()),
        }
    }
    Ok(formats)
}

fn transcript(line: &str) -> Result<(Vec<Tool>, String), String> {
    let line: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let text = line["text"].as_str().ok_or("no text")?;
    let tools = line["tools"].as_array().into_iter().flatten().map(|tool| {
        let tool = tool.get("function").unwrap_or(tool);
        let name = tool["name"].as_str().ok_or("a tool without name")?;
        Ok(Tool { name: name.to_owned(), parameters: tool["parameters"].clone() })
    });
    Ok((tools.collect::<Result<_, &str>>()?, text.to_owned()))
}

/// Prints the answer; false if deltas of some size give another.
fn show(formats: Formats, tools: &[Tool], text: &str) -> bool {
    let whole = answer(formats, tools, text, usize::MAX);
    let length = text.chars().count();
    // Of long texts not all of them: that takes as long as the text is long, squared.
    let every = length <= EVERY_SIZE;
    let sizes = (1..=length.max(1)).filter(|size| every || *size <= 64 || length / size < 8);
    let compared: Vec<_> = sizes.map(|size| (size, answer(formats, tools, text, size))).collect();
    let differing: Vec<_> =
        compared.iter().filter(|(_, answer)| *answer != whole).map(|(size, _)| *size).collect();
    let calls: Vec<Value> = whole
        .calls
        .iter()
        .map(|call| {
            let arguments = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!(call.arguments));
            json!({"name": call.name, "arguments": arguments, "complete": call.complete})
        })
        .collect();
    let mut shown = json!({"content": whole.content, "reasoning": whole.reasoning, "calls": calls});
    shown["sizes_compared"] = json!(compared.len());
    shown["sizes_differing"] = json!(differing);
    println!("{shown}");
    differing.is_empty()
}

fn answer(formats: Formats, tools: &[Tool], text: &str, characters: usize) -> Answer {
    let mut parser = Parser::new(formats.tool, formats.reasoning, tools.into(), formats.start);
    let mut deltas = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.char_indices().nth(characters).map_or(rest.len(), |(end, _)| end);
        parser.push(&rest[..end], &mut deltas);
        rest = &rest[end..];
    }
    parser.finish(&mut deltas);
    Answer::of(&deltas)
}
