"""Causal attention of a ragged batch over a paged cache.

The step's tokens are ordered so that the tokens of one group are neighbours, and a group is a rectangle:
S sequences with Q queries each over L keys each. Who makes a group decides how much padding it holds.
Padded keys name a cache row that is never written and holds zeros: a masked key must still be a number,
since 0 times NaN is NaN.

In float32 on a CPU, and wherever the metadata is `exact`, the sums are taken in float64 and rounded at the end, so
that the result does not depend on the group: on its padding, or on whether a token came alone or in a piece of a
prompt. In every dtype scores and their softmax are at least float32: a score of 64 in bfloat16 is a multiple of 0.25.

Keys and values are gathered in pieces, so that the memory of a step has a bound (`workspace_bytes`).

On a GPU a kernel reads them where they are (`gpu.attention`), and all of this is for long prompts alone, which begin with nothing
cached: there torch's own fused attention is faster. Without that kernel, and where sums have to be exact, groups do everything there, too.

Letters beside those of the package: G query heads that share a key head, Z = K S key heads of sequences (all sequences of
a key head, then those of the next), Y = G Q queries that share a key head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from penstock_kernels.later import F, Tensor, torch
from penstock_kernels.score_modifiers import PLAIN, ScoreModifiers

if TYPE_CHECKING:
    from penstock_kernels.gpu.pieces import Pieces

# Scores that exist at once where they are written to memory, unless one query has more, and entries of a mask.
SCORES_AT_ONCE = 1 << 23
MASK_AT_ONCE = 1 << 22

# Numbers of keys that are gathered at once, and as many of values, unless one head of one sequence has more. On a CPU
# they stay in its cache; a GPU is launched less often.
GATHERED_AT_ONCE = {"cpu": 1 << 20}
GATHERED_AT_ONCE_ELSEWHERE = 1 << 25


@dataclass(slots=True)
class DecodeGroup:
    """Sequences with one query each."""

    begin: int  # the group's tokens are begin .. end of the step's T
    end: int
    keys: int  # L, at least the longest of the group
    slot_mapping_SL: Tensor  # (S * L,) int64: the cache row of each key
    mask_S1L: Tensor | None  # added to the scores: 0 or -inf, in the activations' dtype; None: all seen
    # (J * S * L,) int64: the row of each key in the cache seen as (N * J, D), where all are gathered at once: made once
    # for all layers. None: each layer makes it, piece by piece.
    heads_JSL: Tensor | None = None


@dataclass(slots=True)
class FewGroup:
    """As DecodeGroup, where one fused call is faster: products of a size seen are set up in 15 us each."""

    begin: int
    end: int
    keys: int
    slot_mapping_SL: Tensor  # (S * L,) int64: the cache row of each key
    mask_S11L: Tensor | None

    def by_sequence(self, x_TH: Tensor) -> Tensor:
        """Of the group's tokens (end - begin, ...): (S, 1, ...)."""
        return x_TH.unsqueeze(1)


@dataclass(slots=True)
class ChunkGroup:
    """Sequences with pieces of their prompt."""

    begin: int
    end: int
    sequences: int
    queries: int  # Q, the longest of the group
    keys: int
    slot_mapping_SL: Tensor  # (S * L,) int64: the cache row of each key
    mask_S1QL: Tensor | None  # None: `causal` says all, or `make_mask`
    causal: bool  # query i sees keys 0 .. i
    spread_SQ: Tensor | None  # (S * Q,) token of each query, relative to begin; None: they are in order
    gather_T: Tensor | None  # inverse of spread: (end - begin,) place of each token among the S * Q
    # In place of a large mask: these queries of these sequences, (s, 1, q, L).
    make_mask: Callable[[slice, slice], Tensor] | None = None

    def by_sequence(self, x_TH: Tensor) -> Tensor:
        """Of the group's tokens (end - begin, ...): (S, Q, ...)."""
        if self.spread_SQ is not None:
            x_TH = x_TH.index_select(0, self.spread_SQ)
        return x_TH.reshape(self.sequences, self.queries, *x_TH.shape[1:])

    def mask(self, sequences: slice, queries: slice) -> Tensor | None:
        """(s, 1, q, L) of the mask; None: `causal` says all."""
        if self.make_mask is not None:
            return self.make_mask(sequences, queries)
        return None if self.mask_S1QL is None else self.mask_S1QL[sequences, :, queries]


