"""Adapters that peft itself has saved: what is read of them is what its own merge adds to the weights, and what it would load beside other
weights is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Phi3Config

from penstock import adapters
from penstock.adapters import config
from penstock.errors import UnusableModel

SHAPE: dict[str, Any] = {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE, **LAYERS),
    "phi3": Phi3Config(**SHAPE, **LAYERS),
    "gpt2": GPT2Config(**SHAPE, n_embd=32, n_layer=2, n_head=4),
}
# By rank, alpha and modules; `fan_in_fan_out` is how GPT-2 has its weights, inputs first.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "two modules": ("llama", {"target_modules": ["q_proj", "v_proj"]}),
    "all modules, rank-stabilized": ("llama", {"target_modules": "all-linear", "use_rslora": True}),
    "patterns": (
        "llama",
        {
            "target_modules": "all-linear",
            "rank_pattern": {r"^model.layers.0.self_attn.q_proj": 2, r"mlp\.(gate|up)_proj": 6, "layers.*.o_proj": 3},
            "alpha_pattern": {"down_proj": 1.5, r".*\.1\.self_attn\.[kv]_proj": 5},
        },
    ),
    "patterns, rank-stabilized": (
        "llama",
        {"target_modules": "all-linear", "use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 3}},
    ),
    "the head": ("llama", {"target_modules": ["lm_head", "k_proj"]}),
    "some layers": ("llama", {"target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "joined projections": ("phi3", {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}),
    "inputs first": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
}  # fmt: skip
PLAIN = CASES["two modules"][1]


def model_of(family: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[family])  # type: ignore[no-untyped-call]


def with_pairs(model: Any, **fields: Any) -> Any:
    """A model with an adapter of random numbers."""
    chosen = {"r": 4, "lora_alpha": 7, "init_lora_weights": False, "task_type": "CAUSAL_LM"} | fields
    return peft.get_peft_model(model, peft.LoraConfig(**chosen))


def weights_of(model: Any) -> dict[str, Any]:
    return {name: one.numpy().copy() for name, one in model.state_dict().items()}


def changed(weights: dict[str, Any], adapter: adapters.Adapter, inputs_first: bool = False) -> dict[str, Any]:
    """Weights as an adapter changes them."""
    made = dict(weights)
    for module, pair in adapter.pairs.items():
        delta_OI = pair.b_OR @ pair.a_RI
        made[f"{module}.weight"] = made[f"{module}.weight"] + (delta_OI.T if inputs_first else delta_OI)
    return made


def are_close(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    assert ours.keys() == theirs.keys()
    return all(np.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6) for name in ours)


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_changes_weights_as_pefts_own_merge_does(case: str, tmp_path: Path) -> None:
    family, fields = CASES[case]
    model = model_of(family)
    base = weights_of(model)
    adapted = with_pairs(model, **fields)
    adapted.save_pretrained(tmp_path, save_embedding_layers=False)
    merged = weights_of(adapted.merge_and_unload())
    adapter = adapters.read("made", tmp_path)
    assert not are_close(base, merged)
    assert are_close(changed(base, adapter, fields.get("fan_in_fan_out", False)), merged)


@pytest.mark.parametrize("how", [*config.KEEP_THE_BASE, "pissa", "pissa_niter_4", "olora"])
def test_what_peft_loads_beside_other_weights_is_refused(how: str, tmp_path: Path) -> None:
    """By init_lora_weights: nothing else in an adapter says that it was trained on other weights."""
    with_pairs(model_of("llama"), **PLAIN).save_pretrained(tmp_path)
    base, plain = weights_of(model_of("llama")), adapters.read("made", tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"init_lora_weights": how}))
    loaded = peft.PeftModel.from_pretrained(model_of("llama"), tmp_path)
    is_plain = are_close(changed(base, plain), weights_of(loaded.merge_and_unload()))
    assert is_plain == (how in config.KEEP_THE_BASE)
    if is_plain:
        assert adapters.read("made", tmp_path).pairs.keys() == plain.pairs.keys()
    else:
        with pytest.raises(UnusableModel, match="it changes the base model's weights"):
            adapters.read("made", tmp_path)


@pytest.mark.parametrize("how", ["pissa", "olora"])
def test_what_peft_has_converted_is_read(how: str, tmp_path: Path) -> None:
    """As the line that refuses it says it: save_pretrained with what the adapter was before training."""
    base = weights_of(model_of("llama"))
    adapted = with_pairs(model_of("llama"), **PLAIN, init_lora_weights=how)
    adapted.peft_config["default"].init_lora_weights = True
    adapted.save_pretrained(tmp_path / "before")
    adapted.peft_config["default"].init_lora_weights = how
    with torch.no_grad():
        for name, one in adapted.named_parameters():
            if "lora_" in name:
                one += 0.1 * torch.randn_like(one)
    adapted.save_pretrained(
        tmp_path / "after", path_initial_model_for_weight_conversion=str(tmp_path / "before")
    )
    adapter = adapters.read("made", tmp_path / "after")
    assert {pair.rank for pair in adapter.pairs.values()} == {8}
    merged = weights_of(adapted.merge_and_unload())
    assert are_close(changed(base, adapter), merged)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"use_dora": True}, "use_dora is true"),
        ({"bias": "all"}, 'bias is "all"'),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices is"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens is"),
        ({"layer_replication": [(0, 2), (1, 2)]}, "layer_replication is"),
        ({"target_modules": ["embed_tokens", "q_proj"]}, "lora_embedding_A: embeddings are not changed|base_layer"),
        ({"target_modules": ["lm_head"]}, "lm_head.base_layer.weight: weights of the base model are not replaced"),
    ],
)  # fmt: skip
def test_what_is_no_pair_of_matrices_is_refused_as_peft_saves_it(
    fields: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with_pairs(model_of("llama"), **(PLAIN | fields)).save_pretrained(tmp_path)
    with pytest.raises(UnusableModel, match=says):
        adapters.read("made", tmp_path)
