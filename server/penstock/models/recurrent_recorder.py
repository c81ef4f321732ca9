"""Recurrent layers as operations: a convolution, what states keep and learn, the states, and a norm with a gate. Called by
`recorder`; follows `recurrent`, choice by choice. Letters as there.
"""

from penstock.layers.linear import Linear
from penstock.models.program_writer import ACTIVATIONS, ProgramWriter, fp32, optional_fp32
from penstock.models.recurrent import (
    ChannelDelta,
    ChannelMix,
    Convolution,
    GatedDeltaNet,
    GatedRecurrence,
    LightningAttention,
    Mamba1,
    Mamba2,
    Recurrent,
    ShortConv,
    TimeMix,
)
from penstock.models.recurrent_config import (
    ChannelDeltaConfig,
    ChannelMixConfig,
    CompressedConfig,
    DeltaConfig,
    GriffinConfig,
    LightningConfig,
    Mamba1Config,
    Mamba2Config,
    RecurrentConfig,
    ShortConvConfig,
    TimeMixConfig,
)
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.program import Activation, Epilogue, Kind, Layout, Norm, NormOver, Rule

UNIT_EPS = 1e-6  # of `ops.unit_norm`
POWER = 8.0  # of what gated recurrences keep, as `GatedRecurrence` has it
LONGEST_KERNEL, LARGEST_KEY = 8, 384
LARGEST_ENTRY, MOST_INDEX_HEADS = 1024, 1024
GATES_OF_OUTPUTS = "gates of outputs"  # the buffer with those of `OpenedLinear`


def unknown_mixer(mixer: RecurrentConfig) -> str | None:
    """What the engine does not know of a recurrent layer, in words."""
    if isinstance(mixer, CompressedConfig):
        if max(mixer.head_dim, 2 * mixer.index_dim) > LARGEST_ENTRY or mixer.index_heads > MOST_INDEX_HEADS:
            return f"entries of {mixer.head_dim} numbers, or an index of {mixer.index_heads} heads of {mixer.index_dim}"
        return None
    if isinstance(mixer, TimeMixConfig | ChannelMixConfig):
        return None
    if isinstance(mixer, ShortConvConfig):
        kernel, key = mixer.kernel, 0
    elif isinstance(mixer, DeltaConfig):
        kernel, key = mixer.kernel, mixer.key_dim
    elif isinstance(mixer, Mamba2Config):
        if mixer.activation not in ACTIVATIONS:
            return f"the activation {mixer.activation}"
        kernel, key = mixer.kernel, mixer.state
    elif isinstance(mixer, LightningConfig):
        if mixer.activation not in ACTIVATIONS:
            return f"the activation {mixer.activation}"
        kernel, key = 1, mixer.head_dim
    elif isinstance(mixer, ChannelDeltaConfig):
        kernel, key = mixer.kernel, mixer.head_dim
    elif isinstance(mixer, Mamba1Config):
        if mixer.activation not in ACTIVATIONS:
            return f"the activation {mixer.activation}"
        kernel, key = mixer.kernel, mixer.state
    else:
        assert isinstance(mixer, GriffinConfig), "there is no other"
        if mixer.activation not in ACTIVATIONS:
            return f"the activation {mixer.activation}"
        kernel, key = mixer.kernel, 0
    if kernel > LONGEST_KERNEL:
        return f"convolutions of {kernel} tokens"
    return f"states of {key} rows" if key > LARGEST_KEY else None


def record_mixer(
    writer: ProgramWriter, layer: int, mixer: Recurrent, target: int | None = None, target_at: int = 0
) -> int:
    """What the layer's last matrix reads: a buffer of bf16, or columns of the one that is given."""
    if isinstance(mixer, ShortConv):
        return _short_conv(writer, layer, mixer, target, target_at)
    if isinstance(mixer, GatedDeltaNet):
        return _delta(writer, layer, mixer, target, target_at)
    if isinstance(mixer, Mamba2):
        return _mamba2(writer, layer, mixer, target, target_at)
    if isinstance(mixer, ChannelDelta):
        return _channel_delta(writer, layer, mixer)
    if isinstance(mixer, Mamba1):
        return _mamba1(writer, layer, mixer)
    if isinstance(mixer, GatedRecurrence):
        return _gated_recurrence(writer, layer, mixer)
    assert isinstance(mixer, LightningAttention), "the others read bf16"
    return _lightning(writer, layer, mixer, target, target_at)


