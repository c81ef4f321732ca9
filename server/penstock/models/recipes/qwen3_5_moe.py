"""The text of Qwen 3.5 with experts, alone or as published with a tower for images."""

from dataclasses import replace
from typing import Any

from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.decoder import Experts
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import qwen2_moe, qwen3_5, qwen3_next
from penstock.models.recipes.fields import Fields
from penstock.parallel.group import ranges

KEYS = replace(qwen3_5.KEYS, experts=qwen2_moe.KEYS.experts)


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = qwen3_5.text_of(config)
    shared = Fields(text).count("shared_expert_intermediate_size", default=512)
    # Weights of a token always add up to 1.
    defaults = {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
    return qwen2_moe.with_experts(
        {**defaults, **text, "norm_topk_prob": True}, qwen3_next.hybrid(text), shared
    )


class StackedLoader(qwen3_5.PartsLoader):
    """Reads experts that are stacked in two tensors, or in tensors of their own."""

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """The experts below `at`."""
        name = f"{at}mlp.experts."
        if not self.checkpoint.has(name + "gate_up_proj"):
            return super().experts(at, choice)
        width, mine = self.config.width, self.group.share(choice.count)
        up_XGE = self.checkpoint.tensor(
            name + "gate_up_proj", (choice.count, 2 * choice.width, width), ranges([mine])
        )
        down_XEF = self.checkpoint.tensor(
            name + "down_proj", (choice.count, width, choice.width), ranges([mine])
        )
        return self.mixture(at, choice, mine.start, up_XGE, None, down_XEF, None)


RECIPE = DecoderRecipe(read_config, lambda _: KEYS, StackedLoader)
