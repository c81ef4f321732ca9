"""A loaded LoRA adapter, as the engine gets it. Made by `reading`. Must not import torch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Pair:
    """What a linear layer's weight is changed by: `b_OR @ a_RI` is added to it (Hu et al., https://arxiv.org/abs/2106.09685).

    Letters: R the rank, I inputs and O outputs of the layer.
    """

    a_RI: F32
    b_OR: F32
    """Already times the scale: lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora."""

    @property
    def rank(self) -> int:
        return len(self.a_RI)


@dataclass(frozen=True)
class Adapter:
    """An adapter that requests may name."""

    name: str
    digest: str
    """SHA-256 in hexadecimal digits, of adapter_config.json and the weights: equal content has an equal digest, whatever its name."""
    pairs: dict[str, Pair]
    """By the module's path in the base model, such as `model.layers.0.self_attn.q_proj`; at least one."""
    base: str | None = None
    """What adapter_config.json calls the base model, which need not be what it is called here."""
