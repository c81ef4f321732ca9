"""The model that ships: its files, its template, and that it can still do what its card says."""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from penstock import tiny
from penstock.tiny import corpus, template, words
from penstock.tiny.evaluate import evaluate
from penstock.tiny.model_card import ABOUT
from penstock.tiny.network import TinyLlama, load_weights
from penstock.tiny.train import NotFinite, Training, export

MODEL = tiny.MODEL
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# Without a description, a type or parameters; and not under "function".
ODD_TOOLS = [
    {"type": "function", "function": {
        "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}},
    }},
    {"name": "now", "description": "The time"},
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


def test_the_folder_is_small_enough_for_the_package() -> None:
    assert sum(path.stat().st_size for path in MODEL.rglob("*")) <= 20_000_000


def test_the_template_renders_system_tools_calls_and_results(tokenizer: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Weather "}, {"type": "text", "text": "in Oslo?"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": '{"condition": "sunny"}'},
    ]
    text = tokenizer.apply_chat_template(
        messages, tools=[WEATHER, *ODD_TOOLS], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nBe brief.\n\nYou can call these tools:\n"
        "Get the weather in a city: get_weather(city: string)\n"
        "add(a: integer, b: any)\n"
        "The time: now()<|im_end|>\n"
        "<|im_start|>user\nWeather in Oslo?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
        "</tool_call><|im_end|>\n"
        '<|im_start|>tool\n{"condition": "sunny"}<|im_end|>\n<|im_start|>assistant\n'
    )


def test_arguments_given_as_a_json_string_render_like_an_object(tokenizer: Any) -> None:
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}],
            tokenize=False,
        )
        for arguments in ('{"a": 1}', {"a": 1})
    ]
    assert texts[0] == texts[1]


def test_the_shipped_template_and_the_training_text_agree(tokenizer: Any) -> None:
    for item in corpus.evaluation_items(per_task=10):
        tools = [{"type": "function", "function": tool} for tool in item.tools] or None
        text = tokenizer.apply_chat_template(
            item.messages, tools=tools, tokenize=False, add_generation_prompt=True
        )
        assert text == template.render(item.messages, item.tools, add_generation_prompt=True)


def test_text_cut_into_turns_gives_the_same_tokens_as_the_whole(tokenizer: Any) -> None:
    for conversation in islice(corpus.training_stream(seed=5), 300):
        pieces = [text for text, _ in conversation.pieces]
        if not pieces[0].endswith(
            "Answer:"
        ):  # there the prompt ends inside of a piece, as it does when served
            apart = [token for piece in pieces for token in tokenizer(piece)["input_ids"]]
            assert apart == tokenizer("".join(pieces))["input_ids"]


def test_invented_words_are_never_held_out(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_pieces", [])
    words.know_pieces(list(tokenizer.get_vocab()))
    held_out = {word.lower() for word in (*words.THINGS, *words.NAMES, *words.CITIES) if words.held_out(word)}
    rng = Random(3)
    assert held_out.isdisjoint(words.invented(rng, "train").lower() for _ in range(20_000))


@pytest.mark.parametrize("text", ["naïve café ☕ 12 345\n\n\ttabs", "日本語 🙂", 'a{"b": [1, "c"]}  d', ""])
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_training_never_says_what_a_user_says_in_the_evaluation(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "_pieces", [])
    words.know_pieces(list(tokenizer.get_vocab()))
    forbidden = corpus.user_turns(corpus.evaluation_items())
    assert len(forbidden) > 1000
    stream = corpus.training_stream(seed=99, forbidden=frozenset(), weights=corpus.LAST_WEIGHTS)
    for conversation in islice(stream, 10_000):
        text = "".join(piece for piece, _ in conversation.pieces)
        turns = [turn.removesuffix("<|im_end|>\n") for turn in text.split("<|im_start|>user\n")]
        assert not forbidden.intersection(turn.split("<|im_end|>")[0] for turn in turns)


def test_transformers_reads_the_weights_as_they_were_trained() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 4096, (2, 40))
    with torch.inference_mode():
        ours = load_weights(MODEL)
        theirs = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        torch.testing.assert_close(ours.logits(ours(ids)), theirs(ids).logits, rtol=1e-4, atol=1e-3)


class Bigram(nn.Module):
    """The smallest network that can be trained: `TinyLlama`'s methods, and a matrix for each optimizer."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Parameter(torch.randn(vocabulary, 4))
        self.head = nn.Parameter(torch.randn(vocabulary, 4))

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed_tokens[ids]

    def logits(self, states: Tensor) -> Tensor:
        return states @ self.head.T


def test_a_training_that_diverged_is_not_saved_over_what_was_there(tmp_path: Path) -> None:
    network = Bigram(vocabulary=4096)
    training = Training(1, 1, cast("TinyLlama", network))
    saved = tmp_path / "checkpoint.pt"
    training.save(saved)
    kept = saved.read_bytes()
    words.know_pieces(list(AutoTokenizer.from_pretrained(MODEL).get_vocab()))
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    loss, _ = training.run_step(tokenizer, 10)
    assert math.isfinite(loss)
    training.check()
    with torch.no_grad():
        network.head[7, 2] = torch.nan
    before = network.embed_tokens.clone()
    with pytest.raises(NotFinite, match=r"step 1: the loss is nan"):
        training.run_step(tokenizer, 10)
    assert training.step == 1 and network.embed_tokens.equal(before)
    with pytest.raises(NotFinite, match=r"after 1 steps 1 of 16384 numbers of head are not finite"):
        training.save(saved)
    with pytest.raises(NotFinite):
        export(training, tokenizer, tmp_path / "model", None)
    assert saved.read_bytes() == kept and list(tmp_path.iterdir()) == [saved]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other inside every operation take several times as long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_model_does_what_its_card_says() -> None:
    """The card's figures are from 150 items per task, these from 12, so that the test is quick. Three standard
    errors of so few are up to 40 points; a task is held to its figure less 30, and all together less 8."""
    claims = {
        task: int(row.split("|")[3].strip().removesuffix("%")) / 100
        for row in (MODEL / "README.md").read_text().splitlines()
        for task, about in ABOUT.items()
        if row.startswith(f"| {about} |")
    }
    assert set(claims) == set(corpus.TASKS)
    scores = evaluate(MODEL, corpus.evaluation_items(per_task=12))
    assert set(scores) == set(corpus.TASKS)
    assert all(right / asked >= claims[task] - 0.3 for task, (right, asked) in scores.items()), scores
    right, asked = (sum(column) for column in zip(*scores.values(), strict=True))
    claimed = sum(claims[task] * asked for task, (_, asked) in scores.items()) / asked
    assert right / asked >= claimed - 0.08, scores
    assert claimed >= 0.8
