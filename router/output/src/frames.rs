//! How to write a call, for grammars that make a model write one: the text around its name and its arguments, as the
//! model's own template has it. `arguments` writes what stands between.

use serde_json::{Map, Value};

use crate::formats::{ReasoningFormat, ToolFormat};
use crate::json::dumps;

/// The text around a call. A `#` stands for a number that counts calls, a `@` for an id of ten small letters and digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// Before all calls.
    pub open: &'static str,
    pub before_name: &'static str,
    /// A `%` stands for the name once more.
    pub before_arguments: &'static str,
    pub after: &'static str,
    pub between: &'static str,
    /// After all calls.
    pub close: &'static str,
    /// What calls begin with and prose does not. Empty: a call stands where the answer begins, or nowhere.
    pub trigger: &'static str,
    /// Begins calls that are written otherwise. The model has such a token and its template asks for none: there are none.
    pub barred: &'static str,
    /// An answer has one call.
    pub is_single: bool,
    pub writing: Writing,
}

/// How a frame's arguments are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Writing {
    Json,
    Elements(Elements),
    /// `a=1, b="x"`: values as JSON, which Python's reader takes too.
    Python,
    /// An object with bare keys; strings stand between two of this marker.
    Braces(&'static str),
}

/// The text around the key and the value of an argument. A `%` stands for the key in `close`, and for the name of the
/// value's type in `before_json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Elements {
    pub before_key: &'static str,
    /// Between the key and a text.
    pub before_text: &'static str,
    /// Between the key and another value.
    pub before_json: &'static str,
    pub close: &'static str,
    /// After each element.
    pub after: &'static str,
}

pub(crate) const FRAME: Frame = Frame {
    open: "",
    before_name: "{\"name\": \"",
    before_arguments: "\", \"arguments\": ",
    after: "}",
    between: ", ",
    close: "",
    trigger: "",
    barred: "",
    is_single: false,
    writing: Writing::Json,
};

/// Qwen3-Coder's.
const FUNCTION_ELEMENTS: Elements = Elements {
    before_key: "<parameter=",
    before_text: ">\n",
    before_json: ">\n",
    close: "\n</parameter>",
    after: "\n",
};

/// With nothing around values: line breaks are their own.
const EXACT_ELEMENTS: Elements =
    Elements { before_text: ">", before_json: ">", close: "</parameter>", ..FUNCTION_ELEMENTS };

/// Qwen3-Coder's, of which others have made theirs.
const FUNCTION: Frame = Frame {
    before_name: "<tool_call>\n<function=",
    before_arguments: ">\n",
    after: "</function>\n</tool_call>",
    between: "\n",
    trigger: "<tool_call>",
    writing: Writing::Elements(FUNCTION_ELEMENTS),
    ..FRAME
};

/// GLM's, in lines.
const ARGUMENT_ELEMENTS: Elements = Elements {
    before_key: "<arg_key>",
    before_text: "</arg_key>\n<arg_value>",
    before_json: "</arg_key>\n<arg_value>",
    close: "</arg_value>",
    after: "\n",
};

/// DeepSeek's.
const DSML_ELEMENTS: Elements = Elements {
    before_key: "<｜DSML｜parameter name=\"",
    before_text: "\" string=\"true\">",
    before_json: "\" string=\"false\">",
    close: "</｜DSML｜parameter>",
    after: "\n",
};

/// DeepSeek's calls, without their section.
const DSML: Frame = Frame {
    before_name: "<｜DSML｜invoke name=\"",
    before_arguments: "\">\n",
    after: "</｜DSML｜invoke>",
    between: "\n",
    writing: Writing::Elements(DSML_ELEMENTS),
    ..FRAME
};

/// GLM 4.7's, and Laguna's from XS-2.1 on.
const GLM: Frame = Frame {
    before_name: "<tool_call>",
    before_arguments: "",
    after: "</tool_call>",
    between: "",
    trigger: "<tool_call>",
    writing: Writing::Elements(Elements {
        before_text: "</arg_key><arg_value>",
        before_json: "</arg_key><arg_value>",
        after: "",
        ..ARGUMENT_ELEMENTS
    }),
    ..FRAME
};

/// GLM 4.5's and 4.6's.
const GLM_IN_LINES: Frame =
    Frame { before_arguments: "\n", between: "\n", writing: Writing::Elements(ARGUMENT_ELEMENTS), ..GLM };

