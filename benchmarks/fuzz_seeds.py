"""Whole, good requests of every route, which `fuzz.py` changes."""

from __future__ import annotations

from typing import Any

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "add 3 and 4"},
    {"role": "assistant", "content": "7"},
    {"role": "user", "content": [{"type": "text", "text": "and 5?"}]},
]
SCHEMA: dict[str, Any] = {
    "$defs": {"n": {"type": "integer", "minimum": -5, "maximum": 1e3, "multipleOf": 2}},
    "type": "object",
    "properties": {
        "a": {"$ref": "#/$defs/n"},
        "b": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"enum": [1, "x"]}]}, "maxItems": 2},
        "c": {"type": "string", "pattern": "^[a-z]{1,3}$", "minLength": 1, "not": {"const": "no"}},
        "d": {"type": "string", "format": "date", "description": "A day"},
    },
    "patternProperties": {"^x": {"oneOf": [{"type": "boolean"}, {"type": "number"}]}},
    "required": ["a"],
    "dependentRequired": {"c": ["d"]},
    "additionalProperties": False,
}
LARK = {
    "syntax": "lark",
    "definition": 'start: "a" NAME+ ("," NAME)* | /[0-9]{2,4}/\nNAME: /[a-z]/ | "\\n"\n',
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALLED = [
    *CHAT,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3, "b": [4]}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "7"},
]
GENERATE: dict[str, Any] = {
    "inputs": "add 3 and 4",
    "parameters": {
        "best_of": 1,
        "temperature": 0.7,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "top_k": 10,
        "top_p": 0.9,
        "typical_p": 0.95,
        "do_sample": True,
        "max_new_tokens": 4,
        "return_full_text": False,
        "stop": ["\n\n"],
        "truncate": 20,
        "watermark": False,
        "details": True,
        "decoder_input_details": False,
        "seed": 7,
        "top_n_tokens": 2,
        "grammar": None,
        "adapter_id": None,
        "max_time": 5.0,
    },
}
OPENAI: dict[str, Any] = {
    "model": "tgi",
    "max_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.01,
    "typical_p": 0.9,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "logit_bias": {"5": 1.5},
    "seed": 1,
    "stop": ["x"],
    "stop_token_ids": [3],
    "ignore_eos": False,
    "n": 1,
    "stream": False,
    "stream_options": {"include_usage": True},
    "user": "someone",
    "min_tokens": 0,
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "auto",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds",
            "parameters": SCHEMA,
            "strict": True,
        },
    },
    {"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": LARK}}},
]
RESPONSES: dict[str, Any] = {
    "model": "tgi",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "add 3 and 4"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "easy"}]},
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"a": 3, "b": [4]}'},
        {"type": "function_call_output", "call_id": "1", "output": "7"},
    ],
    "max_output_tokens": 6,
    "temperature": 0.5,
    "top_p": 0.9,
    "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}},
    "reasoning": {"effort": "low"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "store": False,
    "truncation": "disabled",
    "stream": False,
}
MESSAGES: dict[str, Any] = {
    "model": "tgi",
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "add 3 and 4"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "easy", "signature": "x"},
                {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 3, "b": [4]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "7"}]}
            ],
        },
    ],
    "tools": [{"name": "add", "description": "Adds", "input_schema": SCHEMA}],
}
ANSWERED: dict[str, Any] = {
    **MESSAGES,
    "max_tokens": 6,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "stop_sequences": ["x"],
    "thinking": {"type": "disabled"},
    "metadata": {"user_id": "someone"},
}
SEEDS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/generate", GENERATE),
    ("POST", "/generate_stream", {**GENERATE, "parameters": {"max_new_tokens": 4, "details": True}}),
    ("POST", "/", {**GENERATE, "stream": False}),
    ("POST", "/", {"inputs": "hello", "parameters": {"max_new_tokens": 4}, "stream": True}),
    ("POST", "/v1/chat/completions", {**OPENAI, "messages": CHAT, "logprobs": True, "top_logprobs": 2}),
    ("POST", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 4, "stream": True}),
    ("POST", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 4, "tools": [TOOL]}),
    ("POST", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 3, "chat_template_kwargs": {"a": 1}}),
    ("POST", "/v1/completions", {**OPENAI, "prompt": "add 3 and 4", "logprobs": 2, "echo": True}),
    ("POST", "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "stream": True}),
    ("POST", "/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": 3, "n": 2, "best_of": 2}),
    ("POST", "/generate", {**GENERATE, "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}),
    (
        "POST",
        "/generate",
        {**GENERATE, "parameters": {"grammar": {"type": "regex", "value": "(a|b{2,9})+[^x-z]?"}}},
    ),
    (
        "POST",
        "/generate",
        {**GENERATE, "parameters": {"grammar": {"type": "lark", "value": LARK["definition"]}}},
    ),
    (
        "POST",
        "/v1/completions",
        {"prompt": "x", "max_tokens": 4, "response_format": {"type": "regex", "value": "\\d+"}},
    ),
    (
        "POST",
        "/v1/chat/completions",
        {
            "messages": CHAT,
            "max_tokens": 6,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": SCHEMA, "strict": True},
            },
        },
    ),
    (
        "POST",
        "/v1/chat/completions",
        {"messages": CHAT, "max_tokens": 6, "response_format": {"type": "json_object"}},
    ),
    (
        "POST",
        "/v1/chat/completions",
        {"messages": CALLED, "max_tokens": 6, "tools": TOOLS, "tool_choice": "required"},
    ),
    (
        "POST",
        "/v1/chat/completions",
        {
            "messages": CALLED,
            "max_tokens": 6,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "add"}},
            "parallel_tool_calls": False,
            "stream": True,
        },
    ),
    (
        "POST",
        "/generate",
        {"inputs": "x", "parameters": {"grammar": {"type": "choice", "value": ["a", "bé", ""]}}},
    ),
    (
        "POST",
        "/v1/completions",
        {"prompt": "x", "max_tokens": 4, "structured_outputs": {"choice": ["yes", "no"]}},
    ),
    (
        "POST",
        "/v1/chat/completions",
        {"messages": CHAT, "max_tokens": 4, "guided_grammar": LARK["definition"]},
    ),
    (
        "POST",
        "/v1/chat/completions",
        {
            "messages": CALLED,
            "max_tokens": 6,
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "add"}}],
                },
            },
        },
    ),
    ("POST", "/v1/responses", RESPONSES),
    ("POST", "/v1/responses", {"input": "add 3 and 4", "max_output_tokens": 4, "stream": True}),
    (
        "POST",
        "/v1/responses",
        {
            "input": "add 3 and 4",
            "max_output_tokens": 6,
            "tools": [
                {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True},
                {"type": "custom", "name": "c", "format": {"type": "grammar", **LARK}},
            ],
            "tool_choice": {"type": "custom", "name": "c"},
            "stream": True,
        },
    ),
    ("POST", "/v1/messages", {**ANSWERED, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}),
    ("POST", "/v1/messages", {**ANSWERED, "tool_choice": {"type": "auto"}, "stream": True}),
    (
        "POST",
        "/v1/messages",
        {
            "messages": CHAT[1:3],
            "max_tokens": 6,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"},
        },
    ),
    ("POST", "/v1/messages/count_tokens", MESSAGES),
    ("POST", "/tokenize", GENERATE),
    ("POST", "/chat_tokenize", {"messages": CHAT}),
    ("POST", "/invocations", {"messages": CHAT, "max_tokens": 3}),
    ("POST", "/vertex", {"instances": [{"inputs": "x", "parameters": {"max_new_tokens": 3}}]}),
    ("POST", "/vertex", {"instances": [{"messages": CHAT, "max_tokens": 3}]}),
    (
        "POST",
        "/v2/models/x/infer",
        {
            "id": "1",
            "parameters": {"max_new_tokens": 3},
            "inputs": [{"name": "a", "shape": [1], "datatype": "BYTES", "data": ["x"]}],
            "outputs": [{"name": "b"}],
        },
    ),
    ("GET", "/v2/models/x", {}),
    ("GET", "/v1/models", {}),
    ("GET", "/v1/models/x", {}),
    ("GET", "/info", {}),
    ("GET", "/health", {}),
    ("GET", "/", {}),
]
