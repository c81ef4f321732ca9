"""What the numbers of ggml's blocks stand for: so many numbers of a row with scales of their own. Must not import torch.

Layouts and names are those of llama.cpp's ggml-common.h (`block_q4_K`, ...) and dequantize_row_* of ggml-quants.c. Letters: N blocks, and what is in each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

# Numbers that 4 bits stand for: ggml's kvalues_iq4nl, and twice those of fp4 (e2m1).
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
FP4_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
WHOLE = np.arange(16, dtype=np.float32)


@dataclass(frozen=True)
class Blocks:
    """A type of blocks."""

    numbers: int
    """Of each block."""
    bytes: int
    decode_blocks: Callable[[U8], F32]
    """Of (N, bytes) to (N, numbers)."""

    def decode(self, bytes_RB: U8) -> F32:
        """Rows of whole blocks: (R, I) in fp32."""
        rows = len(bytes_RB)
        made: F32 = self.decode_blocks(np.ascontiguousarray(bytes_RB).reshape(-1, self.bytes)).reshape(
            rows, -1
        )
        return made


def _half(blocks: U8, at: int) -> F32:
    """A number of fp16 of each block: (N, 1)."""
    found: F32 = np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)
    return found


def _nibbles(codes: U8, table: F32) -> F32:
    """Of bytes (..., B) what their lower halves stand for, and behind them the upper ones: (..., 2 B)."""
    both = np.concatenate((codes & 15, codes >> 4), -1)
    found: F32 = np.take(table, both, mode="clip")
    return found


def _bits(codes: U8, count: int) -> U8:
    """The bits of bytes (N, B), the lowest first: (N, 8 B), of which `count` are taken."""
    return np.unpackbits(codes, axis=-1, bitorder="little")[:, :count]


def _q4_0(blocks: U8) -> F32:
    return _nibbles(blocks[:, 2:], WHOLE - 8) * _half(blocks, 0)


def _q4_1(blocks: U8) -> F32:
    return _nibbles(blocks[:, 4:], WHOLE) * _half(blocks, 0) + _half(blocks, 2)


def _fifth(blocks: U8, at: int) -> F32:
    """Numbers of 5 bits, whose fifth ones are four bytes in front of the others."""
    fifth = _bits(blocks[:, at : at + 4], 32).astype(np.float32)
    fifth *= 16
    fifth += _nibbles(blocks[:, at + 4 :], WHOLE)
    return fifth


def _q5_0(blocks: U8) -> F32:
    return (_fifth(blocks, 2) - 16) * _half(blocks, 0)


def _q5_1(blocks: U8) -> F32:
    return _fifth(blocks, 4) * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: U8) -> F32:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _in_groups(numbers: F32, scales_NG: F32, less_NG: F32 | None = None) -> F32:
    """Groups of a block's numbers times their scales, less something."""
    count, groups = scales_NG.shape
    made = numbers.reshape(count, groups, -1)
    made *= scales_NG[:, :, None]
    if less_NG is not None:
        made -= less_NG[:, :, None]
    return made.reshape(count, -1)


def _two_bits(codes: U8) -> U8:
    """Of two halves of 32 bytes (N, 64) four numbers of each byte, one behind the other: (N, 2, 4, 32)."""
    halves = codes.reshape(-1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    made: U8 = halves >> shifts & np.uint8(3)
    return made


def _q2_k(blocks: U8) -> F32:
    scales, d, minimum = blocks[:, :16], _half(blocks, 80), _half(blocks, 82)
    numbers = _two_bits(blocks[:, 16:80]).reshape(-1, 256).astype(np.float32)
    return _in_groups(numbers, d * (scales & 15), minimum * (scales >> 4))


def _q3_k(blocks: U8) -> F32:
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    shifts = np.repeat(np.array([0, 2, 4, 6], np.uint8), 4)
    scales = np.concatenate((low & 15, low >> 4), 1) | (np.tile(high, 4) >> shifts & 3) << 4
    # The third bit of each number; where it is not set, 4 less.
    third = (blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 2, 4, 32)
    numbers = (_two_bits(blocks[:, 32:96]) | third << 2).reshape(-1, 256).astype(np.float32)
    numbers -= 4
    return _in_groups(numbers, _half(blocks, 108) * (scales.astype(np.float32) - 32))


def _scales_k4(packed: U8) -> tuple[U8, U8]:
    """Eight scales and eight minima of 6 bits each, in 12 bytes (get_scale_min_k4)."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, third & 15 | first >> 6 << 4), 1)
    minima = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), 1)
    return scales, minima


def _q4_k(blocks: U8) -> F32:
    scales, minima = _scales_k4(blocks[:, 4:16])
    numbers = _nibbles(blocks[:, 16:].reshape(-1, 4, 32), WHOLE)
    return _in_groups(numbers, _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q5_k(blocks: U8) -> F32:
    scales, minima = _scales_k4(blocks[:, 4:16])
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    numbers = _nibbles(blocks[:, 48:].reshape(-1, 4, 32), WHOLE).reshape(-1, 8, 32)
    numbers += fifth * np.float32(16)
    return _in_groups(numbers, _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q6_k(blocks: U8) -> F32:
    halves = blocks[:, :128].reshape(-1, 2, 64)
    low = np.concatenate((halves & 15, halves >> 4), -1).reshape(-1, 2, 4, 32)
    numbers = (low | _two_bits(blocks[:, 128:192]) << 4).reshape(-1, 256).astype(np.float32)
    numbers -= 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _in_groups(numbers, _half(blocks, 208) * scales)


def _iq4_nl(blocks: U8) -> F32:
    return _nibbles(blocks[:, 2:], IQ4) * _half(blocks, 0)


def _iq4_xs(blocks: U8) -> F32:
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), -1).reshape(-1, 8)
    scales = (low | high.astype(np.uint8) << 4).astype(np.float32) - 32
    return _in_groups(_nibbles(blocks[:, 8:].reshape(-1, 8, 16), IQ4), _half(blocks, 0) * scales)


def _mxfp4(blocks: U8) -> F32:
    # Half of the scale, since the numbers are twice as large.
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128).astype(np.float32)
    return _nibbles(blocks[:, 1:], FP4_TWICE) * scales


BLOCKS = {
    "Q4_0": Blocks(32, 18, _q4_0),
    "Q4_1": Blocks(32, 20, _q4_1),
    "Q5_0": Blocks(32, 22, _q5_0),
    "Q5_1": Blocks(32, 24, _q5_1),
    "Q8_0": Blocks(32, 34, _q8_0),
    "Q2_K": Blocks(256, 84, _q2_k),
    "Q3_K": Blocks(256, 110, _q3_k),
    "Q4_K": Blocks(256, 144, _q4_k),
    "Q5_K": Blocks(256, 176, _q5_k),
    "Q6_K": Blocks(256, 210, _q6_k),
    "IQ4_NL": Blocks(32, 18, _iq4_nl),
    "IQ4_XS": Blocks(256, 136, _iq4_xs),
    "MXFP4": Blocks(32, 17, _mxfp4),
}
"""By ggml's name. Others are refused by theirs."""