const PYTHON: Frame =
    Frame { before_name: "", before_arguments: "(", after: ")", writing: Writing::Python, ..FRAME };

/// Stands in each marker of Hunyuan's open checkpoints.
const OPENSOURCE: &str = ":opensource";

/// Formats, a text of their models' templates (empty: any), and the frame; of one format the first that fits.
static FRAMES: &[(&str, &str, Frame)] = &[
    (
        "harmony",
        "",
        Frame {
            before_name: "<|channel|>commentary to=functions.",
            before_arguments: " <|constrain|>json<|message|>",
            after: "",
            is_single: true,
            ..FRAME
        },
    ),
    (
        "inkling",
        "",
        Frame {
            before_name: "",
            before_arguments: "<|content_invoke_tool_json|>{\"name\":\"%\",\"args\":",
            after: "}<|end_message|>",
            between: "<|message_model|>",
            ..FRAME
        },
    ),
    (
        "kimi_k2",
        "",
        Frame {
            open: "<|tool_calls_section_begin|>",
            before_name: "<|tool_call_begin|>functions.",
            before_arguments: ":#<|tool_call_argument_begin|>",
            after: "<|tool_call_end|>",
            between: "",
            close: "<|tool_calls_section_end|>",
            trigger: "<|tool_calls_section_begin|>",
            ..FRAME
        },
    ),
    (
        "solar_open",
        "",
        Frame {
            open: "<|tool_calls|>",
            before_name: "<|tool_call:begin|>@<|tool_call:name|>",
            before_arguments: "<|tool_call:args|>",
            after: "<|tool_call:end|>",
            between: "",
            trigger: "<|tool_calls|>",
            ..FRAME
        },
    ),
    (
        "deepseek_v3",
        "",
        Frame {
            open: "<｜tool▁calls▁begin｜>",
            before_name: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            before_arguments: "\n```json\n",
            after: "\n```<｜tool▁call▁end｜>",
            between: "\n",
            close: "<｜tool▁calls▁end｜>",
            trigger: "<｜tool▁calls▁begin｜>",
            ..FRAME
        },
    ),
    (
        "deepseek_v31",
        "",
        Frame {
            open: "<｜tool▁calls▁begin｜>",
            before_name: "<｜tool▁call▁begin｜>",
            before_arguments: "<｜tool▁sep｜>",
            after: "<｜tool▁call▁end｜>",
            between: "",
            close: "<｜tool▁calls▁end｜>",
            trigger: "<｜tool▁calls▁begin｜>",
            ..FRAME
        },
    ),
    (
        "mistral",
        "[ARGS]",
        Frame {
            before_name: "[TOOL_CALLS]",
            before_arguments: "[ARGS]",
            after: "",
            between: "",
            trigger: "[TOOL_CALLS]",
            ..FRAME
        },
    ),
    ("mistral", "", Frame { open: "[TOOL_CALLS][", close: "]", trigger: "[TOOL_CALLS]", ..FRAME }),
    (
        "command_a",
        "",
        Frame {
            open: "<|START_ACTION|>[\n    ",
            before_name: "{\"tool_call_id\": \"#\", \"tool_name\": \"",
            before_arguments: "\", \"parameters\": ",
            between: ",\n    ",
            close: "\n]<|END_ACTION|>",
            trigger: "<|START_ACTION|>",
            ..FRAME
        },
    ),
    (
        "command_r",
        "",
        Frame {
            open: "Action: ```json\n[\n    ",
            before_name: "{\n        \"tool_name\": \"",
            before_arguments: "\",\n        \"parameters\": ",
            after: "\n    }",
            between: ",\n    ",
            close: "\n]```",
            trigger: "Action: ```json\n",
            ..FRAME
        },
    ),
    ("nemotron", "", Frame { open: "<TOOLCALL>[", close: "]</TOOLCALL>", trigger: "<TOOLCALL>", ..FRAME }),
    (
        "internlm2",
        "",
        Frame {
            before_name: "<|action_start|><|plugin|>\n{\"name\": \"",
            before_arguments: "\", \"parameters\": ",
            after: "}<|action_end|>",
            between: "\n",
            trigger: "<|action_start|><|plugin|>",
            ..FRAME
        },
    ),
    (
        "apertus",
        "",
        Frame {
            open: "<|tools_prefix|>[",
            before_name: "{\"",
            before_arguments: "\": ",
            close: "]<|tools_suffix|>",
            trigger: "<|tools_prefix|>",
            ..FRAME
        },
    ),
    (
        "phi4_mini",
        "",
        Frame { open: "<|tool_call|>[", close: "]<|/tool_call|>", trigger: "<|tool_call|>", ..FRAME },
    ),
    ("granite", "", Frame { open: "<|tool_call|>[", close: "]", trigger: "<|tool_call|>", ..FRAME }),
    (
        "granite_20b_fc",
        "",
        Frame {
            before_name: "<function_call> {\"name\": \"",
            between: "\n",
            trigger: "<function_call>",
            ..FRAME
        },
    ),
    ("jamba", "", Frame { open: "<tool_calls>[", close: "]</tool_calls>", trigger: "<tool_calls>", ..FRAME }),
    (
        "longcat",
        "",
        Frame {
            before_name: "<longcat_tool_call>\n{\"name\": \"",
            after: "}\n</longcat_tool_call>",
            between: "\n",
            trigger: "<longcat_tool_call>",
            ..FRAME
        },
    ),
    (
        "hermes",
        "",
        Frame {
            before_name: "<tool_call>\n{\"name\": \"",
            after: "}\n</tool_call>",
            between: "\n",
            trigger: "<tool_call>",
            ..FRAME
        },
    ),
    ("qwen3_coder", "", FUNCTION),
    // GigaChat 3.1's.
    (
        "gigachat3",
        "<|function_call|>",
        Frame {
            before_name: "<|function_call|>{\"name\": \"",
            is_single: true,
            trigger: "<|function_call|>",
            ..FRAME
        },
    ),
    (
        "gigachat3",
        "",
        Frame {
            before_name: "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"",
            is_single: true,
            trigger: "<|message_sep|>\n\nfunction call<|role_sep|>\n",
            ..FRAME
        },
    ),
    ("mimo", "", Frame { writing: Writing::Elements(EXACT_ELEMENTS), ..FUNCTION }),
    (
        "hyperclovax",
        "",
        Frame {
            open: "-> tool/function_call\n[",
            close: "]<|im_end|>",
            trigger: "-> tool/function_call\n",
            ..FRAME
        },
    ),
    (
        "seed_oss",
        "",
        Frame {
            before_name: "<seed:tool_call>\n<function=",
            after: "</function>\n</seed:tool_call>",
            trigger: "<seed:tool_call>",
            writing: Writing::Elements(EXACT_ELEMENTS),
            ..FUNCTION
        },
    ),
    // A template may write the line break as such or as `\n` of a string.
    ("glm45", "</arg_key>\n", GLM_IN_LINES),
    ("glm45", "</arg_key>\\n", GLM_IN_LINES),
    ("glm45", "</arg_key>", GLM),
    ("glm45", "", GLM_IN_LINES),
    (
        "hunyuan_v3",
        OPENSOURCE,
        Frame {
            open: "<tool_calls:opensource>\n",
            before_name: "<tool_call:opensource>",
            before_arguments: "<tool_sep:opensource>\n",
            after: "</tool_call:opensource>",
            between: "\n",
            close: "\n</tool_calls:opensource>",
            trigger: "<tool_calls:opensource>",
            writing: Writing::Elements(Elements {
                before_key: "<arg_key:opensource>",
                before_text: "</arg_key:opensource>\n<arg_value:opensource>",
                before_json: "</arg_key:opensource>\n<arg_value:opensource>",
                close: "</arg_value:opensource>",
                after: "\n",
            }),
            ..FRAME
        },
    ),
    (
        "hunyuan_v3",
        "",
        Frame {
            open: "<tool_calls>\n",
            before_name: "<tool_call>",
            before_arguments: "<tool_sep>\n",
            after: "</tool_call>",
            between: "\n",
            close: "\n</tool_calls>",
            trigger: "<tool_calls>",
            writing: Writing::Elements(ARGUMENT_ELEMENTS),
            ..FRAME
        },
    ),
    (
        "minimax_m2",
        "",
        Frame {
            open: "<minimax:tool_call>\n",
            before_name: "<invoke name=\"",
            before_arguments: "\">\n",
            after: "</invoke>",
            between: "\n",
            close: "\n</minimax:tool_call>",
            trigger: "<minimax:tool_call>",
            writing: Writing::Elements(Elements {
                before_key: "<parameter name=\"",
                before_text: "\">",
                before_json: "\">",
                close: "</parameter>",
                after: "\n",
            }),
            ..FRAME
        },
    ),
    (
        "minimax_m3",
        "",
        Frame {
            open: "]<]minimax[>[<tool_call>\n",
            before_name: "]<]minimax[>[<invoke name=\"",
            before_arguments: "\">",
            after: "]<]minimax[>[</invoke>",
            between: "",
            close: "]<]minimax[>[</tool_call>",
            trigger: "]<]minimax[>[<tool_call>",
            writing: Writing::Elements(Elements {
                before_key: "]<]minimax[>[<",
                before_text: ">",
                before_json: ">",
                close: "]<]minimax[>[</%>",
                after: "",
            }),
            ..FRAME
        },
    ),
    (
        "deepseek_v32",
        "",
        Frame {
            open: "<｜DSML｜function_calls>\n",
            close: "\n</｜DSML｜function_calls>",
            trigger: "<｜DSML｜function_calls>",
            ..DSML
        },
    ),
    (
        "deepseek_v4",
        "",
        Frame {
            open: "<｜DSML｜tool_calls>\n",
            close: "\n</｜DSML｜tool_calls>",
            trigger: "<｜DSML｜tool_calls>",
            ..DSML
        },
    ),
    (
        "step3",
        "",
        Frame {
            open: "<｜tool_calls_begin｜>\n",
            before_name: "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
            before_arguments: "\">\n",
            after: "</steptml:invoke><｜tool_call_end｜>",
            between: "\n",
            close: "\n<｜tool_calls_end｜>",
            trigger: "<｜tool_calls_begin｜>",
            writing: Writing::Elements(Elements {
                before_key: "<steptml:parameter name=\"",
                before_text: "\">",
                before_json: "\">",
                close: "</steptml:parameter>",
                after: "\n",
            }),
            ..FRAME
        },
    ),
    (
        "kimi_k3",
        "",
        Frame {
            open: "<|open|>tools<|sep|>",
            before_name: "<|open|>call tool=\"",
            before_arguments: "\" index=\"#\"<|sep|>",
            after: "<|close|>call<|sep|>",
            between: "",
            close: "<|close|>tools<|sep|>",
            trigger: "<|open|>tools<|sep|>",
            writing: Writing::Elements(Elements {
                before_key: "<|open|>argument key=\"",
                before_text: "\" type=\"string\"<|sep|>",
                before_json: "\" type=\"%\"<|sep|>",
                close: "<|close|>argument<|sep|>",
                after: "",
            }),
            ..FRAME
        },
    ),
    (
        "gemma4",
        "",
        Frame {
            before_name: "<|tool_call>call:",
            before_arguments: "",
            after: "<tool_call|>",
            between: "",
            trigger: "<|tool_call>",
            writing: Writing::Braces("<|\"|>"),
            ..FRAME
        },
    ),
    (
        "functiongemma",
        "",
        Frame {
            before_name: "<start_function_call>call:",
            before_arguments: "",
            after: "<end_function_call>",
            between: "",
            trigger: "<start_function_call>",
            writing: Writing::Braces("<escape>"),
            ..FRAME
        },
    ),
    (
        "lfm2",
        "",
        Frame {
            open: "<|tool_call_start|>[",
            close: "]<|tool_call_end|>",
            trigger: "<|tool_call_start|>",
            ..PYTHON
        },
    ),
    (
        "olmo3",
        "",
        Frame {
            open: "<function_calls>",
            between: "\n",
            close: "</function_calls>",
            trigger: "<function_calls>",
            ..PYTHON
        },
    ),
    // Llama 4's own template has the markers of Python, and asks for JSON.
    (
        "pythonic",
        "\"parameters\": dictionary",
        Frame { before_arguments: "\", \"parameters\": ", between: "", barred: "<|python_start|>", ..FRAME },
    ),
    (
        "pythonic",
        "<|python_start|>",
        Frame { open: "<|python_start|>[", close: "]<|python_end|>", trigger: "<|python_start|>", ..PYTHON },
    ),
    ("pythonic", "", Frame { open: "[", close: "]", ..PYTHON }),
    ("llama3_json", "", Frame { before_arguments: "\", \"parameters\": ", between: "; ", ..FRAME }),
    ("json", "", Frame { open: "[", close: "]", ..FRAME }),
];

