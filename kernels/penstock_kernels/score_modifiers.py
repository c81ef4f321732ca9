"""What some families add to attention."""

from dataclasses import dataclass

from penstock_kernels.later import Tensor


@dataclass(frozen=True)
class DistanceBias:
    """Added to the score of token t's query head h with the key d tokens before it: states_THR[t, h] . profiles_RL[:, d]; 0 where d is
    L or more. Thinking Machines Lab, "Inkling", 2026.
    """

    states_THR: Tensor
    profiles_RL: Tensor

    def of(self, tokens: slice) -> "DistanceBias":
        """For these tokens."""
        return DistanceBias(self.states_THR[tokens], self.profiles_RL)


@dataclass(frozen=True)
class ScoreModifiers:
    """Layouts for any of these have no DecodeGroup."""

    softcap: float = 0.0  # scores s become softcap tanh(s / softcap); 0: off
    bias_HN: Tensor | None = None  # fp32, added to the scores of head h with the key at position n
    sinks_H: Tensor | None = None  # a score of each head that takes part in the softmax and has no value
    distances: DistanceBias | None = None
    latent: int = 0  # V > 0: the cache has keys alone, and values are the first V numbers of a key


PLAIN = ScoreModifiers()
