"""DeepSeek V4 before there are weights: what config.json says of its layers and what is said where it contradicts itself, what a
token and a sequence take, and where the entries of a step lie.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import penstock_kernels as ops
from penstock.engine.compression_metadata import EntryRows, make_compression_metadata
from penstock.engine.state_cache import state_bytes
from penstock.errors import UnusableModel
from penstock.models import native_choice
from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config
from penstock.models.recorder import unknown_choices
from penstock.models.recurrent_config import CompressedConfig, Compression
from penstock.parallel.group import ALONE, TensorGroup
from stages import stage_of

NEAR, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
CONFIG: dict[str, Any] = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"}
# Of DeepSeek-V4-Flash: two layers with a window alone, then 4 and 128 in turn, and a layer that predicts ahead.
FLASH = {**CONFIG, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0]}


def read(**changes: Any) -> DecoderConfig:
    found = read_config({**FLASH, **changes})
    assert isinstance(found, DecoderConfig)
    return found


def mixers(config: DecoderConfig) -> list[CompressedConfig]:
    return [layer for layer in config.compressed if layer is not None]


def test_what_a_token_and_a_sequence_take_of_the_published_shape() -> None:
    """In bf16: 160 numbers in each of 41 layers, and a state of 12 MB."""
    config = read()
    assert config.cache_shape(ALONE) == (1, 160)
    assert len(config.layer_windows) == 41 and set(config.layer_windows) == {None}
    assert config.cache_shape(ALONE)[1] * 41 * 2 == 13120
    near, sparse, heavy = 127 * 512, 7 * 4 * 640, 127 * 2 * 512
    assert state_bytes(config.state_shapes(ALONE), 2) == 2 * (43 * near + 21 * sparse + 20 * heavy)


def test_shards_divide_neither_entries_nor_states() -> None:
    config, half = read(), TensorGroup(1, 2)
    assert config.cache_shape(half) == config.cache_shape(ALONE)
    assert config.state_shapes(half) == config.state_shapes(ALONE)


def test_layers_are_named_by_their_ratios_or_by_their_kinds() -> None:
    rates = [None if mixer.compression is None else mixer.compression.rate for mixer in mixers(read())]
    assert rates == [None, None, *[4, 128] * 20, 4]
    kinds = read(compress_ratios=None, layer_types=[NEAR, SPARSE, HEAVY], num_hidden_layers=3)
    assert kinds.compressions == (None, Compression(4, True), Compression(128, False))
    default = mixers(read(compress_ratios=None, num_hidden_layers=5))
    assert [mixer.index_heads > 0 for mixer in default] == [False, False, False, True, False]
    given = read(compress_rates={HEAVY: 64}, compress_rate_csa=8)
    assert given.compressions == (None, Compression(8, True), Compression(64, False))


def test_first_layers_have_a_table_of_experts_and_no_correction() -> None:
    experts = [layer.experts for layer in read().layers if layer.experts is not None]
    assert [one.by_token for one in experts] == [True] * 3 + [False] * 40
    assert [one.correction for one in experts] == [False] * 3 + [True] * 40
    named = read(num_hidden_layers=2, compress_ratios=[0, 0], mlp_layer_types=["moe", "hash_moe"])
    assert [layer.experts is not None and layer.experts.by_token for layer in named.layers] == [False, True]


def test_layers_with_entries_turn_by_a_table_of_their_own_which_alone_is_stretched() -> None:
    scaling = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    near, far = read(rope_scaling=scaling).ropes
    assert (near.variant, near.theta, near.head_dim) == ("default", 10000.0, 64)
    assert (far.variant, far.theta, far.head_dim, far.attention_factor) == ("yarn", 160000.0, 64, 1.0)
    nested = {
        "main": {"rope_type": "default", "rope_theta": 5.0, "partial_rotary_factor": 0.25},
        "compress": {"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.25},
    }
    assert [(rope.theta, rope.head_dim) for rope in read(rope_parameters=nested).ropes] == [
        (5.0, 128),
        (7.0, 128),
    ]


def test_the_cpu_engine_serves_the_published_shape_and_names_what_it_does_not_know() -> None:
    assert unknown_choices(read()) == []
    assert unknown_choices(read(index_n_heads=1025)) == [
        "entries of 512 numbers, or an index of 1025 heads of 128"
    ]
    with pytest.raises(UnusableModel, match="entries that stand for several tokens are in the model's dtype"):
        native_choice.refuse_cache("int8", read(), torch.bfloat16, torch.device("cpu"), ALONE)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compress_ratios": [0, 4]}, "compress_ratios is not a list of 43 times 0, 4 or 128"),
        ({"compress_ratios": [0, 5] * 22}, "compress_ratios is not a list"),
        (
            {"compress_ratios": None, "layer_types": ["full_attention"] * 43},
            "layer_types has 'full_attention'",
        ),
        ({"compress_rates": {SPARSE: 0}}, f"{SPARSE} is 0, not a positive whole number"),
        ({"o_groups": 7}, "o_groups 7 does not divide num_attention_heads 64"),
        ({"index_head_dim": 32}, "index_head_dim 32 is less than the 64 numbers of a head that are rotated"),
        ({"mlp_layer_types": ["moe"]}, "mlp_layer_types is not a list of 43 times 'hash_moe' or 'moe'"),
        ({"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid', and only 'sqrtsoftplus' is supported"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2, and only 1 is supported"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8, and only 1 is supported"),
        ({"swiglu_limit": 0}, "swiglu_limit is 0, not a positive number"),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnusableModel, match=words):
        read(**changes)


def test_a_stage_that_is_not_told_the_tokens_has_no_table_of_experts() -> None:
    config = read()
    assert [stage_of(config, at, 2) for at in range(2)] == [range(22), range(22, 43)]
    assert [stage_of(config, at, 40) for at in (0, 1, 39)] == [range(3), range(3, 4), range(42, 43)]
    with pytest.raises(
        UnusableModel, match=r"--pipeline-parallel 42: .* layer 1 .* by token .* use 41 or fewer"
    ):
        stage_of(config, 0, 42)


def rows(slots: int, blocks: int) -> EntryRows:
    """Pages of a slot are not in order: block b of slot s is page 7 b + s."""
    pages = 7 * np.arange(blocks) + np.arange(slots)[:, None]
    return EntryRows(pages[None], 16, 1600, False, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("rate", [1, 4, 6, 16, 20, 128])
@pytest.mark.parametrize("overlaps", [False, True])
def test_an_entry_lies_where_its_last_token_lies(rate: int, overlaps: bool) -> None:
    """Of two decodes and a piece: what each sees is what it or an earlier step has finished, and no row is another's."""
    compression, places = Compression(rate, overlaps), rows(3, 30)
    positions, run = [2 * rate - 1, 3 * rate], range(rate // 2, 3 * rate + 2)
    states: Any = SimpleNamespace(runs=[ops.Run(2, 2 + len(run), 2)])
    positions_T = np.array([*positions, *run])
    slots_T = np.array([0, 1, *(2 for _ in run)])
    made = make_compression_metadata(compression, [1, 1], slots_T, states, positions_T, places)
    finished = [(0, 1), *((2, (at + 1) // rate - 1) for at in run if (at + 1) % rate == 0)]
    if rate == 1:
        finished.insert(1, (1, 3))

    def row(slot: int, entry: int) -> int:
        token = (entry + 1) * rate - 1
        return ((7 * (token // 16) + slot) * 16 + token % 16) // compression.row

    assert made.rows_M.tolist() == [row(*one) for one in finished]
    assert made.positions_M.tolist() == [entry * rate for _, entry in finished]
    assert made.is_first_M.tolist() == [entry == 0 for _, entry in finished]
    few, (chunk,) = made.attention.few, made.attention.chunks
    for group, slot, position in zip(few, (0, 1), positions, strict=True):
        seen = (position + 1) // rate
        assert group.slot_mapping_SL[:seen].tolist() == [row(slot, entry) for entry in range(seen)]
        assert set(group.slot_mapping_SL[seen:].tolist()) <= {1600 // compression.row}
    mask = chunk.mask(slice(0, 1), slice(0, len(run)))
    assert mask is not None
    for query, position in enumerate(run):
        seen = (position + 1) // rate
        assert [bool(hidden == 0) for hidden in mask[0, 0, query]] == [
            entry < seen for entry in range(chunk.keys)
        ]
    assert len({row(slot, entry) for slot in range(3) for entry in range(480 // rate)}) == 3 * (480 // rate)
