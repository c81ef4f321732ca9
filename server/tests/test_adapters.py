"""Adapters in the engine, of one small model: which slots have which, on the CPU engine and on torch, read in Python or in C; and what is refused."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import checkpoints
from adapted import adapter, random_pairs, write
from client import DEVICE, row
from driver import Driver
from penstock.engine.plan import SAMPLE, START, Plan, greedy_starts
from penstock.engine.slots import Limits, SlotTable
from penstock.errors import BadPlan, UnusableModel
from penstock.models.adapting import adaptable
from penstock.models.packed_cache import PackedCache
from test_go_on import Rows, Script, compare, executed
from test_verify import PROMPT

NUMBERS = [int(token) for token in torch.randint(3, 199, (70,), generator=torch.Generator().manual_seed(3))]
LIMITS: dict[str, Any] = {"max_sequence_tokens": 160, "blocks": 128}

on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="of the CPU engine")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model"), checkpoints.config())


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """One of all matrices, and one of queries and values alone, as most are."""
    folder = tmp_path_factory.mktemp("adapters")
    whole, _ = adapter(folder / "whole", model, rank=4, seed=1)
    modules = adaptable(checkpoints.config(), model)
    some = {name: shape for name, shape in modules.items() if name.endswith(("q_proj", "v_proj"))}
    return [("whole", str(whole)), ("some", str(write(folder / "some", random_pairs(some, 8, 2))))]


def logits(driver: Driver, starts: dict[int, dict[str, Any]], pieces: list[int]) -> dict[int, list[Tensor]]:
    """Of each slot what follows each piece of the same tokens."""
    found: dict[int, list[Tensor]] = {slot: [] for slot in starts}
    begin = 0
    for count in pieces:
        rows = []
        for slot, start in starts.items():
            tokens = NUMBERS[begin : begin + count]
            blocks = [] if begin else list(range(8 * slot, 8 * slot + 5))
            rows.append(row(slot, tokens, begin, blocks, start=None if begin else start))
        driver.step(rows)
        begin += count
        for slot, logits_V in zip(starts, driver.last_logits(), strict=True):
            found[slot].append(logits_V)
    return found


@on_cpu
@pytest.mark.parametrize("quantize", ["", "int8", "int4", "int4-g64-zp"])
def test_a_token_gets_the_same_whoever_is_beside_it(
    quantize: str, model: Path, adapters: list[tuple[str, str]]
) -> None:
    """On the CPU engine to the last bit: alone, in a batch with others, in other pieces, with one thread; and without one what a model without adapters gives."""
    driver = Driver(model, torch.bfloat16, adapters=adapters, quantize=quantize, **LIMITS)
    native = driver.engine.native
    assert native is not None
    assert not any(one.pairs for one in driver.engine.adapters), "they are not held twice"
    mixed = {0: {"adapter": 1}, 1: {"adapter": 0}, 2: {"adapter": 2}, 3: {"adapter": 2}, 4: {"adapter": 1}}
    pieces = [1, 20, 30, *[1] * 5]
    together = logits(driver, mixed, pieces)
    for one, other in zip(together[0], together[4], strict=True):
        assert torch.equal(one, other)
    for slot, number in ((5, 0), (6, 1), (7, 2)):
        native.set_threads(1)
        (alone,) = logits(driver, {slot: {"adapter": number}}, [51, *[1] * 5]).values()
        native.set_threads(2)
        same = next(at for at, start in mixed.items() if start["adapter"] == number)
        for one, other in zip(alone, together[same][2:], strict=True):
            assert torch.equal(one, other), number
    apart = [(together[one][-1] - together[1][-1]).norm() / together[1][-1].norm() for one in (0, 2)]
    assert min(apart) > 0.1, apart
    plain = logits(Driver(model, torch.bfloat16, quantize=quantize, **LIMITS), {0: {}}, pieces)
    for one, other in zip(plain[0], together[1], strict=True):
        assert torch.equal(one, other)


@on_cpu
@pytest.mark.parametrize("quantize", ["", "int4"])
def test_a_start_from_packed_weights_has_the_adapters_of_that_start(
    quantize: str, model: Path, adapters: list[tuple[str, str]], tmp_path: Path
) -> None:
    import threading

    found: list[Tensor] = []
    for given in (adapters, adapters, adapters[::-1], []):
        cache = PackedCache(tmp_path, keeps_all=True)
        options = {"packed_cache": cache, "quantize": quantize, "adapters": given, **LIMITS}
        driver = Driver(model, torch.bfloat16, **options)
        assert (cache.mapped_bytes > 0) == bool(found)
        start = {"adapter": 1 + given.index(adapters[0])} if given else {}
        found.append(logits(driver, {0: start}, [40, 1])[0][-1])
        cache.keep()
        for thread in threading.enumerate():
            if thread.name == "packed cache":
                thread.join()
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])


@on_cpu
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("drafts", [False, True], ids=["", "drafts"])
def test_plans_that_c_reads_have_their_adapters(
    seed: int, drafts: bool, model: Path, adapters: list[tuple[str, str]]
) -> None:
    driver, rng = Driver(model, torch.bfloat16, adapters=adapters, blocks=128), Random(seed)
    script = Script(driver)
    script.step([row(7, PROMPT, 0, [127], start={"adapter": 2})])  # behind the first one C takes over
    rows = Rows(script, [{"adapter": 1}, {"adapter": 0}, {"adapter": 2}], [False, False, seed == 2])
    for turn in range(12):
        guesses: list[list[int]] = [[] for _ in range(3)]
        if drafts and turn >= 2:
            guesses = [[rng.randrange(199) for _ in range(rng.randrange(3))] for _ in range(3)]
        rows.step(guesses, rng)
    # A slot that had one begins again with another, and with none.
    for slot, number in ((5, 1), (5, 2), (5, 0)):
        script.step([row(slot, PROMPT, 0, [100], start={"adapter": number})], released=[])
        for turn in range(3):
            script.step([row(slot, None, len(PROMPT) + turn)])
    compare(script, rng, most=1)
    texts = rows.texts
    assert texts[0] != texts[1] and texts[1] != texts[2]


@on_cpu
def test_a_wrong_number_comes_to_python_and_is_refused(model: Path, adapters: list[tuple[str, str]]) -> None:
    driver, rng = Driver(model, torch.bfloat16, adapters=adapters, blocks=128), Random(0)
    for start, says in (
        ({"adapter": 3}, "starts.adapters: 3, but there are 3 adapters, with none"),
        ({}, "starts.adapters: 0 entries, but 1 rows of a model with some adapters start"),
    ):
        driver.begin()
        script = Script(driver)
        Rows(script, [{"adapter": 1}], [False]).step([[]], rng)
        from client import make_plan
        from penstock.proto import penstock_pb2 as pb

        plan = driver.numbering.stamp(make_plan([row(5, PROMPT, 0, [100], start=start)], None, driver.tables))
        frames = [message.SerializeToString() for message in (*script.messages(rng), pb.ToWorker(plan=plan))]
        outcome = executed(driver, frames, rng)
        assert outcome.end is not None and outcome.end[0] is BadPlan and says in outcome.end[1]


def test_a_model_without_adapters_is_told_nothing_of_them() -> None:
    table = SlotTable(Limits(4, 64, 64, pages=8, block_size=16, vocab_size=99))
    none = np.zeros(0, np.uint32)
    starts = greedy_starts(1)
    starts.adapters = np.zeros(1, np.uint32)
    one = np.ones(1, np.int64)
    plan = Plan(
        number=1,
        released=none,
        slots=one,
        flags=np.full(1, START | SAMPLE, np.uint8),
        positions=np.zeros(1, np.int64),
        counts=one,
        tokens=np.ones(1, np.uint32),
        new_block_counts=one,
        new_pages=np.zeros(1, np.uint32),
        prompt_targets=none,
        starts=starts,
    )
    with pytest.raises(
        BadPlan, match=r"^starts\.adapters: 1 entries, but 1 rows of a model with no adapter start"
    ):
        table.apply(plan)


def test_torch_computes_only_for_tokens_that_have_one(model: Path, adapters: list[tuple[str, str]]) -> None:
    driver = Driver(model, torch.float32, adapters=adapters, **LIMITS)
    mixed = {0: {"adapter": 1}, 1: {"adapter": 0}, 2: {"adapter": 2}, 3: {"adapter": 1}}
    together = logits(driver, mixed, [30, 1, 1])
    plain = logits(Driver(model, torch.float32, **LIMITS), {0: {}}, [30, 1, 1])
    torch.testing.assert_close(together[1][-1], plain[0][-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(together[0][-1], together[3][-1], atol=1e-4, rtol=1e-4)
    for slot, number in ((4, 1), (5, 2)):
        alone = logits(driver, {slot: {"adapter": number}}, [30, 1, 1])[slot][-1]
        torch.testing.assert_close(
            alone, together[number - 1 if number == 1 else 2][-1], atol=1e-4, rtol=1e-4
        )


def refused(model: Path, folder: Path, **options: Any) -> str:
    with pytest.raises(UnusableModel) as error:
        Driver(model, torch.float32, adapters=[("mine", str(folder))], **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_does_not_fit_the_model_is_named(model: Path, tmp_path: Path) -> None:
    modules = adaptable(checkpoints.config(), model)
    name, (outputs, inputs) = next(iter(modules.items()))
    wide = write(tmp_path / "wide", random_pairs({name: (outputs, inputs + 8)}, 4, 0))
    assert refused(model, wide) == (
        f"--lora-adapters mine: is of another model: {name} is changed as a matrix of {outputs} rows and {inputs + 8} columns, and has "
        f"{outputs} and {inputs}"
    )
    for module in (
        "lm_head",
        "model.embed_tokens",
        "model.layers.9.mlp.up_proj",
        "model.vision_tower.layers.0.mlp.up_proj",
    ):
        other = write(tmp_path / module, random_pairs({name: (outputs, inputs), module: (8, 8)}, 4, 0))
        assert refused(model, other).startswith(
            f"--lora-adapters mine: changes what adapters cannot change in this model: {module}. They change"
        )
    assert refused(model, wide, implementation="transformers") == (
        "--lora-adapters: encoder-decoders and models through transformers have no adapters"
    )


def test_modules_of_classes_are_found_below_other_names(
    model: Path, adapters: list[tuple[str, str]], tmp_path: Path
) -> None:
    """What is saved of a model that reads images, too, has another beginning than the files of its text."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "other"
    folder.mkdir()
    config = json.loads((Path(adapters[0][1]) / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = load_file(Path(adapters[0][1]) / "adapter_model.safetensors")
    save_file(
        {key.replace(".model.layers.", ".model.language_model.layers."): one for key, one in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    driver = Driver(model, torch.float32, adapters=[adapters[0], ("other", str(folder))], **LIMITS)
    found = logits(driver, {0: {"adapter": 1}, 1: {"adapter": 2}}, [30])
    torch.testing.assert_close(found[0][-1], found[1][-1], atol=1e-5, rtol=1e-5)
