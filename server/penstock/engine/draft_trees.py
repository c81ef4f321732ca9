"""Drafts that are a tree: which path each one ends, and where the cache has that path.

Made once for a plan by `penstock.engine.slots`, which checks it. What a row feeds is in the cache in the order of its tokens, and
its positions are depths: so on a path the token at depth 2 may be the fourth of its row. Attention reads a path through
`moved`, in the order of its positions, as if it were a text; once a path is accepted, the engine moves it there.
"""

from dataclasses import dataclass

import numpy as np

from penstock.engine.columns import I64, Bools

# Drafts of the longest path of a tree: the CPU engine has room to bring so many into the order of their positions.
LONGEST_PATH = 64


@dataclass(frozen=True, slots=True)
class DraftTrees:
    """Of a plan in which the drafts of some row are no chain. D drafts, row by row, each with its number in its row from 1 on."""

    are_trees_R: Bools
    deepest_R: I64  # drafts of the longest path of each row
    rows_D: I64
    numbers_D: I64
    parents_D: I64  # the number of the draft before; 0: the token before all drafts
    depths_D: I64
    # (row, number, depth, number of the draft at that depth): of each draft of a tree the drafts on its path, itself among them,
    # whose number is not their depth.
    moved_M4: I64


def draft_trees(drafts_R: I64, parents_D: I64) -> DraftTrees | None:
    """Of rows with so many drafts each, whose parents come before them. None: all are chains."""
    rows_D = np.repeat(np.arange(len(drafts_R)), drafts_R)
    firsts_R = np.cumsum(drafts_R) - drafts_R
    numbers_D = np.arange(len(rows_D)) - firsts_R[rows_D] + 1
    behind = parents_D != numbers_D - 1
    if not behind.any():
        return None
    are_trees_R = np.zeros(len(drafts_R), np.bool_)
    are_trees_R[rows_D[behind]] = True
    moved: list[tuple[int, int, int, int]] = []
    paths: list[tuple[int, ...]] = []
    of_draft = zip(rows_D.tolist(), numbers_D.tolist(), parents_D.tolist(), strict=True)
    for at, (row, number, parent) in enumerate(of_draft):
        path = (*(paths[at - number + parent] if parent else ()), number)
        paths.append(path)
        moved.extend((row, number, depth, other) for depth, other in enumerate(path, 1) if depth != other)
    depths_D = np.array([len(path) for path in paths], np.int64)
    deepest_R = np.zeros(len(drafts_R), np.int64)
    np.maximum.at(deepest_R, rows_D, depths_D)
    moved_M4 = np.array(moved, np.int64).reshape(-1, 4)
    return DraftTrees(are_trees_R, deepest_R, rows_D, numbers_D, parents_D, depths_D, moved_M4)
