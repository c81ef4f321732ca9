"""A model with recurrent layers over HTTP: what is found of a text again, beside others, and across a lost worker."""

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, with_text
from models import make

sys.path.insert(0, str(Path(__file__).parents[1]))

import wire
from checkpoints import SHIPPED
from conftest import Launch, fails
from exposition import CANCELLED, KV_USED, QUEUED, RUNNING
from launched import BINARY, Launched
from load import arrivals
from penstock.loading.memory import cpu_room
from processes import wait_for

STORY = " ".join(
    f"Sentence {number} says what the {number}th valve of the penstock does." for number in range(60)
)


@pytest.fixture(
    scope="module",
    params=[
        "Qwen 3.5",
        "Mamba 2",
        *(pytest.param(name, marks=pytest.mark.tail) for name in ("DeepSeek V4", "Qwen 4", "RWKV 4")),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    path = tmp_path_factory.mktemp("recurrent")
    config = with_text(FAMILIES[request.param], vocab_size=4096, max_position_embeddings=4096)
    folder = make(path / "model", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)
    flags = (
        "--dtype",
        "float32",
        "--max-total-tokens",
        "4000",
        "--max-batch-size",
        "8",
        "--max-best-of",
        "4",
    )
    with Launched(path / "run", "--model-id", str(folder), *flags) as launched:
        yield launched.wait_ready()


WIDE_STATES = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}


@pytest.mark.parametrize(
    "flags",
    [pytest.param(("--dtype", "float32"), marks=pytest.mark.tail), ("--dtype", "bfloat16")],
    ids=" ".join,
)
def test_states_that_alone_exceed_memory_are_one_line_with_both_numbers(
    flags: tuple[str, ...], tmp_path: Path, launch: Launch
) -> None:
    config = with_text(FAMILIES["Qwen 3.5"], vocab_size=4096, **WIDE_STATES)
    folder = make(tmp_path / "model", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)
    # Three delta rules of 16 heads of 128 times 128 numbers in fp32 are 3 MiB, and what their convolutions keep.
    given = f"{(400 << 20) / cpu_room().total:.6f}"
    limits = ("--max-total-tokens", "256", "--memory-fraction", given, *flags)
    run = ("--model-id", str(folder), *limits)
    line = fails(launch(*run, "--max-batch-size", "128"), 1, "recurrent states", "lower --max-batch-size")
    said = re.search(
        r"of 128 sequences and one copy need (\d+) MiB, and (\d+) MiB are free for them, which hold those of (\d+);",
        line,
    )
    assert said is not None, line
    needed, free, hold = map(int, said.groups())
    assert 129 * 3 <= needed < 129 * 3.3 and free < 400 and free // 3.3 - 2 <= hold <= free // 3
    # What it names as the way out is one.
    launch(*run, "--max-batch-size", "8").wait_ready()


def test_the_doctor_names_the_family_and_says_when_states_do_not_fit(tmp_path: Path) -> None:
    config = with_text(FAMILIES["Qwen3-Next"], vocab_size=4096, torch_dtype="bfloat16", **WIDE_STATES)
    folder = make(tmp_path / "model", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)

    def doctor(*flags: str) -> str:
        command = [str(BINARY), "doctor", "--model-id", str(folder), "--device", "cpu", *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout

    assert re.search(r"^family +Qwen3-Next \(recipe qwen3_next, (CPU engine|torch: .*)\)$", doctor(), re.M)
    assert "Qwen3-Next (recipe qwen3_next, torch: the CPU engine does not serve several stages)" in doctor(
        "--pipeline-parallel", "2"
    )
    small = doctor("--memory-fraction", f"{(300 << 20) / cpu_room().total:.6f}")
    assert re.search(
        r"^warning +the recurrent states of 128 sequences and one copy need \d+ MiB, and", small, re.M
    ), small


def complete(server: Launched, prompt: str, tokens: int = 24, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}
    reply = wire.post(server.address, "/v1/completions", body)
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json()
    return answer


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


def test_info_says_what_a_sequence_keeps(server: Launched) -> None:
    info = wire.get(server.address, "/info").json()
    assert info["state_bytes"] > 0 and info["state_snapshots"] > 8


def test_metrics_count_the_states_by_what_holds_them(server: Launched) -> None:
    complete(server, f"Counted: {STORY}")

    def states(name: str) -> dict[str, float]:
        now = server.metrics()
        holders = ("slots", "drafts", "snapshots")
        return {holder: now.value(name, group="state", holder=holder) for holder in holders}

    wait_for(lambda: states("penstock_states")["slots"] == 0, "the slot to be given back")
    info = wire.get(server.address, "/info").json()
    places, held = states("penstock_state_places"), states("penstock_states")
    assert places["slots"] == info["max_batch_size"] and places["snapshots"] == info["state_snapshots"]
    assert held["drafts"] == 0 < held["snapshots"] <= places["snapshots"]


def test_a_text_that_comes_again_begins_with_a_copy_of_its_state(server: Launched) -> None:
    prompt = f"Once: {STORY}"
    first = complete(server, prompt)
    length = first["usage"]["prompt_tokens"]
    again = complete(server, prompt)
    assert cached(first) == 0 and cached(again) >= length - 32
    assert text(again) == text(first)
    # The next turn goes on behind the answer.
    longer = f"{prompt}{text(complete(server, prompt, 150))} And then?"
    turn = complete(server, longer)
    assert cached(turn) >= length - 32
    fresh = complete(server, longer, cache_salt="nobody else's")
    assert cached(fresh) == 0 and text(fresh) == text(turn)


def test_a_beginning_that_two_share_is_found_by_the_third(server: Launched) -> None:
    answers = [
        complete(server, f"Shared: {STORY} Question {number}: {number * 'why '}?") for number in range(2, 6)
    ]
    shared = answers[0]["usage"]["prompt_tokens"] - 40
    # The second one computes what the first has as well, and keeps a copy where they part.
    assert cached(answers[0]) < shared and min(map(cached, answers[2:])) >= shared


def test_several_answers_to_one_prompt_compute_it_once(server: Launched) -> None:
    prompt = f"Several: {STORY}"
    before = server.metrics().value("penstock_computed_prompt_tokens")
    answer = complete(server, prompt, temperature=1.0, seed=3, n=4)
    computed = server.metrics().value("penstock_computed_prompt_tokens") - before
    assert len({choice["text"] for choice in answer["choices"]}) > 1
    assert computed < 1.5 * answer["usage"]["prompt_tokens"]


def test_texts_beside_each_other_and_across_a_lost_worker_are_those_alone(server: Launched) -> None:
    prompts = [f"Tell me of {thing}. {STORY[: 40 * number]}" for number, thing in enumerate("abcdefghijkl")]
    alone = [text(complete(server, prompt, 60)) for prompt in prompts]
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        found[number] = text(complete(server, prompts[number], 60, cache_salt="again"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(prompts))]
    expected = arrivals(server) + len(prompts)
    with server.slow_worker() as kill:
        for thread in threads:
            thread.start()
        # One that comes later finds no worker.
        wait_for(lambda: arrivals(server) == expected, "all of them to arrive")
        kill()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(prompts))] == alone


