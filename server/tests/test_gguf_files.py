"""What a GGUF file says is read, and files that are unsound, hostile or others are refused in one line that names them."""

import re
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_files import SHAPE, raw, tensors_of_llama, text, tokenizer, write
from penstock.errors import UnusableModel
from penstock.gguf.container import parts_of, read_header, read_model


def pair(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def entry(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)


def test_a_header_has_all_that_llama_cpps_package_finds(tmp_path: Path) -> None:
    more = {**tokenizer(), "x.list": [1, 2, 3], "x.flag": True, "x.text": "grün", "x.numbers": [0.5, 1.5]}
    types = {"blk.0.attn_v.weight": "Q8_0", "blk.0.ffn_up.weight": "Q4_0", "output.weight": "BF16"}
    file = write(tmp_path / "a.gguf", tensors_of_llama(), more=more, types=types)
    header, theirs = read_header(file), gguf.GGUFReader(file)
    own = dict(header.metadata)
    assert own == {
        name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")
    }
    assert own["llama.block_count"] == 1 and own["x.text"] == "grün" and own["x.flag"] is True
    assert header.tensors.keys() == {one.name for one in theirs.tensors}
    whole = file.read_bytes()
    for one in theirs.tensors:
        found = header.tensors[one.name]
        assert found.shape == tuple(int(size) for size in one.shape[::-1])
        assert found.dtype == one.tensor_type.name
        assert whole[found.begin : found.end] == one.data.tobytes()


def test_parts_are_one_model(tmp_path: Path) -> None:
    tensors = tensors_of_llama()
    names = list(tensors)
    parts = [tmp_path / f"m-{at:05}-of-00002.gguf" for at in (1, 2)]
    write(parts[0], {name: tensors[name] for name in names[:5]}, more=tokenizer())
    with pytest.raises(UnusableModel, match=r"is part of a model: 1 file is missing: m-00002-of-00002\.gguf"):
        parts_of(parts[0])
    write(parts[1], {name: tensors[name] for name in names[5:]}, {})
    assert parts_of(parts[0]) == parts_of(parts[1]) == parts
    assert parts_of(tmp_path / "single.gguf") == [tmp_path / "single.gguf"]
    for wrong in ("m-00003-of-00002.gguf", "m-00001-of-00000.gguf"):
        with pytest.raises(UnusableModel, match="there is no part"):
            parts_of(tmp_path / wrong)
    header = read_model(parts)
    assert header.tensors.keys() == tensors.keys() and header.metadata["llama.block_count"] == 1
    assert {one.file for one in header.tensors.values()} == {part.name for part in parts}
    write(parts[1], {name: tensors[name] for name in names[4:]}, {})
    with pytest.raises(UnusableModel, match="1 tensor is in another part as well"):
        read_model(parts)
    write(parts[1], {name: tensors[name] for name in names[5:]}, {}, more={"split.no": 0, "split.count": 2})
    with pytest.raises(UnusableModel, match="it says that it is part 0 of 2, counted from 0"):
        read_model(parts)


NUMBER = struct.pack("<I", 7)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
UNSOUND: dict[str, tuple[bytes, str]] = {
    "another format": (b"PK\x03\x04" + bytes(40), "it does not begin with GGUF"),
    "a pointer": (LFS, "a pointer of Git LFS"),
    "a page": (b"<!DOCTYPE html><html>" + bytes(40), "an HTML page"),
    "nothing": (b"", "it does not begin with GGUF"),
    "the first version": (raw(version=1), "version 1 is not read"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "many pairs": (raw(counts=(0, 1 << 60)), "pairs of metadata, and at most"),
    "many tensors": (raw(counts=(1 << 60, 0)), "tensors, and at most"),
    "pairs that are not there": (raw(counts=(0, 5)), "cut short"),
    "a key without an end": (raw(struct.pack("<Q", 1 << 62), counts=(0, 1)), "a key would have 4611686018427387904 bytes"),
    "a key that is no text": (raw(pair("", 4, NUMBER).replace(struct.pack("<Q", 0), text(b"\xff\xfe"), 1), counts=(0, 1)), "not UTF-8"),
    "a key twice": (raw(pair("a", 4, NUMBER) * 2, counts=(0, 2)), "a is in it twice"),
    "an unknown type": (raw(pair("a", 13, NUMBER), counts=(0, 1)), "a is of type 13, which is not known"),
    "a long text": (raw(pair("a", 8, struct.pack("<Q", 1 << 40)), counts=(0, 1)), "a would have 1099511627776 bytes"),
    "a long list": (raw(pair("a", 9, struct.pack("<IQ", 4, 1 << 50)), counts=(0, 1)), "elements, and at most"),
    "a list that is cut short": (raw(pair("a", 9, struct.pack("<IQ", 4, 1 << 20)), counts=(0, 1)), "cut short"),
    "lists of lists": (raw(pair("a", 9, struct.pack("<IQ", 9, 1)), counts=(0, 1)), "array of type 9, which is not read"),
    "no power of two": (raw(pair("general.alignment", 4, struct.pack("<I", 24)), counts=(0, 1)), "power of two"),
    "alignment 0": (raw(pair("general.alignment", 4, struct.pack("<I", 0)), counts=(0, 1)), "power of two"),
    "five dimensions": (raw(tensors=entry("t", (1, 1, 1, 1, 1)), counts=(1, 0)), "has 5 dimensions"),
    "no dimensions": (raw(tensors=entry("t", ()), counts=(1, 0)), "has 0 dimensions"),
    "an empty dimension": (raw(tensors=entry("t", (0,)), counts=(1, 0)), "the tensor t is [0]"),
    "a tensor of an unknown type": (raw(tensors=entry("t", (32,), kind=99), counts=(1, 0)), "of type 99, which is not known"),
    "half a block": (raw(tensors=entry("t", (48,), kind=2), counts=(1, 0)), "rows of 48 numbers, and blocks of Q4_0 have 32"),
    "a tensor behind the end": (raw(tensors=entry("t", (8,), offset=1 << 50), counts=(1, 0)), "cut short"),
    "a huge tensor": (raw(tensors=entry("t", (1 << 39, 1 << 39, 1 << 39)), counts=(1, 0)), "cut short"),
    "no alignment": (raw(tensors=entry("t", (8,), offset=8), counts=(1, 0)) + bytes(200), "is not aligned to 32 bytes"),
    "a name that forges a line": (raw(tensors=entry("t\x1b[31m\nERROR", (8,)) * 2, counts=(2, 0)) + bytes(200), "the tensor t\\x1b[31m\\nERROR is in it twice"),
    "a tensor twice": (raw(tensors=entry("t", (8,)) * 2, counts=(2, 0)) + bytes(200), "the tensor t is in it twice"),
    "one within another": (raw(tensors=entry("t", (16,)) + entry("u", (8,), offset=32), counts=(2, 0)) + bytes(300), "the tensor u lies within another one"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSOUND)
def test_an_unsound_file_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    content, says = UNSOUND[case]
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(UnusableModel) as refused:
        read_header(file)
    line = str(refused.value)
    assert line.startswith("model.gguf: ") and says in line and "\n" not in line, line


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf", tensors_of_llama(), more=tokenizer()).read_bytes()
    generator = np.random.default_rng(0)
    last = max(one.end for one in read_header(tmp_path / "whole.gguf").tensors.values())
    file = tmp_path / "cut.gguf"
    for length in generator.integers(0, last, 60).tolist():
        file.write_bytes(whole[:length])
        with pytest.raises(UnusableModel, match=r"cut\.gguf: "):
            read_header(file)


def test_bytes_that_are_others_are_read_or_refused(tmp_path: Path) -> None:
    """Never an error of Python's, nor more memory than the file has."""
    whole = bytearray(write(tmp_path / "whole.gguf", tensors_of_llama(), more=tokenizer()).read_bytes())
    header = min(one.begin for one in read_header(tmp_path / "whole.gguf").tensors.values())
    generator = np.random.default_rng(1)
    file, refused = tmp_path / "changed.gguf", 0
    for _ in range(400):
        changed = bytearray(whole)
        for at in generator.integers(0, header, int(generator.integers(1, 4))).tolist():
            changed[at] = int(generator.integers(0, 256))
        file.write_bytes(changed)
        try:
            read_header(file)
        except UnusableModel:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    "missing",
    sorted(
        set(SHAPE)
        - {
            "attention.head_count_kv",
            "rope.freq_base",
            "attention.layer_norm_rms_epsilon",
            "feed_forward_length",
        }
    ),
)
def test_a_field_that_every_model_has_is_named_where_it_is_missing(missing: str, tmp_path: Path) -> None:
    from penstock.gguf.architectures import architecture_of

    fields: dict[str, Any] = {name: value for name, value in SHAPE.items() if name != missing}
    header = read_header(write(tmp_path / "a.gguf", tensors_of_llama(), fields))
    with pytest.raises(UnusableModel, match=f"llama.{missing} is None, and it has to be a whole number"):
        architecture_of(header).config(header)


def test_an_architecture_that_is_not_read_is_named(tmp_path: Path) -> None:
    from penstock.gguf.architectures import architecture_of

    header = read_header(write(tmp_path / "a.gguf", tensors_of_llama(), {}, "whisper"))
    with pytest.raises(
        UnusableModel, match=r"general\.architecture is 'whisper', and of GGUF files .*llama.* are read"
    ):
        architecture_of(header)


@pytest.mark.parametrize(
    ("architecture", "field", "value", "says"),
    [
        ("llama", "block_count", 4_000_000_000, "it has to be a whole number"),
        ("llama", "block_count", 1_000_000, "there are 12 tensors"),
        ("llama", "attention.head_count", 0, "it has to be a whole number"),
        ("llama", "attention.head_count_kv", ["a"], "it has to be a list of 1 whole numbers"),
        ("gemma4", "feed_forward_length", [0.5], "it has to be a list of 1 whole numbers"),
        (
            "mistral3",
            "attention.temperature_scale",
            0.5,
            "with attention.temperature_scale it has to be yarn",
        ),
        ("starcoder2", "x", 1, "starcoder2.attention.layer_norm_epsilon is None, and it has to be a number"),
        ("qwen35", "ssm.time_step_rank", 0, "it has to be a whole number"),
    ],
)
def test_fields_that_no_model_has_are_named(
    architecture: str, field: str, value: Any, says: str, tmp_path: Path
) -> None:
    """Before anything is made of them: a list for each of four billion layers would take the machine's memory."""
    from penstock.gguf.architectures import architecture_of

    more = {"attention.sliding_window": 8, "attention.key_length_swa": 16, "attention.key_length": 16}
    fields: dict[str, Any] = {**SHAPE, **(more if architecture == "gemma4" else {}), field: value}
    header = read_header(write(tmp_path / "a.gguf", tensors_of_llama(), fields, architecture))
    with pytest.raises(UnusableModel, match=re.escape(says)):
        architecture_of(header).config(header)
