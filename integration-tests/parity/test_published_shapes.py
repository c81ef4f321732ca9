"""The shapes of published models, as transformers states them: the defaults of a configuration class are those of the model that the class
names (`auto_docstring(checkpoint=...)`), and saved as config.json every recipe reads them.

What it reads is compared with the class: sizes, layers and which of them attend to a window or keep a state. Where a class's
defaults are of no model, PUBLISHED adds what the published config.json has, with where that was found.
"""

import json
from importlib import import_module
from typing import Any

import pytest
from quoted import QUOTED

from penstock.models.architectures import RECIPES
from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config

# Of a model_type: what its published config.json says beside the class's defaults.
PUBLISHED: dict[str, dict[str, Any]] = {
    # dots.llm1.inst, as another project's test quotes it: the class says nothing of its experts.
    "dots1": QUOTED["dots.llm1"].text,
    # GLM-4.5 to 4.7, as tests of rtp-llm cite them: the class's head_dim is a width over heads, which no published one has.
    "glm4_moe": {"head_dim": 128},
    # Qwen/Qwen3.8-Flash-Next, as other projects cite it (see the recipe).
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "rope_parameters": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000.0,
            "rope_type": "default",
        },
    },
}
# Those whose class states no shape that could be read.
WITHOUT = {
    "glm4v_moe": "its text is glm4_moe",
    "llama4": "its text is llama4_text",
    "qwen4_exp": "its text is qwen4_exp_text",
}

# Layers that we make of one.
OF_ONE = {"rwkv": 2}

# What we call it, and the class.
SAME: tuple[tuple[str, str], ...] = (
    ("vocab_size", "vocab_size"),
    ("width", "hidden_size"),
    ("heads", "num_attention_heads"),
    ("kv_heads", "num_key_value_heads"),
    ("max_positions", "max_position_embeddings"),
)


def kinds() -> dict[str, str]:
    """Every model_type whose decoder a recipe reads, and its architecture."""
    auto: Any = import_module("transformers.models.auto.modeling_auto")
    found = {**auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    return {kind: name for kind, name in sorted(found.items()) if name in RECIPES and kind not in WITHOUT}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Listed only where they are asked for: to list them, transformers is imported."""
    if "model_type" in metafunc.fixturenames:
        is_asked = metafunc.config.option.markexpr in ("tail", "")
        metafunc.parametrize("model_type", list(kinds()) if is_asked else [])


@pytest.mark.tail
def test_a_recipe_reads_the_shape_that_transformers_states(model_type: str) -> None:
    transformers: Any = import_module("transformers")
    stated = transformers.CONFIG_MAPPING[model_type](**PUBLISHED.get(model_type, {}))
    text = json.loads(stated.get_text_config().to_json_string(use_diff=False))
    saved = json.loads(stated.to_json_string(use_diff=False))
    read = read_config({**saved, "model_type": model_type, "architectures": [kinds()[model_type]]})
    assert isinstance(read, DecoderConfig)
    for ours, theirs in SAME:
        if text.get(theirs) is not None and getattr(read, ours):
            assert getattr(read, ours) == text[theirs], theirs
    left_out = len(text.get("cross_attention_layers") or [])  # of Llama 3.2 Vision: a text passes them by
    if "num_hidden_layers" in text:  # older classes have names of their own
        assert read.num_layers == (text["num_hidden_layers"] - left_out) * OF_ONE.get(model_type, 1)
    layers = text.get("layer_types")
    if isinstance(layers, list) and len(layers) == read.num_layers:
        for kind, layer in zip(layers, read.layers, strict=True):
            if kind in ("sliding_attention", "chunked_attention") and text.get("sliding_window") is not None:
                assert layer.window is not None, kind
            if kind in ("linear_attention", "mamba", "conv", "recurrent"):
                assert layer.recurrent is not None, kind
            if kind == "full_attention":
                assert layer.attends and layer.window is None, kind
