"""How the CPU engine's pages hold keys and values: what --kv-cache-dtype names. Used by `native`, the engine and the doctor. Must not
import torch.
"""

from penstock_kernels.program import CacheFormat

FORMATS = {
    "auto": CacheFormat.BF16,
    "int8": CacheFormat.INT8,
    "fp8_e4m3fn": CacheFormat.FP8_E4M3,
    "fp8_e5m2": CacheFormat.FP8_E5M2,
}
FLAG = "--kv-cache-dtype"


def held(format: CacheFormat, shape: tuple[int, int]) -> tuple[int, int]:
    """What (J, D) numbers of bf16 become, in numbers of 16 bits: two of 8 bits are one, and a factor in fp32 is two."""
    rows, size = shape
    if format == CacheFormat.BF16:
        return shape
    return rows, -(-size // 2) + (2 if format == CacheFormat.INT8 else 0)
