//! The transcripts of `transcripts/*.jsonl`, one file for each format: what a model wrote and what it is. Each is parsed
//! whole, cut at every place, and character by character.
//!
//! A file's first line names the format. A transcript has `text` and, where they are not empty, `content`, `reasoning`
//! and `calls`; `in_reasoning` says that the prompt has opened reasoning. Arguments of calls that are not complete are
//! the text that comes out. All of them may call the tools of `tools.json`.
//!
//! The tests of `penstock-constraint` read them, too: its masks let a transcript through whose calls are complete and valid, unless it
//! says why it is `refused`. Of a format whose answers are made of messages the first line has what these tests need of it:
//! `only_special`, its markers are never plain text; `end`, the token that ends an answer; `answer`, what stands before and behind an
//! answer's text; `begins`, texts behind which a call's name stands.

use std::collections::BTreeMap;
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

/// The templates in integration-tests/ were written for tests after those of models; some have markers of their own, which no
/// format reads.
#[test]
fn templates_choose_formats() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/chat_templates");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("its entries can be read").path();
        let Some(name) = path.to_str().and_then(|path| path.strip_suffix(".jinja")) else { continue };
        let (tool, reasoning) = of_template(&fs::read_to_string(&path).expect("the template can be read"));
        let name = name.rsplit('/').next().unwrap_or(name).to_owned();
        found.insert(name, (tool.map(|format| format.name), reasoning.map(|format| format.name)));
    }
    let wanted = [
        ("hermes qwen2_5 falcon3", Some("hermes"), None),
        ("qwen3 smollm3", Some("hermes"), Some("think")),
        ("qwen3_coder", Some("qwen3_coder"), None),
        ("glm4_5", Some("glm45"), Some("think")),
        ("mistral_v3 mistral_tekken", Some("mistral"), None),
        ("llama3_1", Some("llama3_json"), None),
        ("llama3_3_pythonic", Some("pythonic"), None),
        ("granite3", Some("granite"), None),
        ("granite3_3", Some("granite"), Some("ernie45")),
        ("nemotron", Some("nemotron"), Some("think")),
        ("phi4_mini", Some("phi4_mini"), None),
        ("command_r_tools", Some("command_r"), None),
        ("gpt_oss", Some("harmony"), Some("harmony")),
        ("gemma4", Some("gemma4"), None),
        ("qwq deepseek_r1", None, Some("think")),
        (
            "alpaca aya chatml command_r command_r_rag dbrx deepseek_v2 deepseek_v3 exaone falcon gemma",
            None,
            None,
        ),
        ("gemma3 glm4 internlm2 jamba kimi llama2 llama3 llama3_2 mistral_v1 mixtral olmo olmo2", None, None),
        ("openchat phi3 phi4 qwen1_5 smollm2 solar starchat vicuna yi zephyr idefics llava", None, None),
    ];
    let listed = wanted.iter().flat_map(|(names, tool, reasoning)| {
        names.split(' ').map(|name| (name.to_owned(), (*tool, *reasoning)))
    });
    let wanted: BTreeMap<_, _> = listed.collect();
    for (name, formats) in &found {
        assert_eq!(Some(formats), wanted.get(name), "{name}");
    }
    assert_eq!(found.len(), wanted.len());
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