/// Calls, of each its function's name and its arguments as JSON, as a model with this chat template writes them.
pub fn written_calls(format: &ToolFormat, template: &str, calls: &[(&str, String)]) -> String {
    let frame = format.frame(template);
    let one = |(index, (name, arguments)): (usize, &(&str, String))| {
        let (before, middle) = (counted(frame.before_name, index), counted(frame.before_arguments, index));
        let middle = middle.replace('%', name);
        format!("{before}{name}{middle}{}{}", frame.writing.of_json(arguments), frame.after)
    };
    let all: Vec<String> = calls.iter().enumerate().map(one).collect();
    let between = if frame.is_single { "" } else { frame.between };
    format!("{}{}{}", frame.open, all.join(between), frame.close)
}

/// As of the call of this number.
fn counted(text: &str, index: usize) -> String {
    text.replace('#', &index.to_string()).replace('@', &format!("call{index:06}"))
}

impl Writing {
    /// Arguments, which come as JSON, as they are written. Those that are no object, as of a call that was cut off, are a lone one.
    fn of_json(self, arguments: &str) -> String {
        let members = || match serde_json::from_str(arguments) {
            Ok(Value::Object(members)) => members,
            _ => Map::from_iter([("arguments".to_owned(), arguments.into())]),
        };
        match self {
            Self::Json => arguments.to_owned(),
            Self::Elements(elements) => {
                members().iter().map(|(key, value)| elements.one(key, value)).collect()
            }
            Self::Python => {
                let one = |(key, value): (&String, &Value)| format!("{key}={}", dumps(value));
                members().iter().map(one).collect::<Vec<_>>().join(", ")
            }
            Self::Braces(quote) => braced(&Value::Object(members()), quote),
        }
    }
}

