"""The short convolution in front of recurrent layers on a GPU: `convolution.causal_conv`, which comes here. `takes` looks at the kernels
once in each process before they are used (`first_use`).

One launch for what the runs of a step give, one for the states behind them, and one for single tokens. Products are added in one order, in
fp32. Letters beside those of the package: C channels, W width of the kernel, P places of states, U of what came before that a state holds.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.gpu.first_use import agrees, relative_error
from penstock_kernels.recurrence import Run, StateMetadata

BLOCK_T, BLOCK_C = 8, 128
MOST_BEFORE = 64  # numbers of a channel that a state holds


def takes(
    defined: Callable[..., Tensor],
    x_TC: Tensor,
    weight_WC: Tensor,
    bias_C: Tensor | None,
    state_PUC: Tensor,
    states: StateMetadata,
    dilation: int,
) -> bool:
    """Whether the kernels are for these shapes, and give what the definition gives of a small input of them."""
    width, before = len(weight_WC), state_PUC.shape[1]
    is_usual = 2 <= width <= 8 and before == dilation * (width - 1) <= MOST_BEFORE
    is_fp32 = weight_WC.dtype == torch.float32 and (bias_C is None or bias_C.dtype == torch.float32)
    if not is_usual or not is_fp32 or not state_PUC[0].is_contiguous():
        return False
    if states.runs and not states.run_columns(x_TC.device).is_whole:
        return False
    shape = (width, x_TC.shape[1], bias_C is not None, dilation, x_TC.dtype, state_PUC.dtype)
    return agrees("causal_conv", shape, lambda: _error(defined, *shape, x_TC.device))


def causal_conv(
    x_TC: Tensor,
    weight_WC: Tensor,
    bias_C: Tensor | None,
    state_PUC: Tensor,
    states: StateMetadata,
    dilation: int = 1,
) -> Tensor:
    """See `convolution.causal_conv`. Each state is contiguous, and the runs of a sequence are neighbours."""
    if x_TC.stride(1) != 1:
        x_TC = x_TC.contiguous()
    weight_WC = weight_WC.contiguous()
    before, channels = state_PUC.shape[1:]
    out_TC = torch.empty(x_TC.shape, dtype=torch.float32, device=x_TC.device)
    tensors = (x_TC, weight_WC, weight_WC if bias_C is None else bias_C.contiguous(), state_PUC)
    numbers = (x_TC.stride(0), state_PUC.stride(0), channels, dilation)
    blocks = -(-channels // BLOCK_C)
    block_u = 1 << (before - 1).bit_length()
    constants = {"WIDTH": len(weight_WC), "HAS_BIAS": bias_C is not None, "BLOCK_C": BLOCK_C}
    for turn in states.in_turns():
        first = turn.tokens.start if isinstance(turn.tokens, slice) else None
        tokens = turn.places_S if isinstance(turn.tokens, slice) else turn.tokens
        _single[blocks, len(turn.places_S)](
            *tensors, out_TC, tokens, turn.places_S, first or 0, *numbers, before,
            HAS_TOKENS=first is None, BLOCK_U=block_u, **constants, num_warps=4,
        )  # fmt: skip
        turn.copy(state_PUC)
    if states.runs:
        runs_3R, sequences_3N, longest, _ = states.run_columns(x_TC.device)
        runs, sequences = runs_3R.shape[1], sequences_3N.shape[1]
        _convolve[blocks, -(-longest // BLOCK_T), sequences](
            *tensors, out_TC, runs_3R, sequences_3N, runs, sequences, *numbers, before,
            BLOCK_T=BLOCK_T, **constants, num_warps=4,
        )  # fmt: skip
        # Behind the launch that reads the states.
        _keep[blocks, sequences](
            x_TC, state_PUC, runs_3R, sequences_3N, runs, sequences, x_TC.stride(0), state_PUC.stride(0), channels, before,
            BLOCK_U=block_u, BLOCK_C=BLOCK_C, num_warps=4,
        )  # fmt: skip
    return out_TC


@triton.jit
def _window(x_ptr, state_ptr, at, begin, end, c, x_token, channels, before):
    """Numbers (N, C) at positions (N,) of a sequence, those before `begin` of its state, as the state's dtype has them."""
    is_real_1C = (c < channels)[None, :]
    is_new_N1 = ((at >= begin) & (at < end))[:, None]
    new_NC = tl.load(
        x_ptr + at.to(tl.int64)[:, None] * x_token + c[None, :], mask=is_new_N1 & is_real_1C, other=0.0
    )
    row = at - begin + before
    is_old_N1 = ((at < begin) & (row >= 0))[:, None]
    old_NC = tl.load(state_ptr + row[:, None] * channels + c[None, :], mask=is_old_N1 & is_real_1C, other=0.0)
    return tl.where(is_new_N1, new_NC.to(state_ptr.dtype.element_ty), old_NC)


