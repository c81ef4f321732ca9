"""The short convolution in front of many recurrent layers, and the tokens before each. Letters beside those of the package: C
channels, W width of the kernel, P places of states, U of what came before that a state holds, S rows of a token each.
"""

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import Tensor, torch
from penstock_kernels.recurrence import StateMetadata, Tokens, advance


def causal_conv(
    x_TC: Tensor,
    weight_WC: Tensor,
    bias_C: Tensor | None,
    state_PUC: Tensor,
    states: StateMetadata,
    dilation: int = 1,
) -> Tensor:
    """Each channel's last W numbers times its weights, the newest with the last one: (T, C) to (T, C) in fp32.

    weight (W, C) and bias (C,) in fp32; of `dilation` numbers one has a weight. The state (P, dilation (W - 1), C) holds what
    came before, in any floating dtype. Products are added in one order, so that a result does not depend on where a sequence
    is cut. Used by S4 and Mamba (Gu and Dao, "Mamba", 2023), and by itself with gates around it in LFM2 (Liquid AI, 2025).
    """
    if usable(x_TC) and not states.exact:
        from penstock_kernels.gpu import convolution

        if convolution.takes(causal_conv_in_torch, x_TC, weight_WC, bias_C, state_PUC, states, dilation):
            return convolution.causal_conv(x_TC, weight_WC, bias_C, state_PUC, states, dilation)
    return causal_conv_in_torch(x_TC, weight_WC, bias_C, state_PUC, states, dilation)


def causal_conv_in_torch(
    x_TC: Tensor,
    weight_WC: Tensor,
    bias_C: Tensor | None,
    state_PUC: Tensor,
    states: StateMetadata,
    dilation: int = 1,
) -> Tensor:
    """The definition of `causal_conv`."""
    width = len(weight_WC)
    before = dilation * (width - 1)

    def summed(window_SUC: Tensor, size: int) -> Tensor:
        out = window_SUC[..., :size, :] * weight_WC[0]
        for place in range(1, width):
            # A product and a sum apart: fused, their rounding would depend on the shape.
            first = dilation * place
            out += window_SUC[..., first : first + size, :] * weight_WC[place]
        return out if bias_C is None else out.add_(bias_C)

    def step_form(tokens: Tokens, state_SUC: Tensor) -> Tensor:
        window_SUC = torch.cat((state_SUC, x_TC[tokens].unsqueeze(1).to(state_SUC.dtype)), 1)
        state_SUC.copy_(window_SUC[:, 1:])
        return summed(window_SUC.float(), 1).squeeze(1)

    def run_form(tokens: slice, state_UC: Tensor) -> Tensor:
        window_UC = torch.cat((state_UC, x_TC[tokens].to(state_UC.dtype)))
        state_UC.copy_(window_UC[len(window_UC) - before :])
        return summed(window_UC.float(), tokens.stop - tokens.start)

    out_TC = torch.empty(x_TC.shape, dtype=torch.float32, device=x_TC.device)
    return advance(states, state_PUC, out_TC, step_form, run_form)


def previous_tokens(x_TE: Tensor, state_P1E: Tensor, states: StateMetadata) -> Tensor:
    """What the token before each had: (T, E) to (T, E); zeros before a sequence's first. The state (P, 1, E) holds its last token's."""

    def step_form(tokens: Tokens, state_S1E: Tensor) -> Tensor:
        found_SE = state_S1E.squeeze(1).clone()
        state_S1E.copy_(x_TE[tokens].unsqueeze(1))
        return found_SE

    def run_form(tokens: slice, state_1E: Tensor) -> Tensor:
        x_LE = x_TE[tokens]
        found_LE = torch.cat((state_1E, x_LE[:-1].to(state_1E.dtype)))
        state_1E.copy_(x_LE[-1:])
        return found_LE

    return advance(states, state_P1E, torch.empty_like(x_TE), step_form, run_form)


def mix_with_previous(x_TE: Tensor, previous_TE: Tensor, mix_E: Tensor) -> Tensor:
    """mix x + (1 - mix) what the token before had, in fp32 and then in x's dtype: RWKV's token shift, with mix (E,) in fp32."""
    return (x_TE.float() * mix_E + previous_TE.float() * (1 - mix_E)).to(x_TE.dtype)


def previous_ids(ids_T: Tensor, state_PU: Tensor, states: StateMetadata) -> Tensor:
    """Ids of the U tokens before each token, the nearest first: (T,) int64 to (T, U) int64; 0 where there is none.

    The state (P, U) in fp32, which holds ids below 2^24 as they are, has a sequence's last ids, the newest last.
    """
    count = state_PU.shape[1]

    def step_form(tokens: Tokens, state_SU: Tensor) -> Tensor:
        found_SU = state_SU.flip(1)
        state_SU.copy_(torch.cat((state_SU[:, 1:], ids_T[tokens].unsqueeze(1).to(state_SU.dtype)), 1))
        return found_SU

    def run_form(tokens: slice, state_U: Tensor) -> Tensor:
        window_U = torch.cat((state_U, ids_T[tokens].to(state_U.dtype)))
        state_U.copy_(window_U[len(window_U) - count :])
        return window_U[:-1].unfold(0, count, 1).flip(1)

    found_TU = torch.empty((len(ids_T), count), dtype=state_PU.dtype, device=ids_T.device)
    return advance(states, state_PU, found_TU, step_form, run_form).long()
