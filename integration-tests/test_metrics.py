"""The books balance: what `/metrics` says against what the test sent, on a server of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import wire
from exposition import (
    BATCH_TOKENS,
    CANCELLED,
    IN_FLIGHT,
    KV_CACHED,
    KV_FREE,
    KV_USED,
    LATE_MASKS,
    PREEMPTIONS,
    PREFIX_HITS,
    QUEUED,
    RESTARTS,
    RUNNING,
    STEPS,
    WASTED,
    Exposition,
)
from launched import EXACT, Launched
from load import ask, ask_all, complete, generate
from processes import wait_for
from prompts import user


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("counted"), *EXACT) as launched:
        yield launched.wait_ready()


TGI_NAMES = {
    "tgi_request_count": "counter",
    "tgi_request_success": "counter",
    "tgi_request_failure": "counter",
    "tgi_request_duration": "histogram",
    "tgi_request_validation_duration": "histogram",
    "tgi_request_queue_duration": "histogram",
    "tgi_request_inference_duration": "histogram",
    "tgi_request_mean_time_per_token_duration": "histogram",
    "tgi_request_generated_tokens": "histogram",
    "tgi_request_input_length": "histogram",
    "tgi_request_max_new_tokens": "histogram",
    "tgi_queue_size": "gauge",
    "tgi_batch_current_size": "gauge",
    "tgi_batch_current_max_tokens": "gauge",
    "tgi_batch_next_size": "histogram",
    "tgi_batch_inference_count": "counter",
    "tgi_batch_inference_success": "counter",
    "tgi_batch_inference_duration": "histogram",
    "tgi_batch_forward_duration": "histogram",
    "tgi_batch_max_total_tokens": "gauge",
}


ADDED_NAMES = (
    STEPS,
    KV_USED,
    KV_CACHED,
    KV_FREE,
    PREEMPTIONS,
    PREFIX_HITS,
    RESTARTS,
    CANCELLED,
    WASTED,
    LATE_MASKS,
)


def settled(launched: Launched) -> Exposition:
    """The metrics once nothing runs and every request is counted, which comes after the last that its client sees."""

    def idle() -> Exposition | None:
        now = launched.metrics()
        return now if all(now.value(name) == 0 for name in (RUNNING, QUEUED, KV_USED, IN_FLIGHT)) else None

    return wait_for(idle, "nothing to run")


class Growth:
    def __init__(self, launched: Launched) -> None:
        self.launched = launched
        self.before = settled(launched)

    def of(self, name: str, **labels: str) -> float:
        return settled(self.launched).value(name, **labels) - self.before.value(name, **labels)


def test_the_names_and_types_are_tgis(counted: Launched) -> None:
    ask(counted.address, generate("x", 2))
    wire.post(counted.address, "/generate", {"inputs": ""})
    types = settled(counted).types
    missing = {name: kind for name, kind in TGI_NAMES.items() if types.get(name) != kind}
    assert not missing, f"missing or of another type: {missing}; there are {sorted(types)}"


def test_what_penstock_adds_is_there_from_the_start(counted: Launched) -> None:
    missing = [name for name in ADDED_NAMES if name not in settled(counted).types]
    assert not missing, f"{missing}; there are {sorted(settled(counted).types)}"


def test_late_masks_have_a_number_before_any_is_late(counted: Launched) -> None:
    (late,) = [sample for sample in settled(counted).samples if sample.name == LATE_MASKS]
    assert late.value == 0 and settled(counted).types[LATE_MASKS] == "counter"


def test_durations_have_tgis_buckets(counted: Launched) -> None:
    ask(counted.address, generate("x", 2))
    samples = [s for s in settled(counted).samples if s.name == "tgi_request_duration_bucket"]
    bounds = [float(sample.labels["le"]) for sample in samples]
    assert len(bounds) == 36 and bounds[-1] == float("inf")
    assert all(abs(bound / (0.0001 * 1.5**k) - 1) < 1e-6 for k, bound in enumerate(bounds[:-1], 1))
    counts = [sample.value for sample in samples]
    assert counts == sorted(counts), "buckets are cumulative"


def test_counts_reconcile_with_what_was_sent(counted: Launched) -> None:
    growth = Growth(counted)
    asks = [complete(f"{number} apples and", 10 + number) for number in range(8)]
    answers = ask_all(counted.address, asks)
    assert growth.of("tgi_request_count") == 8
    assert growth.of("tgi_request_success") == 8
    assert growth.of("tgi_request_failure") == 0
    assert growth.of("tgi_request_duration_count") == 8
    assert growth.of("tgi_request_generated_tokens_sum") == sum(10 + n for n in range(8))
    assert growth.of("tgi_request_max_new_tokens_sum") == sum(10 + n for n in range(8))
    lengths = [
        len(wire.post(counted.address, "/tokenize", {"inputs": a.body["prompt"]}).json()) for a in asks
    ]
    assert growth.of("tgi_request_input_length_sum") == sum(lengths)
    assert all(answer.error is None for answer in answers)
    steps = growth.of(STEPS)
    assert 17 <= steps <= sum(10 + n for n in range(8)), (
        "at least as many as the longest has tokens, and shared"
    )
    # Each prompt token and each generated token but the last is fed once, less what the cache had, plus at
    # most one wasted row for each sequence that turned out to have ended.
    fed, cached = growth.of(BATCH_TOKENS), growth.of(PREFIX_HITS)
    exact = sum(lengths) + sum(9 + n for n in range(8))
    assert exact <= fed + cached <= exact + 8


def test_each_request_counts_once_whatever_its_route(counted: Launched) -> None:
    growth = Growth(counted)
    one: dict[str, object] = {"max_tokens": 2}
    bodies: list[tuple[str, object]] = [
        ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}}),
        ("/", {"inputs": "x", "parameters": {"max_new_tokens": 2}}),
        ("/v1/chat/completions", {"messages": user("x"), **one}),
        ("/v1/completions", {"prompt": "x", **one}),
        ("/v1/completions", {"prompt": ["x", "y", "z"], **one}),
        ("/v1/chat/completions", {"messages": user("x"), "n": 2, "temperature": 1, **one}),
    ]
    for path, body in bodies:
        assert wire.post(counted.address, path, body).status == 200
    assert growth.of("tgi_request_count") == len(bodies)


def test_failures_are_counted_by_cause(counted: Launched) -> None:
    growth = Growth(counted)
    for _ in range(3):
        assert wire.post(counted.address, "/generate", {"inputs": ""}).status == 422
    assert growth.of("tgi_request_failure", err="validation") == 3
    assert growth.of("tgi_request_success") == 0


def test_looking_costs_nothing(counted: Launched) -> None:
    growth = Growth(counted)
    for path in ("/health", "/info", "/metrics", "/v1/models", "/"):
        wire.get(counted.address, path)
    wire.post(counted.address, "/tokenize", {"inputs": "some words"})
    assert growth.of("tgi_request_count") == 0
    assert growth.of(STEPS) == 0, "a health probe does not run the model"


# The prefix cache.


def block_size(launched: Launched) -> float:
    now = settled(launched)
    blocks = now.value(KV_USED) + now.value(KV_CACHED) + now.value(KV_FREE)
    return now.value("tgi_batch_max_total_tokens") / blocks


def test_the_blocks_add_up(counted: Launched) -> None:
    size = block_size(counted)
    assert size == int(size) > 1


@pytest.mark.parametrize("words", [30, 100, 101, 102, 103, 150])
def test_the_same_prompt_again_recomputes_at_most_one_block(counted: Launched, words: int) -> None:
    prompt = f"{words} " + " ".join(f"w{number}" for number in range(words))
    length = len(wire.post(counted.address, "/tokenize", {"inputs": prompt}).json())
    request = complete(prompt, 1)
    first = ask(counted.address, request)
    growth = Growth(counted)
    assert ask(counted.address, request).same_as(first)
    computed = growth.of(BATCH_TOKENS)
    assert 1 <= computed <= block_size(counted), f"{computed} of {length} tokens were computed again"
    assert growth.of(PREFIX_HITS) == length - computed


def test_a_conversation_that_goes_on_reuses_the_answer_too(counted: Launched) -> None:
    messages = user("Repeat: " + " ".join(f"w{number}" for number in range(30)))
    body = {"messages": messages, "max_tokens": 80, "temperature": 0}
    first = wire.post(counted.address, "/v1/chat/completions", body).json()
    said = first["choices"][0]["message"]["content"]
    growth = Growth(counted)
    longer = [*messages, {"role": "assistant", "content": said}, *user("Thanks.")]
    usage = wire.post(
        counted.address, "/v1/chat/completions", {**body, "messages": longer, "max_tokens": 1}
    ).json()["usage"]
    known = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached == growth.of(PREFIX_HITS)
    assert cached >= known - 2 * block_size(counted), f"{cached} of {known} known tokens were reused"


def test_a_prefix_is_shared_while_its_first_request_still_runs(counted: Launched) -> None:
    prompt = "shared " + " ".join(f"s{number}" for number in range(120))
    body = complete(prompt, 1500).body
    with counted.slow_worker(), wire.Events(counted.address, "/v1/completions", body) as running:
        next(iter(running))
        growth_before = counted.metrics().value(PREFIX_HITS)
        usage = wire.post(
            counted.address, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        ).json()["usage"]
        assert counted.metrics().value(RUNNING) >= 1, "the first one was already over"
    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - block_size(counted) - 1
    assert counted.metrics().value(PREFIX_HITS) > growth_before


def test_prompts_that_share_nothing_hit_nothing(counted: Launched) -> None:
    growth = Growth(counted)
    for number in range(3):
        ask(counted.address, complete(f"{number}{number} unlike " * 20, 1))
    assert growth.of(PREFIX_HITS) == 0


def test_a_prompt_that_another_request_holds_in_part_of_a_block_is_copied(counted: Launched) -> None:
    def copied() -> float:
        return counted.metrics().value("penstock_copied_tokens")

    prompt, before = "once upon a time there was a fork in the road " * 2, copied()
    length = len(wire.post(counted.address, "/tokenize", {"inputs": prompt}).json())
    assert length % 16 > 1, "its last block is filled in part"
    first = {"prompt": prompt, "max_tokens": 1800, "ignore_eos": True, "stream": True, "temperature": 0}
    second = {**first, "max_tokens": 20, "stream": False}
    with counted.slow_worker(), wire.Events(counted.address, "/v1/completions", first) as events:
        started = iter(events)
        next(started)
        forked = wire.post(counted.address, "/v1/completions", second).json()["choices"]
    assert copied() - before == (length - 1) % 16
    assert wire.post(counted.address, "/v1/completions", second).json()["choices"] == forked
