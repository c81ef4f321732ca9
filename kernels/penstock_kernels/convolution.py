"""The short convolution in front of many recurrent layers. Letters beside those of the package: C channels, W width of the
kernel, P places of states, S rows of a token each.
"""

import torch
from torch import Tensor

from penstock_kernels.recurrence import StateMetadata, advance


def causal_conv(
    x_TC: Tensor, weight_WC: Tensor, bias_C: Tensor | None, state_PUC: Tensor, states: StateMetadata
) -> Tensor:
    """Each channel's last W numbers times its weights, the newest with the last one: (T, C) to (T, C) in fp32.

    weight (W, C) and bias (C,) in fp32. The state (P, W - 1, C) holds what came before, in any floating dtype. Products
    are added in one order, so that a result does not depend on where a sequence is cut. Used by S4 and Mamba (Gu and Dao,
    "Mamba", 2023), and by itself with gates around it in LFM2 (Liquid AI, 2025).
    """
    width = len(weight_WC)

    def summed(window_SUC: Tensor, size: int) -> Tensor:
        out = window_SUC[..., :size, :] * weight_WC[0]
        for place in range(1, width):
            # A product and a sum apart: fused, their rounding would depend on the shape.
            out += window_SUC[..., place : place + size, :] * weight_WC[place]
        return out if bias_C is None else out.add_(bias_C)

    def step_form(tokens: slice, state_SUC: Tensor) -> Tensor:
        window_SUC = torch.cat((state_SUC, x_TC[tokens].unsqueeze(1).to(state_SUC.dtype)), 1)
        state_SUC.copy_(window_SUC[:, 1:])
        return summed(window_SUC.float(), 1).squeeze(1)

    def run_form(tokens: slice, state_UC: Tensor) -> Tensor:
        window_UC = torch.cat((state_UC, x_TC[tokens].to(state_UC.dtype)))
        state_UC.copy_(window_UC[len(window_UC) - width + 1 :])
        return summed(window_UC.float(), tokens.stop - tokens.start)

    out_TC = torch.empty(x_TC.shape, dtype=torch.float32, device=x_TC.device)
    return advance(states, state_PUC, out_TC, step_form, run_form)
