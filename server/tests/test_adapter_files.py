"""LoRA adapters: what is read of them is what peft adds to weights, and what is no pair of matrices beside a linear layer is refused in one line.

Files are written here in the form in which peft 0.21 saves them; `integration-tests/test_peft.py` has peft write them.
"""

import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

import checkpoints
from client import Worker
from penstock import adapters
from penstock.adapters import config, reading
from penstock.adapters.patterns import NamePattern
from penstock.errors import UnusableModel, one_line
from penstock.loading.memory import Room
from test_without_torch import WITHOUT

Q, V = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj"
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "owner/base",
    "r": 4,
    "lora_alpha": 6,
    "rank_pattern": {},
    "alpha_pattern": {},
    "bias": "none",
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "loftq_config": {},
    "lora_bias": False,
    "lora_dropout": 0.1,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "qalora_group_size": 16,
    "target_modules": ["q_proj", "v_proj"],
    "use_dora": False,
    "use_rslora": False,
}


def weights(*modules: str, rank: int = 4, inputs: int = 64, outputs: int = 32) -> dict[str, Tensor]:
    """Random pairs by PEFT's keys."""
    generator = torch.Generator().manual_seed(1)
    made = {}
    for module in modules or (Q, V):
        made[key(module, "A")] = torch.randn(rank, inputs, generator=generator)
        made[key(module, "B")] = torch.randn(outputs, rank, generator=generator)
    return made


def key(module: str, side: str) -> str:
    return f"base_model.model.{module}.lora_{side}.weight"


def write(folder: Path, made: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """An adapter's folder. A field that is changed to `...` is left out."""
    folder.mkdir(exist_ok=True)
    fields = {name: value for name, value in (CONFIG | changes).items() if value is not ...}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file(weights() if made is None else made, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def refusal(folder: Path) -> str:
    """The line that refuses an adapter, behind what it begins with."""
    with pytest.raises(UnusableModel) as raised:
        adapters.read("sql", folder)
    line, begin = str(raised.value), "--lora-adapters sql: "
    assert line.startswith(begin) and "\n" not in line and len(line) == len(one_line(raised.value)), line
    return line.removeprefix(begin)


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 6 / 4),
        ({"lora_alpha": ...}, 8 / 4),
        ({"use_rslora": True}, 6 / math.sqrt(4)),
        ({"lora_alpha": 0.5}, 0.5 / 4),
        ({"fan_in_fan_out": True}, 6 / 4),
        ({"init_lora_weights": "gaussian"}, 6 / 4),
        ({"init_lora_weights": "eva", "eva_config": {"rho": 2.0}}, 6 / 4),
        ({"modules_to_save": [], "target_parameters": None, "target_modules": "all-linear"}, 6 / 4),
    ],
)
def test_b_is_scaled_by_alpha_and_rank(changes: dict[str, Any], scale: float, tmp_path: Path) -> None:
    made = weights()
    adapter = adapters.read("sql", write(tmp_path, made, **changes))
    assert (adapter.name, adapter.base, list(adapter.pairs)) == ("sql", "owner/base", [Q, V])
    for module, pair in adapter.pairs.items():
        assert pair.a_RI.dtype == pair.b_OR.dtype == np.float32
        assert np.array_equal(pair.a_RI, made[key(module, "A")].numpy())
        np.testing.assert_allclose(pair.b_OR, scale * made[key(module, "B")].numpy(), rtol=1e-6)


def test_what_rank_and_alpha_are_left_out_for_is_pefts_default(tmp_path: Path) -> None:
    pairs = adapters.read("sql", write(tmp_path, weights(rank=8), r=..., lora_alpha=...)).pairs
    assert pairs[Q].rank == 8
    assert np.array_equal(pairs[Q].b_OR, weights(rank=8)[key(Q, "B")].numpy())