impl Elements {
    fn one(&self, key: &str, value: &Value) -> String {
        let (before, value) = match value {
            Value::String(text) => (self.before_text.to_owned(), text.clone()),
            other => {
                let kind = match other {
                    Value::Null => "null",
                    Value::Bool(_) => "boolean",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                    Value::Number(_) | Value::String(_) => "number",
                };
                (self.before_json.replace('%', kind), dumps(other))
            }
        };
        format!("{}{key}{before}{value}{}{}", self.before_key, self.close.replace('%', key), self.after)
    }
}

/// With bare keys, and strings between two of the marker.
fn braced(value: &Value, quote: &str) -> String {
    let list = |items: Vec<String>| items.join(",");
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => format!("[{}]", list(items.iter().map(|item| braced(item, quote)).collect())),
        Value::Object(members) => {
            let one = |(key, value): (&String, &Value)| format!("{key}:{}", braced(value, quote));
            format!("{{{}}}", list(members.iter().map(one).collect()))
        }
        other => other.to_string(),
    }
}

impl ToolFormat {
    /// How models write calls, each behind a text that their chat templates have (empty: any); the first that fits is taken.
    pub fn frames(&self) -> impl Iterator<Item = (&'static str, &'static Frame)> {
        let frames = FRAMES.iter().filter(|(name, ..)| *name == self.name);
        frames.map(|(_, sign, frame)| (*sign, frame))
    }

