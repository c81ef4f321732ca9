"""Whether a model of the fallback computes through our cache what it computes by itself.

Called by `penstock.startup` before a model that runs through transformers is served. Runs real plans on the real
engine: a whole prompt, beside it the same in chunks, a prefix that is found, a decode. A wrong number must never
be served.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from penstock.engine.engine import Engine
from penstock.engine.plan import NO_SNAPSHOT, NO_TARGET, PROMPT_LOGPROBS, SAMPLE, START, Plan, greedy_starts
from penstock.engine.slots import Limits
from penstock.engine.tables import BLOCK_SIZE
from penstock.errors import UnusableModel

# The relative error of a token's logits that rounding may explain. In a short type a mixture of experts may choose
# others in a near-tie, so that there the median counts instead of the worst. What was seen to be wrong (positions that
# are counted otherwise) was 0.4 and more, mixtures of random experts up to 0.15.
LIMITS = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.2}

# (slot, first token, token after the last, new blocks, whether all logits are wanted) of each row of each plan.
Row = tuple[int, int, int, list[int], bool]


def check(engine: Engine) -> None:
    """Of a model that has a reference. Raises UnusableModel unless the engine's logits are the model's own. Leaves the engine as it was,
    but for the reference, which is not needed again."""
    model = engine.model
    reference, model.reference = model.reference, None
    assert reference is not None
    ids_T, wanted_TV = reference.ids_T, reference.logits_TV
    tokens = len(ids_T)
    cut, block = tokens // 3, BLOCK_SIZE
    plans: list[list[Row]] = [
        [(0, 0, tokens, [0, 1], True), (1, 0, cut, [2, 3], False)],
        [(1, cut, tokens - 1, [], False), (2, block, tokens, [0, 4], False)],
        [(1, tokens - 1, tokens, [], False)],
    ]
    tables = engine.tables(tokens)
    engine.allocate(
        Limits(
            max_slots=3,
            max_step_tokens=2 * tokens,
            max_sequence_tokens=tokens,
            pages=5 * tables.count,
            block_size=block,
            tables=tables,
            vocab_size=model.config.vocab_size,
            has_state=model.config.has_state,
            snapshots=int(model.config.has_state),
        )
    )
    found: list[Tensor] = []
    compute = model.logits

    def keep(hidden_SE: Tensor, out_SV: Tensor) -> Tensor:
        logits_SV = compute(hidden_SE, out_SV)
        found.append(logits_SV.clone())
        return out_SV

    model.logits = keep  # type: ignore[method-assign]
    ids = ids_T.cpu().numpy().astype(np.uint32)
    try:
        for number, rows in enumerate(plans, 1):
            plan = _plan(number, rows, ids, tables.count)
            engine.step(_with_state(plan, rows, block) if model.config.has_state else plan)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise UnusableModel(
            f"{reference.name} fails with the paged cache: {' '.join(str(error).split())}"
        ) from error
    model.logits = compute  # type: ignore[method-assign]
    engine.release()
    # What is sampled comes before the prompt's logits.
    positions = [cut - 1, *range(tokens), tokens - 2, tokens - 1, tokens - 1]
    wanted_SV = wanted_TV[positions]
    around_SV = wanted_SV - wanted_SV.mean(-1, keepdim=True)
    errors_S = (torch.cat(found) - wanted_SV).norm(dim=-1) / around_SV.norm(dim=-1)
    in_pieces_S = torch.cat((errors_S[:1], errors_S[-3:]))
    exact = engine.dtype == torch.float32
    worst = max(float(part.max() if exact else part.median()) for part in (errors_S, in_pieces_S))
    if not worst <= LIMITS[engine.dtype]:
        raise UnusableModel(
            f"{reference.name} cannot be served through transformers: with the paged cache its logits are {worst:.1%} "
            f"off its own, of which rounding explains {LIMITS[engine.dtype]:.1%}: something in it needs more than "
            "tokens, positions, keys and values"
        )


def _plan(number: int, rows: list[Row], ids: np.ndarray, tables: int) -> Plan:
    pages = [block * tables + table for *_, new, _ in rows for block in new for table in range(tables)]
    starts = sum(bool(blocks) for *_, blocks, _ in rows)
    return Plan(
        number=number,
        released=np.zeros(0, np.uint32),
        slots=np.array([slot for slot, *_ in rows]),
        flags=np.array(
            [(START if blocks else 0) | (PROMPT_LOGPROBS if all_ else SAMPLE) for *_, blocks, all_ in rows],
            np.uint8,
        ),
        positions=np.array([begin for _, begin, *_ in rows]),
        counts=np.array([end - begin for _, begin, end, *_ in rows]),
        tokens=np.concatenate([ids[begin:end] for _, begin, end, *_ in rows]),
        new_block_counts=np.array([len(blocks) for *_, blocks, _ in rows]),
        new_pages=np.array(pages, np.uint32),
        prompt_targets=np.full(
            sum(end - begin for _, begin, end, _, all_ in rows if all_), NO_TARGET, np.uint32
        ),
        starts=greedy_starts(starts) if starts else None,
    )


def _with_state(plan: Plan, rows: list[Row], block: int) -> Plan:
    """The same of a model with states: the first sequence's after a block is kept, and what begins behind it begins with that."""
    saves = [(at, block, 0) for at, (slot, *_) in enumerate(rows) if slot == 0]
    sources = [0 if begin == block else NO_SNAPSHOT for _, begin, _, new, _ in rows if new]
    starts = plan.starts and replace(plan.starts, state_sources=np.array(sources, np.uint32))
    return replace(plan, saves=np.array(saves, np.int64).reshape(-1, 3), starts=starts)
