"""Adapters that are served by themselves: what is read of the base model is what peft's own merge makes of it, whatever the adapter changes."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.adapters import merging
from penstock.errors import UnusableModel
from penstock.loading import checkpoint as checkpoints
from penstock.loading.checkpoint import Checkpoint
from penstock_kernels import tensors
from test_peft import CASES, model_of, weights_of, with_pairs

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# What an adapter beside a model may not have.
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "DoRA": ("llama", {"target_modules": ALL, "use_dora": True}),
    "biases of pairs": ("gpt2", {"target_modules": ["c_fc"], "fan_in_fan_out": True, "lora_bias": True}),
    "biases": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "bias": "all"}),
    "a whole head": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "whole norms and embeddings": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "norm", "input_layernorm"]}),
    "pairs of embeddings": ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    "pairs of the head": ("llama", {"target_modules": ["lm_head", "q_proj"]}),
    "rows of embeddings": ("llama", {"target_modules": ["q_proj"], "trainable_token_indices": [3, 17, 98]}),
    "rows of named embeddings": ("llama", {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [5]}}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a matrix is in several."""
    monkeypatch.setattr(checkpoints, "CHANGED_BYTES", 1000)


def disturb(model: Any) -> None:
    """Gives what begins as zeros, or as the base model's, other numbers."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if one.requires_grad:
                one += (
                    0.05
                    * torch.randn(one.shape, generator=generator)
                    * (1 if "lora" in name else one.abs().mean())
                )


def numbers_of(folder: Path, names: list[str]) -> dict[str, Any]:
    """The tensors of a model's folder as they are loaded in fp32."""
    made = {}
    with Checkpoint(folder, torch.float32) as checkpoint:
        shapes = {name: checkpoint.stored[name].shape for name in names}
        for name in names:
            checkpoint.tensor(name, shapes[name])
        with checkpoint.reading(tells=False):
            for name in names:
                made[name] = tensors.host(checkpoint.tensor(name, shapes[name])).copy()
                if len(shapes[name]) == 2:
                    rows, columns = shapes[name]
                    pick = (
                        [slice(1, rows // 2), slice(rows - 3, rows)],
                        [slice(3, columns // 2), slice(columns - 2, columns)],
                    )
                    part = tensors.host(checkpoint.tensor(name, shapes[name], *pick))
                    across = np.concatenate([made[name][:, one] for one in pick[1]], 1)
                    assert np.allclose(
                        part, np.concatenate([across[one] for one in pick[0]]), rtol=1e-5, atol=1e-6
                    )
    return made


def saved(family: str, fields: dict[str, Any], folder: Path) -> tuple[Path, Path, dict[str, Any]]:
    """The folders of a base model and of an adapter, and the weights as peft merges them."""
    base, adapter = folder / "base", folder / "adapter"
    model = model_of(family)
    model.save_pretrained(base)
    adapted = with_pairs(model, **fields)
    disturb(adapted)
    adapted.save_pretrained(adapter)
    return base, adapter, weights_of(adapted.merge_and_unload())


@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_what_is_read_is_what_peft_merges(case: str, tmp_path: Path) -> None:
    family, fields = (CASES | MORE)[case]
    base, adapter, merged = saved(family, fields, tmp_path)
    folder = merging.obtain(adapter, base, tmp_path / "cache")
    with Checkpoint(base, torch.float32) as plain:
        names = [name for name in plain.stored if name in merged]
    before, found = numbers_of(base, names), numbers_of(folder, names)
    assert len(names) > 10 and any(not np.array_equal(before[name], merged[name]) for name in names)
    for name in names:
        assert np.allclose(found[name], merged[name], rtol=1e-5, atol=1e-6), name
    assert merging.obtain(adapter, base, tmp_path / "cache") == folder


def test_a_head_of_its_own_is_made_of_an_embedding_that_was_it(tmp_path: Path) -> None:
    """As in training: products with the head are changed, and embeddings are not."""
    model = model_of("llama")
    model.config = copy.deepcopy(model.config)  # it is that of all models here
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path / "base")
    adapted = with_pairs(model, target_modules=["lm_head"])
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    folder = merging.obtain(tmp_path / "adapter", tmp_path / "base", tmp_path / "cache")
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    found, before = numbers_of(folder, [embedding, head]), numbers_of(tmp_path / "base", [embedding])
    layer = adapted.base_model.model.lm_head
    delta = layer.get_delta_weight("default").detach().numpy()
    assert np.array_equal(found[embedding], before[embedding])
    assert np.allclose(found[head], before[embedding] + delta, atol=1e-6) and np.abs(delta).max() > 0.01


def test_added_tokens_are_in_the_vocabulary(tmp_path: Path) -> None:
    model = model_of("llama")
    model.save_pretrained(tmp_path / "base")
    model.resize_token_embeddings(104)
    adapted = with_pairs(model, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    adapted.save_pretrained(tmp_path / "adapter")
    folder = merging.obtain(tmp_path / "adapter", tmp_path / "base", tmp_path / "cache")
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 104
    found = numbers_of(folder, ["model.embed_tokens.weight", "lm_head.weight"])
    assert [one.shape for one in found.values()] == [(104, 32), (104, 32)]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"peft_type": "IA3"}, "only LORA is served"),
        ({"init_lora_weights": "pissa"}, "it changes the base model's weights"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is"),
        ({"r": 5}, "and the rank is 5"),
    ],
)
def test_what_cannot_be_merged_is_said(fields: dict[str, Any], says: str, tmp_path: Path) -> None:
    base, adapter, _ = saved(*CASES["two modules"], tmp_path)
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(UnusableModel, match=says):
        numbers_of(merging.obtain(adapter, base, tmp_path / "cache"), ["model.norm.weight"])


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    _, adapter, _ = saved(*CASES["two modules"], tmp_path)
    model_of("gpt2").save_pretrained(tmp_path / "other")
    folder = merging.obtain(adapter, tmp_path / "other", tmp_path / "cache")
    with pytest.raises(
        UnusableModel, match=r"the base model has no model\.layers\.0\.self_attn\.q_proj\.weight"
    ):
        numbers_of(folder, ["transformer.ln_f.weight"])
