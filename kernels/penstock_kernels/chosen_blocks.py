"""Attention to some blocks of keys only: index heads score one key of each block of neighbours, and the best blocks are attended to
whole, beside the keys behind the last block that is complete.

Qwen Team, Qwen 4's sparse attention, as transformers 5.23 has it (qwen4_exp). An index key is the last C numbers of what the cache
holds of a token. It is what the token's own projection gave until its block is complete; then the last token of the block holds the
block's key in its place. So what a row holds depends on the tokens up to its own, and pages may be shared as ever.

Equal scores go to the earlier block. Letters beside those of `attention`: I index heads, C numbers of an index key, M tokens of a
block, Y blocks of a sequence, A keys that are chosen.
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
from penstock_kernels.later import Tensor, torch
from penstock_kernels.norm import rms_norm
from penstock_kernels.rotary import rope


def write_block_keys(
    keys_TC: Tensor,
    cache_NJD: Tensor,
    slot_mapping_T: Tensor,
    positions_T: Tensor,
    metadata: AttentionMetadata,
    block: int,
    norm: tuple[Tensor, float],
    first_rope: tuple[Tensor, Tensor],
) -> None:
    """Writes the index keys of a step's tokens, and of blocks that they complete one key in place of the last token's.

    A block's key is the mean of its tokens' (C numbers each, in fp32), rounded, normalised with the weight (C,) and eps of `norm`,
    and its first R numbers are rotated by `first_rope`: cos and sin (T, 1, R) where the block of each token begins, if the token is
    its last. `slot_mapping` (T,): the cache row of each token.
    """
    size = keys_TC.shape[1]
    index_keys_NC = cache_NJD.view(len(cache_NJD), -1)[:, -size:]
    index_keys_NC.index_copy_(0, slot_mapping_T, keys_TC)
    weight_C, eps = norm
    places_TM = positions_T.unsqueeze(1) - torch.arange(block - 1, -1, -1, device=positions_T.device)
    rows_TM = _rows(metadata, places_TM.clamp_min(0))
    groups_TMC = index_keys_NC.index_select(0, rows_TM.flatten()).view(*rows_TM.shape, size)
    made_T1C = rms_norm(groups_TMC.float().mean(1).to(keys_TC.dtype), weight_C, eps).unsqueeze(1)
    rope(made_T1C[..., : first_rope[0].shape[-1]], *first_rope)
    is_last_T1 = ((positions_T + 1) % block == 0).unsqueeze(1)
    index_keys_NC.index_copy_(0, slot_mapping_T, torch.where(is_last_T1, made_T1C.squeeze(1), keys_TC))


def choose_blocks(
    q_TIC: Tensor, cache_NJD: Tensor, metadata: AttentionMetadata, block: int, most: int
) -> ChosenKeys:
    """Of the complete blocks that each token sees the keys of those `most` for which sum_i relu(q_i k) is largest, k being the
    block's key, and all keys behind the last one.

    q (T, I, C); the cache holds this step's keys already (`write_block_keys`).
    """
    assert not metadata.decodes, "its layouts have no DecodeGroup"
    long = torch.float64 if metadata.is_exact(q_TIC) else torch.float32
    groups: list[FewGroup | ChunkGroup] = [*metadata.few, *metadata.chunks]
    return [
        None
        if group.keys // block <= most
        else _choose(q_TIC[group.begin : group.end].to(long), cache_NJD, group, block, most)
        for group in groups
    ]


def _choose(q_TIC: Tensor, cache_NJD: Tensor, group: FewGroup | ChunkGroup, block: int, most: int) -> Tensor:
    heads, size = q_TIC.shape[1:]
    keys, blocks = group.keys, group.keys // block
    q_SQIC = group.by_sequence(q_TIC)
    sequences, queries = q_SQIC.shape[:2]
    index_keys_NC = cache_NJD.view(len(cache_NJD), -1)[:, -size:]
    lasts_SY = group.slot_mapping_SL.view(sequences, keys)[:, block - 1 :: block]
    device = q_TIC.device
    inside_M = torch.arange(block, device=device)
    chosen_SQA = torch.empty(sequences, queries, (most + 1) * block - 1, dtype=torch.int64, device=device)
    for _, some in pieces(1, sequences, blocks * size, gathered_at_once(device)):
        count = some.stop - some.start
        keys_SYC = index_keys_NC.index_select(0, lasts_SY[some].flatten()).view(count, blocks, size)
        keys_SCY = keys_SYC.to(q_TIC.dtype).transpose(1, 2)
        at_once = max(SCORES_AT_ONCE // (count * max(heads * blocks, keys, 2 * chosen_SQA.shape[-1])), 1)
        for first in range(0, queries, at_once):
            part = slice(first, min(first + at_once, queries))
            scores_SXY = torch.bmm(q_SQIC[some, part].reshape(count, -1, size), keys_SCY).relu_()
            scores_SQY = scores_SXY.view(count, -1, heads, blocks).sum(2).float()
            seen_SQ1 = _seen(group, some, part).expand(count, scores_SQY.shape[1], 1)
            complete_SQ1 = seen_SQ1 // block
            is_hidden_SQY = torch.arange(blocks, device=device) >= complete_SQ1
            scores_SQY = scores_SQY.masked_fill_(is_hidden_SQY, -torch.inf)
            best_SQY, order_SQY = scores_SQY.sort(stable=True, dim=-1, descending=True)
            taken_SQY = order_SQY[..., :most].unsqueeze(-1) * block + inside_M
            taken_SQY = taken_SQY.masked_fill_(best_SQY[..., :most].isneginf().unsqueeze(-1), -1)
            behind_SQM = complete_SQ1 * block + inside_M[:-1]
            behind_SQM = behind_SQM.masked_fill_(behind_SQM >= seen_SQ1, -1)
            chosen_SQA[some, part] = torch.cat((taken_SQY.flatten(2), behind_SQM), -1).sort(-1).values
    return chosen_SQA.view(sequences * queries, -1)


def _seen(group: FewGroup | ChunkGroup, sequences: slice, queries: slice) -> Tensor:
    """How many keys each query sees, the first of its sequence: (s, q, 1), or (q, 1), or (1,)."""
    hidden = hidden_keys(group, sequences, queries)
    if hidden is None:
        return torch.full((1,), group.keys, device=group.slot_mapping_SL.device)
    hidden = hidden if hidden.dim() == 2 else hidden.squeeze(1)
    return (hidden == 0).sum(-1, keepdim=True)


def _rows(metadata: AttentionMetadata, places_TM: Tensor) -> Tensor:
    """The cache rows (T, M) of these keys of each token's own sequence."""
    rows_TM = torch.empty_like(places_TM)
    groups: list[FewGroup | ChunkGroup] = [*metadata.few, *metadata.chunks]
    for group in groups:
        here = slice(group.begin, group.end)
        sequences_T = torch.arange(group.end - group.begin, device=places_TM.device)
        if isinstance(group, ChunkGroup):
            sequences_T = (sequences_T if group.gather_T is None else group.gather_T) // group.queries
        rows_TM[here] = group.slot_mapping_SL[sequences_T.unsqueeze(1) * group.keys + places_TM[here]]
    return rows_TM
