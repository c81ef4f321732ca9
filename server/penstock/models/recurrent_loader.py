"""From a checkpoint to one rank's part of a recurrent layer. Heads, or channels, are divided; each function reads one kind.

Called by the loaders of recipes, which say what is where in the family's tensors. Letters as in `recurrent`.
"""

from collections.abc import Sequence

from penstock.errors import UnusableModel
from penstock.layers.linear import Linear
from penstock.layers.norm import RmsNorm
from penstock.models.decoder_loader import Loader
from penstock.models.recurrent import Convolution, Mamba1, Mamba2
from penstock.models.recurrent_config import Mamba1Config, Mamba2Config
from penstock.parallel.group import ranges
from penstock_kernels import tensors
from penstock_kernels.later import Tensor

# A name, how many rows the whole has, and which of them are taken: see `Loader.stacked`.
Part = tuple[str, int, list[range]]


def scaled(ranges_: Sequence[range], size: int, first: int = 0) -> list[range]:
    """Rows of things of `size` rows each, the first of which begins at row `first`."""
    return [range(first + some.start * size, first + some.stop * size) for some in ranges_]


def linear(loader: Loader, parts: list[Part], bias: bool = False) -> Linear:
    """Rows of several matrices below one another."""
    width = loader.config.width
    return Linear(loader.stacked(parts, width), loader.stacked(parts, None) if bias else None)


def convolution(
    loader: Loader, parts: list[Part], kernel: int, bias: bool = False, suffix: str = "weight"
) -> Convolution:
    """A depthwise convolution, whose weights are stored as (channels, 1, kernel); of several names, one after another."""
    checkpoint = loader.checkpoint
    weights, biases = [], []
    for name, total, rows in parts:
        found = checkpoint.tensor(f"{name}.{suffix}", (total, 1, kernel), ranges(rows), dtype=tensors.float32)
        weights.append(found.squeeze(1))
        if bias:
            biases.append(checkpoint.tensor(f"{name}.bias", (total,), ranges(rows), dtype=tensors.float32))
    weight_WC = tensors.cat(weights).t().contiguous()
    return Convolution(weight_WC, tensors.cat(biases) if biases else None)


def numbers(loader: Loader, name: str, shape: tuple[int, ...], rows: list[range] | None = None) -> Tensor:
    """A tensor of its own name, in fp32."""
    return loader.checkpoint.tensor(
        name, shape, None if rows is None else ranges(rows), dtype=tensors.float32
    )


def mamba2(loader: Loader, at: str, mixer: Mamba2Config) -> Mamba2:
    """Mamba 2 below `at`, under the names that all families use: rows of the projection are z, x, B, C and rates."""
    group = loader.group
    heads, groups = mixer.share(group)
    if mixer.norm != "none" and mixer.norm_groups % group.size and mixer.norm_groups > 1:
        raise UnusableModel(
            f"--num-shard {group.size} does not divide the {mixer.norm_groups} groups that are normalised each by itself"
        )
    channels, inner = mixer.channels, mixer.groups * mixer.state
    x, bc = scaled([heads], mixer.head_dim), scaled([groups], mixer.state)
    mixed = [*x, *moved(bc, channels), *moved(bc, channels + inner)]
    rows = [*x, *moved(mixed, channels), *moved([heads], 2 * channels + 2 * inner)]
    parts = linear(loader, [(at + "in_proj", 2 * channels + 2 * inner + mixer.heads, rows)], mixer.bias)
    scale_rows(parts, [len(x[0]), len(x[0]), len(bc[0]), len(bc[0]), len(heads)], mixer.scales)
    norm = None
    if mixer.norm != "none":
        norm = numbers(loader, at + "norm.weight", (channels,), x)
        norm = norm.view(max(mixer.norm_groups // group.size, 1), -1)
    width = loader.config.width
    # NeMo has what stays in fp32 in a module of its own.
    own = f"{at}_fp32_params." if loader.checkpoint.has(f"{at}_fp32_params.A_log") else at
    out = loader.row_parallel(at + "out_proj", mixer.head_dim, heads, mixer.heads, width, mixer.out_bias)
    return Mamba2(
        mixer,
        len(heads),
        len(groups),
        parts,
        convolution(loader, [(at + "conv1d", channels + 2 * inner, mixed)], mixer.kernel, mixer.conv_bias),
        numbers(loader, own + "A_log", (mixer.heads,), [heads]),
        numbers(loader, own + "dt_bias", (mixer.heads,), [heads]),
        numbers(loader, own + "D", (mixer.heads,), [heads]),
        norm,
        group,
        out,
    )


def mamba1(loader: Loader, at: str, mixer: Mamba1Config) -> Mamba1:
    """Mamba below `at`, under the names that all families use: rows of the projection are x, then z."""
    group, total = loader.group, mixer.channels
    mine = group.even_share(total, "the channels of the state space")
    low = mixer.rate_rank + 2 * mixer.state
    has_norms, eps = mixer.norms
    norms = []
    if has_norms:
        for name, size in (("dt", mixer.rate_rank), ("b", mixer.state), ("c", mixer.state)):
            weight = loader.read(f"{at}{name}_layernorm", (size,)) if mixer.weighted_norms else None
            norms.append(RmsNorm(weight, eps))
    return Mamba1(
        mixer,
        linear(loader, [(at + "in_proj", 2 * total, [mine, *moved([mine], total)])], mixer.bias),
        convolution(loader, [(at + "conv1d", total, [mine])], mixer.kernel, mixer.conv_bias),
        loader.row_parallel(at + "x_proj", 1, mine, total, low, False),
        norms,
        Linear(loader.read(at + "dt_proj", (total, mixer.rate_rank), rows=[mine])),
        numbers(loader, at + "dt_proj.bias", (total,), [mine]),
        numbers(loader, at + "A_log", (total, mixer.state), [mine]),
        numbers(loader, at + "D", (total,), [mine]),
        group,
        loader.row_parallel(at + "out_proj", 1, mine, total, loader.config.width, mixer.bias),
    )


def moved(ranges_: Sequence[range], by: int) -> list[range]:
    """The same rows further down."""
    return [range(some.start + by, some.stop + by) for some in ranges_]


def scale(matrix: Linear, factor: float) -> None:
    """What it gives is multiplied."""
    scale_rows(matrix, [len(matrix.weight_OI)], (factor,))


def scale_rows(parts: Linear, counts: list[int], scales: Sequence[float]) -> None:
    """Multiplies parts of a matrix's rows, so that what it gives is multiplied."""
    for weight_OI, scale in zip(tensors.split(parts.weight_OI, counts), scales, strict=True):
        if scale != 1.0:
            weight_OI.mul_(scale)
    if parts.bias_O is not None:
        for bias_O, scale in zip(tensors.split(parts.bias_O, counts), scales, strict=True):
            bias_O.mul_(scale)
