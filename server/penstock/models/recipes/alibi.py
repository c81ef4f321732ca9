"""Attention with linear biases: how much less each head attends for every position further back.

Press et al., "Train Short, Test Long", 2022: of 2^n heads, head h of 1, 2, ... has the slope 2^(-8 h / 2^n).
"""


def slopes(heads: int) -> tuple[float, ...]:
    """Of any number of heads: those of the power of two below it, then every other one of the next power."""
    below = 1 << (heads.bit_length() - 1)
    return (*_of_power(below), *_of_power(2 * below)[::2][: heads - below])


def slopes_from_above(heads: int, steepest: float = 8.0) -> tuple[float, ...]:
    """Of any number of heads: those of the power of two that is not below it, the even ones first where it is
    above. `steepest`: the exponent of the last one.
    """
    above = 1 << (heads - 1).bit_length()
    found = _of_power(above, steepest)
    return found if above == heads else (*found[1::2], *found[::2])[:heads]


def _of_power(heads: int, steepest: float = 8.0) -> tuple[float, ...]:
    return tuple(2.0 ** (-steepest * head / heads) for head in range(1, heads + 1))
