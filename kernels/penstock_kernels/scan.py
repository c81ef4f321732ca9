"""Recurrences of single numbers. Letters beside those of the package: I channels, M numbers of a channel's state, P places of
states, S rows of a token each.
"""

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import Tensor, torch
from penstock_kernels.recurrence import NO_EXPONENT, StateMetadata, Tokens, advance, chunks

# Tokens whose decays and inputs of every number of the state exist at once.
SCANNED_AT_ONCE = 64


def selective_scan(
    x_TI: Tensor,
    rate_TI: Tensor,
    a_IM: Tensor,
    b_TM: Tensor,
    c_TM: Tensor,
    state_PIM: Tensor,
    states: StateMetadata,
) -> Tensor:
    """state = exp(rate a) state + rate x b, of which each channel gives its product with c: Mamba's state space.

    All in fp32: inputs and rates (T, I), a (I, M), b and c (T, M), states (P, I, M). Returns (T, I). One token after the other
    however a prompt is cut, so that results are the same to the last bit. Gu and Dao, "Mamba", 2023, algorithm 2.
    """
    if usable(state_PIM) and not states.exact:
        from penstock_kernels.gpu import scan

        if scan.takes("selective_scan", selective_scan_in_torch, state_PIM, x_TI, rate_TI, a_IM, b_TM, c_TM):
            return scan.selective_scan(x_TI, rate_TI, a_IM, b_TM, c_TM, state_PIM, states)
    return selective_scan_in_torch(x_TI, rate_TI, a_IM, b_TM, c_TM, state_PIM, states)


def selective_scan_in_torch(
    x_TI: Tensor,
    rate_TI: Tensor,
    a_IM: Tensor,
    b_TM: Tensor,
    c_TM: Tensor,
    state_PIM: Tensor,
    states: StateMetadata,
) -> Tensor:
    """The definition of `selective_scan`."""

    def parts(tokens: Tokens) -> tuple[Tensor, Tensor]:
        kept_TIM = (rate_TI[tokens].unsqueeze(-1) * a_IM).exp_()
        return kept_TIM, (rate_TI[tokens] * x_TI[tokens]).unsqueeze(-1) * b_TM[tokens].unsqueeze(-2)

    def step_form(tokens: Tokens, state_SIM: Tensor) -> Tensor:
        kept_SIM, added_SIM = parts(tokens)
        state_SIM.mul_(kept_SIM).add_(added_SIM)
        return (state_SIM * c_TM[tokens].unsqueeze(-2)).sum(-1)

    def run_form(tokens: slice, state_IM: Tensor) -> Tensor:
        out_TI = torch.empty_like(x_TI[tokens])
        for part in chunks(tokens, SCANNED_AT_ONCE):
            kept_TIM, state_TIM = parts(part)
            _recur(kept_TIM, state_TIM, state_IM)
            out_TI[part.start - tokens.start : part.stop - tokens.start] = (
                state_TIM.mul_(c_TM[part].unsqueeze(-2))
            ).sum(-1)
        return out_TI

    return advance(states, state_PIM, torch.empty_like(x_TI), step_form, run_form)


def linear_recurrence(kept_TI: Tensor, added_TI: Tensor, state_PI: Tensor, states: StateMetadata) -> Tensor:
    """state = kept state + added, of each channel by itself: the RG-LRU of Griffin, whose gates make `kept` and `added`.

    All in fp32: (T, I) and states (P, I). Returns the states after each token, (T, I); the same to the last bit wherever a
    prompt is cut. De et al., "Griffin", 2024, section 2.4.
    """
    if usable(state_PI) and not states.exact:
        from penstock_kernels.gpu import scan

        if scan.takes("linear_recurrence", linear_recurrence_in_torch, state_PI, kept_TI, added_TI):
            return scan.linear_recurrence(kept_TI, added_TI, state_PI, states)
    return linear_recurrence_in_torch(kept_TI, added_TI, state_PI, states)


def linear_recurrence_in_torch(
    kept_TI: Tensor, added_TI: Tensor, state_PI: Tensor, states: StateMetadata
) -> Tensor:
    """The definition of `linear_recurrence`."""

    def step_form(tokens: Tokens, state_SI: Tensor) -> Tensor:
        return state_SI.mul_(kept_TI[tokens]).add_(added_TI[tokens])

    def run_form(tokens: slice, state_I: Tensor) -> Tensor:
        out_TI = added_TI[tokens].clone()
        _recur(kept_TI[tokens], out_TI, state_I)
        return out_TI

    return advance(states, state_PI, torch.empty_like(added_TI), step_form, run_form)


