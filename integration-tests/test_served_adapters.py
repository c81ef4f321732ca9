"""LoRA adapters through the whole server: chosen by request through real clients, mixed in one batch, alone in the prefix cache, and there again behind
a crash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from openai import OpenAI
from playwright.sync_api import expect
from safetensors import safe_open
from safetensors.numpy import save_file

import wire
from browser import CHAT, Chat, body_of, chromium
from checkpoints import SHIPPED
from conftest import Launch
from launched import Launched
from load import Answer, Ask, ask_all, ask_all_through, chat, complete, generate
from prompts import as_text, user

NAMES = ("tell", "other/adapter")
QUESTION = "Sort: pear apple cherry"  # which the model is the least sure of


def write(folder: Path, seed: int, only: str = "") -> Path:
    """A random adapter of the shipped model's matrices with `only` in their names, strong enough to have it say something else."""
    generator = np.random.default_rng(seed)
    tensors = {}
    with safe_open(SHIPPED / "model.safetensors", framework="numpy") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    for name, (*_, inputs) in shapes.items():
        if "proj" not in name or only not in name:
            continue
        at, outputs = f"base_model.model.{name.removesuffix('.weight')}", shapes[name][0]
        tensors[f"{at}.lora_A.weight"] = generator.normal(size=(8, inputs), scale=inputs**-0.5).astype(
            np.float32
        )
        tensors[f"{at}.lora_B.weight"] = generator.normal(size=(outputs, 8), scale=0.3).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "penstock-tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the flag is told."""
    folder = tmp_path_factory.mktemp("adapters")
    made = write(folder / "tell", 1), write(folder / "other", 2, "self_attn")
    return ",".join(f"{name}={at}" for name, at in zip(NAMES, made, strict=True))


@pytest.fixture(scope="module")
def server(adapters: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("server"), "--lora-adapters", adapters) as launched:
        yield launched.wait_ready()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """The same model without."""
    with Launched(tmp_path_factory.mktemp("plain")) as launched:
        yield launched.wait_ready()


def requests() -> list[Ask]:
    """To each adapter and to none: texts of 60 tokens, greedy and drawn, on three routes."""
    made = []
    for number in range(4):
        for name in (*NAMES, None):
            own: dict[str, Any] = {} if name is None else {"model": name}
            drawn: dict[str, Any] = {"temperature": 0.8, "seed": number} if number % 2 else {}
            made.append(complete(f"{number} things:", 60, **drawn, **own))
    for name in (*NAMES, None):
        own = {} if name is None else {"adapter_id": name}
        made.append(generate("A list of things:", 60, do_sample=True, seed=9, **own))
        made.append(chat(user(QUESTION), 60, **own))
    return made


def alone(server: Launched, asks: list[Ask]) -> list[Answer]:
    return [ask_all(server.address, [one])[0] for one in asks]


def test_texts_do_not_depend_on_the_adapters_beside_them(server: Launched, plain: Launched) -> None:
    asks = requests()
    apart, together = alone(server, asks), ask_all(server.address, asks)
    for request, one, other in zip(asks, apart, together, strict=True):
        assert one.same_as(other), request
    for at in range(0, 12, 3):
        texts = [one.text for one in apart[at : at + 3]]
        assert len(set(texts)) == 3, texts
        # None is what there is without any.
        assert ask_all(plain.address, [asks[at + 2]])[0].same_as(apart[at + 2])


def test_nothing_is_shared_between_adapters(server: Launched) -> None:
    """A prompt of several blocks is computed anew for each, and found again for each."""
    prompt = "Some words that nobody has asked for so far: " + " ".join(f"number {n}" for n in range(60))

    def cached(name: str | None) -> int:
        before = server.metrics().value("penstock_prefix_hit_tokens")
        parameters = {"max_new_tokens": 4} | ({} if name is None else {"adapter_id": name})
        reply = wire.post(server.address, "/generate", {"inputs": prompt, "parameters": parameters})
        assert reply.status == 200, reply.text
        return int(server.metrics().value("penstock_prefix_hit_tokens") - before)

    for name in (None, *NAMES):
        assert cached(name) == 0, name
    for name in (*NAMES, None):
        assert cached(name) > 100, name


