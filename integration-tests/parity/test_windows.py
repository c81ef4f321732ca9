"""Sequences far longer than their window, in a KV cache that could not hold them whole.

Real `penstock`, models made on the spot: layers that all have a window, layers of both kinds, and layers that keep less of what
is behind it.
"""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES
from models import make

sys.path.insert(0, str(Path(__file__).parents[1]))

import wire
from checkpoints import SHIPPED
from exposition import KV_USED
from launched import Launched
from processes import wait_for

STEMS = ("The river", "A gate", "Our turbine", "Some water", "The valley", "An old dam")
BLOCK, TOTAL, NEW = 16, 480, 400


def folder_of(path: Path, family: str) -> Path:
    folder = make(path, {**FAMILIES[family], "vocab_size": 4096, "max_position_embeddings": 512})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)
    return folder


def text(address: wire.Address, prompt: str) -> str:
    """Greedy, of a completion that does not end early."""
    body = {"model": "tgi", "prompt": prompt, "max_tokens": NEW, "temperature": 0, "ignore_eos": True}
    reply = wire.post(address, "/v1/completions", body)
    assert reply.status == 200, reply.text
    answer = reply.json()
    assert answer["usage"]["completion_tokens"] == NEW
    return str(answer["choices"][0]["text"])


def name_of(group: dict[str, Any]) -> str:
    """What /metrics calls a group of /info."""
    return f"{group['kind']} {group['reach']}" if "reach" in group else str(group["kind"])


@pytest.mark.tail
@pytest.mark.parametrize(
    "family",
    [
        "Mistral, sliding window",
        "Gemma 2",
        "Gemma 3",
        # Its window is a state, and the rest is computed again when it was preempted.
        "DeepSeek V4",
    ],
)
def test_long_sequences_share_a_small_cache(family: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", family)
    limits = ("--max-total-tokens", str(TOTAL), "--max-batch-prefill-tokens", "64", "--dtype", "float32")
    run = ("--model-id", str(folder), *limits)
    with Launched(tmp_path / "roomy", *run) as launched:
        launched.wait_ready()
        alone = [text(launched.address, stem) for stem in STEMS]
    # Of six sequences one would fit whole.
    with Launched(tmp_path / "small", *run, "--max-batch-total-tokens", str(TOTAL)) as launched:
        address = launched.wait_ready().address
        with ThreadPoolExecutor(len(STEMS)) as pool:
            together = list(pool.map(lambda stem: text(address, stem), STEMS))
        again = text(address, STEMS[0])
        wait_for(lambda: launched.metrics().value(KV_USED) == 0, "every page to come back")
        info = wire.get(address, "/info").json()
        tables = [group for group in info["cache_groups"] if "pages" in group]
        pages = {
            name_of(group): launched.metrics().value("penstock_kv_pages", group=name_of(group))
            for group in tables
        }
    assert together == alone
    # What texts leave stays in the prefix cache, in the pages of every group.
    assert pages == {name_of(group): group["pages"] for group in tables}
    assert all(pages.values())
    assert again == alone[0]
    assert info["kv_blocks"] * BLOCK == TOTAL
