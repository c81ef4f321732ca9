//! Calls in every format of models: what the masks let through is read as calls whose arguments their schemas accept, what
//! models write is let through, and what is wrong is not.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::patient;
use crate::synthetic::{Random, Vocabulary};
use penstock_constraint::{Cancel, Compiler, Grammar, Part, Source, Token};
use penstock_output::{
    Answer, Callable, Calls, Frame, Parser, Start, Tool, ToolFormat, after_reasoning, reasoning_format,
    tool_format, tool_formats,
};
use serde_json::{Value, json};

const EOS: u32 = 256;

/// Tokens that models have for their markers, as special ones or as text.
const MARKERS: [&str; 50] = [
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

/// Of formats that are made of messages the markers are always special tokens.
fn has_only_special(format: &str) -> bool {
    ["harmony", "inkling"].contains(&format)
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
    compiler: Compiler,
    tokens: Vec<Token>,
}

impl World {
    fn new(format: &ToolFormat, has_special: bool) -> World {
        let mut tokens = Vocabulary::new(257).tokens;
        tokens[EOS as usize].bytes = b"<|eos|>".to_vec();
        let harmony = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"];
        let token = |name: &str, special: bool| Token { bytes: name.as_bytes().to_vec(), special };
        let inkling = [
            "<|message_model|>",
            "<|content_text|>",
            "<|content_thinking|>",
            "<|content_invoke_tool_json|>",
            "<|end_message|>",
        ];
        let gigachat = ["<|message_sep|>\n\n", "<|role_sep|>\n", "<|function_call|>"];
        let markers = MARKERS.iter().chain(&harmony).chain(&inkling).chain(&gigachat);
        tokens.extend(markers.map(|name| token(name, has_special && format.has_in_markers(name))));
        tokens.extend(BREAKERS.map(|name| token(name, false)));
        let compiler = Compiler::new(tokens.clone(), tokens.len(), &[EOS], patient()).unwrap();
        World { compiler, tokens }
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
}

fn bit(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

fn calls<'a>(format: &'static ToolFormat, template: &'a str, functions: &'a [Callable]) -> Calls<'a> {
    Calls { format, template, reasoning: None, start: Start::Content, functions, may_be_several: true }
}

fn read(format: &'static ToolFormat, functions: &[Callable], text: &str) -> Answer {
    let mut parser = Parser::new(Some(format), None, tools(functions), Start::Content);
    let mut deltas = Vec::new();
    parser.push(text, &mut deltas);
    parser.finish(&mut deltas);
    Answer::of(&deltas)
}

/// The text is calls, and each is one that its schema accepts.
fn check(format: &'static ToolFormat, functions: &[Callable], text: &str, has_content: bool) {
    let answer = read(format, functions, text);
    let name = format.name;
    assert!(!answer.calls.is_empty(), "{name}: no call in {text:?}");
    assert!(has_content || answer.content.trim().is_empty(), "{name}: {:?} of {text:?}", answer.content);
    for call in &answer.calls {
        let function = functions.iter().find(|function| function.name == call.name).unwrap();
        let arguments: Value = match serde_json::from_str(&call.arguments) {
            Ok(arguments) => arguments,
            // JSON, but no number of Rust's.
            Err(error) if error.to_string().contains("out of range") => continue,
            Err(error) => panic!("{name}: {error}: {:?} of {text:?}", call.arguments),
        };
        assert!(call.complete, "{name}: {call:?} of {text:?}");
        let schema =
            if function.schema.is_null() { json!({"maxProperties": 0}) } else { function.schema.clone() };
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
        assert!(validator.is_valid(&arguments), "{name}: {arguments} of {text:?}");
    }
}

/// Of formats with several frames the template decides.
const TEMPLATES: [&str; 6] = [
    "",
    "</arg_key><arg_value> :opensource",
    "[ARGS]",
    "<|python_start|>",
    "\"parameters\": dictionary",
    "<|function_call|>",
];

#[test]
fn what_is_let_through_is_calls_that_their_schemas_accept() {
    let functions = functions();
    let mut random = Random(14);
    for format in tool_formats() {
        for (template, has_special) in
            TEMPLATES.iter().flat_map(|template| [(template, false), (template, true)])
        {
            let is_known = !template.is_empty() && format.frame(template) == format.frame("");
            if is_known || (has_only_special(format.name) && !has_special) {
                continue;
            }
            let world = World::new(format, has_special);
            let calls = calls(format, template, &functions);
            let (parts, read_as) = calls.required();
            assert_eq!(read_as.name, format.name, "its own format can be written");
            let grammar = world.compile(parts);
            let mut ended = 0;
            for _ in 0..12 {
                let Some(text) = world.walk(&grammar, "", &mut random) else { continue };
                check(format, &functions, &text, false);
                ended += 1;
            }
            assert!(ended >= 3, "{}: only {ended} of 12 walks ended", format.name);

            let frame = format.frame(template);
            let grammar = world.compile(calls.possible().unwrap().parts);
            let begins = match frame.trigger {
                "" => format!("{}{}", frame.open, frame.before_name),
                trigger => format!("Hm <b>. {trigger}"),
            };
            let begins = match format.name {
                "harmony" => vec![
                    "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.",
                    " to=functions.",
                ],
                "inkling" => vec![
                    "<|content_thinking|>Hm<|end_message|><|message_model|>get_weather<|content_invoke_tool_json|>",
                    "<|content_text|>Hm<|end_message|><|message_model|>send<|content_invoke_tool_json|>",
                    "<|content_invoke_tool_json|>{\"name\":\"",
                ],
                _ => vec![&*begins],
            };
            for begins in begins {
                let mut ended = 0;
                for _ in 0..12 {
                    let Some(text) = world.walk(&grammar, begins, &mut random) else { continue };
                    check(format, &functions, &text, true);
                    ended += 1;
                }
                assert!(ended >= 3, "{}: only {ended} of 12 walks after {begins:?} ended", format.name);
            }
        }
    }
}

#[test]
fn text_is_free_and_what_opens_a_call_is_not() {
    let functions = functions();
    for format in tool_formats() {
        for has_special in [false, true] {
            if has_only_special(format.name) && !has_special {
                continue;
            }
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
            let (before, after) = match format.name {
                "harmony" => ("<|channel|>final<|message|>", ""),
                "inkling" => ("<|content_text|>", "<|end_message|>"),
                _ => ("", ""),
            };
            for text in ["Hello.", "Wörld, 1 < 2 and </b>\n\nx", "a \"quoted\" text (f(a=1))"] {
                let text = format!("{before}{text}{after}");
                assert!(world.accepts(&grammar, &text), "{}: {text}", format.name);
            }
            let frame = format.frame("");
            if !frame.trigger.is_empty() {
                for text in [format!("x{} nonsense", frame.trigger), format!("x{}", frame.trigger)] {
                    assert!(!world.accepts(&grammar, &text), "{}: {text}", format.name);
                }
            }
        }
    }
}

/// Of a function whose schema cannot be compiled calls have any arguments, and others are held to theirs.
#[test]
fn a_schema_that_cannot_be_compiled_leaves_others_bound() {
    let reason = "a look-ahead other than at the start, behind `^`, or a look-behind is not supported";
    let pattern = json!({"type": "object", "properties": {"x": {"type": "string", "pattern": "x(?!y)z"}}});
    leaves_others_bound(pattern, "/9/parameters/properties/x/pattern", reason);
    // What only the engine finds.
    let nothing = json!({"type": "object", "properties": {"x": {"type": "integer", "minimum": 5, "maximum": 4}}, "required": ["x"]});
    leaves_others_bound(nothing, "/9/parameters", "no value matches the schema");
}

fn leaves_others_bound(odd: Value, at: &str, reason: &str) {
    let mut given: Vec<Callable> =
        functions().into_iter().map(|function| Callable { is_strict: false, ..function }).collect();
    given.insert(
        0,
        Callable {
            name: "odd".into(),
            schema: odd,
            at: "/9/parameters".into(),
            lark: None,
            is_strict: false,
        },
    );
    let mut wanted = given.clone();
    wanted[0].schema = json!({"type": "object"});
    let mut random = Random(41);
    for format in tool_formats() {
        let world = World::new(format, true);
        let grammar = world.compile(calls(format, "", &given).possible().unwrap().parts);
        let [told] = &grammar.unbound[..] else { panic!("{}: {:?}", format.name, grammar.unbound) };
        assert!(told.path.starts_with(at) && told.reason.contains(reason), "{}: {told}", format.name);
        let frame = format.frame("");
        let begins = match frame.trigger {
            _ if format.name == "inkling" => "<|content_invoke_tool_json|>{\"name\":\"".to_owned(),
            "" => format!("{}{}", frame.open, frame.before_name),
            _ if format.name == "harmony" => "<|channel|>commentary to=functions.".to_owned(),
            trigger => trigger.to_owned(),
        };
        let mut ended = 0;
        for _ in 0..12 {
            let Some(text) = world.walk(&grammar, &begins, &mut random) else { continue };
            check(format, &wanted, &text, true);
            ended += 1;
        }
        assert!(ended >= 3, "{}: only {ended} of 12 walks ended", format.name);
        given[0].is_strict = true;
        let parts = calls(format, "", &given).possible().unwrap().parts;
        let refused = world.compiler.compile(Source::Parts(parts), &Cancel::new()).err().unwrap();
        assert!(refused.reason.contains(reason), "{}: {refused}", format.name);
        given[0].is_strict = false;
    }
}

/// What models write, as the parser's transcripts have it: all whose calls are complete and valid.
#[test]
fn transcripts_of_models_are_let_through() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../output/tests/transcripts/");
    let given: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(format!("{folder}tools.json")).unwrap()).unwrap();
    let functions: Vec<Callable> = given
        .iter()
        .map(|tool| Callable {
            name: tool["name"].as_str().unwrap().to_owned(),
            schema: tool["parameters"].clone(),
            at: String::new(),
            lark: None,
            is_strict: true,
        })
        .collect();
    let mut wrong = String::new();
    for format in tool_formats() {
        let file = std::fs::read_to_string(format!("{folder}{}.jsonl", format.name)).unwrap();
        let mut lines = file.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let header = lines.next().unwrap();
        let mut templates = vec![TEMPLATES[0]];
        templates.extend(TEMPLATES[1..].iter().filter(|&&text| format.frame(text) != format.frame("")));
        let transcripts: Vec<Value> = lines.filter(|line| has_valid_calls(&functions, line)).collect();
        let mut refused = HashSet::new();
        for has_special in [false, true] {
            if has_only_special(format.name) && !has_special {
                continue;
            }
            let world = World::new(format, has_special);
            let mut grammars = HashMap::new();
            for transcript in &transcripts {
                let reasoning = transcript["reasoning_format"].as_str().or(header["reasoning"].as_str());
                let start =
                    if transcript["in_reasoning"] == true { Start::Reasoning } else { Start::Content };
                let (note, text) =
                    (transcript["note"].as_str().unwrap(), transcript["text"].as_str().unwrap());
                let mut is_taken = false;
                for template in &templates {
                    let key = (reasoning, start == Start::Reasoning, *template);
                    let grammar = grammars.entry(key).or_insert_with(|| {
                        let reasoning = reasoning.map(|name| reasoning_format(name).unwrap());
                        let calls = Calls { reasoning, start, ..calls(format, template, &functions) };
                        world.compile(calls.possible().unwrap().parts)
                    });
                    // They end an answer, as tokens.
                    let ends = ["<|call|>", "<|content_model_end_sampling|>"];
                    let text = ends.iter().find_map(|end| text.strip_suffix(end)).unwrap_or(text);
                    is_taken |= world.accepts(grammar, text);
                }
                let in_text = ["a marker in a", "a line in a text that begins"];
                let names_a_token = has_special && in_text.iter().any(|begin| note.starts_with(begin));
                if !is_taken {
                    refused.insert(text);
                }
                if !is_taken && !names_a_token && otherwise(format.name, note, text).is_none() {
                    wrong.push_str(&format!("{} {has_special}: {transcript}\n", format.name));
                }
            }
        }
        for transcript in &transcripts {
            let (note, text) = (transcript["note"].as_str().unwrap(), transcript["text"].as_str().unwrap());
            if let Some(why) = otherwise(format.name, note, text).filter(|_| !refused.contains(text)) {
                wrong.push_str(&format!("{}: is let through, though {why:?}: {transcript}\n", format.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Why what a model wrote is not let through: the parser reads it, and the model is made to write it as its template does.
fn otherwise(format: &str, note: &str, text: &str) -> Option<&'static str> {
    Some(match (format, note) {
        ("gemma4" | "functiongemma" | "pythonic", "another boolean, and a number with an exponent") => {
            return None;
        }
        (_, "another boolean, and a number with an exponent") => "properties come in the schema's order",
        (_, "a line break in a JSON string" | "a raw line break in a JSON string")
        | ("hermes", "an escape that JSON does not have") => "JSON has escapes",
        ("hermes" | "llama3_json", "an id is left out" | "with a type" | "no arguments key")
        | (
            "hermes",
            "arguments before the name"
            | "arguments as a text"
            | "null arguments"
            | "a second name is content"
            | "second arguments are content"
            | "keys that are not of a call stay",
        ) => "a call has a name and an object",
        (
            "hermes",
            "a list in one element"
            | "two objects in one element"
            | "an unknown tool in a list, after a known one",
        ) => "each call has its element",
        ("hermes", "no closing marker" | "no closing marker, and another call")
        | ("hermes", "cut off within the marker behind a call, which is no content") => "elements are closed",
        ("mistral", "the older list" | "with an id" | "without the second marker")
        | ("granite", "Granite 3.0 and 3.1 with a space" | "the element instead of the marker")
        | ("json", "Mistral's marker") => "the template has another form",
        ("llama3_json" | "json", "text after a call") => "a call is all of the answer",
        ("llama3_json", "two lines") => "between calls is a semicolon",
        ("pythonic", "JSON between Llama 4's markers") => "arguments are Python's",
        ("minimax_m3", "an object and lists") => "values are JSON",
        ("harmony", "white space around arguments") => "nothing stands around JSON",
        ("harmony", "the recipient in the role, at the beginning") => "the prompt has written the marker",
        ("harmony", "two calls") => "a call ends the answer",
        ("inkling", "no closing marker") => "messages are ended",
        (
            "gigachat3",
            "the message ends"
            | "the message ends, as GigaChat 3.1 writes it"
            | "text after a call"
            | "two calls",
        ) => "a call ends the answer",
        (
            "inkling",
            "two calls, of which the second has no role" | "reasoning that is not ended before a call",
        ) => "messages are ended and have roles",
        (
            "inkling",
            "text that is not ended before a call" | "no closing brace" | "cut off behind the arguments",
        ) => "messages are ended",
        ("inkling", "an unknown tool before a known one") => "other tools are not called",
        ("inkling", "the arguments are left out" | "arguments before the name") => {
            "a call has a name and an object"
        }
        ("inkling", "a call of another name than before it") => "a call has one name",
        ("inkling", "spaces in the call" | "white space between messages") => "there are none",
        ("inkling", "more keys than a call has") => "there are none",
        ("kimi_k3" | "deepseek_v4", "arguments as one JSON object") => "arguments are elements",
        ("kimi_k3", "an escaped attribute") => "no such key is named in a schema",
        ("kimi_k3", "attributes in another order") => "the template has one order",
        ("kimi_k2", "without functions. and number") => "the template has both",
        ("solar_open", "an empty id") => "ids have ten letters and digits",
        ("deepseek_v31", "V3's form") => "the template has the newer form",
        ("deepseek_v31", "an unknown tool before a known one") => "other tools are not called",
        ("qwen3_coder", "a parameter that is not closed before another")
        | ("qwen3_coder", "a parameter that is not closed before the end")
        | ("qwen3_coder", "the inner element is not closed") => "elements are closed",
        ("qwen3_coder", "on one line") => "elements stand in lines",
        ("qwen3_coder", "Python's list") => "lists are JSON",
        ("qwen3_coder", "words between parameters are content") => "there are none",
        ("longcat", "elements") => "arguments are JSON",
        ("glm45", "a key without a value is content") => "each key has a value",
        ("gemma4", "bare words") => "texts stand between marks",
        ("gemma4" | "functiongemma", "keys in another order") => "the templates sort keys",
        ("minimax_m2" | "seed_oss" | "mimo", "a number between line breaks") => {
            "values stand in their elements' lines"
        }
        ("lfm2" | "olmo3", "an object and lists" | "null") => "values are JSON",
        ("lfm2", "the JSON form") => "arguments are Python's",
        ("command_r", _) => "the template has a space before the block",
        ("phi4_mini", _) if text.contains("functools") => "the template has other markers",
        _ => return None,
    })
}

/// All calls of a transcript are whole, and their schemas accept them.
fn has_valid_calls(functions: &[Callable], transcript: &Value) -> bool {
    let calls = transcript["calls"].as_array().map_or(&[][..], Vec::as_slice);
    let is_valid = |call: &Value| {
        let function = functions.iter().find(|function| call["name"] == function.name.as_str());
        call["complete"] != false
            && function.is_some_and(|function| jsonschema::is_valid(&function.schema, &call["arguments"]))
    };
    !calls.is_empty() && calls.iter().all(is_valid)
}

/// In a section, what stands between calls begins as what closes it does.
#[test]
fn a_section_has_several_calls() {
    let functions = functions();
    let invoke = |name: &str| format!("<invoke name=\"{name}\">\n</invoke>");
    let dsml = |name: &str| format!("<｜DSML｜invoke name=\"{name}\">\n</｜DSML｜invoke>");
    let hunyuan = |name: &str| format!("<tool_call>{name}<tool_sep>\n</tool_call>");
    let step = |name: &str| {
        format!(
            "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"{name}\">\n</steptml:invoke><｜tool_call_end｜>"
        )
    };
    for (name, open, call, close) in [
        ("minimax_m2", "<minimax:tool_call>\n", &invoke as &dyn Fn(&str) -> String, "\n</minimax:tool_call>"),
        ("deepseek_v32", "<｜DSML｜function_calls>\n", &dsml, "\n</｜DSML｜function_calls>"),
        ("deepseek_v4", "<｜DSML｜tool_calls>\n", &dsml, "\n</｜DSML｜tool_calls>"),
        ("hunyuan_v3", "<tool_calls>\n", &hunyuan, "\n</tool_calls>"),
        ("step3", "<｜tool_calls_begin｜>\n", &step, "\n<｜tool_calls_end｜>"),
    ] {
        let format = tool_format(name).unwrap();
        let text = format!("{open}{}\n{}{close}", call("ping"), call("set"));
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            let calls = calls(format, "", &functions);
            for parts in [calls.possible().unwrap().parts, calls.required().0] {
                assert!(world.accepts(&world.compile(parts), &text), "{has_special}: {text}");
            }
        }
    }
}

/// GigaChat 3's calls begin with what ends each of its messages: behind that an answer may end, too.
#[test]
fn what_ends_a_message_may_end_an_answer() {
    let functions = functions();
    let format = tool_format("gigachat3").unwrap();
    let call = "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"ping\", \"arguments\": {}}";
    for template in ["", "<|function_call|>"] {
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, template, &functions).possible().unwrap().parts);
            let ended = |text: &str| world.accepts(&grammar, &format!("{text}<|message_sep|>\n\n"));
            assert!(ended("Hm.") && ended(""), "{template:?} {has_special}");
            let has_called = world.accepts(&grammar, &format!("Hm.{call}"));
            assert_eq!(has_called, template.is_empty(), "{template:?} {has_special}");
        }
    }
}

