"""Models with recurrent layers over HTTP, in a cache so small that the router preempts sequences in the middle of their texts.

A state cannot be rewound: a sequence that was preempted goes on from a copy of its state, or is computed again from its beginning.
"""

import shutil
import sys
from pathlib import Path

import pytest
from families import FAMILIES, with_text
from models import make

sys.path.insert(0, str(Path(__file__).parents[1]))

import wire
from checkpoints import SHIPPED
from exposition import KV_USED, PREEMPTIONS
from launched import EXACT, ON_TORCH, Launched
from load import Ask, ask, ask_all, ask_all_through, complete
from processes import wait_for

TOTAL = 256  # tokens of the cache, and of the longest sequence
STEMS = ("A river", "The dam", "My gate", "Some water", "Each valve", "No pipe")


def folder_of(folder: Path, family: str) -> Path:
    made = make(folder, with_text(FAMILIES[family], vocab_size=4096))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, made / name)
    return made


def requests() -> list[Ask]:
    """Greedy ones and sampled ones, each of which takes most of the cache.

    Torch computes again in another order what was preempted, and differs by 1e-6: of few tokens to draw from, the sums of whose
    probabilities lie far apart, none tips.
    """
    drawn = {"temperature": 0.8, "top_k": 4}
    sampled = [{} if number < 4 else {**drawn, "seed": number} for number in range(len(STEMS))]
    return [
        complete(f"{stem} feeds a penstock, and", 200, **options)
        for stem, options in zip(STEMS, sampled, strict=True)
    ]


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("Qwen 3.5", EXACT),
        pytest.param("Qwen 3.5", ON_TORCH, marks=pytest.mark.tail),
        *(
            pytest.param(family, EXACT, marks=pytest.mark.tail)
            for family in ("LFM2", "Granite 4 (dense)", "Kimi Linear", "MiniMax-Text-01", "DeepSeek V4")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "torch" if value else "engine",
)
def test_a_preempted_sequence_of_a_hybrid_says_what_it_says_with_room(
    family: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    run = ("--model-id", str(folder_of(tmp_path / "model", family)), "--max-total-tokens", str(TOTAL), *flags)
    with Launched(tmp_path / "roomy", *run) as launched:
        roomy = launched.wait_ready().address
        expected = [ask(roomy, request) for request in requests()]
        assert all(answer.error is None for answer in expected)
        assert launched.metrics().value(PREEMPTIONS) == 0
    with Launched(tmp_path / "small", *run, "--max-batch-total-tokens", str(TOTAL)) as launched:
        address = launched.wait_ready().address
        info = wire.get(address, "/info").json()
        assert info["state_bytes"] > 0 and info["kv_blocks"] * info["kv_block_size"] == TOTAL
        for one, other in zip(expected, ask_all(address, requests()), strict=True):
            assert other.error is None and other.same_as(one), f"{other} instead of {one}"
        assert launched.metrics().value(PREEMPTIONS) > 0

        for kill in launched.interruptions():
            killed = ask_all_through(launched, requests(), kill, at=500)
            for one, other in zip(expected, killed, strict=True):
                assert other.error is None and other.same_as(one), f"{other} instead of {one}"
        wait_for(lambda: launched.metrics().value(KV_USED) == 0, "every page to come back")
