"""What the largest step takes beside weights and cache, roughly and upwards. Asked by Prepare, and by the doctor of models that are not loaded:
of the CPU engine, of torch, and of GPUs where a kernel attends to the cache's pages.

What is planned here and not taken is missing in the cache, and what is taken and not planned here ends the worker: each term names what
holds it. Must not import torch, but for a GPU.
"""

from typing import Any

import penstock_kernels as ops
from penstock.engine.tables import BLOCK_SIZE, divide
from penstock.models.config import DecoderConfig, HeadBlockIndexConfig
from penstock.models.model import ModelConfig

# Of the CPU engine: keys and queries of a part of attention, and bytes that a thread computes in.
SPLIT, TILE, SCRATCH = 256, 16, 1 << 20

# Prompt positions whose logits exist at once, when their log probabilities are wanted.
PROMPT_LOGITS_AT_ONCE = 64

# Logits of which bias, penalties, masks and truncation are computed at once, by device, unless one row has more: what is made of them on the
# way is so many times as large. A GPU is launched less often.
CHOSEN_AT_ONCE = {"cpu": 1 << 21}
CHOSEN_AT_ONCE_ELSEWHERE = 1 << 22
# Bytes of what exists at once of such a logit: most of all where typical-p sorts, with the numbers of the tokens in int64.
CHOSEN_BYTES = 80

# What libraries of products keep for each stream that they have seen, on the GPU where it is most; streams of a worker: steps', and two of
# those that record graphs.
LIBRARY_BYTES, STREAMS = 32 << 20, 3