def test_patterns_name_the_rank_and_the_alpha_of_modules(tmp_path: Path) -> None:
    """Ones that match as a whole or behind a dot; the first counts. Each has the other's default."""
    made = weights(Q, rank=2) | weights(V)
    patterns: dict[str, Any] = {
        "rank_pattern": {r"^model\.layers\.0\..*": 2, "q_proj": 3},
        "alpha_pattern": {"proj": 100, "layers.1.self_attn.v_proj": 5, ".*": 9},
    }
    pairs = adapters.read("sql", write(tmp_path, made, **patterns)).pairs
    assert pairs[Q].rank == 2
    np.testing.assert_allclose(pairs[Q].b_OR, 9 / 2 * made[key(Q, "B")].numpy(), rtol=1e-6)
    np.testing.assert_allclose(pairs[V].b_OR, 5 / 4 * made[key(V, "B")].numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_numbers_become_fp32_and_older_keys_name_the_same(dtype: torch.dtype, tmp_path: Path) -> None:
    made = {name.replace(".weight", ".default.weight"): one.to(dtype) for name, one in weights().items()}
    pairs = adapters.read("sql", write(tmp_path, made, lora_alpha=4)).pairs
    for module, pair in pairs.items():
        for side, found in (("A", pair.a_RI), ("B", pair.b_OR)):
            assert np.array_equal(found, weights()[key(module, side)].to(dtype).float().numpy())


def test_equal_content_has_one_digest_and_any_change_another(tmp_path: Path) -> None:
    first = adapters.read("sql", write(tmp_path / "first"))
    assert re.fullmatch("[0-9a-f]{64}", first.digest)
    assert adapters.read("other", write(tmp_path / "second")).digest == first.digest
    made = weights()
    made[key(Q, "A")][0, 0] += 1
    changed = [write(tmp_path / "third", made), write(tmp_path / "fourth", lora_alpha=7)]
    assert len({first.digest, *(adapters.read("sql", one).digest for one in changed)}) == 3


MERGE = r": merge it into its base model \(merge_and_unload of peft\) and serve that"
ALONE = ": name it as --model-id, which merges it into its base model"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"peft_type": "IA3"}, 'peft_type is "IA3", and only LORA is served'),
        ({"peft_type": ...}, "no peft_type, and only LORA is served"),
        ({"use_dora": True}, f"use_dora is true, and .*{ALONE}"),
        ({"lora_bias": True}, f"lora_bias is true, and biases are not changed{ALONE}"),
        ({"bias": "lora_only"}, f'bias is "lora_only", and biases are not changed{ALONE}'),
        ({"modules_to_save": ["lm_head", "embed_tokens"]}, f'modules_to_save is .*"embed_tokens".*{ALONE}'),
        ({"trainable_token_indices": {"embed_tokens": [1]}}, f"trainable_token_indices is .*{ALONE}"),
        ({"target_parameters": ["experts.down_proj"]}, f"target_parameters is .*stacked weights are not changed{MERGE}"),
        ({"alora_invocation_tokens": [1, 2]}, r"alora_invocation_tokens is \[1, 2\], and .*a token on$"),
        ({"layer_replication": [[0, 2], [1, 2]]}, f"layer_replication is .*{MERGE}"),
        ({"use_qalora": True}, f"use_qalora is true, and .*{MERGE}"),
        ({"use_bdlora": {"nblocks": 2}}, f"use_bdlora is .*{MERGE}"),
        ({"arrow_config": {"top_k": 3}}, f"arrow_config is .*{MERGE}"),
        ({"kasa_config": {"beta": 0.1}}, f"kasa_config is .*{MERGE}"),
        ({"monteclora_config": {"num_samples": 8}}, f"monteclora_config is .*{MERGE}"),
        ({"enable_lora": [True, False, True]}, f"enable_lora is .*{MERGE}"),
        ({"init_lora_weights": "pissa"}, f'init_lora_weights is "pissa", and .*{MERGE}, or save it by peft with path'),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights is .* changes the base model's weights"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights is .* changes the base model's weights"),
        ({"init_lora_weights": "corda"}, "init_lora_weights is .* changes the base model's weights"),
        ({"init_lora_weights": "loftq"}, f"init_lora_weights is .* changes the base model's weights{MERGE}$"),
        ({"init_lora_weights": "new"}, "init_lora_weights is .* it is not known"),
        ({"init_lora_weights": 3}, "init_lora_weights is 3, .* it is not known"),
        ({"use_rslora": 1}, "use_rslora is 1, and it has to be true or false"),
        ({"r": 0}, "r is 0, and ranks are whole numbers from 1 to 512"),
        ({"r": 513}, "r is 513, and ranks are whole numbers from 1 to 512"),
        ({"r": 4.0}, "r is 4.0, and"),
        ({"r": True}, "r is true, and"),
        ({"r": "4"}, 'r is "4", and'),
        ({"lora_alpha": None}, "lora_alpha is null, and it has to be a number"),
        ({"lora_alpha": math.nan}, "lora_alpha is NaN, and it has to be a number"),
        ({"lora_alpha": 10**400}, r"lora_alpha is 10+\.\.\., and it has to be a number up to 1e30"),
        ({"rank_pattern": [1]}, r"rank_pattern is \[1\], and it has to be an object"),
        ({"rank_pattern": {"q_proj": 0}}, r'rank_pattern\["q_proj"\] is 0, and ranks are'),
        ({"alpha_pattern": {"q_proj": "8"}}, r'alpha_pattern\["q_proj"\] is "8", and it has'),
        ({"alpha_pattern": {"(a+)+b": 8}}, r'alpha_pattern\["\(a\+\)\+b"\]: only letters, digits'),
        ({"alpha_pattern": {"a" * 513: 8}}, r"alpha_pattern\[.*\]: patterns have at most 512 characters"),
        ({"alpha_pattern": {str(at): 8 for at in range(4097)}}, "alpha_pattern has 4097 patterns, and at most 4096"),
    ],
)  # fmt: skip
def test_fields_of_what_is_not_served_are_named(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    assert re.match(f"adapter_config.json: {says}", refusal(write(tmp_path, **changes)))


NUMBERS = st.integers(-(2**70), 2**70) | st.sampled_from([0, 4, 512, 10**30, 10**400]) | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from([*sorted({*CONFIG, *config.REFUSED}), "init_lora_weights"]), value=VALUES)
def test_any_value_of_any_field_is_read_or_refused_in_a_sentence(name: str, value: Any) -> None:
    try:
        said = config.parse(CONFIG | {name: value})
    except UnusableModel as error:
        assert "\n" not in str(error) and len(str(error)) < 500, error
    else:
        assert math.isfinite(said.scale_of(Q))


