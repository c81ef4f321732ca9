"""Experts, recurrent layers, latents, chosen keys and linear biases on the CPU engine, one family for each kind: near to fp32 with every instruction set; the same to
the last bit in pieces, beside others, behind a snapshot, with one thread and with two; and quantized, with keys and values in 8 bits.
"""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks  # noqa: F401 - the driver is one of the worker's own tests
import torch
from families import FAMILIES, vocabulary_of
from models import LENGTH, Reference, ids, make
from torch import Tensor

import encoder_decoders
from penstock.loading.host import Processor
from penstock.models import building, recipes
from penstock.models.config import DecoderConfig
from penstock.models.native import NativeDecoder, NativeModel
from penstock.models.native_encoder_decoder import NativeEncoderDecoder
from penstock.models.packed_cache import PackedCache
from penstock.models.recorder import unknown_choice
from penstock.parallel.group import ALONE
from penstock_kernels import cpu_engine, tensors
from penstock_kernels.cpu_engine import NoCpuEngine
from penstock_kernels.program import Kind

try:
    SETS = cpu_engine.instruction_sets()
except NoCpuEngine as error:
    pytest.skip(str(error), allow_module_level=True)

KINDS = (
    "Mixtral",
    "Qwen2-MoE",
    "Qwen3-MoE",
    "GPT-OSS",
    "GLM-4.5, 4.6, 4.7",
    "ERNIE 4.5 MoE",
    "Phi 3.5 MoE",
    "Inkling",
    "Command A+",
    "North Mini",
    "Nemotron 3 (latent experts)",
    "Qwen3-Next",
    "Qwen 3.5",
    "Qwen 4",
    "OLMo Hybrid",
    "LFM2",
    "LFM3",
    "Granite 4 (experts)",
    "Falcon-H1",
    "Mamba 2",
    "MiniMax-Text-01",
    "Kimi Linear",
    "Ling 3.0",
    "Jamba",
    "Mamba",
    "RWKV 4",
    "DeepSeek V2 Lite",
    "DeepSeek V3",
    "DeepSeek V3.2",
    "DeepSeek V4",
    "DeepSeek V4, other rates",
    "A.X K2",
    "GLM-5",
    "dots 3 Note",
    "GLM-5, layers that share a choice",
    "Hunyuan 4",
    "MiniMax M3",
    "Mistral Small 4 with images",
    "Llama 4",
    "Hunyuan",
    "Laguna XS",
    "BLOOM",
    "MPT",
    "Persimmon",
    "Apertus",
    "OPT 350M",
    "Gemma 4 31B",
    "Gemma 4 26B A4B",
    "Gemma 4 E2B, E4B",
    "MiMo V2 Flash",
    "RecurrentGemma",
    "Gemma 3n",
)
LIMITS: dict[str, Any] = {"max_slots": 12, "max_step_tokens": 600, "max_sequence_tokens": 160, "blocks": 120}


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a server on this machine would have."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


# Loads each folder that it is told of, where torch cannot be imported, and says what it has made.
LOADS = """
import hashlib, sys
sys.modules.update({"torch": None, "transformers": None})
from pathlib import Path
from penstock.loading.host import Processor
from penstock.loading.model_files import read_config
from penstock.models import building
from penstock.parallel.group import ALONE
from penstock_kernels import tensors
for line in sys.stdin:
    folder = Path(line.strip())
    _, made = building.load(read_config(folder), folder, tensors.bfloat16, Processor(), ALONE, False, "auto")
    print(hashlib.sha256(str(made.program).encode()).hexdigest(), flush=True)
    for tensor in made.program.tensors():
        print(hashlib.sha256(tensor.tobytes()).hexdigest(), flush=True)
    print(flush=True)
"""


@pytest.fixture(scope="module")
def without_torch() -> Iterator[subprocess.Popen[str]]:
    """A process that loads models where there is no torch."""
    command = [sys.executable, "-c", LOADS]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.communicate()


def is_served(family: str) -> bool:
    """Whether the engine runs it."""
    shape = recipes.read_config(FAMILIES[family])
    return isinstance(shape, DecoderConfig) and unknown_choice(shape) is None


@pytest.mark.few(15)
@pytest.mark.parametrize("family", [name for name in FAMILIES if is_served(name)])
def test_a_family_is_loaded_where_there_is_no_torch(
    family: str, without_torch: subprocess.Popen[str], tmp_path: Path
) -> None:
    folder = make(tmp_path, FAMILIES[family])
    assert isinstance(loaded_in_both(FAMILIES[family], folder, without_torch), NativeDecoder)


@pytest.mark.parametrize("family", encoder_decoders.FAMILIES)
def test_an_encoder_decoder_is_loaded_where_there_is_no_torch(
    family: str, without_torch: subprocess.Popen[str], tmp_path: Path
) -> None:
    folder = encoder_decoders.write(tmp_path, family)
    made = loaded_in_both(json.loads((folder / "config.json").read_text()), folder, without_torch)
    assert isinstance(made, NativeEncoderDecoder)


