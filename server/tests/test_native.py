"""A decoder on the CPU engine: logits as near to those of fp32 as torch's, the same numbers however a token is computed, and
the choice between the two.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import checkpoints
import penstock_kernels as ops
from client import DEVICE, row
from driver import NAN, Driver
from penstock.engine.tables import BLOCK_SIZE
from penstock.errors import UnusableModel
from penstock.models import building, recipes
from penstock.models.config import (
    BlockIndexConfig,
    DecoderConfig,
    ExpertsConfig,
    HyperConfig,
    IndexConfig,
    LatentConfig,
    LowRankHyperConfig,
    NormConfig,
    StreamsConfig,
)
from penstock.models.native import NativeDecoder
from penstock.models.native_choice import why_not
from penstock.models.ngram_config import NgramConfig
from penstock.models.packing import FORMATS
from penstock.models.recipes import read_config
from penstock.models.recorder import unknown_choice, unknown_choices
from penstock.models.recurrent_config import CompressedConfig, DeltaConfig, GriffinConfig, ShortConvConfig
from penstock.parallel.group import ALONE, TensorGroup
from penstock.proto import penstock_pb2 as pb
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine
from penstock_kernels.program import Kind
from test_parity import LENGTH, PROMPT, VARIANTS, Reference, blocks_for

try:
    SETS = cpu_engine.instruction_sets() if DEVICE == "cpu" else []
except NoCpuEngine:
    SETS = []
pytestmark = pytest.mark.skipif(not SETS, reason="there is no CPU engine here")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many as a server on this machine would have."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    return 2


def whole(driver: Driver, slot: int = 0) -> Tensor:
    """Logits (T, V) after every token of the prompt, in one piece."""
    return driver.all_logits(
        [row(slot, PROMPT, 0, blocks_for(LENGTH), start={}, sample=False, targets=[1] * LENGTH)]
    )


@pytest.mark.few(20)
@pytest.mark.parametrize("instruction_set", [*SETS, "none"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_in_bf16_is_as_near_to_fp32_as_transformers(
    name: str, instruction_set: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu_engine.VARIABLE, instruction_set)
    folder = checkpoints.write(tmp_path, checkpoints.config(**VARIANTS[name]))
    reference = Reference(folder, PROMPT, torch.bfloat16)
    driver = Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH)
    assert isinstance(driver.engine.model, NativeDecoder) == (instruction_set != "none")
    for position, logits_V in enumerate(whole(driver)):
        reference.check(logits_V, position)
    position = 0
    for count in (1, 16, 37, 30, *[1] * 16):
        start: dict[str, Any] | None = None if position else {}
        blocks = [] if position else blocks_for(LENGTH, 20)
        driver.step([row(1, PROMPT[position : position + count], position, blocks, start=start)])
        position += count
        reference.check(driver.last_logits()[0], position - 1)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize(
    ("quantize", "cache"),
    [("", "auto"), ("int8", "auto"), ("int4", "fp8_e4m3fn"), ("int4-g64-zp", "auto"), ("", "int8")],
)
def test_a_token_is_the_same_to_the_last_bit(
    quantize: str,
    cache: str,
    instruction_set: str,
    tmp_path: Path,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside others, in pieces, from cached blocks, after a preemption, with one thread and with two."""
    monkeypatch.setenv(cpu_engine.VARIABLE, instruction_set)
    folder = checkpoints.write(tmp_path, checkpoints.config(hidden_size=256, head_dim=48))
    driver = Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH, quantize=quantize, cache_dtype=cache)
    native = driver.engine.native
    assert native is not None and native.threads == threads
    whole_TV = whole(driver)
    position = 0
    for turn, count in enumerate((1, 3, 16, 37, 30, *[1] * 12)):
        native.set_threads(1 + turn % 2)
        rows = []
        for slot in range(1, 7 - turn // 3):  # in the end the first is alone
            blocks = [] if position else blocks_for(LENGTH, 8 * slot)
            start: dict[str, Any] | None = None if position else {}
            rows.append(row(slot, PROMPT[position : position + count], position, blocks, start=start))
        driver.step(rows)
        position += count
        assert torch.equal(driver.last_logits()[0], whole_TV[position - 1]), position
    # Cached blocks, of slot 0; and a sequence that lost its blocks and is computed anew, in another place.
    driver.step([row(7, PROMPT[64:], 64, [*blocks_for(64), 60, 61, 62], start={})])
    assert torch.equal(driver.last_logits()[0], whole_TV[-1])
    driver.step([], released=[1])
    driver.step(
        [row(1, PROMPT[:80], 0, blocks_for(LENGTH, 48), start={}), row(2, PROMPT[:9], 0, [9], start={})]
    )
    driver.step([row(1, PROMPT[80:], 80)])
    assert torch.equal(driver.last_logits()[0], whole_TV[-1])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_cache_of_8_bits_changes_every_variants_logits_a_little_and_takes_half(
    name: str, tmp_path: Path
) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config(**VARIANTS[name]))
    plain = Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH)
    exact, held = whole(plain), plain.engine.cache.bytes
    # Two, three and seven bits behind the point.
    for cache, bound, share in (("fp8_e5m2", 0.3, 0.5), ("fp8_e4m3fn", 0.15, 0.5), ("int8", 0.05, 0.7)):
        driver = Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH, cache_dtype=cache)
        error = relative_error(whole(driver), exact)
        assert 0 < error < bound, (cache, error)
        assert held / 2 <= driver.engine.cache.bytes <= held * share


