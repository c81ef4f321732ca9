"""Models that no recipe serves, through transformers with our paged attention: the families' tests, on them.

A few run always. All that transformers knows are the long tail, `pytest -m tail`; what was seen then is the table of
docs/models-fallback.md.
"""

import os
import shutil
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from drafted import same_with_drafts
from families import FAMILIES
from models import Reference, ids, make
from small import NotMade, check_size, small_config
from test_families import DTYPES, LIMITS, greedy, in_pieces, prefill, prefix_hit, ragged
from torch import Tensor

from penstock.errors import UnusableModel
from penstock.models.fallback_loader import NOT_SERVED

sys.path.insert(0, str(Path(__file__).parents[1]))

import wire
from checkpoints import SHIPPED
from exposition import KV_USED, PREEMPTIONS
from launched import Launched
from load import ask, ask_all, ask_all_through, complete
from processes import wait_for

# Windows, chunked windows, soft caps, heads of several sizes, keys and values of different sizes, norms of queries
# and keys, experts; biases of keys; attention that is not called through the interface, states, states beside keys.
FEW = (
    "apertus",
    "doge",
    "gemma4_text",
    "llama4_text",
    "vaultgemma",
    "youtu",
    "roformer",
    "rwkv",
    "xlstm",
    "zamba2",
)
MODES = ("prefill", "chunks", "decode", "prefix hit", "ragged batch")

PAGE = Path(__file__).parents[2] / "docs" / "models-fallback.md"
FAMILIES_PAGE = PAGE.with_name("models.md")
BEGIN, END = "<!-- models: begin -->", "<!-- models: end -->"

# Model types that are served neither so nor by a recipe, at most.
MOST_REFUSED = 25

# Forty text families that people are likeliest to ask for in 2026, by our own judgement, as the table of docs/models.md calls them. A public list
# with downloads has 41, of which Kimi K3 alone is not served (docs/models-fallback.md).
MOST_USED = (
    *(
        "LLaMA 3",
        "Llama 4",
        "Mistral, sliding window",
        "Mixtral",
        "Mistral Small 3.1",
        "Mistral Small 4 with images",
        "Ministral 3",
    ),
    *(
        "Qwen 1.5, Qwen 2",
        "Qwen 3",
        "Qwen3-MoE",
        "Qwen3-Next",
        "Qwen 3.5",
        "Qwen 3.5 (experts)",
        "Qwen 4",
        "Qwen3-VL",
    ),
    *("Gemma 2", "Gemma 3", "Gemma 3n", "Gemma 4 31B", "Gemma 4 E2B, E4B"),
    *(
        "DeepSeek V3",
        "DeepSeek V3.2",
        "DeepSeek V4",
        "GLM-4.5, 4.6, 4.7",
        "GLM-4.7 Flash",
        "GLM-5",
        "Kimi K2.5, Kimi-VL",
        "Kimi Linear",
    ),
    *(
        "MiniMax M2",
        "MiniMax M3",
        "GPT-OSS",
        "Phi 4 mini",
        "Granite 4 (dense)",
        "Nemotron 3 (experts)",
        "LFM2",
        "OLMo 3",
        "SmolLM3",
    ),
    *("Seed-OSS", "Hunyuan", "ERNIE 4.5"),
)

NOT_TRIED = "not tried: no small model could be made"
RECIPE = "a recipe serves"
# What is said of a configuration that transformers itself does nothing with.
BROKEN = ("cannot be made from its config.json", "has a config.json", "cannot be run")