@dataclass(slots=True)
class AttentionMetadata:
    """How the step's tokens attend. Made once per step, followed by every layer."""

    exact: bool = False
    # On a GPU: what its kernel attends to, which needs no groups. Some prompts may be groups beside it.
    pieces: Pieces | None = None
    decodes: list[DecodeGroup] = field(default_factory=list)
    few: list[FewGroup] = field(default_factory=list)
    chunks: list[ChunkGroup] = field(default_factory=list)

    def is_exact(self, q_THD: Tensor) -> bool:
        """Whether sums over these queries are in fp64."""
        return self.exact or (q_THD.dtype == torch.float32 and q_THD.device.type == "cpu")


def paged_attention(
    q_THD: Tensor,
    cache_NJD: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    out_THD: Tensor,
    score_modifiers: ScoreModifiers = PLAIN,
    chosen: list[Tensor | None] | None = None,
) -> None:
    """softmax(scale q k^T + mask) v for every token over its own sequence's keys, into `out`.

    q (T, H, D), any strides between tokens; cache (N, J, D) as in `write_kv`, holding this step's keys
    already, the first J of as many rows or more that each token has in memory; out (T, H, D), or (T, H, V) where values are latent, contiguous, in q's dtype. Query head h reads
    key/value head h / (H / K). Of latents the cache may hold more than D numbers, the first D being the key. `chosen`:
    the keys that are attended to (`choose_keys`, `choose_blocks`; `choose_head_blocks`: of each key head); None: all. Soft caps: Gemma Team, "Gemma 2", 2024; position biases: Press et al., "Train
    Short, Test Long" (ALiBi), 2022; sinks: Xiao et al., "Efficient Streaming Language Models with Attention
    Sinks", 2023; latent values: DeepSeek-AI, "DeepSeek-V2", 2024.
    """
    if metadata.pieces is not None:
        from penstock_kernels.gpu.attention import attend

        attend(q_THD, cache_NJD, metadata.pieces, scale, out_THD, score_modifiers)
    q_THD = q_THD.to(torch.float64 if metadata.is_exact(q_THD) else q_THD.dtype)
    for decodes in metadata.decodes:
        here = slice(decodes.begin, decodes.end)
        _decode(q_THD[here], cache_NJD, decodes, scale, out_THD[here])
    groups: list[FewGroup | ChunkGroup] = [*metadata.few, *metadata.chunks]
    for group, taken in zip(groups, chosen or [None] * len(groups), strict=True):
        here = slice(group.begin, group.end)
        if score_modifiers is not PLAIN or taken is not None:
            own, distances = score_modifiers, score_modifiers.distances
            if distances is not None:
                own = replace(own, distances=distances.of(here))
            _with_modifiers(q_THD[here], cache_NJD, group, scale, out_THD[here], own, taken)
        elif isinstance(group, FewGroup):
            _few(q_THD[here], cache_NJD, group, scale, out_THD[here])
        elif _is_fused(q_THD, cache_NJD, group, scale):
            _chunk(q_THD[here], cache_NJD, group, scale, out_THD[here])
        else:
            _with_modifiers(q_THD[here], cache_NJD, group, scale, out_THD[here], PLAIN)


def gathered_at_once(device: torch.device) -> int:
    """Numbers of keys that are gathered at once."""
    return GATHERED_AT_ONCE.get(device.type, GATHERED_AT_ONCE_ELSEWHERE)


