"""Deserialization: a model folder that was made to hurt whoever serves it.

Tried: pickles that run code, in the places of weights and beside them, with and without consent; code in the model's
folder; headers of safetensors files that lie about length, shape and place; numbers in config.json that no model has
(`num_hidden_layers` of 10^9 took all memory); FIFOs, devices and sockets as files (a FIFO as config.json was waited for,
for ever); pointers of Git LFS and HTML pages; an index that names files outside of the folder. Random headers and
configurations are in server/tests/test_hostile_files.py.

Each ends the start with one line and exit code 1, and starts nothing that stays.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints import random_llama
from conftest import Launch, assert_no_stack_trace

Spoil = Callable[[Path, Path], None]  # (the model's folder, a file that must not come into being)

SOON = 60.0


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return (open, (str(self.trace), "w"))


def pickled_weights(folder: Path, trace: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Bomb(trace)}))


def a_pickle_named_safetensors(folder: Path, trace: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps({"a": Bomb(trace)}))


def code_beside_it(folder: Path, trace: Path) -> None:
    (folder / "modeling_evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config.update(
        architectures=["Evil"],
        model_type="evil",
        auto_map={"AutoConfig": "modeling_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"},
    )
    (folder / "config.json").write_text(json.dumps(config))


def a_header_of_any_length(folder: Path, trace: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}")


def a_tensor_beyond_the_end(folder: Path, trace: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def an_index_that_leads_elsewhere(folder: Path, trace: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"model.embed_tokens.weight": "../../etc/passwd.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def absurd(**numbers: object) -> Spoil:
    def spoil(folder: Path, trace: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **numbers}))

    return spoil


def nested_json(folder: Path, trace: Path) -> None:
    (folder / "config.json").write_text("[" * 1_000_000)


def fifo(name: str) -> Spoil:
    def spoil(folder: Path, trace: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def device(name: str) -> Spoil:
    def spoil(folder: Path, trace: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/zero")

    return spoil


def instead(name: str, content: bytes) -> Spoil:
    def spoil(folder: Path, trace: Path) -> None:
        (folder / name).write_bytes(content)

    return spoil


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
HTML = b"<!DOCTYPE html>\n<html><title>Sign in</title></html>"

CASES: dict[str, tuple[Spoil, str, tuple[str, ...]]] = {
    "pickled weights": (pickled_weights, "--trust-remote-code", ()),
    "pickled weights with consent": (pickled_weights, "pytorch_model.bin", ("--trust-remote-code",)),
    "a pickle as safetensors": (a_pickle_named_safetensors, "model.safetensors", ()),
    "code in the folder": (code_beside_it, "run only with --trust-remote-code", ()),
    "a header of any length": (a_header_of_any_length, "header would be too long", ()),
    "a tensor beyond the end": (a_tensor_beyond_the_end, "model.safetensors", ()),
    "an index that leads elsewhere": (
        an_index_that_leads_elsewhere,
        "not the name of a safetensors file",
        (),
    ),
    "a thousand million layers": (absurd(num_hidden_layers=10**9), "num_hidden_layers", ()),
    "a thousand million heads": (absurd(num_attention_heads=10**9), "num_attention_heads", ()),
    "a vocabulary of 10^30": (absurd(vocab_size=10**30), "vocab_size", ()),
    "positions without end": (absurd(max_position_embeddings=10**18), "max_position_embeddings", ()),
    "a million brackets": (nested_json, "config.json", ()),
    "config.json a FIFO": (fifo("config.json"), "config.json: a FIFO, not a file", ()),
    "tokenizer.json a FIFO": (fifo("tokenizer.json"), "tokenizer.json: a FIFO, not a file", ()),
    "a template a FIFO": (fifo("chat_template.jinja"), "chat_template.jinja: a FIFO, not a file", ()),
    "weights a FIFO": (fifo("model.safetensors"), "model.safetensors: a FIFO, not a file", ()),
    "weights a device": (device("model.safetensors"), "model.safetensors: a device, not a file", ()),
    "tokenizer.json a device": (device("tokenizer.json"), "tokenizer.json: a device, not a file", ()),
    "weights a pointer": (instead("model.safetensors", LFS), "git lfs pull", ()),
    "tokenizer.json a pointer": (instead("tokenizer.json", LFS), "git lfs pull", ()),
    "weights a page": (instead("model.safetensors", HTML), "an HTML page", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_model_folder_is_one_line(launch: Launch, tmp_path: Path, case: str) -> None:
    spoil, words, flags = CASES[case]
    folder, trace = random_llama(tmp_path / "model"), tmp_path / "trace"
    spoil(folder, trace)
    began = time.monotonic()
    launched = launch("--model-id", str(folder), *flags)
    assert launched.wait_ended(SOON) == 1
    assert time.monotonic() - began < SOON
    (line,) = launched.stderr().strip().splitlines()
    assert words in line and len(line) < 1500, line
    assert " ERROR " not in launched.stdout(), "it is said twice"
    assert not trace.exists(), "code of the model's folder ran"
    assert_no_stack_trace(launched.log())
    launched.assert_no_orphan()
