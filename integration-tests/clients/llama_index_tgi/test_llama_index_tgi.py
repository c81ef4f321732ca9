"""LlamaIndex's `TextGenerationInference`: deprecated in favour of the class that `../llama_index` tests, and still
to be had, with the LlamaIndex of its time."""

from __future__ import annotations

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.text_generation_inference import TextGenerationInference
from tgi.errors import UnknownError

from conftest import Guarded
from prompts import ADD

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def connect(url: str, **options: object) -> TextGenerationInference:
    return TextGenerationInference(model_url=url, **{"max_tokens": 8, "seed": "1", **options})


@pytest.mark.golden
def test_a_chat(url: str) -> None:
    llm = connect(url, temperature=0.5)
    assert llm.metadata.context_window == 2048, "it asks /info"
    first, second = (llm.chat([ChatMessage(role="user", content=ADD)]) for _ in range(2))
    assert first.message.content and first.message.content == second.message.content
    assert llm.complete(ADD).text


def test_errors_keep_their_message(url: str, guarded: Guarded) -> None:
    with pytest.raises(UnknownError, match="max_tokens"):
        connect(url, max_tokens=1_000_000).complete("x")
    with pytest.raises(UnknownError, match="not valid"):
        connect(guarded.url, token="wrong").complete("x")