def test_the_hub_client_names_an_adapter(server: Launched) -> None:
    client = InferenceClient(model=server.url, timeout=60)
    prompt = as_text(QUESTION)
    texts = {
        name: client.text_generation(prompt, max_new_tokens=30, return_full_text=False, adapter_id=name)
        for name in (*NAMES, None)
    }
    assert len(set(texts.values())) == 3, texts
    stream = client.text_generation(prompt, max_new_tokens=30, stream=True, details=True, adapter_id=NAMES[0])
    assert "".join(piece.token.text for piece in stream if not piece.token.special) == texts[NAMES[0]]
    said = InferenceClient(base_url=server.url, timeout=60).chat_completion(
        user(QUESTION), model=NAMES[1], max_tokens=30
    )
    assert said.model == NAMES[1]


def test_the_openai_client_lists_and_names_them(server: Launched) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        base, *others = client.models.list().data
        assert [one.id for one in others] == list(NAMES)
        assert client.models.retrieve(NAMES[0]).id == NAMES[0]
        texts = {}
        for name in (base.id, *NAMES, "gpt-4"):
            answer = client.chat.completions.create(
                model=name, messages=user(QUESTION), temperature=0, max_tokens=40, n=2
            )
            first, second = (choice.message.content for choice in answer.choices)
            assert first == second
            texts[name] = first
        assert texts["gpt-4"] == texts[base.id]
        assert len({texts[name] for name in (base.id, *NAMES)}) == 3


def test_the_page_offers_them(server: Launched, plain: Launched) -> None:
    """And asks the one that was chosen, also behind a reload."""
    with chromium() as browser, Chat(browser, server.url).open() as chat:
        choice = chat.page.get_by_label("Adapter", exact=True)
        expect(choice).to_be_visible()
        assert choice.locator("option").all_inner_texts() == ["none", *NAMES]
        chat.set("Max tokens", 30)
        said = {}
        for name in ("", *NAMES):
            choice.select_option(name)
            with chat.page.expect_request(CHAT) as request:
                chat.ask(QUESTION)
            assert body_of(request.value)["model"] == (
                name or wire.get(server.address, "/info").json()["model_id"]
            )
            said[name] = chat.words.inner_text()
            chat.button("New conversation").click()
        assert len(set(said.values())) == 3, said
        chat.page.reload()
        expect(choice).to_have_value(NAMES[1])
    with chromium() as browser, Chat(browser, plain.url).open() as chat:
        expect(chat.state).to_have_text("Ready")
        expect(chat.page.get_by_label("Adapter", exact=True)).to_be_hidden()


def test_an_adapter_that_is_not_loaded_is_named(server: Launched) -> None:
    for path, body in (
        ("/generate", {"inputs": "a", "parameters": {"adapter_id": "mine"}}),
        ("/v1/chat/completions", {"messages": user("a"), "adapter_id": "mine"}),
    ):
        reply = wire.post(server.address, path, body)
        assert reply.status == 422, reply.text
        assert all(word in reply.text for word in ("adapter_id", "mine", *NAMES)), reply.text


