"""The chat template of the tiny model, and the same layout in plain Python for making training text.

`CHAT_TEMPLATE` is what is shipped and what every server renders; `render` must give the same text (a test
compares them). Kept to Jinja that transformers and minijinja both know.

A tool is shown as one line, its description and then its signature, not as its JSON schema: a fifth of the
tokens. The call the model writes is JSON, as elsewhere.
"""

import json
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)

_TOOLS_HEAD = "You can call these tools:"

CHAT_TEMPLATE = """{%- macro text(content) -%}
{%- if content is string -%}
{{- content -}}
{%- elif content is mapping -%}
{{- content | tojson -}}
{%- elif content is iterable -%}
{%- for part in content -%}
{%- if part is string -%}{{- part -}}{%- elif part.text is defined -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- elif content is defined and content is not none -%}
{{- content -}}
{%- endif -%}
{%- endmacro -%}
{%- set first = 0 -%}
{%- if messages and messages[0].role == 'system' -%}
{%- set first = 1 -%}
{%- endif -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if first -%}
{{- text(messages[0].content) ~ '\\n\\n' -}}
{%- endif -%}
{{- 'TOOLS_HEAD' -}}
{%- for tool in tools -%}
{%- set function = tool.function if tool.function is defined else tool -%}
{{- '\\n' -}}
{%- if function.description -%}{{- function.description ~ ': ' -}}{%- endif -%}
{{- function.name ~ '(' -}}
{%- if function.parameters is mapping and function.parameters.properties is mapping -%}
{%- for name in function.parameters.properties -%}
{%- set kind = function.parameters.properties[name].type -%}
{{- name ~ ': ' ~ (kind if kind is string else 'any') -}}
{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- ')' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif first -%}
{{- '<|im_start|>system\\n' ~ text(messages[0].content) ~ '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if not (loop.first and first) -%}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ text(message.content) -}}
{%- if message.tool_calls is defined and message.tool_calls -%}
{%- for tool_call in message.tool_calls -%}
{%- if tool_call.function is defined -%}
{%- set call = tool_call.function -%}
{%- else -%}
{%- set call = tool_call -%}
{%- endif -%}
{%- if message.content or not loop.first -%}
{{- '\\n' -}}
{%- endif -%}
{{- '<tool_call>\\n{"name": ' ~ (call.name | tojson) ~ ', "arguments": ' -}}
{%- if call.arguments is string -%}
{{- call.arguments -}}
{%- else -%}
{{- call.arguments | tojson -}}
{%- endif -%}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
""".replace("TOOLS_HEAD", _TOOLS_HEAD).strip()


def tool_call_text(name: str, arguments: dict[str, Any]) -> str:
    """What the assistant writes to call a tool."""
    return f'<tool_call>\n{{"name": {_json(name)}, "arguments": {_json(arguments)}}}\n</tool_call>'


def tool_line(tool: Tool) -> str:
    """A tool as the model reads it: `Get the weather in a city: get_weather(city: string)`."""
    listed = tool.get("parameters", {}).get("properties", {})
    kinds = {name: prop.get("type") for name, prop in listed.items()}
    parameters = ", ".join(
        f"{name}: {kind if isinstance(kind, str) else 'any'}" for name, kind in kinds.items()
    )
    description = tool.get("description")
    return (f"{description}: " if description else "") + f"{tool['name']}({parameters})"


def system_text(system: str | None, tools: Sequence[Tool]) -> str | None:
    """The content of the system turn, or None when there is none. Tools are what stands under `function`."""
    if not tools:
        return system
    head = f"{system}\n\n" if system is not None else ""
    return head + "\n".join([_TOOLS_HEAD, *map(tool_line, tools)])


def turn_text(message: Message) -> str:
    """The content of one turn that is not the system turn."""
    text = message.get("content") or ""
    for index, tool_call in enumerate(message.get("tool_calls") or ()):
        call = tool_call["function"]
        text += "\n" if text or index else ""
        text += tool_call_text(call["name"], call["arguments"])
    return str(text)


def segments(messages: Sequence[Message], tools: Sequence[Tool]) -> list[tuple[str, bool]]:
    """The whole conversation as pieces of text; True marks what the model has to learn to write."""
    pieces: list[tuple[str, bool]] = []
    system = None
    if messages and messages[0]["role"] == "system":
        system = messages[0]["content"]
        messages = messages[1:]
    head = system_text(system, tools)
    if head is not None:
        pieces.append((f"{IM_START}system\n{head}{IM_END}\n", False))
    for message in messages:
        pieces.append((f"{IM_START}{message['role']}\n", False))
        own = message["role"] == "assistant"
        pieces.append((turn_text(message) + IM_END, own))
        pieces.append(("\n", False))
    return pieces


def render(messages: Sequence[Message], tools: Sequence[Tool], add_generation_prompt: bool) -> str:
    """The text that `CHAT_TEMPLATE` gives for the same input."""
    text = "".join(piece for piece, _ in segments(messages, tools))
    return text + (f"{IM_START}assistant\n" if add_generation_prompt else "")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
