"""A mixture of experts as operations: a route, rows gathered by expert, two products with the experts' weights, and the expert that
every token goes to. Called by `recorder`; letters as in `decoder`.
"""

from functools import partial
from typing import Any

from penstock.layers.activation import Xielu
from penstock.models.config import DecoderConfig, ExpertsConfig
from penstock.models.decoder import Experts, ExpertsBeside, FeedForward
from penstock.models.packing import align_experts, align_halves, one_matrix, packed
from penstock.models.program_writer import ACTIVATIONS, ProgramWriter, fp32, optional_fp32, weigh
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.program import (
    TILE_OUTPUTS,
    Activation,
    Epilogue,
    Kind,
    Layout,
    Operation,
    QuantizedMatrix,
    rounded_up,
)


def hidden_of(writer: ProgramWriter, config: DecoderConfig, feed_forward: FeedForward, reads: int) -> int:
    """What a dense layer's last matrix reads, in bf16."""
    width = feed_forward.out.inputs
    if config.gated:
        if feed_forward.up.quantized is None:
            align_halves(feed_forward.up)
        width = rounded_up(width, TILE_OUTPUTS)
    hidden = writer.buffer("hidden", Layout.BF16, width)
    gates = _gates(feed_forward)
    made = writer.linear(
        reads,
        hidden,
        feed_forward.up,
        epilogue=Epilogue.GATE if config.gated else Epilogue.ACTIVATE,
        activation=ACTIVATIONS[config.activation] if gates is None else gates.pop("activation"),
    )
    for name, number in (gates or {}).items():
        setattr(made, name, number)
    if isinstance(feed_forward.activation, Xielu):
        for name, factor in feed_forward.activation.factors.items():
            setattr(made, name, factor)
    return hidden


def record_experts(
    writer: ProgramWriter,
    config: DecoderConfig,
    choice: ExpertsConfig,
    experts: Experts,
    reads: int,
    reads_short: int,
    target: int,
    scale: float,
    adds: bool,
    factors_X: Tensor | None = None,
) -> None:
    """`reads`: what large products read, and `reads_short` the same in bf16. Adds `scale` times what experts give to the
    target of fp32, or puts it there. `factors_X`: of each expert's weights."""
    per_token, hidden_width = experts.routing.per_token, rounded_up(choice.width, TILE_OUTPUTS)
    route = _route(writer, choice, experts, reads_short, factors_X)
    given_to, given_scale, given_adds, gathered_from = target, scale, adds, reads
    if experts.latent_in is not None and experts.latent_out is not None:
        latent = writer.buffer("latent", Layout.BF16, choice.latent)
        writer.linear(reads_short, latent, experts.latent_in)
        gathered_from = writer.readable(latent)
        given_to, given_scale, given_adds = (
            writer.buffer("mixed latent", Layout.F32, choice.latent),
            1.0,
            False,
        )
    width = writer.made.program.buffers[gathered_from].width
    gathered = writer.buffer("gathered", writer.layout, width, per_token)
    shape = {"second": route, "per_token": per_token, "weighs_input": experts.weighs_input}
    writer.add(Kind.GATHER, gathered_from, gathered, **shape)
    hidden = writer.buffer("experts' hidden", Layout.BF16, hidden_width, per_token)
    if experts.quantized_up is None:
        align_experts(experts, config.gated)
    up = writer.add(
        Kind.EXPERTS,
        gathered,
        hidden,
        **shape,
        epilogue=Epilogue.GATE if config.gated else Epilogue.ACTIVATE,
        activation=_activation(config, choice),
        bias=_biases(experts.up_bias_XG),
        experts=choice.count,
        first_expert=experts.first,
        rows=2 * hidden_width if config.gated else hidden_width,
    )
    if choice.clamp is not None:
        up.limit, up.alpha = choice.clamp
    elif choice.limit > 0:
        up.limit = choice.limit
    experts.up_XGE = _weigh(up, experts.up_XGE, experts.quantized_up)
    down = writer.add(
        Kind.EXPERTS,
        writer.readable(hidden),
        given_to,
        **shape,
        epilogue=Epilogue.ADD if given_adds else Epilogue.STORE,
        bias=_biases(experts.down_bias_XE),
        experts=choice.count,
        first_expert=experts.first,
        rows=choice.latent or config.width,
        scale=given_scale,
    )
    experts.down_XEF = _weigh(down, experts.down_XEF, experts.quantized_down)
    if experts.latent_out is not None:
        mixed = writer.buffer("mixed latent in bf16", Layout.BF16, choice.latent)
        writer.norm(given_to, mixed, None, columns=choice.latent)
        epilogue = Epilogue.ADD if adds else Epilogue.STORE
        writer.linear(mixed, target, experts.latent_out, epilogue=epilogue, scale=scale)
    if experts.shared is not None:
        shared = hidden_of(writer, config, experts.shared, reads)
        if experts.shared_gate is not None:
            gate = writer.buffer("shared gate", Layout.F32, 1)
            writer.short_linear(reads_short, gate, experts.shared_gate)
            size = writer.made.program.buffers[shared].width
            opens = {"heads": 1, "head_dim": size, "columns": 1, "activation": Activation.SIGMOID}
            writer.add(Kind.OPEN, gate, shared, **opens)
        writer.linear(writer.readable(shared), target, experts.shared.out, epilogue=Epilogue.ADD, scale=scale)


