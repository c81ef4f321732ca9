//! The transcripts of `transcripts/*.jsonl`, one file for each format: what a model wrote and what it is. Each is parsed
//! whole, cut at every place, and character by character.
//!
//! A file's first line names the format. A transcript has `text` and, where they are not empty, `content`, `reasoning`
//! and `calls`; `in_reasoning` says that the prompt has opened reasoning. Arguments of calls that are not complete are
//! the text that comes out. All of them may call the tools of `tools.json`.

use std::fs;
use std::path::{Path, PathBuf};

use penstock_output::{
    Answer, Parser, Start, Tool, of_template, reasoning_format, reasoning_formats, tool_format, tool_formats,
};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts")
}

fn tools() -> Vec<Tool> {
    let file = fs::read_to_string(folder().join("tools.json")).expect("tools.json can be read");
    let tools: Vec<Value> = serde_json::from_str(&file).expect("tools.json is a list");
    let tool = |tool: &Value| Tool {
        name: tool["name"].as_str().expect("a tool has a name").to_owned(),
        parameters: tool["parameters"].clone(),
    };
    tools.iter().map(tool).collect()
}

/// Format, reasoning format and transcripts of a file.
fn transcripts(format: &str) -> (Value, Vec<Value>) {
    let file = fs::read_to_string(folder().join(format!("{format}.jsonl")))
        .unwrap_or_else(|error| panic!("transcripts of {format}: {error}"));
    let mut lines =
        file.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    (lines.next().expect("a file has a first line"), lines.collect())
}

struct Case<'a> {
    header: &'a Value,
    transcript: &'a Value,
    tools: &'a [Tool],
}

impl Case<'_> {
    fn parse<'t>(&self, parts: impl IntoIterator<Item = &'t str>) -> Answer {
        let reasoning = self.transcript["reasoning_format"].as_str().or(self.header["reasoning"].as_str());
        let mut parser = Parser::new(
            self.header["format"].as_str().and_then(tool_format),
            reasoning.and_then(reasoning_format),
            self.tools.into(),
            if self.transcript["in_reasoning"] == true { Start::Reasoning } else { Start::Content },
        );
        let mut deltas = Vec::new();
        for part in parts {
            parser.push(part, &mut deltas);
        }
        parser.finish(&mut deltas);
        Answer::of(&deltas)
    }

    /// What differs from the transcript.
    fn difference(&self, found: &Answer) -> Option<String> {
        let text_of = |key: &str| self.transcript[key].as_str().unwrap_or_default();
        let wanted = self.transcript["calls"].as_array().map_or(&[][..], Vec::as_slice);
        let calls_agree = found.calls.len() == wanted.len()
            && found.calls.iter().zip(wanted).all(|(found, wanted)| {
                let is_complete = wanted["complete"] != false;
                let arguments_agree = if is_complete {
                    serde_json::from_str::<Value>(&found.arguments).ok().as_ref()
                        == Some(&wanted["arguments"])
                } else {
                    Some(found.arguments.as_str()) == wanted["arguments"].as_str()
                };
                found.name == wanted["name"] && found.complete == is_complete && arguments_agree
            });
        let agrees =
            found.content == text_of("content") && found.reasoning == text_of("reasoning") && calls_agree;
        (!agrees).then(|| format!("{} {}\n  found {found:?}", self.header["format"], self.transcript))
    }
}

#[test]
fn transcripts_are_what_they_are_however_they_are_cut() {
    let tools = tools();
    let mut wrong = Vec::new();
    for format in tool_formats() {
        let (header, transcripts) = transcripts(format.name);
        assert_eq!(header["format"], format.name);
        for transcript in &transcripts {
            let case = Case { header: &header, transcript, tools: &tools };
            let text = transcript["text"].as_str().expect("a transcript has a text");
            let whole = case.parse([text]);
            wrong.extend(case.difference(&whole));
            let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            assert_eq!(case.parse(cuts.windows(2).map(|cut| &text[cut[0]..cut[1]])), whole, "{transcript}");
            for at in cuts {
                assert_eq!(case.parse([&text[..at], &text[at..]]), whole, "cut at {at}: {transcript}");
            }
        }
    }
    assert!(wrong.is_empty(), "{} transcripts differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_format_has_thirty_transcripts() {
    for format in tool_formats() {
        let count = transcripts(format.name).1.len();
        assert!(count >= 30, "{}: {count}", format.name);
    }
}

/// The templates in integration-tests/ were written for tests after those of models.
#[test]
fn templates_choose_formats() {
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/chat_templates");
    for (name, tool, reasoning) in [
        ("hermes", Some("hermes"), None),
        ("qwen2_5", Some("hermes"), None),
        ("qwen3", Some("hermes"), Some("think")),
        ("qwen3_coder", Some("qwen3_coder"), None),
        ("qwq", None, Some("think")),
        ("glm4_5", Some("glm45"), Some("think")),
        ("mistral_v3", Some("mistral"), None),
        ("mistral_tekken", Some("mistral"), None),
        ("llama3_1", Some("llama3_json"), None),
        ("llama3_3_pythonic", Some("pythonic"), None),
        ("granite3", Some("granite"), None),
        ("nemotron", Some("nemotron"), Some("think")),
        ("phi4_mini", Some("phi4_mini"), None),
        ("command_r_tools", Some("command_r"), None),
        ("falcon3", Some("hermes"), None),
        ("gpt_oss", Some("harmony"), Some("harmony")),
        ("gemma3", None, None),
        ("vicuna", None, None),
        ("chatml", None, None),
        ("llama2", None, None),
        ("zephyr", None, None),
    ] {
        let template =
            fs::read_to_string(templates.join(format!("{name}.jinja"))).expect("the template can be read");
        let (found_tool, found_reasoning) = of_template(&template);
        let found = (found_tool.map(|format| format.name), found_reasoning.map(|format| format.name));
        assert_eq!(found, (tool, reasoning), "{name}");
    }
}

#[test]
fn the_documentation_names_every_format() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tool-calls.md");
    let page = fs::read_to_string(page).expect("the page can be read");
    let rows: Vec<(&str, Vec<&str>)> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|');
            let name = cells.next()?.trim().strip_suffix('`')?;
            Some((name, cells.next()?.split('`').skip(1).step_by(2).collect()))
        })
        .collect();
    let tools = tool_formats().map(|format| (format.name, format.aliases));
    let reasoning = reasoning_formats().map(|format| (format.name, format.aliases));
    for (name, aliases) in tools.chain(reasoning) {
        assert!(rows.iter().any(|row| *row == (name, aliases.to_vec())), "{name}, {aliases:?}");
    }
    assert_eq!(rows.len(), tool_formats().count() + reasoning_formats().count());
}
