"""Weights of 8 and 4 bits for GPUs: what a quantized decoder computes is what one with the numbers that its codes stand for does. Where there is no GPU,
torch computes both on the processor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import checkpoints
import encoder_decoders
from client import DEVICE, row
from driver import Driver
from penstock.engine.preparation import _step_bytes
from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.loading.checkpoint import Checkpoint
from penstock.models import native_choice, recipes
from penstock.models.decoder import Decoder
from penstock.models.device_packing import FORMATS, DeviceQuantizer, Published
from penstock_kernels import cpu_engine, packed_matrix
from penstock_kernels.cpu_engine import NoCpuEngine
from penstock_kernels.program import Format
from test_codes import gpt_oss
from test_parity import LENGTH, blocks_for
from test_published import written

try:
    ENGINE: str | None = cpu_engine.instruction_set()
except NoCpuEngine:
    ENGINE = None

DEVICE_ = torch.device(DEVICE)
REAL_PUBLISHED, REAL_QUANTIZER = native_choice.published, native_choice.quantizer
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "torch_dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: torch runs models, and weights may be quantized for it."""
    if DEVICE == "cpu":
        monkeypatch.setenv(cpu_engine.VARIABLE, "none")

        def quantizer(
            shape: Any, dtype: Any, device: Any, group: Any, name: str, head: bool, threads: int
        ) -> DeviceQuantizer:
            return DeviceQuantizer(device, *FORMATS[name], head)

        monkeypatch.setattr(native_choice, "quantizer", quantizer)


def linears(driver: Driver) -> list[Linear]:
    """Of the layers."""
    model: Any = driver.engine.model
    assert isinstance(model, Decoder)
    found = []
    for layer in model.layers:
        attention, feed_forward = layer.attention, layer.feed_forward
        found += [attention.qkv, attention.out, feed_forward.up, feed_forward.out]  # type: ignore[union-attr]
    return found


def logits(driver: Driver) -> Tensor:
    """Behind a prompt, and behind another token of it, which is alone in its step."""
    ids = torch.randint(3, 199, (LENGTH - 1,), generator=torch.Generator().manual_seed(0)).tolist()
    driver.step([row(0, ids[:-1], blocks=blocks_for(LENGTH), start={})])
    found = [driver.logits[0]]
    driver.step([row(0, ids[-1:], position=LENGTH - 2)])
    return torch.cat([*found, driver.logits[0]])


def same(ours: Tensor, wanted: Tensor, error: float = 0.0) -> None:
    """`error`: of scales, which are in bf16. A GPU adds up in another order."""
    if DEVICE == "cpu" and not error:
        assert torch.equal(ours, wanted)
    else:
        assert (ours - wanted).norm() < max(error, 0.03) * wanted.norm()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_decoder_computes_with_what_codes_stand_for(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoints.write(
        tmp_path / "model",
        config := checkpoints.config(**SHAPE),
        checkpoints.tensors(config, dtype=torch.bfloat16),
    )
    driver = Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH, quantize=name)
    packed = [linear.packed for linear in linears(driver)]
    bits, group, has_zeros = FORMATS[name]
    for one, linear in zip(packed, linears(driver), strict=True):
        assert one is not None and (one.bits, one.group) == (bits, group) and len(linear.weight_OI) == 0
        assert (one.offsets is not None) == has_zeros
    head: Any = driver.engine.model.ends.head  # type: ignore[attr-defined]
    assert head.packed is None
    assert f"layers in {name}, head in bf16" in capsys.readouterr().err
    found = logits(driver)

    plain = Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH)
    kept = sum(tensor.nbytes for tensor in plain.engine.model.weights())
    assert sum(tensor.nbytes for tensor in driver.engine.model.weights()) < 0.75 * kept
    assert driver.engine.model.parameters == plain.engine.model.parameters
    rounded_away = (found - logits(plain)).norm() / found.norm()
    assert 0 < rounded_away < (0.05 if bits == 8 else 0.5)
    plain.begin()
    for one, linear in zip(packed, linears(plain), strict=True):
        assert one is not None
        linear.weight_OI = packed_matrix.unpacked(one)
    same(found, logits(plain))


def test_a_head_is_quantized_where_that_is_asked_for(tmp_path: Path) -> None:
    for tied in (False, True):
        config = checkpoints.config(**SHAPE, tie_word_embeddings=tied)
        folder = checkpoints.write(
            tmp_path / str(tied), config, checkpoints.tensors(config, dtype=torch.bfloat16)
        )
        driver = Driver(
            folder, torch.bfloat16, max_sequence_tokens=LENGTH, quantize="int8", quantize_head=True
        )
        ends: Any = driver.engine.model.ends  # type: ignore[attr-defined]
        assert ends.head.packed is not None and len(ends.embedding.weight_VE) == 199
        assert torch.isfinite(logits(driver)).all()


def test_batches_do_not_matter_to_deterministic_ones(tmp_path: Path) -> None:
    config = checkpoints.config(**SHAPE)
    folder = checkpoints.write(tmp_path / "model", config, checkpoints.tensors(config, dtype=torch.bfloat16))
    driver = Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH, quantize="int4", deterministic=True)
    ids = list(range(3, 40))
    driver.step([row(0, ids, blocks=blocks_for(LENGTH), start={})])
    alone = driver.logits[0][0]
    driver.begin()
    rows = [row(slot, ids[slot:], blocks=[5 * slot + at for at in range(5)], start={}) for slot in range(4)]
    driver.step(rows)
    assert torch.equal(driver.logits[0][0], alone)


