//! Calls in the formats of models: of all of them alike (`formats`), in each way of writing (`writing`), with reasoning before them
//! (`reasoning`), and the masks of text in which a call may begin (`free_masks`). Here is what these have in common: functions, and
//! vocabularies with a format's markers.

use std::sync::Arc;

use penstock_constraint::{Cancel, Compiler, Grammar, Part, Source, Token};
use penstock_output::{Answer, Callable, Calls, Parser, ReasoningFormat, Start, Tool, ToolFormat};
use serde_json::{Value, json};

use crate::patient;
use crate::synthetic::{Random, Vocabulary};

mod formats;
mod free_masks;
mod reasoning;
mod writing;

const EOS: u32 = 256;

/// Tokens that models have for their markers, as special ones or as text.
const MARKERS: [&str; 65] = [
    "<tool_call>",
    "</tool_call>",
    "<tool_calls>",
    "</tool_calls>",
    "<tool_sep>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "]<]minimax[>[",
    "<invoke name=\"",
    "</invoke>",
    "｜DSML｜",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<escape>",
    "<start_function_call>",
    "<end_function_call>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<function_calls>",
    "</function_calls>",
    "<｜tool_calls_begin｜>",
    "<｜tool_calls_end｜>",
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|think|>",
    "<|begin|>",
    "<|content|>",
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:end|>",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|constrain|>",
    "<|message_model|>",
    "<|content_text|>",
    "<|content_thinking|>",
    "<|content_invoke_tool_json|>",
    "<|end_message|>",
    "<|message_sep|>\n\n",
    "<|role_sep|>\n",
    "<|function_call|>",
    "<|im_end|>",
    "<|im_start|>",
];

/// Tokens that try to leave the place where they stand.
const BREAKERS: [&str; 14] = [
    "\n</parameter>\n",
    "\n<parameter=days>",
    "\n</function>\n</tool_call>",
    "</a>",
    "</",
    "\"}",
    "\",",
    "'",
    "')",
    "}}",
    ", ",
    "null",
    "\\",
    "\n",
];

/// What models write, one file for each format: `tests/transcripts.rs` of `penstock-output` says what they hold.
const TRANSCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../output/tests/transcripts/");

/// What the first line says of the format, and its transcripts.
fn transcripts(format: &ToolFormat) -> (Value, Vec<Value>) {
    let file = std::fs::read_to_string(format!("{TRANSCRIPTS}{}.jsonl", format.name)).unwrap();
    let mut lines = file.lines().map(|line| serde_json::from_str(line).unwrap());
    (lines.next().unwrap(), lines.collect())
}

/// Whether the format's markers are special tokens: both are tried, but of a format of which they always are.
fn special_or_not(format: &ToolFormat) -> &'static [bool] {
    if transcripts(format).0["only_special"] == true { &[true] } else { &[false, true] }
}

