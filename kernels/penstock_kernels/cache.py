"""The paged key/value cache of one layer."""

from penstock_kernels.gpu.choice import usable
from penstock_kernels.later import Tensor
from penstock_kernels.rotary import rope


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


def rope_and_write(
    heads_THD: Tensor,
    queries: int,
    cos_T1D: Tensor,
    sin_T1D: Tensor,
    cache_NJD: Tensor,
    slot_mapping_T: Tensor,
) -> None:
    """`rope` of the query and key heads, then `write_kv` of key and value heads.

    heads (T, H, D): the query heads, K key heads and K value heads, then what stays as it is; numbers of a head are neighbours,
    here and in the cache. Keys may stay unturned where they were. cache (N, J, D), J = 2 K; the rest as in `rope` and `write_kv`.
    """
    if usable(heads_THD):
        from penstock_kernels.gpu import elementwise

        elementwise.rope_and_write(heads_THD, queries, cos_T1D, sin_T1D, cache_NJD, slot_mapping_T)
        return
    kept = cache_NJD.shape[1]
    rope(heads_THD[:, : queries + kept // 2], cos_T1D, sin_T1D)
    write_kv(heads_THD[:, queries : queries + kept], cache_NJD, slot_mapping_T)