    /// How a model with this chat template writes a call.
    pub fn frame(&self, template: &str) -> &'static Frame {
        // The tests see that each format has one for any template.
        self.frames().find(|(sign, _)| template.contains(sign)).map_or(&FRAME, |(_, frame)| frame)
    }
}

impl ReasoningFormat {
    /// What stands before and after reasoning.
    pub fn markers(&self, template: &str) -> (&'static str, &'static str) {
        let is_open = template.contains(OPENSOURCE);
        let of_template = |markers: &[&'static str]| {
            let fits = markers.iter().find(|marker| marker.contains(OPENSOURCE) == is_open);
            fits.or(markers.first()).copied()
        };
        match (of_template(self.open), of_template(self.close)) {
            (Some(open), Some(close)) => (open, close),
            _ => ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::TOOLS;
    use crate::{Answer, Parser, Start, Tool};

    const NESTED: &str = r#"{"b": [1, "}</tool_call>"]}"#;

    const TEXT: &str = "\nx\n";

    /// The arguments `{"a": {"b": [1, "}</tool_call>"]}, "t": "\nx\n"}`.
    fn arguments(frame: &Frame) -> String {
        match frame.writing {
            Writing::Json => format!("{{\"a\": {NESTED}, \"t\": {TEXT:?}}}"),
            Writing::Python => format!("a={NESTED}, t={TEXT:?}"),
            Writing::Braces(quote) => {
                format!("{{a:{{b:[1,{quote}}}</tool_call>{quote}]}},t:{quote}{TEXT}{quote}}}")
            }
            Writing::Elements(elements) => {
                let one = |key: &str, before: &str, value: &str| {
                    let (before, close) = (before.replace('%', "object"), elements.close.replace('%', key));
                    format!("{}{key}{before}{value}{close}{}", elements.before_key, elements.after)
                };
                one("a", elements.before_json, NESTED) + &one("t", elements.before_text, TEXT)
            }
        }
    }

    fn written(frame: &Frame, calls: &[&str]) -> String {
        let one = |(index, name): (usize, &&str)| {
            let (before, middle) =
                (counted(frame.before_name, index), counted(frame.before_arguments, index));
            let middle = middle.replace('%', name);
            format!("{before}{name}{middle}{}{}", arguments(frame), frame.after)
        };
        let all: Vec<String> = calls.iter().enumerate().map(one).collect();
        format!("{}{}{}", frame.open, all.join(frame.between), frame.close)
    }

    #[test]
    fn what_is_written_in_a_frame_is_read_as_calls() {
        let parameters =
            serde_json::json!({"properties": {"a": {"type": "object"}, "t": {"type": "string"}}});
        let expected = serde_json::json!({"a": {"b": [1, "}</tool_call>"]}, "t": TEXT});
        let tools =
            ["get_weather", "f"].map(|name| Tool { name: name.to_owned(), parameters: parameters.clone() });
        for (name, _, frame) in FRAMES {
            let format = TOOLS.iter().find(|format| format.name == *name).expect("the format exists");
            let begins = format!("{}{}", frame.open, frame.before_name);
            assert!(begins.starts_with(frame.trigger), "{name}");
            let names: &[&str] = if frame.is_single { &["f"] } else { &["get_weather", "f", "f"] };
            for text in ["", "Let me see. "] {
                if !text.is_empty() && frame.trigger.is_empty() {
                    continue;
                }
                let mut parser = Parser::new(Some(format), None, tools.clone().into(), Start::Content);
                let mut deltas = Vec::new();
                parser.push(&format!("{text}{}", written(frame, names)), &mut deltas);
                parser.finish(&mut deltas);
                let answer = Answer::of(&deltas);
                let found: Vec<&str> = answer.calls.iter().map(|call| call.name.as_str()).collect();
                assert_eq!(found, names, "{name}: {answer:?}");
                // Before a channel there is no text.
                assert!(answer.content == text || frame.is_single, "{name}: {answer:?}");
                for call in answer.calls {
                    let read: serde_json::Value = serde_json::from_str(&call.arguments).expect("JSON");
                    assert!(call.complete && read == expected, "{name}: {call:?}");
                }
            }
        }
    }

    #[test]
    fn calls_that_are_written_are_read_by_their_own_format() {
        let parameters = serde_json::json!({"properties":
            {"a": {"type": "object"}, "t": {"type": "string"}, "n": {"type": "integer"}}});
        let calls = [
            ("f", format!("{{\"a\": {NESTED}, \"t\": {TEXT:?}, \"n\": 5}}")),
            ("g", "{}".to_owned()),
            ("f", r#"{"n": null}"#.to_owned()),
        ];
        let tools = ["f", "g"].map(|name| Tool { name: name.to_owned(), parameters: parameters.clone() });
        let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        for (name, template, _) in FRAMES {
            let format = TOOLS.iter().find(|format| format.name == *name).expect("the format exists");
            let text = written_calls(format, template, &calls);
            let mut parser = Parser::new(Some(format), None, tools.clone().into(), Start::Content);
            let mut deltas = Vec::new();
            parser.push(&text, &mut deltas);
            parser.finish(&mut deltas);
            let answer = Answer::of(&deltas);
            let found: Vec<_> =
                answer.calls.iter().map(|call| (call.name.as_str(), json(&call.arguments))).collect();
            assert!(answer.content.is_empty(), "{name}: {answer:?}");
            let expected: Vec<_> = calls.iter().map(|(name, arguments)| (*name, json(arguments))).collect();
            assert_eq!(found, expected, "{name}: {text}");
        }
        // One that was cut off.
        let cut = |name: &str| {
            let format = TOOLS.iter().find(|format| format.name == name).expect("the format exists");
            written_calls(format, "", &[("f", "{\"n".to_owned())])
        };
        assert_eq!(cut("lfm2"), r#"<|tool_call_start|>[f(arguments="{\"n")]<|tool_call_end|>"#);
        assert_eq!(cut("hermes"), "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n}\n</tool_call>");
    }

    /// Requests may give a function a name of 256 characters.
    #[test]
    fn the_longest_names_are_read() {
        let read = |format: &'static ToolFormat, name: &str, text: &str| {
            let parameters = serde_json::json!({"properties": {"n": {"type": "integer"}}});
            let tools = [Tool { name: name.to_owned(), parameters }];
            let mut parser = Parser::new(Some(format), None, tools.into(), Start::Content);
            let mut deltas = Vec::new();
            parser.push(text, &mut deltas);
            parser.finish(&mut deltas);
            let answer = Answer::of(&deltas);
            let is_right = |call: &crate::Call| call.name == name && call.arguments == r#"{"n": 5}"#;
            assert!(matches!(&answer.calls[..], [call] if is_right(call)), "{}: {text}", format.name);
            assert!(answer.content.is_empty(), "{}: {text}", format.name);
        };
        for character in ["f", "\u{20000}"] {
            let name = character.repeat(256);
            for (format, template, _) in FRAMES {
                let format = TOOLS.iter().find(|known| known.name == *format).expect("the format exists");
                let call = (name.as_str(), r#"{"n": 5}"#.to_owned());
                read(format, &name, &written_calls(format, template, &[call]));
            }
        }
        // With an id before it, and as JSON escapes it.
        let format = |name: &str| TOOLS.iter().find(|format| format.name == name).expect("the format exists");
        let name = "\u{20000}".repeat(256);
        let (id, escaped) = ("a".repeat(200), r"\ud840\udc00".repeat(256));
        let solar = format!("<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{{\"n\": 5}}");
        read(format("solar_open"), &name, &solar);
        read(format("apertus"), &name, &format!("<|tools_prefix|>[{{\"{escaped}\": {{\"n\": 5}}}}]"));
    }

    #[test]
    fn every_format_has_a_frame_whatever_the_template_says() {
        for format in TOOLS {
            let fits = |(name, sign, _): &&(&str, &str, Frame)| *name == format.name && sign.is_empty();
            assert!(FRAMES.iter().any(|frame| fits(&frame)), "{}", format.name);
        }
    }

    #[test]
    fn of_several_frames_the_template_decides() {
        let mistral = TOOLS.iter().find(|format| format.name == "mistral").expect("it exists");
        assert_eq!(mistral.frame("[TOOL_CALLS] … [ARGS]").open, "");
        assert_eq!(mistral.frame("[TOOL_CALLS]").open, "[TOOL_CALLS][");
        let pythonic = TOOLS.iter().find(|format| format.name == "pythonic").expect("it exists");
        assert_eq!(pythonic.frame("<|python_start|>[func(a=1)]").open, "<|python_start|>[");
        let llama4 = "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its \
                      value}. … '<|python_start|>'";
        assert_eq!(pythonic.frame(llama4).before_name, "{\"name\": \"");
        let glm = TOOLS.iter().find(|format| format.name == "glm45").expect("it exists");
        for (template, call) in [
            // GLM 4.5 and 4.6, Laguna XS.2.
            (
                "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}",
                "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5",
            ),
            (
                r#"'<arg_key>' ~ k ~ '</arg_key>\n' ~ '<arg_value>'"#,
                "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5",
            ),
            // GLM 4.7.
            ("<arg_key>{{ k }}</arg_key><arg_value>{{ v }}", "<tool_call>f<arg_key>n</arg_key><arg_value>5"),
            // Laguna XS-2.1.
            (
                "{{- \"<arg_key>\" ~ k ~ \"</arg_key>\" -}}\n    {{- \"<arg_value>\" -}}{{- v -}}",
                "<tool_call>f<arg_key>n</arg_key><arg_value>5",
            ),
            // One that shows no calls.
            ("", "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5"),
        ] {
            let written = written_calls(glm, template, &[("f", r#"{"n": 5}"#.to_owned())]);
            assert!(written.starts_with(call), "{template}: {written}");
        }
    }
}
