"""What config.json says of an indexer, and what is said where it contradicts itself."""

from typing import Any

import pytest

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.decoder_loader import Loader
from penstock.models.recipes import read_config
from penstock.parallel.group import ALONE, Pipeline, TensorGroup

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


def test_a_stage_that_would_begin_with_another_layers_choice_is_refused() -> None:
    config = read(indexer_types=["full", "full", "shared", "full"])
    loader = Loader.__new__(Loader)
    loader.config = config
    loader.group = TensorGroup(pipeline=Pipeline(0, 2, TensorGroup(0, 2)))
    loader.check_stages()
    loader.group = TensorGroup(pipeline=Pipeline(1, 2, TensorGroup(1, 2)))
    with pytest.raises(
        UnusableModel, match=r"--pipeline-parallel 2: layer 2, the first of stage 1, attends to"
    ):
        loader.check_stages()
