"""The rows of a table that n-grams name are those of transformers, wherever a sequence is cut, and what config.json says of them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Embedding
from penstock.models.config import DecoderConfig
from penstock.models.ngram_config import NgramConfig
from penstock.models.ngram_embeddings import NgramTable
from penstock.models.recipes import read_config
from penstock.parallel.group import ALONE
from stages import stage_of

SMALL: dict[str, Any] = {
    "architectures": ["Qwen4ExpForCausalLM"],
    "model_type": "qwen4_exp_text",
    "vocab_size": 199,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 16,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 24,
    "indexer_budget": 32,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [1, 3],
    "ple_embed_dim": 48,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 97,
    "make_ngram_vocab_size_divisible_by": 8,
    "eos_token_id": [5, 7],
}
# As other projects cite the config.json of Qwen/Qwen3.8-Flash-Next; what it says beside these is above, or transformers' default.
PUBLISHED: dict[str, Any] = {
    **SMALL,
    "vocab_size": 248320,
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "num_attention_heads": 24,
    "head_dim": 256,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "rope_parameters": {"rope_theta": 10000000, "partial_rotary_factor": 0.25, "rope_type": "default"},
    "ple_layer_ids": [2],
    "ple_embed_dim": 2560,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "eos_token_id": 248044,
}
CUTS = ((60,), (1, 59), (2, 1, 1, 30, 1, 25), (1,) * 60)


def read(config: dict[str, Any] = SMALL, **changes: Any) -> DecoderConfig:
    found = read_config({**config, **changes})
    assert isinstance(found, DecoderConfig)
    return found


def ngrams_of(shape: DecoderConfig) -> list[NgramConfig]:
    return [layer.ngrams for layer in shape.layers if layer.ngrams is not None]


def their_config(config: dict[str, Any]) -> Qwen4ExpTextConfig:
    return Qwen4ExpTextConfig(**{name: value for name, value in config.items() if name != "architectures"})


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("number", [0, 1])
def test_ngrams_name_the_rows_that_they_name_in_transformers(size: int, number: int) -> None:
    changes: dict[str, Any] = {"ngram_size": size}
    config = ngrams_of(read(**changes))[number]
    module = theirs.Qwen4ExpTextNGramEmbedding(their_config({**SMALL, **changes}), 48, 0, number)
    assert module.ngram_embedding.weight.shape == (config.rows, config.head_dim)
    with torch.no_grad():
        module.ngram_embedding.weight.copy_(
            torch.arange(config.rows).unsqueeze(1).expand(-1, config.head_dim)
        )
    # Every third token is one that no n-gram reaches over.
    ids_T = torch.randint(3, 12, (60,), generator=torch.Generator().manual_seed(1))
    ids_T = torch.where(torch.arange(60) % 3 == 1, 5, ids_T)
    wanted_TG = module(ids_T.unsqueeze(0), None).view(60, -1, config.head_dim)[..., 0].long()
    table = NgramTable(config, Embedding(torch.zeros(config.rows, config.head_dim)))
    table.to_torch("cpu")
    for cuts in CUTS:
        state_PU, found, begin = torch.zeros(3, config.before), [], 0
        for count in cuts:
            run = ops.Run(begin=0, end=count, place=2)
            states = ops.StateMetadata(torch.zeros(0, dtype=torch.int64), [run])
            some_T, positions_T = ids_T[begin : begin + count], torch.arange(begin, begin + count)
            before_TU = ops.previous_ids(some_T, state_PU, states)
            found.append(table.rows(some_T, positions_T, before_TU))
            begin += count
        assert torch.equal(torch.cat(found), wanted_TG)


def test_the_published_tables_are_of_the_size_that_is_published() -> None:
    shape = read(PUBLISHED)
    (config,) = ngrams_of(shape)
    assert shape.layers[1].ngrams is config
    assert config.rows == 128 * 2_500_012 and config.head_dim == 160
    config_of_theirs = their_config(PUBLISHED)
    with torch.device("meta"):
        module = theirs.Qwen4ExpTextNGramEmbedding(config_of_theirs, 2560, 1, 0)
    assert list(config.parts) == module.head_vocab_sizes
    multipliers = theirs._build_layer_multipliers(248320, 3, 0, config_of_theirs.seed)
    assert list(config.multipliers) == multipliers.tolist()
    # Keys and values of two heads of 256, and an index key of 128 behind them.
    assert shape.cache_shape(ALONE) == (5, 256)
    assert shape.residual_width == 4 * 2560


def test_a_layer_keeps_what_its_convolution_read_and_the_last_ids() -> None:
    first, second, *_ = read().state_shapes(ALONE)
    assert [state.shape for state in first[-2:]] == [(9, 4 * 64), (2,)]
    assert [state.is_fp32 for state in first[-2:]] == [False, True]
    assert len(second) == len(first) - 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indexer_n_heads": None}, "indexer_n_heads is None, not a positive whole number"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads is 2, and only 1 is supported"),
        ({"indexer_budget": 30}, "indexer_budget 30 is no multiple of indexer_compress_ratio 4"),
        ({"indexer_head_dim": 8}, "indexer_head_dim 8 is less than the 16 numbers of a head"),
        ({"hc_count": 1}, "hc_count is 1, and hyper-connections have 2 streams or more"),
        ({"output_gate_type": "gelu"}, "output_gate_type is 'gelu', and only 'silu' or 'swish' or 'sigmoid'"),
        ({"layer_types": ["full_attention", "x"] * 2}, "layer_types names 'x'"),
        ({"ple_layer_ids": [0]}, "ple_layer_ids is not a list of layers from 1 to 4"),
        ({"ple_layer_ids": [4]}, "ple_layer_ids has layer 4, which is no linear_attention"),
        ({"ple_embed_dim": 50}, "ple_embed_dim 50 is not divided by 4 heads of n-grams"),
        ({"ngram_size": 1}, "ple_embed_dim 48 is not divided by 0 heads"),
        ({"ple_embed_dim": 4096, "heads_per_ngram": 2048}, "4096 heads of n-grams, 1 to 4096 of which are"),
        ({"ngram_vocab_size_base": 1 << 30}, "4 heads of ngram_vocab_size_base 1073741824 are more than"),
        ({"vocab_size": 1 << 25}, "vocab_size is 33554432, and n-grams are of up to 16777216 tokens"),
        ({"eos_token_id": None}, "eos_token_id is no token, and n-grams begin behind one"),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnusableModel, match=words):
        read(**changes)


def test_without_ngrams_no_end_is_needed() -> None:
    shape = read(ple_layer_ids=[], eos_token_id=None)
    assert not ngrams_of(shape) and shape.has_state


def test_a_stage_that_would_read_ngrams_without_knowing_the_tokens_is_refused() -> None:
    config = read()
    assert [layer.ngrams is not None for layer in config.layers] == [True, False, True, False]
    assert [stage_of(config, at, 2) for at in range(2)] == [range(3), range(3, 4)]
    few = replace(config, layers=config.layers[:3])
    with pytest.raises(
        UnusableModel, match=r"--pipeline-parallel 2: .* none of its layers .* layer 1 .* n-grams .* use 1$"
    ):
        stage_of(few, 0, 2)