#[test]
fn wrong_calls_are_refused_in_each_way_of_writing() {
    let functions = functions();
    let coder = |inside: &str| format!("<tool_call>\n<function={inside}</function>\n</tool_call>");
    let bare = |inside: &str| format!("<function={inside}</function>");
    let parameter = |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
    let exact = |key: &str, value: &str| format!("<parameter={key}>{value}</parameter>\n");
    let weather = |more: &str| coder(&format!("get_weather>\n{}{more}", parameter("city", "Paris")));
    let glm = |value: &str| {
        format!(
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n\
             <arg_key>days</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
        )
    };
    let dsml = |kind: &str, value: &str| {
        format!(
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n\
             <｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"days\" string=\"{kind}\">{value}</｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n</｜DSML｜function_calls>"
        )
    };
    let m3 = |value: &str| {
        format!(
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"set\">]<]minimax[>[<a>{value}]<]minimax[>[</a>\
             ]<]minimax[>[</invoke>]<]minimax[>[</tool_call>"
        )
    };
    let gemma = |inside: &str| format!("<|tool_call>call:get_weather{{{inside}}}<tool_call|>");
    let lfm = |inside: &str| format!("<|tool_call_start|>[get_weather({inside})]<|tool_call_end|>");
    let set = |inside: &str| format!("<|tool_call_start|>[set({inside})]<|tool_call_end|>");
    let harmony = |header: &str, body: &str| {
        format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{header}<|message|>{body}")
    };
    let to = "<|channel|>commentary to=functions.get_weather <|constrain|>json";
    let action = |body: &str| {
        format!(
            "<|START_RESPONSE|>Hm.<|END_RESPONSE|><|START_ACTION|>[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \
             \"get_weather\", \"parameters\": {body}}}\n]<|END_ACTION|>"
        )
    };
    let solar = |body: &str| {
        format!(
            "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{body}<|tool_call:end|>"
        )
    };
    let inkling = |body: &str| {
        format!(
            "get_weather<|content_invoke_tool_json|>{{\"name\":\"get_weather\",\"args\":{body}}}<|end_message|>"
        )
    };
    let paris = "{\"city\": \"Paris\"}";
    let cases: Vec<(&str, Vec<String>, Vec<String>)> = vec![
        (
            "qwen3_coder",
            vec![
                weather(""),
                weather(&parameter("days", "3")),
                weather(&parameter("unit", "celsius")),
                coder("ping>\n"),
                coder(&format!("send>\n{}{}", parameter("to", "10.0.0.1"), parameter("body", "</b> <par>"))),
                coder(&format!("set>\n{}{}", parameter("a", "-1.5"), parameter("c", "true"))),
                bare(&format!("get_weather>\n{}", parameter("city", "Paris"))),
                format!("I look.\n\n{}", bare(&format!("get_weather>\n{}", parameter("city", "Paris")))),
                format!("{}\n</tool_call>\nDone.", bare("ping>\n")),
                format!("{}\n{}", bare("ping>\n"), weather("")),
            ],
            vec![
                weather(&parameter("days", "15")),
                weather(&parameter("days", "three")),
                weather(&parameter("unit", "kelvin")),
                weather(&parameter("where", "x")),
                coder("get_weather>\n"),
                coder("nothing>\n"),
                coder(&format!("send>\n{}{}", parameter("to", "10.0.0.256"), parameter("body", "x"))),
                coder(&format!(
                    "send>\n{}{}",
                    parameter("to", "10.0.0.1"),
                    parameter("body", "thirteen chars")
                )),
                coder(&format!("set>\n{}", parameter("c", "false"))),
                weather("").replace("Paris", "x\n</function>\n</tool_call>"),
                bare("get_weather>\n"),
                bare(&format!("get_weather>\n{}", parameter("town", "Paris"))),
                bare("nothing>\n"),
                format!("Hm.\n{}", bare(&format!("set>\n{}", parameter("c", "false")))),
            ],
        ),
        (
            "mimo",
            vec![
                coder(&format!("send>\n{}{}", exact("to", "10.0.0.1"), exact("body", "\nx\n"))),
                coder(&format!("send>\n{}{}", exact("to", "10.0.0.1"), exact("body", "</b> <par"))),
                coder(&format!("get_weather>\n{}{}", exact("city", "Paris\n"), exact("days", "3"))),
            ],
            vec![
                coder(&format!("send>\n{}{}", exact("to", "10.0.0.1\n"), exact("body", "x"))),
                coder(&format!("send>\n{}{}", exact("to", "10.0.0.1"), exact("body", "twelve chars\n"))),
                coder(&format!("get_weather>\n{}{}", exact("city", "Paris"), exact("days", "15"))),
            ],
        ),
        ("glm45", vec![glm("14")], vec![glm("0"), glm("x"), glm("</arg_value>1")]),
        (
            "deepseek_v32",
            vec![dsml("false", "3")],
            vec![dsml("true", "3"), dsml("false", "\"3\""), dsml("false", "30")],
        ),
        ("minimax_m3", vec![m3("1e3"), m3("0.5")], vec![m3("x"), m3("\"1\""), m3("")]),
        (
            "gemma4",
            vec![
                gemma("city:<|\"|>Paris<|\"|>"),
                gemma("city:<|\"|>a}b<|\"|>,days:3,unit:<|\"|>celsius<|\"|>"),
            ],
            vec![
                gemma(""),
                gemma("city:Paris"),
                gemma("city:\"Paris\""),
                gemma("city:<|\"|>P<|\"|>,days:15"),
                gemma("city:<|\"|>P<|\"|>,unit:<|\"|>kelvin<|\"|>"),
                gemma("city:<|\"|>P<|\"|>,"),
            ],
        ),
        (
            "lfm2",
            vec![
                lfm("city='Paris'"),
                lfm("city=\"it's (so)\", days=3"),
                lfm("city='x', unit='celsius'"),
                "<|tool_call_start|>[ping(), set(b='x', c=true)]<|tool_call_end|>".to_owned(),
                set(""),
                set("a=1"),
                set("a=1, b='x', c=1"),
                set("a=1, c=\"x\""),
                set("b='x', c=1"),
                set("c=1"),
            ],
            vec![
                set("b='x', a=1"),
                set("a=1, a=1"),
                set("a=1, "),
                set(", a=1"),
                set("a=1 b='x'"),
                lfm(""),
                lfm("'Paris'"),
                lfm("city=Paris"),
                lfm("city='it's'"),
                lfm("city='x', days=15"),
                lfm("city='x' days=3"),
                lfm("city='x', unit='kelvin'"),
                lfm("days=3"),
            ],
        ),
        (
            "harmony",
            vec![
                harmony(to, "{\"city\": \"Paris\"}"),
                harmony(&to.replace("commentary", "analysis"), "{\"city\": \"Paris\"}"),
                harmony("<|channel|>final", "Hello {"),
            ],
            vec![
                harmony(to, "{\"town\": \"Paris\"}"),
                harmony(&to.replace("commentary", "analysis"), "{\"town\": \"Paris\"}"),
                harmony("<|channel|>commentary to=functions.nothing", "{}"),
                harmony("<|channel|>other", "x"),
            ],
        ),
        (
            "inkling",
            vec![
                inkling(paris),
                inkling(paris).replace("get_weather<", "<"),
                format!("{}<|message_model|>{}", inkling(paris), inkling(paris)),
                format!("<|content_thinking|>Hm.<|end_message|><|message_model|>{}", inkling(paris)),
                format!("<|content_text|>Hm.<|end_message|><|message_model|>{}", inkling(paris)),
                format!("{}<|message_model|><|content_text|>Done.<|end_message|>", inkling(paris)),
                "<|content_text|>Hello {".to_owned(),
                "<|content_thinking|>Hm.".to_owned(),
            ],
            vec![
                inkling("{}"),
                inkling("{\"town\": \"Paris\"}"),
                inkling(paris).replace("get_weather", "nothing"),
                inkling(paris).replace("\"get_weather\"", "\"send\""),
                format!("{}{}", inkling(paris), inkling(paris)),
                format!("<|content_text|>Hm.<|end_message|><|message_model|>{}", inkling("{}")),
                format!("<|content_text|>Hm.{}", inkling(paris)),
                "<|content_text|>Hm.<|end_message|><|message_model|>".to_owned(),
                "Hello.".to_owned(),
            ],
        ),
        (
            "command_a",
            vec![action("{\"city\": \"Paris\"}"), "<|START_RESPONSE|>Hello.<|END_RESPONSE|>".to_owned()],
            vec![action("{\"town\": \"Paris\"}"), action("{}")],
        ),
        (
            "solar_open",
            vec![
                solar(paris),
                solar(paris).replace("<|tool_calls|>", ""),
                format!("{}{}", solar(paris), solar(paris).replace("<|tool_calls|>", "")),
                format!("<|content|>Hm.<|end|><|begin|>assistant{}", solar(paris)),
                "<|content|>Hello.".to_owned(),
            ],
            vec![
                solar("{}"),
                solar("{\"town\": \"Paris\"}"),
                solar(paris).replace("a1b2c3d4e5", "0"),
                solar(paris).replace("get_weather", "nothing"),
                format!("<|content|>Hm.<|end|><|begin|>assistant{}", solar("{}")),
            ],
        ),
    ];
    for (name, good, bad) in cases {
        let format = tool_format(name).unwrap();
        for has_special in [false, true] {
            if has_only_special(name) && !has_special {
                continue;
            }
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
            for text in &good {
                assert!(world.accepts(&grammar, text), "{name} refuses {text}");
            }
            for text in &bad {
                assert!(!world.accepts(&grammar, text), "{name} takes {text}");
            }
        }
    }
}

