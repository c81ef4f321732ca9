"""Linear attention with a decay: Mamba 2's state space and MiniMax' lightning attention are two of its kinds. Letters beside
those of the package: G groups of heads with one query and key, D size of a query, V size of a value (not the vocabulary),
P places of states, S rows of a token each, N chunks, C tokens of a chunk.
"""

from penstock_kernels.later import F, Tensor, torch
from penstock_kernels.recurrence import StateMetadata, Tokens, add_products, advance, decays

CHUNK = 64


def decayed_attention(
    q_TGD: Tensor, k_TGD: Tensor, v_THV: Tensor, decay_TH: Tensor, state_PHDV: Tensor, states: StateMetadata
) -> Tensor:
    """Each head's state is multiplied with exp(decay), gets key times value added, and is asked with the query.

    All in fp32: queries and keys (T, G, D), of which each serves H / G heads after one another, values (T, H, V),
    logarithms of decays (T, H), states (P, H, D, V). Returns (T, H, V). Dao and Gu, "Transformers are SSMs", 2024 (with C, B
    and dt x as query, key and value); Qin et al., "Lightning Attention-2", 2024 (with a decay for each head).
    """
    groups, heads = q_TGD.shape[1], v_THV.shape[1]
    shared = heads // groups

    def step_form(tokens: Tokens, state_SHDV: Tensor) -> Tensor:
        q_SHD, k_SHD = (x[tokens].repeat_interleave(shared, 1) for x in (q_TGD, k_TGD))
        kept_SH1 = decay_TH[tokens].exp().unsqueeze(-1)
        # What the state holds is read before the token is added, which the query finds, too.
        old_SHV = (q_SHD.unsqueeze(-2) @ state_SHDV).squeeze(-2) * kept_SH1
        state_SHDV.mul_(kept_SH1.unsqueeze(-1))
        add_products(state_SHDV, k_SHD, v_THV[tokens])
        return old_SHV + (q_SHD * k_SHD).sum(-1, keepdim=True) * v_THV[tokens]

    def run_form(tokens: slice, state_HDV: Tensor) -> Tensor:
        count = tokens.stop - tokens.start
        size = min(CHUNK, count)
        q_GNCD, k_GNCD, v_HNCV = (_in_chunks(x[tokens], size) for x in (q_TGD, k_TGD, v_THV))
        decay_HNC = _in_chunks(decay_TH[tokens].unsqueeze(-1), size).squeeze(-1)
        total_HNC, between_HNCC, until_HNC1 = decays(decay_HNC)
        weights_HNCC = torch.unflatten(between_HNCC, 0, (groups, shared))
        weights_HNCC *= (q_GNCD @ k_GNCD.transpose(-1, -2)).unsqueeze(1)
        out_HNCV = weights_HNCC.flatten(0, 1) @ v_HNCV
        q_HNCD = (
            q_GNCD.unsqueeze(1) * torch.unflatten(total_HNC.exp(), 0, (groups, shared)).unsqueeze(-1)
        ).flatten(0, 1)
        added_HNDV = k_GNCD.repeat_interleave(shared, 0).transpose(-1, -2) @ (v_HNCV * until_HNC1)
        kept_HN = total_HNC[..., -1].exp()[..., None, None]
        for at in range(out_HNCV.shape[1]):
            out_HNCV[:, at] += q_HNCD[:, at] @ state_HDV
            state_HDV.mul_(kept_HN[:, at]).add_(added_HNDV[:, at])
        return out_HNCV.flatten(1, 2)[:, :count].transpose(0, 1)

    return advance(states, state_PHDV, torch.empty_like(v_THV), step_form, run_form)


def _in_chunks(x_THD: Tensor, size: int) -> Tensor:
    """(T, H, ...) to (H, N, C, ...), filled up with zeros: tokens that decay, add and ask for nothing."""
    x_HTD = F.pad(x_THD.transpose(0, 1), (0, 0, 0, -len(x_THD) % size))
    return x_HTD.reshape(x_HTD.shape[0], -1, size, x_HTD.shape[-1])
