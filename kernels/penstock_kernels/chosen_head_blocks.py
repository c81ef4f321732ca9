"""Attention to some blocks of keys only, chosen for each key head: an index head of its own scores every key, the best of a block
scores for the block, and the query heads that share the key head attend to the best blocks, the latest among them.

MiniMax, "MiniMax-M3" sparse attention, as transformers 5.23 has it (minimax_m3_vl). An index key is the last C numbers of what the
cache holds of a token, one for all index heads. Blocks begin at multiples of their size, so that a choice depends on
nothing but its query and what that sees. Equal scores go to the earlier block. Letters beside those of `attention`: I index heads
(as many as key heads), C numbers of an index key, M tokens of a block, Y blocks of a sequence, A keys that are chosen.
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
from penstock_kernels.chosen_keys import ChosenKeys
from penstock_kernels.later import F, Tensor, torch


def choose_head_blocks(
    q_TIC: Tensor, cache_NJD: Tensor, metadata: AttentionMetadata, block: int, most: int, latest: int
) -> ChosenKeys:
    """Of each token and index head the keys of `most` blocks: the `latest` up to the token's own, and of the others those with the
    largest max q k over the keys that the token sees. As (S * Q, I, A) of each group.

    q (T, I, C); the cache holds this step's index keys already.
    """
    assert not metadata.decodes, "its layouts have no DecodeGroup"
    long = torch.float64 if metadata.is_exact(q_TIC) else torch.float32
    groups: list[FewGroup | ChunkGroup] = [*metadata.few, *metadata.chunks]
    return [
        None
        if group.keys <= most * block
        else _choose(q_TIC[group.begin : group.end].to(long), cache_NJD, group, block, most, latest)
        for group in groups
    ]


def _choose(
    q_TIC: Tensor, cache_NJD: Tensor, group: FewGroup | ChunkGroup, block: int, most: int, latest: int
) -> Tensor:
    heads, size = q_TIC.shape[1:]
    keys, blocks = group.keys, -(-group.keys // block)
    q_SQIC = group.by_sequence(q_TIC)
    sequences, queries = q_SQIC.shape[:2]
    index_keys_NC = cache_NJD.view(len(cache_NJD), -1)[:, -size:]
    device = q_TIC.device
    inside_M = torch.arange(block, device=device)
    chosen_SQIA = torch.empty(sequences, queries, heads, most * block, dtype=torch.int64, device=device)
    for _, some in pieces(1, sequences, keys * size, gathered_at_once(device)):
        count = some.stop - some.start
        rows_SL = group.slot_mapping_SL[some.start * keys : some.stop * keys]
        keys_SLC = index_keys_NC.index_select(0, rows_SL).view(count, keys, size).to(q_TIC.dtype)
        at_once = max(SCORES_AT_ONCE // (count * heads * max(keys, 2 * most * block)), 1)
        for first in range(0, queries, at_once):
            part = slice(first, min(first + at_once, queries))
            scores_SXL = torch.bmm(q_SQIC[some, part].reshape(count, -1, size), keys_SLC.transpose(1, 2))
            scores_SQIL = scores_SXL.view(count, -1, heads, keys).float()
            hidden_SQL = _hidden(group, some, part).expand(count, scores_SQIL.shape[1], keys)
            scores_SQIL = scores_SQIL + hidden_SQL.unsqueeze(2)
            padded = F.pad(scores_SQIL, (0, blocks * block - keys), value=-torch.inf)
            best_SQIY = padded.view(*scores_SQIL.shape[:3], blocks, block).amax(-1)
            own_SQ11 = ((hidden_SQL == 0).sum(-1).clamp_min(1) - 1)[..., None, None] // block
            places_Y = torch.arange(blocks, device=device)
            is_late = (places_Y <= own_SQ11) & (places_Y > own_SQ11 - latest)
            best_SQIY = best_SQIY.masked_fill(is_late, torch.inf)
            sorted_SQIY, order_SQIY = best_SQIY.sort(stable=True, dim=-1, descending=True)
            taken = order_SQIY[..., :most].unsqueeze(-1) * block + inside_M
            is_none = sorted_SQIY[..., :most].isneginf().unsqueeze(-1) | (taken >= keys)
            chosen_SQIA[some, part] = taken.masked_fill_(is_none, -1).flatten(3)
    return chosen_SQIA.view(sequences * queries, heads, -1)


def _hidden(group: FewGroup | ChunkGroup, sequences: slice, queries: slice) -> Tensor:
    """(s, q, L), or what expands to it: 0 of the keys that a query sees, -inf of the others."""
    hidden = hidden_keys(group, sequences, queries)
    if hidden is None:
        return torch.zeros(1, 1, group.keys, device=group.slot_mapping_SL.device)
    return (hidden if hidden.dim() == 2 else hidden.squeeze(1)).float()
