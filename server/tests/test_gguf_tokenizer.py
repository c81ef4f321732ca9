"""What is made of a GGUF file's tokenizer where llama.cpp goes by more than the fields: tokens of users, names, ends of answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from penstock.gguf import tokenizer
from penstock.gguf.container import Header

LETTERS = ["Ġ", "a", "b", "Ċ"]


def header_of(name: str = "", **fields: Any) -> Header:
    more = {f"tokenizer.ggml.{field}": value for field, value in fields.items()}
    return Header(metadata={"general.name": name, **more}, tensors={}, folder=Path())


def byte_level(tokens: dict[str, int], **more: Any) -> Header:
    """Of these tokens by their kind, behind a few letters."""
    kinds = [1] * (len(LETTERS) + 1) + [*tokens.values()]
    return header_of(
        **{"model": "gpt2", "pre": "gpt-2", "merges": ["a b"]} | more,
        tokens=[*LETTERS, "ab", *tokens],
        token_type=kinds,
    )


def pieces(tokens: dict[str, int], **more: Any) -> Header:
    """The same of SentencePiece's."""
    texts = {"<unk>": 2, "▁": 1, "a": 1, "b": 1, "ab": 1} | tokens
    scores = [0.0, -3.0, -4.0, -5.0, -1.0, *[0.0] * len(tokens)]
    fields: dict[str, Any] = {
        "model": "llama",
        "scores": scores,
        "unknown_token_id": 0,
        "add_bos_token": False,
    }
    return header_of(**fields | more, tokens=[*texts], token_type=[*texts.values()])


def ids(header: Header, text: str) -> list[int]:
    return Tokenizer.from_str(json.dumps(tokenizer.make(header).tokenizer)).encode(text).ids


def test_runs_of_spaces_that_users_have_added_are_tokens_of_byte_level_vocabularies() -> None:
    """GPT-NeoX's, OLMo's and Phi 2's, which no merges lead to."""
    assert ids(byte_level({"    ": 4}), "a    b") == [1, 5, 2]


def test_a_token_of_users_has_its_spaces_as_a_text_has_them() -> None:
    found = ids(pieces({"<of two>": 4}, add_space_prefix=False), "a<of two>b")
    assert found == [2, 5, 3]


def test_merges_lead_to_runs_of_spaces_of_sentencepiece() -> None:
    assert ids(pieces({"  ": 4}, add_space_prefix=False), "a  b") == [2, 5, 3]


@pytest.mark.parametrize(("name", "spaces"), [("Phi 3 Mini", 1), ("Phi-3-mini-4k-instruct", 0), ("Phi3", 0)])
def test_special_tokens_of_phi_3_take_the_space_behind_them(name: str, spaces: int) -> None:
    header = pieces({"<|user|>": 3}, add_space_prefix=False)
    header.metadata["general.name"] = name
    assert ids(header, "<|user|> a") == [5, *[1] * spaces, 2]


def test_gemma_4_has_no_space_in_front_where_the_file_does_not_say() -> None:
    assert ids(pieces({}, model="gemma4", merges=["a b"]), "ab") == [4]


def test_texts_of_gemma_4_begin_with_its_token_whatever_the_file_says() -> None:
    header = pieces({"<bos>": 3}, model="gemma4", merges=["a b"], bos_token_id=5)
    assert ids(header, "ab") == [5, 4]


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (("<|end|>", "<|user|>"), ["<|end|>"]),
        (("<|end|>", "<|return|>", "<|call|>"), ["<|return|>", "<|call|>"]),
        (("<|end|>", "<|calls|>", "<|flush|>"), ["<|calls|>", "<|flush|>"]),
    ],
)
def test_what_ends_a_part_of_an_answer_does_not_end_it(tokens: tuple[str, ...], ends: list[str]) -> None:
    header = byte_level(dict.fromkeys(tokens, 3))
    names = header.metadata["tokenizer.ggml.tokens"]
    assert [names[at] for at in tokenizer.make(header).ends] == ends
