"""Recurrent layers: what mixes tokens through a state of one size, in place of attention.

Made by `penstock.models.recurrent_loader`, called by the decoder as attention is. What reads the same input is one matrix. States
and what is computed with them are fp32, as in the implementations that the families were trained with. Letters beside those
of `decoder`: C channels of a convolution, W its width, I channels of a state space, M numbers of its state, G groups of heads,
V size of a value (not the vocabulary). Of a model that is divided over ranks all are this rank's.
"""

from collections.abc import Callable

import penstock_kernels as ops
from penstock.layers.linear import Linear, OpenedLinear
from penstock.layers.module import Module, TiledModule
from penstock.layers.norm import RmsNorm
from penstock.models.layer_cache import LayerCache
from penstock.models.recurrent_config import (
    ChannelDeltaConfig,
    DeltaConfig,
    GriffinConfig,
    LightningConfig,
    Mamba1Config,
    Mamba2Config,
)
from penstock.models.step import Step
from penstock.parallel.group import TensorGroup
from penstock_kernels import tensors
from penstock_kernels.later import F, Tensor, torch

# What opens gates behind the norm of a delta rule.
OPENED: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda gates: F.silu(gates),
    "sigmoid": lambda gates: gates.sigmoid(),
}


class Convolution(Module):
    """A causal convolution of each channel. `place`: of its state among those of a layer."""

    def __init__(self, weight_WC: Tensor, bias_C: Tensor | None, place: int = 0) -> None:
        self.weight_WC, self.bias_C, self.place = weight_WC, bias_C, place  # fp32

    def __call__(self, x_TC: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C) in fp32."""
        assert step.states is not None, "made for models with recurrent layers"
        return ops.causal_conv(x_TC, self.weight_WC, self.bias_C, cache.states[self.place], step.states)


class ShortConv(Module):
    """A convolution between two gates that are products. The rows of `gates` are the inner gate, the outer one, and x."""

    def __init__(self, gates: Linear, convolution: Convolution, out: Linear) -> None:
        self.gates, self.convolution, self.out = gates, convolution, out

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, C)."""
        inner_TC, outer_TC, x_TC = self.gates(x_TE).chunk(3, -1)
        mixed_TC = self.convolution(inner_TC * x_TC, step, cache)
        return (outer_TC * mixed_TC).to(x_TE.dtype)


