"""An encoder beside a program's body: attention of an input's tokens to all of it, of a decoder's tokens to what an encoder has read, and
what is added to scores by distance, as the torch operations define them; and the same however a token is computed.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock_kernels.program import (
    PAGE_TOKENS,
    TILE_INPUTS,
    TILE_OUTPUTS,
    CacheFormat,
    Kind,
    Layout,
    Operation,
    Program,
    Sees,
    Values,
    rounded_up,
)
from test_cpu_engine import LONGEST, SETS, TorchProgram, close, packed, random

HEADS, SIZE, FURTHEST = 3, 24, 40
INNER = HEADS * SIZE
SCALE = 0.3
TABLE = random(200, 3 * INNER, scale=1.5).bfloat16()
# By how far a key is behind its query; and by how far it is before that.
BOTH, BEFORE = random(HEADS, 2 * FURTHEST + 1, seed=1), random(HEADS, FURTHEST + 1, seed=2)
FORMATS = [CacheFormat.BF16, CacheFormat.INT8]


def biases(numbers_HN: Tensor, offset: int) -> dict[str, Any]:
    edges = (numbers_HN[:, :1].expand(-1, 16), numbers_HN, numbers_HN[:, -1:].expand(-1, 16))
    return {"positions": torch.cat(edges, 1).contiguous(), "columns": numbers_HN.shape[1], "offset": offset}


class Two:
    """An encoder of one layer, whose queries, keys and values are a token's numbers, and a decoder that attends to itself and to those keys."""

    def __init__(self, name: str, threads: int = 2, format: CacheFormat = CacheFormat.BF16) -> None:
        program = self.program = Program()
        x = program.buffer("x", Layout.F32, 3 * INNER)
        queries = program.buffer("queries", Layout.QUERIES, INNER)
        kv = program.buffer("keys and values", Layout.F32, 2 * INNER)
        asked = program.buffer("asked", Layout.F32, INNER)
        self.read_by, self.own, self.across = (
            program.buffer(each, Layout.BF16, INNER) for each in ("read", "own", "across")
        )
        embed: dict[str, Any] = {"columns": 3 * INNER, "weight": packed(TABLE)}
        heads: dict[str, Any] = {"heads": HEADS, "kv_heads": HEADS, "head_dim": SIZE}
        program.encoder += [
            Operation(Kind.EMBED, -1, x, **embed),
            Operation(Kind.WRITE_KV, x, queries, **heads),
            Operation(
                Kind.ATTENTION,
                queries,
                self.read_by,
                **heads,
                scale=SCALE,
                sees=Sees.ROW,
                **biases(BOTH, FURTHEST),
            ),
            Operation(Kind.NORM, x, kv, source_at=INNER, columns=2 * INNER),
            Operation(Kind.WRITE_KV, kv, queries, **heads, values=Values.ALONE),
        ]
        program.body += [
            Operation(Kind.EMBED, -1, x, **embed),
            Operation(Kind.WRITE_KV, x, queries, **heads),
            Operation(
                Kind.ATTENTION, queries, self.own, **heads, scale=SCALE, **biases(BEFORE.flip(1), FURTHEST)
            ),
            Operation(Kind.NORM, x, asked, columns=INNER),
            Operation(Kind.WRITE_KV, asked, queries, **heads, values=Values.NONE),
            Operation(Kind.ATTENTION, queries, self.across, **heads, scale=SCALE, sees=Sees.READ),
        ]
        self.made = TorchProgram(program, name, threads)
        self.made.reserve(700, 8, 2 * LONGEST)
        held = rounded_up(SIZE, TILE_INPUTS) + rounded_up(SIZE, TILE_OUTPUTS)
        if format != CacheFormat.BF16:
            held = held // 2 + 4
        blocks = 2 * LONGEST // PAGE_TOKENS
        # Nothing in the pages is a number.
        self.cache = torch.full((8 * blocks * PAGE_TOKENS, HEADS * held), -1, dtype=torch.int16)
        self.made.set_cache(0, self.cache.view(torch.bfloat16), 0, format)
        self.pages = np.arange(8 * blocks).reshape(1, 8, blocks)[:, :, ::-1].copy()
        self.encoded = np.zeros(8, np.int64)

    def read(self, inputs: dict[int, list[int]]) -> Tensor:
        """What attention gives for the inputs of some slots, one after the other."""
        slots, counts = np.array(list(inputs)), np.array([len(one) for one in inputs.values()])
        self.encoded[slots] = counts
        ids = np.array([token for one in inputs.values() for token in one])
        self.made.read(ids, slots, counts, self.pages)
        return self.made.rows(self.read_by, len(ids)).clone()

    def say(self, rows: dict[int, tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
        """The same for what the decoders of some slots say from a position of theirs on, of themselves and across."""
        slots = np.array(list(rows))
        begins = -(-self.encoded[slots] // PAGE_TOKENS) * PAGE_TOKENS
        ids = np.array([token for said, _ in rows.values() for token in said])
        counts = np.array([len(said) for said, _ in rows.values()])
        first = begins + np.array([at for _, at in rows.values()])
        self.made.step(ids, slots, first, counts, self.pages, encoded_S=self.encoded)
        return tuple(self.made.rows(each, len(ids)).clone() for each in (self.own, self.across))  # type: ignore[return-value]


def tokens(count: int, step: int = 7) -> list[int]:
    return [(step * i * i + i + 3) % len(TABLE) for i in range(count)]


def numbers(ids: list[int]) -> Tensor:
    """(T, 3 H, D): queries, keys and values."""
    return TABLE[ids].float().view(len(ids), 3 * HEADS, SIZE)


def read_exactly(ids: list[int]) -> Tensor:
    qkv, out = numbers(ids), torch.empty(len(ids), HEADS, SIZE)
    offsets = torch.arange(1 - len(ids), len(ids)).clamp(-FURTHEST, FURTHEST) + FURTHEST
    ops.bidirectional_attention(qkv, [len(ids)], SCALE, BOTH[:, offsets], out)
    return out.flatten(1)


def said_exactly(read: list[int], said: list[int]) -> tuple[Tensor, Tensor]:
    """Of a decoder's tokens among themselves, and to what an encoder has read."""
    qkv = numbers(said)
    count = len(said)
    at = torch.arange(count)
    distances = (at[:, None] - at).flatten()
    hidden = torch.zeros(1, 1, count, count).masked_fill_(at[:, None] < at, -torch.inf)
    own = ops.Rectangle(1, count, count, None, None, at, hidden, distances.clamp(min=0))
    across = ops.Rectangle(1, count, len(read), None, None, torch.arange(len(read)), None, None)
    made = []
    for rectangle, keys, bias in ((own, said, BEFORE), (across, read, None)):
        out = torch.empty(count, HEADS, SIZE)
        mask = ops.score_mask(rectangle, bias)
        ops.rectangle_attention(qkv[:, :HEADS], numbers(keys)[:, HEADS:], rectangle, mask, SCALE, out)
        made.append(out.flatten(1))
    return made[0], made[1]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", SETS)
def test_what_tokens_see_is_as_torch_defines_it(name: str, format: CacheFormat) -> None:
    two = Two(name, format=format)
    ulps = 1.0 if format == CacheFormat.BF16 else 5.0
    inputs = {slot: tokens(count, 3 + slot) for slot, count in enumerate((5, 1, 16, 33, 300))}
    close(two.read(inputs), torch.cat([read_exactly(one) for one in inputs.values()]), ulps)
    said = {slot: tokens(count, 11 + slot) for slot, count in enumerate((1, 20, 3, 260, 40))}
    own, across = two.say({slot: (one, 0) for slot, one in said.items()})
    exact = [said_exactly(inputs[slot], one) for slot, one in said.items()]
    close(own, torch.cat([one for one, _ in exact]), ulps)
    close(across, torch.cat([one for _, one in exact]), ulps)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", SETS)
def test_a_token_is_the_same_beside_others_in_pieces_and_with_any_threads(
    name: str, format: CacheFormat
) -> None:
    """Contexts of several splits, which few rows divide over threads."""
    read, said = tokens(600), tokens(300, 5)
    alone = Two(name, 1, format)
    exact_read = alone.read({0: read})
    exact = alone.say({0: (said, 0)})
    two = Two(name, 3, format)
    beside = two.read({3: tokens(20, 9), 5: read, 1: tokens(17, 2)})
    assert torch.equal(beside[20:620], exact_read)
    assert torch.equal(Two(name, 3, format).read({2: read}), exact_read)
    done = 0
    for turn, count in enumerate((1, 1, 14, 100, 1, 150, *[1] * 33)):
        rows = {5: (said[done : done + count], done)}
        if turn % 3:
            rows |= {3: (tokens(9, turn), done), 1: (tokens(1, turn), done)}
        for ours, whole in zip(two.say(rows), exact, strict=True):
            assert torch.equal(ours[:count], whole[done : done + count])
        done += count
    assert done == 300


@pytest.mark.parametrize("name", SETS[:1])
def test_what_contradicts_an_encoder_is_refused(name: str) -> None:
    two = Two(name)
    two.read({0: tokens(20)})
    with pytest.raises(RuntimeError, match="a row of a decoder before its part of the sequence"):
        two.say({0: (tokens(2), -1)})
    with pytest.raises(RuntimeError, match="a row of a decoder before its part of the sequence"):
        two.say({1: (tokens(2), 0)})  # whose encoder has read nothing
    one = np.zeros(1, np.int64)
    with pytest.raises(RuntimeError, match="a step that does not say what encoders have read"):
        two.made.step(one, one, one, one + 1, two.pages)
    with pytest.raises(RuntimeError, match="an input of what has no encoder"):
        alone = Program(two.program.buffers, two.program.body[:3])
        TorchProgram(alone, name, 1).read(one, one, one + 1, two.pages)
    for part in ("encoder", "body"):
        wrong = Program(two.program.buffers, list(two.program.body), [], list(two.program.encoder))
        (attends,) = [at for at in getattr(wrong, part) if at.kind == Kind.ATTENTION][:1]
        operation = Operation(**{**vars(attends), "sees": Sees.ROW if part == "body" else Sees.READ})
        getattr(wrong, part).append(operation)
        with pytest.raises(ValueError, match="attention to what its tokens do not see"):
            TorchProgram(wrong, name, 1)