# model_type to the row of the table.
seen: dict[str, str] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The long tail is listed only when it is asked for: to list it, transformers is imported."""
    if "any_model" in metafunc.fixturenames:
        metafunc.parametrize(
            "any_model", all_models() if metafunc.config.option.markexpr in ("tail", "") else []
        )


def all_models() -> list[str]:
    """Every model_type that transformers has a causal language model for."""
    transformers: Any = import_module("transformers")
    return sorted(transformers.MODEL_FOR_CAUSAL_LM_MAPPING._model_mapping)


@pytest.mark.few(4)
@pytest.mark.parametrize("model_type", FEW)
def test_a_model_without_a_recipe_computes_what_transformers_computes(
    model_type: str, tmp_path: Path
) -> None:
    row = row_of(model_type, tmp_path)
    assert "| served |" in row, row
    assert row in PAGE.read_text().splitlines(), (
        "PENSTOCK_WRITE_DOCS=1 pytest -m tail writes docs/models-fallback.md"
    )


@pytest.mark.tail
def test_whatever_transformers_knows_is_right_or_refused(any_model: str, tmp_path: Path) -> None:
    seen[any_model] = row_of(any_model, tmp_path)


@pytest.mark.tail
def test_the_page_says_what_was_seen_of_the_fallback() -> None:
    if len(seen) < len(all_models()):
        pytest.skip("not every model was run, or one failed")
    before, rest = PAGE.read_text().split(BEGIN)
    neither = [
        row.split("|")[1].strip() for row in seen.values() if "| served |" not in row and RECIPE not in row
    ]
    assert len(neither) <= MOST_REFUSED
    count = f"Of these {len(seen)} types {len(neither)} are served neither so nor by a recipe: {', '.join(neither)}."
    head = "| model_type | class | verdict | " + " | ".join(MODES) + " | greedy text |"
    table = "\n".join((head, "|---" * (4 + len(MODES)) + "|", *seen.values()))
    text = f"{before}{BEGIN}\n{count}\n\n{table}\n{END}{rest.split(END)[1]}"
    if os.environ.get("PENSTOCK_WRITE_DOCS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "PENSTOCK_WRITE_DOCS=1 writes docs/models-fallback.md anew"


def test_the_families_that_are_most_used_have_recipes() -> None:
    """And stand in the table as served in every way."""
    assert len(set(MOST_USED)) == 40
    lines = {
        line.split("|")[1].strip(): line
        for line in FAMILIES_PAGE.read_text().splitlines()
        if line.startswith("| ")
    }
    for family in MOST_USED:
        assert FAMILIES[family]["architectures"][0] in lines[family] and "engine" in lines[family]


def recipe_for(model_type: str) -> str:
    """What is said of a model_type that has a recipe, in the form that it is published in."""
    from penstock.models.architectures import RECIPES

    auto: Any = import_module("transformers.models.auto.modeling_auto")
    for kind in ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT"):
        name = getattr(auto, f"MODEL_FOR_{kind}_MAPPING_NAMES").get(model_type)
        if name in RECIPES:
            return f"; {RECIPE} `{name}`"
    return ""


def row_of(model_type: str, folder: Path) -> str:
    """Tries a model; fails where it is served and its numbers are not those of transformers."""
    row = tried(model_type, folder)
    if "| served |" in row:
        return row
    cells = row.split("|")
    cells[3] = f" {cells[3].strip()}{recipe_for(model_type)} "
    return "|".join(cells)


def tried(model_type: str, folder: Path) -> str:
    """The row, without what recipes serve."""
    try:
        config = small_config(model_type)
        refusal = refusal_of(config, folder)
        if refusal is None:
            check_size(config)
    except NotMade:
        if model_type not in NOT_SERVED:
            return f"| {model_type} | | {NOT_TRIED} | | | | | | |"
        auto: Any = import_module("transformers.models.auto.modeling_auto")
        name = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
        return f"| {model_type} | `{name}` | refused: {NOT_SERVED[model_type]} | | | | | | |"
    name = config["architectures"][0]
    if refusal is None:
        try:
            make(folder, config)
        except Exception:
            return f"| {model_type} | `{name}` | {NOT_TRIED} | | | | | | |"
        refusal = measure(folder, config)
    if refusal is not None and refusal.startswith(BROKEN):
        return f"| {model_type} | `{name}` | {NOT_TRIED} | | | | | | |"
    if refusal is not None:
        return f"| {model_type} | `{name}` | refused: {refusal} | | | | | | |"
    cells = ["fp32, bf16"] * len(MODES)
    return f"| {model_type} | `{name}` | served | " + " | ".join(cells) + " | equal |"


class Median(Reference):
    """For mixtures of experts, which in a short type choose others in a near-tie: the median of all tokens counts."""

    def __init__(self, folder: Path, sequences: list[list[int]]) -> None:
        super().__init__(folder, sequences)
        self.errors: list[tuple[float, float]] = []  # of ours, and of transformers in the same place

    def check(self, ours_V: Tensor, sequence: int, position: int, dtype: torch.dtype) -> None:
        """Fails at once in fp32; else keeps the error for `settle`."""
        if dtype == torch.float32:
            super().check(ours_V, sequence, position, dtype)
        exact_V = self.exact[sequence][position]
        pair = (ours_V, self.rounded[sequence][position])
        ours, theirs = (float((rounded_V - exact_V).norm() / exact_V.norm()) for rounded_V in pair)
        self.errors.append((ours, theirs))

    def settle(self) -> None:
        """Fails where our tokens are further off than those of transformers."""
        ours, theirs = torch.tensor(self.errors).median(0).values.tolist()
        assert ours <= 1.5 * theirs + 1e-6, f"relative error {ours:.4f}, of transformers {theirs:.4f}"
        self.errors.clear()


def refusal_of(config: dict[str, Any], folder: Path) -> str | None:
    """Why config.json alone is enough to refuse the model."""
    from penstock.models.fallback_loader import fallback_verdict

    verdict = fallback_verdict(config, folder)
    return None if verdict is None else verdict.rpartition("transformers: it ")[2]


def measure(folder: Path, config: dict[str, Any]) -> str | None:
    """Runs the families' tests on the model. Returns why it is refused, if it is."""
    from driver import Driver
    from penstock.engine.self_check import check
    from penstock.models.fallback import Fallback

    vocabulary = config["vocab_size"]
    sequences = [ids(vocabulary, 1), ids(vocabulary, 2, 90)]
    reference: Reference | None = None
    kind = Median if any("expert" in key for key in config) else Reference
    for dtype in DTYPES.values():
        try:
            driver = Driver(folder, dtype, **LIMITS, implementation="transformers")
            assert isinstance(driver.engine.model, Fallback)
            check(driver.engine)
        except UnusableModel as error:
            return str(error).rpartition("transformers: ")[2].removeprefix("it ")
        driver = Driver(folder, dtype, **LIMITS, implementation="transformers")
        reference = reference or kind(folder, sequences)
        prefill(driver, reference, sequences, dtype)
        in_pieces(driver, reference, sequences, dtype)
        prefix_hit(driver, reference, sequences, dtype)
        ragged(driver, reference, sequences, dtype)
        if isinstance(reference, Median):
            reference.settle()
    greedy(Driver(folder, torch.float32, **LIMITS, implementation="transformers"), vocabulary)
    same_with_drafts(Driver(folder, torch.float32, **LIMITS, implementation="transformers"), vocabulary)
    return None


