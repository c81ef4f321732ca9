"""Recurrences of single numbers. Letters beside those of the package: I channels, M numbers of a channel's state, P places of
states, S rows of a token each.
"""

from penstock_kernels.later import Tensor, torch
from penstock_kernels.recurrence import StateMetadata, Tokens, advance, chunks

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

    def step_form(tokens: Tokens, state_SI: Tensor) -> Tensor:
        return state_SI.mul_(kept_TI[tokens]).add_(added_TI[tokens])

    def run_form(tokens: slice, state_I: Tensor) -> Tensor:
        out_TI = added_TI[tokens].clone()
        _recur(kept_TI[tokens], out_TI, state_I)
        return out_TI

    return advance(states, state_PI, torch.empty_like(added_TI), step_form, run_form)


def _recur(kept_T: Tensor, added_T: Tensor, state: Tensor) -> None:
    """What is added becomes the state after each token, and `state` the last one."""
    before = state
    for kept, added in zip(kept_T, added_T, strict=True):
        # A product and a sum apart: fused, their rounding would depend on the shape.
        added += kept * before
        before = added
    state.copy_(before)
