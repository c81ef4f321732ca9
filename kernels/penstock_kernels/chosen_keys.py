"""Attention to some keys only: small index heads score every key of a query's sequence, and the best are attended to.

DeepSeek-AI, "DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse Attention", 2025, section 2 (the
"lightning indexer"). Their kernels score in float8, behind a rotation that products do not notice; here scores are float32.

Equal scores go to the earlier key, so that a choice depends on nothing but its query and what that sees. Letters beside those
of `attention`: I index heads, C numbers of an index key, W numbers that the cache holds of a token, A keys that are chosen.
"""

from penstock_kernels.attention import (
    SCORES_AT_ONCE,
    AttentionMetadata,
    ChunkGroup,
    FewGroup,
    gathered_at_once,
    hidden_keys,
    pieces,
)
from penstock_kernels.later import Tensor, torch

# Of each group of a step, few before chunks: the places of the keys of each of its queries among the group's L, ascending, as
# (S * Q, A) int64, -1 being none; None: a query attends to all that it sees.
ChosenKeys = list[Tensor | None]


def choose_keys(
    q_TIC: Tensor, weights_TI: Tensor, cache_N1W: Tensor, metadata: AttentionMetadata, most: int
) -> ChosenKeys:
    """The `most` keys of each token's sequence, among those that it sees, for which sum_i w_i relu(q_i k) is largest.

    q (T, I, C); weights (T, I) fp32, with whatever scales the scores; an index key is the last C numbers of what the
    paged cache holds of its token, this step's among them. Where fewer are seen, the others chosen are hidden ones.
    """
    assert not metadata.decodes, "its layouts have no DecodeGroup"
    long = torch.float64 if metadata.is_exact(q_TIC) else torch.float32
    groups: list[FewGroup | ChunkGroup] = [*metadata.few, *metadata.chunks]
    return [
        None
        if group.keys <= most
        else _choose(
            q_TIC[group.begin : group.end].to(long),
            weights_TI[group.begin : group.end].to(long),
            cache_N1W,
            group,
            most,
        )
        for group in groups
    ]


def _choose(
    q_TIC: Tensor, weights_TI: Tensor, cache_N1W: Tensor, group: FewGroup | ChunkGroup, most: int
) -> Tensor:
    heads, size = q_TIC.shape[1:]
    keys, width = group.keys, cache_N1W.shape[2]
    q_SQIC, weights_SQ1I = group.by_sequence(q_TIC), group.by_sequence(weights_TI).unsqueeze(2)
    sequences, queries = q_SQIC.shape[:2]
    index_keys_NC = cache_N1W.view(-1, width)[:, width - size :]
    chosen_SQA = torch.empty(sequences, queries, most, dtype=torch.int64, device=q_TIC.device)
    for _, some in pieces(1, sequences, keys * size, gathered_at_once(q_TIC.device)):
        count = some.stop - some.start
        rows_SL = group.slot_mapping_SL[some.start * keys : some.stop * keys]
        keys_SCL = index_keys_NC.index_select(0, rows_SL).view(count, keys, size).to(q_TIC.dtype)
        keys_SCL = keys_SCL.transpose(1, 2)
        at_once = max(SCORES_AT_ONCE // (count * heads * keys), 1)
        for first in range(0, queries, at_once):
            part = slice(first, min(first + at_once, queries))
            scores_SYL = torch.bmm(q_SQIC[some, part].reshape(count, -1, size), keys_SCL).relu_()
            scores_SQIL = scores_SYL.view(count, -1, heads, keys)
            scores_SQL = (weights_SQ1I[some, part] @ scores_SQIL).squeeze(2).float()
            hidden = hidden_keys(group, some, part)
            if hidden is not None:
                scores_SQL += hidden if hidden.dim() == 2 else hidden.squeeze(1)
            best_SQL = scores_SQL.sort(stable=True, dim=-1, descending=True).indices
            chosen_SQA[some, part] = best_SQL[..., :most].sort(-1).values
    return chosen_SQA.view(-1, most)
