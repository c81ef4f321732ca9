"""From a checkpoint to a decoder, or to one rank's part of it.

A recipe says what the family's tensors are called (`CheckpointKeys`); what is read and how it is divided follows from
the configuration. A family with a layout of its own overrides the method that reads that part. Letters as in
`decoder`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import penstock_kernels as ops
from penstock.errors import UnusableModel
from penstock.layers.linear import Embedding, Linear
from penstock.layers.norm import HeadsLayerNorm, LayerNorm, Norm, RmsNorm, SharedRmsNorm
from penstock.loading.checkpoint import Checkpoint, part_of
from penstock.models.checkpoint_keys import CheckpointKeys, ExpertKeys
from penstock.models.config import DecoderConfig, ExpertsConfig, NormConfig
from penstock.models.decoder import (
    Attention,
    Beside,
    Decoder,
    Ends,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
)
from penstock.models.device_packing import DeviceQuantizer
from penstock.models.packing import Quantizer
from penstock.models.recurrent import Recurrent
from penstock.parallel.group import TensorGroup, ranges
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.tensors import Dtype

# In some checkpoints of every family, and computed here: rotary frequencies, causal masks; and TransformerEngine's own state.
COMPUTED = (
    r".*\.(rotary_emb\.inv_freq|rotary_emb\.cos_cached|rotary_emb\.sin_cached|masked_bias|_extra_state)"
)


class Loader:
    """Reads one model for one rank."""

    # How a family's checkpoints differ beside their names.
    embedding_kind = "weight"  # what the table of embeddings is called below its name
    gate_first = True  # of one matrix for gate and up
    router_transposed = False  # stored as (E, X)

    def __init__(
        self, config: DecoderConfig, keys: CheckpointKeys, checkpoint: Checkpoint, group: TensorGroup
    ) -> None:
        self.config, self.keys, self.checkpoint, self.group = config, keys, checkpoint, group
        self.prefix = next(
            (
                prefix
                for prefix in keys.prefixes
                if checkpoint.has(f"{prefix}{keys.embedding}.{self.embedding_kind}")
            ),
            keys.prefixes[0],
        )
        self.head = next(
            (head for head in (keys.head, *keys.other_heads) if checkpoint.has(f"{head}.weight")), keys.head
        )
        self.heads = self.kv_heads = range(0)
        if config.layer_windows:
            self.heads = group.even_share(config.heads, "the attention heads (num_attention_heads)")
            self.kv_heads = group.key_heads(config.kv_heads)
        self.further_head_rows = 0  # of the head in the checkpoint, of tokens that are none
        self.quantizer: Quantizer | DeviceQuantizer | None = None

    def load(self) -> Decoder:
        """This rank's part of the model. Raises UnusableModel where checkpoint and config.json contradict each other."""
        self.settle_head()
        mine = self.config.layers_of(self.group)
        self.checkpoint.gives_back = self.quantizer is not None
        layers = [self.finished(self.layer(index)) for index in mine]
        decoder = Decoder(self.config, self.ends(), layers, self.group)
        if self.quantizer is not None:
            self.quantizer.take_ends(decoder.ends, self.checkpoint)
        ignored = [COMPUTED, *self.keys.ignored]
        if self.group.pipeline is not None:
            ignored += self.of_other_stages(mine)
        if self.config.tied_head:
            ignored.append(re.escape(self.head) + r"\.weight")
        self.checkpoint.check_all_used(re.compile("|".join(f"(?:{pattern})" for pattern in ignored)))
        return decoder

    def settle_head(self) -> None:
        """Keeps the head of a checkpoint that holds another one than the embedding, whatever config.json says: transformers ties no two
        matrices that differ.
        """
        config, keys, checkpoint, name = self.config, self.keys, self.checkpoint, f"{self.head}.weight"
        if not config.tied_head or not checkpoint.has(name):
            return
        shape = (config.vocab_size, config.embedding_width or config.width)
        embedding = f"{self.prefix}{keys.embedding}.{self.embedding_kind}"
        if not checkpoint.is_copy(name, embedding, shape):
            self.config = replace(config, tied_head=False)
            checkpoint.tell_of_head(name, embedding)

    def finished(self, layer: Layer) -> Layer:
        """The layer, quantized where that is asked for, or where torch has it: the next one is read when it is gone from here."""
        if self.quantizer is not None:
            self.quantizer.take_layer(layer, self.config, self.checkpoint)
        elif self.checkpoint.torch_device is not None:
            layer.to_torch(self.checkpoint.torch_device)
        return layer

    def ends(self) -> Ends:
        """Embeddings, last norm and head."""
        config, keys = self.config, self.keys
        vocab = config.vocab_size
        width = config.embedding_width or config.width
        part = -(-vocab // self.group.size)  # rows on every rank; the last may hold fewer real ones
        rows = range(min(self.group.rank * part, vocab), min((self.group.rank + 1) * part, vocab))
        ends = Ends(embedding=None, norm=None, head=None)

        def table(name: str, further: int = 0, kind: str = "weight") -> Tensor:
            return self.filled(self.read(name, (vocab + further, width), rows=[rows], kind=kind), part)

        if self.group.is_first_stage:
            found = table(self.prefix + keys.embedding, config.further_embeddings, self.embedding_kind)
            ends.embedding = Embedding(found, rows, self.group)
            if config.learned_positions:
                ends.positions = Embedding(self.positions())
            if width != config.width:
                ends.project_in = Linear(self.read(self.prefix + keys.project_in, (config.width, width)))
            if config.embedding_norm:
                ends.embedding_norm = self.norm(self.prefix + keys.embedding_norm, config.width)
        if self.group.is_last_stage:
            if not config.tied_head:
                ends.head = Linear(table(self.head, self.further_head_rows))
            elif ends.embedding is not None:
                ends.head = Linear(ends.embedding.weight_VE)
            else:
                ends.head = Linear(table(self.prefix + keys.embedding, kind=self.embedding_kind))
            if config.head_bias:
                bias = self.read(self.head, (vocab,), rows=[rows], kind="bias")
                ends.head.bias_O = self.filled(bias, part)
            if config.final_norm:
                ends.norm = self.norm(self.prefix + keys.norm, config.width)
            if width != config.width:
                ends.project_out = Linear(self.read(self.prefix + keys.project_out, (width, config.width)))
        return ends

    def positions(self) -> Tensor:
        """The table of positions."""
        return self.read(
            self.prefix + self.keys.positions, (self.config.learned_positions, self.config.width)
        )

    def of_other_stages(self, mine: range) -> list[str]:
        """Patterns of what other stages of the pipeline read."""
        keys = self.keys
        layers = [keys.at_layer(index) for index in range(len(self.config.layers)) if index not in mine]
        ends = [keys.embedding, keys.positions, keys.embedding_norm, keys.project_in]
        ends += [keys.norm, keys.project_out]
        others = [self.prefix + layer for layer in layers]
        others += [f"{self.prefix}{end}." for end in ends if end] + [f"{self.head}."]
        return [re.escape(other) + ".*" for other in others]

    def layer(self, index: int) -> Layer:
        """One layer."""
        config, keys = self.config, self.keys
        at = self.prefix + keys.at_layer(index)

        def norm(name: str) -> Norm | None:
            return self.norm(at + name, config.width) if name else None

        choice, mixer = config.layers[index], self.token_mixer(at, index)
        feed_forward: FeedForward | Experts | None = None
        if choice.feeds_forward:
            experts = choice.experts
            feed_forward = self.feed_forward(at) if experts is None else self.experts(at, experts)
        return Layer(
            attention=mixer,
            feed_forward=feed_forward,
            attention_norm=norm(keys.attention_norm) if config.pre_norm and mixer else None,
            feed_forward_norm=norm(keys.feed_forward_norm) if config.pre_norm and feed_forward else None,
            attention_out_norm=norm(keys.attention_out_norm),
            feed_forward_out_norm=norm(keys.feed_forward_out_norm),
        )

    def token_mixer(self, at: str, index: int) -> Mixer | None:
        """What mixes a layer's tokens."""
        choice = self.config.layers[index]
        mixers: list[Attention | LatentAttention | Recurrent] = []
        if choice.attends:
            mixers.append(self.attention(at, index))
        if choice.recurrent is not None:
            mixers.append(self.recurrent(at, index))
        return joined(mixers)

    def recurrent(self, at: str, index: int) -> Recurrent:
        """What mixes tokens through a state in a layer: a family that has such layers reads them."""
        raise NotImplementedError

    def attention(self, at: str, index: int) -> Attention | LatentAttention:
        """Attention of a layer."""
        config, keys = self.config, self.keys
        size = config.head_dim_of(index)
        heads, kv_heads = self.heads_of(index), self.kv_heads_of(index)
        choice = config.layers[index]
        q_norm = k_norm = None
        if config.qk_norm is not None and choice.qk_normed:
            q_norm = self.head_norm(at + keys.q_norm, config.heads_of(index), heads, index)
            if choice.keys_of is None:
                k_norm = self.head_norm(at + keys.k_norm, config.kv_heads_of(index), kv_heads, index)
        return Attention(
            config,
            index,
            heads=len(heads),
            kv_heads=len(kv_heads),
            qkv=self.qkv(at, index),
            out=self.row_parallel(
                at + keys.out,
                size,
                heads,
                config.heads_of(index),
                config.width,
                config.attention_out_bias,
            ),
            q_norm=q_norm,
            k_norm=k_norm,
            score_modifiers=self.score_modifiers(at, index),
            gate=self.output_gate(at, index),
        )

    def output_gate(self, at: str, index: int) -> Linear | None:
        """The matrix that makes gates of what this rank's heads attend to, in families that have one."""
        config, gate = self.config, self.config.output_gate
        if gate is None or gate.in_query:
            return None
        latent = config.latent_of(index)
        size = config.head_dim_of(index) if latent is None else latent.value_dim
        rows = size if gate.per_number else 1
        mine = self.heads_of(index)
        shape = (config.heads_of(index) * rows, config.width)
        taken = [range(mine.start * rows, mine.stop * rows)]
        return Linear(self.read(at + self.keys.output_gate, shape, rows=taken))

    def heads_of(self, index: int) -> range:
        """This rank's query heads in a layer."""
        return self.group.even_share(self.config.heads_of(index), "the attention heads (num_attention_heads)")

    def kv_heads_of(self, index: int) -> range:
        """This rank's key heads in a layer."""
        return self.group.key_heads(self.config.kv_heads_of(index))

    def qkv(self, at: str, index: int) -> Linear:
        """Queries, keys and values of this rank's heads, from three matrices or one in the family's order."""
        config, keys, choice = self.config, self.keys, self.config.layers[index]
        size, heads = config.head_dim_of(index), config.heads_of(index)
        kv_heads = config.kv_heads_of(index)
        # Where each head's rows begin, in which tensor of how many rows.
        if keys.qkv:
            rows = (heads + 2 * kv_heads) * size
            name = at + keys.qkv
            shared = heads // kv_heads
            if keys.qkv_order == "stacked":
                q = [head * size for head in self.heads]
                k = [(heads + head) * size for head in self.kv_heads]
                v = [(heads + kv_heads + head) * size for head in self.kv_heads]
            elif keys.qkv_order == "heads":
                q = [3 * head * size for head in self.heads]
                k = [(3 * head + 1) * size for head in self.kv_heads]
                v = [(3 * head + 2) * size for head in self.kv_heads]
            elif keys.qkv_order == "quarters":
                quarter = heads // 4
                q, v, k = (
                    [
                        (head // quarter * 3 * quarter + at * quarter + head % quarter) * size
                        for head in self.heads
                    ]
                    for at in range(3)
                )
            else:
                q = [(head // shared * (shared + 2) + head % shared) * size for head in self.heads]
                k = [(head * (shared + 2) + shared) * size for head in self.kv_heads]
                v = [(head * (shared + 2) + shared + 1) * size for head in self.kv_heads]
            found = [(name, rows, begins) for begins in (q, k, v)]
        else:
            q = [head * size for head in self.heads_of(index)]
            kv = [head * size for head in self.kv_heads_of(index)]
            found = [(at + keys.q, heads * size, q)]
            if choice.keys_of is None:
                found.append((at + keys.k, kv_heads * size, kv))
                if not choice.values_are_keys:
                    found.append((at + keys.v, kv_heads * size, kv))
                if config.output_gate is not None and config.output_gate.in_query:
                    gates = [(2 * head + 1) * size for head in self.heads_of(index)]
                    found[0] = (at + keys.q, 2 * heads * size, [gate - size for gate in gates])
                    found.append((at + keys.q, 2 * heads * size, gates))
        parts = [
            (name, total, [range(begin, begin + size) for begin in begins]) for name, total, begins in found
        ]
        weight = self.stacked(parts, config.width, keys.transposed)
        bias = self.stacked(parts, None) if config.qkv_bias else None
        for rows_ in (weight, bias):
            if rows_ is not None and config.interleaved:
                q_and_k = rows_[: (len(self.heads) + len(self.kv_heads)) * size]
                q_and_k.copy_(self.half_and_half(q_and_k, index))
        return Linear(weight, bias)

    def half_and_half(self, rows: Tensor, index: int) -> Tensor:
        """Rows (H D, ...) of heads with the coordinates of each plane brought where `ops.rope` reads them."""
        config = self.config
        rope = config.layers[index].rope
        if not config.interleaved or rope is None:
            return rows
        return halves(rows.view(-1, config.head_dim, *rows.shape[1:]), rope.head_dim).flatten(0, 1)

    def head_norm(self, name: str, all_heads: int, heads: range, index: int) -> Norm:
        """The norm of queries or keys."""
        config = self.config
        norm, size = config.qk_norm, config.head_dim_of(index)
        assert norm is not None
        if config.qk_norm_over == "head":
            made = self.norm(name, size, norm)
            rope = config.layers[index].rope
            if config.interleaved and rope is not None and norm.weight:
                raise UnusableModel("config.json: interleaved rotary planes with one norm for all heads")
            return made
        if config.qk_norm_over == "heads":
            mine = [range(heads.start, heads.stop)]
            weight = self.read(name, (all_heads, size), rows=mine)
            rope = config.layers[index].rope
            if config.interleaved and rope is not None:
                weight = halves(weight.unsqueeze(-1), rope.head_dim).squeeze(-1)
            return HeadsLayerNorm(weight, None, norm.eps)
        if norm.layer:
            raise UnusableModel("config.json: layer normalisation over all heads at once")
        rows = [range(heads.start * size, heads.stop * size)]
        weight = self.read(name, (all_heads * size,), rows=rows)
        if self.group.size == 1:
            return RmsNorm(weight, norm.eps)
        if all_heads < self.group.size:
            raise UnusableModel(
                f"--num-shard {self.group.size} is more than the key heads ({all_heads}), which are normalised together"
            )
        return SharedRmsNorm(weight, norm.eps, all_heads * size, self.group)

    def score_modifiers(self, at: str, index: int) -> ops.ScoreModifiers:
        """What the family adds to attention."""
        config, latent = self.config, self.config.latent_of(index)
        if config.plain_scores:
            return ops.PLAIN
        sinks = None
        if config.sinks:
            mine = [range(self.heads.start, self.heads.stop)]
            sinks = self.checkpoint.tensor(
                at + self.keys.sinks, (config.heads,), ranges(mine), dtype=tensors.float32
            )
        return ops.ScoreModifiers(
            softcap=config.softcap,
            sinks_H=sinks,
            latent=0 if latent is None else latent.rank,
        )

    def feed_forward(self, at: str) -> FeedForward:
        """The dense feed-forward layer below `at`."""
        config, keys = self.config, self.keys
        return self.dense(
            at, config.feed_forward, keys.gate, keys.up, keys.gate_up, keys.down, keys.transposed
        )

    def dense(
        self, at: str, width: int, gate: str, up: str, gate_up: str, down: str, transposed: bool = False
    ) -> FeedForward:
        """A feed-forward layer of F = `width`, of which each rank has as many hidden numbers."""
        config = self.config
        mine = self.group.even_share(width, "the feed-forward width (intermediate_size)")
        if gate_up:
            second = range(width + mine.start, width + mine.stop)
            both = [mine, second] if self.gate_first else [second, mine]
            parts = [(at + gate_up, 2 * width, both)]
        else:
            parts = [(at + name, width, [mine]) for name in ([gate, up] if config.gated else [up])]
        return FeedForward(
            Linear(
                self.stacked(parts, config.width, transposed),
                self.stacked(parts, None) if config.up_bias else None,
            ),
            self.row_parallel(at + down, 1, mine, width, config.width, config.down_bias, transposed),
            self.activation(),
        )

    def activation(self) -> Callable[[Tensor], Tensor]:
        """From what a hidden layer's matrix gives to its F numbers."""
        plain = ops.ACTIVATIONS[self.config.activation]
        return partial(ops.gated, activation=plain) if self.config.gated else plain

    def experts(self, at: str, choice: ExpertsConfig) -> Experts:
        """A mixture of experts below `at`, each a gated layer in tensors of its own."""
        assert self.keys.experts is not None
        return self.experts_apart(at, choice, self.keys.experts)

    def experts_apart(self, at: str, choice: ExpertsConfig, keys: ExpertKeys) -> Experts:
        """These by the names of `keys`, in which {} is an expert's number."""
        config = self.config
        mine = self.group.share(choice.count)
        up_XGE = self.checkpoint.new((len(mine), 2 * choice.width, config.width))
        down_XEF = self.checkpoint.new((len(mine), config.width, choice.width))
        inner = (choice.width, config.width)
        for expert in range(choice.count):
            if expert not in mine:
                for name, shape in ((keys.gate, inner), (keys.up, inner), (keys.down, inner[::-1])):
                    self.checkpoint.expect(f"{at}{name.format(expert)}.weight", shape)
                continue
            place = expert - mine.start
            gate_GE, up_GE = tensors.split(up_XGE[place], choice.width)
            self.read(at + keys.gate.format(expert), inner, into=gate_GE)
            self.read(at + keys.up.format(expert), inner, into=up_GE)
            self.read(at + keys.down.format(expert), inner[::-1], into=down_XEF[place])
        return self.mixture(at, choice, mine.start, up_XGE, None, down_XEF, None)

    def mixture(
        self,
        at: str,
        choice: ExpertsConfig,
        first: int,
        up_XGE: Tensor,
        up_bias_XG: Tensor | None,
        down_XEF: Tensor,
        down_bias_XE: Tensor | None,
    ) -> Experts:
        """Router, shared expert and what else belongs to the experts."""
        keys, config = self.keys.experts, self.config
        assert keys is not None
        router_dtype = tensors.float32 if choice.long_router else None
        router = Linear(
            self.read(
                at + keys.router,
                (choice.count, config.width),
                transposed=self.router_transposed,
                dtype=router_dtype,
            ),
            self.read(at + keys.router, (choice.count,), kind="bias") if choice.biases else None,
        )
        correction = self.correction(at, choice) if choice.correction else None
        shared = self.shared(at, choice) if choice.shared_width else None
        shared_gate = None
        if choice.shared_gate:
            shared_gate = Linear(self.read(at + keys.shared_gate, (1, config.width)))
        activation: Callable[[Tensor], Tensor] = self.activation()
        if choice.clamp is not None:
            limit, alpha = choice.clamp
            activation = partial(ops.gated_clamped, limit=limit, alpha=alpha)
        elif choice.limit:
            plain = ops.ACTIVATIONS[config.activation]
            activation = partial(ops.gated_limited, activation=plain, limit=choice.limit)
        elif choice.cap:
            plain = ops.ACTIVATIONS[config.activation]
            activation = partial(ops.gated_capped, activation=plain, limit=choice.cap)
        return Experts(
            choice.routing,
            router,
            correction,
            first,
            up_XGE,
            up_bias_XG,
            down_XEF,
            down_bias_XE,
            activation,
            shared,
            shared_gate,
            choice.weighs_input,
        )

    def correction(self, at: str, choice: ExpertsConfig) -> Tensor:
        """What is added to the scores of experts for the choice: (X,) fp32."""
        assert self.keys.experts is not None
        return self.checkpoint.tensor(
            at + self.keys.experts.correction, (choice.count,), dtype=tensors.float32
        )

    def shared(self, at: str, choice: ExpertsConfig) -> FeedForward:
        """The expert that every token goes to."""
        keys = self.keys.experts
        assert keys is not None
        return self.dense(
            at,
            choice.shared_width,
            keys.shared_gate_proj,
            keys.shared_up,
            keys.shared_gate_up,
            keys.shared_down,
        )

    def norm(self, name: str, width: int, choice: NormConfig | None = None) -> Norm:
        """A norm with weight (width,)."""
        choice = choice or self.config.norm
        # Stored as the difference to 1; in a short dtype the sum would lose most of its bits.
        dtype = tensors.float32 if choice.offset else None
        weight = self.read(name, (width,), dtype=dtype) if choice.weight else None
        if weight is not None and choice.offset:
            weight += choice.offset
        if not choice.layer:
            return RmsNorm(weight, choice.eps)
        bias = self.read(name, (width,), kind="bias") if choice.bias else None
        # A layer norm has one dtype: its family rounds the sum, too.
        return LayerNorm(None if weight is None else weight.to(self.checkpoint.dtype), bias, choice.eps)

    def row_parallel(
        self,
        name: str,
        size: int,
        mine: range,
        total: int,
        rows: int,
        bias: bool,
        transposed: bool | None = None,
    ) -> Linear:
        """A matrix of (rows, total * size) whose columns are divided. Its bias is added by rank 0 alone."""
        columns = [range(mine.start * size, mine.stop * size)]
        if transposed is None:
            transposed = self.keys.transposed
        weight = self.read(name, (rows, total * size), columns=columns, transposed=transposed)
        has_bias = self.read(name, (rows,), kind="bias") if bias else None
        return Linear(weight, has_bias if self.group.rank == 0 else None)

    def read(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: list[range] | None = None,
        columns: list[range] | None = None,
        transposed: bool = False,
        kind: str = "weight",
        dtype: Dtype | None = None,
        into: Tensor | None = None,
    ) -> Tensor:
        """These ranges of the tensor `name`.`kind`, whose shape is `shape`; transposed where it is stored so.

        In memory of their own, or in `into`.
        """
        row_slices = None if rows is None else ranges(rows)
        column_slices = None if columns is None else ranges(columns)
        if into is None:
            into = self.checkpoint.new(part_of(shape, row_slices, column_slices), dtype)
        as_stored = into
        if transposed:
            shape, row_slices, column_slices, as_stored = shape[::-1], column_slices, row_slices, into.t()
        self.checkpoint.fill(as_stored, f"{name}.{kind}", shape, row_slices, column_slices)
        return into

    def stacked(
        self, parts: list[tuple[str, int, list[range]]], width: int | None, transposed: bool = False
    ) -> Tensor:
        """Rows of several matrices of `width` columns, below one another in one; width None: of their biases.

        Each part is a name, how many rows the whole has, and which of them are taken.
        """
        counts = [sum(map(len, rows)) for _, _, rows in parts]
        columns, kind = ((), "bias") if width is None else ((width,), "weight")
        made = self.checkpoint.new((sum(counts), *columns))
        for (name, total, rows), into in zip(parts, tensors.split(made, counts), strict=True):
            self.read(name, (total, *columns), rows=rows, transposed=transposed, kind=kind, into=into)
        return made

    def filled(self, part: Tensor, rows: int) -> Tensor:
        """`part` with rows of zeros appended, `rows` in all."""
        if len(part) == rows:
            return part
        return tensors.cat((part, part.new_zeros((rows - len(part), *part.shape[1:]))))


def joined(mixers: list[Attention | LatentAttention | Recurrent]) -> Mixer | None:
    """One or none of a layer's mixers, or attention and another one as one."""
    if len(mixers) < 2:
        return mixers[0] if mixers else None
    attention, other = mixers
    assert isinstance(attention, Attention) and not isinstance(other, Attention | LatentAttention)
    weights, biases = zip(*((mixer.out.weight_OI, mixer.out.bias_O) for mixer in mixers), strict=True)
    there = [bias for bias in biases if bias is not None]
    bias_O = tensors.stack(there).sum(0) if there else None
    attention.out = other.out = out = Linear(tensors.cat(weights, 1), bias_O)
    return Beside(attention, other, out)


def halves(rows_HD: Tensor, size: int) -> Tensor:
    """The first `size` of D reordered from pairs to halves: (H, D, ...) to (H, D, ...)."""
    order = [*range(0, size, 2), *range(1, size, 2), *range(size, rows_HD.shape[1])]
    return rows_HD[:, order]
