"""What a layer keeps of sequences, in arrays of the kind that its model reads. Made by the engine. Must not import torch."""

from dataclasses import dataclass

from penstock_kernels.program import Array


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What a layer keeps of sequences: keys and values, in rows that the slot's table names, and states."""

    rows_NJD: Array  # of a layer without attention: none
    table: int
    states: tuple[Array, ...] = ()  # of a recurrent layer: (places, ...) each
