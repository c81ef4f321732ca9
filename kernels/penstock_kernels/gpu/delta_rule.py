"""Delta rules on a GPU: what `penstock_kernels.delta_rule` defines, which comes here. `takes` looks at the kernels once in each process
before they are used (`first_use`).

A warp holds some columns of a head's state in registers and walks over all tokens of a sequence: one launch for the runs of a step, one
for its single tokens. Token by token is less work than chunks are, whose products pay where tensor cores compute them, and these do not
multiply fp32 numbers as they are. It is also more exact, and a prompt's tokens are computed as decodes are. All in fp32.

Letters beside those of the package: V numbers of a value (not the vocabulary), P places of states, S single tokens.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.gpu.first_use import agrees, relative_error
from penstock_kernels.recurrence import Run, StateMetadata

# Numbers of a key: a power of two, so that a program has all of them.
LEAST_NUMBERS, MOST_NUMBERS = 16, 256
# Numbers of a value that a program has: the fewest, until there are more programs than an H200 has room for at once; then so many, of keys
# of up to 128 numbers. As measured there.
FEWEST_V, WALKED_V, SINGLE_V, PROGRAMS = 8, 16, 32, 600


def takes(
    defined: Callable[..., Tensor], q_THD: Tensor, v_THV: Tensor, decay: Tensor, state_PHDV: Tensor
) -> bool:
    """Whether the kernels are for these shapes, and give what the definition gives of a small input of them."""
    _, heads, size = q_THD.shape
    is_power = size & (size - 1) == 0 and LEAST_NUMBERS <= size <= MOST_NUMBERS
    is_fp32 = all(x.dtype == torch.float32 for x in (q_THD, v_THV, decay, state_PHDV))
    if not is_power or not is_fp32 or not state_PHDV[0].is_contiguous():
        return False
    shape = (heads, size, v_THV.shape[-1], decay.dim() == 3)
    return agrees("delta_rule", shape, lambda: _error(defined, *shape, q_THD.device))


def delta_rule(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THV: Tensor,
    decay: Tensor,
    beta_TH: Tensor,
    state_PHDV: Tensor,
    states: StateMetadata,
    programs: int | None = None,
) -> Tensor:
    """See `delta_rule.gated_delta_rule`, of decays (T, H), and `channel_delta_rule`, of decays (T, H, D). Each state is contiguous.

    `programs`: in place of PROGRAMS.
    """
    most_programs = PROGRAMS if programs is None else programs
    q_THD, k_THD, v_THV = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_THD, k_THD, v_THV))
    out_THV = torch.empty(v_THV.shape, dtype=v_THV.dtype, device=v_THV.device)
    _, heads, size, values = state_PHDV.shape
    tensors = (q_THD, k_THD, v_THV, decay.contiguous(), beta_TH.contiguous(), state_PHDV, out_THV)
    strides = (*q_THD.stride()[:2], *k_THD.stride()[:2], *v_THV.stride()[:2], state_PHDV.stride(0))
    constants = {"CHANNELS": decay.dim() == 3, "D": size, "num_warps": 1}

    def block_of(sequences: int, most: int) -> int:
        if -(-values // FEWEST_V) * heads * sequences <= most_programs:
            return FEWEST_V
        return max(most * 128 // max(size, 128), FEWEST_V)  # registers have no room for more

    for turn in states.in_turns():
        first = turn.tokens.start if isinstance(turn.tokens, slice) else None
        tokens = turn.places_S if isinstance(turn.tokens, slice) else turn.tokens
        block_v = block_of(len(turn.places_S), SINGLE_V)
        _single[-(-values // block_v), heads, len(turn.places_S)](
            *tensors, tokens, turn.places_S, first or 0, *strides, heads, values,
            HAS_TOKENS=first is None, BLOCK_V=block_v, **constants,
        )  # fmt: skip
        turn.copy(state_PHDV)
    if states.runs:
        runs_3R, sequences_3N, _, _ = states.run_columns(q_THD.device)
        runs, sequences = runs_3R.shape[1], sequences_3N.shape[1]
        block_v = block_of(sequences, WALKED_V)
        _walk[-(-values // block_v), heads, sequences](
            *tensors, runs_3R, sequences_3N, *strides, heads, values, runs, sequences, BLOCK_V=block_v, **constants
        )  # fmt: skip
    return out_THV


@triton.jit
def _read(
    q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, token, head, heads, d, v, is_real_V,
    q_token, q_head, k_token, k_head, v_token, v_head, CHANNELS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """What a head has of a token: query, key, value, what is left of its state or of each of its channels, and beta."""
    token = token.to(tl.int64)
    number = token * heads + head
    q_D = tl.load(q_ptr + token * q_token + head * q_head + d)
    k_D = tl.load(k_ptr + token * k_token + head * k_head + d)
    v_V = tl.load(v_ptr + token * v_token + head * v_head + v, mask=is_real_V, other=0.0)
    decay = tl.load(decay_ptr + (number * D + d if CHANNELS else number))
    beta = tl.load(beta_ptr + number)
    return q_D, k_D, v_V, tl.exp(decay), beta


@triton.jit
def _advance(state_DV, q_D, k_D, v_V, kept, beta, CHANNELS: tl.constexpr):
    """A token: the state behind it, and what it gives. Both sums are of what is left of the state before it: neither waits for the other."""
    state_DV = state_DV * (kept[:, None] if CHANNELS else kept)
    known_V = tl.sum(k_D[:, None] * state_DV, 0)
    old_V = tl.sum(q_D[:, None] * state_DV, 0)
    new_V = (v_V - known_V) * beta
    state_DV = state_DV + k_D[:, None] * new_V[None, :]
    return state_DV, old_V + tl.sum(q_D * k_D, 0) * new_V


@triton.jit(do_not_specialize=["first"])
def _single(
    q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, state_ptr, out_ptr, tokens_ptr, places_ptr, first,
    q_token, q_head, k_token, k_head, v_token, v_head, state_place, heads, values,
    HAS_TOKENS: tl.constexpr, CHANNELS: tl.constexpr, D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    # Axis 0: blocks of a value; 1: heads; 2: single tokens. Those that are nobody's, in a captured step, share a place that is nobody's.
    head, single = tl.program_id(1), tl.program_id(2)
    token = first + single
    if HAS_TOKENS:
        token = tl.load(tokens_ptr + single)
    place = tl.load(places_ptr + single).to(tl.int64)
    d = tl.arange(0, D)
    v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    is_real_V = v < values
    at_DV = head * D * values + d[:, None] * values + v[None, :]
    is_real_DV = (d < D)[:, None] & is_real_V[None, :]
    state_DV = tl.load(state_ptr + place * state_place + at_DV, mask=is_real_DV, other=0.0)
    q_D, k_D, v_V, kept, beta = _read(
        q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, token, head, heads, d, v, is_real_V,
        q_token, q_head, k_token, k_head, v_token, v_head, CHANNELS, D,
    )  # fmt: skip
    state_DV, out_V = _advance(state_DV, q_D, k_D, v_V, kept, beta, CHANNELS)
    tl.store(state_ptr + place * state_place + at_DV, state_DV, mask=is_real_DV)
    tl.store(out_ptr + (token.to(tl.int64) * heads + head) * values + v, out_V, mask=is_real_V)


@triton.jit(do_not_specialize=["runs", "sequences"])
def _walk(
    q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, state_ptr, out_ptr, runs_ptr, sequences_ptr,
    q_token, q_head, k_token, k_head, v_token, v_head, state_place, heads, values, runs, sequences,
    CHANNELS: tl.constexpr, D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    # Axis 0: blocks of a value; 1: heads; 2: sequences, each of one or more runs.
    head, sequence = tl.program_id(1), tl.program_id(2)
    d = tl.arange(0, D)
    v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    is_real_V = v < values
    place = tl.load(sequences_ptr + sequence).to(tl.int64)
    first_run = tl.load(sequences_ptr + sequences + sequence)
    behind_runs = tl.load(sequences_ptr + 2 * sequences + sequence)
    at_DV = head * D * values + d[:, None] * values + v[None, :]
    is_real_DV = (d < D)[:, None] & is_real_V[None, :]
    state_DV = tl.load(state_ptr + place * state_place + at_DV, mask=is_real_DV, other=0.0)
    for run in range(first_run, behind_runs):
        begin = tl.load(runs_ptr + run)
        end = tl.load(runs_ptr + runs + run)
        save = tl.load(runs_ptr + 2 * runs + run).to(tl.int64)
        q_D, k_D, v_V, kept, beta = _read(
            q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, begin, head, heads, d, v, is_real_V,
            q_token, q_head, k_token, k_head, v_token, v_head, CHANNELS, D,
        )  # fmt: skip
        out_V_ptr = out_ptr + (begin.to(tl.int64) * heads + head) * values + v
        for token in range(begin, end):
            # The next token is on its way while this one is computed. Behind the last one it is read again.
            next_q_D, next_k_D, next_v_V, next_kept, next_beta = _read(
                q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, tl.minimum(token + 1, end - 1), head, heads, d, v, is_real_V,
                q_token, q_head, k_token, k_head, v_token, v_head, CHANNELS, D,
            )  # fmt: skip
            state_DV, out_V = _advance(state_DV, q_D, k_D, v_V, kept, beta, CHANNELS)
            tl.store(out_V_ptr, out_V, mask=is_real_V)
            out_V_ptr += heads * values
            q_D, k_D, v_V, kept, beta = next_q_D, next_k_D, next_v_V, next_kept, next_beta
        if save >= 0:
            tl.store(state_ptr + save * state_place + at_DV, state_DV, mask=is_real_DV)
    tl.store(state_ptr + place * state_place + at_DV, state_DV, mask=is_real_DV)


def _error(
    defined: Callable[..., Tensor],
    heads: int,
    size: int,
    values: int,
    has_channels: bool,
    device: torch.device,
) -> float:
    """Of two runs, one of which is copied, and three single tokens, by programs with few and with many numbers of a value."""
    drawn = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn).to(device)

    tokens = 3 + 70 + 5
    q_THD, k_THD = (torch.nn.functional.normalize(normal(tokens, heads, size), dim=-1) for _ in range(2))
    decay = -0.1 * normal(tokens, heads, *[size] * has_channels).exp()
    inputs = (q_THD, k_THD, normal(tokens, heads, values), decay, normal(tokens, heads).sigmoid())
    state_PHDV = normal(6, heads, size, values)
    places_S = torch.tensor([2, 0, 1], device=device)
    step = StateMetadata(places_S, [Run(3, 73, 3, 5), Run(73, 78, 4)])
    wanted_PHDV = state_PHDV.clone()
    wanted = defined(*inputs, wanted_PHDV, step)
    errors = []
    for programs in (0, 1 << 31):
        our_PHDV = state_PHDV.clone()
        ours = delta_rule(*inputs, our_PHDV, step, programs)
        errors += [relative_error(ours, wanted), relative_error(our_PHDV, wanted_PHDV)]
    return max(errors)
