"""What config.json says of an indexer, and what is said where it contradicts itself."""

from typing import Any

import pytest

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config
from penstock.parallel.group import ALONE
from stages import stage_of

GLM: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "kv_lora_rank": 32,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "index_n_heads": 4,
    "index_head_dim": 24,
    "index_topk": 20,
}


def read(**changes: Any) -> DecoderConfig:
    found = read_config({**GLM, **changes})
    assert isinstance(found, DecoderConfig)
    return found


def test_a_token_takes_its_index_key_beside_its_latent() -> None:
    assert read().cache_shape(ALONE) == (1, 32 + 8 + 24)
    plain = read(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3")
    assert plain.cache_shape(ALONE) == (1, 32 + 8)


@pytest.mark.parametrize(
    ("changes", "without"),
    [
        ({}, []),
        ({"indexer_types": ["full", "shared", "full", "shared"]}, [1, 3]),
        ({"index_topk_pattern": "FFSS"}, [2, 3]),
        ({"index_topk_freq": 2}, [2]),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, [1, 2]),
    ],
)
def test_which_layers_have_an_indexer(changes: dict[str, Any], without: list[int]) -> None:
    assert [at for at, layer in enumerate(read(**changes).layers) if layer.choice_of_last] == without


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"index_topk": 0}, "index_topk is 0, not a positive whole number"),
        ({"index_head_dim": 4}, "index_head_dim 4 is less than qk_rope_head_dim 8"),
        ({"q_lora_rank": None}, "q_lora_rank is 0, and the indexer reads queries of that size"),
        ({"indexer_types": ["full"] * 3}, "indexer_types is not a list of 4 times 'full' or 'shared'"),
        ({"indexer_types": ["shared"] + ["full"] * 3}, "indexer_types: the first layer is 'shared'"),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 0}, "index_skip_topk_offset: the first layer"),
        ({"index_topk_pattern": "FXSS"}, "index_topk_pattern is not a list of 4 times 'full' or 'shared'"),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnusableModel, match=words):
        read(**changes)


def test_no_stage_begins_with_another_layers_choice() -> None:
    config = read(indexer_types=["full", "full", "shared", "full"])
    assert [stage_of(config, at, 2) for at in range(2)] == [range(1), range(1, 4)]
    assert [stage_of(config, at, 3) for at in range(3)] == [range(1), range(1, 3), range(3, 4)]
    with pytest.raises(
        UnusableModel,
        match=r"--pipeline-parallel 4: .* layers 1, 3 only, for layer 2 attends to .* use 3 or fewer",
    ):
        stage_of(config, 0, 4)
