"""Linear attention whose state learns what it did not predict. Letters beside those of the package: P places of states,
S rows of a token each, V size of a value (not the vocabulary), N chunks, C tokens of a chunk.
"""

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import F, Tensor, torch
from penstock_kernels.recurrence import StateMetadata, Tokens, add_products, advance, causal, decays

CHUNK = 64
# Decays of channels are multiplied out for every pair of tokens of a chunk.
CHANNELS_CHUNK = 16


def gated_delta_rule(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THV: Tensor,
    decay_TH: Tensor,
    beta_TH: Tensor,
    state_PHDV: Tensor,
    states: StateMetadata,
) -> Tensor:
    """Each head's state is multiplied with exp(decay), then moves its answer to the key by `beta` of the way towards the
    value, and is asked with the query: state = e^decay state; state += k (beta (v - k state)); q state.

    All in fp32: queries and keys (T, H, D), values (T, H, V), logarithms of decays and betas (T, H), states
    (P, H, D, V). Returns (T, H, V). Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024; in chunks as there.
    """
    if usable(state_PHDV) and not states.exact:
        from penstock_kernels.gpu import delta_rule

        if delta_rule.takes(gated_delta_rule_in_torch, q_THD, v_THV, decay_TH, state_PHDV):
            return delta_rule.delta_rule(q_THD, k_THD, v_THV, decay_TH, beta_TH, state_PHDV, states)
    return gated_delta_rule_in_torch(q_THD, k_THD, v_THV, decay_TH, beta_TH, state_PHDV, states)


def gated_delta_rule_in_torch(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THV: Tensor,
    decay_TH: Tensor,
    beta_TH: Tensor,
    state_PHDV: Tensor,
    states: StateMetadata,
) -> Tensor:
    """The definition of `gated_delta_rule`."""

    def step_form(tokens: Tokens, state_SHDV: Tensor) -> Tensor:
        return _step(
            q_THD[tokens],
            k_THD[tokens],
            v_THV[tokens],
            decay_TH[tokens].exp().unsqueeze(-1),
            beta_TH[tokens],
            state_SHDV,
        )

    def run_form(tokens: slice, state_HDV: Tensor) -> Tensor:
        size = min(CHUNK, tokens.stop - tokens.start)
        q_HNCD, k_HNCD, v_HNCV = (_in_chunks(x[tokens], size) for x in (q_THD, k_THD, v_THV))
        decay_HNC, beta_HNC = (
            _in_chunks(x[tokens].unsqueeze(-1), size).squeeze(-1) for x in (decay_TH, beta_TH)
        )
        total_HNC, between_HNCC, until_HNC1 = decays(decay_HNC)
        seen_HNCC = (q_HNCD @ k_HNCD.transpose(-1, -2)).mul_(between_HNCC)
        asked_HNCD = k_HNCD * beta_HNC.unsqueeze(-1)
        learnt_HNCC = (asked_HNCD @ k_HNCD.transpose(-1, -2)).mul_(between_HNCC)
        since_HNC1 = total_HNC.exp().unsqueeze(-1)
        return _over_chunks(
            state_HDV,
            seen_HNCC,
            learnt_HNCC,
            v_HNCV * beta_HNC.unsqueeze(-1),
            asked_HNCD.mul_(since_HNC1),
            q_HNCD * since_HNC1,
            k_HNCD * until_HNC1,
            total_HNC[..., -1].exp()[..., None, None],
            tokens.stop - tokens.start,
        )

    return advance(states, state_PHDV, torch.empty_like(v_THV), step_form, run_form)


def channel_delta_rule(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THV: Tensor,
    decay_THD: Tensor,
    beta_TH: Tensor,
    state_PHDV: Tensor,
    states: StateMetadata,
) -> Tensor:
    """The same where each of a head's D channels decays by itself: logarithms (T, H, D). Kimi Team, "Kimi Linear", 2025."""
    if usable(state_PHDV) and not states.exact:
        from penstock_kernels.gpu import delta_rule

        if delta_rule.takes(channel_delta_rule_in_torch, q_THD, v_THV, decay_THD, state_PHDV):
            return delta_rule.delta_rule(q_THD, k_THD, v_THV, decay_THD, beta_TH, state_PHDV, states)
    return channel_delta_rule_in_torch(q_THD, k_THD, v_THV, decay_THD, beta_TH, state_PHDV, states)