/// Schemas of one argument, with values of it as the format writes them.
#[test]
fn values_are_held_to_their_schemas_in_each_way_of_writing() {
    let quoted = |text: &str| format!("<|\"|>{text}<|\"|>");
    let gemma = |value: &str| format!("<|tool_call>call:f{{p:{value}}}<tool_call|>");
    let coder = |value: &str| {
        format!("<tool_call>\n<function=f>\n<parameter=p>\n{value}\n</parameter>\n</function>\n</tool_call>")
    };
    let of_booleans =
        |key: &str, count: Value| json!({"type": "array", "items": {"type": "boolean"}, key: count});
    let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
    let most = i32::MAX;
    let cases = [
        (
            "gemma4",
            of_booleans("maxItems", json!(1)),
            texts(&["[]", "[true]"]),
            texts(&["[true,true]", "true"]),
        ),
        ("gemma4", of_booleans("maxItems", json!(0)), texts(&["[]"]), texts(&["[true]"])),
        ("gemma4", of_booleans("minItems", json!(2.0)), texts(&["[true,true]"]), texts(&["[true]"])),
        ("gemma4", of_booleans("maxItems", json!(1.0)), texts(&["[true]"]), texts(&["[true,true]"])),
        (
            "gemma4",
            json!({"type": "string", "enum": ["x", 1, ""]}),
            vec![quoted("x"), quoted("")],
            texts(&["1"]),
        ),
        (
            "gemma4",
            json!({"type": "integer", "enum": ["x", 1, 1.5]}),
            texts(&["1"]),
            vec![quoted("x"), "1.5".into()],
        ),
        (
            "gemma4",
            json!({"enum": ["x", 1, null]}),
            vec!["1".into(), "null".into(), quoted("x")],
            texts(&["x"]),
        ),
        (
            "gemma4",
            json!({"type": "string", "maxLength": most}),
            vec![quoted("x"), quoted("")],
            texts(&["1"]),
        ),
        ("gemma4", json!({"type": "string", "maxLength": 2.0}), vec![quoted("xy")], vec![quoted("xyz")]),
        ("qwen3_coder", json!({"type": "string", "maxLength": most}), texts(&["x", ""]), vec![]),
        (
            "qwen3_coder",
            json!({"type": "string", "minLength": 1.0, "maxLength": 2.0}),
            texts(&["xy"]),
            texts(&["", "xyz"]),
        ),
        ("qwen3_coder", json!({"type": "string", "enum": ["x", 1]}), texts(&["x"]), texts(&["1"])),
    ];
    for (name, schema, good, bad) in cases {
        let format = tool_format(name).unwrap();
        let call = |value: &str| if name == "gemma4" { gemma(value) } else { coder(value) };
        let parameters = json!({"type": "object", "properties": {"p": schema}, "required": ["p"]});
        let functions = [Callable {
            name: "f".into(),
            schema: parameters,
            at: String::new(),
            lark: None,
            is_strict: true,
        }];
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
            for value in &good {
                assert!(world.accepts(&grammar, &call(value)), "{schema} refuses {value}");
            }
            for value in &bad {
                assert!(!world.accepts(&grammar, &call(value)), "{schema} takes {value}");
            }
        }
    }
}