def record_experts_beside(
    writer: ProgramWriter, config: DecoderConfig, choice: ExpertsConfig, beside: ExpertsBeside, given: int
) -> None:
    """Adds what experts give of the residual to what the dense layer has given, each normalised by itself."""
    reads = writer.buffer("normed for experts", writer.layout, config.width)
    routed = writer.buffer("normed for the router", Layout.BF16, config.width)
    mixed = writer.buffer("given by experts", Layout.F32, config.width)
    writer.norm(writer.x, reads, beside.norm)
    writer.norm(writer.x, routed, beside.router_norm)
    with writer.summed(mixed) as (part, scale, adds):
        record_experts(
            writer, config, choice, beside.experts, reads, routed, part, scale, adds, beside.factors_X
        )
    writer.norm(given, given, beside.dense_out_norm)
    writer.norm(mixed, given, beside.out_norm, accumulate=True)


def _route(
    writer: ProgramWriter,
    choice: ExpertsConfig,
    experts: Experts,
    reads_short: int,
    factors_X: Tensor | None,
) -> int:
    """The buffer of the experts of each token, and of their weights."""
    routing = experts.routing
    logits = writer.buffer("router logits", Layout.F32, choice.count)
    route = writer.buffer("route", Layout.F32, 2 * routing.per_token)
    writer.short_linear(reads_short, logits, experts.router)
    writer.add(
        Kind.ROUTE,
        logits,
        route,
        bias=optional_fp32(experts.correction_X),
        norm_weight=optional_fp32(factors_X),
        experts=choice.count,
        first_expert=experts.first,
        own_experts=writer.own_experts(choice.count),
        per_token=routing.per_token,
        sigmoid=2 if routing.root_softplus else int(routing.sigmoid),
        sums=None if experts.by_token_VA is None else experts.by_token_VA.to(tensors.int32),
        normalize=routing.normalize,
        groups=routing.groups,
        top_groups=routing.top_groups,
        group_best=routing.group_best,
        one_by_one=routing.one_by_one,
        scale=routing.scale,
    )
    return route


def _gates(feed_forward: FeedForward) -> dict[str, Any] | None:
    """What an operation says of `ops.gated_limited` and `ops.gated_clamped`, where that is a dense layer's activation."""
    activation = feed_forward.activation
    found = activation.keywords if isinstance(activation, partial) else {}
    if "limit" not in found:
        return None
    kind = Activation.CLAMPED_GATE if "alpha" in found else Activation.LIMITED_GATE
    return {"activation": kind, **{name: float(found[name]) for name in ("limit", "alpha") if name in found}}


def _activation(config: DecoderConfig, choice: ExpertsConfig) -> Activation:
    if choice.clamp is not None:
        return Activation.CLAMPED_GATE
    return Activation.LIMITED_GATE if choice.limit > 0 else ACTIVATIONS[config.activation]


def _weigh(operation: Operation, weights_XOI: Tensor, quantized: QuantizedMatrix | None) -> Tensor:
    """Has the product multiply with experts' weights; what torch may let go of is returned as nothing."""
    if quantized is not None:
        weigh(operation, quantized)
    else:
        operation.weight = packed(one_matrix(weights_XOI))
        operation.columns = operation.weight.shape[1]
    return weights_XOI.new_empty((0, *weights_XOI.shape[1:]))


def _biases(bias_XO: Tensor | None) -> Tensor | None:
    """Of all experts, each filled up to whole tiles."""
    if bias_XO is None:
        return None
    count, rows = bias_XO.shape
    made = tensors.zeros((count, rounded_up(rows, TILE_OUTPUTS)))
    made[:, :rows] = fp32(bias_XO)
    return made