def record_token_mix(writer: ProgramWriter, layer: int, mixer: TimeMix | ChannelMix, reads_short: int) -> int:
    """The same of mixtures of tokens, which are made of bf16."""
    mixes = mixer.mixes_3E if isinstance(mixer, TimeMix) else mixer.mixes_2E
    matrices = (
        [mixer.keys, mixer.values, mixer.gates] if isinstance(mixer, TimeMix) else [mixer.keys, mixer.gates]
    )
    width, last = writer.width, len(matrices) - 1
    made = []
    for at, matrix in enumerate(matrices):
        mixture = writer.buffer("mixture of tokens", Layout.BF16, width)
        # The last one has the state move on: the others read it as it was.
        writer.add(
            Kind.MIX_TOKENS,
            reads_short,
            mixture,
            layer=layer,
            columns=width,
            norm_weight=fp32(mixes[at]),
            accumulate=at == last,
        )
        is_hidden = isinstance(mixer, ChannelMix) and at == 0
        rows = matrix.outputs
        if is_hidden:
            hidden = writer.buffer("hidden", Layout.BF16, rows)
            writer.linear(
                writer.readable(mixture),
                hidden,
                matrix,
                epilogue=Epilogue.ACTIVATE,
                activation=Activation.RELU_SQUARED,
            )
            made.append(hidden)
            continue
        name = GATES_OF_OUTPUTS if isinstance(mixer, ChannelMix) else ("keys", "values", "gates")[at]
        given = writer.buffer(name, Layout.F32, rows)
        writer.linear(writer.readable(mixture), given, matrix)
        made.append(given)
    if isinstance(mixer, ChannelMix):
        return made[0]
    channels = len(mixer.decay_I)
    target = writer.buffer("mixed", Layout.BF16, channels)
    writer.add(
        Kind.WEIGH_VALUES,
        made[0],
        target,
        second=made[1],
        third=made[2],
        layer=layer,
        columns=channels,
        norm_weight=fp32(mixer.decay_I),
        bias=fp32(mixer.first_I),
    )
    return target


def _parts(
    writer: ProgramWriter,
    mixer: GatedDeltaNet | ChannelDelta | Mamba2 | Mamba1 | LightningAttention | GatedRecurrence,
    width: int,
) -> int:
    parts = writer.buffer("mixer parts", Layout.F32, width)
    writer.linear(writer.normed, parts, mixer.parts)
    return parts


def record_convolution(
    writer: ProgramWriter,
    layer: int,
    convolution: Convolution,
    source: int,
    target: int,
    *,
    source_at: int = 0,
    target_at: int = 0,
    activation: Activation = Activation.IDENTITY,
    inner_at: int = -1,
    outer_at: int = -1,
) -> None:
    """Of as many columns of fp32 as it has channels, into as many: activation(convolution(x)), where x is multiplied before with the columns
    from `inner_at` on, and what is made of it with those from `outer_at` on; -1: not multiplied.
    """
    weight_WC = fp32(convolution.weight_WC)
    writer.add(
        Kind.CONVOLVE,
        source,
        target,
        layer=layer,
        inner_at=inner_at,
        outer_at=outer_at,
        source_at=source_at,
        target_at=target_at,
        offset=convolution.place,
        rows=len(weight_WC),
        columns=weight_WC.shape[1],
        norm_weight=weight_WC,
        bias=optional_fp32(convolution.bias_C),
        activation=activation,
    )


def _convolve(
    writer: ProgramWriter,
    layer: int,
    convolution: Convolution | None,
    source: int,
    source_at: int,
    channels: int,
    activation: Activation,
) -> int:
    """Into a buffer of fp32. None: only the activation."""
    target = writer.buffer("convolved", Layout.F32, channels)
    made = Convolution(tensors.ones((1, channels)), None) if convolution is None else convolution
    record_convolution(writer, layer, made, source, target, source_at=source_at, activation=activation)
    return target


