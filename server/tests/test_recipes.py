"""What recipes make of choices that published files have in several ways, and of those that none has."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnusableModel
from penstock.models import recipes
from penstock.models.config import DecoderConfig

QUOTED = Path(__file__).parents[2] / "integration-tests" / "parity" / "quoted"


def quoted(name: str) -> dict[str, Any]:
    """What is quoted of a published config.json."""
    config: dict[str, Any] = json.loads((QUOTED / f"{name}.json").read_text())["config"]
    return config


def test_the_architecture_says_that_a_hunyuan_has_experts() -> None:
    """Tencent's Hunyuan-A13B-Instruct-FP8 and -GPTQ-Int4 are of another model_type than the one in bf16."""
    config = quoted("hunyuan_a13b") | {"hidden_act": "silu"}
    read = recipes.read_config(config)
    assert isinstance(read, DecoderConfig) and all(layer.experts is not None for layer in read.layers)
    assert recipes.read_config(config | {"model_type": "hunyuan"}) == read
    unnamed = {name: value for name, value in config.items() if name != "architectures"}
    assert recipes.read_config(unnamed) == read
    dense = recipes.read_config(
        config | {"model_type": "hunyuan", "architectures": ["HunYuanDenseV1ForCausalLM"]}
    )
    assert isinstance(dense, DecoderConfig) and all(layer.experts is None for layer in dense.layers)


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("hunyuan_3", "moe_router_use_sigmoid"),
        ("hunyuan_3", "route_norm"),
        ("recurrentgemma_2b", "embeddings_scale_by_sqrt_dim"),
    ],
)
def test_a_choice_that_changes_numbers_and_that_no_recipe_knows_is_refused(model: str, field: str) -> None:
    config = quoted(model)
    unsaid = {name: value for name, value in config.items() if name != field}
    assert config[field] is True and recipes.read_config(config) == recipes.read_config(unsaid)
    with pytest.raises(UnusableModel, match=f"^config.json: {field} is False, and only True is supported$"):
        recipes.read_config(config | {field: False})