fn strict(schema: Value) -> [Callable; 1] {
    [Callable { name: "f".into(), schema, at: "/0".into(), lark: None, is_strict: true }]
}

/// As LFM2.5's template writes them, which escapes nothing, and as Python would.
#[test]
fn texts_between_single_quotes_are_what_is_read_of_them() {
    let functions = functions();
    for (name, before, after) in [
        ("lfm2", "<|tool_call_start|>[", "]<|tool_call_end|>"),
        ("olmo3", "<function_calls>", "</function_calls>"),
        ("pythonic", "[", "]"),
    ] {
        let format = tool_format(name).unwrap();
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
            for (written, expected) in [
                ("", ""),
                ("cat > f <<EOF\nprint(1)\nEOF\n", "cat > f <<EOF\nprint(1)\nEOF\n"),
                (r"it\'s", "it's"),
                (r#"say "a\\b" \d\n"#, "say \"a\\b\" \\d\n"),
                (r"C:\users\x", r"C:\users\x"),
            ] {
                let call = format!("{before}get_weather(city='{written}', days=3){after}");
                assert!(world.accepts(&grammar, &call), "{name} refuses {call}");
                let answer = read(format, &functions, &call);
                let arguments: Value = serde_json::from_str(&answer.calls[0].arguments).unwrap();
                assert_eq!(arguments, json!({"city": expected, "days": 3}), "{name}: {call}");
            }
            // What a keyword says of a text says it of what is written.
            let call = |to: &str, body: &str| format!("{before}send(to='{to}', body='{body}'){after}");
            assert!(world.accepts(&grammar, &call("10.0.0.1", "a\nb")), "{name}");
            assert!(!world.accepts(&grammar, &call("10.0.0.1", r"a\nb")), "{name}");
        }
    }
}