def _decay(log_decay_H: Tensor) -> Tensor:
    return log_decay_H.double().exp().float()


def _target(writer: ProgramWriter, target: int | None, width: int) -> int:
    return writer.buffer("mixed", Layout.BF16, width) if target is None else target


def _short_conv(
    writer: ProgramWriter, layer: int, mixer: ShortConv, target: int | None, target_at: int
) -> int:
    channels = mixer.convolution.weight_WC.shape[1]
    gates = writer.buffer("mixer parts", Layout.F32, 3 * channels)
    writer.linear(writer.normed, gates, mixer.gates)
    target = _target(writer, target, channels)
    record_convolution(
        writer,
        layer,
        mixer.convolution,
        gates,
        target,
        source_at=2 * channels,
        target_at=target_at,
        inner_at=0,
        outer_at=channels,
    )
    return target


def _delta(
    writer: ProgramWriter, layer: int, mixer: GatedDeltaNet, target: int | None, target_at: int
) -> int:
    config = mixer.config
    heads = mixer.key_heads * (config.value_heads // config.key_heads)
    keys, values = mixer.key_heads * config.key_dim, heads * config.value_dim
    channels = 2 * keys + values
    parts = _parts(writer, mixer, channels + values + 2 * heads)
    convolved = _convolve(writer, layer, mixer.convolution, parts, 0, channels, Activation.SILU)
    rates = writer.buffer("rates", Layout.F32, 2 * heads)
    writer.add(
        Kind.RATES,
        parts,
        rates,
        second=convolved,
        rule=Rule.DELTA_RULE,
        source_at=channels + values + heads,
        inner_at=channels + values,
        columns=heads,
        norm_weight=_decay(mixer.log_decay_H),
        bias=fp32(mixer.rate_bias_H),
        scale=config.beta_scale,
        heads=mixer.key_heads,
        head_dim=config.key_dim,
        eps=UNIT_EPS,
        alpha=config.key_dim**-0.5,
    )
    answers = writer.buffer("answers", Layout.F32, values)
    writer.add(
        Kind.RECUR,
        convolved,
        answers,
        second=rates,
        layer=layer,
        source_at=0,
        inner_at=keys,
        outer_at=2 * keys,
        heads=heads,
        kv_heads=mixer.key_heads,
        head_dim=config.key_dim,
        value_dim=config.value_dim,
        learns=True,
    )
    target = _target(writer, target, values)
    writer.add(
        Kind.GATED_NORM,
        answers,
        target,
        second=parts,
        source_at=channels,
        target_at=target_at,
        norm=Norm.RMS,
        eps=config.eps,
        heads=heads,
        head_dim=config.value_dim,
        norm_weight=fp32(mixer.norm_V),
        activation=Activation.SILU if config.gate == "silu" else Activation.SIGMOID,
    )
    return target


def _mamba2(writer: ProgramWriter, layer: int, mixer: Mamba2, target: int | None, target_at: int) -> int:
    config, heads = mixer.config, mixer.heads
    width, inner = heads * config.head_dim, mixer.groups * config.state
    channels = width + 2 * inner
    parts = _parts(writer, mixer, width + channels + heads)
    activation = ACTIVATIONS[config.activation]
    convolved = _convolve(writer, layer, mixer.convolution, parts, width, channels, activation)
    rates = writer.buffer("rates", Layout.F32, 2 * heads)
    lowest, highest = config.rate_limits
    writer.add(
        Kind.RATES,
        parts,
        rates,
        rule=Rule.STATE_SPACE,
        source_at=width + channels,
        columns=heads,
        norm_weight=_decay(mixer.log_decay_H),
        bias=fp32(mixer.rate_bias_H),
        lowest=lowest,
        highest=highest,
    )
    answers = writer.buffer("answers", Layout.F32, width)
    writer.add(
        Kind.RECUR,
        convolved,
        answers,
        second=rates,
        layer=layer,
        source_at=width + inner,
        inner_at=width,
        outer_at=0,
        heads=heads,
        kv_heads=mixer.groups,
        head_dim=config.state,
        value_dim=config.head_dim,
        norm_weight=fp32(mixer.skip_H),
    )
    target = _target(writer, target, width)
    gated = writer.add(
        Kind.GATED_NORM,
        answers,
        target,
        second=parts,
        source_at=0,
        target_at=target_at,
        heads=1,
        head_dim=width,
        activation=Activation.SILU,
    )
    if mixer.norm_GC is not None:
        gated.norm, gated.eps, gated.accumulate = Norm.RMS, config.eps, config.norm == "gate first"
        gated.norm_over, gated.norm_weight = NormOver.HEADS, fp32(mixer.norm_GC)
        gated.heads, gated.head_dim = mixer.norm_GC.shape
    return target


def _lightning(
    writer: ProgramWriter, layer: int, mixer: LightningAttention, target: int | None, target_at: int
) -> int:
    heads, size = mixer.heads, mixer.config.head_dim
    width = heads * size
    parts = _parts(writer, mixer, 4 * width)
    activation = ACTIVATIONS[mixer.config.activation]
    convolved = _convolve(writer, layer, None, parts, 0, 3 * width, activation)
    rates = writer.buffer("rates", Layout.F32, 2 * heads)
    decay_H = fp32(-mixer.decay_H)
    writer.add(Kind.RATES, parts, rates, rule=Rule.CONSTANT, source_at=-1, columns=heads, norm_weight=decay_H)
    answers = writer.buffer("answers", Layout.F32, width)
    writer.add(
        Kind.RECUR,
        convolved,
        answers,
        second=rates,
        layer=layer,
        source_at=0,
        inner_at=width,
        outer_at=2 * width,
        heads=heads,
        kv_heads=heads,
        head_dim=size,
        value_dim=size,
    )
    target = _target(writer, target, width)
    writer.add(
        Kind.GATED_NORM,
        answers,
        target,
        second=parts,
        source_at=3 * width,
        target_at=target_at,
        norm=Norm.RMS,
        eps=mixer.norm.eps,
        heads=1,
        head_dim=width,
        norm_weight=optional_fp32(mixer.norm.weight_E),
        activation=Activation.SIGMOID,
    )
    return target


def _channel_delta(writer: ProgramWriter, layer: int, mixer: ChannelDelta) -> int:
    config, heads, size = mixer.config, mixer.heads, mixer.config.head_dim
    width, low = heads * size, size if config.low_rank else heads * size
    parts = _parts(writer, mixer, 3 * width + 2 * low + heads)
    convolved = _convolve(writer, layer, mixer.convolution, parts, 0, 3 * width, Activation.SILU)
    decays, decays_at, gates, gates_at = parts, 3 * width, parts, 3 * width + low
    if mixer.decays is not None and mixer.gates is not None:
        narrow = writer.buffer("narrow", Layout.BF16, low)
        wide = [writer.buffer(name, Layout.F32, width) for name in ("channel decays", "channel gates")]
        for matrix, first, made in ((mixer.decays, decays_at, wide[0]), (mixer.gates, gates_at, wide[1])):
            writer.add(Kind.NORM, parts, narrow, source_at=first, columns=low)
            writer.short_linear(narrow, made, matrix)
        (decays, gates), decays_at, gates_at = wide, 0, 0
    rates = writer.buffer("rates", Layout.F32, heads * (size + 1))
    bound = config.lower_bound
    writer.add(
        Kind.RATES,
        decays,
        rates,
        second=convolved,
        third=parts,
        rule=Rule.CHANNELS if bound is None else Rule.BOUNDED_CHANNELS,
        lowest=bound or 0.0,
        source_at=decays_at,
        inner_at=3 * width + 2 * low,
        columns=heads,
        norm_weight=_decay(mixer.log_decay_H),
        bias=fp32(mixer.rate_bias_HD),
        heads=heads,
        head_dim=size,
        eps=UNIT_EPS,
        alpha=size**-0.5,
    )
    answers = writer.buffer("answers", Layout.F32, width)
    writer.add(
        Kind.RECUR,
        convolved,
        answers,
        second=rates,
        layer=layer,
        source_at=0,
        inner_at=width,
        outer_at=2 * width,
        heads=heads,
        kv_heads=heads,
        head_dim=size,
        value_dim=size,
        channels=True,
        learns=True,
    )
    target = writer.buffer("mixed", Layout.BF16, width)
    writer.add(
        Kind.GATED_NORM,
        answers,
        target,
        second=gates,
        source_at=gates_at,
        norm=Norm.RMS,
        eps=config.eps,
        heads=heads,
        head_dim=size,
        norm_weight=fp32(mixer.norm_D),
        activation=Activation.SIGMOID,
    )
    return target


def _mamba1(writer: ProgramWriter, layer: int, mixer: Mamba1) -> int:
    config, width = mixer.config, len(mixer.skip_I)
    rank, state = config.rate_rank, config.state
    parts = _parts(writer, mixer, 2 * width)
    activation = ACTIVATIONS[config.activation]
    convolved = _convolve(writer, layer, mixer.convolution, parts, 0, width, activation)
    short = writer.buffer("convolved in bf16", Layout.BF16, width)
    writer.norm(convolved, short, None, columns=width)
    made = writer.buffer("rates, B and C", Layout.F32, rank + 2 * state)
    with writer.summed(made) as (part, _, _):
        writer.short_linear(short, part, mixer.inner)
    firsts = (0, rank, rank + state)
    for norm, first, count in zip(mixer.norms, firsts, (rank, state, state), strict=False):
        weight = optional_fp32(norm.weight_E)
        places = {"source_at": first, "target_at": first, "columns": count}
        writer.add(Kind.NORM, made, made, **places, norm=Norm.RMS, eps=norm.eps, norm_weight=weight)
    low = writer.buffer("low rates", Layout.BF16, rank)
    writer.norm(made, low, None, columns=rank)
    rates = writer.buffer("rates", Layout.F32, width)
    writer.short_linear(low, rates, Linear(mixer.rates.weight_OI, mixer.rate_bias_I))
    mixer.rates.weight_OI = mixer.rates.weight_OI.new_empty((0, rank))
    answers = writer.buffer("answers", Layout.F32, width)
    writer.add(
        Kind.SCAN,
        convolved,
        answers,
        second=rates,
        third=made,
        layer=layer,
        inner_at=rank,
        outer_at=rank + state,
        columns=width,
        head_dim=state,
        positions=fp32(mixer.decay_IM),
        norm_weight=fp32(mixer.skip_I),
    )
    target = writer.buffer("mixed", Layout.BF16, width)
    gated = {"source_at": width, "heads": 1, "head_dim": width, "activation": Activation.SILU}
    writer.add(Kind.GATED_NORM, answers, target, second=parts, **gated)
    return target


def _gated_recurrence(writer: ProgramWriter, layer: int, mixer: GatedRecurrence) -> int:
    heads, size = mixer.gates_HIO.shape[:2]
    width = heads * size
    parts = _parts(writer, mixer, 2 * width)
    convolved = _convolve(writer, layer, mixer.convolution, parts, 0, width, Activation.IDENTITY)
    short = writer.buffer("convolved in bf16", Layout.BF16, width)
    writer.norm(convolved, short, None, columns=width)
    gates = writer.buffer("gates of recurrences", Layout.F32, 2 * width)
    writer.heads_linear(short, gates, mixer.gates_HIO.transpose(1, 2), step=size)
    mixer.gates_HIO = mixer.gates_HIO.new_empty((0, *mixer.gates_HIO.shape[1:]))
    answers = writer.buffer("answers", Layout.F32, width)
    writer.add(
        Kind.GATED_RECUR,
        convolved,
        answers,
        second=gates,
        layer=layer,
        heads=heads,
        head_dim=size,
        norm_weight=POWER * tensors.softplus(mixer.rate_I.float()),
        bias=fp32(mixer.gate_biases_HO),
    )
    target = writer.buffer("mixed", Layout.BF16, width)
    activation = ACTIVATIONS[mixer.config.activation]
    gated = {"source_at": width, "heads": 1, "head_dim": width, "activation": activation}
    writer.add(Kind.GATED_NORM, answers, target, second=parts, **gated)
    return target
