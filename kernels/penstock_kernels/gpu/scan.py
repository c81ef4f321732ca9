"""Recurrences of single numbers on a GPU: what `penstock_kernels.scan` defines, which comes here. `takes` looks at the kernels once in each
process before they are used (`first_use`). They have not run on a GPU yet: in Triton's interpreter, and compiled to machine code.

A warp holds the states of some channels in registers and walks over all tokens of a sequence: one launch for the runs of a step, one for
each turn of its single tokens. Both are the same code, products and sums apart and in one order, with blocks whose size depends on the model
alone: results depend neither on where a prompt is cut nor on what else is in a step. All in fp32.

Letters beside those of the package: I channels, M numbers of a channel's state, P places of states.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.gpu.first_use import agrees, relative_error
from penstock_kernels.recurrence import NO_EXPONENT, Run, StateMetadata

# Numbers of states that a program has, by reasoning (not measured): a walk takes as long as one token does, times tokens, so that programs are
# small and many. Of Mamba's states (8,192 channels of 16) each thread has 8, and one sequence is 512 warps, a warp for each of the 528
# schedulers of an H100 or H200. Of the others, which have one to three numbers of 2,048 to 5,120 channels, each thread has a channel: fewer for
# a warp would read less than the 128 bytes at once that memory gives.
NUMBERS, CHANNELS = 256, 32
MOST_M = 256  # of which a program has one channel
# Tokens that are on their way while one is computed, and that one: memory takes several times as long as a token does.
STAGES = 4
_NO_EXPONENT = tl.constexpr(NO_EXPONENT)


def takes(operation: str, defined: Callable[..., Tensor], state_P: Tensor, *inputs: Tensor) -> bool:
    """Whether the kernel of this name is for these shapes, and gives what the definition gives of a small input of them."""
    is_fp32 = all(x.dtype == torch.float32 for x in (state_P, *inputs))
    if not is_fp32 or not state_P[0].is_contiguous():
        return False
    if operation == "selective_scan" and state_P.shape[2] > MOST_M:
        return False
    shape = tuple(state_P.shape[1:])
    return agrees(operation, shape, lambda: _error(operation, defined, shape, state_P.device))


def selective_scan(
    x_TI: Tensor,
    rate_TI: Tensor,
    a_IM: Tensor,
    b_TM: Tensor,
    c_TM: Tensor,
    state_PIM: Tensor,
    states: StateMetadata,
) -> Tensor:
    """See `scan.selective_scan`. Each state is contiguous."""
    numbers = state_PIM.shape[2]
    block_m = triton.next_power_of_2(numbers)
    sizes = {"numbers": numbers, "BLOCK_M": block_m, "BLOCK_I": max(NUMBERS // block_m, 1)}
    return _launch(_selective_scan, (x_TI, rate_TI, b_TM, c_TM), (a_IM,), state_PIM, states, sizes)


def linear_recurrence(kept_TI: Tensor, added_TI: Tensor, state_PI: Tensor, states: StateMetadata) -> Tensor:
    """See `scan.linear_recurrence`. Each state is contiguous."""
    return _launch(_linear_recurrence, (added_TI, kept_TI), (), state_PI, states, {"BLOCK_I": CHANNELS})


def weighted_key_values(
    k_TI: Tensor, v_TI: Tensor, decay_I: Tensor, first_I: Tensor, state_P3I: Tensor, states: StateMetadata
) -> Tensor:
    """See `scan.weighted_key_values`. Each state is contiguous."""
    of_model = (decay_I, first_I)
    return _launch(_weighted_key_values, (k_TI, v_TI), of_model, state_P3I, states, {"BLOCK_I": CHANNELS})


def _launch(
    kernel: Any,
    of_tokens: tuple[Tensor, ...],
    of_model: tuple[Tensor, ...],
    state_P: Tensor,
    states: StateMetadata,
    sizes: dict[str, int],
) -> Tensor:
    """Single tokens, then runs. The first of `of_tokens` (T, ...) has the result's shape."""
    of_tokens = tuple(x if x.stride(1) == 1 else x.contiguous() for x in of_tokens)
    tokens, channels = of_tokens[0].shape
    out_TI = torch.empty((tokens, channels), dtype=torch.float32, device=state_P.device)
    tensors = (*of_tokens, *(x.contiguous() for x in of_model), state_P, out_TI)
    strides = (*(x.stride(0) for x in of_tokens), state_P.stride(0), channels)
    blocks = triton.cdiv(channels, sizes["BLOCK_I"])
    options: dict[str, Any] = {**sizes, "num_warps": 1, "enable_fp_fusion": False}
    for turn in states.in_turns():
        listed, first = (None, turn.tokens.start) if isinstance(turn.tokens, slice) else (turn.tokens, 0)
        kernel[blocks, len(turn.places_S)](
            *tensors, listed, turn.places_S, first, 0, *strides, IS_WALK=False, STAGES=1, **options
        )
        turn.copy(state_P)
    if states.runs:
        runs_3R, sequences_3N, _, _ = states.run_columns(state_P.device)
        runs, sequences = runs_3R.shape[1], sequences_3N.shape[1]
        kernel[blocks, sequences](
            *tensors, runs_3R, sequences_3N, runs, sequences, *strides, IS_WALK=True, STAGES=STAGES, **options
        )
    return out_TI


