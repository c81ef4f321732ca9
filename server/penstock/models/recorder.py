"""From a decoder to a program: the list of operations that the CPU engine runs for it.

Follows `Decoder.forward` and `Decoder.logits`, choice by choice of the configuration, and says of which choices the engine knows
nothing. Weights are packed where they are (`packing`), or were quantized when they were read: a decoder that was recorded cannot
be run by torch any more. Recurrent layers and experts are `recurrent_recorder`'s and `experts_recorder`'s. Letters as in `decoder`.
"""

from typing import Any

import numpy as np

from penstock.layers.gated_norm import GatedNorm
from penstock.layers.linear import Embedding, Linear, OpenedLinear
from penstock.layers.norm import LayerNorm, Norm
from penstock.models.compressed_attention import CompressedAttention
from penstock.models.compressed_recorder import record_compressed_attention
from penstock.models.config import DecoderConfig
from penstock.models.decoder import (
    Attention,
    Beside,
    Decoder,
    Distances,
    Experts,
    ExpertsBeside,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
)
from penstock.models.experts_recorder import hidden_of, record_experts, record_experts_beside
from penstock.models.hyper_recorder import HyperRecorder
from penstock.models.index_recorder import record_blocks, record_head_blocks
from penstock.models.indexer import BlockIndexer
from penstock.models.latent_recorder import LARGEST_LATENT, record_latent_attention
from penstock.models.ngram_recorder import record_ngrams
from penstock.models.packing import packed, product
from penstock.models.per_layer_recorder import record_per_layer_embedding, record_per_layer_input
from penstock.models.program_writer import (
    ACTIVATIONS,
    ProgramWriter,
    fp32,
    kind_of,
    optional_fp32,
)
from penstock.models.recording import Recording, in_numpy
from penstock.models.recurrent import ChannelMix, Convolution, TimeMix
from penstock.models.recurrent_config import LightningConfig, Mamba2Config
from penstock.models.recurrent_recorder import (
    GATES_OF_OUTPUTS,
    record_convolution,
    record_mixer,
    record_token_mix,
    unknown_mixer,
)
from penstock.models.streams_recorder import StreamsRecorder, sparse_hidden
from penstock.parallel.group import TensorGroup
from penstock_kernels import tensors
from penstock_kernels.program import (
    MOST_STREAMS,
    Activation,
    Epilogue,
    Kind,
    Layout,
    NormOver,
    Values,
)
from penstock_kernels.program import Norm as NormKind

NORMS_OVER = {"head": NormOver.HEAD, "heads": NormOver.HEADS, "all": NormOver.ALL}
# Of what makes queries, keys and values: rows beside queries, in heads of keys.
ROWS_OF_KEY = {Values.OWN: 2, Values.KEYS: 1, Values.NONE: 0}
GATES = {"sigmoid": Activation.SIGMOID, "softplus": Activation.SOFTPLUS}
LARGEST_HEAD = 512
MOST_EXPERTS = 4096
MOST_INDEX_HEADS = 1024
MOST_BEFORE, MOST_PAST = 16, 24
MOST_SAID, MOST_TAPS = 64, 8
LANES = 16  # scores at once


def unknown_choice(config: DecoderConfig) -> str | None:
    """A choice of the family that the engine does not know, in words; None: its decoder can be recorded."""
    return next(iter(unknown_choices(config)), None)