def test_a_cache_of_8_bits_needs_the_cpu_engine(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    says = (
        "--kv-cache-dtype int8: only the CPU engine has such a cache, and it does not serve float32 weights"
    )
    with pytest.raises(UnusableModel, match=says):
        Driver(folder, torch.float32, max_sequence_tokens=LENGTH, cache_dtype="int8")


def relative_error(ours: Tensor, exact: Tensor) -> float:
    """Of logits, whose mean means nothing."""
    ours, exact = (logits - logits.mean(-1, keepdim=True) for logits in (ours, exact))
    return float((ours - exact).norm() / exact.norm())


@pytest.mark.few(8)
@pytest.mark.parametrize("name", VARIANTS)
def test_quantized_weights_change_every_variants_logits_a_little(name: str, tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config(**VARIANTS[name]))
    exact = whole(Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH))
    for quantize, (format, _) in FORMATS.items():
        bound = 0.08 if quantize == "int8" else 0.55
        for head in (False, True):
            driver = Driver(
                folder,
                torch.bfloat16,
                max_sequence_tokens=LENGTH,
                quantize=quantize,
                quantize_head=head,
            )
            native = driver.engine.native
            assert native is not None
            used = {
                operation.format.name
                for operation in (*native.program.body, *native.program.head)
                if operation.kind == Kind.LINEAR
            }
            assert used == ({format.name} if head else {format.name, "BF16"})
            error = relative_error(whole(driver), exact)
            assert 0 < error < bound, (quantize, head, error)


def test_a_line_says_what_is_quantized_and_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints.write(tmp_path / "dense", checkpoints.config())
    Driver(folder, torch.bfloat16, quantize="int8")
    assert f"{SETS[0]}, int8, head in bf16, threads: " in capsys.readouterr().err
    says = "--quantize int8: only the CPU engine quantizes weights"
    with pytest.raises(UnusableModel, match=f"{says}, and it does not serve float32 weights"):
        Driver(folder, torch.float32, quantize="int8")
    with pytest.raises(UnusableModel, match=f"{says}, and it does not serve models through transformers"):
        Driver(folder, torch.bfloat16, quantize="int8", implementation="transformers")
    monkeypatch.setenv(cpu_engine.VARIABLE, "none")
    with pytest.raises(UnusableModel, match=f"{says}: PENSTOCK_CPU_ISA is none"):
        Driver(folder, torch.bfloat16, quantize="int8")
    monkeypatch.delenv(cpu_engine.VARIABLE)
    rehearsed: list[object] = []
    monkeypatch.setattr(recipes, "load", rehearsed.append)
    config = checkpoints.config(
        architectures=["RecurrentGemmaForCausalLM"], model_type="recurrent_gemma", conv1d_width=12
    )
    wide = checkpoints.config(intermediate_size=70_000)
    with pytest.raises(UnusableModel, match="70000 inputs of a matrix, and the most are 65536"):
        building.load(wide, folder, torch.bfloat16, torch.device("cpu"), ALONE, False, "auto", "int8")
    with pytest.raises(UnusableModel, match="it does not serve convolutions of 12 tokens"):
        building.load(config, folder, torch.bfloat16, torch.device("cpu"), ALONE, False, "auto", "int4")
    assert not rehearsed, "refused before anything is read"
    with pytest.raises(
        UnusableModel, match="int4: on a GPU quantized weights go with bfloat16, not with float32"
    ):
        building.load(config, folder, torch.float32, torch.device("cuda:1"), ALONE, False, "auto", "int4")


def test_what_the_engine_does_not_serve_runs_on_torch_and_a_line_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    assert not isinstance(Driver(folder, torch.float32).engine.model, NativeDecoder)
    assert "torch runs the model: the CPU engine does not serve float32 weights" in capsys.readouterr().err
    assert isinstance(Driver(folder, torch.bfloat16).engine.model, NativeDecoder)
    said = capsys.readouterr().err
    assert f"the CPU engine runs the model: {SETS[0]}, bf16, threads: " in said