class GatedDeltaNet(Module):
    """Gated delta rule. The rows of `parts` are queries, keys and values, gates z, and for each value head b and a."""

    def __init__(
        self,
        config: DeltaConfig,
        key_heads: int,
        parts: Linear,
        convolution: Convolution,
        log_decay_H: Tensor,
        rate_bias_H: Tensor,
        norm_V: Tensor,
        out: Linear,
    ) -> None:
        self.config, self.key_heads = config, key_heads
        self.parts, self.convolution, self.out = parts, convolution, out
        self.log_decay_H, self.rate_bias_H, self.norm_V = log_decay_H, rate_bias_H, norm_V  # fp32
        self.opened = OPENED[config.gate]

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, H V)."""
        assert step.states is not None, "made for models with recurrent layers"
        config, tokens = self.config, len(x_TE)
        shared = config.value_heads // config.key_heads
        keys, heads = self.key_heads * config.key_dim, self.key_heads * shared
        values = heads * config.value_dim
        mixed_TC, z_TC, b_TH, a_TH = torch.split(
            self.parts(x_TE), [2 * keys + values, values, heads, heads], -1
        )
        mixed_TC = F.silu(self.convolution(mixed_TC, step, cache))
        q_TC, k_TC, v_TC = torch.split(mixed_TC, [keys, keys, values], -1)
        q_THD, k_THD = (
            ops.unit_norm(torch.unflatten(x, -1, (self.key_heads, config.key_dim))).repeat_interleave(
                shared, 1
            )
            for x in (q_TC, k_TC)
        )
        # In float64, whose roundings do not show: libraries compute a few numbers otherwise than many.
        rate_TH = F.softplus(a_TH.double() + self.rate_bias_H)
        mixed_THV = ops.gated_delta_rule(
            q_THD.mul_(config.key_dim**-0.5),
            k_THD,
            torch.unflatten(v_TC, -1, (heads, config.value_dim)),
            (rate_TH * -self.log_decay_H.double().exp()).float(),
            (b_TH.double().sigmoid() * config.beta_scale).float(),
            cache.states[1],
            step.states,
        )
        opened_THV = torch.unflatten(self.opened(z_TC.float()), -1, (heads, config.value_dim))
        normed_THV = ops.gated_rms_norm(mixed_THV, opened_THV, self.norm_V, config.eps, gate_first=False)
        return normed_THV.to(x_TE.dtype).view(tokens, values)


class ChannelDelta(Module):
    """Kimi delta attention. The rows of `parts` are queries, keys and values, decays and gates or what `decays` and `gates` make
    them of, and b.
    """

    def __init__(
        self,
        config: ChannelDeltaConfig,
        heads: int,
        parts: Linear,
        convolution: Convolution,
        decays: Linear | None,
        gates: Linear | None,
        log_decay_H: Tensor,
        rate_bias_HD: Tensor,
        norm_D: Tensor,
        out: Linear,
    ) -> None:
        self.config, self.heads = config, heads
        self.parts, self.convolution, self.out = parts, convolution, out
        self.decays, self.gates = decays, gates
        self.log_decay_H, self.rate_bias_HD, self.norm_D = log_decay_H, rate_bias_HD, norm_D  # fp32

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, H D)."""
        assert step.states is not None, "made for models with recurrent layers"
        heads, size, bound = self.heads, self.config.head_dim, self.config.lower_bound
        low = size if self.config.low_rank else heads * size
        mixed_TC, decay_TC, gate_TC, b_TH = torch.split(
            self.parts(x_TE), [3 * heads * size, low, low, heads], -1
        )
        if self.decays is not None and self.gates is not None:
            decay_TC, gate_TC = self.decays(decay_TC.contiguous()), self.gates(gate_TC.contiguous())
        mixed_TC = F.silu(self.convolution(mixed_TC, step, cache))
        q_THD, k_THD, v_THD = torch.unflatten(mixed_TC, -1, (3, heads, size)).unbind(1)
        rate_THD = torch.unflatten(decay_TC.float(), -1, (heads, size)) + self.rate_bias_HD
        scale_H1 = self.log_decay_H.exp().unsqueeze(-1)
        if bound is None:
            decay_THD = F.softplus(rate_THD).mul_(-scale_H1)
        else:
            decay_THD = rate_THD.mul_(scale_H1).sigmoid_().mul_(bound)
        mixed_THD = ops.channel_delta_rule(
            ops.unit_norm(q_THD).mul_(size**-0.5),
            ops.unit_norm(k_THD),
            v_THD.contiguous(),
            decay_THD,
            b_TH.double().sigmoid().float(),
            cache.states[1],
            step.states,
        )
        opened_THD = torch.unflatten(gate_TC.float().sigmoid(), -1, (heads, size))
        normed_THD = ops.gated_rms_norm(mixed_THD, opened_THD, self.norm_D, self.config.eps, gate_first=False)
        return normed_THD.to(x_TE.dtype).flatten(1)


class LightningAttention(Module):
    """Linear attention with a decay for each head. The rows of `parts` are queries, keys, values and gates."""

    def __init__(
        self, config: LightningConfig, heads: range, parts: Linear, norm: RmsNorm, out: Linear
    ) -> None:
        self.config, self.heads, self.parts, self.norm, self.out = config, len(heads), parts, norm, out
        self.activation = ops.ACTIVATIONS[config.activation]
        # fp32
        self.decay_H = -tensors.tensor(config.slopes)[heads.start : heads.stop]

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, H D)."""
        assert step.states is not None, "made for models with recurrent layers"
        heads, size = self.heads, self.config.head_dim
        qkv_TC, gate_TC = torch.split(self.parts(x_TE), [3 * heads * size, heads * size], -1)
        qkv_TC = self.activation(qkv_TC.float())
        q_THD, k_THD, v_THD = torch.unflatten(qkv_TC, -1, (3, heads, size)).unbind(1)
        decay_TH = self.decay_H.expand(len(x_TE), heads)
        mixed_THD = ops.decayed_attention(
            q_THD, k_THD, v_THD.contiguous(), decay_TH, cache.states[0], step.states
        )
        normed_TC: Tensor = self.norm(mixed_THD.flatten(1).to(x_TE.dtype))
        return normed_TC * gate_TC.sigmoid()


class GatedRecurrence(TiledModule):
    """Griffin's recurrent block. The rows of `parts` are x, then y; each head's gates are matrices of its own."""

    def __init__(
        self,
        config: GriffinConfig,
        parts: Linear,
        convolution: Convolution,
        gates_HIO: Tensor,
        gate_biases_HO: Tensor,
        rate_I: Tensor,
        out: Linear,
    ) -> None:
        """`gates_HIO`: of each head, columns of the input's gate and then of the recurrence's."""
        super().__init__()
        self.config, self.parts, self.convolution, self.out = config, parts, convolution, out
        self.gates_HIO, self.gate_biases_HO = gates_HIO, gate_biases_HO
        self.rate_I = rate_I  # fp32
        self.activation = ops.ACTIVATIONS[config.activation]

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, I)."""
        assert step.states is not None, "made for models with recurrent layers"
        heads, size = self.gates_HIO.shape[:2]
        x_TI, y_TI = self.parts(x_TE).chunk(2, -1)
        x_TI = self.convolution(x_TI, step, cache)
        gates_THO = x_TE.new_empty(len(x_TE), heads, 2 * size)
        x_THI = torch.unflatten(x_TI.to(x_TE.dtype), -1, (heads, size))
        ops.heads_linear(x_THI, self.gates_HIO, gates_THO, self.tile)
        gates_THO = (gates_THO.float() + self.gate_biases_HO).sigmoid_()
        input_TI, recurrence_TI = (gate_THI.flatten(1) for gate_THI in gates_THO.chunk(2, -1))
        log_kept_TI = recurrence_TI * (-8.0 * F.softplus(self.rate_I))
        # What goes in is scaled so that the state keeps its size; a sequence's first token is its state.
        scale_TI = (1 - (2 * log_kept_TI).exp()).sqrt_()
        scale_TI = torch.where(step.positions_T.unsqueeze(1) == 0, 1.0, scale_TI)
        mixed_TI = ops.linear_recurrence(
            log_kept_TI.exp(), x_TI * input_TI * scale_TI, cache.states[1], step.states
        )
        return (mixed_TI * self.activation(y_TI).float()).to(x_TE.dtype)