def unknown_choices(config: DecoderConfig) -> list[str]:
    """All of them."""
    experts = [layer.experts for layer in config.layers if layer.experts is not None]
    mixers = {unknown_mixer(layer.recurrent) for layer in config.layers if layer.recurrent is not None}
    attending = [at for at, layer in enumerate(config.layers) if layer.attends and not config.latents]
    sizes = sorted({config.head_dim_of(at) for at in attending})
    indexes = [latent.index for latent in config.latents if latent.index is not None]
    ngrams = [layer.ngrams for layer in config.layers if layer.ngrams is not None]
    distances = [layer.distances for layer in config.layers if layer.distances is not None]
    smoothings = [layer.smoothing for layer in config.layers if layer.smoothing is not None]
    checks = (
        (
            config.index is not None
            and (config.index.heads > MOST_INDEX_HEADS or config.index.head_dim > LARGEST_HEAD),
            f"an index of more than {MOST_INDEX_HEADS} heads, or {LARGEST_HEAD} numbers",
        ),
        (
            any(one.heads > MOST_INDEX_HEADS or one.head_dim > LARGEST_HEAD for one in indexes),
            f"an index of more than {MOST_INDEX_HEADS} heads, or {LARGEST_HEAD} numbers",
        ),
        (
            any(one.rank + one.rope_dim > LARGEST_LATENT for one in config.latents),
            f"latents of more than {LARGEST_LATENT}",
        ),
        (
            config.qk_norm is not None and config.qk_norm_rotated and config.qk_norm_over == "all",
            "norms over all queries behind the rotation",
        ),
        (any(one.count > MOST_EXPERTS for one in experts), f"more than {MOST_EXPERTS} experts"),
        (
            any((one.kernel - 1) * one.dilation > MOST_PAST or one.before > MOST_BEFORE for one in ngrams),
            f"n-grams of more than {MOST_BEFORE} tokens, or convolutions over more than {MOST_PAST}",
        ),
        (
            any(one is not None and one.count > MOST_STREAMS for one in (config.streams, config.hyper)),
            f"more than {MOST_STREAMS} residual streams",
        ),
        (
            any(one.limit > 0 for one in experts) and ACTIVATIONS.get(config.activation) != Activation.SILU,
            f"limited gates of {config.activation}",
        ),
        (any(one.cap or one.shared_cap for one in experts), "capped gates"),
        (
            any(one.rank > MOST_SAID for one in distances),
            f"more than {MOST_SAID} numbers that a query says of distances",
        ),
        (
            any(one.kernel > MOST_TAPS for one in smoothings),
            f"convolutions over more than {MOST_TAPS} tokens",
        ),
        (bool(smoothings) and config.parallel, "convolutions of branches beside each other"),
        (config.activation not in ACTIVATIONS, f"the activation {config.activation}"),
        *((size > LARGEST_HEAD or size % 2 == 1, f"heads of {size}") for size in sizes),
        (bool(config.clip_qkv) and config.qk_norm is not None, "clipped queries with norms"),
        *((what is not None, str(what)) for what in mixers),
    )
    return [what for is_there, what in checks if is_there]


def undivided(config: DecoderConfig, group: TensorGroup) -> str | None:
    """What of the family the engine does not compute in parts, in words; None: this group's ranks can."""
    mixers = [layer.recurrent for layer in config.layers if layer.recurrent is not None]
    norms = [mixer for mixer in mixers if isinstance(mixer, Mamba2Config) and mixer.norm != "none"]
    experts = [layer.experts for layer in config.layers if layer.experts is not None]
    checks = (
        (config.per_layer is not None, "per-layer inputs"),
        (any(layer.gate_sparsity > 0 for layer in config.layers), "sparse gates"),
        (config.qk_norm is not None and config.qk_norm_over == "all", "norms over all queries"),
        (any(mixer.norm_groups % group.size for mixer in norms), "norms over all channels"),
        (any(isinstance(mixer, LightningConfig) for mixer in mixers), "norms over all channels"),
        (any(one.count < group.size for one in experts), "ranks without an expert"),
    )
    return next((what for is_there, what in checks if is_there), None)


def record(decoder: Decoder) -> Recording:
    """The decoder's program, its tensors in numpy. Packs its weights."""
    return in_numpy(_Recorder(decoder).record())


def tail_of(decoder: Decoder) -> int:
    """The first of the layers at the end that only read what earlier ones have cached (Gemma 3n and 4), and so tell later tokens nothing."""
    tail = len(decoder.layers)
    for layer in reversed(decoder.layers):
        attention = layer.attention
        reads = isinstance(attention, Attention) and not attention.writes and attention.indexer is None
        if not reads or not isinstance(layer.feed_forward, FeedForward) or layer.beside is not None:
            break
        tail -= 1
    return tail


