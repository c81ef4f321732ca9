"""Keys and values in 8 bits: what is written, what attention reads of it, and that a token still gets the same however it is computed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from penstock_kernels.program import PAGE_TOKENS, TILE_INPUTS, TILE_OUTPUTS, CacheFormat, Values, rounded_up
from test_cpu_engine import (
    LONGEST,
    SETS,
    Bench,
    attending,
    attends_in_pieces,
    attention_reference,
    close,
    random,
)

OF_8_BITS = [CacheFormat.FP8_E4M3, CacheFormat.FP8_E5M2, CacheFormat.INT8]
FLOATS = {CacheFormat.FP8_E4M3: torch.float8_e4m3fn, CacheFormat.FP8_E5M2: torch.float8_e5m2}


def coded(x: Tensor, format: CacheFormat) -> Tensor:
    """What the cache has of heads (..., D) in bf16."""
    if format == CacheFormat.INT8:
        factors = x.abs().amax(-1, keepdim=True) / 127
        return torch.where(factors > 0, (x / factors).round() * factors, 0.0)
    largest = torch.finfo(FLOATS[format]).max
    return x.clamp(-largest, largest).to(FLOATS[format]).float()


def pages(format: CacheFormat, kv_heads: int, size: int) -> Tensor:
    """Of one layer, as short as they may be; what is in them is no number."""
    numbers = (rounded_up(size, TILE_INPUTS) + rounded_up(size, TILE_OUTPUTS)) // 2
    numbers += 4 if format == CacheFormat.INT8 else 0
    made = torch.full((3 * rounded_up(LONGEST, PAGE_TOKENS), kv_heads * numbers), -1, dtype=torch.int16)
    return made.view(torch.bfloat16)


def caching(
    format: CacheFormat, name: str, table: Tensor, heads: int, kv_heads: int, size: int, **choices: Any
) -> tuple[Bench, int]:
    """`attending` with such a cache."""
    bench, attended = attending(name, table, heads, kv_heads, size, **choices)
    bench.caches[0], bench.cache_format = pages(format, kv_heads, size), format
    return bench, attended


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", OF_8_BITS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(4, 2, 64), (6, 6, 48), (18, 1, 8), (2, 1, 128), (4, 2, 80)]
)
@pytest.mark.parametrize("choices", [{}, {"softcap": 5.0, "window": 40}], ids=str)
def test_attention_is_that_of_what_the_cache_has(
    name: str, format: CacheFormat, heads: int, kv_heads: int, size: int, choices: dict[str, Any]
) -> None:
    """Pieces of a prompt, then decodes, of two sequences of which one is longer than a split."""
    table = random(640, (heads + 2 * kv_heads) * size, scale=1.5)
    bench, attended = caching(format, name, table, heads, kv_heads, size, **choices)
    ids = [list(range(600)), [(11 * i + 5) % 640 for i in range(37)]]
    exact = []
    for tokens in ids:
        q, k, v = torch.split(
            table[tokens].bfloat16().float(), [heads * size, kv_heads * size, kv_heads * size], 1
        )
        k, v = (coded(part.view(len(tokens), kv_heads, size), format).flatten(1) for part in (k, v))
        shape = (heads, kv_heads, size, size**-0.5, choices.get("softcap", 0.0), choices.get("window", 0))
        exact.append(attention_reference(torch.cat((q, k, v), 1), *shape, False))
    attends_in_pieces(bench, attended, ids, exact)


def read_back(name: str, format: CacheFormat, values_TD: Tensor) -> Tensor:
    """What tokens that are alone in their sequences attend to: their own values, as the cache has them."""
    tokens, size = values_TD.shape
    table = torch.cat((torch.zeros(tokens, 2 * size), values_TD), 1)
    bench, attended = caching(format, name, table, 1, 1, size)
    found = []
    for begin in range(0, tokens, 3):  # pages are there for three
        ids = list(range(begin, min(begin + 3, tokens)))
        found.append(bench.run(ids, [1] * len(ids)).rows(attended, len(ids)).clone())
    return torch.cat(found).float()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", FLOATS)
def test_every_number_of_bf16_becomes_the_nearest_code(name: str, format: CacheFormat) -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).float()
    numbers = numbers[
        numbers.isfinite() & ((numbers == 0) | (numbers.abs() >= torch.finfo(torch.float32).tiny))
    ]
    values_TD = numbers[: len(numbers) // 128 * 128].view(-1, 128)
    assert torch.equal(read_back(name, format, values_TD), coded(values_TD, format))


@pytest.mark.parametrize("name", SETS)
def test_int8_has_a_factor_for_each_token(name: str) -> None:
    values_TD = random(64, 128) * torch.logspace(-30, 30, 64)[:, None]
    values_TD[3] = 0
    values_TD[7] = 1e-36
    values_TD = values_TD.bfloat16().float()
    found = read_back(name, CacheFormat.INT8, values_TD)
    assert not found[3].any() and not found[7].any(), "what is too small cannot be told from nothing"
    # Half a step of the token's, and what bf16 rounds of factor and result.
    most = values_TD.abs() * 2**-7 + values_TD.abs().amax(-1, keepdim=True) / 127 * 0.51
    values_TD[7] = 0
    assert ((found - values_TD).abs() <= most).all()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", OF_8_BITS)
@pytest.mark.parametrize("what", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_and_in_its_own_row(name: str, format: CacheFormat, what: float) -> None:
    table = random(64, 8 * 16)
    table[5, -3] = what
    bench, attended = caching(format, name, table, 4, 2, 16)
    got = bench.run([1, 2, 5, 1, 2, 3], [3, 3]).rows(attended, 6)
    assert got[3:].isfinite().all()
    assert not got[2].isfinite().all()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", OF_8_BITS)
def test_a_token_gets_the_same_to_the_last_bit_in_pieces_and_beside_others(
    name: str, format: CacheFormat
) -> None:
    heads, kv_heads, size = 4, 2, 48
    table = random(640, (heads + 2 * kv_heads) * size)
    ids = [(3 * i + 1) % 640 for i in range(600)]
    bench, attended = caching(format, name, table, heads, kv_heads, size)
    bench.threads = 1
    wanted = bench.run(ids).rows(attended, 600).clone()
    bench, attended = caching(format, name, table, heads, kv_heads, size)
    done = 0
    for turn, count in enumerate((1, 2, 13, 16, 17, 200, 33, 256, *[1] * 62)):
        beside = [[(5 * i + row) % 640 for i in range(9)] for row in range(turn % 3)]
        fed = ids[done : done + count] + [token for other in beside for token in other]
        made = bench.run(fed, [count, *map(len, beside)], [done] + [0] * len(beside))
        assert torch.equal(made.rows(attended, count), wanted[done : done + count]), (done, count)
        done += count
    assert done == 600


def test_pages_of_the_wrong_length_or_format_are_refused() -> None:
    bench, _ = caching(CacheFormat.INT8, "generic", random(64, 8 * 64), 4, 2, 64)
    bench.caches[0] = pages(CacheFormat.FP8_E4M3, 2, 64)
    with pytest.raises(RuntimeError, match="pages that are too short for a layer's heads"):
        bench.run([0])
    bench, _ = attending("generic", random(64, 8 * 64), 4, 2, 64)
    bench.cache_format = 4  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="a format of a cache that there is not"):
        bench.run([0])


@pytest.mark.parametrize("name", SETS)
def test_values_that_are_keys_are_coded_as_well(name: str) -> None:
    table = random(64, (4 + 2) * 64)
    bench, attended = caching(CacheFormat.FP8_E4M3, name, table, 4, 2, 64)
    bench.program.body[1].values = Values.KEYS
    x = table[:21].bfloat16().float()
    k = coded(x[:, 4 * 64 :].view(21, 2, 64), CacheFormat.FP8_E4M3).flatten(1)
    exact = attention_reference(torch.cat((x[:, : 4 * 64], k, k), 1), 4, 2, 64, 64**-0.5, 0.0, 0, False)
    close(bench.run(list(range(21))).rows(attended, 21), exact, ulps=2.0)
