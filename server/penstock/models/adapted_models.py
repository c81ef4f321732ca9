"""Gives a loaded model its adapters: to the products of the CPU engine's program, or to matrices that torch multiplies with. Must not import
torch but for a model that torch runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.adapters import Adapter
from penstock.errors import UnusableModel
from penstock.layers.linear import AdaptedRows, LowRank
from penstock.models.adapters_recorder import add_adapters
from penstock.models.adapting import NO_ADAPTERS, Later, changes, matrices
from penstock.models.decoder import Decoder
from penstock.models.model import Model
from penstock.models.native import NativeDecoder, tell
from penstock.parallel.group import TensorGroup
from penstock_kernels import tensors


def adapt(
    model: Model,
    adapters: Sequence[Adapter],
    config: dict[str, Any],
    folder: Path,
    group: TensorGroup,
    trusted: bool,
) -> None:
    """`config` and `folder`: of the model's checkpoint. Raises UnusableModel where it or an adapter is not of a kind that this is for."""
    if not isinstance(model, NativeDecoder | Decoder):
        raise UnusableModel(NO_ADAPTERS)
    found = changes(adapters, config, folder, group, trusted)
    if isinstance(model, NativeDecoder):
        add_adapters(model.program, found, model.instruction_set)
    else:
        _give(model, found)
    if group.rank == 0:
        names = ", ".join(adapter.name for adapter in adapters)
        tell(f"adapters: {names}")


def step_bytes(model: Model, tokens: int) -> int:
    """What steps of so many tokens take more than without adapters, where torch runs them: what those that have one read, side by side, and what is
    added to their products. The CPU engine's program says it of itself.
    """
    if not isinstance(model, Decoder):
        return 0
    numbers = 0
    for linear in matrices(model):
        if linear.adapted is not None:
            _, outputs, rank = linear.adapted.b_KOR.shape
            numbers = max(numbers, linear.inputs + outputs + rank)
    return numbers * tokens * model.weights()[0].element_size()


def _give(decoder: Decoder, found: Sequence[Later | None]) -> None:
    """To a decoder that torch runs."""
    rows = decoder.adapted_rows = AdaptedRows()
    for linear, change in zip(matrices(decoder), found, strict=True):
        if change is None:
            continue
        made, like = change(), linear.weight_OI
        a_KRI, b_KOR = (
            tensors.in_torch(tensors.of(numbers, tensors.float32), like.device).to(like.dtype)
            for numbers in (made.a_KRI, made.b_KOR)
        )
        linear.adapted = LowRank(a_KRI, b_KOR, rows)
        linear.adapted.tile = linear.tile