#[test]
fn with_bare_keys_there_are_values_of_any_kind() {
    let (array, object) = (json!({"type": "array"}), json!({"type": "object"}));
    let bound = [
        json!({"type": "object"}),
        json!({"type": "object", "properties": {"o": {}, "paths": {"description": "Any"}}}),
        json!({"type": "object", "properties": {"paths": array, "o": object}}),
    ];
    let unbound = json!({"type": "object", "properties": {"paths": {"type": "array", "uniqueItems": true}, "o": object}});
    for (name, mark) in [("gemma4", "<|\"|>"), ("functiongemma", "<escape>")] {
        let format = tool_format(name).unwrap();
        let Frame { before_name, after, .. } = format.frame("");
        let call = |arguments: &str| format!("{before_name}f{}{after}", arguments.replace('\'', mark));
        for has_special in [false, true] {
            let world = World::new(format, has_special);
            for schema in bound.iter().chain([&unbound]) {
                let mut functions = strict(schema.clone());
                functions[0].is_strict = schema != &unbound;
                let possible = calls(format, "", &functions).possible().unwrap();
                assert_eq!(possible.unbound.len(), usize::from(schema == &unbound), "{schema}");
                let grammar = world.compile(possible.parts);
                let text = call("{o:{Content-Type:'a}\n',x y:[[],{}],'k:':null},paths:['a',-1.5,{b:true}]}");
                assert!(world.accepts(&grammar, &text), "{name} {schema} refuses {text}");
                let arguments = read(format, &functions, &text).calls[0].arguments.clone();
                assert_eq!(
                    serde_json::from_str::<Value>(&arguments).unwrap(),
                    json!({"o": {"Content-Type": "a}\n", "x y": [[], {}], "k:": null}, "paths": ["a", -1.5, {"b": true}]}),
                    "{name}: {text}"
                );
                for wrong in [
                    "{o:{a}}",
                    "{o:{a:}}",
                    "{o:{a:1,}}",
                    "{o:{:1}}",
                    "{o:{'':1}}",
                    "{paths:[a]}",
                    "{paths:[1,]}",
                ] {
                    assert!(!world.accepts(&grammar, &call(wrong)), "{name} {schema} takes {wrong}");
                }
            }
        }
    }
}

