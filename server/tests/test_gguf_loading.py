"""A model of a GGUF file has the numbers that its blocks stand for, in the order of its recipe, whole and in every part that a shard takes."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from driver import Driver
from gguf_files import SHAPE, tensors_of_llama, tokenizer, write
from penstock import quantization
from penstock.errors import UnusableModel
from penstock.gguf import unpack
from penstock.loading import tensor_reader
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.checks import check_folder
from penstock.models import native_choice, recipes
from penstock.parallel.group import ALONE
from penstock_kernels import tensors
from penstock_kernels.program import Kind
from test_codes import CPU
from test_native import SETS

# In blocks of 32, as rows of 64 and 96 numbers have them.
TYPES = {
    "blk.0.attn_q.weight": "Q4_0",
    "blk.0.attn_k.weight": "Q8_0",
    "blk.0.attn_v.weight": "Q5_1",
    "blk.0.attn_output.weight": "Q4_1",
    "blk.0.ffn_gate.weight": "BF16",
    "blk.0.ffn_up.weight": "F16",
    "blk.0.ffn_down.weight": "Q5_0",
}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "blk.0.attn_norm": "model.layers.0.input_layernorm",
    "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
    "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
    "blk.0.attn_k": "model.layers.0.self_attn.k_proj",
    "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
    "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
    "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
    "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
}


def in_halves(rows: Any, heads: int) -> Any:
    """Rows of pairs of rotary numbers in the order of the class: the first numbers of all pairs, then the second ones."""
    each = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return each.swapaxes(1, 2).reshape(rows.shape)


def wanted_of(file: Path) -> dict[str, Any]:
    """What llama.cpp's package says of the numbers, by the names of the class."""
    found = {}
    for one in gguf.GGUFReader(file).tensors:
        numbers = gguf.quants.dequantize(one.data, one.tensor_type).astype(np.float32)
        if one.name.startswith("blk.0.attn_q") or one.name.startswith("blk.0.attn_k"):
            numbers = in_halves(numbers, 4 if "attn_q" in one.name else 2)
        module, _, kind = one.name.rpartition(".")
        found[f"{NAMES[module]}.{kind}"] = numbers
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "small.gguf", tensors_of_llama(), more=tokenizer(), types=TYPES)


@pytest.fixture
def folder(file: Path, tmp_path: Path) -> Path:
    return unpack.obtain(file, tmp_path / "cache")


