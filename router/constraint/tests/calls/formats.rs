//! Every format, none of which is known here by name: what the masks let through is read as calls that their schemas accept, what models
//! write is let through, and text is free. What formats differ in, their frames and the headers of their transcripts say.

use std::collections::HashMap;

use penstock_constraint::{Cancel, Source};
use penstock_output::{Callable, Calls, Frame, Start, ToolFormat, reasoning_format, tool_formats};
use serde_json::{Value, json};

use super::{TRANSCRIPTS, World, calls, functions, read, special_or_not, transcripts};
use crate::synthetic::Random;

/// A text of a chat template for each frame of the format.
fn templates(format: &ToolFormat) -> Vec<&'static str> {
    let mut found: Vec<(&str, &Frame)> = Vec::new();
    for (sign, frame) in format.frames() {
        if !found.iter().any(|(_, other)| *other == frame) {
            found.push((sign, frame));
        }
    }
    found.into_iter().map(|(sign, _)| sign).collect()
}

/// Texts behind which an answer goes on with a call's name.
fn begins(format: &ToolFormat, frame: &Frame) -> Vec<String> {
    match (transcripts(format).0["begins"].as_array(), frame.trigger) {
        (Some(begins), _) => begins.iter().map(|text| text.as_str().unwrap().to_owned()).collect(),
        (None, "") => vec![format!("{}{}", frame.open, frame.before_name)],
        (None, trigger) => vec![format!("Hm <b>. {trigger}")],
    }
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

#[test]
fn what_is_let_through_is_calls_that_their_schemas_accept() {
    let functions = functions();
    let mut random = Random(14);
    for format in tool_formats() {
        for template in templates(format) {
            for &has_special in special_or_not(format) {
                let world = World::new(format, has_special);
                let calls = calls(format, template, &functions);
                let (parts, read_as) = calls.required();
                assert_eq!(read_as.name, format.name, "its own format can be written");
                let grammar = world.compile(parts);
                for text in world.walks(&grammar, "", &mut random) {
                    check(format, &functions, &text, false);
                }
                let grammar = world.compile(calls.possible().unwrap().parts);
                for begins in begins(format, format.frame(template)) {
                    for text in world.walks(&grammar, &begins, &mut random) {
                        check(format, &functions, &text, true);
                    }
                }
            }
        }
    }
}

#[test]
fn text_is_free_and_what_opens_a_call_is_not() {
    let functions = functions();
    for format in tool_formats() {
        let (header, _) = transcripts(format);
        for &has_special in special_or_not(format) {
            let world = World::new(format, has_special);
            let grammar = world.compile(calls(format, "", &functions).possible().unwrap().parts);
            let around = |at: usize| header["answer"][at].as_str().unwrap_or_default();
            for text in ["Hello.", "Wörld, 1 < 2 and </b>\n\nx", "a \"quoted\" text (f(a=1))"] {
                let text = format!("{}{text}{}", around(0), around(1));
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
        for begins in begins(format, format.frame("")) {
            for text in world.walks(&grammar, &begins, &mut random) {
                check(format, &wanted, &text, true);
            }
        }
        given[0].is_strict = true;
        let parts = calls(format, "", &given).possible().unwrap().parts;
        let refused = world.compiler.compile(Source::Parts(parts), &Cancel::new()).err().unwrap();
        assert!(refused.reason.contains(reason), "{}: {refused}", format.name);
        given[0].is_strict = false;
    }
}

/// What models write, as the parser's transcripts have it, where all calls are complete and valid. One that is not let through, be markers
/// text or special tokens, says why: the parser reads it, and the model is made to write it as its template does.
#[test]
fn transcripts_of_models_are_let_through() {
    let given: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(format!("{TRANSCRIPTS}tools.json")).unwrap()).unwrap();
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
        let (header, transcripts) = transcripts(format);
        let (called, others): (Vec<Value>, Vec<Value>) =
            transcripts.into_iter().partition(|transcript| has_valid_calls(&functions, transcript));
        for transcript in others.iter().filter(|transcript| !transcript["refused"].is_null()) {
            wrong.push_str(&format!("{}: has no valid calls to refuse: {transcript}\n", format.name));
        }
        let templates = templates(format);
        let worlds: Vec<World> =
            special_or_not(format).iter().map(|&has_special| World::new(format, has_special)).collect();
        let mut grammars = HashMap::new();
        for transcript in &called {
            let reasoning = transcript["reasoning_format"].as_str().or(header["reasoning"].as_str());
            let start = if transcript["in_reasoning"] == true { Start::Reasoning } else { Start::Content };
            let text = transcript["text"].as_str().unwrap();
            let text = header["end"].as_str().and_then(|end| text.strip_suffix(end)).unwrap_or(text);
            let is_taken = |(at, world): (usize, &World)| {
                templates.iter().any(|template| {
                    let key = (at, reasoning, start == Start::Reasoning, *template);
                    let grammar = grammars.entry(key).or_insert_with(|| {
                        let reasoning = reasoning.map(|name| reasoning_format(name).unwrap());
                        let calls = Calls { reasoning, start, ..calls(format, template, &functions) };
                        world.compile(calls.possible().unwrap().parts)
                    });
                    world.accepts(grammar, text)
                })
            };
            let taken: Vec<bool> = worlds.iter().enumerate().map(is_taken).collect();
            let are_texts = |world: &World| !has_special_token(world, &transcript["calls"].to_string());
            let is_right = match transcript["refused"].is_null() {
                true => taken == worlds.iter().map(are_texts).collect::<Vec<_>>(),
                false => taken.contains(&false),
            };
            if !is_right {
                wrong.push_str(&format!("{}, taken {taken:?}: {transcript}\n", format.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
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

/// It has the name of a special token in it: written as that token, it is no text.
fn has_special_token(world: &World, written: &str) -> bool {
    let mut special = world.tokens.iter().filter(|token| token.special);
    special.any(|token| written.contains(std::str::from_utf8(&token.bytes).unwrap()))
}

#[test]
fn reasoning_goes_before_calls_in_every_format() {
    let functions = functions();
    let think = reasoning_format("think");
    for format in tool_formats().filter(|format| !format.frame("").trigger.is_empty()) {
        let frame = format.frame("");
        let trigger = frame.trigger;
        for &has_special in special_or_not(format) {
            let world = World::new(format, has_special);
            let calls = Calls { reasoning: think, ..calls(format, "", &functions) };
            let grammar = world.compile(calls.possible().unwrap().parts);
            let accepts = |text: &str| world.accepts(&grammar, text);
            assert!(accepts("<think>I could </think>\n\nHello."), "{} {has_special}", format.name);
            // A marker is a word of the reasoning, if it is no token and more than it stands before a name.
            let has_token = has_special_token(&world, trigger);
            let leads_to_a_name = format!("{}{}", frame.open, frame.before_name) == trigger;
            let text = format!("<think>{trigger} is how.</think>No.");
            assert_eq!(
                accepts(&text),
                !(has_token || leads_to_a_name),
                "{} {has_special}: {text}",
                format.name
            );
            let text = format!("<think>Hm.</think>{trigger} nonsense");
            assert!(!accepts(&text), "{} {has_special}: {text}", format.name);
        }
    }
}