/// Rust's MCP servers say of an integer how many bits it has.
#[test]
fn a_format_of_numbers_is_none_of_texts() {
    let functions = strict(json!({"type": "object", "properties": {
        "limit": {"type": "integer", "format": "uint32", "minimum": 0},
        "paths": {"type": "array", "items": {"type": "string"}}}}));
    let format = tool_format("gemma4").unwrap();
    let world = World::new(format, true);
    let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
    let call = |arguments: &str| format!("<|tool_call>call:f{{{arguments}}}<tool_call|>");
    assert!(world.accepts(&grammar, &call("limit:3,paths:[<|\"|>a<|\"|>]")));
    assert!(!world.accepts(&grammar, &call("limit:-3")) && !world.accepts(&grammar, &call("limit:true")));
}

/// Its template shows the model no other.
#[test]
fn bare_keys_come_in_the_order_of_the_template() {
    let text = json!({"type": "string"});
    let functions = strict(json!({"type": "object", "required": ["location"], "properties": {
        "location": {"type": "object", "required": ["b", "a"], "properties": {"b": text, "a": text}},
        "days": {"type": "integer"}, "Category": text, "unit": text}}));
    let format = tool_format("gemma4").unwrap();
    let world = World::new(format, true);
    let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
    let call =
        |arguments: &str| format!("<|tool_call>call:f{{{arguments}}}<tool_call|>").replace('\'', "<|\"|>");
    for good in [
        "Category:'c',days:3,location:{a:'x',b:'y'},unit:'C'",
        "days:3,location:{a:'x',b:'y'}",
        "location:{a:'x',b:'y'},unit:'C'",
    ] {
        assert!(world.accepts(&grammar, &call(good)), "refuses {good}");
    }
    for bad in [
        "location:{b:'y',a:'x'}",
        "location:{a:'x',b:'y'},days:3",
        "days:3,Category:'c',location:{a:'x',b:'y'}",
    ] {
        assert!(!world.accepts(&grammar, &call(bad)), "takes {bad}");
    }
}