def workspace_bytes(
    device: torch.device,
    heads: int,
    kv_heads: int,
    size: int,
    longest: int,
    has_score_modifiers: bool,
    most_keys: int | None = None,
    widest: int = 8,
) -> int:
    """The most that `paged_attention` takes beside queries and results, for sequences of up to `longest` keys, roughly
    and upwards. `most_keys`: of all sequences of a group together; None: any number. `widest`: bytes of what scores are computed in.
    """
    keys = longest * 9 // 8 + 32  # rectangles are rounded up
    gathered = gathered_at_once(device)
    if most_keys is not None:
        gathered = min(gathered, (most_keys * 9 // 8 + 32) * kv_heads * size)
    gathered = max(gathered, keys * size)
    scores = (heads // kv_heads) * max(gathered // size, keys)
    # On a CPU torch has a fused kernel for every plain chunk.
    if has_score_modifiers or device.type != "cpu":
        scores = max(scores, SCORES_AT_ONCE)
    # Rows of the cache; keys and values as they are and converted, to float64 at most; scores in four steps; a mask, from
    # what it is made of to float64.
    converted = 2 * (4 + widest + 4) * gathered
    return 4 * 8 * (gathered // size) + converted + 4 * widest * scores + 16 * MASK_AT_ONCE


def pieces(heads: int, sequences: int, numbers: int, at_once: int) -> Iterator[tuple[slice, slice]]:
    """Key heads and sequences to attend to together, where each head of a sequence has `numbers` numbers: all sequences of
    some heads, or some sequences of one head.
    """
    some_heads = max(at_once // (sequences * numbers), 1)
    some_sequences = sequences if at_once >= sequences * numbers else max(at_once // numbers, 1)
    for head in range(0, heads, some_heads):
        for sequence in range(0, sequences, some_sequences):
            yield (
                slice(head, min(head + some_heads, heads)),
                slice(sequence, min(sequence + some_sequences, sequences)),
            )


def _rows(slot_mapping_SL: Tensor, keys: int, rows: int, heads: slice, sequences: slice) -> Tensor:
    """(h * s * L,): of these heads of these sequences, the row of each key in the cache seen as (N * J, D)."""
    first_rows_SL = slot_mapping_SL[sequences.start * keys : sequences.stop * keys] * rows
    return (
        first_rows_SL + torch.arange(heads.start, heads.stop, device=slot_mapping_SL.device).unsqueeze(1)
    ).view(-1)


def _gather(
    cache_NJD: Tensor, slot_mapping_SL: Tensor, keys: int, heads: slice, sequences: slice
) -> tuple[Tensor, Tensor]:
    """Keys and values (h * s, L, D) of these key heads of these sequences, head by head: products read dense matrices."""
    rows, size = cache_NJD.shape[1:]
    held = (
        cache_NJD.stride(0) // size
    )  # rows of a token in memory: as many, or more where another layer needs them
    rows_ZL = _rows(slot_mapping_SL, keys, held, heads, sequences)
    flat_cache = cache_NJD.as_strided((len(cache_NJD) * held, size), (size, 1))
    k_rows, v_rows = flat_cache.index_select(0, rows_ZL), flat_cache.index_select(0, rows_ZL + rows // 2)
    return k_rows.view(-1, keys, size), v_rows.view(-1, keys, size)


def scored_in(q: Tensor) -> torch.dtype:
    """In what these queries' scores are computed."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _decode(q_SHD: Tensor, cache_NJD: Tensor, group: DecodeGroup, scale: float, out_SHD: Tensor) -> None:
    """Two batched products for each piece."""
    sequences, heads, size = q_SHD.shape
    keys, kv_heads = group.keys, cache_NJD.shape[1] // 2
    shared = heads // kv_heads  # G: query heads that share a key head are as many queries of it
    long = scored_in(q_SHD)
    q_KSGD = (q_SHD.to(long) * scale).view(sequences, kv_heads, shared, size).transpose(0, 1)
    out_KSGD = out_SHD.view(sequences, kv_heads, shared, size).transpose(0, 1)
    parts = pieces(kv_heads, sequences, keys * size, gathered_at_once(q_SHD.device))
    if group.heads_JSL is not None:
        parts = iter([(slice(0, kv_heads), slice(0, sequences))])
    for some_heads, some in parts:
        if group.heads_JSL is None:
            k_ZLD, v_ZLD = _gather(cache_NJD, group.slot_mapping_SL, keys, some_heads, some)
        else:
            kv_JSLD = cache_NJD.view(-1, size).index_select(0, group.heads_JSL)
            k_ZLD, v_ZLD = kv_JSLD.view(2, kv_heads * sequences, keys, size)
        q_ZGD = q_KSGD[some_heads, some].reshape(-1, shared, size)
        scores_ZGL = torch.bmm(q_ZGD, k_ZLD.to(long).transpose(1, 2))
        if group.mask_S1L is not None:
            scores_ZGL.view(-1, some.stop - some.start, shared, keys).add_(group.mask_S1L[some])
        a_ZGD = torch.bmm(scores_ZGL.softmax(-1).to(q_SHD.dtype), v_ZLD.to(q_SHD.dtype))
        out_KSGD[some_heads, some] = a_ZGD.view(-1, some.stop - some.start, shared, size).to(out_SHD.dtype)


def _few(q_SHD: Tensor, cache_NJD: Tensor, group: FewGroup, scale: float, out_SHD: Tensor) -> None:
    sequences, heads, size = q_SHD.shape
    kv_heads = cache_NJD.shape[1] // 2
    shape = (sequences, kv_heads, heads // kv_heads, size)
    kv_SLJD = cache_NJD.index_select(0, group.slot_mapping_SL).view(sequences, group.keys, 2 * kv_heads, size)
    kv_SJLD = kv_SLJD.to(q_SHD.dtype).transpose(1, 2)
    mask = None if group.mask_S11L is None else group.mask_S11L.to(q_SHD.dtype)
    a_SKGD = F.scaled_dot_product_attention(
        q_SHD.view(shape), kv_SJLD[:, :kv_heads], kv_SJLD[:, kv_heads:], mask, scale=scale
    )
    out_SHD.view(shape).copy_(a_SKGD)


def _is_fused(q_THD: Tensor, cache_NJD: Tensor, group: ChunkGroup, scale: float) -> bool:
    """Whether torch has a kernel for this chunk that writes no scores to memory, where it would write all of them at once."""
    if q_THD.device.type == "cpu":
        return True
    heads, size = q_THD.shape[1:]
    return _fuses(q_THD.device, q_THD.dtype, heads, cache_NJD.shape[1] // 2, size, group.causal, scale)


@cache
def _fuses(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, size: int, causal: bool, scale: float
) -> bool:
    """As torch chooses: on a GPU no kernel takes fp64, older ones take no bf16, and some no mask where query heads share key heads."""
    from torch.nn.attention import SDPBackend

    q_1HQD = torch.empty((1, heads, 32, size), dtype=dtype, device=device)
    k_1KLD = torch.empty((1, kv_heads, 32, size), dtype=dtype, device=device)
    mask_11QL = None if causal else torch.empty((1, 1, 32, 32), dtype=dtype, device=device)
    chosen = torch._fused_sdp_choice(
        q_1HQD, k_1KLD, k_1KLD, mask_11QL, 0.0, causal, scale=scale, enable_gqa=heads != kv_heads
    )
    return bool(chosen != SDPBackend.MATH.value)


def _chunk(q_THD: Tensor, cache_NJD: Tensor, group: ChunkGroup, scale: float, out_THD: Tensor) -> None:
    heads, size = q_THD.shape[1:]
    sequences, queries, keys = group.sequences, group.queries, group.keys
    kv_heads = cache_NJD.shape[1] // 2
    shared = heads // kv_heads
    q_SHQD = group.by_sequence(q_THD).transpose(1, 2)
    a_SQHD = out_THD.new_empty(sequences, queries, heads, size)
    for some_heads, some in pieces(kv_heads, sequences, keys * size, gathered_at_once(q_THD.device)):
        k_SKLD, v_SKLD = (
            part_ZLD.view(-1, some.stop - some.start, keys, size).transpose(0, 1).to(q_THD.dtype)
            for part_ZLD in _gather(cache_NJD, group.slot_mapping_SL, keys, some_heads, some)
        )
        asking = slice(some_heads.start * shared, some_heads.stop * shared)
        at_once = queries if group.causal else max(MASK_AT_ONCE // ((some.stop - some.start) * keys), 1)
        for first in range(0, queries, at_once):
            part = slice(first, min(first + at_once, queries))
            mask_S1QL = None if group.causal else group.mask(some, part)
            a_SHQD = F.scaled_dot_product_attention(
                q_SHQD[some, asking, part],
                k_SKLD,
                v_SKLD,
                None if mask_S1QL is None else mask_S1QL.to(q_THD.dtype),
                is_causal=group.causal,
                scale=scale,
                enable_gqa=heads != kv_heads,
            )
            a_SQHD[some, part, asking] = a_SHQD.transpose(1, 2).to(out_THD.dtype)
    a_THD = a_SQHD.view(sequences * queries, heads, size)
    if group.gather_T is not None:
        a_THD = a_THD.index_select(0, group.gather_T)
    out_THD.copy_(a_THD)


def _with_modifiers(
    q_THD: Tensor,
    cache_NJD: Tensor,
    group: FewGroup | ChunkGroup,
    scale: float,
    out_THV: Tensor,
    score_modifiers: ScoreModifiers,
    taken: Tensor | None = None,
) -> None:
    """Any group with any modifiers, one product after another."""
    heads, size = q_THD.shape[1:]
    if taken is not None and taken.dim() == 2 and isinstance(group, FewGroup):
        group, taken = only_taken(group, taken), None
    keys = group.keys
    q_SQHD = group.by_sequence(q_THD)
    sequences, queries = q_SQHD.shape[:2]
    kv_heads = cache_NJD.shape[1] if score_modifiers.latent else cache_NJD.shape[1] // 2
    shared = heads // kv_heads
    long = scored_in(q_THD)
    a_SQHV = out_THV.new_empty(sequences, queries, heads, out_THV.shape[-1])
    for some_heads, some in pieces(kv_heads, sequences, keys * size, gathered_at_once(q_THD.device)):
        if score_modifiers.latent:
            rows_ZL = _rows(group.slot_mapping_SL, keys, kv_heads, some_heads, some)
            held = cache_NJD.shape[2]
            k_ZLD = cache_NJD.view(-1, held)[:, :size].index_select(0, rows_ZL).view(-1, keys, size)
            v_ZLV = k_ZLD[..., : score_modifiers.latent]
        else:
            k_ZLD, v_ZLV = _gather(cache_NJD, group.slot_mapping_SL, keys, some_heads, some)
        keys_ZDL, values_ZLV = k_ZLD.to(long).transpose(1, 2), v_ZLV.to(q_THD.dtype)
        asking = slice(some_heads.start * shared, some_heads.stop * shared)
        own = replace(
            score_modifiers,
            bias_HN=None if score_modifiers.bias_HN is None else score_modifiers.bias_HN[asking],
            sinks_H=None if score_modifiers.sinks_H is None else score_modifiers.sinks_H[asking],
        )
        distances = score_modifiers.distances
        longest = keys if distances is None else max(keys, distances.profiles_RL.shape[1])
        at_once = max(SCORES_AT_ONCE // (len(keys_ZDL) * shared * longest), 1)
        for first in range(0, queries, at_once):
            part = slice(first, min(first + at_once, queries))
            q_SQGD = q_SQHD[some, part, asking].to(long) * scale
            hidden = hidden_keys(group, some, part)
            added = None
            if distances is not None:
                states_SQHR = group.by_sequence(distances.states_THR)[some, part, asking].to(long)
                at_SQ = own_keys(group, hidden, part)
                added = distance_bias(states_SQHR, distances.profiles_RL.to(long), at_SQ, keys)
            if taken is not None:
                left = taken.view(sequences, queries, *taken.shape[1:])[some, part]
                if taken.dim() == 3:  # every key head has its own
                    left = left_out(left[:, :, some_heads], keys, long).permute(2, 0, 1, 3).unsqueeze(2)
                else:
                    left = left_out(left, keys, long).unsqueeze(1)
                hidden = left if hidden is None else left + hidden
            made = attend(q_SQGD, keys_ZDL, values_ZLV, hidden, own, added)
            a_SQHV[some, part, asking] = made.to(out_THV.dtype)
    a_THV = a_SQHV.view(sequences * queries, heads, -1)
    if isinstance(group, ChunkGroup) and group.gather_T is not None:
        a_THV = a_THV.index_select(0, group.gather_T)
    out_THV.copy_(a_THV)


def only_taken(group: FewGroup, taken_SA: Tensor) -> FewGroup:
    """The group with these of its keys alone; -1 is none."""
    sequences, count = taken_SA.shape
    places_SA = taken_SA.clamp_min(0)
    slots_SA = group.slot_mapping_SL.view(sequences, -1).gather(1, places_SA)
    mask_SA = torch.zeros(taken_SA.shape, device=taken_SA.device)
    if group.mask_S11L is not None:
        mask_SA = group.mask_S11L.view(sequences, -1).gather(1, places_SA)
    mask_SA = mask_SA.masked_fill(taken_SA < 0, -torch.inf)
    return replace(
        group,
        keys=count,
        slot_mapping_SL=slots_SA.view(-1),
        mask_S11L=mask_SA.view(sequences, 1, 1, count),
    )


def left_out(taken_SQA: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """(S, Q, L): 0 of the keys that are taken, -inf of those that are left. What -1 writes lies behind the last key. There may be
    more dimensions before the last.
    """
    left_SQL = torch.full((*taken_SQA.shape[:-1], keys + 1), -torch.inf, dtype=dtype, device=taken_SQA.device)
    return left_SQL.scatter_(-1, taken_SQA.where(taken_SQA >= 0, keys), 0.0)[..., :keys]


def hidden_keys(group: FewGroup | ChunkGroup, sequences: slice, queries: slice) -> Tensor | None:
    """What is added to the scores: (s, 1, q, L), or (q, L), or nothing."""
    if isinstance(group, FewGroup):
        return None if group.mask_S11L is None else group.mask_S11L[sequences]
    if not group.causal:
        return group.mask(sequences, queries)
    device = group.slot_mapping_SL.device
    later_QL = torch.ones(queries.stop - queries.start, group.keys, dtype=torch.bool, device=device)
    later_QL = later_QL.triu_(1 + queries.start)
    return torch.zeros(later_QL.shape, device=device).masked_fill_(later_QL, -torch.inf)


def own_keys(group: FewGroup | ChunkGroup, hidden: Tensor | None, queries: slice) -> Tensor:
    """(S or 1, Q) int64: where the key of each query's own token is among the group's, the last one that it sees."""
    device = group.slot_mapping_SL.device
    if isinstance(group, ChunkGroup) and group.causal:
        return torch.arange(queries.start, queries.stop, device=device).unsqueeze(0)
    if hidden is None:
        return torch.full((1, 1), group.keys - 1, device=device)
    seen_SQL = (hidden.squeeze(1) if hidden.dim() == 4 else hidden.unsqueeze(0)) == 0
    return (seen_SQL * torch.arange(group.keys, device=device)).amax(-1)


def distance_bias(states_SQHR: Tensor, profiles_RL: Tensor, own_SQ: Tensor, keys: int) -> Tensor:
    """(S, Q, H, keys) of `DistanceBias`, for queries whose own keys are at these places; 0 behind them."""
    by_distance_SQHL = states_SQHR @ profiles_RL
    distance_SQ1K = own_SQ[..., None, None] - torch.arange(keys, device=own_SQ.device)
    last = profiles_RL.shape[1] - 1
    shape = (*by_distance_SQHL.shape[:3], keys)
    found_SQHK = by_distance_SQHL.gather(-1, distance_SQ1K.clamp(0, last).expand(shape))
    return found_SQHK.masked_fill_((distance_SQ1K < 0) | (distance_SQ1K > last), 0.0)


def attend(
    q_SQHD: Tensor,
    keys_ZDL: Tensor,
    values_ZLV: Tensor,
    mask: Tensor | None,
    score_modifiers: ScoreModifiers,
    added_SQHL: Tensor | None = None,
) -> Tensor:
    """(S, Q, H, V) of scaled queries, in the dtype of the scores, as the keys are; the mask (S or 1, 1, Q, L) or (Q, L),
    or (K, S, 1, Q, L) of each key head, is added to the scores, as `added` is.
    """
    sequences, queries, heads, size = q_SQHD.shape
    matrices, keys = keys_ZDL.shape[0], keys_ZDL.shape[2]
    kv_heads = matrices // sequences
    # The query heads that share a key head are as many queries of it.
    shared = heads // kv_heads
    q_KSGQD = q_SQHD.reshape(sequences, queries, kv_heads, shared, size).permute(2, 0, 3, 1, 4)
    scores_ZYL = torch.bmm(q_KSGQD.reshape(matrices, shared * queries, size), keys_ZDL)
    scores_KSGQL = scores_ZYL.view(kv_heads, sequences, shared, queries, keys)
    if score_modifiers.softcap:
        scores_KSGQL = scores_KSGQL.div_(score_modifiers.softcap).tanh_().mul_(score_modifiers.softcap)
    if score_modifiers.bias_HN is not None:
        scores_KSGQL = scores_KSGQL.add_(score_modifiers.bias_HN[:, :keys].view(kv_heads, 1, shared, 1, keys))
    if added_SQHL is not None:
        added_SQKGL = added_SQHL.view(sequences, queries, kv_heads, shared, keys)
        scores_KSGQL = scores_KSGQL.add_(added_SQKGL.permute(2, 0, 3, 1, 4))
    if mask is not None:
        scores_KSGQL = scores_KSGQL.add_(mask.unsqueeze(0) if mask.dim() == 4 else mask)
    if score_modifiers.sinks_H is not None:
        sinks = score_modifiers.sinks_H.to(scores_KSGQL.dtype).view(kv_heads, 1, shared, 1, 1)
        sinks = sinks.expand(kv_heads, sequences, shared, queries, 1)
        weights_KSGQL = torch.cat((scores_KSGQL, sinks), -1).softmax(-1)[..., :-1]
    else:
        weights_KSGQL = scores_KSGQL.softmax(-1)
    weights_ZYL = weights_KSGQL.to(values_ZLV.dtype).reshape(matrices, shared * queries, keys)
    a_KSGQV = torch.bmm(weights_ZYL, values_ZLV).view(kv_heads, sequences, shared, queries, -1)
    return a_KSGQV.permute(1, 3, 0, 2, 4).reshape(sequences, queries, heads, -1)