def test_an_instruction_set_that_is_not_there_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    monkeypatch.setenv(cpu_engine.VARIABLE, "sse9")
    with pytest.raises(
        UnusableModel,
        match="PENSTOCK_CPU_ISA is 'sse9', not one of amx, avx512, avx512vnni, avx512bw, avxvnni, avx2, i8mm, neon, generic or none",
    ):
        Driver(folder, torch.bfloat16)
    monkeypatch.setenv(cpu_engine.VARIABLE, "amx")
    monkeypatch.setattr(cpu_engine, "instruction_sets", lambda: ["avx2", "generic"])
    with pytest.raises(UnusableModel, match="PENSTOCK_CPU_ISA is amx, and this processor has avx2, generic"):
        Driver(folder, torch.bfloat16)


def test_without_the_library_torch_runs_the_model_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    monkeypatch.setattr(cpu_engine, "LIBRARY", tmp_path / "libpenstock_cpu.so")
    cpu_engine.library.cache_clear()
    try:
        assert not isinstance(Driver(folder, torch.bfloat16).engine.model, NativeDecoder)
    finally:
        cpu_engine.library.cache_clear()
    said = capsys.readouterr().err
    assert '"WARN"' in said and "the CPU engine was not built" in said


def test_weights_are_held_once(tmp_path: Path) -> None:
    config = checkpoints.config(
        hidden_size=256, intermediate_size=512, vocab_size=4000, tie_word_embeddings=True
    )
    folder = checkpoints.write(tmp_path, config)
    held = sum(tensor.nbytes for tensor in Driver(folder, torch.bfloat16).engine.model.weights())
    stored = (folder / "model.safetensors").stat().st_size // 2  # in fp32
    assert held < 1.05 * stored


def test_a_program_is_a_list_that_can_be_read(tmp_path: Path) -> None:
    native = Driver(checkpoints.write(tmp_path, checkpoints.config()), torch.bfloat16).engine.native
    assert native is not None
    lines = str(native.program).splitlines()
    assert lines[:4] == [
        "body",
        "   0  x = embed(ids): columns 64, weight",
        "   1  normed = norm(x): columns 64, norm rms, eps 1e-05, norm_weight",
        "   2  qkv = linear(normed): rows 128, columns 64, weight",
    ]
    assert "   6  x = norm" not in lines and lines.count("head") == 1
    assert lines[-1].split("  ")[-1] == "logits = linear(chosen normed): rows 199, columns 64, weight"


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"recurrent": GriffinConfig(16, 2, 12, "gelu")}, "convolutions of 12 tokens"),
    ({"recurrent": ShortConvConfig(16, 12)}, "convolutions of 12 tokens"),
    ({"recurrent": DeltaConfig(2, 2, 512, 16, 4, 1e-5)}, "states of 512 rows"),
    ({"experts": ExpertsConfig(5000, 8, ops.Routing(2))}, "more than 4096 experts"),
    (
        {"ngrams": NgramConfig((1,) * 9, (5,) * 8, 40, 4, 0, 4, 64)},
        "n-grams of more than 16 tokens, or convolutions over more than 24",
    ),
    (
        {"recurrent": CompressedConfig(2048, 8, 8, 1, 8)},
        "entries of 2048 numbers, or an index of 0 heads of 0",
    ),
    ({"head_dim": 1024}, "heads of 1024"),
    ({"head_dim": 15}, "heads of 15"),
]
UNKNOWN_EVERYWHERE: list[tuple[dict[str, Any], str]] = [
    (
        {"qk_norm": NormConfig(1e-5), "qk_norm_rotated": True, "qk_norm_over": "all"},
        "norms over all queries behind the rotation",
    ),
    ({"streams": StreamsConfig(17, 0, 8)}, "more than 16 residual streams"),
    ({"hyper": HyperConfig(17, 1.0, 1e-6, 1e-6)}, "more than 16 residual streams"),
    ({"hyper": LowRankHyperConfig(17, 8, NormConfig(1e-5))}, "more than 16 residual streams"),
    (
        {"index": BlockIndexConfig(1025, 16, 4, 8, NormConfig(1e-5))},
        "an index of more than 1024 heads, or 512 numbers",
    ),
    (
        {"latent": LatentConfig(32, 8, 16, 24, index=IndexConfig(8, 1024, 20))},
        "an index of more than 1024 heads, or 512 numbers",
    ),
    ({"activation": "gelu_python_other"}, "the activation gelu_python_other"),
]


