# ruff: noqa: RUF001 (texts that only look like others are the point)
"""Tokenizers that are made of a GGUF file cut texts as the model's own do: SentencePiece's, and byte-level ones with the words of each `tokenizer.ggml.pre`.
With PENSTOCK_LLAMA_CPP, the folder of a built llama.cpp, its server tokenizes, too.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import unicodedata
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from penstock.gguf import unpack
from penstock.gguf.pretokenizers import STEPS
from processes import wait_for
from small_tokenizers import SENTENCES, corpus, sentencepiece_model

sys.path.append(str(Path(__file__).parents[1] / "server" / "tests"))  # behind what has the same name here

from gguf_files import SHAPE, tensors_of_llama, write

TEXTS = [
    *SENTENCES,
    *list(corpus())[:200],
    "",
    " ",
    "  two  spaces\n\n\nlines\t\ttabs   ",
    "x = 12345 + 6789.01\r\n\r\nif (a<=b){\n    return !c;\n}",
    "I'M SURE they'LL say \"we'd've\" — isn't it?",
    "１２３ ①② ٣٤٥ Ⅷ 𝟘𝟙 한국어 텍스트 ไทยภาษา हिन्दी में",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(steps: list[dict[str, Any]], size: int = 700) -> Tokenizer:
    """Trained on the spot, with these words."""
    tokenizer = Tokenizer(models.BPE())
    whole = {"type": "Sequence", "pretokenizers": steps}
    shape = json.loads(tokenizer.to_str()) | {"pre_tokenizer": whole}
    tokenizer = Tokenizer.from_str(json.dumps(shape))
    tokenizer.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    return tokenizer


def fields_of(tokenizer: Tokenizer, **more: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes of a byte-level tokenizer."""
    whole = json.loads(tokenizer.to_str())
    by_id = sorted((at, text) for text, at in tokenizer.get_vocab(with_added_tokens=True).items())
    added = {one["id"]: 3 if one["special"] else 4 for one in whole["added_tokens"]}
    merges = [one if isinstance(one, str) else " ".join(one) for one in whole["model"]["merges"]]
    found = {
        "model": "gpt2",
        "tokens": [text for _, text in by_id],
        "token_type": [added.get(at, 1) for at, _ in by_id],
        "merges": merges,
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (found | more).items()}


def of_sentencepiece(file: Path, **more: Any) -> dict[str, Any]:
    """The same of a SentencePiece model."""
    model: Any = sentencepiece.SentencePieceProcessor(model_file=str(file))
    kinds = {"is_unknown": 2, "is_control": 3, "is_byte": 6, "is_unused": 5}
    every = range(model.get_piece_size())
    found = {
        "model": "llama",
        "pre": "default",
        "tokens": [model.id_to_piece(at) for at in every],
        "scores": [float(model.get_score(at)) for at in every],
        "token_type": [
            next((kind for name, kind in kinds.items() if getattr(model, name)(at)), 1) for at in every
        ],
        "bos_token_id": model.bos_id(),
        "eos_token_id": model.eos_id(),
        "unknown_token_id": model.unk_id(),
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (found | more).items()}


def made_of(folder: Path, fields: dict[str, Any], name: str = "model") -> Path:
    """A model's folder of a GGUF file with this vocabulary, beside that file."""
    tensors = tensors_of_llama(vocabulary=len(fields["tokenizer.ggml.tokens"]))
    file = write(folder / f"{name}.gguf", tensors, SHAPE, more=fields)
    return unpack.obtain(file, folder / "cache")


