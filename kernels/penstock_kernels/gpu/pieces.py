"""How the queries of a step attend, as the kernel of `attention` reads it. Made by the engine for a whole step."""

from dataclasses import dataclass

from penstock_kernels.later import Tensor


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of sequences, with neighbouring queries each: first those that have one ("decodes")."""

    pages_SW: Tensor  # int32: of each slot the page of each block
    block_size: int
    # int32, contiguous: slots; positions of a piece's first query, in its sequence; where it begins among the step's tokens; its queries;
    # and of the pieces that are no decodes, which begin at 0 here, the queries of those before.
    columns_5P: Tensor
    decodes: int
    queries: int  # of the others together
    window: int = 0  # keys that a query sees, itself among them; 0: all
    chunked: bool = False  # it sees those of its own chunk of `window` positions
