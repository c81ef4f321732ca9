"""The text of Qwen3-VL with experts: Qwen 3 with experts, in one tensor for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import qwen3, qwen3_moe
from penstock.models.recipes.stacked_experts import StackedExpertsLoader
from penstock.parallel.group import ranges
from penstock_kernels.later import Tensor

KEYS = replace(
    qwen3.KEYS,
    experts=ExpertKeys(router="mlp.gate", up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj"),
)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    return qwen3_moe.read_config({"rope_theta": 500000.0, **config, "norm_topk_prob": True})


class Qwen3VlMoeLoader(StackedExpertsLoader):
    """Reads experts as they were published, (X, in, out), and as transformers has saved them since, (X, out, in)."""

    def stack(self, name: str, count: int, outputs: int, inputs: int, mine: range) -> Tensor:
        """(X, O, I) of this rank's experts."""
        keys, experts = self.keys.experts, self.any_experts()
        assert keys is not None
        # Both of an expert's matrices cannot be square.
        at = name.removesuffix(keys.up).removesuffix(keys.down)
        known, rows, columns = at + keys.down, self.config.width, experts.width
        if rows == columns:
            known, rows, columns = at + keys.up, 2 * experts.width, self.config.width
        stored = self.checkpoint.stored.get(known)
        if stored is not None and stored.shape == (count, rows, columns):
            return super().stack(name, count, outputs, inputs, mine)
        stored_XIO = self.checkpoint.tensor(name, (count, inputs, outputs), ranges([mine]))
        return stored_XIO.transpose(1, 2).contiguous()

    def any_experts(self) -> ExpertsConfig:
        """Of a layer that has some; all are alike."""
        return next(layer.experts for layer in self.config.layers if layer.experts is not None)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, Qwen3VlMoeLoader)
