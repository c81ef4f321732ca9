//! How each format writes an answer: the inverse of the parser, written from the same descriptions of the formats.

use serde_json::{Map, Value};

use super::random::Wanted;

pub struct Writer {
    pub format: &'static str,
    pub reasoning: &'static str,
    /// What an argument's text may not hold, because the format cannot write it.
    pub forbidden: &'static [&'static str],
    /// Text may stand before calls.
    pub takes_text: bool,
    pub many: bool,
    pub write: fn(Calls) -> String,
    pub think: (&'static str, &'static str),
}

type Calls<'a> = &'a [(String, Map<String, Value>)];

const THINK: (&str, &str) = ("<think>\n", "\n</think>\n\n");

const WRITER: Writer = Writer {
    format: "",
    reasoning: "think",
    forbidden: &[],
    takes_text: true,
    many: true,
    write: |_| String::new(),
    think: THINK,
};

pub fn writers() -> Vec<Writer> {
    vec![
        Writer {
            format: "hermes",
            write: |calls| {
                each(calls, "\n", |n, a| {
                    format!("<tool_call>\n{}\n</tool_call>", envelope(n, a, "name", "arguments"))
                })
            },
            ..WRITER
        },
        Writer {
            format: "hermes",
            write: |calls| format!("<tool_call>\n{}\n</tool_call>", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "granite",
            write: |calls| format!("<|tool_call|>{}", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "granite",
            reasoning: "granite",
            think: ("Here is my thought process:\n", "\nHere is my response:\n"),
            write: |calls| format!("<tool_call>{}", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "gigachat3",
            many: false,
            write: |calls| {
                each(calls, "", |n, a| {
                    let call = envelope(n, a, "name", "arguments");
                    format!("<|message_sep|>\n\nfunction call<|role_sep|>\n{call}<|message_sep|>\n\n")
                })
            },
            ..WRITER
        },
        Writer {
            format: "gigachat3",
            many: false,
            write: |calls| {
                each(calls, "", |n, a| format!("<|function_call|>{}", envelope(n, a, "name", "arguments")))
            },
            ..WRITER
        },
        Writer {
            format: "granite_20b_fc",
            write: |calls| {
                each(calls, "\n", |n, a| format!("<function_call> {}", envelope(n, a, "name", "arguments")))
            },
            ..WRITER
        },
        Writer {
            format: "phi4_mini",
            write: |calls| format!("<|tool_call|>{}<|/tool_call|>", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "phi4_mini",
            write: |calls| format!("functools{}", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "jamba",
            write: |calls| format!("<tool_calls>{}</tool_calls>", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "jamba",
            reasoning: "hunyuan_a13b",
            think: ("<think>\n", "\n</think>\n<answer>\n"),
            write: |calls| format!("<tool_calls>{}</tool_calls>", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "nemotron",
            write: |calls| format!("<TOOLCALL>{}</TOOLCALL>", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "internlm2",
            many: false,
            write: |calls| {
                each(calls, "", |n, a| {
                    format!(
                        "<|action_start|><|plugin|>\n{}<|action_end|>",
                        envelope(n, a, "name", "parameters")
                    )
                })
            },
            ..WRITER
        },
        Writer {
            format: "apertus",
            reasoning: "apertus",
            think: ("<|inner_prefix|>", "<|inner_suffix|>"),
            write: |calls| {
                format!(
                    "<|tools_prefix|>[{}]<|tools_suffix|>",
                    each(calls, ", ", |n, a| format!("{{{}: {}}}", json(&n.into()), json(&a.clone().into())))
                )
            },
            ..WRITER
        },
        Writer {
            format: "command_a",
            reasoning: "command_a",
            think: ("<|START_THINKING|>", "<|END_THINKING|>"),
            write: |calls| {
                format!(
                    "<|START_ACTION|>[\n{}\n]<|END_ACTION|>",
                    each(calls, ",\n", |n, a| format!(
                        "    {{\"tool_call_id\": \"0\", \"tool_name\": {}, \"parameters\": {}}}",
                        json(&n.into()),
                        json(&a.clone().into())
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "command_r",
            write: |calls| {
                format!(
                    "Action:\n```json\n[\n{}\n]\n```",
                    each(calls, ",\n", |n, a| envelope(n, a, "tool_name", "parameters"))
                )
            },
            ..WRITER
        },
        Writer {
            format: "mistral",
            reasoning: "mistral",
            think: ("[THINK]", "[/THINK]"),
            write: |calls| {
                format!(
                    "[TOOL_CALLS] [{}]",
                    each(calls, ", ", |n, a| format!(
                        "{{\"name\": {}, \"arguments\": {}, \"id\": \"abcDEF123\"}}",
                        json(&n.into()),
                        json(&a.clone().into())
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "mistral",
            reasoning: "mistral",
            think: ("[THINK]", "[/THINK]"),
            write: |calls| {
                each(calls, "", |n, a| format!("[TOOL_CALLS]{n}[ARGS]{}", json(&a.clone().into())))
            },
            ..WRITER
        },
        Writer {
            format: "mistral",
            write: |calls| {
                each(calls, "", |n, a| {
                    format!("[TOOL_CALLS]{n}[CALL_ID]abcDEF123[ARGS]{}", json(&a.clone().into()))
                })
            },
            ..WRITER
        },
        Writer {
            format: "llama3_json",
            takes_text: false,
            write: |calls| each(calls, "; ", |n, a| envelope(n, a, "name", "parameters")),
            ..WRITER
        },
        Writer {
            format: "llama3_json",
            write: |calls| {
                format!("<|python_tag|>{}", each(calls, ";", |n, a| envelope(n, a, "name", "parameters")))
            },
            ..WRITER
        },
        Writer {
            format: "json",
            takes_text: false,
            write: |calls| list(calls, "name", "arguments"),
            ..WRITER
        },
        Writer {
            format: "json",
            many: false,
            takes_text: false,
            write: |calls| each(calls, "", |n, a| envelope(n, a, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "json",
            write: |calls| format!("```json\n{}\n```", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "longcat",
            write: |calls| {
                each(calls, "\n", |n, a| {
                    format!("<longcat_tool_call>{}</longcat_tool_call>", envelope(n, a, "name", "arguments"))
                })
            },
            ..WRITER
        },
        Writer {
            format: "longcat",
            forbidden: &["</longcat_arg_value>"],
            write: |calls| {
                each(calls, "\n", |n, a| {
                    format!(
                        "<longcat_tool_call>{n}\n{}</longcat_tool_call>",
                        elements(a, |k, v| format!(
                            "<longcat_arg_key>{k}</longcat_arg_key>\n<longcat_arg_value>{v}</longcat_arg_value>\n"
                        ))
                    )
                })
            },
            ..WRITER
        },
        Writer {
            format: "deepseek_v3",
            write: |calls| {
                format!(
                    "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
                    each(calls, "\n", |n, a| format!(
                        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{}\n```<｜tool▁call▁end｜>",
                        json(&a.clone().into())
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "deepseek_v31",
            write: |calls| {
                format!(
                    "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
                    each(calls, "", |n, a| format!(
                        "<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
                        json(&a.clone().into())
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "deepseek_v32",
            forbidden: &["</｜DSML｜parameter>"],
            write: |calls| dsml("function_calls", calls),
            ..WRITER
        },
        Writer {
            format: "deepseek_v4",
            forbidden: &["</｜DSML｜parameter>"],
            write: |calls| dsml("tool_calls", calls),
            ..WRITER
        },
        Writer {
            format: "deepseek_v4",
            write: |calls| {
                format!(
                    "<｜DSML｜tool_calls>\n{}\n</｜DSML｜tool_calls>",
                    each(calls, "\n", |n, a| format!(
                        "<｜DSML｜invoke name=\"{n}\">\n{}\n</｜DSML｜invoke>",
                        json(&a.clone().into())
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "kimi_k2",
            reasoning: "kimi_k2",
            think: ("<think>", "</think>"),
            write: |calls| {
                format!(
                    "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>",
                    each(calls, "", |n, a| format!(
                        "<|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
                        json(&a.clone().into())
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "kimi_k3",
            reasoning: "kimi_k3",
            think: ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
            forbidden: &["<|close|>argument<|sep|>"],
            write: |calls| {
                format!(
                    "<|open|>tools<|sep|>{}<|close|>tools<|sep|>",
                    each(calls, "", |n, a| {
                        format!("<|open|>call tool=\"{n}\" index=\"1\"<|sep|>{}<|close|>call<|sep|>", a.iter().map(|(k, v)| { let (kind, v) = match v { Value::String(text) => ("string", text.clone()), v => ("object", json(v)) }; format!("<|open|>argument key=\"{k}\" type=\"{kind}\"<|sep|>{v}<|close|>argument<|sep|>") }).collect::<String>())
                    })
                )
            },
            ..WRITER
        },
        Writer {
            format: "solar_open",
            reasoning: "solar_open",
            think: ("<|think|>", "<|end|><|begin|>assistant"),
            write: |calls| {
                format!(
                    "<|end|><|begin|>assistant<|tool_calls|>{}<|calls|>",
                    each(calls, "", |n, a| format!(
                        "<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>{n}<|tool_call:args|>{}<|tool_call:end|>",
                        json(&a.clone().into())
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "hyperclovax",
            reasoning: "hyperclovax",
            think: ("/think\n", "<|im_end|>\n<|im_start|>assistant\n"),
            write: |calls| {
                format!(
                    "<|im_end|>\n<|im_start|>assistant -> tool/function_call\n{}<|im_end|>",
                    list(calls, "name", "arguments")
                )
            },
            ..WRITER
        },
        Writer {
            format: "step3",
            forbidden: &["</steptml:parameter>"],
            write: |calls| {
                format!(
                    "<｜tool_calls_begin｜>\n{}\n<｜tool_calls_end｜>",
                    each(calls, "\n", |n, a| format!(
                        "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"{n}\">\n{}</steptml:invoke><｜tool_call_end｜>",
                        elements(a, |k, v| format!(
                            "<steptml:parameter name=\"{k}\">{v}</steptml:parameter>\n"
                        ))
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "minimax_m2",
            forbidden: &["</parameter>"],
            write: |calls| {
                format!(
                    "<minimax:tool_call>\n{}\n</minimax:tool_call>",
                    each(calls, "\n", |n, a| format!(
                        "<invoke name=\"{n}\">\n{}</invoke>",
                        elements(a, |k, v| format!("<parameter name=\"{k}\">{v}</parameter>\n"))
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "minimax_m3",
            reasoning: "minimax_m3",
            think: ("<mm:think>", "</mm:think>"),
            forbidden: &["]<]minimax"],
            write: |calls| {
                format!(
                    "]<]minimax[>[<tool_call>\n{}\n]<]minimax[>[</tool_call>",
                    each(calls, "\n", |n, a| format!(
                        "]<]minimax[>[<invoke name=\"{n}\">{}]<]minimax[>[</invoke>",
                        elements(a, |k, v| format!("]<]minimax[>[<{k}>{v}]<]minimax[>[</{k}>"))
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "minimax_m3",
            reasoning: "minimax_m3",
            think: ("<mm:think>", "</mm:think>"),
            forbidden: &["]<]minimax"],
            write: |calls| {
                format!(
                    "]<]minimax[>[<tool_call>\n{}]<]minimax[>[</tool_call>",
                    each(calls, "\n", |n, a| format!(
                        "]<]minimax[>[<invoke name=\"{n}\">{}]<]minimax[>[</invoke>",
                        a.iter().map(|(k, v)| m3(k, v)).collect::<String>()
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "seed_oss",
            reasoning: "seed_oss",
            think: ("<seed:think>", "</seed:think>"),
            forbidden: &["</parameter>"],
            write: |calls| {
                each(calls, "\n", |n, a| {
                    format!(
                        "<seed:tool_call>\n<function={n}>\n{}</function>\n</seed:tool_call>",
                        elements(a, |k, v| format!("<parameter={k}>{v}</parameter>\n"))
                    )
                })
            },
            ..WRITER
        },
        Writer {
            format: "mimo",
            forbidden: &["</parameter>"],
            write: |calls| {
                each(calls, "\n", |n, a| {
                    format!(
                        "<tool_call>\n<function={n}>\n{}</function>\n</tool_call>",
                        elements(a, |k, v| format!("<parameter={k}>{v}</parameter>\n"))
                    )
                })
            },
            ..WRITER
        },
        Writer {
            format: "qwen3_coder",
            forbidden: &["</parameter>"],
            write: |calls| {
                each(calls, "\n", |n, a| {
                    format!(
                        "<tool_call>\n<function={n}>\n{}</function>\n</tool_call>",
                        elements(a, |k, v| format!("<parameter={k}>\n{v}\n</parameter>\n"))
                    )
                })
            },
            ..WRITER
        },
        Writer {
            format: "qwen3_coder",
            forbidden: &["</parameter>"],
            write: |calls| {
                each(calls, "\n", |n, a| {
                    format!(
                        "<function={n}>\n{}</function>",
                        elements(a, |k, v| format!("<parameter={k}>\n{v}\n</parameter>\n"))
                    )
                })
            },
            ..WRITER
        },
        Writer {
            format: "hunyuan_v3",
            forbidden: &["</arg_value>"],
            write: |calls| {
                format!(
                    "<tool_calls>\n{}\n</tool_calls>",
                    each(calls, "\n", |n, a| format!(
                        "<tool_call>{n}<tool_sep>\n{}</tool_call>",
                        elements(a, |k, v| format!("<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n"))
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "glm45",
            forbidden: &["</arg_value>"],
            write: |calls| {
                each(calls, "\n", |n, a| {
                    format!(
                        "<tool_call>{n}\n{}</tool_call>",
                        elements(a, |k, v| format!("<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n"))
                    )
                })
            },
            ..WRITER
        },
        Writer {
            format: "glm45",
            forbidden: &["</arg_value>"],
            write: |calls| {
                each(calls, "", |n, a| {
                    format!(
                        "<tool_call>{n}{}</tool_call>",
                        elements(a, |k, v| format!("<arg_key>{k}</arg_key><arg_value>{v}</arg_value>"))
                    )
                })
            },
            ..WRITER
        },
        Writer {
            format: "gemma4",
            reasoning: "gemma4",
            think: ("<|channel>thought\n", "<channel|>"),
            forbidden: &["<|\"|"],
            write: |calls| {
                each(calls, "", |n, a| {
                    format!("<|tool_call>call:{n}{}<tool_call|>", braces(&a.clone().into(), "<|\"|>"))
                })
            },
            ..WRITER
        },
        Writer {
            format: "functiongemma",
            forbidden: &["<escape>"],
            write: |calls| {
                each(calls, "", |n, a| {
                    format!(
                        "<start_function_call>call:{n}{}<end_function_call>",
                        braces(&a.clone().into(), "<escape>")
                    )
                })
            },
            ..WRITER
        },
        Writer {
            format: "lfm2",
            write: |calls| format!("<|tool_call_start|>[{}]<|tool_call_end|>", each(calls, ", ", call)),
            ..WRITER
        },
        Writer {
            format: "lfm2",
            write: |calls| {
                format!("<|tool_call_start|>{}<|tool_call_end|>", list(calls, "name", "arguments"))
            },
            ..WRITER
        },
        Writer {
            format: "olmo3",
            write: |calls| format!("<function_calls>{}</function_calls>", each(calls, "\n", call)),
            ..WRITER
        },
        Writer {
            format: "pythonic",
            takes_text: false,
            write: |calls| format!("[{}]", each(calls, ", ", call)),
            ..WRITER
        },
        Writer {
            format: "pythonic",
            write: |calls| format!("<|python_start|>[{}]<|python_end|>", each(calls, ", ", call)),
            ..WRITER
        },
        Writer {
            format: "kimi_k3",
            reasoning: "kimi_k3",
            think: ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
            write: |calls| {
                format!(
                    "<|open|>tools<|sep|>{}<|close|>tools<|sep|>",
                    each(calls, "", |n, a| format!(
                        "<|open|>call tool=\"{n}\" index=\"1\"<|sep|><|open|>json type=\"object\"<|sep|>{}<|close|>json<|sep|><|close|>call<|sep|>",
                        json(&a.clone().into())
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "hunyuan_v3",
            reasoning: "hunyuan_v3",
            think: ("<think:opensource>", "</think:opensource>"),
            forbidden: &["</arg_value:opensource>"],
            write: |calls| {
                format!(
                    "<tool_calls:opensource>\n{}\n</tool_calls:opensource>",
                    each(calls, "\n", |n, a| format!(
                        "<tool_call:opensource>{n}<tool_sep:opensource>\n{}</tool_call:opensource>",
                        elements(a, |k, v| format!(
                            "<arg_key:opensource>{k}</arg_key:opensource>\n<arg_value:opensource>{v}</arg_value:opensource>\n"
                        ))
                    ))
                )
            },
            ..WRITER
        },
        Writer {
            format: "granite",
            reasoning: "granite",
            think: ("Here's my thought process:", "Here's my response:\n"),
            write: |calls| format!("<tool_call>{}</tool_call>", list(calls, "name", "arguments")),
            ..WRITER
        },
        Writer {
            format: "phi4_mini",
            write: |calls| {
                each(calls, "", |n, a| {
                    format!("<|tool_call|>{}<|/tool_call|>", envelope(n, a, "name", "arguments"))
                })
            },
            ..WRITER
        },
        Writer {
            format: "hermes",
            reasoning: "ernie45",
            think: ("<think>\n", "\n</think>\n\n<response>\n"),
            write: |calls| {
                each(calls, "\n", |n, a| {
                    format!("<tool_call>\n{}\n</tool_call>", envelope(n, a, "name", "arguments"))
                })
            },
            ..WRITER
        },
        Writer {
            format: "hermes",
            reasoning: "kimi",
            think: ("◁think▷", "◁/think▷"),
            write: |calls| format!("<tool_call>\n{}\n</tool_call>", list(calls, "name", "arguments")),
            ..WRITER
        },
    ]
}

/// An answer as this writer's models write it.
pub fn answer(writer: &Writer, wanted: &Wanted) -> String {
    let mut text = String::new();
    if !wanted.reasoning.is_empty() {
        text = format!("{}{}{}", writer.think.0, wanted.reasoning, writer.think.1);
    }
    text.push_str(&wanted.before);
    if !wanted.calls.is_empty() {
        text.push_str(&(writer.write)(&wanted.calls));
    }
    text + &wanted.after
}

pub fn harmony(wanted: &Wanted) -> String {
    let mut messages = Vec::new();
    if !wanted.reasoning.is_empty() {
        messages.push(format!("<|channel|>analysis<|message|>{}<|end|>", wanted.reasoning));
    }
    if !wanted.before.is_empty() {
        messages.push(format!("<|channel|>commentary<|message|>{}<|end|>", wanted.before));
    }
    for (at, (name, arguments)) in wanted.calls.iter().enumerate() {
        let arguments = json(&arguments.clone().into());
        messages.push(match at % 3 {
            0 => format!(
                "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
            ),
            1 => format!(" to=functions.{name}<|channel|>commentary json<|message|>{arguments}<|call|>"),
            _ => format!("<|channel|>commentary to=functions.{name}<|message|>{arguments}<|call|>"),
        });
    }
    if !wanted.after.is_empty() {
        messages.push(format!("<|channel|>final<|message|>{}<|return|>", wanted.after));
    }
    messages.join("<|start|>assistant")
}

pub fn inkling(wanted: &Wanted) -> String {
    let mut messages = Vec::new();
    if !wanted.reasoning.is_empty() {
        messages.push(format!("<|content_thinking|>{}<|end_message|>", wanted.reasoning));
    }
    if !wanted.before.is_empty() {
        messages.push(format!("<|content_text|>{}<|end_message|>", wanted.before));
    }
    for (at, (name, arguments)) in wanted.calls.iter().enumerate() {
        let arguments = json(&arguments.clone().into());
        let named = if at % 3 == 2 { "" } else { name };
        messages.push(format!(
            "{named}<|content_invoke_tool_json|>{{\"name\":\"{name}\",\"args\":{arguments}}}<|end_message|>"
        ));
    }
    if !wanted.after.is_empty() {
        messages.push(format!("<|content_text|>{}<|content_model_end_sampling|>", wanted.after));
    }
    messages.join("<|message_model|>")
}

fn each(calls: Calls, between: &str, write: impl Fn(&str, &Map<String, Value>) -> String) -> String {
    calls.iter().map(|(name, arguments)| write(name, arguments)).collect::<Vec<_>>().join(between)
}

fn json(value: &Value) -> String {
    value.to_string()
}

fn envelope(name: &str, arguments: &Map<String, Value>, name_key: &str, arguments_key: &str) -> String {
    format!(
        "{{\"{name_key}\": {}, \"{arguments_key}\": {}}}",
        json(&name.into()),
        json(&arguments.clone().into())
    )
}

fn list(calls: Calls, name_key: &str, arguments_key: &str) -> String {
    format!("[{}]", each(calls, ", ", |name, arguments| envelope(name, arguments, name_key, arguments_key)))
}

fn elements(arguments: &Map<String, Value>, write: impl Fn(&str, &str) -> String) -> String {
    let element = |(key, value): (&String, &Value)| match value {
        Value::String(text) => write(key, text),
        value => write(key, &json(value)),
    };
    arguments.iter().map(element).collect()
}

fn dsml(section: &str, calls: Calls) -> String {
    let parameter = |(key, value): (&String, &Value)| {
        let (text, value) = match value {
            Value::String(text) => (true, text.clone()),
            value => (false, json(value)),
        };
        format!("<｜DSML｜parameter name=\"{key}\" string=\"{text}\">{value}</｜DSML｜parameter>\n")
    };
    let calls = each(calls, "\n", |name, arguments| {
        let parameters: String = arguments.iter().map(parameter).collect();
        format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}</｜DSML｜invoke>")
    });
    format!("<｜DSML｜{section}>\n{calls}\n</｜DSML｜{section}>")
}

fn m3(key: &str, value: &Value) -> String {
    let inside = match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(|item| m3("item", item)).collect(),
        Value::Object(entries) => entries.iter().map(|(key, value)| m3(key, value)).collect(),
        value => json(value),
    };
    format!("]<]minimax[>[<{key}>{inside}]<]minimax[>[</{key}>")
}

fn braces(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(|item| braces(item, quote)).collect::<Vec<_>>().join(","))
        }
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{key}:{}", braces(value, quote)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
        }
        value => json(value),
    }
}

fn call(name: &str, arguments: &Map<String, Value>) -> String {
    let arguments = arguments.iter().map(|(key, value)| format!("{key}={}", python(value)));
    format!("{name}({})", arguments.collect::<Vec<_>>().join(", "))
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => {
            let quote = if text.len() % 2 == 0 { '\'' } else { '"' };
            let escaped =
                text.replace('\\', "\\\\").replace('\n', "\\n").replace(quote, &format!("\\{quote}"));
            format!("{quote}{escaped}{quote}")
        }
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("'{key}': {}", python(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}