@triton.jit
def _of_sequence(sequences_ptr, sequence, sequences, IS_WALK: tl.constexpr):
    """The place of its state, its first run and the one behind its last. A single token is a run; those that are nobody's, in a captured
    step, share a place that is nobody's.
    """
    place = tl.load(sequences_ptr + sequence).to(tl.int64)
    first_run, behind_runs = sequence, sequence + 1
    if IS_WALK:
        first_run = tl.load(sequences_ptr + sequences + sequence)
        behind_runs = tl.load(sequences_ptr + 2 * sequences + sequence)
    return place, first_run, behind_runs


@triton.jit
def _of_run(runs_ptr, run, runs, IS_WALK: tl.constexpr):
    """Its begin, and its tokens. `runs`: how many; of single tokens the first, where they are not listed."""
    if IS_WALK:
        begin = tl.load(runs_ptr + run)
        tokens = tl.load(runs_ptr + runs + run) - begin
    else:
        begin = runs + run if runs_ptr is None else tl.load(runs_ptr + run)
        tokens = 1
    return begin.to(tl.int64), tokens


@triton.jit(do_not_specialize=["runs", "sequences"])
def _selective_scan(
    x_ptr, rate_ptr, b_ptr, c_ptr, a_ptr, state_ptr, out_ptr, runs_ptr, sequences_ptr, runs, sequences,
    x_token, rate_token, b_token, c_token, state_place, channels, numbers,
    IS_WALK: tl.constexpr, STAGES: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    # Axis 0: blocks of channels; 1: sequences, or single tokens.
    i, m = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_M)
    is_real_I, is_real_M = i < channels, m < numbers
    at_IM = i[:, None] * numbers + m[None, :]
    is_real_IM = is_real_I[:, None] & is_real_M[None, :]
    a_IM = tl.load(a_ptr + at_IM, mask=is_real_IM, other=0.0)
    place, first_run, behind_runs = _of_sequence(sequences_ptr, tl.program_id(1), sequences, IS_WALK)
    state_IM = tl.load(state_ptr + place * state_place + at_IM, mask=is_real_IM, other=0.0)
    for run in range(first_run, behind_runs):
        begin, tokens = _of_run(runs_ptr, run, runs, IS_WALK)
        x_I_ptr, rate_I_ptr = x_ptr + begin * x_token + i, rate_ptr + begin * rate_token + i
        b_M_ptr, c_M_ptr = b_ptr + begin * b_token + m, c_ptr + begin * c_token + m
        out_I_ptr = out_ptr + begin * channels + i
        for _token in tl.range(0, tokens, num_stages=STAGES):
            x_I = tl.load(x_I_ptr, mask=is_real_I, other=0.0)
            rate_I = tl.load(rate_I_ptr, mask=is_real_I, other=0.0)
            b_M = tl.load(b_M_ptr, mask=is_real_M, other=0.0)
            c_M = tl.load(c_M_ptr, mask=is_real_M, other=0.0)
            kept_IM = tl.exp(rate_I[:, None] * a_IM)
            state_IM = state_IM * kept_IM + (rate_I * x_I)[:, None] * b_M[None, :]
            tl.store(out_I_ptr, tl.sum(state_IM * c_M[None, :], 1), mask=is_real_I)
            x_I_ptr += x_token
            rate_I_ptr += rate_token
            b_M_ptr += b_token
            c_M_ptr += c_token
            out_I_ptr += channels
        if IS_WALK:
            save = tl.load(runs_ptr + 2 * runs + run).to(tl.int64)
            if save >= 0:
                tl.store(state_ptr + save * state_place + at_IM, state_IM, mask=is_real_IM)
    tl.store(state_ptr + place * state_place + at_IM, state_IM, mask=is_real_IM)