def test_structured_output_and_tools_work_with_an_adapter(server: Launched) -> None:
    """A grammar binds what the adapter's model says."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"],
        "additionalProperties": False,
    }
    for name in NAMES:
        body = {
            "inputs": "A number:",
            "parameters": {
                "adapter_id": name,
                "max_new_tokens": 40,
                "grammar": {"type": "json", "value": schema},
            },
        }
        reply = wire.post(server.address, "/generate", body)
        assert 0 <= json.loads(reply.json()["generated_text"])["n"] <= 99, reply.text


def test_killed_half_way_each_goes_on_with_its_adapter(launch: Launch, adapters: str) -> None:
    launched = launch("--lora-adapters", adapters, "--speculate", "4").wait_ready()
    expected = alone(launched, requests())
    for kill in launched.interruptions():
        found = ask_all_through(launched, requests(), kill, at=150)
        for request, one, other in zip(requests(), found, expected, strict=True):
            assert one.same_as(other), request


@pytest.mark.parametrize(
    "flags", [("--num-shard", "2"), ("--quantize", "int8"), ("--dtype", "float32")], ids=" ".join
)
def test_shards_quantized_weights_and_torch_have_them(
    flags: tuple[str, ...], launch: Launch, adapters: str, server: Launched
) -> None:
    launched = launch("--lora-adapters", adapters, *flags).wait_ready()
    asks = [generate(as_text(QUESTION), 30, adapter_id=name) for name in NAMES]
    asks.append(generate(as_text(QUESTION), 30))
    together = ask_all(launched.address, asks)
    texts = [one.text for one in together]
    assert len(set(texts)) == 3, texts
    if flags[0] == "--num-shard":
        # The sums are divided, and in so short a text nothing is near a tie.
        assert texts == [one.text for one in ask_all(server.address, asks)]


def test_an_adapter_of_another_model_ends_the_start(launch: Launch, tmp_path: Path) -> None:
    folder = write(tmp_path / "wide", 3, "layers.0.self_attn.q_proj")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "r": 4}))
    launched = launch("--lora-adapters", f"wide={folder}")
    assert launched.process.wait(60) == 1
    assert re.search(r"--lora-adapters wide: .*rank is 4 by adapter_config\.json", launched.log())


def test_an_adapter_alone_is_served_merged_into_its_base_model(
    adapters: str, launch: Launch, tmp_path: Path
) -> None:
    """As TGI serves it: whoever asks gets it, without naming it."""
    by_name = dict(one.split("=") for one in adapters.split(","))
    beside = launch("--lora-adapters", adapters, "--dtype", "float32").wait_ready()
    alone = tmp_path / "alone"
    alone.mkdir()
    for file in Path(by_name["tell"]).iterdir():
        (alone / file.name).write_bytes(file.read_bytes())
    config = json.loads((alone / "adapter_config.json").read_text())
    (alone / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(SHIPPED)}))
    cache = "--huggingface-hub-cache", str(tmp_path / "cache")
    merged = launch("--model-id", str(alone), *cache, "--dtype", "float32").wait_ready()
    asks = [complete(f"{number} things:", 60) for number in range(4)]
    wanted = [complete(f"{number} things:", 60, model="tell") for number in range(4)]
    for one, other in zip(ask_all(merged.address, asks), ask_all(beside.address, wanted), strict=True):
        assert one.text == other.text
    assert [one.text for one in ask_all(beside.address, asks)] != [
        one.text for one in ask_all(merged.address, asks)
    ]
    assert wire.get(merged.address, "/info").json()["model_id"] == str(alone)
    log = merged.stdout()
    assert "is an adapter, and is merged into its base model" in log

    # The second start finds the folder, and the weights as they were packed.
    again = launch("--model-id", str(alone), *cache).wait_ready()
    assert "found " in again.stdout()


@pytest.mark.parametrize(
    ("base", "says"),
    [
        (None, "base_model_name_or_path does not say whose adapter it is"),
        ("/no/such/model", "base_model_name_or_path is /no/such/model, and there is no such folder here"),
    ],
)
def test_an_adapter_alone_whose_base_model_is_not_there_ends_the_start(
    base: str | None, says: str, launch: Launch, tmp_path: Path
) -> None:
    adapter = write(tmp_path / "alone", 3)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
    ended = launch("--model-id", str(adapter))
    assert ended.wait_ended() == 1
    assert says in ended.stdout() + ended.stderr()
