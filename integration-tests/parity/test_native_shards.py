"""Families in two shards on the CPU engine: near to fp32, and the same to the last bit whole, in pieces and beside others; with weights
and keys in 8 bits, too. What the engine does not compute in parts is torch's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, vocabulary_of
from models import Reference, ids, make
from ranks import Ranks, RanksDriver
from torch import Tensor

from penstock.models.native import NativeDecoder
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine
from penstock_kernels.program import Kind

try:
    cpu_engine.instruction_set()
except NoCpuEngine as error:
    pytest.skip(str(error), allow_module_level=True)

KINDS = (
    "LLaMA 3",
    "Qwen 3",
    "GPT-2",
    "OPT 350M",
    "BLOOM",
    "MPT",
    "Falcon 7B",
    "Pythia, GPT-NeoX",
    "Gemma 2",
    "Gemma 3",
    "Cohere (Command R)",
    "Mixtral",
    "Qwen2-MoE",
    "GPT-OSS",
    "Llama 4",
    "DeepSeek V2 Lite",
    "DeepSeek V3",
    "DeepSeek V3.2",
    "DeepSeek V4",
    "A.X K2",
    "GLM-5, layers that share a choice",
    "Hunyuan 4",
    "dots 3 Note",
    "MiniMax M3",
    "Qwen3-Next",
    "Qwen 3.5",
    "Qwen 4",
    "Kimi Linear",
    "LFM2",
    "Falcon-H1",
    "RecurrentGemma",
    "Mamba",
    "RWKV 4",
    "Jamba",
    "Gemma 4 26B A4B",
    "Nemotron 3 (latent experts)",
)
# What all ranks' channels are summed up for within a layer.
ON_TORCH = ("OLMo 2", "Granite 4 (experts)", "MiniMax-Text-01", "Gemma 3n", "Gemma 4 E2B, E4B")
LIMITS: dict[str, Any] = {"max_slots": 12, "max_step_tokens": 600, "max_sequence_tokens": 160, "blocks": 120}
PIECES = (1, 3, 16, 37, 30, *[1] * 12)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(tmp_path_factory.mktemp("group"), shards=2) as pair:
        yield pair


def on_engine(pair: Ranks, folder: Path, **options: Any) -> RanksDriver:
    made = pair.driver(folder, torch.bfloat16, **LIMITS, **options)
    native = made.driver.engine.model
    assert isinstance(native, NativeDecoder) and native.group.size == 2
    assert any(operation.kind == Kind.REDUCE for operation in native.program.body)
    return made


def whole(driver: RanksDriver, sequence: list[int]) -> Tensor:
    """Logits (V,) in one step, behind as much of the sequence as all pieces have."""
    from client import row

    driver.step([row(0, sequence[: sum(PIECES)], 0, list(range(7)), start={})])
    return driver.last_logits()[0].clone()


def in_pieces(driver: RanksDriver, sequence: list[int]) -> Iterator[tuple[int, Tensor]]:
    """Position and logits behind each piece of the first of some rows, of which the others end early."""
    from client import row

    position = 0
    for turn, count in enumerate(PIECES):
        piece = sequence[position : position + count]
        rows = []
        for slot in range(1, 7 - turn // 3):
            blocks = [] if position else list(range(8 * slot, 8 * slot + 7))
            rows.append(row(slot, piece, position, blocks, start=None if position else {}))
        driver.step(rows)
        position += count
        yield position - 1, driver.last_logits()[0].clone()


@pytest.mark.few(12)
@pytest.mark.parametrize("family", KINDS)
def test_a_family_in_two_shards_is_near_to_fp32_and_the_same_to_the_last_bit(
    family: str, tmp_path: Path, pair: Ranks
) -> None:
    config = FAMILIES[family]
    folder, sequence = make(tmp_path, config), ids(vocabulary_of(config), 1)
    reference = Reference(folder, [sequence])
    driver = on_engine(pair, folder)
    at_once = whole(driver, sequence)
    reference.check(at_once, 0, sum(PIECES) - 1, torch.bfloat16)
    for position, logits_V in in_pieces(driver, sequence):
        reference.check(logits_V, 0, position, torch.bfloat16)
    assert torch.equal(logits_V, at_once)


@pytest.mark.parametrize("family", ["LLaMA 3", "GPT-OSS", "Qwen 3.5", "DeepSeek V3", "MiniMax M3"])
@pytest.mark.parametrize(
    ("quantize", "cached"), [("int8", "int8"), ("int4", "fp8_e4m3fn"), ("int4-g64-zp", "auto")]
)
def test_quantized_shards_are_the_same_to_the_last_bit(
    family: str, quantize: str, cached: str, tmp_path: Path, pair: Ranks
) -> None:
    config = FAMILIES[family]
    folder, sequence = make(tmp_path, config), ids(vocabulary_of(config), 1)
    exact_NV = torch.stack([logits_V for _, logits_V in in_pieces(on_engine(pair, folder), sequence)])
    driver = on_engine(pair, folder, quantize=quantize, quantize_head=True, cache_dtype=cached)
    at_once = whole(driver, sequence)
    made_NV = torch.stack([logits_V for _, logits_V in in_pieces(driver, sequence)])
    assert torch.equal(made_NV[-1], at_once)
    error = (made_NV - exact_NV).norm() / (exact_NV - exact_NV.mean(-1, keepdim=True)).norm()
    # A route that tips sends a token elsewhere.
    assert 0 < error < (0.5 if quantize == "int8" else 1.2), float(error)


def test_all_ranks_keep_the_drafts_that_the_first_has_accepted(tmp_path: Path, pair: Ranks) -> None:
    from client import row, sampled

    config = FAMILIES["LLaMA 3"]
    folder, prompt = make(tmp_path, config), ids(vocabulary_of(config), 1)[:40]
    driver = on_engine(pair, folder, max_step_drafts=16)
    rows = [row(0, prompt, 0, list(range(4)), start={})]
    text: list[int] = []
    for position in range(40, 50):
        text += sampled(driver.step(rows))
        rows = [row(0, None, position)]
    driver.step([row(1, prompt, 0, list(range(10, 14)), start={})])
    wrong = (text[3] + 1) % vocabulary_of(config)
    result = driver.step([row(1, None, 40, drafts=[text[1], text[2], wrong, text[4]])])
    assert sampled(result) == text[1:4]
    # A tree: the second way goes on from the first draft.
    result = driver.step([row(1, None, 43, drafts=[text[4], wrong, text[5], text[6]], parents=[0, 1, 1, 3])])
    assert sampled(result) == text[4:8]
    assert sampled(driver.step([row(1, None, 47)])) == [text[8]]


@pytest.mark.parametrize("family", ["Qwen 3.5", "Falcon-H1", "LFM2"])
def test_all_ranks_go_on_with_the_state_behind_the_accepted_drafts(
    family: str, tmp_path: Path, pair: Ranks
) -> None:
    from client import row, sampled

    config = FAMILIES[family]
    folder, prompt = make(tmp_path, config), ids(vocabulary_of(config), 1)[:40]
    driver = on_engine(pair, folder, max_step_drafts=16)
    rows = [row(0, prompt, 0, list(range(5)), start={})]
    text: list[int] = []
    for position in range(40, 60):
        text += sampled(driver.step(rows))
        rows = [row(0, None, position)]
    driver.step([row(1, prompt, 0, list(range(10, 15)), start={})])
    known = 1
    for right in (2, 0, 4, 1):
        wrong = (text[known + right] + 1) % vocabulary_of(config)
        result = driver.step([row(1, None, 39 + known, drafts=[*text[known : known + right], wrong, 5])])
        assert sampled(result) == text[known : known + right + 1]
        known += right + 1
    assert sampled(driver.step([row(1, None, 39 + known)])) == [text[known]]


@pytest.mark.parametrize("family", ON_TORCH)
def test_what_is_made_of_all_ranks_at_once_is_torchs(family: str, tmp_path: Path, pair: Ranks) -> None:
    config = FAMILIES[family]
    folder, sequence = make(tmp_path, config), ids(vocabulary_of(config), 1)
    driver = pair.driver(folder, torch.bfloat16, **LIMITS)
    assert driver.driver.engine.native is None
    Reference(folder, [sequence]).check(whole(driver, sequence), 0, sum(PIECES) - 1, torch.bfloat16)