/// The name of a special token in a client's value is text, letter by letter.
#[test]
fn a_value_may_have_the_name_of_a_special_token_in_it() {
    let format = tool_format("gemma4").unwrap();
    for keyword in [json!({"const": "x<|tool_call>y"}), json!({"enum": ["x<|tool_call>y"]})] {
        let parameters = json!({"type": "object", "properties": {"p": keyword}, "required": ["p"]});
        let functions = [Callable {
            name: "f".into(),
            schema: parameters,
            at: String::new(),
            lark: None,
            is_strict: true,
        }];
        let world = World::new(format, true);
        let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
        let (before, after) = ("<|tool_call>call:f{p:<|\"|>x", "y<|\"|>}<tool_call|>");
        assert!(!world.accepts(&grammar, &format!("{before}<|tool_call>{after}")));
        let mut matcher = grammar.matcher();
        let name = b"<|tool_call>".map(u32::from);
        let tokens = world.tokens(before).into_iter().chain(name).chain(world.tokens(after));
        tokens.chain([EOS]).for_each(|token| matcher.advance(token).unwrap());
    }
}

#[test]
fn in_json_too_a_function_takes_the_properties_that_it_names() {
    let format = tool_format("hermes").unwrap();
    let world = World::new(format, true);
    let named =
        json!({"properties": {"a": {"type": "integer"}, "b": {"type": "object", "properties": {"c": {}}}}});
    let with = |keyword: &str, value: Value| {
        let mut schema = named.clone();
        schema[keyword] = value;
        schema
    };
    let own = [r#"{}"#, r#"{"a": 6}"#, r#"{"a": 6, "b": {"c": 1, "d": 2}}"#];
    for (schema, takes_more) in [
        (named.clone(), false),
        (with("required", json!(["a"])), false),
        (with("type", json!("object")), false),
        (with("additionalProperties", json!(true)), true),
        (with("additionalProperties", json!({"type": "string"})), true),
        (with("patternProperties", json!({"^n": {"type": "string"}})), true),
        (with("required", json!(["name"])), true),
        (json!({"properties": {}}), true),
        (json!({"type": "object"}), true),
        (Value::Null, false),
    ] {
        let functions = [Callable {
            name: "f".to_owned(),
            schema: schema.clone(),
            at: String::new(),
            lark: None,
            is_strict: true,
        }];
        let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
        let takes = |arguments: &str| {
            let call = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>");
            world.accepts(&grammar, &call)
        };
        assert_eq!(takes(r#"{"a": 6, "name": "Name"}"#), takes_more, "{schema}");
        if schema.get("required").is_none() && !schema.is_null() {
            own.iter().for_each(|arguments| assert!(takes(arguments), "{schema} refuses {arguments}"));
        }
    }
}

/// MiniMax M3 names an argument where its value ends too.
#[test]
fn a_function_that_names_no_arguments_leaves_others_bound() {
    let format = tool_format("minimax_m3").unwrap();
    let mut given = functions();
    given[3].schema = json!({"type": "object", "properties": {}});
    let possible = calls(format, "", &given).possible().unwrap();
    assert_eq!(possible.unbound, []);
    let world = World::new(format, false);
    let grammar = world.compile(possible.parts);
    let call = |inside: &str| {
        format!(
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"{inside}]<]minimax[>[</invoke>]<]minimax[>[</tool_call>"
        )
    };
    let city = |key: &str| format!("get_weather\">]<]minimax[>[<{key}>Paris]<]minimax[>[</{key}>");
    assert!(world.accepts(&grammar, &call("ping\">")) && world.accepts(&grammar, &call(&city("city"))));
    assert!(!world.accepts(&grammar, &call(&city("town"))));
}

#[test]
fn reasoning_goes_before_calls_in_every_format() {
    let functions = functions();
    let think = reasoning_format("think");
    for format in
        tool_formats().filter(|format| format.name != "harmony" && !format.frame("").trigger.is_empty())
    {
        let world = World::new(format, true);
        let calls = Calls { reasoning: think, ..calls(format, "", &functions) };
        let grammar = world.compile(calls.possible().unwrap().parts);
        let trigger = format.frame("").trigger;
        for text in
            ["<think>I could </think>\n\nHello.".to_owned(), format!("<think>{trigger} is how.</think>No.")]
        {
            assert!(world.accepts(&grammar, &text) || text.contains(trigger), "{}: {text}", format.name);
        }
        let text = format!("<think>Hm.</think>{trigger} nonsense");
        assert!(!world.accepts(&grammar, &text), "{}: {text}", format.name);
    }
}

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
                    let mut parser = Parser::new(Some(format), reasoning, tools(&functions), start);
                    let mut deltas = Vec::new();
                    parser.push(&good, &mut deltas);
                    parser.finish(&mut deltas);
                    assert_eq!(Answer::of(&deltas).calls.len(), 1, "{name}: {good}");
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
                let mut parser = Parser::new(tool, Some(reasoning), tools(&functions), start);
                let mut deltas = Vec::new();
                parser.push(good, &mut deltas);
                parser.finish(&mut deltas);
                let answer = Answer::of(&deltas);
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

#[test]
fn masks_of_free_text_are_computed_once() {
    let mut functions = functions();
    // Its arguments may have any names.
    functions.push(Callable {
        name: "list".to_owned(),
        schema: json!({"type": "object", "properties": {}}),
        ..functions[0].clone()
    });
    for (name, has_special, begins, ends) in [
        ("hermes", false, "", ""),
        ("qwen3_coder", true, "", ""),
        ("glm45", false, "", ""),
        ("gemma4", true, "", ""),
        (
            "harmony",
            true,
            "<|channel|>final<|message|>",
            "<|end|><|start|>assistant<|channel|>commentary to=functions.",
        ),
        (
            "inkling",
            true,
            "<|content_text|>",
            "<|end_message|><|message_model|>get_weather<|content_invoke_tool_json|>",
        ),
    ] {
        let format = tool_format(name).unwrap();
        let world = World::new(format, has_special);
        let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
        let mut matcher = grammar.matcher();
        let mut mask = vec![0; grammar.mask_words()];
        let mut free = 0;
        for token in world.tokens(begins) {
            matcher.advance(token).unwrap();
        }
        let text = "A long text, with a < b and two\n lines. ".repeat(20);
        let tokens = world.tokens(&text);
        for &token in &tokens {
            matcher.mask(&mut mask).unwrap();
            free += usize::from(matcher.is_free());
            assert!(matcher.try_advance(token).unwrap());
        }
        assert!(free * 100 > tokens.len() * 90, "{name}: free at {free} of {} tokens", tokens.len());
        assert!(matcher.masks_computed() < 60, "{name}: {} masks", matcher.masks_computed());

        // What the matcher does not take leaves it where it is, and from the marker on nothing is free.
        let trigger = format!("{}{ends}", format.frame("").trigger);
        for token in world.tokens(&trigger) {
            assert!(matcher.try_advance(token).unwrap(), "{name}");
        }
        matcher.mask(&mut mask).unwrap();
        assert!(!matcher.is_free());
        let refused = (0..256).find(|&token| !bit(&mask, token)).unwrap();
        assert!(!matcher.try_advance(refused).unwrap() && !matcher.try_advance(EOS).unwrap());
        let allowed = (0..256).find(|&token| bit(&mask, token)).unwrap();
        assert!(matcher.try_advance(allowed).unwrap(), "{name}");
    }
}

#[test]
fn free_masks_are_what_would_be_computed() {
    let functions = functions();
    let mut random = Random(7);
    for name in ["hermes", "glm45", "command_a", "minimax_m3", "llama3_json", "harmony", "inkling"] {
        let format = tool_format(name).unwrap();
        for has_special in [false, true] {
            if has_only_special(name) && !has_special {
                continue;
            }
            let world = World::new(format, has_special);
            let calls = Calls { reasoning: reasoning_format("think"), ..calls(format, "", &functions) };
            let grammar = world.compile(calls.possible().unwrap().parts);
            let mut matcher = grammar.matcher();
            let mut mask = vec![0; grammar.mask_words()];
            let mut text = Vec::new();
            for _ in 0..200 {
                matcher.mask(&mut mask).unwrap();
                // One that has seen the same, and knows nothing of it being free.
                let mut other = grammar.matcher();
                let mut whole = vec![0; grammar.mask_words()];
                text.iter().for_each(|&token| other.advance(token).unwrap());
                other.mask(&mut whole).unwrap();
                assert_eq!(mask, whole, "{name} after {text:?}");
                let allowed: Vec<u32> = (0..world.tokens.len() as u32)
                    .filter(|&token| token != EOS && bit(&mask, token))
                    .collect();
                let Some(&token) = allowed.get(random.below(allowed.len().max(1))) else { break };
                matcher.advance(token).unwrap();
                text.push(token);
            }
        }
    }
}