@pytest.mark.parametrize("piece", [tensor_reader.PIECE, 1000])
def test_numbers_are_those_of_the_blocks(
    piece: int, file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and ranges of rows and columns that begin and end within blocks."""
    monkeypatch.setattr(tensor_reader, "PIECE", piece)
    wanted = wanted_of(file)
    with Checkpoint(folder, torch.float32) as checkpoint:
        assert checkpoint.stored.keys() == wanted.keys()
        for name, numbers in wanted.items():
            checkpoint.tensor(name, numbers.shape)
        with checkpoint.reading(tells=False):
            for name, numbers in wanted.items():
                assert np.array_equal(tensors.host(checkpoint.tensor(name, numbers.shape)), numbers), name
                if numbers.ndim < 2:
                    continue
                rows, columns = numbers.shape
                picked_rows = [slice(1, 7), slice(rows - 5, rows)]
                picked = [slice(3, 17), slice(29, 47), slice(columns - 1, columns)]
                across = np.concatenate([numbers[:, one] for one in picked], 1)
                part = np.concatenate([across[one] for one in picked_rows])
                found = checkpoint.tensor(name, numbers.shape, picked_rows, picked)
                assert np.array_equal(tensors.host(found), part), name


def test_a_model_is_what_its_safetensors_files_would_be(file: Path, folder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    plain = tmp_path / "plain"
    plain.mkdir()
    save_file(
        {name: np.ascontiguousarray(one) for name, one in wanted_of(file).items()},
        plain / "model.safetensors",
    )
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization_config"]["types"] == {"Q4_0": 1, "Q8_0": 1, "Q5_1": 1, "Q4_1": 1, "Q5_0": 1}
    del config["quantization_config"]
    (plain / "config.json").write_text(json.dumps(config))
    ours, theirs = (
        recipes.load(check_folder(one), one, torch.float32, torch.device("cpu"), ALONE)
        for one in (folder, plain)
    )
    assert ours.config == theirs.config
    assert all(map(torch.equal, ours.weights(), theirs.weights()))


def test_files_and_config_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    every = tensors_of_llama()
    lacks = {name: one for name, one in every.items() if name != "blk.0.ffn_up.weight"}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (lacks, SHAPE, "lacks 1 tensor: model.layers.0.mlp.up_proj.weight"),
        (every, {**SHAPE, "feed_forward_length": 80}, "model.layers.0.mlp.gate_proj.weight is [96, 64], not [80, 64]"),
        ({**every, "blk.0.other.weight": every["output_norm.weight"]}, SHAPE, "1 tensor without a place in the model: blk.0.other.weight"),
        ({**every, "blk.0.attn_k.weight": every["blk.0.attn_k.weight"][:30]}, SHAPE, "k_proj.weight is [30, 64], not [32, 64]"),
    ]  # fmt: skip
    for number, (held, fields, says) in enumerate(cases):
        made = unpack.obtain(
            write(tmp_path / f"{number}.gguf", held, fields, more=tokenizer()), tmp_path / "cache"
        )
        with pytest.raises(UnusableModel) as refused:
            recipes.load(check_folder(made), made, torch.float32, torch.device("cpu"), ALONE)
        assert says in str(refused.value), refused.value


def test_numbers_that_are_none_are_named(tmp_path: Path) -> None:
    held = tensors_of_llama()
    held["blk.0.attn_q.weight"][3, 5] = np.nan
    held["blk.0.ffn_norm.weight"][1] = np.inf
    made = unpack.obtain(write(tmp_path / "nan.gguf", held, more=tokenizer()), tmp_path / "cache")
    with pytest.raises(
        UnusableModel, match=r"2 tensors with NaN or infinite numbers: .*q_proj.weight \(model\.gguf\)"
    ):
        recipes.load(check_folder(made), made, torch.bfloat16, torch.device("cpu"), ALONE)


def test_types_without_a_reader_are_named_with_a_way_out(tmp_path: Path) -> None:
    file = tmp_path / "iq2.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in SHAPE.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"llama.{name}", value)
    for name, value in tokenizer().items():
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
    blocks = np.zeros((8, 66), np.uint8)
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.IQ2_XXS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = unpack.obtain(file, tmp_path / "cache")
    with pytest.raises(
        UnusableModel,
        match=r"'token_embd\.weight' is of IQ2_XXS, which is not read; a file of the same model in Q8_0",
    ):
        check_folder(made)


def test_a_checkpoint_of_blocks_is_served_with_a_recipe_alone(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    quantization.refuse(config, folder)
    with pytest.raises(UnusableModel, match="of models with a recipe it is"):
        quantization.refuse(config, folder, has_recipe=False)


@pytest.mark.skipif(not SETS, reason="there is no CPU engine here")
@pytest.mark.parametrize(
    ("kind", "formats", "share"),
    [("Q4_0", "GROUPS_32", 1.0), ("Q4_1", "OFFSET_32", 1.0), ("Q8_0", "INT8", 0.0)],
)
def test_blocks_are_held_in_as_few_bits_as_is_counted(
    kind: str, formats: str, share: float, tmp_path: Path
) -> None:
    """By the rehearsal, from which the doctor and a worker know whether there is room."""
    found = tensors_of_llama()
    types = {name: kind for name, one in found.items() if one.ndim == 2 and name != "token_embd.weight"}
    file = write(tmp_path / "small.gguf", found, more=tokenizer(), types=types)
    folder = unpack.obtain(file, tmp_path / "cache")
    config = check_folder(folder)
    assert config["quantization_config"]["share_in_4_bits"] == share
    assert config["quantization_config"]["head"] == kind
    quantizer = native_choice.published(config, recipes.read_config(config), tensors.bfloat16, CPU, ALONE)
    with Checkpoint(folder, tensors.bfloat16) as checkpoint:
        recipes.load_from(config, checkpoint, ALONE, quantizer)
        counted = checkpoint.bytes_made
    native = Driver(folder, torch.bfloat16).engine.native
    assert native is not None
    products = [
        one
        for operations in (native.program.body, native.program.head)
        for one in operations
        if one.kind == Kind.LINEAR
    ]
    assert {one.format.name for one in products} == {formats}
    held = sum(one.weight.nbytes for one in products if one.weight is not None)
    plain = [one for name, one in found.items() if name not in types]
    assert counted == held + sum(2 * one.size for one in plain)


def test_a_share_is_of_the_numbers_in_layers(folder: Path) -> None:
    given = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert "head" not in given, "which is in no blocks"
    # Of queries and what attention gives out 64 x 64 numbers each, and 32 x 64 of keys and values; 96 x 64 of three others.
    assert given["share_in_4_bits"] == 2 * 64 * 64 / (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)