def without(*sides: str) -> dict[str, Tensor]:
    return {name: one for name, one in weights().items() if name not in sides}


def beside(name: str, made: Tensor | None = None) -> dict[str, Tensor]:
    return weights() | {name: torch.ones(4, 4) if made is None else made}


def with_number(number: float) -> dict[str, Tensor]:
    made = weights()
    made[key(V, "B")][3, 1] = number
    return made


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({}, "no tensors in it"),
        (without(key(Q, "B")), f"{Q} has lora_A without lora_B"),
        (without(key(V, "A")), f"{V} has lora_B without lora_A"),
        (weights(rank=3), rf"lora_A of {Q} is \[3, 64\] and lora_B \[32, 3\], and the rank is 4"),
        (
            weights() | {key(Q, "B"): torch.ones(32, 5)},
            rf"lora_A of {Q} is \[4, 64\] and lora_B \[32, 5\], and the rank is 4",
        ),
        (weights() | {key(Q, "A"): torch.ones(4)}, rf"lora_A of {Q} is \[4\], which is no matrix"),
        (weights() | {key(Q, "B"): torch.ones(8, 4, 1, 1)}, rf"lora_B of {Q} is \[8, 4, 1, 1\], which is no"),
        (weights() | {key(Q, "A"): torch.ones(4, 0)}, rf"lora_A of {Q} is \[4, 0\], which is no matrix"),
        (weights() | {key(Q, "A"): torch.ones(4, 64, dtype=torch.int8)}, f"lora_A of {Q} is in I8, and F64, F32"),
        (with_number(math.nan), rf"NaN or infinite numbers in base_model.model.{V}.lora_B.weight"),
        (with_number(math.inf), rf"NaN or infinite numbers in base_model.model.{V}.lora_B.weight"),
        (
            {name: one.double() for name, one in with_number(0).items()} | {key(V, "B"): torch.full((32, 4), 1e300, dtype=torch.float64)},
            rf"numbers too large for fp32 in base_model.model.{V}.lora_B.weight",
        ),
        (with_number(3e38), f"lora_B of {V} is too large for fp32 when it is scaled"),
        (
            beside("base_model.model.model.embed_tokens.lora_embedding_A"),
            "base_model.*lora_embedding_A: embeddings are not changed",
        ),
        (beside(f"base_model.model.{Q}.lora_magnitude_vector"), ".*vector: DoRA is not served"),
        (beside(f"base_model.model.{Q}.lora_B.bias"), ".*bias: biases are not changed"),
        (
            beside("base_model.model.lm_head.base_layer.weight"),
            ".*base_layer.weight: weights of the base model are not replaced",
        ),
        (beside("base_model.model.lm_head.weight"), ".*lm_head.weight: it is neither lora_A.weight nor lora_B"),
        (beside(f"{Q}.lora_A.weight"), f"{Q}.lora_A.weight: names begin with base_model.model."),
        (beside(f"base_model.model.{Q}.lora_A.default.weight"), f"{Q} has two of lora_A"),
        (weights("m" * 513), r"m+\.\.\.: names of modules have at most 512 characters"),
    ],
)  # fmt: skip
def test_weights_that_are_no_pairs_are_named(made: dict[str, Tensor], says: str, tmp_path: Path) -> None:
    line = refusal(write(tmp_path, made))
    assert re.match(f"adapter_model.safetensors: {says}", line), line


def cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    os.truncate(path, path.stat().st_size - 8)


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def fifo(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    os.mkfifo(folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "{folder}: no adapter_config.json"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "{folder}: no adapter_model.safetensors"),
        (pickled, "{folder}: only pickled weights (adapter_model.bin), which are not read: save"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "{folder}/adapter_config.json: not valid JSON"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "{folder}/adapter_config.json: not a JSON object"),
        (cut, "adapter_model.safetensors: not a sound safetensors file: it is cut short"),
        (fifo, "{folder}/adapter_model.safetensors: a FIFO, not a file"),
        (
            lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
            "adapter_model.safetensors: a pointer of Git LFS",
        ),
    ],
)  # fmt: skip
def test_files_that_are_missing_or_broken_are_named(
    harm: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    harm(write(tmp_path / "adapter"))
    assert refusal(tmp_path / "adapter").startswith(says.format(folder=tmp_path / "adapter"))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == f"there is no folder {tmp_path / 'none'}"


def test_an_adapter_that_is_larger_than_the_free_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "cpu_room", lambda: Room(1000, 1000))
    assert "takes 0.0 MB of memory, and 0.0 MB are free" in refusal(write(tmp_path))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["sql"], "--lora-adapters sql: it has to be NAME=FOLDER"),
        (["sql="], "--lora-adapters sql=: it has to be NAME=FOLDER"),
        (["=/a"], "--lora-adapters : names have 1 to 256 characters"),
        ([f"{257 * 'a'}=/a"], "names have 1 to 256 characters, without =, comma and @"),
        (["a@b=/a"], "--lora-adapters a@b: names have"),
        (["a,b=/a"], "--lora-adapters a,b: names have"),
        (["a=/a", "a=/b"], "--lora-adapters a: two adapters of this name"),
    ],
)
def test_a_source_that_is_none_is_named(given: list[str], says: str) -> None:
    with pytest.raises(UnusableModel, match=re.escape(says)):
        adapters.sources(given)


