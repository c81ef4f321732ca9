"""Operations of the model's forward pass and of sampling, one function each.

Every function here is the definition of its operation, in plain torch, for CPU and CUDA alike. Faster
backends are measured and tested against it. Called by `penstock.layers` and `penstock.engine.sampling`; knows
nothing of requests, slots or checkpoints.

Letters in tensor names: T tokens in the step, S sequences, Q queries of one sequence, L keys of one
sequence, H query heads, K key/value heads, J = 2 K (keys, then values), D head size, E model width, F
feed-forward width, V vocabulary, B blocks, P tokens per block, N = B P cache rows, X experts. Modules say which others
they have.

Operations are imported with the first that is asked for, which starts from the packed cache never do, and torch with the first that is
called (`later`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_kernels.operations import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """An operation, by its name."""
    # Of `from penstock_kernels import program` Python asks first whether there is an attribute. No operation has a module's name.
    if name.startswith("__") or Path(__file__).with_name(f"{name}.py").exists():
        raise AttributeError(name)
    from penstock_kernels import operations

    globals().update({one: getattr(operations, one) for one in operations.__all__})
    if name not in globals():
        raise AttributeError(f"penstock_kernels has no {name}")
    return globals()[name]