@pytest.mark.parametrize(
    ("of_layer", "of_all", "words"),
    [(change, {}, words) for change, words in UNKNOWN]
    + [({}, change, words) for change, words in UNKNOWN_EVERYWHERE],
)
def test_a_choice_that_the_engine_does_not_know_is_named(
    of_layer: dict[str, Any], of_all: dict[str, Any], words: str
) -> None:
    plain = read_config(checkpoints.config())
    assert isinstance(plain, DecoderConfig)
    *others, last = plain.layers
    changed = replace(plain, layers=(*others, replace(last, **of_layer)), **of_all)
    assert words in unknown_choices(changed) and unknown_choice(changed) == words
    assert unknown_choice(plain) is None


def test_of_more_shards_than_experts_some_would_have_none() -> None:
    plain = read_config(checkpoints.config())
    assert isinstance(plain, DecoderConfig)
    of_two = replace(plain.layers[0], experts=ExpertsConfig(2, 8, ops.Routing(2)))
    shape = replace(plain, layers=(of_two, *plain.layers[1:]))
    assert why_not(shape, torch.bfloat16, TensorGroup(rank=1, size=2, neighbours=2)) is None
    assert (
        why_not(shape, torch.bfloat16, TensorGroup(rank=3, size=4, neighbours=4))
        == "ranks without an expert in several shards"
    )


def test_decodes_in_one_call_give_what_several_calls_give(tmp_path: Path, threads: int) -> None:
    """Greedy rows that go on; beside them one that is drawn, with penalties, one that wants alternatives, and two that are masked beside a greedy
    one, now and then by masks of nothing; and a row that has what is no number.
    """
    folder = checkpoints.write(tmp_path, checkpoints.config(hidden_size=256, head_dim=48))
    drivers = [Driver(folder, torch.bfloat16, max_sequence_tokens=LENGTH) for _ in range(2)]
    drivers[1].engine._repeats_of = lambda plan: None  # type: ignore[method-assign]
    repeated = 0

    def step(rows: list[dict[str, Any]], **more: Any) -> pb.StepResult:
        nonlocal repeated
        results = [driver.step(rows, **more) for driver in drivers]
        for result in results:
            for name in ("prepare_ns", "forward_ns", "sample_ns"):
                assert getattr(result, name) > 0
                result.ClearField(name)
        one, other = (np.frombuffer(result.logprobs, np.float32) for result in results)
        assert np.array_equal(one, other, equal_nan=True)
        for result in results:
            result.ClearField("logprobs")
        assert results[0] == results[1]
        ours, theirs = (driver.last_logits().numpy() for driver in drivers)
        assert np.array_equal(ours, theirs, equal_nan=True)
        repeated += drivers[0].engine.repeats is not None
        return results[0]

    step([row(slot, PROMPT[: 5 + slot], 0, blocks_for(LENGTH, 8 * slot), start={}) for slot in range(3)])
    drawn = {
        "temperatures": 0.9,
        "seeds": 7,
        "top_ps": 0.8,
        "repetition_penalties": 1.2,
        "history": PROMPT[:20],
    }
    joined: dict[int, dict[str, Any]] = {
        4: drawn,
        10: {"top_tokens": 2},
        16: {"temperatures": 0.5},
        23: drawn,
    }
    for turn in range(34):
        began = max((at for at in joined if at <= turn), default=-1)
        first_masked = {16: 18, 23: 26}.get(began, turn + 1)
        is_masked = first_masked <= turn < 30
        rows = [row(slot, None, 5 + slot + turn, masked=slot == 0 and is_masked) for slot in range(3)]
        released, masks = [], None
        if turn in joined:
            released = [3] if turn > 4 else []
            rows.append(row(3, PROMPT[:20], 0, blocks_for(LENGTH, 24), start=joined[turn]))
        elif began >= 0 and turn < 30:
            rows.append(row(3, None, 19 + turn - began, masked=is_masked))
        elif turn == 30:
            released = [3]
        if is_masked:
            masks = [[turn, 40], [5, 6, turn + 7]]
            if turn in (20, 28):
                masks[turn == 28] = []
        if turn == 33:
            for driver in drivers:
                first = int(driver.engine.slots.pages[0, 1, 0]) * BLOCK_SIZE
                driver.engine.cache.tensors_NJD[0][first] = NAN
        result = step(rows, released=released, masks=masks)
        assert [error.row for error in result.errors] == ([1] if turn == 33 else [])
        for number, allowed in zip((0, 3), masks or [], strict=False):
            assert not allowed or np.frombuffer(result.sampled, np.uint32)[number] in allowed
    # Before the others joined, beside the first three and the fourth until they were masked and while they were, and in the end.
    assert repeated == 3 + 3 * 4 + (1 + 3) + 2, repeated