def test_matrices_without_whole_groups_stay(tmp_path: Path) -> None:
    config = checkpoints.config(**SHAPE | {"hidden_size": 96, "intermediate_size": 192})
    folder = checkpoints.write(tmp_path / "model", config, checkpoints.tensors(config, dtype=torch.bfloat16))
    driver = Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH, quantize="int4-g64")
    assert [linear.packed is not None for linear in linears(driver)] == [False, True, False, True] * 3
    assert torch.isfinite(logits(driver)).all()


@pytest.mark.skipif(ENGINE is None, reason="the CPU engine's loader finds codes")
@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed-tensors"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_what_is_published_in_4_bits_stays_so(
    kind: str, group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, plain = written(tmp_path, kind, group, "down_proj")
    assert ENGINE is not None
    found = Published(Format[f"GROUPS_{group}"], ENGINE, 2)
    if DEVICE == "cpu":
        how = DeviceQuantizer(DEVICE_, 4, group, with_zeros=True, published=found)
        monkeypatch.setattr(native_choice, "published", lambda *_: how)
    driver = Driver(codes, torch.bfloat16, max_sequence_tokens=LENGTH)
    # What is not of 4 bits there stays as it is.
    assert [linear.packed is not None for linear in linears(driver)] == [True, True, True, False] * 2
    for linear in linears(driver)[:3]:
        assert linear.packed is not None and linear.packed.group == group
        assert (linear.packed.offsets is None) == (kind == "compressed-tensors")
    monkeypatch.setattr(native_choice, "published", lambda *_: None)
    wanted = logits(Driver(plain, torch.bfloat16, max_sequence_tokens=LENGTH))
    # Scales of GPTQ and AWQ are published in fp16.
    same(logits(driver), wanted, 0.0 if kind == "compressed-tensors" else 0.02)


def test_memory_is_counted_as_it_is_taken(tmp_path: Path) -> None:
    for name, head in (("int8", True), ("int4", False), ("int4-g128-zp", True)):
        config = checkpoints.config(**SHAPE)
        folder = checkpoints.write(tmp_path / name, config, checkpoints.tensors(config, dtype=torch.bfloat16))
        quantizer = DeviceQuantizer(DEVICE_, *FORMATS[name], head)
        with Checkpoint(folder, torch.bfloat16) as checkpoint:
            recipes.load_from(config, checkpoint, quantizer=quantizer)
            expected = checkpoint.bytes_made
        model = recipes.load(config, folder, torch.bfloat16, DEVICE_, quantizer=quantizer)
        assert sum(tensor.nbytes for tensor in model.weights()) == expected


def test_written_out_matrices_are_counted(tmp_path: Path) -> None:
    config = checkpoints.config(**SHAPE)
    folder = checkpoints.write(tmp_path, config, checkpoints.tensors(config, dtype=torch.bfloat16))
    held = [Driver(folder, torch.bfloat16, quantize=name).engine for name in ("", "int4")]
    plain, packed = (_step_bytes(engine, 4, 600, 512, 0) for engine in held)
    # A graph of decodes, a mixed one and a step without: gate and up projections lie in one matrix.
    assert packed - plain == 3 * 2 * 512 * 256 * 2


def test_what_cannot_be_quantized_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    gpu = torch.device("cuda")

    def refused(config: dict[str, Any] | None, dtype: torch.dtype) -> str:
        shape = None if config is None else recipes.read_config(config)
        with pytest.raises(UnusableModel) as caught:
            native_choice.quantizer(shape, dtype, gpu, None, "int4", False)  # type: ignore[arg-type]
        return str(caught.value)

    says = "--quantize int4: on a GPU "
    dense = checkpoints.config()
    assert refused(dense, torch.float16) == f"{says}quantized weights go with bfloat16, not with float16"
    others = f"{says}weights of encoder-decoders and of models through transformers are not quantized"
    assert (
        refused(
            {
                **encoder_decoders.T5,
                "model_type": "t5",
                "architectures": ["T5ForConditionalGeneration"],
                "vocab_size": 99,
            },
            torch.bfloat16,
        )
        == others
    )
    assert refused(None, torch.bfloat16) == others
    experts = json.loads((gpt_oss(tmp_path)[0] / "config.json").read_text())
    assert refused(experts, torch.bfloat16) == f"{says}experts are not quantized"
    shape = recipes.read_config(dense)
    taken = native_choice.quantizer(shape, torch.bfloat16, gpu, None, "int4-g64-zp", True)  # type: ignore[arg-type]
    assert taken == DeviceQuantizer(gpu, 4, 64, True, True)


def test_what_is_published_in_4_bits_is_served_in_bf16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most are published beside fp16, which no kernel has with them."""
    folder, _ = written(tmp_path, "awq", 64)
    config = json.loads((folder / "config.json").read_text())
    dense = {key: value for key, value in config.items() if key != "quantization_config"}

    def served(config: dict[str, Any], asked: str = "auto", quantize: str = "", how: str = "auto") -> str:
        return native_choice.dtype_on_gpu(config, "float16", asked, quantize, how)

    assert served(config) == "bfloat16"
    assert served(config, asked="float16") == served(config, quantize="none") == "float16"
    assert served(config, how="transformers") == served(dense) == "float16"
    mixed = json.loads((gpt_oss(tmp_path / "experts")[0] / "config.json").read_text())
    assert served(mixed) == "float16"
    # Where there are no kernels, numbers are better.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(native_choice, "no_gpu_kernels", lambda: "PENSTOCK_GPU_KERNELS=none")
    assert served(config) == "float16"
    shape = recipes.read_config(config)
    gpu = torch.device("cuda")
    assert REAL_PUBLISHED(config, shape, torch.bfloat16, gpu, None) is None  # type: ignore[arg-type]
    with pytest.raises(UnusableModel, match="there are none: PENSTOCK_GPU_KERNELS=none"):
        REAL_QUANTIZER(shape, torch.bfloat16, gpu, None, "int8", False)  # type: ignore[arg-type]
