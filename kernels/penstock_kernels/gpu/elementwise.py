"""What lies between a model's matrix products: rotation, gates, norms, and writing keys and values, each in one kernel.

Every number is read and written once; arithmetic is in fp32 and rounded where a result is stored, in places less often than the
definitions round (`rotary`, `activation`, `norm`, `cache`). A row is computed alike however many there are. Strides are in numbers, of
the last dimension 1 (`rope`, `write_kv`: any).
"""

import triton
import triton.language as tl
from torch import Tensor

# Numbers of one program where several heads or a piece of a row are its share.
NUMBERS = 1024


@triton.jit
def _turn(
    x_ptr, cos_ptr, sin_ptr, x_token, x_head, x_number, cos_token, sin_token, heads,
    HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Axis 0: tokens; 1: blocks of heads.
    token = tl.program_id(0).to(tl.int64)
    heads_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    is_real_D = d < HALF
    cos_D = tl.load(cos_ptr + token * cos_token + d, mask=is_real_D, other=0.0).to(tl.float32)
    # The second half: the first is its negative.
    sin_D = tl.load(sin_ptr + token * sin_token + HALF + d, mask=is_real_D, other=0.0).to(tl.float32)
    first_ptr = x_ptr + token * x_token + heads_H[:, None] * x_head + d[None, :] * x_number
    second_ptr = first_ptr + HALF * x_number
    is_real_HD = (heads_H < heads)[:, None] & is_real_D[None, :]
    first_HD = tl.load(first_ptr, mask=is_real_HD, other=0.0).to(tl.float32)
    second_HD = tl.load(second_ptr, mask=is_real_HD, other=0.0).to(tl.float32)
    turned_HD = first_HD * cos_D[None, :] - second_HD * sin_D[None, :]
    tl.store(first_ptr, turned_HD.to(x_ptr.dtype.element_ty), mask=is_real_HD)
    turned_HD = second_HD * cos_D[None, :] + first_HD * sin_D[None, :]
    tl.store(second_ptr, turned_HD.to(x_ptr.dtype.element_ty), mask=is_real_HD)


def rope(x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> None:
    """See `rotary.rope`. cos and sin have neighbouring numbers."""
    tokens, heads, size = x_THD.shape
    half = size // 2
    block_d, block_h = _tile(half, heads)
    _turn[tokens, _pieces(heads, block_h)](
        x_THD, cos_T1D, sin_T1D, *x_THD.stride(), cos_T1D.stride(0), sin_T1D.stride(0), heads,
        HALF=half, BLOCK_H=block_h, BLOCK_D=block_d, num_warps=_warps(block_h * block_d),
    )  # fmt: skip


@triton.jit
def _open(
    x_ptr, out_ptr, x_row, half, limit, alpha, above,
    FUNCTION: tl.constexpr, HAS_LIMIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Axis 0: rows; 1: pieces of a row. What is no number has to stay so: tl.minimum and tl.maximum would lose it.
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_real_F = f < half
    gate_F = tl.load(x_ptr + row * x_row + f, mask=is_real_F, other=0.0).to(tl.float32)
    up_F = tl.load(x_ptr + row * x_row + half + f, mask=is_real_F, other=0.0).to(tl.float32)
    if HAS_LIMIT:
        gate_F = tl.where(gate_F > limit, limit, gate_F)
        up_F = tl.where(up_F > limit, limit, tl.where(up_F < -limit, -limit, up_F))
    if FUNCTION == "sigmoid":
        gate_F = gate_F * tl.sigmoid(alpha * gate_F)
    elif FUNCTION == "gelu":
        gate_F = 0.5 * gate_F * (1.0 + tl.erf(gate_F * 0.7071067811865476))
    elif FUNCTION == "gelu_tanh":
        # (1 + tanh(y)) / 2 = sigmoid(2 y), of y = sqrt(2 / pi) (x + 0.044715 x^3).
        gate_F = gate_F * tl.sigmoid(1.5957691216057308 * (gate_F + 0.044715 * gate_F * gate_F * gate_F))
    else:
        gate_F = tl.where(gate_F < 0.0, 0.0, gate_F)
        if FUNCTION == "relu2":
            gate_F = gate_F * gate_F
    made_F = gate_F * (up_F + above)
    tl.store(out_ptr + row * half + f, made_F.to(out_ptr.dtype.element_ty), mask=is_real_F)


# By names of `activation.ACTIVATIONS`: the function, and alpha of x sigmoid(alpha x).
_FUNCTIONS = {
    "silu": ("sigmoid", 1.0),
    "quick_gelu": ("sigmoid", 1.702),
    "gelu": ("gelu", 0.0),
    "gelu_tanh": ("gelu_tanh", 0.0),
    "relu": ("relu", 0.0),
    "relu2": ("relu2", 0.0),
}


def gated(gate_up_T2F: Tensor, kind: str, limit: float | None = None) -> Tensor:
    """See `activation.gated` and, with a limit, `gated_limited`. `kind` is silu, quick_gelu, gelu, gelu_tanh, relu or relu2."""
    function, alpha = _FUNCTIONS[kind]
    return _opened(gate_up_T2F, function, alpha, 0.0, limit)


def gated_clamped(gate_up_T2F: Tensor, limit: float, alpha: float) -> Tensor:
    """See `activation.gated_clamped`."""
    return _opened(gate_up_T2F, "sigmoid", alpha, 1.0, limit)


def _opened(gate_up_T2F: Tensor, function: str, alpha: float, above: float, limit: float | None) -> Tensor:
    rows, numbers = gate_up_T2F.shape
    half = numbers // 2
    out_TF = gate_up_T2F.new_empty((rows, half))
    block = min(_power(half), NUMBERS)
    _open[rows, _pieces(half, block)](
        gate_up_T2F, out_TF, gate_up_T2F.stride(0), half, 0.0 if limit is None else float(limit), alpha, above,
        FUNCTION=function, HAS_LIMIT=limit is not None, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return out_TF


@triton.jit
def _normalise(
    x_ptr, weight_ptr, out_ptr, x_token, x_head, out_token, out_head, heads, eps,
    SIZE: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Axis 0: tokens; 1: blocks of heads. The result may take x's place: a program reads its rows before it writes them.
    token = tl.program_id(0).to(tl.int64)
    heads_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    is_real_HD = (heads_H < heads)[:, None] & (d < SIZE)[None, :]
    x_HD = tl.load(
        x_ptr + token * x_token + heads_H[:, None] * x_head + d[None, :], mask=is_real_HD, other=0.0
    ).to(tl.float32)
    made_HD = x_HD * tl.rsqrt(tl.sum(x_HD * x_HD, 1) / SIZE + eps)[:, None]
    if HAS_WEIGHT:
        made_HD = made_HD * tl.load(weight_ptr + d, mask=d < SIZE, other=0.0).to(tl.float32)[None, :]
    out_HD = out_ptr + token * out_token + heads_H[:, None] * out_head + d[None, :]
    tl.store(out_HD, made_HD.to(out_ptr.dtype.element_ty), mask=is_real_HD)


def rms_norm(x: Tensor, weight_D: Tensor | None, eps: float) -> Tensor:
    """See `norm.rms_norm`: x (T, D) or (T, H, D). A program holds a whole row."""
    out = x.new_empty(x.shape)
    _normalised(x, weight_D, eps, out)
    return out


def rms_norm_in_place(x: Tensor, weight_D: Tensor | None, eps: float) -> None:
    """See `norm.rms_norm_in_place`: as `rms_norm`."""
    _normalised(x, weight_D, eps, x)


def _normalised(x: Tensor, weight_D: Tensor | None, eps: float, out: Tensor) -> None:
    size = x.shape[-1]
    heads, x_head, out_head = 1, 0, 0
    if x.dim() == 3:
        heads, x_head, out_head = x.shape[1], x.stride(1), out.stride(1)
    block_d, block_h = _tile(size, heads)
    _normalise[x.shape[0], _pieces(heads, block_h)](
        x, x if weight_D is None else weight_D, out, x.stride(0), x_head, out.stride(0), out_head, heads, eps,
        SIZE=size, HAS_WEIGHT=weight_D is not None, BLOCK_H=block_h, BLOCK_D=block_d,
        num_warps=_warps(block_h * block_d),
    )  # fmt: skip


@triton.jit
def _add_and_normalise(
    given_ptr, residual_ptr, weight_ptr, out_ptr, given_token, residual_token, eps,
    SIZE: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    is_real_E = e < SIZE
    given_E = tl.load(given_ptr + token * given_token + e, mask=is_real_E, other=0.0).to(tl.float32)
    residual_E = tl.load(residual_ptr + token * residual_token + e, mask=is_real_E, other=0.0).to(tl.float32)
    # Rounded, as the norm would read it.
    sum_E = (given_E + residual_E).to(given_ptr.dtype.element_ty)
    tl.store(given_ptr + token * given_token + e, sum_E, mask=is_real_E)
    x_E = sum_E.to(tl.float32)
    made_E = x_E * tl.rsqrt(tl.sum(x_E * x_E, 0) / SIZE + eps)
    if HAS_WEIGHT:
        made_E = made_E * tl.load(weight_ptr + e, mask=is_real_E, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * SIZE + e, made_E.to(out_ptr.dtype.element_ty), mask=is_real_E)


def add_rms_norm(
    given_TE: Tensor, residual_TE: Tensor, weight_E: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """See `norm.add_rms_norm`. A program holds a whole row."""
    tokens, size = given_TE.shape
    out_TE = given_TE.new_empty((tokens, size))
    block = _power(size)
    _add_and_normalise[(tokens,)](
        given_TE, residual_TE, given_TE if weight_E is None else weight_E, out_TE,
        given_TE.stride(0), residual_TE.stride(0), eps,
        SIZE=size, HAS_WEIGHT=weight_E is not None, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return given_TE, out_TE


@triton.jit
def _write(
    kv_ptr, cache_ptr, slots_ptr, kv_token, kv_head, kv_number, cache_row, cache_head, cache_number, heads,
    SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Axis 0: tokens; 1: blocks of heads.
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(slots_ptr + token)
    heads_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    is_real_HD = (heads_H < heads)[:, None] & (d < SIZE)[None, :]
    kv_HD = tl.load(
        kv_ptr + token * kv_token + heads_H[:, None] * kv_head + d[None, :] * kv_number, mask=is_real_HD
    )
    cache_HD = cache_ptr + row * cache_row + heads_H[:, None] * cache_head + d[None, :] * cache_number
    tl.store(cache_HD, kv_HD, mask=is_real_HD)


def write_kv(kv_TJD: Tensor, cache_NJD: Tensor, slot_mapping_T: Tensor) -> None:
    """See `cache.write_kv`. The slot mapping's numbers are neighbours."""
    tokens, heads, size = kv_TJD.shape
    block_d, block_h = _tile(size, heads)
    _write[tokens, _pieces(heads, block_h)](
        kv_TJD, cache_NJD, slot_mapping_T, *kv_TJD.stride(), *cache_NJD.stride(), heads,
        SIZE=size, BLOCK_H=block_h, BLOCK_D=block_d, num_warps=_warps(block_h * block_d),
    )  # fmt: skip


@triton.jit
def _turn_and_write(
    x_ptr, cos_ptr, sin_ptr, cache_ptr, slots_ptr, x_token, x_head, cos_token, sin_token, cache_row, cache_head,
    queries, turned, heads,
    HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Axis 0: tokens; 1: blocks of heads. Heads from `queries` on go to the cache, those before `turned` are turned.
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(slots_ptr + token)
    heads_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    is_real_D = d < HALF
    cos_D = tl.load(cos_ptr + token * cos_token + d, mask=is_real_D, other=0.0).to(tl.float32)
    # The second half: the first is its negative.
    sin_D = tl.load(sin_ptr + token * sin_token + HALF + d, mask=is_real_D, other=0.0).to(tl.float32)
    first_ptr = x_ptr + token * x_token + heads_H[:, None] * x_head + d[None, :]
    is_real_HD = (heads_H < heads)[:, None] & is_real_D[None, :]
    first_HD = tl.load(first_ptr, mask=is_real_HD, other=0.0)
    second_HD = tl.load(first_ptr + HALF, mask=is_real_HD, other=0.0)
    long_first_HD, long_second_HD = first_HD.to(tl.float32), second_HD.to(tl.float32)
    first_turned_HD = long_first_HD * cos_D[None, :] - long_second_HD * sin_D[None, :]
    second_turned_HD = long_second_HD * cos_D[None, :] + long_first_HD * sin_D[None, :]
    is_turned_H1 = (heads_H < turned)[:, None]
    first_HD = tl.where(is_turned_H1, first_turned_HD.to(first_HD.dtype), first_HD)
    second_HD = tl.where(is_turned_H1, second_turned_HD.to(second_HD.dtype), second_HD)
    is_query_HD = (heads_H < queries)[:, None] & is_real_HD
    tl.store(first_ptr, first_HD, mask=is_query_HD)
    tl.store(first_ptr + HALF, second_HD, mask=is_query_HD)
    kept_ptr = cache_ptr + row * cache_row + (heads_H - queries)[:, None] * cache_head + d[None, :]
    is_kept_HD = (heads_H >= queries)[:, None] & is_real_HD
    tl.store(kept_ptr, first_HD, mask=is_kept_HD)
    tl.store(kept_ptr + HALF, second_HD, mask=is_kept_HD)


def rope_and_write(
    heads_THD: Tensor,
    queries: int,
    cos_T1D: Tensor,
    sin_T1D: Tensor,
    cache_NJD: Tensor,
    slot_mapping_T: Tensor,
) -> None:
    """See `cache.rope_and_write`. Numbers of a head are neighbours, in the cache as well."""
    tokens, _, size = heads_THD.shape
    kept = cache_NJD.shape[1]
    heads, half = queries + kept, size // 2
    block_d, block_h = _tile(half, heads)
    _turn_and_write[tokens, _pieces(heads, block_h)](
        heads_THD, cos_T1D, sin_T1D, cache_NJD, slot_mapping_T,
        heads_THD.stride(0), heads_THD.stride(1), cos_T1D.stride(0), sin_T1D.stride(0),
        cache_NJD.stride(0), cache_NJD.stride(1), queries, queries + kept // 2, heads,
        HALF=half, BLOCK_H=block_h, BLOCK_D=block_d, num_warps=_warps(block_h * block_d),
    )  # fmt: skip


def _power(numbers: int) -> int:
    """The least power of two that has room for so many."""
    return 1 << max(numbers - 1, 0).bit_length()


def _pieces(numbers: int, block: int) -> int:
    return -(-numbers // block)


def _tile(size: int, heads: int) -> tuple[int, int]:
    """Numbers of a head and heads that one program takes: about `NUMBERS` together, and all numbers of a head."""
    block = _power(size)
    return block, max(min(NUMBERS // block, _power(heads), 8), 1)


def _warps(numbers: int) -> int:
    """Warps of a program with so many numbers: about 8 for each thread, which are 16 bytes in bf16."""
    return max(1, min(numbers // 256, 16))