@contextmanager
def llama_server(program: Path, file: Path) -> Iterator[Any]:
    """Gives what tokenizes as llama.cpp does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(program),
        "-m",
        str(file),
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
        "-c",
        "128",
        "-t",
        "1",
        "--no-warmup",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:

        def asked(path: str, body: Any = None) -> Any:
            data = None if body is None else json.dumps(body).encode()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=30) as reply:
                return json.load(reply)

        def is_up() -> bool:
            assert server.poll() is None, "it has ended"
            try:
                return bool(asked("/health"))
            except OSError:
                return False

        try:
            wait_for(is_up, "llama-server")
            yield lambda text: asked(
                "/tokenize", {"content": text, "add_special": True, "parse_special": True}
            )["tokens"]
        finally:
            server.kill()


def test_sentencepiece_tokens_are_those_of_the_model(tmp_path: Path) -> None:
    """Of a model as LLaMA 2 is published: BPE with bytes for what it does not know."""
    file = tmp_path / "tokenizer.model"
    sentencepiece_model(file, model_type="bpe", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False)  # fmt: skip
    theirs: Any = sentencepiece.SentencePieceProcessor(model_file=str(file))
    folder = made_of(tmp_path, of_sentencepiece(file))
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        wanted = [theirs.bos_id(), *theirs.encode(text)]
        found = ours.encode(text).ids
        # Of nothing SentencePiece makes nothing, and a prefix alone is a token for tokenizers.
        if text.strip():
            assert found == wanted, text
            assert ours.decode(found) == theirs.decode(wanted), text
    special = ours.encode("a</s>b").ids
    assert theirs.eos_id() in special
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [theirs.eos_id()]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")


def test_without_a_space_in_front_it_is_gemmas(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.model"
    sentencepiece_model(file, model_type="bpe", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False)  # fmt: skip
    theirs: Any = sentencepiece.SentencePieceProcessor(model_file=str(file))
    folder = made_of(tmp_path, of_sentencepiece(file, add_space_prefix=False, add_bos_token=False))
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        found = ours.encode(text).ids
        assert found == theirs.encode(text), text
        assert ours.decode(found) == theirs.decode(found), text


@pytest.mark.parametrize("pre", STEPS)
def test_byte_level_tokens_are_those_of_the_tokenizer(pre: str, tmp_path: Path) -> None:
    """Merges, added tokens and words go through a file and are what they were."""
    theirs = byte_level(STEPS[pre])
    folder = made_of(tmp_path, fields_of(theirs, pre=pre))
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in [*TEXTS, "a<|im_start|>user<|im_end|> <think>b</think>"]:
        found = ours.encode(text).ids
        # Where merges are passed over for whole words, as in the published ones, that makes no other tokens of those that were trained so.
        assert found == theirs.encode(text).ids, text
        assert ours.decode(found, skip_special_tokens=False) == text
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert ends == sorted(theirs.get_vocab()[one] for one in ("<|endoftext|>", "<|im_end|>"))


@pytest.mark.parametrize(("pre", "architecture"), [("llama-bpe", "llama"), ("qwen2", "qwen2")])
def test_words_are_those_that_transformers_reads_of_such_files(
    pre: str, architecture: str, tmp_path: Path
) -> None:
    """Its own expressions, of the models' own classes."""
    source = byte_level(STEPS[pre])
    bos = {"bos_token_id": 0} if pre == "llama-bpe" else {}
    fields = fields_of(source, pre=pre, **bos)
    file = write(
        tmp_path / "model.gguf",
        tensors_of_llama(vocabulary=source.get_vocab_size()),
        SHAPE,
        architecture,
        fields,
    )
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    ours = Tokenizer.from_file(str(unpack.obtain(file, tmp_path / "cache") / "tokenizer.json"))
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(
            text, add_special_tokens=False
        ), text


LLAMA_CPP = os.environ.get("PENSTOCK_LLAMA_CPP")
# Whose expressions llama.cpp has changed so that combining marks are no part of a word, which they are in the models' own tokenizer.json.
WITHOUT_MARKS = ("gpt-4o", "llama4", "kanana2", "minimax-m2", "tekken", "kimi-k2")


@pytest.mark.skipif(LLAMA_CPP is None, reason="PENSTOCK_LLAMA_CPP names no folder of llama.cpp")
@pytest.mark.parametrize("pre", [*STEPS, "sentencepiece"])
def test_tokens_are_those_of_llama_cpp(pre: str, tmp_path: Path) -> None:
    program = Path(str(LLAMA_CPP)) / "build" / "bin" / "llama-server"
    if pre == "sentencepiece":
        model = tmp_path / "tokenizer.model"
        sentencepiece_model(model, model_type="bpe", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False)  # fmt: skip
        fields = of_sentencepiece(model)
    else:
        fields = fields_of(byte_level(STEPS[pre]), pre=pre)
    folder = made_of(tmp_path, fields)
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    differ = []
    with llama_server(program, tmp_path / "model.gguf") as tokenize:
        for text in [*TEXTS, "a<|im_start|>user<|im_end|> <think>b"]:
            has_marks = any(unicodedata.category(letter).startswith("M") for letter in text)
            if not text.strip() or (has_marks and pre in WITHOUT_MARKS):
                continue
            if ours.encode(text).ids != tokenize(text):
                differ.append(text)
    assert not differ