def channel_delta_rule_in_torch(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THV: Tensor,
    decay_THD: Tensor,
    beta_TH: Tensor,
    state_PHDV: Tensor,
    states: StateMetadata,
) -> Tensor:
    """The definition of `channel_delta_rule`."""

    def step_form(tokens: Tokens, state_SHDV: Tensor) -> Tensor:
        return _step(
            q_THD[tokens],
            k_THD[tokens],
            v_THV[tokens],
            decay_THD[tokens].exp(),
            beta_TH[tokens],
            state_SHDV,
        )

    def run_form(tokens: slice, state_HDV: Tensor) -> Tensor:
        size = min(CHANNELS_CHUNK, tokens.stop - tokens.start)
        q_HNCD, k_HNCD, v_HNCV, decay_HNCD = (
            _in_chunks(x[tokens], size) for x in (q_THD, k_THD, v_THV, decay_THD)
        )
        beta_HNC1 = _in_chunks(beta_TH[tokens].unsqueeze(-1), size)
        total_HNCD = decay_HNCD.cumsum(-2)
        below = causal(size, q_HNCD.device).unsqueeze(-1)
        # A decay from one token to another one before it would be more than 1, and may overflow.
        between_HNCCD = (total_HNCD.unsqueeze(-2) - total_HNCD.unsqueeze(-3)).masked_fill_(~below, -torch.inf)
        decayed_HNCCD = between_HNCCD.exp_().mul_(k_HNCD.unsqueeze(-3))
        seen_HNCC = (decayed_HNCCD @ q_HNCD.unsqueeze(-1)).squeeze(-1)
        asked_HNCD = k_HNCD * beta_HNC1
        learnt_HNCC = (decayed_HNCCD @ asked_HNCD.unsqueeze(-1)).squeeze(-1)
        since_HNCD = total_HNCD.exp()
        until_HNCD = (total_HNCD[..., -1:, :] - total_HNCD).exp_()
        return _over_chunks(
            state_HDV,
            seen_HNCC,
            learnt_HNCC,
            v_HNCV * beta_HNC1,
            asked_HNCD.mul_(since_HNCD),
            q_HNCD * since_HNCD,
            k_HNCD * until_HNCD,
            total_HNCD[..., -1, :].exp().unsqueeze(-1),
            tokens.stop - tokens.start,
        )

    return advance(states, state_PHDV, torch.empty_like(v_THV), step_form, run_form)


def _step(
    q_SHD: Tensor, k_SHD: Tensor, v_SHV: Tensor, kept_SHD: Tensor, beta_SH: Tensor, state_SHDV: Tensor
) -> Tensor:
    """A token of each of S sequences. `kept`: what is left of each channel of the state, or of all of a head's (D = 1).

    What the key and the query find in the decayed state is read in one pass before anything is written; what the query finds
    of the token itself is added.
    """
    asked_SH2D = torch.stack((k_SHD, q_SHD), 2).mul_(kept_SHD.unsqueeze(2))
    known_SHV, old_SHV = (asked_SH2D @ state_SHDV).unbind(2)
    new_SHV = (v_SHV - known_SHV) * beta_SH.unsqueeze(-1)
    state_SHDV.mul_(kept_SHD.unsqueeze(-1))
    add_products(state_SHDV, k_SHD, new_SHV)
    return old_SHV + (q_SHD * k_SHD).sum(-1, keepdim=True) * new_SHV


def _over_chunks(
    state_HDV: Tensor,
    seen_HNCC: Tensor,
    learnt_HNCC: Tensor,
    value_HNCV: Tensor,
    asked_HNCD: Tensor,
    q_HNCD: Tensor,
    k_HNCD: Tensor,
    kept_HN: Tensor,
    tokens: int,
) -> Tensor:
    """What is new in a chunk follows from itself and from the state before it by one triangular system for both."""
    both = torch.cat((value_HNCV, asked_HNCD), -1)
    solved = torch.linalg.solve_triangular(learnt_HNCC, both, upper=False, unitriangular=True)
    value_HNCV, asked_HNCD = torch.split(solved, [value_HNCV.shape[-1], asked_HNCD.shape[-1]], -1)
    out_HNCV = torch.empty_like(value_HNCV)
    for at in range(value_HNCV.shape[1]):
        new_HCV = value_HNCV[:, at] - asked_HNCD[:, at] @ state_HDV
        out_HNCV[:, at] = q_HNCD[:, at] @ state_HDV + seen_HNCC[:, at] @ new_HCV
        state_HDV.mul_(kept_HN[:, at]).add_(k_HNCD[:, at].transpose(-1, -2) @ new_HCV)
    return out_HNCV.flatten(1, 2)[:, :tokens].transpose(0, 1)


def _in_chunks(x_THD: Tensor, size: int) -> Tensor:
    """(T, H, ...) to (H, N, C, ...), filled up with zeros: tokens that decay, learn and ask for nothing."""
    x_HTD = F.pad(x_THD.transpose(0, 1), (0, 0, 0, -len(x_THD) % size))
    return x_HTD.reshape(x_HTD.shape[0], -1, size, x_HTD.shape[-1])