@triton.jit
def _sum(
    x_ptr, weight_ptr, bias_ptr, state_ptr, at, begin, end, c, x_token, channels, dilation, before,
    WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """What tokens at positions (N,) of a sequence give: (N, C)."""
    is_real_C = c < channels
    # The oldest number first.
    window_NC = _window(x_ptr, state_ptr, at - before, begin, end, c, x_token, channels, before)
    out_NC = window_NC.to(tl.float32) * tl.load(weight_ptr + c, mask=is_real_C, other=0.0)[None, :]
    for place in tl.static_range(1, WIDTH):
        window_NC = _window(
            x_ptr, state_ptr, at - before + dilation * place, begin, end, c, x_token, channels, before
        )
        weight_C = tl.load(weight_ptr + place * channels + c, mask=is_real_C, other=0.0)
        # By name: whether a compiler makes a product and a sum one operation may depend on the launch.
        out_NC = tl.fma(window_NC.to(tl.float32), weight_C[None, :], out_NC)
    if HAS_BIAS:
        out_NC += tl.load(bias_ptr + c, mask=is_real_C, other=0.0)[None, :]
    return out_NC


@triton.jit(do_not_specialize=["first"])
def _single(
    x_ptr, weight_ptr, bias_ptr, state_ptr, out_ptr, tokens_ptr, places_ptr, first,
    x_token, state_place, channels, dilation, before,
    WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_TOKENS: tl.constexpr, BLOCK_U: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    # Axis 0: blocks of channels; 1: single tokens. Those that are nobody's, in a captured step, share a place that is nobody's.
    single = tl.program_id(1)
    token = first + single
    if HAS_TOKENS:
        token = tl.load(tokens_ptr + single)
    token = token.to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    state_ptr += tl.load(places_ptr + single).to(tl.int64) * state_place
    at = token + tl.arange(0, 1)
    out_1C = _sum(
        x_ptr, weight_ptr, bias_ptr, state_ptr, at, token, token + 1, c, x_token, channels, dilation, before,
        WIDTH, HAS_BIAS,
    )  # fmt: skip
    u = tl.arange(0, BLOCK_U)
    at = token + 1 - before + u
    state_UC = _window(x_ptr, state_ptr, at, token, token + 1, c, x_token, channels, before)
    # All is read before anything is written.
    tl.debug_barrier()
    tl.store(out_ptr + token * channels + c[None, :], out_1C, mask=(c < channels)[None, :])
    is_real_UC = (u < before)[:, None] & (c < channels)[None, :]
    tl.store(state_ptr + u[:, None] * channels + c[None, :], state_UC, mask=is_real_UC)


@triton.jit(do_not_specialize=["runs", "sequences"])
def _convolve(
    x_ptr, weight_ptr, bias_ptr, state_ptr, out_ptr, runs_ptr, sequences_ptr, runs, sequences,
    x_token, state_place, channels, dilation, before,
    WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    # Axis 0: blocks of channels; 1: blocks of a sequence's tokens; 2: sequences.
    sequence = tl.program_id(2)
    place = tl.load(sequences_ptr + sequence).to(tl.int64)
    begin = tl.load(runs_ptr + tl.load(sequences_ptr + sequences + sequence))
    end = tl.load(runs_ptr + runs + tl.load(sequences_ptr + 2 * sequences + sequence) - 1)
    at = begin + tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    out_TC = _sum(
        x_ptr, weight_ptr, bias_ptr, state_ptr + place * state_place, at, begin, end, c, x_token, channels, dilation, before,
        WIDTH, HAS_BIAS,
    )  # fmt: skip
    is_real_TC = (at < end)[:, None] & (c < channels)[None, :]
    tl.store(out_ptr + at.to(tl.int64)[:, None] * channels + c[None, :], out_TC, mask=is_real_TC)


@triton.jit(do_not_specialize=["runs", "sequences"])
def _keep(
    x_ptr, state_ptr, runs_ptr, sequences_ptr, runs, sequences, x_token, state_place, channels, before,
    BLOCK_U: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    # Axis 0: blocks of channels; 1: sequences. Copies come first: they may have to read the state in front of all runs.
    sequence = tl.program_id(1)
    place = tl.load(sequences_ptr + sequence).to(tl.int64)
    first_run = tl.load(sequences_ptr + sequences + sequence)
    behind_runs = tl.load(sequences_ptr + 2 * sequences + sequence)
    begin = tl.load(runs_ptr + first_run)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    u = tl.arange(0, BLOCK_U)
    at_UC = u[:, None] * channels + c[None, :]
    is_real_UC = (u < before)[:, None] & (c < channels)[None, :]
    for run in range(first_run, behind_runs):
        end = tl.load(runs_ptr + runs + run)
        save = tl.load(runs_ptr + 2 * runs + run).to(tl.int64)
        if save >= 0:
            saved_UC = _window(
                x_ptr,
                state_ptr + place * state_place,
                end - before + u,
                begin,
                end,
                c,
                x_token,
                channels,
                before,
            )
            tl.store(state_ptr + save * state_place + at_UC, saved_UC, mask=is_real_UC)
    end = tl.load(runs_ptr + runs + behind_runs - 1)
    state_UC = _window(
        x_ptr, state_ptr + place * state_place, end - before + u, begin, end, c, x_token, channels, before
    )
    # All is read before anything is written.
    tl.debug_barrier()
    tl.store(state_ptr + place * state_place + at_UC, state_UC, mask=is_real_UC)


def _error(
    defined: Callable[..., Tensor],
    width: int,
    channels: int,
    has_bias: bool,
    dilation: int,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    device: torch.device,
) -> float:
    """Of two runs, one of which is copied, and three single tokens."""
    drawn = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn).to(device)

    inputs = (normal(78, channels).to(dtype), normal(width, channels), normal(channels) if has_bias else None)
    state_PUC = normal(6, dilation * (width - 1), channels).to(state_dtype)
    step = StateMetadata(torch.tensor([2, 0, 1], device=device), [Run(3, 73, 3, 5), Run(73, 78, 4)])
    wanted_PUC = state_PUC.clone()
    wanted = defined(*inputs, wanted_PUC, step, dilation)
    ours = causal_conv(*inputs, state_PUC, step, dilation)
    return max(relative_error(ours, wanted), relative_error(state_PUC, wanted_PUC))
