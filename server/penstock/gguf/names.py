"""What tensors of GGUF files are called: `blk.3.attn_q.weight` and the names that checkpoints of transformers' classes have. Must not import torch."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.gguf.container import Header
from penstock.gguf.layout import F32, Layout, Order, Part

IN_LAYER = re.compile(r"blk\.(\d+)\.(.+)")

# Of a layer, without `.weight` and `.bias`.
ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
FEED_FORWARD = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
# Norms in front of each branch, as LLaMA has them.
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}


# Tensors of what reads images or sound begin with these, in files of Ollama's that have it beside the text's model; llama.cpp has it in a file of its own.
TOWERS = ("v.", "mm.", "a.")


@dataclass(frozen=True)
class Names:
    """Of one family."""

    in_layer: Mapping[str, str]
    """Names in a layer, by those of the file, without `.weight` and `.bias`; or with it, for what is called otherwise."""
    experts: Mapping[str, str] = field(default_factory=dict)
    """The same of stacks, whose name there has the expert's number in it."""
    outside: Mapping[str, str] = field(
        default_factory=lambda: {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
        }
    )
    layer: str = "model.layers.{}."
    without_one: bool = False
    """Norms are stored with the 1 that the class adds to them."""
    as_they_are: frozenset[str] = frozenset()
    """Norms of which that does not hold."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """Whose rows are stored in pairs of rotary numbers, where the checkpoint has halves: with the field that says how many heads they are of."""
    unread: frozenset[str] = frozenset(
        {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
    )
    """What is in config.json instead."""

    def layout(self, header: Header, heads: Mapping[str, int]) -> Layout:
        """Of each tensor what it is made of. `heads`: numbers of heads, by the fields of `pairs`."""
        return dict(self._parts(header, heads))

    def _parts(self, header: Header, heads: Mapping[str, int]) -> Iterator[tuple[str, Part]]:
        for name, stored in header.tensors.items():
            module, _, kind = name.rpartition(".")
            if name in self.unread:
                continue
            at = IN_LAYER.fullmatch(module)
            if at is None:
                if module in self.outside and kind in ("weight", "bias"):
                    made = Part(name, stored.shape)
                    yield f"{self.outside[module]}.{kind}", self._changed(made, f"{module}.{kind}")
                continue
            layer, inner = self.layer.format(at[1]), at[2]
            if f"{inner}.{kind}" in self.in_layer:
                yield layer + self.in_layer[f"{inner}.{kind}"], Part(name, stored.shape)
            elif kind not in ("weight", "bias"):
                continue  # of a family of its own
            elif inner in self.experts:
                for expert in range(stored.shape[0]):
                    yield (
                        f"{layer}{self.experts[inner].format(expert)}.{kind}",
                        Part(name, stored.shape[1:], place=expert),
                    )
            elif inner in self.in_layer:
                made = Part(name, stored.shape)
                if inner in self.pairs:
                    made = replace(made, row_order=halves_of_pairs(stored.shape[0], heads[self.pairs[inner]]))
                yield f"{layer}{self.in_layer[inner]}.{kind}", self._changed(made, f"{inner}.{kind}")

    def _changed(self, made: Part, name: str) -> Part:
        inner, _, kind = name.rpartition(".")
        is_norm = inner.endswith("norm") and kind == "weight" and inner not in self.as_they_are
        has_one = self.without_one and is_norm
        return replace(made, change=less_one) if has_one else made


def less_one(numbers: F32) -> F32:
    """What a norm is multiplied with, less the 1 that its class adds."""
    return numbers - np.float32(1)


def halves_of_pairs(rows: int, heads: int) -> Order:
    """Of each row of heads whose rotary numbers are halves, which row it is where they are pairs."""
    size = rows // heads
    if size * heads != rows or size % 2 or size == 0:
        return np.arange(rows)  # of another shape than is asked for, which is said then
    of_head = np.arange(size).reshape(-1, 2).T.reshape(-1)
    return (np.arange(heads)[:, None] * size + of_head).reshape(-1)