def rows_at_once(device: Any, vocab_size: int) -> int:
    """Rows of logits of which tokens are chosen together."""
    return max(CHOSEN_AT_ONCE.get(device.type, CHOSEN_AT_ONCE_ELSEWHERE) // vocab_size, 1)


def engine_working_bytes(
    config: ModelConfig,
    threads: int,
    max_slots: int,
    max_step_tokens: int,
    longest: int,
) -> int:
    """The same of the CPU engine, before there is a program that could be asked (`NativeModel.workspace_bytes`)."""
    tokens, rows = min(max_step_tokens, max_slots * longest), max(max_slots, PROMPT_LOGITS_AT_ONCE)
    # Of long sequences every thread has parts, whose results are put together (`Program::part_count`).
    key_heads = 1 if isinstance(config, DecoderConfig) and config.latents else config.kv_heads
    divided = threads + 2 * key_heads if threads > 1 and config.heads // key_heads <= TILE else 0
    parts = divided * (longest // SPLIT + 2) * TILE * (config.head_dim + 2)
    # And where key heads choose for themselves what they attend to, the scores of two tokens a thread.
    chooses = isinstance(config, DecoderConfig) and isinstance(config.index, HeadBlockIndexConfig)
    scores = 2 * threads * key_heads * (longest + SPLIT) if chooses else 0
    rotary = longest * config.head_dim * max(len(config.windows), 1)
    logits = 4 * rows * config.vocab_size
    return 4 * (tokens * _numbers_of_a_token(config) + parts + scores + rotary + logits) + threads * SCRATCH


def torch_step_bytes(
    config: ModelConfig,
    dtype: Any,
    device: Any,
    exact: bool,
    ranks: int,
    max_slots: int,
    max_step_tokens: int,
    longest: int,
    max_step_drafts: int,
) -> int:
    """Of a model that torch runs, on a rank of `ranks`. `exact`: with --deterministic."""
    limits = (max_slots, max_step_tokens, longest, max_step_drafts)
    if device.type != "cuda":
        return working_bytes(config, dtype, device, *limits)
    from penstock.engine.device_pages import reads_pages
    from penstock_kernels.gpu.choice import has_kernels

    if reads_pages(config, device, exact):
        return sum(kernel_step_terms(config, dtype, device, ranks, *limits).values())
    needed = working_bytes(config, dtype, device, *limits) + LIBRARY_BYTES * STREAMS
    if not exact and has_kernels(device):  # experts' do not need the one that attends
        needed += _experts_bytes(config, dtype.itemsize, max_step_tokens)
    return needed


def working_bytes(
    config: ModelConfig,
    dtype: Any,
    device: Any,
    max_slots: int,
    max_step_tokens: int,
    longest: int,
    max_step_drafts: int = 0,
) -> int:
    """Of a model whose attention gathers keys and values, as torch computes it."""
    tokens = min(max_step_tokens, max_slots * longest)
    per_token = _numbers_of_a_token(config)
    # Queries and results of attention as rectangles, in float64 at most.
    attended = 4 * 8 * config.heads * config.head_dim
    # Of each key of each sequence: its row in the cache and whether it is seen, in every view, of this step and of the
    # last one; and what these are made of. Sequences may share their keys, but not this.
    gathered = config.gathered_keys(longest)
    keys = min(max_slots + max_step_drafts, tokens) * (gathered * 9 // 8 + 32)
    # Windows and tables through which layers look at the cache; of an encoder-decoder, at either side's keys.
    views = 2 if config.has_encoder else len(config.windows) * divide(config.layer_windows, longest).count
    views = max(views, len(config.compressions))
    numbers = keys * (2 * views * (8 + 4) + 4 * 8)
    if config.has_encoder:  # biases by distance, for every head
        numbers += keys * (8 + 8 * config.heads)
    key_heads, key_size = config.key_shape
    attention = 0
    if config.windows:
        attention = ops.workspace_bytes(
            device,
            config.heads,
            key_heads,
            key_size,
            gathered,
            has_score_modifiers=not config.simple_attention,
        )
    itemsize: int = dtype.itemsize
    # As it is in the state, behind one another, and once more where that is copied.
    past = 3 * min(max_slots, tokens) * config.past_numbers * itemsize
    needed = tokens * (per_token * itemsize + attended) + numbers + attention + past + _pairs_bytes(config)
    if device.type == "cpu":
        # Logits, and what sampling makes of them in four steps: pages that nobody has used are not taken.
        return needed + 4 * 4 * min(max_slots + max_step_drafts, tokens) * config.vocab_size
    sampling = sum(_sampling_terms(config, itemsize, device, max_slots, max_step_drafts).values())
    return needed + sampling + _positions_bytes(config, itemsize, longest)


def kernel_step_terms(
    config: ModelConfig,
    dtype: Any,
    device: Any,
    ranks: int,
    max_slots: int,
    max_step_tokens: int,
    longest: int,
    max_step_drafts: int,
) -> dict[str, int]:
    """Of a model whose attention is the kernel that reads pages where they are (`device_pages.reads_pages`): bytes by what holds them. No key
    but those of long prompts is gathered, and nothing is made of each key of each row.
    """
    from penstock.engine.attention_metadata import LONG_PROMPT
    from penstock_kernels.gpu.choice import may_record_graphs

    tokens = min(max_step_tokens, max_slots * longest)
    itemsize: int = dtype.itemsize
    terms = _sampling_terms(config, itemsize, device, max_slots, max_step_drafts)
    terms["activations"] = tokens * _activation_bytes(config, itemsize)
    terms["experts"] = _experts_bytes(config, itemsize, tokens)
    rows = min(max_slots + max_step_drafts, tokens)
    terms["split keys"] = _split_bytes(config, itemsize, rows)
    key_heads, key_size = config.key_shape
    if config.simple_attention and tokens >= LONG_PROMPT:
        # They begin at 0, and are fed in this step.
        terms["long prompts"] = ops.workspace_bytes(
            device,
            config.heads,
            key_heads,
            key_size,
            min(longest, tokens),
            has_score_modifiers=False,
            most_keys=tokens,
            widest=4,
        )
    blocks = -(-(longest + 1) // BLOCK_SIZE)
    terms["page tables"] = 4 * divide(config.layer_windows, longest).count * (max_slots + 1) * blocks
    terms["positions"] = _positions_bytes(config, itemsize, longest)
    terms["recurrence"] = _pairs_bytes(config)
    terms["libraries"] = LIBRARY_BYTES * STREAMS
    if ranks == 1 and may_record_graphs() and isinstance(config, DecoderConfig):
        terms |= _graph_terms(config, itemsize, max_slots, tokens, max_step_drafts)
    return terms


def _graph_terms(
    config: ModelConfig, itemsize: int, max_slots: int, max_step_tokens: int, max_step_drafts: int
) -> dict[str, int]:
    """What graphs keep to themselves (`step_graphs`): the largest of each pool's, and every one's hidden states."""
    from penstock.engine.step_graphs import mixed_sizes, sizes

    decodes = sizes(max_slots)
    singles = max_slots + max_step_drafts
    mixed = [] if config.has_state else mixed_sizes(singles, max_step_tokens, max_step_drafts > 0)

    def pool(shapes: list[int], singles: int) -> int:
        most = max(shapes, default=0)
        forward = most * _activation_bytes(config, itemsize) + _experts_bytes(config, itemsize, most)
        kept = sum(shapes) * (config.residual_width * itemsize + 8)
        return forward + kept + _split_bytes(config, itemsize, min(singles, most))

    # Logits as the head gives them, and behind them those that are over their temperature and those that truncation keeps.
    choices = max(decodes) * config.vocab_size * (itemsize + 4 + 4)
    return {
        "graphs of decodes": pool(decodes, max(decodes)) + choices,
        "mixed graphs": pool([sum(shape) for shape in mixed], max((one for one, _ in mixed), default=0)),
    }


def _sampling_terms(
    config: ModelConfig, itemsize: int, device: Any, max_slots: int, max_step_drafts: int
) -> dict[str, int]:
    """What logits take, and tokens' counts and choice (`sampling`)."""
    vocabulary = config.vocab_size
    held = max(max_slots + max_step_drafts, PROMPT_LOGITS_AT_ONCE)
    at_once = min(held, rows_at_once(device, vocabulary))
    return {
        "head": held * vocabulary * itemsize,  # logits as it gives them
        "logits": 4 * held * vocabulary,
        "log probabilities": 4 * held * vocabulary,
        "counts": 2 * 4 * max_slots * vocabulary,  # of prompt and output, of slots with penalties
        "choice": CHOSEN_BYTES * at_once * vocabulary,
    }


def _activation_bytes(config: ModelConfig, itemsize: int) -> int:
    """Of a token, where a kernel attends; with queries and results of what torch attends to beside it, which it puts in another order."""
    return (_numbers_of_a_token(config) + 4 * config.heads * config.head_dim) * itemsize


def _experts_bytes(config: ModelConfig, itemsize: int, tokens: int) -> int:
    """Of mixtures of experts (`gpu/experts.py`): what the experts of so many tokens make, at most."""
    from penstock_kernels.gpu.experts import MOST_ROWS, MOST_ROWS_OF_EXPERT

    most = 0
    for layer in config.layers if isinstance(config, DecoderConfig) else ():
        experts = layer.experts
        if experts is None:
            continue
        width = experts.latent or config.width
        at_once = max(MOST_ROWS, MOST_ROWS_OF_EXPERT * experts.count)
        pairs = min(tokens * experts.routing.per_token, at_once)
        # Gates and what they open, what is made of these, and what each expert gives; what it reads, where that was weighed before.
        numbers = 3 * experts.width + (2 if experts.weighs_input else 1) * width
        if experts.clamp is not None:
            numbers += 2 * experts.width
        most = max(
            most, (pairs * numbers + 2 * tokens * width + 3 * tokens * experts.shared_width) * itemsize
        )
    return most


def _split_bytes(config: ModelConfig, itemsize: int, decodes: int) -> int:
    """Parts of decodes whose keys are divided over several programs."""
    from penstock_kernels.gpu.attention import split_bytes

    shapes = {(config.heads, *config.key_shape, 0)}
    if isinstance(config, DecoderConfig):
        layers = [at for at, layer in enumerate(config.layers) if layer.attends]
        if config.latents:
            ranks = [latent for at in layers if (latent := config.latent_of(at)) is not None]
            shapes = {(config.heads, 1, one.rank + one.rope_dim, one.rank) for one in ranks}
        else:
            shapes = {
                (config.heads_of(at), config.kv_heads_of(at), config.head_dim_of(at), 0) for at in layers
            }
    return max((split_bytes(decodes, *shape, is_long=itemsize > 2) for shape in shapes), default=0)


def _positions_bytes(config: ModelConfig, itemsize: int, longest: int) -> int:
    """Rotary tables, and linear biases, of every position."""
    rotary = sum(2 * rope.head_dim for rope in config.ropes) * (longest + BLOCK_SIZE) * itemsize
    biases = 0
    if isinstance(config, DecoderConfig) and config.slopes:
        biases = 4 * config.heads * (longest * 9 // 8 + 64)
    return rotary + biases


def _pairs_bytes(config: ModelConfig) -> int:
    """Of pairs of tokens, or of a token's parts in every number of a state: a few hundred tokens at once."""
    return config.mixer_width * 6 * ops.TOKENS_AT_ONCE * 4


def _numbers_of_a_token(config: ModelConfig) -> int:
    """What a step keeps of each of its tokens at once, roughly and upwards."""
    return (
        3 * config.width
        # What is made of several residual streams, some of it in fp32.
        + 12 * (config.residual_width - config.width)
        + 3 * config.feed_forward
        + 4 * (config.heads + 2 * config.kv_heads) * config.head_dim
        # What recurrent layers make, some of it in fp32.
        + 3 * config.mixer_width
    )
