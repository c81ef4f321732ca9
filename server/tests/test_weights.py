"""Checkpoints that are broken, hostile or of a family that is not served: one line that names what is wrong."""

import json
import os
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import checkpoints
from penstock.engine.engine import Engine
from penstock.errors import UnusableModel
from penstock.loading import checkpoint
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.checks import check_folder
from penstock.loading.memory import Room
from penstock.loading.model_files import Stored, dtype_name
from penstock.loading.tensor_reader import TensorReader
from penstock.models import recipes
from penstock.models.decoder import Attention, Decoder
from penstock.parallel.group import Pipeline, TensorGroup
from penstock_kernels import tensors
from penstock_kernels.tensors import in_torch

CPU = torch.device("cpu")
# Of a checkpoint in three files.
FIRST = "model-00001-of-00003.safetensors"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Engine:
    """Loads as the worker does."""
    return Engine(check_folder(folder), folder, dtype, CPU)


def refusal(folder: Path) -> str:
    """Why the folder is not served."""
    with pytest.raises(UnusableModel) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the JSON header of a safetensors file and leaves its data."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    change(header)
    new = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + size :])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path / "model", checkpoints.config())


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 100, 8, 3, 0):
        path.write_bytes(whole[:size])
        assert refusal(folder).startswith("model.safetensors: not a sound safetensors file")


def test_a_file_that_is_cut_short_while_it_is_read_is_named(tmp_path: Path) -> None:
    names, path = ("first", "second"), tmp_path / "model.safetensors"
    save_file({name: torch.ones(300, 300) for name in names}, path)

    def build(checkpoint: Checkpoint) -> None:
        for name in names:
            checkpoint.tensor(name, (300, 300))
            if not checkpoint.is_rehearsal:
                os.truncate(path, path.stat().st_size // 2)
        checkpoint.check_all_used(re.compile(""))

    with pytest.raises(UnusableModel, match=r"model\.safetensors was cut short while it was read"):
        checkpoint.load(tmp_path, torch.float32, CPU, build)


def test_a_rehearsal_that_puts_rows_in_another_order_takes_no_memory() -> None:
    """Of the experts of one of Inkling's layers numpy would take 9.7 GB."""
    rehearsed = tensors.empty((4, 6, 5), tensors.bfloat16, is_rehearsed=True)
    turned = rehearsed[:, [*range(0, 6, 2), *range(1, 6, 2), 0]]
    assert turned.shape == (4, 7, 5) and tensors.is_rehearsed(turned)
    assert set(tensors.host(turned).strides) == {0}
    assert rehearsed[0][[3, 1]].shape == (2, 5)


def test_a_huge_header_is_refused_before_it_is_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for size in (2**63, 2**40, len(data) * 2):
        path.write_bytes(struct.pack("<Q", size) + data[8:])
        assert refusal(folder).startswith("model.safetensors: not a sound safetensors file")


def test_a_header_that_is_no_json_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 16) + b"\x80\x04pickled bytes!" + b"\0" * 64)
    assert refusal(folder).startswith("model.safetensors: not a sound safetensors file")


