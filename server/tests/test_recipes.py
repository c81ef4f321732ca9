"""What recipes make of choices that published files have in several ways, and of those that none has."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import UnusableModel
from penstock.loading.checks import check_folder
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


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("mamba", {"state_size": 8, "time_step_rank": 4}),
        ("mamba2", {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 8}),
    ],
)
def test_the_embeddings_of_mamba_may_have_the_name_of_its_own_code(
    kind: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    transformers: Any = import_module("transformers")
    config = transformers.CONFIG_MAPPING[kind](vocab_size=99, hidden_size=32, num_hidden_layers=2, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    def weights() -> list[torch.Tensor]:
        model = recipes.load(check_folder(tmp_path), tmp_path, torch.float32, torch.device("cpu"))
        return list(model.weights())

    before, file = weights(), tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    save_file(tensors, file, {"format": "pt"})
    assert all(torch.equal(*pair) for pair in zip(weights(), before, strict=True))
