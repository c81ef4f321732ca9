"""Writes chat_templates.json beside this file: templates of the shapes that matter, chats, and what
transformers makes of them. `prompt::template` must make the same. Run by hand when a case is added:
python router/tests/golden/chat_templates.py
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

Chat = list[dict[str, Any]]

CHATML = """{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
<|im_start|>system
You help.<|im_end|>
    {% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time, please.") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("Roles must alternate user/assistant/user/assistant.") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

THINKING = """{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and message.content is string and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {{- '[' ~ index ~ ']' }}{% break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else (message.content | map(attribute='text') | join(' ')) %}
    {%- if message.role == "assistant" %}
        {%- if message.reasoning_content is defined %}
            {{- '<think>' ~ message.reasoning_content.strip('\\n') ~ '</think>' }}
        {%- elif '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- generation -%}
        {{- '<a>' ~ content ~ '</a>' }}
        {%- endgeneration -%}
    {%- else %}
        {{- '<' ~ message.role[0] ~ '>' ~ content ~ '</' ~ message.role[0] ~ '>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<a>' }}{% if enable_thinking is defined and enable_thinking is false %}{{ '<think></think>' }}{% endif %}{% endif %}"""

PRINTING = """{{ messages[0].content }}|{{ messages[0] | tojson }}|{{ messages[0] | tojson(indent=2) }}|{{ true }}|{{ none }}|{{ 1.0 }}|{{ 3 // 2 }}
|{{ messages[0].extra }}|{{ messages[0].extra | tojson(sort_keys=true) }}|{{ missing }}|{{ [1, 'a', none, 1e-7] }}
|{% for key, value in messages[0].extra.items() %}{{ key }}={{ value }};{% endfor %}
|{{ messages[0].extra.get('nothing', 'else') }}|{{ 'a b  c'.split() }}|{{ 'title case'.title() }}|{{ "x".join(['1', '2']) }}
|{{ messages | length }}|{{ 'é<&>"' | tojson }}|{{ dict(a=1) | tojson(separators=(',', ':')) }}|{{ messages[0].content is sequence }}
|{% if messages[0].extra is mapping %}mapping{% endif %}|{{ 'prefix-x'.removeprefix('prefix-') }}
|   {%- generation %} inside {% endgeneration -%}   |{% generation %}
next{% endgeneration %}

  {% if true %}
  block on its own line
  {% endif %}
  {# a comment #}
end
"""

TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "zephyr": ZEPHYR,
    "thinking": THINKING,
    "printing": PRINTING,
}

USER: dict[str, Any] = {"role": "user", "content": " What is 1+1? "}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief.\n"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "It is 2. "}
OPEN: dict[str, Any] = {"role": "assistant", "content": "It is"}
PARTS: dict[str, Any] = {
    "role": "user",
    "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
}
THOUGHT: dict[str, Any] = {"role": "assistant", "content": "<think>hm</think>\n\nIt is 2.", "name": None}
REASONED: dict[str, Any] = {"role": "assistant", "content": "2", "reasoning": "\n1 and 1\n"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "é<2>"}}}],
}
RESULT: dict[str, Any] = {"role": "tool", "content": [{"sum": 2}]}
ODD: dict[str, Any] = {
    "role": "user",
    "content": 'it\'s "odd"\n',
    "extra": {"z": [1, 2.50, True, None, "it's"], "a": {"é": "\t"}, "m": 1e20},
}

PLAIN = [USER]
TURNS = [SYSTEM, USER, ANSWER, USER]

CASES: list[tuple[str, Chat, dict[str, Any]]] = [
    *(
        (name, chat, {"add_generation_prompt": True})
        for name in ("chatml", "llama3", "mistral", "zephyr")
        for chat in (PLAIN, TURNS)
    ),
    *(
        (name, [USER, OPEN], {"continue_final_message": True})
        for name in ("chatml", "llama3", "mistral", "zephyr", "thinking")
    ),
    *(
        (name, [USER, ANSWER], {"continue_final_message": True})
        for name in ("chatml", "llama3", "mistral", "thinking")
    ),
    ("chatml", [USER, ANSWER], {"add_generation_prompt": False}),
    ("llama3", [USER, CALL, RESULT], {"add_generation_prompt": True}),
    ("llama3", PLAIN, {"add_generation_prompt": True, "date_string": "today"}),
    ("thinking", [USER, THOUGHT, PARTS], {"add_generation_prompt": True}),
    ("thinking", [USER, REASONED, USER], {"add_generation_prompt": True, "enable_thinking": False}),
    ("thinking", [{"role": "user", "content": "a"}, {"role": "user", "content": "<tool>b</tool>"}], {}),
    ("printing", [ODD], {}),
]


def main() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer.bos_token, tokenizer.eos_token = tokens["bos_token"], tokens["eos_token"]
    cases = []
    for name, chat, options in CASES:
        expected = tokenizer.apply_chat_template(
            chat, chat_template=TEMPLATES[name], tokenize=False, **options
        )
        cases.append({"template": name, "messages": chat, "options": options, "expected": expected})
    golden = {"tokens": tokens, "templates": TEMPLATES, "cases": cases}
    file = Path(__file__).with_suffix(".json")
    file.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
