"""The paged key/value cache of one layer."""

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import Tensor


def write_kv(kv_TJD: Tensor, cache_NJD: Tensor, slot_mapping_T: Tensor) -> None:
    """Writes each token's keys and values to its row of the cache.

    kv (T, J, D): the K key heads, then the K value heads, any strides; cache (N, J, D), the paged cache
    (B, P, J, D) seen as rows; slot mapping (T,) int64, the row of each token, each at most once. A block's
    tokens are P consecutive rows, so that token p of block b is row b P + p.
    """
    if usable(kv_TJD):
        from penstock_kernels.gpu import elementwise

        elementwise.write_kv(kv_TJD, cache_NJD, slot_mapping_T)
        return
    cache_NJD.index_copy_(0, slot_mapping_T, kv_TJD)
