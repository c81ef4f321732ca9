"""Several residual streams, of which a layer computes one and predicts and corrects the others (AltUp), and the low-rank
branch beside attention (LAuReL): Gemma 3n. Letters as in `decoder`, and A streams.

Baykal et al., "Alternating Updates for Efficient Transformers", 2023; Menghani et al., "LAuReL: Learned Augmented Residual
Layer", 2024.
"""

from penstock.layers.linear import Linear
from penstock.layers.module import Module
from penstock.layers.norm import Norm
from penstock_kernels.later import Tensor, torch

SMALLEST = 1e-5  # of a mean square that something is divided by


class AlternatingUpdates(Module):
    """Of one layer. Each token weighs the streams by a router of its own."""

    def __init__(
        self,
        active: int,
        router_norm: Norm,
        router: Linear,
        prediction: Linear,
        correction: Linear,
        output_scale_E: Tensor | None,
    ) -> None:
        self.active = active  # the stream that the layer computes
        self.router_norm, self.router = router_norm, router
        self.prediction, self.correction = prediction, correction  # (A A, A) and (A, A)
        self.output_scale_E = output_scale_E

    def predict(self, x_ATE: Tensor) -> Tensor:
        """(A, T, E): what the layer is expected to make of the streams."""
        streams, tokens = x_ATE.shape[:2]
        mix_TAA = self.prediction(self._modes(x_ATE[self.active])).view(tokens, streams, streams)
        return (mix_TAA @ x_ATE.transpose(0, 1)).transpose(0, 1) + x_ATE

    def correct(self, predicted_ATE: Tensor, computed_TE: Tensor) -> Tensor:
        """(A, T, E): the prediction, corrected by what the layer made of the active stream."""
        news_TE = computed_TE - predicted_ATE[self.active]
        shares_TA = self.correction(self._modes(computed_TE)) + 1
        return news_TE * shares_TA.t().unsqueeze(-1) + predicted_ATE

    def output(self, x_ATE: Tensor) -> Tensor:
        """(T, E) of the active stream, for what follows in the layer."""
        x_TE = x_ATE[self.active]
        return x_TE if self.output_scale_E is None else x_TE * self.output_scale_E

    def _modes(self, x_TE: Tensor) -> Tensor:
        scaled_TE = self.router_norm(x_TE) * x_TE.new_full((), 1 / x_TE.shape[-1])
        modes_TA: Tensor = self.router(scaled_TE).float().tanh().to(x_TE.dtype)
        return modes_TA


class LowRankResidual(Module):
    """What a layer adds beside attention."""

    def __init__(self, down: Linear, up: Linear, norm: Norm) -> None:
        self.down, self.up, self.norm = down, up, norm

    def __call__(self, x_TE: Tensor) -> Tensor:
        """(T, E) to (T, E)."""
        return x_TE + self.norm(self.up(self.down(x_TE)))


class StreamEnds(Module):
    """From one stream to several before the first layer, and back after the last. A stage between others has no matrices for it."""

    def __init__(self, count: int, apart: list[Linear], together: list[Linear]) -> None:
        self.count = count  # A
        self.apart, self.together = apart, together  # of every stream but the first

    def split(self, x_TE: Tensor) -> Tensor:
        """(T, E) to (A, T, E)."""
        return self._alike(x_TE, [linear(x_TE) for linear in self.apart])

    def join(self, x_ATE: Tensor) -> Tensor:
        """(A, T, E) to (T, E)."""
        others = [linear(one_TE) for linear, one_TE in zip(self.together, x_ATE[1:], strict=True)]
        return self._alike(x_ATE[0], others).mean(0)

    def pack(self, x_ATE: Tensor) -> Tensor:
        """(A, T, E) to (T, A E), for another stage."""
        return x_ATE.transpose(0, 1).flatten(1)

    def unpack(self, x_TE: Tensor) -> Tensor:
        """(T, A E) to (A, T, E)."""
        return torch.unflatten(x_TE, -1, (self.count, -1)).transpose(0, 1).contiguous()

    def _alike(self, first_TE: Tensor, others: list[Tensor]) -> Tensor:
        """Of one magnitude, that of the first."""
        size_T1 = first_TE.square().mean(-1, keepdim=True).sqrt()
        made_ATE = first_TE.new_empty(1 + len(others), *first_TE.shape)
        made_ATE[0] = first_TE
        for at, one_TE in enumerate(others):
            own_T1 = one_TE.square().mean(-1, keepdim=True).clamp(min=SMALLEST).sqrt()
            made_ATE[1 + at] = one_TE * size_T1 / own_T1
        return made_ATE
