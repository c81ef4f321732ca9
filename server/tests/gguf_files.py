"""GGUF files made on the spot, by llama.cpp's own writer."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

# Of a model with these fields: everything that LLaMA has.
SHAPE: dict[str, Any] = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 1,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
}
VOCABULARY = [*(chr(256 + at) for at in range(96)), "<|im_end|>", "<s>", "Āā"]


def write(
    file: Path,
    tensors: Mapping[str, Any],
    fields: Mapping[str, Any] = SHAPE,
    architecture: str = "llama",
    more: Mapping[str, Any] | None = None,
    types: Mapping[str, str] | None = None,
) -> Path:
    """`fields` are the architecture's, `more` any others. `types`: of tensors what their numbers become; others stay as they are."""
    writer = gguf.GGUFWriter(file, architecture)
    for name, value in {
        **{f"{architecture}.{name}": value for name, value in fields.items()},
        **(more or {}),
    }.items():
        _add(writer, name, value)
    for name, tensor in tensors.items():
        kind = (types or {}).get(name)
        if kind is None:
            writer.add_tensor(name, np.ascontiguousarray(tensor))
        else:
            quantized = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(
                name, gguf.quants.quantize(np.ascontiguousarray(tensor), quantized), raw_dtype=quantized
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add(writer: Any, name: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if isinstance(value, list):
        writer.add_array(name, value)
    else:
        kinds[type(value)](name, value)


def tensors_of_llama(seed: int = 0, vocabulary: int = len(VOCABULARY)) -> dict[str, Any]:
    """Random ones, by the file's names."""
    generator = np.random.default_rng(seed)
    shapes = {
        "token_embd.weight": (vocabulary, 64),
        "output.weight": (vocabulary, 64),
        "output_norm.weight": (64,),
        "blk.0.attn_norm.weight": (64,),
        "blk.0.ffn_norm.weight": (64,),
        "blk.0.attn_q.weight": (64, 64),
        "blk.0.attn_k.weight": (32, 64),
        "blk.0.attn_v.weight": (32, 64),
        "blk.0.attn_output.weight": (64, 64),
        "blk.0.ffn_gate.weight": (96, 64),
        "blk.0.ffn_up.weight": (96, 64),
        "blk.0.ffn_down.weight": (64, 96),
    }
    return {
        name: generator.normal(size=shape, scale=0.1).astype(np.float32) for name, shape in shapes.items()
    }


def tokenizer(**more: Any) -> dict[str, Any]:
    """Fields of a byte-level vocabulary, which has only some of the bytes."""
    kinds = [1] * len(VOCABULARY)
    kinds[96] = kinds[97] = 3
    found = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": VOCABULARY,
        "token_type": kinds,
        "merges": ["Ā ā"],
        "eos_token_id": 97,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (found | more).items() if value is not None}


def raw(
    pairs: bytes = b"", tensors: bytes = b"", counts: tuple[int, int] = (0, 0), version: int = 3
) -> bytes:
    """A file by its bytes, for what no writer writes."""
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + pairs + tensors


def text(value: str | bytes) -> bytes:
    """A string of the format."""
    held = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(held)) + held
