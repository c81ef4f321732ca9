"""What Python does not say of a processor's memory, asked of the kernel (Linux; elsewhere nothing happens)."""

import ctypes
import mmap

from penstock_kernels.tensors import Tensor

C_LIBRARY = ctypes.CDLL(None, use_errno=True)
MADV_DONTNEED, MADV_HUGEPAGE = 4, 14
HUGE = 2 << 20


def ask_for_huge_pages(fresh: Tensor) -> None:
    """Large memory that nothing has touched shall come in pages of 2 MB: a five-hundredth of the faults, and of what
    the processor has to look up. The kernel may say no.
    """
    begin = -(-fresh.data_ptr() // HUGE) * HUGE
    end = (fresh.data_ptr() + fresh.nbytes) // HUGE * HUGE
    if begin < end:
        _advise(begin, end, MADV_HUGEPAGE)


def let_go(begin: int, end: int) -> None:
    """Takes the pages of a mapped file out of this process's memory. They stay in the system's."""
    _advise(begin // mmap.PAGESIZE * mmap.PAGESIZE, end, MADV_DONTNEED)


def _advise(begin: int, end: int, advice: int) -> None:
    madvise = getattr(C_LIBRARY, "madvise", None)
    if madvise is not None:
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