def test_sources_are_in_their_order_and_folders_may_have_any_name() -> None:
    given = ["owner/one=/a=b,c@d", "two=relative"]
    assert adapters.sources(given) == [("owner/one", Path("/a=b,c@d")), ("two", Path("relative"))]


@settings(max_examples=500, deadline=None)
@given(
    pattern=st.lists(
        st.sampled_from(
            [
                "a", "b", "ab", ".", r"\.", r"\d", "1", "12", "[ab]", "[0-9]", "[^.]+", "[^a]", "(a|ab)", "(?:1|12|2)", ".*", ".+", "a?", r"\d+",
                "(a|b)*", "[a1]*", "_",
            ]
        ),
        max_size=6,
    ).map("".join),
    ends=st.sampled_from(["{}", "^{}", "{}$", "^{}$"]),
    name=st.lists(st.sampled_from(["a", "b", "1", "2", "12", "ab", "_"]), min_size=1, max_size=5).map(".".join),
)  # fmt: skip
def test_patterns_match_as_pythons_expressions_do(pattern: str, ends: str, name: str) -> None:
    text = ends.format(pattern)
    assert NamePattern(text).matches(name) == bool(re.match(rf"(.*\.)?({text})$", name)), (text, name)


def test_no_pattern_takes_long() -> None:
    """The longest ones, of a kind that a search that goes back takes years for."""
    began = time.thread_time()
    for one in (".*a" * 170, "(a|aa)*" * 70, "[a.]+" * 100):
        assert not NamePattern(one + "b").matches("a." * 256)
    assert time.thread_time() - began < 20


@pytest.mark.parametrize(
    "text", ["(a+)+", "a{2}", "a(?=b)", "a**", "a*?", "[^]", "[z-a]", "a b", "(a", "\\w", "", "a|b"]
)
def test_other_expressions_are_not_read(text: str) -> None:
    if text:
        with pytest.raises(ValueError, match="only letters, digits"):
            NamePattern(text)
    else:
        assert not NamePattern(text).matches("a")


def test_a_worker_describes_its_adapters_in_their_order_and_imports_no_torch(tmp_path: Path) -> None:
    model = checkpoints.write(tmp_path / "model", checkpoints.config())
    made = weights(Q, outputs=64) | weights(V)
    first, second = write(tmp_path / "first", made), write(tmp_path / "second", made, lora_alpha=7)
    options = ["--dtype", "bfloat16", "--packed-cache", "off", "--threads", "1"]
    options += ["--lora-adapters", f"b/sql={first}", "--lora-adapters", f"a={second}"]
    with Worker(model, tmp_path / "worker", *options, program=WITHOUT) as worker:
        described = [(one.name, one.digest) for one in worker.describe().adapters]
    assert described == [("b/sql", adapters.read("", first).digest), ("a", adapters.read("", second).digest)]
    said = [line["message"] for line in worker.log]
    assert "adapter b/sql: 2 pairs of matrices of rank 4, made for owner/base" in said


def test_a_worker_without_adapters_describes_none(tmp_path: Path) -> None:
    model = checkpoints.write(tmp_path / "model", checkpoints.config())
    options = ("--dtype", "bfloat16", "--packed-cache", "off", "--threads", "1")
    with Worker(model, tmp_path / "worker", *options) as worker:
        assert not worker.describe().adapters


def test_an_adapter_that_cannot_be_read_ends_the_start_in_one_line(tmp_path: Path) -> None:
    model = checkpoints.write(tmp_path / "model", checkpoints.config())
    given = f"sql={write(tmp_path / 'adapter', use_dora=True)}"
    worker = Worker(model, tmp_path / "worker", "--lora-adapters", given, "--packed-cache", "off")
    assert worker.exit_status() == 1
    (line,) = [line["message"] for line in worker.log if line["level"] == "ERROR"]
    assert line.startswith("--lora-adapters sql: adapter_config.json: use_dora is true")
