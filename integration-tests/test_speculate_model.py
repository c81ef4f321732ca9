"""`--speculate-model`: the same answers with the drafts of a second model as without, token by token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import wire
from checkpoints import SHIPPED, random_llama
from conftest import Launch
from launched import ON_TORCH, Launched
from load import ask_all, ask_all_through, chat, generate
from other_host import RemoteWorker
from prompts import QUESTIONS, user
from test_speculation import BODIES, answer, requests

DRAFTS = 4


def first_layers(folder: Path, layers: int) -> Path:
    """The shipped model without its last layers: a draft model that is often right and often wrong."""
    folder.mkdir(parents=True)
    for file in SHIPPED.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    with safe_open(SHIPPED / "model.safetensors", framework="pt") as weights:
        kept = {
            name: weights.get_tensor(name)
            for name in weights.keys()  # noqa: SIM118
            if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
        }
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# In float32 and on torch, whose steps cost so much more than a draft that drafts are worth it.


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wire.Address]:
    with Launched(tmp_path_factory.mktemp("plain"), *ON_TORCH) as launched:
        yield launched.wait_ready().address


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Where the same means the same to the last bit. The draft model has random weights: it is never right."""
    folder: Path = tmp_path_factory.mktemp("drafting")
    draft = random_llama(folder / "draft", positions=2048)
    flags = (*ON_TORCH, "--speculate", str(DRAFTS), "--speculate-model", str(draft))
    with Launched(folder / "run", *flags) as launched:
        yield launched.wait_ready()


@pytest.fixture(scope="module")
def itself(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """The shipped model drafts for itself."""
    folder: Path = tmp_path_factory.mktemp("itself")
    with Launched(folder, *ON_TORCH, "--speculate-model", str(SHIPPED)) as launched:
        yield launched.wait_ready()


@pytest.mark.parametrize("name", BODIES)
def test_an_answer_is_the_same_with_the_drafts_of_a_model_and_without(
    name: str, drafting: Launched, itself: Launched, plain: wire.Address
) -> None:
    expected = answer(plain, "/generate", BODIES[name])
    assert answer(drafting.address, "/generate", BODIES[name]) == expected
    assert answer(itself.address, "/generate", BODIES[name]) == expected


def counted(launched: Launched) -> tuple[float, float, float]:
    seen = launched.metrics()
    names = ("penstock_model_drafts", "penstock_accepted_model_drafts", "penstock_steps")
    return tuple(seen.value(name) for name in names)  # type: ignore[return-value]


def test_a_model_that_drafts_for_itself_is_right(itself: Launched) -> None:
    """What is not accepted comes behind the end of a text."""
    asks = [chat(user(question), 80) for question in QUESTIONS]
    asks += [
        generate(f"{number} items", 80, do_sample=True, temperature=0.9, seed=number) for number in range(4)
    ]
    all_drafts = all_accepted = 0.0
    for ask in asks:
        before = counted(itself)
        ask_all(itself.address, [ask])
        drafts, accepted, _ = (now - then for now, then in zip(counted(itself), before, strict=True))
        # Those of the step in which the text ends and of the one that is in flight behind it.
        assert accepted >= drafts - 2 * 5, f"{accepted} of {drafts} drafts: {ask}"
        all_drafts, all_accepted = all_drafts + drafts, all_accepted + accepted
    # On a busy machine, where drafts seem to cost as much as the model's own steps, few are made, or none.
    assert all_accepted >= all_drafts / 2 - 2 * 5, f"{all_accepted} of {all_drafts} drafts"


def test_a_model_that_is_never_right_is_hardly_asked(drafting: Launched) -> None:
    before = counted(drafting)
    ask_all(
        drafting.address,
        [generate(f"{number} things", 150, do_sample=True, seed=number) for number in range(4)],
    )
    drafts, _, steps = (now - then for now, then in zip(counted(drafting), before, strict=True))
    assert drafts < steps, f"{drafts} drafts in {steps} steps"


def test_the_server_says_what_drafts(itself: Launched, drafting: Launched, plain: wire.Address) -> None:
    told = wire.get(itself.address, "/info").json()
    assert told["speculate"] == 5 and told["speculate_model"] == str(SHIPPED)
    assert wire.get(drafting.address, "/info").json()["speculate"] == DRAFTS
    assert "speculate_model" not in wire.get(plain, "/info").json()


@pytest.mark.tail
def test_a_worker_on_another_host_drafts_too(launch: Launch, plain: wire.Address, tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    draft = first_layers(tmp_path / "draft", 1)
    arguments = (*ON_TORCH, "--speculate-model", str(draft), "--listen", address)
    with RemoteWorker(tmp_path / "worker", *arguments) as worker:
        worker.wait_listening()
        launched = launch("--worker-address", address).wait_ready()
        told = wire.get(launched.address, "/info").json()
        assert told["speculate"] == 5 and told["speculate_model"] == "llama"
        request = chat(user(QUESTIONS[0]), 120)
        (here,), (there,) = ask_all(plain, [request]), ask_all(launched.address, [request])
        assert there.same_as(here)
        launched.stop()


@pytest.mark.tail
def test_killed_half_way_every_stream_goes_on_as_it_would_have(
    launch: Launch, plain: wire.Address, tmp_path: Path
) -> None:
    """A draft model that is sometimes right, in a cache so small that sequences are preempted."""
    expected = ask_all(plain, requests())
    draft = first_layers(tmp_path / "draft", 4)
    launched = launch(
        *(*ON_TORCH, "--speculate", str(DRAFTS), "--speculate-model", str(draft)),
        *("--max-batch-total-tokens", "2048"),
    ).wait_ready()
    for kill in launched.interruptions():
        found = ask_all_through(launched, requests(), kill, at=400)
        for request, one, other in zip(requests(), found, expected, strict=True):
            assert one.same_as(other), f"{request}: {one} instead of {other}"


REFUSED: dict[str, tuple[list[str], str]] = {
    "a folder that is not there": (
        ["--speculate-model", "/no/such/folder"],
        "there is no folder /no/such/folder",
    ),
    "shards": (["--speculate-model", str(SHIPPED), "--num-shard", "2"], "--num-shard 2"),
    "a revision of nothing": (["--speculate-model-revision", "main"], "needs --speculate-model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_by_name(name: str, launch: Launch) -> None:
    flags, says = REFUSED[name]
    launched = launch(*flags)
    assert launched.process.wait(60) == 1
    assert "--speculate-model" in launched.log() and says in launched.log()


def test_another_tokenizer_and_too_few_positions_are_refused_by_the_worker(
    launch: Launch, tmp_path: Path
) -> None:
    other = random_llama(tmp_path / "other")
    text = json.loads((other / "tokenizer.json").read_text())
    vocabulary: dict[str, Any] = text["model"]["vocab"]
    first, second, *_ = (piece for piece, number in vocabulary.items() if number > 300)
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(text))
    short = random_llama(tmp_path / "short", positions=512)
    for folder, says in ((other, "its tokenizer is not the model's"), (short, "512 positions")):
        launched = launch("--speculate-model", str(folder))
        assert launched.process.wait(90) == 1
        assert "--speculate-model" in launched.log() and says in launched.log()
