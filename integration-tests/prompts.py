"""What the tests ask for. Questions are of the kinds the shipped model was made to answer."""

from __future__ import annotations

from typing import Any

import wire


def user(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


def as_text(question: str) -> str:
    """The conversation as the shipped model's template writes it, for the routes that take plain text."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


ADD = "What is 2 + 3?"
REPEAT = "Repeat: apple river stone"
SORT = "Sort: pear apple cherry"
STREAM = "How do I stream tokens?"
PORT = "What does --port do?"
MODEL = "How do I serve another model?"

# For /v1/*: one of 40 tokens each time, as good as at random, however sure of its answer the model is.
WILD: dict[str, Any] = {"temperature": 2.0, "logit_bias": {str(token): 100 for token in range(400, 440)}}

# A round of tools, of the kind the shipped model was made for: it calls, reads the result, and answers from it.
WEATHER = "What is the weather in Paris?"
WEATHER_FUNCTION: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WEATHER_TOOL: dict[str, Any] = {"type": "function", "function": WEATHER_FUNCTION}
WEATHER_CALLED = ("get_weather", {"city": "Paris"})
WEATHER_RESULT = '{"temperature": 21, "condition": "sunny"}'
WEATHER_ANSWERED = "21"

QUESTIONS = (ADD, REPEAT, SORT, STREAM, PORT, MODEL, "Which is larger, 12 or 7?", "Who are you?")

# The model of `echoing` repeats what lies so many tokens before the end of its prompt, and ends at the first of these.
ECHO_TOKENS = 96
ECHO_END = "~"


def echoed(address: wire.Address, answer: str) -> str:
    """What makes it give this answer."""
    tokens = len(wire.post(address, "/tokenize", {"inputs": answer}).json())
    assert tokens < ECHO_TOKENS
    return answer + ECHO_END * (ECHO_TOKENS - tokens)
