"""The numpy arrays that a plan's columns are, and what is made of them on the host. Imports nothing of the engine."""

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
# Any of those that go to a device.
Column = U32 | I32 | I64 | F32 | F64 | Bools