def with_tokenizer(folder: Path, model_type: str = "bitnet") -> Path:
    """A model that no recipe serves, and the tokenizer of the one that ships."""
    make(folder, {**small_config(model_type), "vocab_size": 4096})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)
    return folder


def test_a_model_without_a_recipe_is_not_divided(tmp_path: Path) -> None:
    """Nor into stages: server/tests/test_fallback.py."""
    folder = with_tokenizer(tmp_path / "model")
    flags = ("--device", "cpu", "--num-shard", "2")
    with Launched(tmp_path / "run", "--model-id", str(folder), *flags) as launched:
        assert launched.wait_ended(120) == 1
        assert "--num-shard 2: BitNetForCausalLM runs through transformers" in launched.log()


def test_a_model_without_a_recipe_is_served(tmp_path: Path) -> None:
    """By the real `penstock`, which says what runs it; its greedy text is that of transformers."""
    folder = with_tokenizer(tmp_path / "model")
    limits = ("--max-total-tokens", "128", "--max-input-tokens", "64")
    with Launched(tmp_path / "run", "--model-id", str(folder), "--dtype", "float32", *limits) as launched:
        launched.wait_ready()
        assert wire.get(launched.address, "/info").json()["recipe"] == "transformers"
        parameters = {"max_new_tokens": 16, "details": True, "decoder_input_details": True}
        reply = wire.post(
            launched.address, "/generate", {"inputs": "A penstock is", "parameters": parameters}
        )
        assert reply.status == 200, reply.text
        details = reply.json()["details"]
    transformers: Any = import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids_1T = torch.tensor([[token["id"] for token in details["prefill"]]])
    theirs = model.generate(ids_1T, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
    ours = [token["id"] for token in details["tokens"]]
    assert ours == theirs[0, ids_1T.shape[1] :].tolist()


# The other has windows, chunks and experts.
@pytest.mark.tail
@pytest.mark.parametrize("model_type", ["bitnet", "llama4_text"])
def test_streams_go_on_in_a_small_cache_and_when_the_worker_is_killed(
    model_type: str, tmp_path: Path
) -> None:
    folder, total = with_tokenizer(tmp_path / "model", model_type), 192
    limits = ("--max-total-tokens", str(total), "--max-batch-total-tokens", str(total))
    by_transformers = ("--model-impl", "transformers")  # of the other there is a recipe, too
    requests = [
        complete(f"{stem} and a penstock", 150) for stem in ("A river", "The dam", "My gate", "Some water")
    ]
    with Launched(
        tmp_path / "run", "--model-id", str(folder), "--dtype", "float32", *limits, *by_transformers
    ) as launched:
        address = launched.wait_ready().address
        alone = [ask(address, request) for request in requests]
        for one, other in zip(alone, ask_all(address, requests), strict=True):
            assert other.error is None and one.same_as(other)
        assert launched.metrics().value(PREEMPTIONS) > 0
        worker = launched.worker()
        killed = ask_all_through(launched, requests, lambda: worker.signal(signal.SIGKILL))
        for one, other in zip(alone, killed, strict=True):
            assert other.error is None and one.same_as(other)
        assert launched.wait_ready().worker().pid != worker.pid
        wait_for(lambda: launched.metrics().value(KV_USED) == 0, "every page to come back")