class Mamba2(Module):
    """Mamba 2's state space. The rows of `parts` are gates z, then x, B and C, then a rate for each head."""

    def __init__(
        self,
        config: Mamba2Config,
        heads: int,
        groups: int,
        parts: Linear,
        convolution: Convolution,
        log_decay_H: Tensor,
        rate_bias_H: Tensor,
        skip_H: Tensor,
        norm_GC: Tensor | None,
        group: TensorGroup,
        out: Linear,
    ) -> None:
        """`norm_GC`: weights of the norm, for each part of the channels that is normalised by itself."""
        self.config, self.heads, self.groups, self.group = config, heads, groups, group
        self.parts, self.convolution, self.out = parts, convolution, out
        self.log_decay_H, self.rate_bias_H, self.skip_H = log_decay_H, rate_bias_H, skip_H  # fp32
        self.norm_GC = norm_GC  # fp32
        self.activation = ops.ACTIVATIONS[config.activation]

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, H D)."""
        assert step.states is not None, "made for models with recurrent layers"
        config, heads = self.config, self.heads
        channels, inner = heads * config.head_dim, self.groups * config.state
        z_TC, mixed_TC, rate_TH = torch.split(self.parts(x_TE), [channels, channels + 2 * inner, heads], -1)
        mixed_TC = self.activation(self.convolution(mixed_TC, step, cache))
        x_TC, b_TC, c_TC = torch.split(mixed_TC, [channels, inner, inner], -1)
        x_THD = torch.unflatten(x_TC, -1, (heads, config.head_dim))
        b_TGM, c_TGM = (torch.unflatten(part, -1, (self.groups, config.state)) for part in (b_TC, c_TC))
        # In float64, whose roundings do not show: libraries compute a few numbers otherwise than many.
        rate_TH = F.softplus(rate_TH.double() + self.rate_bias_H).clamp(*config.rate_limits)
        decay_TH = (rate_TH * -self.log_decay_H.double().exp()).float()
        scaled_THD = x_THD * rate_TH.float().unsqueeze(-1)
        made_THD = ops.decayed_attention(c_TGM, b_TGM, scaled_THD, decay_TH, cache.states[1], step.states)
        made_TC = (made_THD + x_THD * self.skip_H.unsqueeze(-1)).flatten(1)
        return self._normed(made_TC, z_TC.float()).to(x_TE.dtype)

    def _normed(self, x_TC: Tensor, z_TC: Tensor) -> Tensor:
        config, norm_GC, opened_TC = self.config, self.norm_GC, F.silu(z_TC)
        if norm_GC is None:
            return x_TC * opened_TC
        first = config.norm == "gate first"
        if config.norm_groups % self.group.size == 0:
            x_TGC, opened_TGC = (torch.unflatten(part, -1, norm_GC.shape) for part in (x_TC, opened_TC))
            return ops.gated_rms_norm(x_TGC, opened_TGC, norm_GC, config.eps, gate_first=first).flatten(1)
        # The ranks hold parts of what is normalised at once.
        if first:
            x_TC = x_TC * opened_TC
        squares_T1 = self.group.all_reduce(x_TC.square().sum(-1, keepdim=True))
        width = config.channels // config.norm_groups
        x_TC = x_TC * torch.rsqrt(squares_T1 / width + config.eps) * norm_GC.flatten()
        return x_TC if first else x_TC * opened_TC


class Mamba1(Module):
    """Mamba's state space. The rows of `parts` are x, then gates z. `inner` makes of x what rates are made of, B and C: each
    rank from its channels, and all add up.
    """

    def __init__(
        self,
        config: Mamba1Config,
        parts: Linear,
        convolution: Convolution,
        inner: Linear,
        norms: list[RmsNorm],
        rates: Linear,
        rate_bias_I: Tensor,
        log_decay_IM: Tensor,
        skip_I: Tensor,
        group: TensorGroup,
        out: Linear,
    ) -> None:
        """`norms`: of the numbers that rates are made of, of B and of C, or none."""
        self.config, self.group = config, group
        self.parts, self.convolution, self.inner, self.norms = parts, convolution, inner, norms
        self.rates, self.out = rates, out
        self.rate_bias_I, self.skip_I = rate_bias_I, skip_I  # fp32
        self.decay_IM = log_decay_IM.exp_().neg_()
        self.activation = ops.ACTIVATIONS[config.activation]

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, I)."""
        assert step.states is not None, "made for models with recurrent layers"
        config = self.config
        x_TI, z_TI = self.parts(x_TE).chunk(2, -1)
        x_TI = self.activation(self.convolution(x_TI, step, cache))
        made_TR = self.group.all_reduce(self.inner(x_TI.to(x_TE.dtype)))
        split = torch.split(made_TR, [config.rate_rank, config.state, config.state], -1)
        low_TR, b_TM, c_TM = (
            (norm(part) for norm, part in zip(self.norms, split, strict=True)) if self.norms else split
        )
        rate_TI = F.softplus(self.rates(low_TR.contiguous()).float() + self.rate_bias_I)
        made_TI = ops.selective_scan(
            x_TI, rate_TI, self.decay_IM, b_TM.float(), c_TM.float(), cache.states[1], step.states
        )
        return (made_TI + x_TI * self.skip_I).mul_(F.silu(z_TI.float())).to(x_TE.dtype)