@triton.jit(do_not_specialize=["runs", "sequences"])
def _linear_recurrence(
    added_ptr, kept_ptr, state_ptr, out_ptr, runs_ptr, sequences_ptr, runs, sequences,
    added_token, kept_token, state_place, channels,
    IS_WALK: tl.constexpr, STAGES: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    # Axis 0: blocks of channels; 1: sequences, or single tokens.
    i = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    is_real_I = i < channels
    place, first_run, behind_runs = _of_sequence(sequences_ptr, tl.program_id(1), sequences, IS_WALK)
    state_I = tl.load(state_ptr + place * state_place + i, mask=is_real_I, other=0.0)
    for run in range(first_run, behind_runs):
        begin, tokens = _of_run(runs_ptr, run, runs, IS_WALK)
        added_I_ptr, kept_I_ptr = added_ptr + begin * added_token + i, kept_ptr + begin * kept_token + i
        out_I_ptr = out_ptr + begin * channels + i
        for _token in tl.range(0, tokens, num_stages=STAGES):
            kept_I = tl.load(kept_I_ptr, mask=is_real_I, other=0.0)
            added_I = tl.load(added_I_ptr, mask=is_real_I, other=0.0)
            state_I = state_I * kept_I + added_I
            tl.store(out_I_ptr, state_I, mask=is_real_I)
            added_I_ptr += added_token
            kept_I_ptr += kept_token
            out_I_ptr += channels
        if IS_WALK:
            save = tl.load(runs_ptr + 2 * runs + run).to(tl.int64)
            if save >= 0:
                tl.store(state_ptr + save * state_place + i, state_I, mask=is_real_I)
    tl.store(state_ptr + place * state_place + i, state_I, mask=is_real_I)


@triton.jit
def _weights(exponent_I, k_I):
    """Of what was and of the key, and the exponent that they are relative to."""
    most_I = tl.maximum(exponent_I, k_I)
    return tl.exp(exponent_I - most_I), tl.exp(k_I - most_I), most_I


@triton.jit
def _store_sums(state_ptr, place, state_place, i, channels, values_I, weights_I, exponent_I):
    """RWKV's state of these channels."""
    at_I_ptr = state_ptr + place * state_place + i
    tl.store(at_I_ptr, values_I, mask=i < channels)
    tl.store(at_I_ptr + channels, weights_I, mask=i < channels)
    tl.store(at_I_ptr + 2 * channels, exponent_I, mask=i < channels)


@triton.jit(do_not_specialize=["runs", "sequences"])
def _weighted_key_values(
    k_ptr, v_ptr, decay_ptr, first_ptr, state_ptr, out_ptr, runs_ptr, sequences_ptr, runs, sequences,
    k_token, v_token, state_place, channels,
    IS_WALK: tl.constexpr, STAGES: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    # Axis 0: blocks of channels; 1: sequences, or single tokens.
    i = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    is_real_I = i < channels
    decay_I = tl.load(decay_ptr + i, mask=is_real_I, other=0.0)
    first_I = tl.load(first_ptr + i, mask=is_real_I, other=0.0)
    place, first_run, behind_runs = _of_sequence(sequences_ptr, tl.program_id(1), sequences, IS_WALK)
    state_I_ptr = state_ptr + place * state_place + i
    values_I = tl.load(state_I_ptr, mask=is_real_I, other=0.0)
    weights_I = tl.load(state_I_ptr + channels, mask=is_real_I, other=0.0)
    exponent_I = tl.load(state_I_ptr + 2 * channels, mask=is_real_I, other=0.0)
    exponent_I = tl.where(weights_I > 0, exponent_I, _NO_EXPONENT)
    for run in range(first_run, behind_runs):
        begin, tokens = _of_run(runs_ptr, run, runs, IS_WALK)
        k_I_ptr, v_I_ptr = k_ptr + begin * k_token + i, v_ptr + begin * v_token + i
        out_I_ptr = out_ptr + begin * channels + i
        for _token in tl.range(0, tokens, num_stages=STAGES):
            k_I = tl.load(k_I_ptr, mask=is_real_I, other=0.0)
            v_I = tl.load(v_I_ptr, mask=is_real_I, other=0.0)
            old_I, new_I, _ = _weights(exponent_I, k_I + first_I)
            out_I = (old_I * values_I + new_I * v_I) / (old_I * weights_I + new_I)
            old_I, new_I, exponent_I = _weights(exponent_I + decay_I, k_I)
            values_I = values_I * old_I + new_I * v_I
            weights_I = weights_I * old_I + new_I
            tl.store(out_I_ptr, out_I, mask=is_real_I)
            k_I_ptr += k_token
            v_I_ptr += v_token
            out_I_ptr += channels
        if IS_WALK:
            save = tl.load(runs_ptr + 2 * runs + run).to(tl.int64)
            if save >= 0:
                _store_sums(state_ptr, save, state_place, i, channels, values_I, weights_I, exponent_I)
    _store_sums(state_ptr, place, state_place, i, channels, values_I, weights_I, exponent_I)


def _error(
    operation: str, defined: Callable[..., Tensor], shape: tuple[int, ...], device: torch.device
) -> float:
    """Of two runs, one of which is copied, and three single tokens; one of either begins a sequence."""
    drawn = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn).to(device)

    tokens = 3 + 70 + 5
    channels = shape[-1]
    inputs: tuple[Tensor, ...]
    if operation == "selective_scan":
        channels, numbers = shape
        rate_TI = torch.nn.functional.softplus(normal(tokens, channels))
        a_IM = -normal(channels, numbers).exp()
        inputs = (normal(tokens, channels), rate_TI, a_IM, normal(tokens, numbers), normal(tokens, numbers))
    elif operation == "linear_recurrence":
        inputs = (normal(tokens, channels).sigmoid(), normal(tokens, channels))
    else:
        inputs = (
            4 * normal(tokens, channels),
            normal(tokens, channels),
            -normal(channels).exp(),
            normal(channels),
        )
    state_P = normal(6, *shape)
    state_P[1] = state_P[4] = 0
    step = StateMetadata(torch.tensor([2, 0, 1], device=device), [Run(3, 73, 3, 5), Run(73, 78, 4)])
    our_P, wanted_P = state_P.clone(), state_P.clone()
    wanted = defined(*inputs, wanted_P, step)
    kernels: dict[str, Callable[..., Tensor]] = {
        "selective_scan": selective_scan,
        "linear_recurrence": linear_recurrence,
        "weighted_key_values": weighted_key_values,
    }
    ours = kernels[operation](*inputs, our_P, step)
    return max(relative_error(ours, wanted), relative_error(our_P, wanted_P))
