"""What steps may ask for beside a greedy token, asked for once before a server is ready: on a GPU kernels are compiled and loaded at first
use, which takes from milliseconds to seconds, and would take them from whoever is served then.

Called by Prepare. What is computed is forgotten.
"""

from dataclasses import replace

import numpy as np

from penstock.engine.columns import U8, U32
from penstock.engine.engine import Engine
from penstock.engine.plan import (
    CONTINUE,
    MASKED,
    NO_SNAPSHOT,
    OF_WORDS,
    PROMPT_LOGPROBS,
    SAMPLE,
    START,
    MaskColumns,
    Plan,
    Starts,
    greedy_starts,
)

PROMPT = 4
# Tokens of the sequences that are made up: a prompt, decodes and a draft.
TOKENS = 16

NONE = np.zeros(0, np.uint32)


def warm_up(engine: Engine) -> None:
    """Of an engine that has allocated. Sequences shorter than these, and encoder-decoders, are not worth it."""
    limits = engine.limits
    if engine.has_encoder or min(limits.max_step_tokens, limits.max_sequence_tokens) < TOKENS:
        return
    everything = _starts(
        engine,
        temperatures=0.8,
        top_ks=40,
        top_ps=0.9,
        min_ps=0.05,
        typical_ps=0.9,
        repetition_penalties=1.1,
        frequency_penalties=0.1,
        presence_penalties=0.1,
        top_tokens=2,
    )
    usual = _starts(engine, temperatures=0.8, top_ps=0.9)
    words = np.full(-(-limits.vocab_size // 32), 0xFFFFFFFF, np.uint32)
    masks = MaskColumns(np.array([OF_WORDS], np.uint32), words)
    for starts in (everything, usual):
        engine.clear()
        engine.step(_begin(engine, starts))
        engine.step(_go_on(2, PROMPT, SAMPLE))
        engine.step(_go_on(3, PROMPT + 1, SAMPLE | MASKED), masks)
        if limits.max_step_drafts:
            engine.step(_go_on(4, PROMPT + 2, SAMPLE, drafts=1))
    engine.clear()


def _starts(engine: Engine, **sampling: float) -> Starts:
    starts = greedy_starts(1)
    columns = {name: np.full(1, value, getattr(starts, name).dtype) for name, value in sampling.items()}
    if engine.limits.has_state:
        columns["state_sources"] = np.full(1, NO_SNAPSHOT, np.uint32)
    if engine.limits.adapters:
        columns["adapters"] = np.zeros(1, np.uint32)
    return replace(starts, **columns)


def _begin(engine: Engine, starts: Starts) -> Plan:
    tables = engine.limits.tables.count
    blocks = -(-TOKENS // engine.limits.block_size)
    pages = np.arange(blocks * tables, dtype=np.uint32) % max(engine.limits.pages, 1)
    flags: U8 = np.full(1, START | SAMPLE | PROMPT_LOGPROBS, np.uint8)
    tokens: U32 = np.zeros(PROMPT, np.uint32)
    slot = np.zeros(1, np.int64)
    return Plan(
        1, NONE, slot, flags, slot, np.full(1, PROMPT), tokens, np.full(1, blocks), pages, tokens, starts
    )


def _go_on(number: int, position: int, flags: int, drafts: int = 0) -> Plan:
    slot = np.zeros(1, np.int64)
    plan = Plan(
        number,
        NONE,
        slot,
        np.full(1, CONTINUE | flags, np.uint8),
        np.full(1, position),
        np.full(1, 1 + drafts),
        np.zeros(drafts, np.uint32),
        np.zeros(1, np.int64),
        NONE,
        NONE,
        None,
    )
    if drafts:
        plan.drafts = np.full(1, drafts)
    return plan
