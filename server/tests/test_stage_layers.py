"""Where a model's layers are divided into stages."""

from typing import Any

import pytest

from penstock.errors import UnusableModel
from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config
from penstock.parallel.group import Pipeline, TensorGroup
from stages import stage_of


def layers(count: int, stages: int, joined: dict[int, str]) -> list[range]:
    """Those of every stage."""
    groups = [TensorGroup(pipeline=Pipeline(at, stages, TensorGroup(at, stages))) for at in range(stages)]
    return [group.layers(count, [joined.get(at) for at in range(count)]) for group in groups]


def test_stages_have_about_as_many_layers_each() -> None:
    assert layers(7, 3, {}) == [range(3), range(3, 5), range(5, 7)]
    # The nearest place, and of two as near the earlier.
    assert layers(8, 2, {4: "reads"}) == [range(3), range(3, 8)]
    assert layers(8, 3, dict.fromkeys((3, 4, 5, 6), "reads")) == [range(2), range(2, 7), range(7, 8)]
    # Whatever comes first leaves a place for the others.
    assert layers(8, 3, dict.fromkeys((1, 2, 3, 5, 6), "reads")) == [range(4), range(4, 7), range(7, 8)]


@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("taken", range(1 << 7))
def test_every_layer_is_in_one_stage_and_none_begins_where_it_may_not(count: int, taken: int) -> None:
    joined = {at: "reads" for at in range(1, count) if taken >> (at - 1) & 1}
    for stages in range(1, count - len(joined) + 1):
        found = layers(count, stages, joined)
        assert [at for part in found for at in part] == list(range(count))
        assert all(len(part) > 0 and part.start not in joined for part in found)
    if joined:
        with pytest.raises(UnusableModel, match=rf"^--pipeline-parallel {count - len(joined) + 1}: "):
            layers(count, count - len(joined) + 1, joined)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(UnusableModel, match=r"^--pipeline-parallel 3 is more than the model's layers \(2\)$"):
        layers(2, 3, {})


def gemma(architecture: str, model_type: str, **changes: Any) -> DecoderConfig:
    """With the shape of transformers' class but for what is told."""
    config = read_config({"architectures": [architecture], "model_type": model_type, **changes})
    assert isinstance(config, DecoderConfig)
    return config


def test_layers_that_share_keys_and_values_are_in_the_stage_of_those_whose_they_read() -> None:
    shape = gemma("Gemma3nForCausalLM", "gemma3n_text")
    assert [layer.keys_of for layer in shape.layers[18:23]] == [None, None, 18, 18, 18]
    assert [stage_of(shape, at, 2) for at in range(2)] == [range(18), range(18, 35)]
    # Four streams, and 256 numbers for each layer that is still to come.
    assert shape.stage_width(18) == 4 * 2048 + 17 * 256
    with pytest.raises(
        UnusableModel, match=r"--pipeline-parallel 20: .* layer 19 or one behind it reads keys"
    ):
        stage_of(shape, 0, 20)
    # Gemma 4 E2B: more than half of them.
    kinds = [*["sliding_attention"] * 4, "full_attention"] * 7
    shape = gemma(
        "Gemma4ForCausalLM", "gemma4_text", num_hidden_layers=35, num_kv_shared_layers=20, layer_types=kinds
    )
    donors = sorted({layer.keys_of for layer in shape.layers if layer.keys_of is not None})
    assert donors == [13, 14]
    assert [stage_of(shape, at, 2) for at in range(2)] == [range(13), range(13, 35)]
