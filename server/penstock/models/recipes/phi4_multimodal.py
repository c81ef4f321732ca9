"""The text of Phi-4-multimodal, which reads images and sound, too. Adapters (LoRA) of these are off where a prompt is text,
in Microsoft's own code as in transformers', so that text is Phi-4-mini's.
"""

from dataclasses import replace
from typing import Any

from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import phi3

# The encoders, and the adapters for what they read.
IGNORED = (r"model\.embed_tokens_extend\..*", r".*\.lora_[AB]\..*")
KEYS = replace(phi3.KEYS, ignored=IGNORED)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """In Microsoft's repository matrices are below the adapters; transformers has them apart."""
    if config.get("model_type") != "phi4mm":
        return KEYS
    return replace(
        KEYS,
        qkv=f"{KEYS.qkv}.base_layer",
        out=f"{KEYS.out}.base_layer",
        gate_up=f"{KEYS.gate_up}.base_layer",
        down=f"{KEYS.down}.base_layer",
    )


RECIPE = DecoderRecipe(phi3.read_config, keys)