def weighted_key_values(
    k_TI: Tensor, v_TI: Tensor, decay_I: Tensor, first_I: Tensor, state_P3I: Tensor, states: StateMetadata
) -> Tensor:
    """RWKV's attention of each channel: the mean of the values so far, each weighted with e to its key, which `decay` is added to with
    every token that follows; the token's own key gets `first` in place of that.

    All in fp32: (T, I), decays, which are negative, and `first` (I,), states (P, 3, I): the sum of weighted values, that of weights,
    and the largest exponent so far, by which both are divided. Where the second is 0 there was no token yet. Returns (T, I), the same to the
    last bit wherever a prompt is cut. Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", 2023, section 3.1, in the form of
    its appendix on stability; as transformers 5.23 has it (rwkv).
    """
    if usable(state_P3I) and not states.exact:
        from penstock_kernels.gpu import scan

        if scan.takes(
            "weighted_key_values", weighted_key_values_in_torch, state_P3I, k_TI, v_TI, decay_I, first_I
        ):
            return scan.weighted_key_values(k_TI, v_TI, decay_I, first_I, state_P3I, states)
    return weighted_key_values_in_torch(k_TI, v_TI, decay_I, first_I, state_P3I, states)


def weighted_key_values_in_torch(
    k_TI: Tensor, v_TI: Tensor, decay_I: Tensor, first_I: Tensor, state_P3I: Tensor, states: StateMetadata
) -> Tensor:
    """The definition of `weighted_key_values`."""

    def latest(state_S3I: Tensor) -> Tensor:
        return torch.where(state_S3I[..., 1, :] > 0, state_S3I[..., 2, :], NO_EXPONENT)

    def weights(exponent: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of what was and of the key, and the exponent that they are relative to."""
        most = torch.maximum(exponent, k)
        return (exponent - most).exp_(), (k - most).exp_(), most

    def mean(exponent: Tensor, sums: Tensor, k: Tensor, v: Tensor) -> Tensor:
        old, new, _ = weights(exponent, k + first_I)
        # Products and sums apart: fused, their rounding would depend on the shape.
        return (old * sums[..., 0, :] + new * v) / (old * sums[..., 1, :] + new)

    def step_form(tokens: Tokens, state_S3I: Tensor) -> Tensor:
        k_SI, v_SI, exponent_SI = k_TI[tokens], v_TI[tokens], latest(state_S3I)
        out_SI = mean(exponent_SI, state_S3I, k_SI, v_SI)
        old_SI, new_SI, most_SI = weights(exponent_SI + decay_I, k_SI)
        added_S2I = torch.stack((new_SI * v_SI, new_SI), 1)
        state_S3I[:, :2].mul_(old_SI.unsqueeze(1)).add_(added_S2I)
        state_S3I[:, 2] = most_SI
        return out_SI

    def run_form(tokens: slice, state_3I: Tensor) -> Tensor:
        out_TI = torch.empty_like(v_TI[tokens])
        for part in chunks(tokens, SCANNED_AT_ONCE):
            k_LI, v_LI = k_TI[part], v_TI[part]
            exponents = [latest(state_3I)]
            for k_I in k_LI:
                exponents.append(torch.maximum(exponents[-1] + decay_I, k_I))
            before_LI = torch.stack(exponents[:-1])
            old_LI, new_LI, _ = weights(before_LI + decay_I, k_LI)
            sums_L2I = torch.stack((new_LI * v_LI, new_LI), 1)
            first_2I = state_3I[:2].clone()
            _recur(old_LI.unsqueeze(1), sums_L2I, state_3I[:2])
            state_3I[2] = exponents[-1]
            sums_L2I = torch.cat((first_2I.unsqueeze(0), sums_L2I[:-1]))
            at = part.start - tokens.start
            out_TI[at : at + len(k_LI)] = mean(before_LI, sums_L2I, k_LI, v_LI)
        return out_TI

    return advance(states, state_P3I, torch.empty_like(v_TI), step_form, run_form)


def _recur(kept_T: Tensor, added_T: Tensor, state: Tensor) -> None:
    """What is added becomes the state after each token, and `state` the last one."""
    before = state
    for kept, added in zip(kept_T, added_T, strict=True):
        # A product and a sum apart: fused, their rounding would depend on the shape.
        added += kept * before
        before = added
    state.copy_(before)
