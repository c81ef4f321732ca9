"""Haystack 2: the generators of plain text, `HuggingFaceAPIGenerator` and `OpenAIGenerator`, which Haystack 3 no
longer has. The first passes `stop_sequences`, which `huggingface_hub` 2 does not take any more."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from haystack.components.generators import HuggingFaceAPIGenerator, OpenAIGenerator
from haystack.dataclasses import StreamingChunk
from haystack.utils import Secret
from huggingface_hub.errors import HfHubHTTPError, OverloadedError, UnknownError, ValidationError

from conftest import Guarded
from prompts import ADD, REPEAT, as_text


def hugging_face(url: str, key: str | None = None, **options: Any) -> HuggingFaceAPIGenerator:
    return HuggingFaceAPIGenerator(
        api_type="text_generation_inference",
        api_params={"url": url},
        token=Secret.from_token(key) if key else None,
        generation_kwargs={"max_new_tokens": 8, "return_full_text": False, **options},
    )


def plain_openai(url: str, key: str = "unused", **options: Any) -> OpenAIGenerator:
    return OpenAIGenerator(
        api_base_url=f"{url}/v1",
        api_key=Secret.from_token(key),
        model="tgi",
        max_retries=0,
        timeout=120.0,
        generation_kwargs={"max_tokens": 8, "temperature": 0.0, **options},
    )


@pytest.mark.golden
def test_a_text(url: str) -> None:
    answer = hugging_face(url).run(as_text(ADD))
    assert answer["replies"][0]
    assert answer["meta"][0]["usage"]["completion_tokens"] > 0


@pytest.mark.golden
def test_a_text_with_every_option(url: str) -> None:
    options: dict[str, Any] = {
        "do_sample": True,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "seed": 11,
        "stop_sequences": ["never", "seen"],
        "temperature": 0.7,
        "top_k": 5,
        "top_n_tokens": 2,
        "top_p": 0.9,
        "truncate": 20,
        "typical_p": 0.9,
    }
    first, second = (hugging_face(url, **options).run(as_text(ADD))["replies"] for _ in range(2))
    assert first == second, "the seed"


@pytest.mark.golden
def test_a_stream(url: str) -> None:
    pieces: list[StreamingChunk] = []
    streamed = hugging_face(url).run(as_text(REPEAT), streaming_callback=pieces.append)["replies"]
    assert streamed == hugging_face(url).run(as_text(REPEAT))["replies"]
    assert "".join(piece.content for piece in pieces) == streamed[0]


@pytest.mark.golden
def test_openai(url: str) -> None:
    pieces: list[StreamingChunk] = []
    whole = plain_openai(url).run(ADD)["replies"]
    assert plain_openai(url).run(ADD, streaming_callback=pieces.append)["replies"] == whole
    assert "".join(piece.content for piece in pieces) == whole[0]


def test_errors(url: str, guarded: Guarded, busy: Guarded, starting: str) -> None:
    with pytest.raises(ValidationError, match="top_p"):
        hugging_face(url, top_p=2.0).run("x")
    with pytest.raises(UnknownError, match="not valid"):
        hugging_face(guarded.url, "wrong").run("x")
    with pytest.raises(OverloadedError, match="overloaded"):
        hugging_face(busy.url, busy.key).run("x")
    with pytest.raises(HfHubHTTPError, match="starting"):
        hugging_face(starting).run("x")
    with pytest.raises(openai.UnprocessableEntityError, match="top_p"):
        plain_openai(url, top_p=2.0).run("x")