class _Recorder:
    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.config: DecoderConfig = decoder.config
        branches = [
            branch
            for layer in decoder.layers
            for branch in (layer.attention, layer.feed_forward)
            if branch is not None
        ]
        is_quantized = any(
            (branch.quantized_down if isinstance(branch, Experts) else branch.out.quantized) is not None
            for branch in branches
        )
        self.group = decoder.group
        self.writer = ProgramWriter(self.config.width, is_quantized, self.group)
        self.x, self.normed = self.writer.x, self.writer.normed
        self.for_layers = -1  # what layers get of each token, where they do
        streams = self.config.streams
        self.streams = None if streams is None else StreamsRecorder(self.writer, streams.count)
        self.tail = tail_of(decoder) if self.group.size == 1 else len(decoder.layers)
        hyper = self.config.hyper
        self.hyper = None if hyper is None else HyperRecorder(self.writer, hyper)

    def record(self) -> Recording:
        self._embed()
        ends = self.decoder.ends.streams
        if self.streams is not None and ends is not None:
            self.streams.split(ends)
            for index, layer in enumerate(self.decoder.layers):
                if index == self.tail:
                    self._narrow(self.streams.streams)
                self._streamed(index, layer, self.streams)
            self.streams.join(ends)
        elif self.hyper is not None:
            self.hyper.split()
            for index, layer in enumerate(self.decoder.layers):
                self._connected(index, layer, self.hyper)
            self.hyper.join(self.decoder.ends.hyper)
        else:
            for index, layer in enumerate(self.decoder.layers):
                if index == self.tail:
                    self._narrow(self.x)
                self._layer(index, layer)
                self._behind(index, layer)
        self.writer.operations = self.writer.made.program.head
        self._head()
        return self.writer.made

    def _narrow(self, residual: int) -> None:
        """What follows is computed for the tokens alone whose logits somebody wants."""
        for buffer in (residual, self.for_layers):
            if buffer >= 0:
                self.writer.add(Kind.NARROW, buffer, buffer)

    def _embed(self) -> None:
        config, ends = self.config, self.decoder.ends
        assert ends.embedding is not None and ends.head is not None, "asked of a decoder in one piece"
        own = {}
        if self.group.size > 1 and ends.embedding.rows is not None:
            part = -(-config.vocab_size // self.group.size)
            own = {"first_id": ends.embedding.rows.start, "rows": part}
        if ends.project_in is not None:
            # What it makes of each row of the table, as torch would.
            table_VE, ends.project_in = product(ends.embedding.weight_VE, ends.project_in.weight_OI), None
            ends.embedding = Embedding(table_VE)
        is_tied = ends.head.weight_OI is ends.embedding.weight_VE
        ends.embedding.weight_VE = packed(ends.embedding.weight_VE)
        if is_tied:
            ends.head.weight_OI = ends.embedding.weight_VE
        elif ends.head.quantized is None:
            ends.head.weight_OI = packed(ends.head.weight_OI)
        with self.writer.summed(self.x) as (target, _, _):
            self.writer.add(
                Kind.EMBED,
                -1,
                target,
                columns=config.width,
                # The factor is rounded to bf16 first, as the families that have one do.
                scale=float(tensors.tensor(config.embedding_scale, dtype=tensors.bfloat16)),
                weight=ends.embedding.weight_VE,
                # Of the ranks, one adds them.
                positions=fp32(ends.positions.weight_VE) if ends.positions and self.group.rank == 0 else None,
                offset=config.position_offset,
                **own,
            )
        if ends.embedding_norm is not None:
            self.writer.norm(self.x, self.x, ends.embedding_norm)
        if ends.per_layer is not None:
            self.for_layers = record_per_layer_embedding(self.writer, ends.per_layer, self._short())

    def _layer(self, index: int, layer: Layer) -> None:
        """Both branches, of which a layer may have one."""
        config, attention, feed_forward = self.config, layer.attention, layer.feed_forward
        short = None
        if attention is not None:
            short = self._read(layer.attention_norm, _reads_short(attention))
        reads = self.normed
        if config.parallel and feed_forward is not None:
            if layer.feed_forward_norm is not None:
                reads = self.writer.buffer("normed twice", self.writer.layout, config.width)
                self.writer.norm(self.x, reads, layer.feed_forward_norm)
            if isinstance(feed_forward, Experts):
                short = self._shortened(layer.feed_forward_norm or layer.attention_norm, reads)
        if attention is not None:
            mixed = self._mixer(index, attention, self.normed if short is None else short)
            self._scale(layer.attention_residual)
            if layer.attention_smoothing is None:
                self._add(mixed, attention.out, None if config.parallel else layer.attention_out_norm)
            else:
                given = self.writer.buffer("given", Layout.F32, config.width)
                self._branch(mixed, given, attention.out)
                self._smooth(index, layer.attention_smoothing, given)
        if feed_forward is None:
            return
        if not config.parallel:
            short = self._read(layer.feed_forward_norm, isinstance(feed_forward, Experts))
        norm = None if config.parallel else layer.feed_forward_out_norm
        self._scale(layer.feed_forward_residual)
        if layer.feed_forward_smoothing is not None:
            given = self.writer.buffer("given", Layout.F32, config.width)
            if isinstance(feed_forward, Experts):
                choice = config.layers[index].experts
                assert choice is not None and short is not None, "it has experts"
                with self.writer.summed(given) as (part, scale, adds):
                    record_experts(self.writer, config, choice, feed_forward, reads, short, part, scale, adds)
            else:
                hidden = self._hidden(index, feed_forward, reads)
                self._branch(self.writer.readable(hidden), given, feed_forward.out)
            self._smooth(index, layer.feed_forward_smoothing, given)
        elif isinstance(feed_forward, Experts):
            self._experts(index, feed_forward, reads, reads if short is None else short, norm)
        else:
            hidden = self._hidden(index, feed_forward, reads)
            self._add(self.writer.readable(hidden), feed_forward.out, norm, index, layer.beside)

    def _smooth(self, index: int, convolution: Convolution, given: int) -> None:
        """Adds to the residual the convolution of what a branch has given."""
        writer, width = self.writer, self.config.width
        smoothed = writer.buffer("smoothed", Layout.F32, width)
        record_convolution(writer, index, convolution, given, smoothed)
        writer.norm(smoothed, self.x, None, accumulate=True)

    def _streamed(self, index: int, layer: Layer, streams: StreamsRecorder) -> None:
        """A layer that computes one of several residual streams."""
        attention, feed_forward, updates = layer.attention, layer.feed_forward, layer.streams
        assert updates is not None and layer.beside_attention is not None and layer.per_layer is not None
        assert (
            attention is not None
            and layer.attention_norm is not None
            and isinstance(feed_forward, FeedForward)
        )
        streams.predict(updates)
        short = self._read(layer.attention_norm, True)
        assert short is not None, "asked for"
        beside = streams.low_rank(layer.beside_attention, layer.attention_norm, short)
        mixed = self._mixer(index, attention, short)
        self._add(mixed, attention.out, layer.attention_out_norm)
        self.writer.norm(beside, self.x, None, accumulate=True)
        self._scale(0.5**0.5)
        self._read(layer.feed_forward_norm, False)
        hidden = self._hidden(index, feed_forward, self.normed)
        self._add(self.writer.readable(hidden), feed_forward.out, layer.feed_forward_out_norm)
        streams.correct(updates)
        activation, short = ACTIVATIONS[self.config.activation], streams.output(updates)
        given = record_per_layer_input(
            self.writer, index, layer.per_layer, activation, short, self.for_layers
        )
        streams.add_to_others(given, layer.per_layer.norm)

    def _connected(self, index: int, layer: Layer, hyper: HyperRecorder) -> None:
        """A layer whose branches read mixtures of all residual streams, which are where the residual is in other models."""
        attention, feed_forward = layer.attention, layer.feed_forward
        assert attention is not None and feed_forward is not None
        if layer.ngrams is not None:
            record_ngrams(self.writer, index, layer.ngrams, hyper)
        hyper.read(layer.attention_hyper)
        short = self._read(layer.attention_norm, _reads_short(attention))
        mixed = self._mixer(index, attention, self.normed if short is None else short)
        self._branch(mixed, self.x, attention.out)
        hyper.add()
        hyper.read(layer.feed_forward_hyper)
        short = self._read(layer.feed_forward_norm, isinstance(feed_forward, Experts))
        if isinstance(feed_forward, Experts):
            choice = self.config.layers[index].experts
            assert choice is not None and short is not None, "it has experts"
            with self.writer.summed(self.x) as (part, scale, adds):
                record_experts(
                    self.writer, self.config, choice, feed_forward, self.normed, short, part, scale, adds
                )
        else:
            hidden = self._hidden(index, feed_forward, self.normed)
            self._branch(self.writer.readable(hidden), self.x, feed_forward.out)
        hyper.add()

    def _hidden(self, index: int, feed_forward: FeedForward, reads: int) -> int:
        """What a dense layer's last matrix reads, in bf16."""
        choice = self.config.layers[index]
        if choice.gate_sparsity > 0:
            return sparse_hidden(self.writer, self.config, choice, feed_forward, reads)
        return hidden_of(self.writer, self.config, feed_forward, reads)

    def _behind(self, index: int, layer: Layer) -> None:
        """What follows both branches."""
        if layer.per_layer is not None:
            activation = ACTIVATIONS[self.config.activation]
            given = record_per_layer_input(
                self.writer, index, layer.per_layer, activation, self._short(), self.for_layers
            )
            self.writer.norm(given, self.x, layer.per_layer.norm, accumulate=True)
        if layer.scale_1 is not None:
            self._scale(float(layer.scale_1))

    def _short(self) -> int:
        """The residual in bf16."""
        short = self.writer.buffer("residual in bf16", Layout.BF16, self.config.width)
        self.writer.norm(self.x, short, None)
        return short

    def _read(self, norm: Norm | None, wants_short: bool) -> int | None:
        """What a branch reads; where that is bytes and some of it reads bf16, the buffer of that."""
        if self.config.residual_normed and norm is not None:
            self.writer.norm(self.x, self.x, norm)
            norm = None
        if isinstance(norm, GatedNorm):
            return self.writer.gated_norm(norm)
        self.writer.norm(self.x, self.normed, norm)
        return self._shortened(norm, self.normed) if wants_short else None

    def _shortened(self, norm: Norm | None, reads: int) -> int:
        """The buffer of bf16 with what was normed into this one."""
        if not self.writer.is_quantized:
            return reads
        name = self.writer.made.program.buffers[reads].name
        short = self.writer.buffer(f"{name} in bf16", Layout.BF16, self.config.width)
        self.writer.norm(self.x, short, norm)
        return short

    def _scale(self, factor: float) -> None:
        """Multiplies the residual."""
        if factor != 1.0:
            self.writer.norm(self.x, self.x, None, accumulate=True, scale=factor - 1.0)

    def _mixer(self, index: int, mixer: Mixer, reads_short: int) -> int:
        """What the branch's last matrix reads."""
        config, writer = self.config, self.writer
        if isinstance(mixer, Beside):
            attention = mixer.attention
            attended_width = attention.heads * attention.head_dim
            both = writer.buffer("attended and mixed", Layout.BF16, mixer.out.inputs)
            self._attention(index, attention, reads_short, both)
            record_mixer(writer, index, mixer.recurrent, both, attended_width)
            return writer.readable(both)
        if isinstance(mixer, Attention):
            attended = writer.buffer("attended", Layout.BF16, mixer.heads * mixer.head_dim)
            self._attention(index, mixer, reads_short, attended)
            return writer.readable(attended)
        if isinstance(mixer, LatentAttention):
            window = config.windows[mixer.window]
            attended, opens = record_latent_attention(writer, index, mixer, window, reads_short)
            self._open(mixer, mixer.heads, mixer.sizes.value_dim, opens, attended, None)
            return writer.readable(attended)
        if isinstance(mixer, CompressedAttention):
            return writer.readable(record_compressed_attention(writer, index, mixer, reads_short))
        if isinstance(mixer, TimeMix | ChannelMix):
            return writer.readable(record_token_mix(writer, index, mixer, reads_short))
        return writer.readable(record_mixer(writer, index, mixer))

    def _attention(self, index: int, attention: Attention, reads_short: int, attended: int) -> None:
        config, writer, gate = self.config, self.writer, attention.output_gate
        heads, kv_heads, size = attention.heads, attention.kv_heads, attention.head_dim
        values = Values.OWN
        if not attention.writes:
            values = Values.NONE
        elif attention.values_are_keys:
            values = Values.KEYS
        gates_at = (heads + ROWS_OF_KEY[values] * kv_heads) * size
        in_query = gate is not None and gate.in_query
        qkv = writer.buffer("qkv", Layout.F32, gates_at + (heads * size if in_query else 0))
        # Layers with as many numbers may have them in other heads.
        name = "queries" if config.same_heads else f"queries of {kv_heads} heads of {size}"
        queries = writer.buffer(name, Layout.QUERIES, heads * size)
        shape: dict[str, Any] = {"layer": index, "heads": heads, "kv_heads": kv_heads, "head_dim": size}
        if attention.smoothing is None:
            writer.linear(self.normed, qkv, attention.qkv)
        else:
            rough = writer.buffer("qkv before convolutions", Layout.F32, gates_at)
            writer.linear(self.normed, rough, attention.qkv)
            keys_at = heads * size
            writer.norm(rough, qkv, None, columns=keys_at)  # queries are copied
            record_convolution(
                writer, index, attention.smoothing, rough, qkv, source_at=keys_at, target_at=keys_at
            )
        write = writer.add(
            Kind.WRITE_KV,
            qkv,
            queries,
            **shape,
            clip=attention.clip,
            values=values,
            value_scale=attention.value_scale,
        )
        if attention.value_norm is not None and attention.writes:
            write.value_norm, write.value_eps = NormKind.RMS, attention.value_norm.eps
        if attention.q_norm is not None:
            write.norm, write.eps = kind_of(attention.q_norm), attention.q_norm.eps
            write.norm_over, write.norm_rotated = NORMS_OVER[config.qk_norm_over], config.qk_norm_rotated
            write.norm_weight = optional_fp32(attention.q_norm.weight_E)
            if isinstance(attention.q_norm, LayerNorm):
                write.bias = optional_fp32(attention.q_norm.bias_E)
        if attention.k_norm is not None:
            write.second_weight = optional_fp32(attention.k_norm.weight_E)
            if isinstance(attention.k_norm, LayerNorm):
                write.second_bias = optional_fp32(attention.k_norm.bias_E)
        if attention.rope is not None:
            write.rope_dim = attention.rope_dim
            writer.made.rotations.append((write, attention.rope))
        if attention.temperature is not None:
            writer.made.temperatures.append((write, attention.temperature))
        choice: dict[str, Any] = {}
        indexer, rope = attention.indexer, attention.rope
        if indexer is not None and rope is not None:
            of_rope = rope, attention.rope_dim
            if isinstance(indexer, BlockIndexer):
                choice = record_blocks(writer, index, indexer, *of_rope, reads_short)
            else:
                choice = record_head_blocks(writer, index, indexer, *of_rope, reads_short)
        if attention.distances is not None:
            choice = self._distances(attention.distances, heads, reads_short)
        window = config.windows[attention.window]
        attend = writer.add(
            Kind.ATTENTION,
            queries,
            attended,
            **shape,
            **choice,
            window=0 if window is None else window.size,
            chunked=window is not None and window.chunked,
            scale=attention.scale,
            softcap=attention.score_modifiers.softcap,
            sinks=optional_fp32(attention.score_modifiers.sinks_H),
            slopes=tensors.tensor(self._own_slopes()) if config.slopes else None,
            slopes_rounded=config.slopes_rounded,
            slopes_scale=config.slopes_scale,
        )
        if attention.distances is not None and attention.temperature is not None:
            writer.made.temperatures.append((attend, attention.temperature))
        self._open(attention, heads, size, reads_short, attended, (qkv, gates_at))

    def _distances(self, distances: Distances, heads: int, reads_short: int) -> dict[str, Any]:
        """What attention adds to scores by what queries say of distances: of the key at the query's place the last entry."""
        profiles_RL = tensors.host(fp32(distances.profiles_RL))
        rank, reach = profiles_RL.shape
        said = self.writer.buffer("said of distances", Layout.F32, heads * rank)
        self.writer.short_linear(reads_short, said, distances.states)
        rows = np.pad(profiles_RL[:, ::-1], ((0, 0), (LANES, LANES)))
        made = tensors.of(np.ascontiguousarray(rows), tensors.float32)
        return {"third": said, "norm_weight": made, "rows": rank, "columns": reach, "offset": reach - 1}

    def _open(
        self,
        attention: Attention | LatentAttention,
        heads: int,
        size: int,
        reads_short: int,
        attended: int,
        behind: tuple[int, int] | None,
    ) -> None:
        """Multiplies what was attended to with its gates. `behind`: the buffer and the column of those that are rows of queries."""
        gate, writer = attention.output_gate, self.writer
        if gate is None:
            return
        count = heads * size if gate.per_number else heads
        if attention.gate is not None:
            behind = writer.buffer("output gates", Layout.F32, count), 0
            writer.short_linear(reads_short, behind[0], attention.gate)
        assert behind is not None, "gates are rows or a matrix"
        opens = {"heads": heads, "head_dim": size, "columns": count, "source_at": behind[1]}
        writer.add(Kind.OPEN, behind[0], attended, **opens, activation=GATES[gate.function])

    def _own_slopes(self) -> tuple[float, ...]:
        mine = self.group.share(self.config.heads)
        return tuple(self.config.slopes[mine.start : mine.stop])

    def _experts(self, index: int, experts: Experts, reads: int, short: int, norm: Norm | None) -> None:
        config = self.config
        choice = config.layers[index].experts
        assert choice is not None, "it has experts"
        given, scale, adds = self.x, config.residual_scale, True
        if norm is not None and config.branch_norm:
            given, scale, adds = self.writer.buffer("given", Layout.F32, config.width), 1.0, False
        with self.writer.summed(given, adds=adds, scale=scale) as (part, factor, is_added):
            record_experts(self.writer, config, choice, experts, reads, short, part, factor, is_added)
        self._join(given, norm)

    def _add(
        self,
        source: int,
        out: Linear,
        norm: Norm | None,
        index: int = -1,
        beside: ExpertsBeside | None = None,
    ) -> None:
        """The residual plus what a branch gives, which is normed before or after it is added. `index`: of the layer that has experts
        beside the branch.
        """
        config = self.config
        if norm is not None and config.branch_norm:
            given = self.writer.buffer("given", Layout.F32, config.width)
            self._branch(source, given, out)
            choice = config.layers[index].experts
            if beside is not None and choice is not None:
                record_experts_beside(self.writer, config, choice, beside, given)
        else:
            assert beside is None, "what experts give is normed"
            if isinstance(out, OpenedLinear):
                given = self.writer.buffer("given", Layout.F32, config.width)
                self._branch(source, given, out)
                gates = self.writer.buffer(GATES_OF_OUTPUTS, Layout.F32, config.width)
                opens = {"heads": 1, "head_dim": config.width, "columns": config.width}
                self.writer.add(Kind.OPEN, gates, given, **opens, activation=Activation.SIGMOID)
            else:
                given = self.x
                self._branch(source, given, out, adds=True, scale=config.residual_scale)
        self._join(given, norm)

    def _branch(self, source: int, target: int, out: Linear, adds: bool = False, scale: float = 1.0) -> None:
        """What a branch's last matrix gives, over all ranks."""
        with self.writer.summed(target, adds=adds, scale=scale) as (part, factor, is_added):
            epilogue = Epilogue.ADD if is_added else Epilogue.STORE
            self.writer.linear(source, part, out, epilogue=epilogue, scale=factor)

    def _join(self, given: int, norm: Norm | None) -> None:
        """Once a branch has given: to the residual, or to a buffer whose norm is added to that."""
        config = self.config
        if given != self.x:
            self.writer.norm(given, self.x, norm, accumulate=True, scale=config.residual_scale)
        if norm is not None and config.sum_norm:
            self.writer.norm(self.x, self.x, norm)

    def _head(self) -> None:
        config, ends, writer = self.config, self.decoder.ends, self.writer
        assert ends.head is not None, "asked of a decoder in one piece"
        chosen = writer.buffer("chosen", Layout.EXTERNAL, config.width)
        part = -(-config.vocab_size // self.group.size)
        logits = writer.buffer("logits", Layout.EXTERNAL, part)
        layout = Layout.BF16 if ends.head.quantized is None else Layout.BYTES
        if ends.project_out is None:
            normed = writer.buffer("chosen normed", layout, config.width)
            writer.norm(chosen, normed, ends.norm)
        else:
            short = writer.buffer("chosen in bf16", Layout.BF16, config.width)
            writer.norm(chosen, short, ends.norm)
            narrow = writer.buffer("chosen narrow", Layout.BF16, config.embedding_width)
            writer.linear(short, narrow, ends.project_out)
            normed = narrow
            if layout == Layout.BYTES:
                normed = writer.buffer("chosen normed", layout, config.embedding_width)
                writer.add(Kind.QUANTIZE, narrow, normed)
        writer.linear(
            normed,
            logits,
            ends.head,
            scale=config.logit_scale,
            softcap=config.logit_softcap,
            is_packed=True,
        )


def _reads_short(mixer: Mixer) -> bool:
    """Whether some of what attention reads is bf16 where large products read bytes."""
    attends = mixer.attention if isinstance(mixer, Beside) else mixer
    has_gate = isinstance(attends, Attention | LatentAttention) and attends.gate is not None
    has_distances = isinstance(attends, Attention) and attends.distances is not None
    has_index = isinstance(attends, Attention | LatentAttention) and attends.indexer is not None
    has_entries = isinstance(attends, CompressedAttention) and attends.pending is not None
    return has_gate or has_distances or has_index or has_entries or isinstance(attends, TimeMix | ChannelMix)
