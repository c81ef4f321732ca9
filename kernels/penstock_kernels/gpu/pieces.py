"""How the queries of a step attend, as the kernel of `attention` reads it. Made by the engine for a whole step."""

from dataclasses import dataclass

from penstock_kernels.later import Tensor


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of sequences, with neighbouring queries each: first those that have one ("decodes"). Columns are int32."""

    pages_SW: Tensor  # of each slot the page of each block
    block_size: int
    slots_P: Tensor
    positions_P: Tensor  # of a piece's first query, in its sequence
    firsts_P: Tensor  # where the piece begins among the step's tokens
    counts_P: Tensor  # its queries
    before_P: Tensor  # of each piece that is no decode the queries of those before it that are none
    decodes: int
    queries: int  # of the others together
    window: int = 0  # keys that a query sees, itself among them; 0: all
    chunked: bool = False  # it sees those of its own chunk of `window` positions
