"""Several residual streams that every branch reads a mixture of, and is added to, by weights that each token makes of all
of them: hyper-connections, as Hunyuan 4 and Qwen 4 have them, where streams are not mixed with each other, and DeepSeek V4, where
they are. Letters as in `decoder`, and A streams.

Zhu et al., "Hyper-Connections", 2024; Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2025. Sums are fp32, and so are the
weights but Qwen 4's, which normalises each stream and has a share for each of its numbers, made by a layer of R numbers.
"""

import penstock_kernels as ops
from penstock.layers.linear import Linear
from penstock.layers.module import Module
from penstock.loading.checkpoint import Checkpoint
from penstock.models.config import HyperConfig, LowRankHyperConfig
from penstock_kernels import tensors
from penstock_kernels.later import F, Tensor, torch


def read_parts(
    checkpoint: Checkpoint, names: tuple[str, str, str], rows: int, columns: int, scales: int
) -> tuple[Linear, Tensor, Tensor]:
    """Weights, bases and scales, in fp32, of the tensors with these names."""
    weights, base, scale = (
        checkpoint.tensor(name, shape, dtype=tensors.float32)
        for name, shape in zip(names, ((rows, columns), (rows,), (scales,)), strict=True)
    )
    return Linear(weights), base, scale


def _mixing(x_TAE: Tensor, weights: Linear, eps: float) -> Tensor:
    """(T, ...) fp32: what the weights make of all streams, over their root mean square."""
    flat_TX = x_TAE.flatten(1).float()
    return weights(flat_TX) * torch.rsqrt(flat_TX.square().mean(-1, keepdim=True) + eps)


def _opened(x: Tensor) -> Tensor:
    """Sigmoids, in float64, whose roundings do not show: libraries compute a few numbers otherwise than many."""
    return x.double().sigmoid().float()


def _mixed(x_TAE: Tensor, shares_TA: Tensor) -> Tensor:
    """(T, E) in the streams' dtype."""
    return (shares_TA.unsqueeze(-1) * x_TAE).sum(1).to(x_TAE.dtype)


def with_shares(x_TAE: Tensor, given_TE: Tensor, shares_TA: Tensor) -> Tensor:
    """(T, A, E): every stream and its share of what a branch gives."""
    return (shares_TA.unsqueeze(-1) * given_TE.float().unsqueeze(1) + x_TAE.float()).to(x_TAE.dtype)


class HyperConnection(Module):
    """Of one branch. The rows of `weights` are the streams' shares in what it reads, then its own in each stream."""

    def __init__(self, config: HyperConfig, weights: Linear, base_Y: Tensor, scale_2: Tensor) -> None:
        self.config, self.weights_YX = config, weights
        self.base_Y, self.scale_2 = base_Y, scale_2  # Y = 2 A, fp32

    def read(self, x_TAE: Tensor) -> tuple[Tensor, Tensor]:
        """What the branch reads, (T, E), and the shares of what it gives, (T, A) fp32."""
        config = self.config
        reads_TA, gives_TA = _mixing(x_TAE, self.weights_YX, config.norm_eps).chunk(2, -1)
        read_base_A, give_base_A = self.base_Y.chunk(2)
        reads_TA = _opened(reads_TA * self.scale_2[0] + read_base_A) + config.eps
        gives_TA = config.magnitude * _opened(gives_TA * self.scale_2[1] + give_base_A) + config.eps
        return _mixed(x_TAE, reads_TA), gives_TA

    @staticmethod
    def add(x_TAE: Tensor, given_TE: Tensor, shares_TA: Tensor) -> Tensor:
        """(T, A, E): every stream and its share of what the branch gives."""
        return with_shares(x_TAE, given_TE, shares_TA)


