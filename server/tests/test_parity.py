"""Logits match Hugging Face transformers, in every variant and every way a sequence can be cut into steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import checkpoints
from client import DEVICE, row
from driver import Driver
from penstock_kernels import cpu_engine

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + i for i in range(8)],
    "original_max_position_embeddings": 64,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "all heads": {"num_key_value_heads": 4},
    "no num_key_value_heads": {"num_key_value_heads": None},
    "one key head": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "wide heads": {"head_dim": 32},
    "narrow heads": {"head_dim": 8},
    "gelu": {"hidden_act": "gelu"},
    "gelu tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "theta": {"rope_theta": 500000.0},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "dynamic beyond": {
        "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
        "max_position_embeddings": 64,
    },
    "yarn": {"rope_scaling": {"rope_type": "yarn", **YARN}, "max_position_embeddings": 256},
    "yarn magnitudes": {
        "rope_scaling": {"rope_type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 0.3, "beta_fast": 16.0}
    },
    "yarn not truncated": {"rope_scaling": {"rope_type": "yarn", **YARN, "truncate": False}},
    "yarn attention factor": {"rope_scaling": {"rope_type": "yarn", **YARN, "attention_factor": 1.3}},
    "longrope short": {
        "rope_scaling": {"rope_type": "longrope", **LONGROPE, "original_max_position_embeddings": 256}
    },
    "longrope long": {"rope_scaling": {"rope_type": "longrope", **LONGROPE}},
    "llama3": {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "llama3 new key": {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5000.0, **LLAMA3},
    },
    "yarn new key": {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, **YARN},
    },
}
LENGTH = 100
PROMPT = [(7 * i * i + 3 * i + 5) % 199 for i in range(LENGTH)]


def reference_logits(folder: Path, ids: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits (T, V) in fp32 of transformers on the whole sequence at once, computed in `dtype`."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits


class Reference:
    """What logits should be: those of fp32, to rounding; of a shorter type, as close to them as transformers is."""

    def __init__(self, folder: Path, ids: list[int], dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.exact_TV = reference_logits(folder, ids)
        self.rounded_TV = reference_logits(folder, ids, dtype)

    def check(self, ours_V: Tensor, position: int) -> None:
        """Fails unless these are the logits after that position."""
        exact_V = self.exact_TV[position]
        if self.dtype == torch.float32:
            torch.testing.assert_close(ours_V, exact_V, atol=2e-4, rtol=2e-4)
            return
        theirs = (self.rounded_TV - self.exact_TV).norm(dim=-1) / self.exact_TV.norm(dim=-1)
        error = float((ours_V - exact_V).norm() / exact_V.norm())
        assert error <= 1.5 * float(theirs.max()), (
            f"relative error {error:.4f}, of transformers up to {theirs.max():.4f}"
        )


def blocks_for(tokens: int, first: int = 0) -> list[int]:
    """Enough blocks for so many tokens."""
    return list(range(first, first + -(-tokens // 16)))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_matches_whole_and_in_pieces(name: str, tmp_path: Path) -> None:
    folder = checkpoints.write(
        tmp_path, checkpoints.config(**VARIANTS[name]), shards=2 if name == "tied" else 1
    )
    reference = Reference(folder, PROMPT)
    driver = Driver(folder, max_sequence_tokens=LENGTH)
    whole = driver.all_logits(
        [row(0, PROMPT, 0, blocks_for(LENGTH), start={}, sample=False, targets=[1] * LENGTH)]
    )
    for position, logits_V in enumerate(whole):
        reference.check(logits_V, position)

    # Chunks of uneven size in another slot and other blocks, then token by token.
    position = 0
    for count in (1, 16, 37, 30, *[1] * 16):
        driver.step(
            [
                row(
                    1,
                    PROMPT[position : position + count],
                    position,
                    blocks_for(LENGTH, 20) if position == 0 else [],
                    start={} if position == 0 else None,
                )
            ]
        )
        position += count
        reference.check(driver.last_logits()[0], position - 1)


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU the order of sums is the library's")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_token_is_the_same_to_the_last_bit_however_it_is_computed(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """What makes a text the same alone, in a crowd and refilled after a crash: in float32 always, in shorter
    types with `--deterministic`."""
    folder = checkpoints.write(tmp_path, checkpoints.config(hidden_size=256, head_dim=64))
    driver = Driver(folder, dtype, max_sequence_tokens=LENGTH, deterministic=dtype != torch.float32)
    whole_TV = driver.all_logits(
        [row(0, PROMPT, 0, blocks_for(LENGTH), start={}, sample=False, targets=[1] * LENGTH)]
    )
    position = 0
    for turn, count in enumerate((1, 3, 16, 37, 30, *[1] * 12)):
        crowd = range(1, 7 - turn // 3)  # in the end the first is alone
        driver.step(
            [
                row(
                    slot,
                    PROMPT[position : position + count],
                    position,
                    blocks_for(LENGTH, 8 * slot) if position == 0 else [],
                    start={} if position == 0 else None,
                )
                for slot in crowd
            ]
        )
        position += count
        assert torch.equal(driver.last_logits()[0], whole_TV[position - 1]), position


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_layers_give_what_their_operations_give_one_by_one(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu_engine.VARIABLE, "none")
    driver = Driver(checkpoints.write(tmp_path, checkpoints.config()), dtype)
    model: Any = driver.engine.model
    assert model.is_plain
    found = []
    for is_plain in (True, False):
        model.is_plain = is_plain
        driver.begin()
        driver.step([row(0, PROMPT, 0, blocks_for(LENGTH), start={})])
        found.append(driver.last_logits())
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_ragged_batch_gives_each_row_what_it_gets_alone(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config(torch_dtype=str(dtype).removeprefix("torch.")))
    reference = Reference(folder, PROMPT, dtype)
    other = [(11 * i + 2) % 199 for i in range(90)]
    other_reference = Reference(folder, other, dtype)
    driver = Driver(folder, dtype)
    driver.step(
        [
            row(0, PROMPT[:40], 0, blocks_for(41), start={}),
            row(1, PROMPT[:5], 0, blocks_for(6, 10), start={}),
            row(2, other[:33], 0, blocks_for(90, 20), start={}, sample=False),
            row(3, other[:1], 0, blocks_for(2, 30), start={}),
        ]
    )
    reference.check(driver.last_logits()[0], 39)
    reference.check(driver.last_logits()[1], 4)
    other_reference.check(driver.last_logits()[2], 0)
    # Decodes of long and short contexts beside chunks of several shapes, a start among them.
    driver.step(
        [
            row(1, [PROMPT[5]], 5),
            row(2, other[33:90], 33),
            row(0, [PROMPT[40]], 40),
            row(4, other[:20], 0, blocks_for(20, 40), start={}),
            row(3, [other[1]], 1),
            row(5, other[:3], 0, blocks_for(3, 50), start={}),
        ]
    )
    wanted = [(reference, 5), (other_reference, 89), (reference, 40)]
    wanted += [(other_reference, 19), (other_reference, 1), (other_reference, 2)]
    for got, (whose, position) in zip(driver.last_logits(), wanted, strict=True):
        whose.check(got, position)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prefix_hit_is_a_block_table_with_filled_blocks(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    driver = Driver(folder, dtype)
    driver.step([row(0, PROMPT[:64], 0, blocks_for(64), start={})])
    driver.step([], released=[0])
    driver.step([row(3, PROMPT[48:], 48, [0, 1, 2, *blocks_for(LENGTH - 48, 30)], start={})])
    Reference(folder, PROMPT, dtype).check(driver.last_logits()[0], LENGTH - 1)


def test_a_row_reads_blocks_that_another_row_of_the_same_plan_writes(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    driver = Driver(folder)
    # The sharing row comes first, and is a decode-like row and a chunk: both kinds of rectangles.
    driver.step(
        [
            row(1, PROMPT[32:33], 32, [0, 1, 10], start={}),
            row(2, PROMPT[32:60], 32, [0, 1, 20, 21], start={}),
            row(0, PROMPT[:48], 0, [0, 1, 2], start={}),
        ]
    )
    reference = Reference(folder, PROMPT)
    for got, position in zip(driver.last_logits(), (32, 59, 47), strict=True):
        reference.check(got, position)


def test_greedy_decoding_equals_generate(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = checkpoints.write(tmp_path, checkpoints.config())
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    wanted = model.generate(
        torch.tensor([PROMPT[:20]]), max_new_tokens=40, do_sample=False, eos_token_id=None
    )
    driver = Driver(folder)
    result = driver.step([row(0, PROMPT[:20], 0, blocks_for(61), start={})])
    got = list(result.sampled)
    ids = [int.from_bytes(result.sampled, "little")]
    for position in range(20, 59):
        ids.append(int.from_bytes(driver.step([row(0, None, position)]).sampled, "little"))
    assert got and ids == wanted[0, 20:].tolist()


def test_masked_positions_of_a_reused_block_cannot_leak(tmp_path: Path) -> None:
    """A block's former owner left numbers that are none: 0 times NaN must not reach a new row."""
    folder = checkpoints.write(tmp_path, checkpoints.config())
    driver = Driver(folder)
    for cache in driver.engine.cache.tensors_NJD:
        cache[: driver.engine.cache.zero_row].fill_(torch.nan)
    driver.step(
        [
            row(0, PROMPT[:5], 0, [0], start={}),
            row(1, PROMPT[:40], 0, [1, 2, 3], start={}),
            row(2, PROMPT[:1], 0, [4], start={}),
        ]
    )
    reference = Reference(folder, PROMPT)
    for got, position in zip(driver.last_logits(), (4, 39, 0), strict=True):
        reference.check(got, position)
    driver.step([row(0, [PROMPT[5]], 5), row(1, [PROMPT[40]], 40), row(2, [PROMPT[1]], 1)])
    for got, position in zip(driver.last_logits(), (5, 40, 1), strict=True):
        reference.check(got, position)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_with_large_scores(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Biases of queries and keys bring every score to 68, as they do in Qwen's models: what a model of this kind means
    is in what is left, which scores in a short type do not have. Decodes in either kernel, and pieces of a prompt.
    """
    from transformers import AutoModelForCausalLM

    config = checkpoints.config(attention_bias=True, head_dim=32, rope_theta=1e8)
    weights = checkpoints.tensors(config)
    biased = [13, 14, 15, 29, 30, 31]  # planes that turn by next to nothing
    for name, tensor in weights.items():
        if "q_proj" in name or "k_proj" in name:
            heads = tensor.view(-1, 32, *tensor.shape[1:])
            heads[:, biased] = 8.0 if name.endswith("bias") else 0.0
    folder = checkpoints.write(tmp_path, config, weights)
    exact_TV = reference_logits(folder, PROMPT)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    with torch.inference_mode():
        theirs_TV: Tensor = model(torch.tensor([PROMPT])).logits[0].float()

    def error(logits: Tensor, position: int) -> float:
        return float((logits - exact_TV[position]).norm() / exact_TV[position].norm())

    allowed = 1.5 * max(error(logits_V, position) for position, logits_V in enumerate(theirs_TV))
    for few in (0, 1 << 30):
        monkeypatch.setattr("penstock.engine.attention_metadata.FEW_NUMBERS", few)
        driver = Driver(folder, dtype)
        driver.step([row(0, PROMPT[:40], 0, blocks_for(LENGTH), start={})])
        assert error(driver.last_logits()[0], 39) < allowed
        driver.step([row(0, PROMPT[40:60], 40)])
        assert error(driver.last_logits()[0], 59) < allowed
        for position in range(60, LENGTH):
            driver.step([row(0, [PROMPT[position]], position)])
            assert error(driver.last_logits()[0], position) < allowed, (few, position)