def test_clients_that_leave_give_their_states_back_and_change_no_text_of_others(server: Launched) -> None:
    prompts = [f"Stay {thing}. {STORY[:200]}" for thing in "abcdefgh"]
    alone = [text(complete(server, prompt, 24)) for prompt in prompts]
    before = server.metrics().value(CANCELLED)
    found: dict[int, str] = {}

    def ask(number: int, salt: str) -> None:
        found[number] = text(complete(server, prompts[number], 24, cache_salt=salt))

    def all_at_once(numbers: range, salt: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        found.clear()
        threads = [threading.Thread(target=ask, args=(number, salt)) for number in numbers]
        for thread in threads:
            thread.start()
        meanwhile()
        for thread in threads:
            thread.join()
        assert [found[number] for number in numbers] == [alone[number] for number in numbers]

    def leave() -> None:
        """Four of them in the middle of their streams."""
        body = {"prompt": "Leave.", "max_tokens": 3000, "temperature": 0, "ignore_eos": True, "stream": True}
        leaving = [wire.Events(server.address, "/v1/completions", body) for _ in range(4)]
        for events in leaving:
            assert len([data for _, data in zip(range(5), events, strict=False)]) == 5
        for events in leaving:
            events.close()

    # More leave than there are places for states.
    for turn in range(3):
        all_at_once(range(4), f"turn {turn}", leave)

    def settled() -> bool:
        now = server.metrics()
        return now.value(RUNNING) == now.value(QUEUED) == now.value(KV_USED) == 0

    wait_for(settled, "nothing to run")
    assert server.metrics().value(CANCELLED) - before == 12
    # As many as there are places.
    all_at_once(range(8), "after")
