//! The formats, as data. docs/tool-calls.md says which models write them and where they are described.

use crate::formats::{
    Arguments, Body, Call, Closes, EndsAtCall, Envelope, Name, Parameters, ReasoningFormat, Section,
    ToolFormat, Unknown,
};
use crate::inkling;

/// Templates are compared in this order: a format whose signs another has too stands after it.
pub(crate) static TOOLS: &[ToolFormat] = &[
    ToolFormat {
        name: "harmony",
        aliases: &["gpt_oss", "gpt-oss", "openai"],
        signs: &[&["<|channel|>", "<|message|>", "<|start|>"]],
        calls: &[Call { open: &[], close: &[], body: Body::Harmony }],
        ..FORMAT
    },
    ToolFormat {
        name: "inkling",
        aliases: &[],
        signs: &[&["<|content_thinking|>", "<|message_model|>"]],
        calls: &[Call { open: &[], close: &[], body: Body::Inkling }],
        ..FORMAT
    },
    ToolFormat {
        name: "kimi_k3",
        aliases: &[],
        signs: &[&["<|open|>", "<|sep|>", "tools"]],
        section: Some(Section { open: &["<|open|>tools<|sep|>"], close: &["<|close|>tools<|sep|>"] }),
        calls: &[
            Call {
                open: &["<|open|>call "],
                close: &["<|close|>call<|sep|>"],
                body: Body::Named(
                    Name { ends: &["<|sep|>"], attribute: Some("tool"), ..NAME },
                    Arguments::Parameters(Parameters {
                        open: "<|open|>argument ",
                        head_ends: &["<|sep|>"],
                        key: Some("key"),
                        kind: Some(("type", "string")),
                        closes: Closes::Markers(&["<|close|>argument<|sep|>"]),
                        ..PARAMETERS
                    }),
                ),
            },
            Call {
                open: &["<|open|>call "],
                close: &["<|close|>json<|sep|><|close|>call<|sep|>"],
                body: Body::Named(
                    Name {
                        ends: &["<|sep|><|open|>json type=\"object\"<|sep|>"],
                        attribute: Some("tool"),
                        ..NAME
                    },
                    Arguments::Json,
                ),
            },
        ],
        silent: KIMI_K3_ANSWER,
        ..FORMAT
    },
    ToolFormat {
        name: "kimi_k2",
        aliases: &["kimi"],
        signs: &[&["<|tool_calls_section_begin|>"]],
        section: Some(Section {
            open: &["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"],
            close: &["<|tool_calls_section_end|>", "<|tool_call_section_end|>"],
        }),
        calls: &[Call {
            open: &["<|tool_call_begin|>"],
            close: &["<|tool_call_end|>"],
            body: Body::Named(
                Name {
                    ends: &["<|tool_call_argument_begin|>"],
                    prefix: "functions.",
                    cut: Some(":"),
                    ..NAME
                },
                Arguments::Json,
            ),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "solar_open",
        aliases: &[],
        signs: &[&["<|tool_call:begin|>"]],
        // What closes the section ends the answer, as a token.
        section: Some(Section { open: &["<|tool_calls|>"], close: &["<|calls|>"] }),
        calls: &[Call {
            open: &["<|tool_call:begin|>"],
            close: &["<|tool_call:end|>"],
            body: Body::Named(
                Name { ends: &["<|tool_call:args|>"], id_end: Some("<|tool_call:name|>"), ..NAME },
                Arguments::Json,
            ),
        }],
        silent: SOLAR_OPEN_TURNS,
        ..FORMAT
    },
    ToolFormat {
        name: "deepseek_v4",
        aliases: &["deepseekv4"],
        signs: &[&["｜DSML｜", "tool_calls>"]],
        section: Some(Section { open: &["<｜DSML｜tool_calls>"], close: &["</｜DSML｜tool_calls>"] }),
        calls: DSML,
        ..FORMAT
    },
    ToolFormat {
        name: "deepseek_v32",
        aliases: &["deepseekv32", "deepseek_v3_2"],
        signs: &[&["｜DSML｜"]],
        section: Some(Section {
            open: &["<｜DSML｜function_calls>"], close: &["</｜DSML｜function_calls>"]
        }),
        calls: DSML,
        ..FORMAT
    },
    ToolFormat {
        name: "deepseek_v3",
        aliases: &["deepseekv3", "deepseek_r1"],
        signs: &[&["<｜tool▁calls▁begin｜>", "```json"]],
        section: DEEPSEEK_SECTION,
        calls: DEEPSEEK_CALLS,
        ..FORMAT
    },
    ToolFormat {
        name: "deepseek_v31",
        aliases: &["deepseekv31", "deepseek_v3_1"],
        signs: &[&["<｜tool▁calls▁begin｜>"]],
        section: DEEPSEEK_SECTION,
        calls: DEEPSEEK_CALLS,
        ..FORMAT
    },
    ToolFormat {
        name: "step3",
        aliases: &[],
        signs: &[&["<steptml:invoke"]],
        section: Some(Section { open: &["<｜tool_calls_begin｜>"], close: &["<｜tool_calls_end｜>"] }),
        calls: &[Call {
            open: &["<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke "],
            close: &["</steptml:invoke><｜tool_call_end｜>", "</steptml:invoke>"],
            body: Body::Named(
                Name { ends: &[">"], attribute: Some("name"), ..NAME },
                Arguments::Parameters(Parameters {
                    open: "<steptml:parameter ",
                    head_ends: &[">"],
                    key: Some("name"),
                    closes: Closes::Markers(&["</steptml:parameter>"]),
                    ..PARAMETERS
                }),
            ),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "minimax_m3",
        aliases: &["minimax-m3"],
        signs: &[&["]<]minimax[>["]],
        section: Some(Section { open: &["]<]minimax[>[<tool_call>"], close: &["]<]minimax[>[</tool_call>"] }),
        calls: &[Call {
            open: &["]<]minimax[>[<invoke "],
            close: &["]<]minimax[>[</invoke>"],
            body: Body::Named(
                Name { ends: &[">"], attribute: Some("name"), ..NAME },
                Arguments::Parameters(Parameters {
                    open: "]<]minimax[>[<",
                    head_ends: &[">"],
                    closes: Closes::Key("]<]minimax[>[</", ">"),
                    ..PARAMETERS
                }),
            ),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "minimax_m2",
        aliases: &["minimax-m2", "minimax"],
        signs: &[&["<minimax:tool_call>"]],
        section: Some(Section { open: &["<minimax:tool_call>"], close: &["</minimax:tool_call>"] }),
        calls: &[Call {
            open: &["<invoke "],
            close: &["</invoke>"],
            body: Body::Named(
                Name { ends: &[">"], attribute: Some("name"), ..NAME },
                // Its template writes values with nothing around them: their line breaks are their own.
                Arguments::Parameters(Parameters {
                    open: "<parameter ",
                    head_ends: &[">"],
                    key: Some("name"),
                    closes: Closes::Markers(&["</parameter>"]),
                    ..PARAMETERS
                }),
            ),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "gigachat3",
        aliases: &["gigachat"],
        signs: &[&["<|role_sep|>", "function call"]],
        calls: &[Call {
            open: &["<|message_sep|>\n\nfunction call<|role_sep|>\n", "<|function_call|>"],
            close: &["<|message_sep|>\n\n", "<|message_sep|>"],
            body: Body::Envelope(Envelope { optional_arguments: false, ..ENVELOPE }),
        }],
        end: "<|message_sep|>\n\n",
        ..FORMAT
    },
    ToolFormat {
        name: "hyperclovax",
        aliases: &["hcx", "hyperclovax_seed_think_14b"],
        signs: &[&["tool/function_call"]],
        calls: &[Call {
            // Of a message's head what follows the role.
            open: &["-> tool/function_call\n"],
            close: &["<|im_end|>"],
            body: Body::Envelope(Envelope { arguments: &["arguments", "parameters", "input"], ..ENVELOPE }),
        }],
        silent: HYPERCLOVAX_MESSAGES,
        // Its model card has clients ask for both.
        stop_tokens: &["<|stop|>", "<|endofturn|>"],
        ..FORMAT
    },
    ToolFormat {
        name: "seed_oss",
        aliases: &["seed-oss"],
        signs: &[&["<seed:tool_call>"]],
        section: Some(Section { open: &["<seed:tool_call>"], close: &["</seed:tool_call>"] }),
        calls: &[Call {
            open: &["<function="],
            close: &["</function>"],
            body: Body::Named(
                Name { ends: &[">"], ..NAME },
                // As of MiniMax M2.
                Arguments::Parameters(Parameters {
                    head_ends: &[">"],
                    closes: Closes::Markers(&["</parameter>"]),
                    ..FUNCTION_PARAMETERS
                }),
            ),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "mimo",
        aliases: &[],
        signs: &[
            &["<function=", "preserved exactly as-is"],
            &["<parameter=example_parameter_1>value_1</parameter>"],
        ],
        section: Some(Section { open: &["<tool_call>"], close: &["</tool_call>"] }),
        calls: &[Call {
            open: &["<function="],
            close: &["</function>"],
            body: Body::Named(
                Name { ends: &[">"], ..NAME },
                // As of MiniMax M2.
                Arguments::Parameters(Parameters {
                    open: "<parameter=",
                    head_ends: &[">"],
                    closes: Closes::Markers(&["</parameter>"]),
                    ..PARAMETERS
                }),
            ),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "qwen3_coder",
        aliases: &["qwen3_xml", "qwen3-coder", "step3p5", "step_3_5", "nemotron_v3"],
        signs: &[&["<function=", "<parameter="]],
        section: Some(Section { open: &["<tool_call>"], close: &["</tool_call>"] }),
        calls: FUNCTION_ELEMENTS,
        ..FORMAT
    },
    ToolFormat {
        name: "hunyuan_v3",
        aliases: &["hunyuan", "hy_v3"],
        signs: &[&["<tool_sep", "<arg_key"]],
        section: Some(Section {
            open: &["<tool_calls>", "<tool_calls:opensource>"],
            close: &["</tool_calls>", "</tool_calls:opensource>"],
        }),
        calls: &[
            Call {
                open: &["<tool_call>"],
                close: &["</tool_call>"],
                body: Body::Named(Name { ends: &["<tool_sep>"], ..NAME }, ARGUMENT_ELEMENTS),
            },
            Call {
                open: &["<tool_call:opensource>"],
                close: &["</tool_call:opensource>"],
                body: Body::Named(
                    Name { ends: &["<tool_sep:opensource>"], ..NAME },
                    Arguments::Parameters(Parameters {
                        open: "<arg_key:opensource>",
                        head_ends: &["</arg_key:opensource>"],
                        value_open: Some("<arg_value:opensource>"),
                        closes: Closes::Markers(&["</arg_value:opensource>"]),
                        unknown: Unknown::Json,
                        ..PARAMETERS
                    }),
                ),
            },
        ],
        ..FORMAT
    },
    ToolFormat {
        name: "longcat",
        aliases: &[],
        signs: &[&["<longcat_tool_call>"]],
        calls: &[
            Call {
                open: &["<longcat_tool_call>"],
                close: &["</longcat_tool_call>"],
                body: Body::Envelope(ENVELOPE),
            },
            Call {
                open: &["<longcat_tool_call>"],
                close: &["</longcat_tool_call>"],
                body: Body::Named(
                    Name { ends: &["\n"], stops: &["<longcat_arg_key>", "</longcat_tool_call>"], ..NAME },
                    Arguments::Parameters(Parameters {
                        open: "<longcat_arg_key>",
                        head_ends: &["</longcat_arg_key>"],
                        value_open: Some("<longcat_arg_value>"),
                        closes: Closes::Markers(&["</longcat_arg_value>"]),
                        unknown: Unknown::Json,
                        ..PARAMETERS
                    }),
                ),
            },
        ],
        ..FORMAT
    },
    ToolFormat {
        name: "glm45",
        aliases: &["glm", "glm4_moe", "glm46", "glm47", "glm5", "poolside_v1"],
        signs: &[&["<arg_key>"]],
        calls: &[Call {
            open: &["<tool_call>"],
            close: &["</tool_call>"],
            body: Body::Named(
                Name { ends: &["\n"], stops: &["<arg_key>", "</tool_call>"], ..NAME },
                ARGUMENT_ELEMENTS,
            ),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "gemma4",
        aliases: &["gemma"],
        signs: &[&["<|tool_call>"]],
        calls: &[Call {
            open: &["<|tool_call>call:"],
            close: &["<tool_call|>"],
            body: Body::Named(Name { stops: &["{"], ..NAME }, Arguments::Braces("<|\"|>")),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "functiongemma",
        aliases: &["function_gemma"],
        signs: &[&["<start_function_call>"]],
        calls: &[Call {
            open: &["<start_function_call>call:"],
            close: &["<end_function_call>"],
            body: Body::Named(Name { stops: &["{"], ..NAME }, Arguments::Braces("<escape>")),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "lfm2",
        aliases: &[],
        // The first templates of LFM2.5 have no marker.
        signs: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"], &["List of tools: [", "<|im_start|>"]],
        calls: &[
            Call { open: &["<|tool_call_start|>"], close: &["<|tool_call_end|>"], body: Body::Python },
            Call {
                open: &["<|tool_call_start|>"],
                close: &["<|tool_call_end|>"],
                body: Body::Envelope(ENVELOPE),
            },
        ],
        ..FORMAT
    },
    ToolFormat {
        name: "olmo3",
        aliases: &[],
        signs: &[&["<function_calls>"]],
        calls: &[Call { open: &["<function_calls>"], close: &["</function_calls>"], body: Body::Python }],
        ..FORMAT
    },
    ToolFormat {
        name: "command_a",
        aliases: &["cohere_command3", "cohere_command4", "command_r7b"],
        signs: &[&["<|START_ACTION|>"]],
        calls: &[Call {
            open: &["<|START_ACTION|>"],
            close: &["<|END_ACTION|>"],
            body: Body::Envelope(Envelope { name: &["tool_name", "name"], ..ENVELOPE }),
        }],
        silent: COHERE_ANSWER,
        ..FORMAT
    },
    ToolFormat {
        name: "command_r",
        aliases: &[],
        signs: &[&["Action:", "tool_name"]],
        calls: &[Call {
            open: &["Action:\n```json\n", "Action: ```json\n", "Action:```json\n"],
            close: &["```"],
            body: Body::Envelope(Envelope { name: &["tool_name", "name"], ..ENVELOPE }),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "mistral",
        aliases: &[],
        signs: &[&["[TOOL_CALLS]"]],
        calls: &[
            Call { open: &["[TOOL_CALLS]"], close: &[], body: Body::Envelope(ENVELOPE) },
            Call {
                open: &["[TOOL_CALLS]"],
                close: &[],
                body: Body::Named(
                    Name { ends: &["[ARGS]"], stops: &["{"], cut: Some("[CALL_ID]"), ..NAME },
                    Arguments::Json,
                ),
            },
        ],
        ..FORMAT
    },
    ToolFormat {
        name: "nemotron",
        aliases: &["nemotron_json", "nemotron_nano_v2"],
        signs: &[&["<TOOLCALL>"]],
        calls: &[Call { open: &["<TOOLCALL>"], close: &["</TOOLCALL>"], body: Body::Envelope(ENVELOPE) }],
        ..FORMAT
    },
    ToolFormat {
        name: "internlm2",
        aliases: &["internlm", "intern_s1", "interns1"],
        signs: &[&["<|action_start|>"], &["<|plugin|>"]],
        calls: &[Call {
            open: &["<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"],
            close: &["<|action_end|>"],
            body: Body::Envelope(ENVELOPE),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "apertus",
        aliases: &["apertus2509"],
        signs: &[&["<|tools_prefix|>"]],
        calls: &[Call {
            open: &["<|tools_prefix|>"],
            close: &["<|tools_suffix|>"],
            body: Body::Envelope(Envelope { name: &[], arguments: &[], optional_arguments: false }),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "phi4_mini",
        aliases: &["phi4_mini_json", "phi4"],
        signs: &[&["<|/tool|>"], &["<|/tool_call|>"], &["functools"]],
        calls: &[
            Call { open: &["<|tool_call|>"], close: &["<|/tool_call|>"], body: Body::Envelope(ENVELOPE) },
            Call { open: &["functools"], close: &[], body: Body::Envelope(ENVELOPE) },
        ],
        ..FORMAT
    },
    ToolFormat {
        name: "granite",
        aliases: &["granite3"],
        signs: &[&["<|tool_call|>"], &["<|start_of_role|>available_tools"]],
        calls: &[
            Call { open: &["<|tool_call|>"], close: &[], body: Body::Envelope(ENVELOPE) },
            Call { open: &["<tool_call>"], close: &["</tool_call>"], body: Body::Envelope(ENVELOPE) },
        ],
        ..FORMAT
    },
    ToolFormat {
        name: "granite_20b_fc",
        aliases: &["granite-20b-fc"],
        signs: &[&["<function_call>"]],
        calls: &[Call {
            open: &["<function_call>"],
            close: &["</function_call>"],
            body: Body::Envelope(ENVELOPE),
        }],
        ..FORMAT
    },
    ToolFormat {
        name: "jamba",
        aliases: &["hunyuan_a13b"],
        signs: &[&["<tool_calls>"]],
        calls: &[Call { open: &["<tool_calls>"], close: &["</tool_calls>"], body: Body::Envelope(ENVELOPE) }],
        ..FORMAT
    },
    ToolFormat {
        name: "hermes",
        aliases: &["qwen", "qwen25", "qwen2_5", "qwen3", "granite4", "ernie45"],
        signs: &[&["<tool_call>"], &["<|im_start|>", "<tools>"]],
        calls: &[Call { open: &["<tool_call>"], close: &["</tool_call>"], body: Body::Envelope(ENVELOPE) }],
        ..FORMAT
    },
    ToolFormat {
        name: "pythonic",
        aliases: &["llama3_pythonic", "llama4_pythonic", "llama_pythonic"],
        signs: &[&["<|python_start|>"], &["func_name1("], &["<|start_header_id|>", ".name + \"(\""]],
        // Llama 4's own template asks for JSON.
        calls: &[
            Call { open: &["<|python_start|>"], close: &["<|python_end|>"], body: Body::Python },
            Call { open: &["<|python_start|>"], close: &["<|python_end|>"], body: Body::Envelope(ENVELOPE) },
            Call { open: &["<|python_tag|>", ""], close: &[], body: Body::Python },
            Call {
                open: &["<|python_tag|>", ""],
                close: &[],
                body: Body::Envelope(Envelope { optional_arguments: false, ..ENVELOPE }),
            },
        ],
        ..FORMAT
    },
    ToolFormat {
        name: "llama3_json",
        aliases: &["llama3", "llama_json", "llama4_json"],
        signs: &[
            &["<|python_tag|>"],
            &["<|start_header_id|>", "\"parameters\""],
            &["<|start_header_id|>", "ipython"],
        ],
        calls: &[Call {
            open: &["<|python_tag|>", ""],
            close: &[],
            body: Body::Envelope(Envelope { optional_arguments: false, ..ENVELOPE }),
        }],
        // In place of `<|eot_id|>` where the model waits for a result, and at times behind a text.
        stop_tokens: &["<|eom_id|>"],
        ..FORMAT
    },
    ToolFormat {
        name: "json",
        aliases: &["xlam", "generic"],
        // xLAM 2's template asks so.
        signs: &[&["in a single JSON array"]],
        calls: &[
            Call {
                open: &["```json\n", "```\n"],
                close: &["```"],
                body: Body::Envelope(Envelope { optional_arguments: false, ..ENVELOPE }),
            },
            Call { open: &["<tool_call>"], close: &["</tool_call>"], body: Body::Envelope(ENVELOPE) },
            Call { open: &["[TOOL_CALLS]"], close: &[], body: Body::Envelope(ENVELOPE) },
            Call {
                open: &[""],
                close: &[],
                body: Body::Envelope(Envelope { optional_arguments: false, ..ENVELOPE }),
            },
        ],
        ..FORMAT
    },
];

/// Templates are compared in this order.
pub(crate) static REASONING: &[ReasoningFormat] = &[
    ReasoningFormat {
        name: "harmony",
        aliases: &["gpt_oss", "gpt-oss", "openai_gptoss", "openai"],
        signs: &[&["<|channel|>", "<|message|>", "<|start|>"]],
        open: &[],
        close: &[],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "inkling",
        aliases: &[],
        signs: &[&["<|content_thinking|>", "<|message_model|>"]],
        open: &[inkling::THINKING],
        close: &["<|end_message|><|message_model|>", "<|end_message|>"],
        // Every message ends as reasoning does.
        off: &["<|content_thinking|><|end_message|><|message_model|>"],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "kimi_k3",
        aliases: &[],
        signs: &[&["<|open|>", "<|sep|>", "think"]],
        open: &["<|open|>think<|sep|>"],
        close: &["<|close|>think<|sep|>"],
        ends_at_call: EndsAtCall::Always,
        silent: KIMI_K3_ANSWER,
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "kimi_k2",
        aliases: &["kimi_k25"],
        signs: &[&["<|tool_calls_section_begin|>", "think>"]],
        open: &["<think>"],
        close: &["</think>"],
        ends_at_call: EndsAtCall::Always,
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "solar_open",
        aliases: &[],
        signs: &[&["<|think|>", "<|begin|>"]],
        open: &["<|think|>"],
        close: &["<|end|><|begin|>assistant", "<|end|>"],
        silent: SOLAR_OPEN_TURNS,
        // Every turn ends as reasoning does.
        off: &["<|think|><|end|><|begin|>assistant"],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "hyperclovax",
        aliases: &["hcx", "hyperclovax_seed_think_14b"],
        signs: &[&["tool/function_call", "/think"]],
        // Of a message's head what follows the role, as of a call.
        open: &["/think\n"],
        close: &["<|im_end|>\n<|im_start|>assistant", "<|im_end|>"],
        silent: HYPERCLOVAX_MESSAGES,
        // Every message ends as reasoning does.
        off: &["<|im_start|>assistant\n"],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "kimi",
        aliases: &["kimi_vl"],
        signs: &[&["◁think▷"]],
        open: &["◁think▷"],
        close: &["◁/think▷"],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "mistral",
        aliases: &["magistral"],
        signs: &[&["[THINK]"]],
        open: &["[THINK]"],
        close: &["[/THINK]"],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "command_a",
        aliases: &["cohere_command3", "cohere_command4", "command_r7b"],
        signs: &[&["<|START_THINKING|>"]],
        open: &["<|START_THINKING|>"],
        close: &["<|END_THINKING|>"],
        silent: COHERE_ANSWER,
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "seed_oss",
        aliases: &["seed-oss"],
        signs: &[&["<seed:think>"]],
        open: &["<seed:think>"],
        close: &["</seed:think>"],
        ends_at_call: EndsAtCall::IfLast,
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "gemma4",
        aliases: &["gemma"],
        signs: &[&["<|channel>"]],
        open: &["<|channel>thought\n", "<|channel>"],
        close: &["<channel|>"],
        ends_at_call: EndsAtCall::IfLast,
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "minimax_m3",
        aliases: &["minimax-m3"],
        signs: &[&["<mm:think>"]],
        open: &["<mm:think>"],
        close: &["</mm:think>"],
        ends_at_call: EndsAtCall::IfLast,
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "ernie45",
        aliases: &["granite33"],
        // Granite 3.3's speaks of a "thought process" as 3.2's does, whose format comes next.
        signs: &[
            &["<think></think>", "<response></response>", "<|start_of_role|>"],
            &["<global_setting>", "<response>"],
        ],
        open: &["<think>"],
        close: &["</think>"],
        silent: &["<response>\n", "<response>", "\n</response>\n", "\n</response>", "</response>"],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "granite",
        aliases: &["granite3"],
        signs: &[&["thought process", "<|start_of_role|>"]],
        open: &["Here is my thought process:", "Here's my thought process:"],
        close: &["Here is my response:", "Here's my response:"],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "apertus",
        aliases: &["apertus2509"],
        signs: &[&["<|inner_prefix|>"]],
        open: &["<|inner_prefix|>"],
        close: &["<|inner_suffix|>"],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "hunyuan_v3",
        aliases: &["hy_v3"],
        signs: &[&["<tool_sep", "<think"]],
        open: &["<think>", "<think:opensource>"],
        close: &["</think>", "</think:opensource>"],
        ends_at_call: EndsAtCall::IfLast,
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "hunyuan_a13b",
        aliases: &[],
        signs: &[&["<answer>", "<think>"]],
        open: &["<think>"],
        close: &["</think>"],
        silent: &["<answer>\n", "<answer>", "\n</answer>", "</answer>"],
        ..REASONING_FORMAT
    },
    ReasoningFormat {
        name: "think",
        aliases: &[
            "deepseek_r1",
            "deepseek_v3",
            "deepseek_v31",
            "deepseek_v32",
            "deepseek_v4",
            "qwen3",
            "qwq",
            "glm45",
            "glm47",
            "minimax_m2",
            "step3",
            "step3p5",
            "olmo3",
            "nemotron",
            "nemotron_v3",
            "lfm2",
            "longcat",
            "smollm3",
            "exaone4",
            "intern_s1",
            "mimo",
            "poolside_v1",
        ],
        signs: &[&["<think>"], &["</think>"]],
        open: &["<think>"],
        close: &["</think>"],
        ends_at_call: EndsAtCall::IfLast,
        ..REASONING_FORMAT
    },
];

const FORMAT: ToolFormat = ToolFormat {
    name: "",
    aliases: &[],
    signs: &[],
    section: None,
    calls: &[],
    silent: &[],
    end: "",
    stop_tokens: &[],
};

const REASONING_FORMAT: ReasoningFormat = ReasoningFormat {
    name: "",
    aliases: &[],
    signs: &[],
    open: &[],
    close: &[],
    ends_at_call: EndsAtCall::Never,
    silent: &[],
    off: &[],
};

const NAME: Name = Name { ends: &[], stops: &[], attribute: None, prefix: "", id_end: None, cut: None };

const ENVELOPE: Envelope =
    Envelope { name: &["name"], arguments: &["arguments", "parameters"], optional_arguments: true };

const PARAMETERS: Parameters = Parameters {
    open: "",
    head_ends: &[],
    key: None,
    kind: None,
    value_open: None,
    closes: Closes::Markers(&[]),
    may_stay_open: false,
    unknown: Unknown::Text,
};

const DEEPSEEK_SECTION: Option<Section> =
    Some(Section { open: &["<｜tool▁calls▁begin｜>"], close: &["<｜tool▁calls▁end｜>"] });

/// That of V3, and that of V3.1, which at times falls back to it.
const DEEPSEEK_CALLS: &[Call] = &[
    Call {
        open: &["<｜tool▁call▁begin｜>function<｜tool▁sep｜>"],
        close: &["```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"],
        body: Body::Named(Name { ends: &["```json"], stops: &["{"], ..NAME }, Arguments::Json),
    },
    Call {
        open: &["<｜tool▁call▁begin｜>"],
        close: &["<｜tool▁call▁end｜>"],
        body: Body::Named(Name { ends: &["<｜tool▁sep｜>"], ..NAME }, Arguments::Json),
    },
];

/// DeepSeek's markup language. V4 also writes arguments as one JSON object.
const DSML: &[Call] = &[
    Call {
        open: &["<｜DSML｜invoke "],
        close: &["</｜DSML｜invoke>"],
        body: Body::Named(
            Name { ends: &[">"], attribute: Some("name"), ..NAME },
            Arguments::Parameters(Parameters {
                open: "<｜DSML｜parameter ",
                head_ends: &[">"],
                key: Some("name"),
                kind: Some(("string", "true")),
                closes: Closes::Markers(&["</｜DSML｜parameter>"]),
                ..PARAMETERS
            }),
        ),
    },
    Call {
        open: &["<｜DSML｜invoke "],
        close: &["</｜DSML｜invoke>"],
        body: Body::Named(Name { ends: &[">"], attribute: Some("name"), ..NAME }, Arguments::Json),
    },
];

/// Qwen3-Coder's, which Step 3.5 took over.
const FUNCTION_ELEMENTS: &[Call] = &[Call {
    open: &["<function="],
    close: &["</function>"],
    body: Body::Named(Name { ends: &[">"], ..NAME }, Arguments::Parameters(FUNCTION_PARAMETERS)),
}];

/// Qwen3-Coder's, with line breaks around values.
const FUNCTION_PARAMETERS: Parameters = Parameters {
    open: "<parameter=",
    head_ends: &[">\n", ">"],
    closes: Closes::Markers(&["\n</parameter>", "</parameter>"]),
    may_stay_open: true,
    ..PARAMETERS
};

/// GLM's, which Hunyuan took over.
const ARGUMENT_ELEMENTS: Arguments = Arguments::Parameters(Parameters {
    open: "<arg_key>",
    head_ends: &["</arg_key>"],
    value_open: Some("<arg_value>"),
    closes: Closes::Markers(&["</arg_value>"]),
    unknown: Unknown::Json,
    ..PARAMETERS
});

const COHERE_ANSWER: &[&str] = &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"];

const KIMI_K3_ANSWER: &[&str] =
    &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"];

/// Of an answer each of reasoning, text and calls is a message. The space is a call's.
const HYPERCLOVAX_MESSAGES: &[&str] = &[
    "<|im_end|>\n<|im_start|>assistant ",
    "<|im_end|>\n<|im_start|>assistant",
    "<|im_start|>assistant ",
    "<|im_start|>assistant",
    "<|im_end|>",
];

/// Of an answer each of reasoning, text and calls is a turn.
const SOLAR_OPEN_TURNS: &[&str] =
    &["<|end|><|begin|>assistant", "<|begin|>assistant", "<|content|>", "<|end|>"];