@pytest.mark.parametrize("shift", [-4, 4, 1 << 40])
def test_wrong_offsets_are_refused(shift: int, folder: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        entry = header["model.layers.1.mlp.down_proj.weight"]
        entry["data_offsets"] = [abs(offset + shift) for offset in entry["data_offsets"]]

    rewrite_header(folder / "model.safetensors", change)
    assert refusal(folder).startswith("model.safetensors: not a sound safetensors file")


def test_a_missing_an_extra_and_a_misshapen_tensor_are_named_together(folder: Path) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    del weights["model.layers.2.self_attn.k_proj.weight"]
    checkpoints.write(folder, config, weights)
    lacks = "lacks 1 tensor: model.layers.2.self_attn.k_proj.weight"
    assert refusal(folder) == f"model.safetensors contradicts config.json: {lacks}"

    weights["model.layers.3.mlp.up_proj.weight"] = torch.zeros(2, 2)
    name = "model.layers.1.self_attn.k_proj.weight"
    weights[name] = weights[name].T.contiguous()
    checkpoints.write(folder, config, weights)
    assert refusal(folder) == (
        f"model.safetensors contradicts config.json: {lacks}; 1 tensor of another shape: "
        f"{name} is [64, 32], not [32, 64]; "
        "1 tensor without a place in the model: model.layers.3.mlp.up_proj.weight"
    )


def test_of_many_the_first_ten_are_named_and_all_are_counted(tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config(num_hidden_layers=4))
    deep = checkpoints.write(tmp_path / "deep", checkpoints.config(num_hidden_layers=6), weights)
    said = refusal(deep)
    assert "lacks 18 tensors: model.layers.4.self_attn.q_proj.weight, " in said
    assert said.endswith(", and 8 more") and said.count("model.layers.") == 10
    flat = checkpoints.write(tmp_path / "flat", checkpoints.config(num_hidden_layers=2), weights)
    said = refusal(flat)
    assert "18 tensors without a place" in said and said.endswith(", and 8 more")
    narrow = checkpoints.config(num_hidden_layers=4, intermediate_size=96)
    said = refusal(checkpoints.write(tmp_path / "narrow", narrow, weights))
    assert (
        "12 tensors of another shape: model.layers.0.mlp.gate_proj.weight is [112, 64], not [96, 64]" in said
    )


def test_a_contradiction_is_found_before_a_weight_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("penstock.loading.tensor_reader.TensorReader._source", read)
    with pytest.raises(AssertionError, match="weights were read"):
        load(folder)
    (folder / "config.json").write_text(json.dumps(checkpoints.config(vocab_size=200)))
    assert "model.embed_tokens.weight is [199, 64], not [200, 64]" in refusal(folder)


def test_weights_that_memory_cannot_hold_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.loading.checkpoint.device_room", lambda _: Room(10**6, 4 * 10**5))
    assert "weights take 0.5 MB of memory, and 0.4 MB are free" in refusal(folder)


def test_ranks_on_one_machine_share_its_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that checks while another has begun to read finds what was free before that."""
    free = 4 * 10**5
    monkeypatch.setattr("penstock.loading.checkpoint.device_room", lambda _: Room(10**6, free))
    ranks = TensorGroup(0, 2, neighbours=2, free_bytes=free)
    with pytest.raises(
        UnusableModel, match=r"take 0.3 MB of memory, and 0.2 MB are free for each of 2 processes$"
    ):
        recipes.load(check_folder(folder), folder, torch.float32, CPU, ranks)
    recipes.load(check_folder(folder), folder, torch.float32, CPU, replace(ranks, free_bytes=2 * free))
    recipes.load(check_folder(folder), folder, torch.float32, CPU, TensorGroup(0, 2, neighbours=2))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_weights_that_are_no_numbers_are_named(number: float, stored: torch.dtype, folder: Path) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config, dtype=stored)
    for name in ("lm_head.weight", "model.layers.1.mlp.down_proj.weight"):
        weights[name][-1, 3] = number
    checkpoints.write(folder, config, weights)
    assert refusal(folder) == (
        "model.safetensors: 2 tensors with NaN or infinite numbers: "
        "model.layers.1.mlp.down_proj.weight (model.safetensors), lm_head.weight (model.safetensors)"
    )


def test_numbers_whose_sum_overflows_are_numbers(folder: Path) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    weights["lm_head.weight"].fill_(3e38)
    load(checkpoints.write(folder, config, weights))


def test_numbers_beyond_the_dtype_served_are_named(folder: Path) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    weights["model.norm.weight"][5] = 7e4
    checkpoints.write(folder, config, weights)
    load(folder)
    with pytest.raises(UnusableModel, match=r"too large .* model\.norm\.weight .*--dtype"):
        load(folder, torch.float16)


def test_a_tensor_of_whole_numbers_is_named(folder: Path) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    weights["model.norm.weight"] = torch.ones(64, dtype=torch.int32)
    checkpoints.write(folder, config, weights)
    assert "1 tensor of a dtype that cannot be used: model.norm.weight (I32)" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_weights_without_a_scheme_are_named_where_they_are_needed(
    dtype: torch.dtype, folder: Path
) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8).to(dtype)
    load(checkpoints.write(folder, config, weights))
    weights["model.layers.0.mlp.up_proj.weight"] = weights["model.layers.0.mlp.up_proj.weight"].to(dtype)
    checkpoints.write(folder, config, weights)
    assert "model.layers.0.mlp.up_proj.weight (F8_E" in refusal(folder)


def test_a_bias_that_config_does_not_announce_is_refused(folder: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config(attention_bias=True))
    checkpoints.write(folder, checkpoints.config(), weights)
    assert "12 tensors without a place in the model: model.layers.0.self_attn." in refusal(folder)


def test_known_leftovers_are_ignored(folder: Path) -> None:
    config = checkpoints.config(tie_word_embeddings=True)
    weights = checkpoints.tensors(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    load(checkpoints.write(folder, config, weights))


def test_a_head_that_differs_from_the_embedding_is_kept_whatever_config_ties(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    untied, tied = checkpoints.config(), checkpoints.config(tie_word_embeddings=True)
    weights = checkpoints.tensors(untied)
    # Only the last row differs: all of them are compared.
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["lm_head.weight"][-1, -1] += 1
    for group in (
        TensorGroup(),
        TensorGroup(0, 2),
        TensorGroup(1, 2),
        *(TensorGroup(pipeline=Pipeline(at, 2, TensorGroup(at, 2))) for at in range(2)),
    ):
        checkpoints.write(folder, untied, weights)
        wanted = recipes.load(untied, folder, torch.float32, CPU, group)
        capsys.readouterr()
        checkpoints.write(folder, tied, weights)
        found = recipes.load(tied, folder, torch.float32, CPU, group)
        assert (
            "and lm_head.weight differs from model.embed_tokens.weight: it is kept" in capsys.readouterr().err
        )
        assert isinstance(wanted, Decoder) and isinstance(found, Decoder)
        pairs = zip(found.weights(), wanted.weights(), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
        assert (found.parameters, found.repeated_parameters) == (wanted.parameters, 0)


def test_a_head_that_is_the_embedding_in_another_dtype_is_tied(folder: Path) -> None:
    config = checkpoints.config(tie_word_embeddings=True)
    weights = checkpoints.tensors(config)
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].bfloat16()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].float()
    model = load(checkpoints.write(folder, config, weights)).model
    assert isinstance(model, Decoder)
    assert model.ends.head is not None and model.ends.embedding is not None
    assert model.ends.head.weight_OI is model.ends.embedding.weight_VE


def test_a_head_of_another_shape_than_a_tied_one_is_refused(folder: Path) -> None:
    config = checkpoints.config(tie_word_embeddings=True)
    weights = checkpoints.tensors(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"][:-1].clone()
    assert "lm_head.weight is [198, 64], not [199, 64]" in refusal(checkpoints.write(folder, config, weights))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"../model-00001.safetensors": "x"}, "is not the name of a safetensors file"),
        ({"weights.bin": "x"}, "is not the name of a safetensors file"),
        ({"model-00009.safetensors": "x"}, "1 file is missing: model-00009.safetensors"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(
    change: dict[str, str], words: str, tmp_path: Path
) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.config(), shards=3)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"] |= {name: file for file, name in change.items()}
    index.write_text(json.dumps(content))
    assert words in refusal(folder)


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    """Changes which tensors are in which file."""
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))


def test_an_index_without_a_map_is_refused(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.config(), shards=3)
    for text in ("[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000):
        (folder / "model.safetensors.index.json").write_text(text)
        assert "weight_map" in refusal(folder)


def test_a_tensor_that_is_listed_and_in_no_file_is_missed_only_where_the_model_has_it(tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    del weights["model.norm.weight"]
    folder = checkpoints.write(tmp_path / "model", checkpoints.config(), weights, shards=3)
    change_index(folder, lambda files: files.update({"model.extra": FIRST}))
    says = "model.safetensors.index.json contradicts config.json: lacks 1 tensor: model.norm.weight"
    assert refusal(folder) == says
    change_index(folder, lambda files: files.update({"model.norm.weight": FIRST}))
    assert refusal(folder) == f"{says} (the index lists it in {FIRST}, and no file has it)"

    folder = checkpoints.write(tmp_path / "whole", checkpoints.config(), shards=3)
    change_index(folder, lambda files: files.update({"model.extra": FIRST}))
    load(folder)


def test_the_index_decides_which_file_a_tensor_is_taken_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    folder = checkpoints.write(tmp_path / "model", config, weights, shards=3)
    wanted = recipes.load(config, folder, torch.float32, CPU)
    assert "left out" not in capsys.readouterr().err
    # Older copies, in a file before and in one behind; and what nobody lists.
    for number, name in ((1, "lm_head.weight"), (3, "model.embed_tokens.weight"), (3, "model.extra")):
        path = folder / f"model-0000{number}-of-00003.safetensors"
        stale = torch.zeros_like(weights.get(name, torch.ones(2)))
        save_file({**load_file(path), name: stale}, path, metadata={"format": "pt"})
    found = recipes.load(config, folder, torch.float32, CPU)
    assert isinstance(wanted, Decoder) and isinstance(found, Decoder)
    assert all(torch.equal(*pair) for pair in zip(found.weights(), wanted.weights(), strict=True))
    said = capsys.readouterr().err
    assert said.count("left out") == 1
    assert "3 tensors are left out, in files that it does not name for them" in said
    assert f"the first is lm_head.weight in {FIRST}" in said


def test_a_tensor_that_the_index_gives_to_no_file_or_to_another_is_missing(tmp_path: Path) -> None:
    name, last = "model.norm.weight", "model-00003-of-00003.safetensors"
    folder = checkpoints.write(tmp_path / "model", checkpoints.config(), shards=3)
    change_index(folder, lambda files: files.update({name: FIRST}))
    assert f"lacks 1 tensor: {name} (the index lists it in {FIRST}, and only {last} has it)" in refusal(
        folder
    )
    change_index(folder, lambda files: files.pop(name))
    assert f"lacks 1 tensor: {name} ({last} has it, and the index does not list it)" in refusal(folder)


def test_a_name_that_is_twice_in_one_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + size].replace(b"layers.2.mlp.up_proj", b"layers.2.mlp.gate_proj", 1)
    header = header.rstrip().ljust(size + 16)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    name = "model.layers.2.mlp.gate_proj.weight"
    assert refusal(folder) == f"model.safetensors: 1 tensor is in it twice: {name}"


def test_every_shard_that_is_cut_short_is_named(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.config(), shards=3)
    for number, kept in ((1, -1), (3, 40)):
        path = folder / f"model-0000{number}-of-00003.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
    said = refusal(folder)
    assert "model-00001-of-00003.safetensors: not a sound safetensors file: it is cut short: " in said
    assert "; model-00003-of-00003.safetensors: not a sound" in said and "00002" not in said


def test_pickled_weights_are_not_loaded_without_consent(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    checkpoints.write(folder, checkpoints.config())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    said = refusal(folder)
    assert "only pickled ones (pytorch_model.bin)" in said and "--trust-remote-code" in said
    (folder / "pytorch_model.bin").rename(folder / "model.onnx")
    assert refusal(folder).endswith(
        "no model.safetensors and no model.safetensors.index.json, only model.onnx"
    )
    assert "ONNX files are not read" in refusal(folder)
    (folder / "adapter_config.json").touch()
    (folder / "adapter_model.safetensors").touch()
    assert "no weights but an adapter's (adapter_config.json; " in refusal(folder)
    assert refusal(folder).endswith("as --model-id it is served merged into that")
    (folder / "adapter_config.json").unlink()
    (folder / "config.json").unlink()
    (folder / "model.onnx").rename(folder / "other.gguf")
    assert refusal(folder).endswith("no config.json; it has GGUF files: name one of them")
    (folder / "adapter_config.json").touch()
    assert "no config.json; it is an adapter (adapter_config.json)" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["NobodysModelForCausalLM"]}, "NobodysModelForCausalLM"),
        ({"architectures": None, "model_type": None}, "unsupported architecture none"),
        ({"hidden_act": "relu6"}, "relu6"),
        ({"num_attention_heads": 3}, "num_key_value_heads"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"head_dim": 7}, "head_dim 7"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"rope_scaling": {"type": "spiral", "factor": 2}}, "spiral"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": "big"}}, "factor"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, "short_factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.3, "head_dim": 10}, "3 of head_dim 10 are rotated"),
    ],
)
def test_a_config_that_is_not_served_names_its_key(change: dict[str, Any], words: str, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(checkpoints.config(**change)))
    assert words in refusal(folder)


# Sizes that one piece of a copy holds, and that it does not; of whole rows, and of single numbers.
@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
@pytest.mark.parametrize("stored", [torch.float64, torch.float16, torch.bfloat16])
def test_ranges_of_rows_and_columns_are_what_slicing_gives(
    piece: int, stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.loading.tensor_reader.PIECE", piece)
    whole = torch.randn(24, 3, 40, generator=torch.Generator().manual_seed(1)).to(stored)
    line, one = whole[0, 0].clone(), torch.tensor(1.5, dtype=stored)
    folder = checkpoints.write(
        tmp_path, {}, {"a": whole, "b": line, "c": one, "d": torch.arange(5), "e": whole[:, 0].contiguous()}
    )
    rows, columns = [slice(2, 5), slice(20, 24), slice(0, 1)], [slice(30, 40), slice(7, 8)]
    with Checkpoint(folder, torch.bfloat16) as found, found.reading(tells=False):

        def read(*arguments: Any, **options: Any) -> torch.Tensor:
            return in_torch(found.tensor(*arguments, **options))

        taken = found.tensor("a", (24, 3, 40), rows, columns)
        assert taken.is_contiguous() and found.bytes_made == taken.nbytes
        expected = torch.cat([whole[some] for some in rows])
        expected = torch.cat([expected[..., some] for some in columns], -1)
        assert torch.equal(in_torch(taken), expected.to(torch.bfloat16))
        across = found.new((40, 24))
        found.fill(across.t(), "e", (24, 40))
        assert torch.equal(in_torch(across), whole[:, 0].t().to(torch.bfloat16))
        assert torch.equal(read("a", (24, 3, 40), dtype=tensors.float32), whole.float())
        assert read("a", (24, 3, 40), []).shape == (0, 3, 40)
        assert torch.equal(read("b", (40,), [slice(1, 40)]), line[1:].to(torch.bfloat16))
        assert torch.equal(read("c", ()), one.to(torch.bfloat16))
        assert torch.equal(read("d", (5,), dtype=tensors.int64), torch.arange(5))
        found.check_all_used(re.compile(""))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what the kernel says of memory")
def test_what_is_read_to_be_converted_may_have_huge_pages(folder: Path) -> None:
    with Checkpoint(folder, torch.bfloat16) as found, found.reading(tells=False):
        found.gives_back = True
        made = found.new((8 << 20,), tensors.uint8)
        middle = made.data_ptr() + made.nbytes // 2
        flags: list[str] = []
        is_there = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            area = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
            if area:
                is_there = int(area[1], 16) <= middle < int(area[2], 16)
            elif is_there and line.startswith("VmFlags:"):
                flags = line.split()[1:]
    assert "sh" not in flags, "shared pages are small"
    assert "hg" in flags


def test_tensors_that_are_not_aligned_are_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    expected = load(folder).model.weights()
    for more in (1, 2, 3):
        path.write_bytes(struct.pack("<Q", size + more) + data[8 : 8 + size] + b" " * more + data[8 + size :])
        assert all(map(torch.equal, load(folder).model.weights(), expected))


def test_a_rank_takes_only_its_part_out_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = checkpoints.config()
    folder = checkpoints.write(tmp_path, config)
    copied: list[int] = []
    take = TensorReader._take

    def count(reader: TensorReader, file: str, piece: tuple[torch.Tensor, torch.Tensor]) -> bool:
        copied.append(piece[1].numel())
        return take(reader, file, piece)

    monkeypatch.setattr(TensorReader, "_take", count)
    whole = recipes.load(config, folder, torch.float32, CPU)
    assert sum(copied) == whole.parameters == sum(t.numel() for t in whole.weights())
    for rank in range(2):
        copied.clear()
        part = recipes.load(config, folder, torch.float32, CPU, TensorGroup(rank, 2))
        norms = 64 * (2 * 3 + 1)
        # The vocabulary, 199 rows, is uneven: rank 1 has a row of zeros in embedding and head.
        assert sum(copied) == (whole.parameters - norms - 2 * 199 * 64) // 2 + norms + 2 * (100 - rank) * 64
        assert part.parameters == whole.parameters


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_converted_to_the_dtype_served(stored: torch.dtype, folder: Path) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config, dtype=stored)
    checkpoints.write(folder, config, weights)
    model = recipes.load(config, folder, torch.bfloat16, torch.device("cpu"))
    assert isinstance(model, Decoder)
    attention = model.layers[1].attention
    assert isinstance(attention, Attention)
    names = [f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkv"]
    assert torch.equal(
        attention.qkv.weight_OI, torch.cat([weights[name] for name in names]).to(torch.bfloat16)
    )


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"BF16": 8, "F32": 4, "I64": 100}, "bfloat16"),
        ({"F32": 8, "BF16": 4}, "float32"),
        ({"I32": 100, "F16": 8}, "float16"),
        ({"F64": 8}, "float32"),
        ({"F8_E4M3": 8}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_without_a_dtype_in_its_config_a_checkpoint_has_that_of_most_of_its_weights(
    stored: dict[str, int], expected: str
) -> None:
    found = {name: Stored("x", name, (), 0, size) for name, size in stored.items()}
    assert dtype_name({}, "auto", lambda: found) == expected
    assert dtype_name({}, "float16", lambda: found) == "float16"
    assert dtype_name({"dtype": "float16"}, "auto", lambda: found) == "float16"