def loaded_in_both(config: dict[str, Any], folder: Path, without_torch: subprocess.Popen[str]) -> Any:
    """The model, which is the same where there is no torch."""
    told, answer = without_torch.stdin, without_torch.stdout
    assert told is not None and answer is not None
    print(folder, file=told, flush=True)
    said = list(iter(lambda: answer.readline().strip(), ""))
    _, made = building.load(config, folder, tensors.bfloat16, Processor(), ALONE, False, "auto")
    assert isinstance(made, NativeModel)
    program = made.program
    expected = [str(program).encode(), *(tensor.tobytes() for tensor in program.tensors())]
    assert said == [hashlib.sha256(one).hexdigest() for one in expected], without_torch.poll()
    return made


def driver_of(folder: Path, **options: Any) -> Any:
    from driver import Driver

    made = Driver(folder, torch.bfloat16, **LIMITS, **options)
    assert isinstance(made.engine.model, NativeDecoder)
    return made


def whole(driver: Any, sequence: list[int]) -> Tensor:
    """Logits (T, V) after every token, in one piece."""
    from client import row

    blocks = list(range(-(-len(sequence) // 16)))
    return driver.all_logits(  # type: ignore[no-any-return]
        [row(0, sequence, 0, blocks, start={}, sample=False, targets=[1] * len(sequence))]
    )


@pytest.mark.few(20)
@pytest.mark.parametrize("family", KINDS)
def test_a_family_is_near_to_fp32_with_every_instruction_set(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FAMILIES[family]
    folder = make(tmp_path, config)
    sequence = ids(vocabulary_of(config), 1)
    reference = Reference(folder, [sequence])
    for name in SETS:
        monkeypatch.setenv(cpu_engine.VARIABLE, name)
        for position, logits_V in enumerate(whole(driver_of(folder), sequence)):
            reference.check(logits_V, 0, position, torch.bfloat16)


@pytest.mark.few(30)
@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("quantize", ["", "int4", "int4-g64-zp"])
def test_a_start_from_packed_weights_computes_the_same(
    family: str, quantize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FAMILIES[family]
    folder, sequence = make(tmp_path / "model", config), ids(vocabulary_of(config), 1)
    found = []
    for load in (recipes.load, pytest.fail):
        monkeypatch.setattr(recipes, "load", load)
        cache = PackedCache(tmp_path / "packed", keeps_all=True)
        driver = driver_of(folder, quantize=quantize, packed_cache=cache)
        found.append((whole(driver, sequence), str(driver.engine.native.program)))
        cache.keep()
        for thread in threading.enumerate():
            if thread.name == "packed cache":
                thread.join()
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]


@pytest.mark.few(60)
@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize(
    ("quantize", "cached"),
    [("", "auto"), ("int8", "int8"), ("int4", "fp8_e4m3fn"), ("int4-g64-zp", "auto"), ("int4-g128", "int8")],
    ids=["", "int8", "int4", "int4-g64-zp", "int4-g128"],
)
def test_a_token_is_the_same_to_the_last_bit(family: str, quantize: str, cached: str, tmp_path: Path) -> None:
    from client import row

    config = FAMILIES[family]
    folder, sequence = make(tmp_path, config), ids(vocabulary_of(config), 1)
    shape = recipes.read_config(config)
    assert isinstance(shape, DecoderConfig)
    if shape.compressions:
        cached = "auto"  # there is no other
    driver = driver_of(folder, quantize=quantize, cache_dtype=cached)
    native = driver.engine.native
    whole_TV = whole(driver, sequence)
    if quantize:
        exact = whole(driver_of(folder), sequence)
        error = (whole_TV - exact).norm() / (exact - exact.mean(-1, keepdim=True)).norm()
        # A route that tips sends a token elsewhere.
        assert 0 < error < (0.5 if quantize == "int8" else 1.2), float(error)
    position = 0
    for turn, count in enumerate((1, 3, 16, 37, 30, *[1] * 12)):
        native.set_threads(1 + turn % 2)
        rows = []
        for slot in range(1, 7 - turn // 3):  # in the end the first is alone
            blocks = [] if position else list(range(8 * slot, 8 * slot + 7))
            start: dict[str, Any] | None = None if position else {}
            # The third piece ends at 20, and the fourth at 57.
            saves = [(28, 2)] if slot == 1 and turn == 3 and driver.has_state else []
            rows.append(
                row(slot, sequence[position : position + count], position, blocks, start=start, saves=saves)
            )
        driver.step(rows)
        position += count
        assert torch.equal(driver.last_logits()[0], whole_TV[position - 1]), position
    # Behind blocks of the first slot, and the state that it kept behind 48 tokens.
    shared = [8, 9, 10, *range(60, 64)]
    begins = {"state_source": 2} if driver.has_state else {}
    driver.step([row(9, sequence[48:], 48, shared, start=begins)])
    assert torch.equal(driver.last_logits()[0], whole_TV[LENGTH - 1])


@pytest.mark.parametrize("quantize", ["", "int8"])
@pytest.mark.parametrize("family", ["Gemma 3n", "Gemma 4 E2B, E4B"])
def test_layers_without_keys_of_their_own_compute_what_is_asked_for(
    family: str, quantize: str, tmp_path: Path
) -> None:
    """Pieces of prompts that nobody asks anything of, prompts, a decode, drafts and logits of a prompt, in one step and in any order."""
    from client import row

    config = FAMILIES[family]
    sequence = ids(vocabulary_of(config), 1)
    driver = driver_of(make(tmp_path, config), quantize=quantize)
    assert any(one.kind == Kind.NARROW for one in driver.engine.native.program.body)
    whole_TV = whole(driver, sequence)
    places = {slot: list(range(8 * slot, 8 * slot + 7)) for slot in range(1, 6)}

    def piece(slot: int, begin: int, end: int, **choices: Any) -> dict[str, Any]:
        start: dict[str, Any] | None = None if begin else {}
        blocks = [] if begin else places[slot]
        return row(slot, sequence[begin:end], begin, blocks, start=start, **choices)

    # Of nothing but pieces: no hidden state is asked for.
    driver.step([piece(1, 0, 17, sample=False), piece(2, 0, 40, sample=False)])
    driver.step(
        [
            piece(3, 0, 33, sample=False),
            piece(1, 17, 51),
            piece(4, 0, 20, sample=False, targets=[1] * 20),
            piece(2, 40, 41),
            piece(5, 0, 1),
        ]
    )
    made_SV = torch.cat(driver.logits)
    expected = [50, 40, 0, *range(20)]
    assert len(made_SV) == len(expected)
    for logits_V, position in zip(made_SV, expected, strict=True):
        assert torch.equal(logits_V, whole_TV[position]), position
    # What the pieces wrote is there for those behind them; and drafts are verified behind a piece.
    driver.step([piece(3, 33, 60), piece(1, 51, 52, drafts=sequence[52:55]), piece(4, 20, 30, sample=False)])
    made_SV = torch.cat(driver.logits)
    for logits_V, position in zip(made_SV, [59, 51, 52, 53, 54], strict=True):
        assert torch.equal(logits_V, whole_TV[position]), position


# DeepSeek: the first splits have most of their keys chosen and are read where they are, the last ones are copied. MiniMax: blocks of whole
# pages, and blocks that are not, which are copied or not by how many of their keys a split has.
OF_SEVERAL_SPLITS: dict[str, dict[str, Any]] = {
    "DeepSeek V3.2": {"index_topk": 180},
    "MiniMax M3": {"sparse_topk_blocks": 6, "sparse_block_size": 32},
    "MiniMax M3, odd blocks": {"sparse_topk_blocks": 9, "sparse_block_size": 50},
}


def with_choices(family: str, **changes: Any) -> dict[str, Any]:
    """The family's shape, of which an index chooses otherwise."""
    config: dict[str, Any] = FAMILIES[family.split(",")[0]]
    if "text_config" not in config:
        return {**config, **changes, "max_position_embeddings": 1024}
    text = config["text_config"]
    index = {**text["sparse_attention_config"], **changes}
    return {
        **config,
        "text_config": {**text, "sparse_attention_config": index, "max_position_embeddings": 1024},
    }


@pytest.mark.parametrize("family", OF_SEVERAL_SPLITS)
def test_keys_chosen_of_several_splits_are_those_of_fp32_and_the_same_in_pieces(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from client import row
    from driver import Driver

    config = with_choices(family, **OF_SEVERAL_SPLITS[family])
    folder, sequence = make(tmp_path, config), ids(vocabulary_of(config), 1, 700)
    reference = Reference(folder, [sequence])
    limits: dict[str, Any] = {
        "max_slots": 4,
        "max_step_tokens": 800,
        "max_sequence_tokens": 720,
        "blocks": 100,
    }
    for name in SETS:
        monkeypatch.setenv(cpu_engine.VARIABLE, name)
        driver = Driver(folder, torch.bfloat16, **limits)
        assert isinstance(driver.engine.model, NativeDecoder)
        whole_TV = whole(driver, sequence)
        for position in range(0, 700, 23):
            reference.check(whole_TV[position], 0, position, torch.bfloat16)
        blocks, position = list(range(50, 94)), 0
        for count in (1, 190, 77, 256, 150, *[1] * 26):
            fed = sequence[position : position + count]
            start: dict[str, Any] | None = None if position else {}
            driver.step([row(1, fed, position, [] if position else blocks, start=start)])
            position += count
            assert torch.equal(driver.last_logits()[0], whole_TV[position - 1]), position
        assert position == 700
