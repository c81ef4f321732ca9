"""The keys of a family's tensors in its checkpoints, and in which order some hold their rows."""

from dataclasses import dataclass
from typing import Literal

# How the rows of one matrix for queries, keys and values are ordered: all queries, then keys, then values; for
# each head its query, key and value; for each key head its queries, then its key and value; or for each quarter of the
# heads its queries, then values, then keys.
QkvOrder = Literal["stacked", "heads", "groups", "quarters"]


@dataclass(frozen=True)
class ExpertKeys:
    """Of a mixture of experts; {} is the expert's number. Stacked tensors hold all experts in their first dimension."""

    router: str
    gate: str = ""
    up: str = ""
    down: str = ""
    shared_gate_proj: str = ""
    shared_up: str = ""
    shared_gate_up: str = ""  # one matrix in place of two
    shared_down: str = ""
    shared_gate: str = ""  # of the sigmoid
    correction: str = ""


@dataclass(frozen=True)
class CheckpointKeys:
    """Names of modules, to which `.weight` and `.bias` are added. An empty name: the family has no such module."""

    embedding: str
    layer: str  # with {} for its number; what follows is named below it
    norm: str
    head: str = "lm_head"
    other_heads: tuple[str, ...] = ()  # what some checkpoints call it
    # Checkpoints of one family may put the base model's names below one of these; the head's never.
    prefixes: tuple[str, ...] = ("",)

    attention_norm: str = ""
    feed_forward_norm: str = ""
    attention_out_norm: str = ""
    feed_forward_out_norm: str = ""

    q: str = ""
    k: str = ""
    v: str = ""
    qkv: str = ""  # one matrix in place of three
    qkv_order: QkvOrder = "stacked"
    q_norm: str = ""
    k_norm: str = ""
    out: str = ""
    sinks: str = ""
    output_gate: str = ""

    gate: str = ""
    up: str = ""
    gate_up: str = ""  # one matrix in place of two: gate, then up
    down: str = ""
    experts: ExpertKeys | None = None

    positions: str = ""
    embedding_norm: str = ""
    project_in: str = ""
    project_out: str = ""

    # The number of each layer in the checkpoint, where some of them are left out.
    numbers: tuple[int, ...] = ()
    transposed: bool = False  # matrices of the layers are stored as (in, out)

    # Patterns of tensors that a checkpoint may hold and the model does not need.
    ignored: tuple[str, ...] = ()

    def at_layer(self, index: int) -> str:
        """What the names of a layer's tensors begin with."""
        return self.layer.format(self.numbers[index] if self.numbers else index)
