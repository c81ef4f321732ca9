"""How many pages the KV cache gets, and how long a sequence may be for it. Asked by Prepare and by the doctor.

Never more than the limits can use, and on a CPU the machine keeps room to live.
"""

from collections.abc import Callable
from typing import Any

from penstock.engine.tables import BLOCK_SIZE, Tables
from penstock.errors import TooLittleMemory
from penstock.loading.memory import Room

GIB = 1 << 30

# Snapshots of recurrent states: at most so many for each slot, and of the memory that the slots leave a part (1 / n). A
# prefix that is shared needs one, and so does each answer that a chat goes on from; pages are needed by everybody.
SNAPSHOTS_A_SLOT = 4
SNAPSHOTS_SHARE = 4
# States in front of drafts: at most one for each draft of a step, and this part of the memory.
DRAFTS_SHARE = 8

MOST_PAGES = 1 << 32

# Where nobody says how long a sequence may be, less than this is not worth serving.
SHORTEST_CONTEXT = 1024


def spare(
    room: Room, device: Any, memory_fraction: float, held: int, working: int, neighbours: int = 1
) -> int:
    """Bytes that the cache may take of `room`, when the process holds `held` and a step needs `working`.

    `neighbours` ranks, this one included, share a machine's memory in equal parts.
    """
    share, left = int(room.total * memory_fraction), room.free
    if device.type == "cpu":
        share //= neighbours
        left = (left - max(GIB, room.total // 10)) // neighbours
    share -= held
    return max(min(share, left) - working, 0)


def longest_that_fits(
    shortest: int, longest: int, holds: Callable[[int], bool], fits: Callable[[int], bool]
) -> int:
    """The most tokens that a sequence may have: `longest`, or else what fits, in whole blocks. `shortest` where that is all, or not even that
    fits. `holds` is what `fits` asks of the cache alone, and quickly; what it leaves is found to within a 64th.
    """
    for asked, part in ((holds, None), (fits, 64)):
        if shortest >= longest or asked(longest):
            continue
        below, above = shortest, longest
        while above - below > (max(BLOCK_SIZE, below // part) if part else 1):
            middle = (below + above) // 2
            below, above = (middle, above) if asked(middle) else (below, middle)
        longest = max(below // BLOCK_SIZE * BLOCK_SIZE, shortest)
    return longest


def count_pages(
    page_bytes: int,
    tables: Tables,
    max_slots: int,
    max_sequence_tokens: int,
    max_step_tokens: int,
    max_cache_tokens: int,
    available: int,
    states: int = 0,
) -> int:
    """Pages to allocate, at least one sequence's worth. Raises TooLittleMemory, naming limits and flags. `states`: bytes that
    recurrent states take beside `available`.
    """
    free, less = f"{_mib(available)} are free for it", ""
    if states:
        free, less = f"{free} beside {_mib(states)} of recurrent states", " or --max-batch-size"
    # One more page holds the zeros that padding reads. A stage of a pipeline may have no layer with a cache.
    fits = available // page_bytes - 1 if page_bytes else MOST_PAGES
    sequence = tables.pages(max_sequence_tokens, max_step_tokens)
    if fits < sequence:
        raise TooLittleMemory(
            f"a sequence of {max_sequence_tokens} tokens needs {_mib(sequence * page_bytes)} of KV cache, and "
            f"{free}; lower --max-total-tokens{less}, or raise --memory-fraction"
        )
    if max_cache_tokens == 0:
        return min(fits, max_slots * tables.count * -(-max_sequence_tokens // BLOCK_SIZE))
    wanted = tables.count * -(-max_cache_tokens // BLOCK_SIZE)
    if wanted < sequence:
        raise TooLittleMemory(
            f"a KV cache of {max_cache_tokens} tokens holds no sequence of {max_sequence_tokens}; raise "
            f"--max-batch-total-tokens to {max_sequence_tokens} or more, or lower --max-total-tokens"
        )
    if fits < wanted:
        raise TooLittleMemory(
            f"a KV cache of {max_cache_tokens} tokens needs {_mib(wanted * page_bytes)}, and {free}, "
            f"which hold {fits // tables.count * BLOCK_SIZE} tokens; lower --max-batch-total-tokens{less}"
        )
    return wanted


def count_snapshots(state_bytes: int, max_slots: int, available: int) -> int:
    """Copies of recurrent states to make room for, beside one state for each slot; at least one, which Prepare's own plans
    begin with. Raises TooLittleMemory.
    """
    most = SNAPSHOTS_A_SLOT * max_slots
    if state_bytes == 0:  # the recurrent layers are another stage's
        return most
    left = available - max_slots * state_bytes
    if left < state_bytes:
        raise TooLittleMemory(
            f"the recurrent states of {max_slots} sequences and one copy need {_mib((max_slots + 1) * state_bytes)}, and "
            f"{_mib(available)} are free for them, which hold those of {max(available // state_bytes - 1, 0)}; "
            "lower --max-batch-size"
        )
    return max(min(most, left // SNAPSHOTS_SHARE // state_bytes), 1)


def state_places_bytes(state_bytes: int, max_step_drafts: int, max_slots: int, available: int) -> int:
    """What states take of `available` at most: those of slots, and what `count_snapshots` and `count_draft_states` make room for."""
    slots = max_slots * state_bytes
    left = max(available - slots, 0)
    snapshots = max(min(SNAPSHOTS_A_SLOT * slots, left // SNAPSHOTS_SHARE), state_bytes)
    return slots + snapshots + min(max_step_drafts * state_bytes, left // DRAFTS_SHARE)


def count_draft_states(state_bytes: int, max_step_drafts: int, max_slots: int, available: int) -> int:
    """Places for states in front of drafts, beside one state for each slot; 0: memory has room for none, or no row has drafts."""
    if state_bytes == 0:  # the recurrent layers are another stage's
        return max_step_drafts
    left = max(available - max_slots * state_bytes, 0)
    return min(max_step_drafts, left // DRAFTS_SHARE // state_bytes)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
