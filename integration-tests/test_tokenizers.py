# ruff: noqa: RUF001 (texts that only look like others are the point)
"""Token ids and texts are those of transformers, for every kind of tokenizer, through the running server.

The models are made on the spot (small_tokenizers.py); transformers loads the same folders. Those without a
tokenizer.json are converted before the server starts, but for the tests of that: it takes some seconds.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import sentencepiece
from tokenizers import Tokenizer
from transformers import AutoTokenizer

import small_tokenizers
import wire
from launched import Launched
from penstock.hub.tokenizer import convert, obtain
from small_tokenizers import PERIOD

TEXTS = [
    "Hello, World!",
    "",
    " ",
    "   ",
    " leading and trailing  ",
    "two  spaces\tand\ttabs\n\nlines\r\nand\rmore \n",
    "it's WE'RE they'Ll 'sword 12345678 3.14 x=1;y={}",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 e\u0301 é ﬁ ½ №",
    "漢字かな交じり文。 한국어 ไทย",
    "שלום \u200f עולם مرحبا \u202bبالعالم\u202c",
    "\x00\x01\x1b[0m\x7f\x85 \ufeff\ufffd\u200b\u2028",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0001f9ff \U000e0041 \ue000",
    "pneumonoultramicroscopic" * 60,
    "nospacesatall" * 40 + "é" * 300,
    "▁ underscores ▁▁ and <0x41> <0xE2><0x82>",
    "<s> </s> <unk> <|endoftext|> <|eot_id|>text<|begin_of_text|> [CLS] [SEP]a[MASK] <extra_id_3> <pad>",
    "a <left> b<left>c  <right>  d word words wordy word. ünder score ÜNDER SCORE As Is as is <both>  <both> <END>x",
    "def f(x):\n\treturn {'a': 1}\n\n\n    # four",
]


@dataclass(frozen=True)
class Served:
    kind: str
    launched: Launched
    tokenizer: Any

    @property
    def address(self) -> wire.Address:
        return self.launched.address

    @property
    def exact(self) -> bool:
        """Whether transformers says the same of bytes that are no text. Where bytes are tokens among others, it
        gives up a whole run of them for one that is wrong, which a stream that has shown the right ones cannot."""
        return self.kind in ("gpt2", "llama3", "added")

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def tokenize(self, text: str) -> list[dict[str, Any]]:
        reply = wire.post(self.address, "/tokenize", {"inputs": text})
        assert reply.status == 200, (text, reply.text)
        tokens: list[dict[str, Any]] = reply.json()
        return tokens

    def text_of(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


USUAL_KINDS = ("gpt2", "llama2", "llama2 legacy", "unigram bytes")


@pytest.fixture(
    scope="module",
    params=[
        kind if kind in USUAL_KINDS else pytest.param(kind, marks=pytest.mark.tail)
        for kind in small_tokenizers.KINDS
    ],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("kind")
    folder = small_tokenizers.model(root / "model", request.param)
    cache = root / "cache"
    older = not (folder / "tokenizer.json").exists()
    if older:
        obtain(folder, cache)
    arguments = ("--model-id", str(folder), "--dtype", "float32", "--huggingface-hub-cache", str(cache))
    with Launched(root / "run", *arguments) as launched:
        launched.wait_ready()
        assert ("using the tokenizer that was made" in launched.log()) == older, launched.log()
        yield Served(request.param, launched, AutoTokenizer.from_pretrained(folder))


def characters(beginning: bytes) -> int:
    """Of UTF-8, a last one that is not whole included."""
    return sum(byte & 0xC0 != 0x80 for byte in beginning)


def test_texts_become_the_same_ids_at_the_same_places(served: Served) -> None:
    for text in filter(None, TEXTS):
        tokens = served.tokenize(text)
        assert [token["id"] for token in tokens] == served.ids(text), repr(text)
        expected = served.tokenizer.backend_tokenizer.encode(text)
        assert [token["id"] for token in tokens] == expected.ids, repr(text)
        # Ours are bytes, where Python's are characters: the ones that a token has some byte of.
        whole = text.encode()
        for token, place in zip(tokens, expected.offsets, strict=True):
            start, stop = token["start"], token["stop"]
            assert token["text"] == whole[start:stop].decode(errors="replace"), (repr(text), token)
            begun = characters(whole[: start + 1]) - 1 if start < len(whole) else characters(whole)
            assert (begun, characters(whole[:stop])) == place, (repr(text), token)


def test_a_prompt_is_what_tokenize_says(served: Served) -> None:
    for text in TEXTS[4:]:
        asked = {"inputs": text, "parameters": {"max_new_tokens": 1, "decoder_input_details": True}}
        reply = wire.post(served.address, "/generate", asked)
        assert reply.status == 200, (text, reply.text)
        prefill = reply.json()["details"]["prefill"]
        assert [token["id"] for token in prefill] == served.ids(text), repr(text)


def test_a_prompt_is_cut_at_its_beginning(served: Served) -> None:
    served.tokenizer.truncation_side = "left"
    for text in ("one two three four five six seven", TEXTS[7], TEXTS[15]):
        for most in (3, 5, 2000):
            parameters = {"max_new_tokens": 1, "decoder_input_details": True, "truncate": most}
            reply = wire.post(served.address, "/generate", {"inputs": text, "parameters": parameters})
            ids = [token["id"] for token in reply.json()["details"]["prefill"]]
            assert ids == served.tokenizer(text, truncation=True, max_length=most)["input_ids"], (text, most)


def streamed(address: wire.Address, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    with wire.Events(address, path, asked) as events:
        assert events.status == 200, events.read().text
        return [json.loads(event) for event in events if event != "[DONE]"]


def at_once(run: Any, jobs: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


def test_a_text_is_streamed_as_transformers_decodes_it(served: Served) -> None:
    """The model repeats its prompt: a text that follows some filling and is followed by it."""
    special = set(served.tokenizer.all_special_ids)
    filling = served.tokenizer("a", add_special_tokens=False)["input_ids"][-1]
    prompts = []
    for text in TEXTS:
        while True:
            ids = [
                id
                for id in served.tokenizer(text, add_special_tokens=False)["input_ids"]
                if id not in special
            ]
            if len(ids) < PERIOD:
                break
            text = text[: max(1, len(text) * 3 // 4)]
        prompts.append([filling] * (PERIOD - len(ids)) + ids)
        prompts.append(ids + [filling] * (PERIOD - len(ids)))

    def ask(prompt: list[int]) -> str:
        asked = {"prompt": prompt, "max_tokens": PERIOD, "temperature": 0, "ignore_eos": True, "stream": True}
        chunks = streamed(served.address, "/v1/completions", asked)
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])

    compared = 0
    for prompt, text in zip(prompts, at_once(ask, prompts), strict=True):
        before, whole = served.text_of(prompt), served.text_of(prompt * 2)
        if served.exact or "\ufffd" not in whole:
            assert whole == before + text, prompt
            compared += 1
    assert compared >= len(prompts) - 4


def test_the_pieces_of_any_stream_are_its_whole_text(served: Served) -> None:
    """Anything from the vocabulary, so that the bytes of characters come in any order."""
    parameters = {"max_new_tokens": 50, "do_sample": True, "temperature": 90.0, "details": True}
    jobs: list[dict[str, Any]] = [
        {"inputs": text, "parameters": {**parameters, "seed": seed}}
        for seed, text in enumerate([TEXTS[0], TEXTS[4], TEXTS[7], TEXTS[8]])
    ]
    streams = at_once(lambda job: streamed(served.address, "/generate_stream", job), jobs)
    for job, events in zip(jobs, streams, strict=True):
        ids = [event["token"]["id"] for event in events]
        pieces = [event["token"]["text"] for event in events if not event["token"]["special"]]
        whole = events[-1]["generated_text"]
        assert len(set(ids)) > 10
        assert "".join(pieces) == whole
        prompt = served.ids(job["inputs"])
        before, after = served.text_of(prompt), served.text_of(prompt + ids)
        if after.startswith(before) and (served.exact or "\ufffd" not in after):
            assert after[len(before) :] == whole, (served.kind, job, ids)


# Of these kinds, trained on so little, many letters and signs have no token.
WITHOUT_ASCII = ("t5", "xlm-roberta", "bert")
WORD = 'é 漢 😀 " \\ \n ▁ <0x41>'
SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"const": WORD},
        "text": {"type": "string", "maxLength": 20},
        "numbers": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 3},
    },
    "required": ["word", "text", "numbers"],
    "additionalProperties": False,
}


def test_a_text_is_json_of_its_schema(served: Served) -> None:
    """With what the vocabulary has as bytes only, and with whatever is drawn; or the start says why it cannot be."""
    parameters = {"grammar": {"type": "json", "value": SCHEMA}, "max_new_tokens": 250, "details": True}
    asked = {"inputs": "The quick brown fox", "parameters": parameters}
    if served.kind in WITHOUT_ASCII:
        reply = wire.post(served.address, "/generate", asked)
        assert reply.status == 422, reply
        told = re.search("requests with a grammar will be refused: (.*)", served.launched.log())
        assert told and "has no token of its own for" in told[1]
        assert reply.json()["error"].endswith(f"this model's vocabulary cannot be constrained: {told[1]}")
        assert (
            wire.post(
                served.address, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}}
            ).status
            == 200
        )
        return
    jobs = [{**asked, "parameters": {**parameters, "temperature": 2.0, "seed": seed}} for seed in range(8)]
    for events in at_once(lambda job: streamed(served.address, "/generate_stream", job), [asked, *jobs]):
        text = "".join(event["token"]["text"] for event in events)
        assert events[-1]["details"]["finish_reason"] == "eos_token", text
        assert events[-1]["generated_text"] == text
        jsonschema.validate(json.loads(text), SCHEMA)


def test_a_chat_without_a_template_says_so(served: Served) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    reply = wire.post(served.address, "/v1/chat/completions", asked)
    assert reply.status == 422 and "no chat template" in reply.text


@pytest.mark.tail
def test_a_converted_tokenizer_is_made_once_and_beside_a_folder_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    folder = small_tokenizers.model(tmp_path / "model", "gpt2")
    before = sorted(file.name for file in folder.iterdir())
    for start, said in enumerate(
        ["made a tokenizer.json of vocab.json and merges.txt", "was made of vocab.json"]
    ):
        env = {"HF_HOME": str(tmp_path / "home")}
        with Launched(tmp_path / f"run-{start}", "--model-id", str(folder), env=env) as launched:
            launched.wait_ready()
            assert said in launched.log()
    assert sorted(file.name for file in folder.iterdir()) == before


def test_a_class_of_the_repositorys_own_has_its_defaults(tmp_path: Path) -> None:
    """InternLM 2, which puts `<s>` before a text where its file says nothing of it."""
    small_tokenizers.sentencepiece_model(
        tmp_path / "tokenizer.model",
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        character_coverage=0.98,
    )
    pieces = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    own = {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "internlm2"}))
    for said, begins in (({}, [1]), ({"add_bos_token": False}, [])):
        config = {"tokenizer_class": "InternLM2Tokenizer", "auto_map": own, "bos_token": "<s>", **said}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        made = Tokenizer.from_str(convert(tmp_path, "tokenizer.model"))
        for text in ("Hello, World!", "  two  spaces", "def f(x):\n\treturn"):
            assert made.encode(text).ids == [*begins, *pieces.encode(text)], text


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("llama", {"tokenizer_class": "LlamaTokenizer"}),
        ("llama", {"tokenizer_class": "LlamaTokenizerFast"}),
        ("llama", {}),
        ("mistral", {"tokenizer_class": "LlamaTokenizer"}),
        ("mixtral", {}),
        ("gemma", {"tokenizer_class": "GemmaTokenizer"}),
        ("gemma2", {}),
    ],
)
def test_a_text_begins_with_bos_where_its_class_says_so(
    model_type: str, named: dict[str, str], tmp_path: Path
) -> None:
    """Llama's and Gemma's, of which training scripts write files that leave it to the class."""
    small_tokenizers.sentencepiece_model(
        tmp_path / "tokenizer.model", model_type="bpe", byte_fallback=True, character_coverage=0.98
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    for said, begins in (({}, [1]), ({"add_bos_token": None}, [1]), ({"add_bos_token": False}, [])):
        config = {**named, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **said}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        made = Tokenizer.from_str(convert(tmp_path, "tokenizer.model"))
        text = "Hello, World!"
        assert made.encode(text).ids == [*begins, *made.encode(text, add_special_tokens=False).ids], said


def test_a_tokenizer_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    folder = small_tokenizers.model(tmp_path / "model", "gpt2")
    (folder / "merges.txt").unlink()
    with Launched(tmp_path / "run", "--model-id", str(folder)) as launched:
        assert launched.wait_ended() == 1
        assert "no tokenizer.json" in launched.stderr() and "vocab.json with merges.txt" in launched.stderr()
    (folder / "tokenizer.model").write_bytes(b"no such model")
    shutil.copy(folder / "vocab.json", folder / "merges.txt")
    with Launched(tmp_path / "broken", "--model-id", str(folder), env={"HF_HOME": str(tmp_path)}) as launched:
        assert launched.wait_ended(60) == 1
        assert "no tokenizer can be made of tokenizer.model" in launched.stderr()
        assert "Traceback" not in launched.log()