fn functions() -> Vec<Callable> {
    let function = |(at, (name, schema)): (usize, (&str, Value))| Callable {
        name: name.to_owned(),
        schema,
        at: format!("/{at}/function/parameters"),
        lark: None,
        is_strict: true,
    };
    let functions = [
        (
            "get_weather",
            json!({"type": "object", "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            }, "required": ["city"], "additionalProperties": false}),
        ),
        (
            "send",
            json!({"type": "object", "properties": {
                "to": {"type": "string", "format": "ipv4", "description": "Where it goes"},
                "urgent": {"type": "boolean"},
                "body": {"type": "string", "minLength": 1, "maxLength": 12},
                "cc": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
                "level": {"type": ["string", "null"], "enum": ["none", "low", null]},
            }, "required": ["body", "to"]}),
        ),
        (
            "book",
            json!({"type": "object", "properties": {
                "flight": {"$ref": "#/$defs/flight"},
                "seat": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
                "bags": {"type": ["integer", "string"], "maxLength": 3},
                "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
            }, "required": ["flight", "code"], "$defs": {"flight": {"type": "object", "properties": {
                "from": {"type": "string", "maxLength": 8}, "stops": {"type": "integer", "minimum": 0},
            }, "required": ["from"], "additionalProperties": false}}}),
        ),
        ("ping", Value::Null),
        (
            "set",
            json!({"type": "object", "properties": {
                "a": {"type": "number"}, "b": {"type": "string", "maxLength": 5}, "c": {"enum": [1, "x", true]},
            }}),
        ),
    ];
    functions.into_iter().enumerate().map(function).collect()
}

fn tools(functions: &[Callable]) -> Arc<[Tool]> {
    let tool =
        |function: &Callable| Tool { name: function.name.clone(), parameters: function.schema.clone() };
    functions.iter().map(tool).collect()
}

/// A vocabulary of bytes, the end and the markers, of which those of the format may be special tokens.
struct World {
    /// Of the format.
    name: &'static str,
    compiler: Compiler,
    tokens: Vec<Token>,
}

impl World {
    fn new(format: &ToolFormat, has_special: bool) -> World {
        let mut tokens = Vocabulary::new(257).tokens;
        tokens[EOS as usize].bytes = b"<|eos|>".to_vec();
        let token = |name: &str, special: bool| Token { bytes: name.as_bytes().to_vec(), special };
        tokens.extend(MARKERS.map(|name| token(name, has_special && format.has_in_markers(name))));
        tokens.extend(BREAKERS.map(|name| token(name, false)));
        let compiler = Compiler::new(tokens.clone(), tokens.len(), &[EOS], patient()).unwrap();
        World { name: format.name, compiler, tokens }
    }

    fn compile(&self, parts: Vec<Part>) -> Arc<Grammar> {
        let compiled = self.compiler.compile(Source::Parts(parts.clone()), &Cancel::new());
        compiled.unwrap_or_else(|error| panic!("{error}: {parts:?}"))
    }

    /// Special tokens by their names, the rest by bytes.
    fn tokens(&self, text: &str) -> Vec<u32> {
        let mut rest = text.as_bytes();
        let mut found = Vec::new();
        while let Some(byte) = rest.first() {
            let special =
                self.tokens.iter().position(|token| token.special && rest.starts_with(&token.bytes));
            let special = special.filter(|token| *token as u32 != EOS);
            found.push(special.map_or(u32::from(*byte), |token| token as u32));
            rest = &rest[special.map_or(1, |token| self.tokens[token].bytes.len())..];
        }
        found
    }

    fn accepts(&self, grammar: &Grammar, text: &str) -> bool {
        let mut matcher = grammar.matcher();
        let mut mask = vec![0; grammar.mask_words()];
        for token in self.tokens(text) {
            if matcher.is_complete() || matcher.mask(&mut mask).is_err() || !bit(&mask, token) {
                return false;
            }
            matcher.advance(token).unwrap();
        }
        matcher.mask(&mut mask).is_ok() && bit(&mask, EOS)
    }

    /// A text drawn from the masks after `begin`. It hurries to tokens that close something.
    fn walk(&self, grammar: &Grammar, begin: &str, random: &mut Random) -> Option<String> {
        let mut matcher = grammar.matcher();
        let mut mask = vec![0; grammar.mask_words()];
        let mut text = begin.as_bytes().to_vec();
        for token in self.tokens(begin) {
            matcher.advance(token).unwrap_or_else(|error| panic!("{error} in {begin:?}"));
        }
        let mut in_a_row = 0;
        for _ in 0..600 {
            let so_far = || String::from_utf8_lossy(&text);
            if matcher.is_complete() {
                return Some(so_far().into_owned());
            }
            matcher.mask(&mut mask).unwrap_or_else(|error| panic!("{error} after {:?}", so_far()));
            if bit(&mask, EOS) && (in_a_row > 8 || random.below(3) == 0) {
                return Some(so_far().into_owned());
            }
            let allowed: Vec<u32> =
                (0..self.tokens.len() as u32).filter(|&token| token != EOS && bit(&mask, token)).collect();
            let closes =
                |&&token: &&u32| token > EOS || b"\"'}])0>|".contains(&self.tokens[token as usize].bytes[0]);
            let closing: Vec<u32> = allowed.iter().filter(closes).copied().collect();
            in_a_row = if allowed.len() > 20 { in_a_row + 1 } else { 0 };
            let token = match closing.len() {
                0 => allowed[random.below(allowed.len())],
                some if in_a_row > 4 || random.below(6) == 0 => closing[random.below(some)],
                _ => allowed[random.below(allowed.len())],
            };
            text.extend(&self.tokens[token as usize].bytes);
            matcher.advance(token).unwrap();
        }
        None
    }

    /// Of twelve such texts those that came to an end.
    fn walks(&self, grammar: &Grammar, begin: &str, random: &mut Random) -> Vec<String> {
        let ended: Vec<String> = (0..12).filter_map(|_| self.walk(grammar, begin, random)).collect();
        assert!(ended.len() >= 3, "{}: only {} of 12 walks after {begin:?} ended", self.name, ended.len());
        ended
    }
}

fn bit(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

fn calls<'a>(format: &'static ToolFormat, template: &'a str, functions: &'a [Callable]) -> Calls<'a> {
    Calls { format, template, reasoning: None, start: Start::Content, functions, may_be_several: true }
}

/// The answer that a text is.
fn answer(
    format: Option<&'static ToolFormat>,
    reasoning: Option<&'static ReasoningFormat>,
    functions: &[Callable],
    start: Start,
    text: &str,
) -> Answer {
    let mut parser = Parser::new(format, reasoning, tools(functions), start);
    let mut deltas = Vec::new();
    parser.push(text, &mut deltas);
    parser.finish(&mut deltas);
    Answer::of(&deltas)
}

fn read(format: &'static ToolFormat, functions: &[Callable], text: &str) -> Answer {
    answer(Some(format), None, functions, Start::Content, text)
}

/// One function, `f`.
fn strict(schema: Value) -> [Callable; 1] {
    [Callable { name: "f".into(), schema, at: "/0".into(), lark: None, is_strict: true }]
}