class TimeMix(Module):
    """RWKV's attention. Keys, values and gates read mixtures of their own of a token and the one before it."""

    def __init__(
        self,
        mixes_3E: Tensor,
        keys: Linear,
        values: Linear,
        gates: Linear,
        decay_I: Tensor,
        first_I: Tensor,
        out: Linear,
    ) -> None:
        self.keys, self.values, self.gates, self.out = keys, values, gates, out
        self.mixes_3E, self.decay_I, self.first_I = mixes_3E, decay_I, first_I  # fp32

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, I)."""
        assert step.states is not None, "made for models with recurrent layers"
        previous_TE = ops.previous_tokens(x_TE, cache.states[0], step.states)
        keys_TI, values_TI, gates_TI = (
            matrix(ops.mix_with_previous(x_TE, previous_TE, mix_E)).float()
            for matrix, mix_E in zip((self.keys, self.values, self.gates), self.mixes_3E, strict=True)
        )
        mixed_TI = ops.weighted_key_values(
            keys_TI, values_TI, self.decay_I, self.first_I, cache.states[1], step.states
        )
        return mixed_TI.mul_(gates_TI.sigmoid_()).to(x_TE.dtype)


class ChannelMix(Module):
    """RWKV's feed-forward layer. `gates`, which every rank has whole, open what `out` gives."""

    def __init__(self, mixes_2E: Tensor, keys: Linear, gates: Linear, out: OpenedLinear) -> None:
        self.mixes_2E = mixes_2E  # fp32
        self.keys, self.gates, self.out = keys, gates, out

    def __call__(self, x_TE: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """What `out` reads: (T, F and E)."""
        assert step.states is not None, "made for models with recurrent layers"
        previous_TE = ops.previous_tokens(x_TE, cache.states[0], step.states)
        keys_TF, gates_TE = (
            matrix(ops.mix_with_previous(x_TE, previous_TE, mix_E))
            for matrix, mix_E in zip((self.keys, self.gates), self.mixes_2E, strict=True)
        )
        return torch.cat((F.relu(keys_TF).square_(), gates_TE.sigmoid_()), -1)


Recurrent = (
    ShortConv
    | GatedDeltaNet
    | ChannelDelta
    | LightningAttention
    | GatedRecurrence
    | Mamba2
    | Mamba1
    | TimeMix
    | ChannelMix
)
