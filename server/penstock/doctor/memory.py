"""How many sequences of which length this machine's memory has room for, by the rules by which a worker sizes its cache.

Asked by the examination once it knows what weights, caches and a draft model take. Must not import torch, but for a GPU.
"""

from typing import Any

from penstock.doctor.drafting import Drafting
from penstock.doctor.question import STEP_TOKENS, Question
from penstock.doctor.report import CPU_ENGINE, Fit, Report
from penstock.engine import draft_model
from penstock.engine.cache_groups import cache_groups
from penstock.engine.cache_size import SHORTEST_CONTEXT, count_snapshots, longest_that_fits, spare
from penstock.engine.kv_cache import numbers_of
from penstock.engine.step_memory import engine_working_bytes, torch_step_bytes, working_bytes
from penstock.engine.tables import BLOCK_SIZE, divide
from penstock.errors import TooLittleMemory
from penstock.loading.host import threads_of
from penstock.loading.memory import Room, device_room
from penstock.loading.model_files import gigabytes
from penstock.models.model import ModelConfig

# Drafts of a step on a GPU: what grammars force. Of a model with recurrent layers there are fewer.
STEP_DRAFTS, STEP_DRAFTS_OF_STATES = 64, 16


def memory(
    shape: ModelConfig,
    dtype: Any,
    device: Any,
    question: Question,
    report: Report,
    drafting: Drafting | None = None,
) -> None:
    """How many sequences of which length fit, by the rules by which a worker sizes its cache."""
    count, longest = question.processes, asked_length(shape, question)
    if device.type == "cuda":
        import torch

        room = device_room(device)
        if count > torch.cuda.device_count():
            report.problems.append(
                f"{count} processes (--num-shard, --pipeline-parallel) need a GPU each: there are "
                f"{torch.cuda.device_count()} on this machine"
            )
    else:
        whole = device_room(device)
        room = Room(whole.total // count, whole.free // count)
    held = max(report.weight_bytes_per_shard) + (drafting.weight_bytes if drafting else 0)
    report.memory_bytes, report.free_bytes = room.total * count, room.free * count
    if held > room.free:
        report.problems.append(
            f"the weights take {gigabytes(held)} of each process's memory, and {gigabytes(room.free)} are free"
            if count > 1
            else f"the weights take {gigabytes(held)} of memory, and {gigabytes(room.free)} are free"
        )
        return
    left = Room(room.total, room.free - held)
    state = max(report.state_bytes, default=0)
    largest_row = max(report.kv_bytes_per_token) * BLOCK_SIZE

    def available(context: int) -> int:
        """For caches, where sequences have up to that many tokens."""
        working = step_bytes(shape, dtype, device, context, question, report)
        if drafting is not None:
            limits = step_limits(shape, question)
            working += draft_step_bytes(drafting.shape, dtype, device, limits, context, report)
        return spare(left, device, question.memory_fraction, held, working)

    def sequences(context: int, free: int, longest: int) -> int:
        """Of `context` tokens that `free` bytes hold, where none has more than `longest`."""
        tables = divide(shape.layer_windows, longest)
        page = largest_row * tables.places // max(len(shape.layer_windows), 1)
        page += drafting.page_bytes(tables.full) if drafting else 0
        # One more page holds zeros.
        return max(0, (free - page) // (tables.pages(context) * page + state))

    without_steps = spare(left, device, question.memory_fraction, held, 0)
    served = longest_that_fits(
        SHORTEST_CONTEXT,
        longest,
        lambda context: sequences(context, without_steps, context) > 0,
        lambda context: sequences(context, available(context), context) > 0,
    )
    if drafting is not None and question.longest is None and served > drafting.shape.most_positions:
        report.problems.append(drafting.too_short_for(served))
    report.cache_bytes_per_shard = available(served)
    tables = divide(shape.layer_windows, served)
    group = question.group(0)
    held_layers = len(numbers_of(shape.cached_layers(group)))
    row_bytes = report.kv_bytes_per_token[0] // max(held_layers, 1)
    report.cache_groups = cache_groups(shape, tables, group, row_bytes, dtype.itemsize)
    if state:
        try:
            count_snapshots(state, step_limits(shape, question)[0], report.cache_bytes_per_shard)
        except TooLittleMemory as error:  # only of a server that is not told otherwise
            report.warnings.append(str(error))
    contexts = {longest}
    context = SHORTEST_CONTEXT
    while context < longest:
        contexts.add(context)
        context *= 2
    report.fits = [
        Fit(size, 0 if size > served else sequences(size, report.cache_bytes_per_shard, served))
        for size in sorted(contexts)
    ]
    if report.fits[0].sequences == 0:
        report.problems.append(
            f"memory is too small: {gigabytes(report.cache_bytes_per_shard)} are left for the KV cache, not "
            f"enough for a sequence of {report.fits[0].context} tokens"
        )
    elif served < longest and question.longest is not None:
        report.problems.append(
            f"--max-total-tokens {question.longest}: memory has room for sequences of about {served} tokens"
        )
    elif served < longest:
        report.warnings.append(
            f"a sequence of the whole context ({longest} tokens) does not fit into memory: without --max-total-tokens "
            f"requests of more than about {served} tokens are refused"
        )


def asked_length(shape: ModelConfig, question: Question) -> int:
    """The longest sequence that a server would be prepared for if memory has room for it."""
    longest = question.longest or shape.usual_positions
    return longest if shape.positions_go_on else min(longest, shape.max_positions)


def step_limits(shape: ModelConfig, question: Question) -> tuple[int, int]:
    """Sequences and tokens of a step, as the router asks a worker for them (`prepare_limits`)."""
    tokens = question.step_tokens or STEP_TOKENS
    if question.step_tokens is None and not shape.has_encoder:  # which reads an input in one step
        tokens = min(tokens, asked_length(shape, question))
    return min(question.slots, tokens), tokens


def step_bytes(
    shape: ModelConfig, dtype: Any, device: Any, context: int, question: Question, report: Report
) -> int:
    """What the largest step needs, of sequences that have up to `context` tokens."""
    limits = step_limits(shape, question)
    if report.engine == CPU_ENGINE:
        return engine_working_bytes(shape, threads_of(0), *limits, context)
    drafts = 0
    if device.type == "cuda":
        drafts = STEP_DRAFTS_OF_STATES if shape.has_state else STEP_DRAFTS
    exact, ranks = question.deterministic, question.processes
    return torch_step_bytes(shape, dtype, device, exact, ranks, *limits, context, drafts)


def draft_step_bytes(
    shape: ModelConfig, dtype: Any, device: Any, limits: tuple[int, int], context: int, report: Report
) -> int:
    """The same of a draft model, with the `step_limits` of the model that it drafts for."""
    slots, tokens = limits[0], draft_model.fed_at_once(*limits)
    if report.engine == CPU_ENGINE:
        return engine_working_bytes(shape, threads_of(0), slots, tokens, context)
    return working_bytes(shape, dtype, device, slots, tokens, context)