class MixingConnection(Module):
    """The same where streams are mixed, too. The rows of `weights` are the streams' shares in what the branch reads, its own in
    each stream, and, of each stream, its shares in all.
    """

    def __init__(self, config: HyperConfig, weights: Linear, base_Y: Tensor, scale_3: Tensor) -> None:
        self.config, self.weights_YX = config, weights
        self.base_Y, self.scale_3 = base_Y, scale_3  # Y = 2 A + A A, fp32

    def read(self, x_TAE: Tensor) -> tuple[Tensor, Tensor]:
        """What the branch reads, (T, E), and the shares of what it gives, and of streams: (T, A + A A) fp32."""
        config = self.config
        streams, eps = config.count, config.eps
        sizes = [streams, streams, streams * streams]
        made = torch.split(_mixing(x_TAE, self.weights_YX, config.norm_eps), sizes, -1)
        bases = torch.split(self.base_Y, sizes)
        reads_TA, gives_TA, mixes_TY = (
            one * scale + base for one, scale, base in zip(made, self.scale_3, bases, strict=True)
        )
        # Sinkhorn and Knopp: rows and columns in turn, until both add up to 1.
        mixes_TAA = mixes_TY.double().view(-1, streams, streams).softmax(-1) + eps
        mixes_TAA = mixes_TAA / (mixes_TAA.sum(-2, keepdim=True) + eps)
        for _ in range(config.mixing_rounds - 1):
            mixes_TAA = mixes_TAA / (mixes_TAA.sum(-1, keepdim=True) + eps)
            mixes_TAA = mixes_TAA / (mixes_TAA.sum(-2, keepdim=True) + eps)
        gives_TA = config.magnitude * _opened(gives_TA)
        return _mixed(x_TAE, _opened(reads_TA) + eps), torch.cat((gives_TA, mixes_TAA.flatten(1).float()), -1)

    def add(self, x_TAE: Tensor, given_TE: Tensor, shares_TY: Tensor) -> Tensor:
        """(T, A, E): every stream as a mixture of all, and its share of what the branch gives."""
        streams = self.config.count
        sum_TAE = shares_TY[:, :streams, None] * given_TE.float().unsqueeze(1)
        mixes_TAA = shares_TY[:, streams:].reshape(-1, streams, streams)
        for stream, x_TE in enumerate(x_TAE.unbind(1)):
            sum_TAE += mixes_TAA[:, stream].unsqueeze(-1) * x_TE.float().unsqueeze(1)
        return sum_TAE.to(x_TAE.dtype)


class HyperHead(Module):
    """Behind the last layer: one stream of all."""

    def __init__(self, config: HyperConfig, weights: Linear, base_A: Tensor, scale_1: Tensor) -> None:
        self.config, self.weights_AX = config, weights
        self.base_A, self.scale_1 = base_A, scale_1

    def __call__(self, x_TAE: Tensor) -> Tensor:
        """(T, A, E) to (T, E)."""
        mixing_TA = _mixing(x_TAE, self.weights_AX, self.config.norm_eps)
        return _mixed(x_TAE, _opened(mixing_TA * self.scale_1 + self.base_A) + self.config.eps)


class StreamNorm(Module):
    """Root mean square normalisation of each stream by itself, with a weight for each number of each."""

    def __init__(self, weight_AE: Tensor, eps: float) -> None:
        self.weight_AE, self.eps = weight_AE, eps  # fp32

    def __call__(self, x_TAE: Tensor) -> Tensor:
        """(T, A, E) to (T, A, E)."""
        return (ops.rms_norm(x_TAE.float(), None, self.eps) * self.weight_AE).to(x_TAE.dtype)


class LowRankConnection(Module):
    """Of one branch. The rows of `parts` are the R numbers that make its mixture, and then its share in each stream."""

    def __init__(self, config: LowRankHyperConfig, norm: StreamNorm, parts: Linear, up: Linear) -> None:
        self.config, self.norm, self.parts, self.up = config, norm, parts, up

    def read(self, x_TAE: Tensor) -> tuple[Tensor, Tensor]:
        """What the branch reads, (T, E), and the shares of what it gives, (T, A) fp32."""
        config, dtype = self.config, x_TAE.dtype
        normed_TAE = self.norm(x_TAE)
        made_TO = self.parts(normed_TAE.flatten(1)).float() / config.count
        low_TR, gives_TA = made_TO[:, : config.rank], made_TO[:, config.rank :]
        shares_TAE = self.up(F.silu(low_TR).to(dtype)).view_as(normed_TAE).float().sigmoid()
        mixed_TE = (shares_TAE * normed_TAE.float()).sum(1) / config.count
        return mixed_TE.to(dtype), 2 * torch.sigmoid(gives_TA)

    @staticmethod
    def add(x_TAE: Tensor, given_TE: Tensor, shares_TA: Tensor) -> Tensor:
        """(T, A, E): every stream and its share of what the branch gives."""
        return with_shares(x_TAE, given_TE, shares_TA)


class LowRankHead(Module):
    """Behind the last layer: one stream of all, mixed as a branch would read them."""

    def __init__(self, mixing: LowRankConnection) -> None:
        self.mixing = mixing

    def __call__(self, x_TAE: Tensor) -> Tensor:
        """(T, A, E) to (T, E)."""
        return self.mixing.read(x_TAE)[0]
