"""`python -m penstock.doctor`: what it finds in folders and on a hub on loopback, and what it fetches for that."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import adapted
import checkpoints
import encoder_decoders
from hub_server import Fault, Hub, Repo
from penstock import tiny
from penstock.doctor import memory
from penstock.doctor.examination import examine
from penstock.doctor.question import Question
from penstock.doctor.report import Report, as_json, as_text
from penstock.hub import client as hub
from penstock.loading.host import Processor
from penstock.loading.memory import Room
from penstock.models import building
from penstock.models.adapting import NO_ADAPTERS
from penstock.models.architectures import RECIPES
from penstock.models.family_names import NAMES
from penstock.models.native import NativeDecoder
from penstock.parallel.group import ALONE
from penstock_kernels import cpu_engine, tensors
from penstock_kernels.cpu_engine import NoCpuEngine

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def write(folder: Path, config: dict[str, Any] | None = None, **more: Any) -> Path:
    """A checkpoint with the shipped model's tokenizer and template."""
    checkpoints.write(folder, config or checkpoints.config(vocab_size=4096), **more)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tiny.MODEL / name, folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model")


def problem(folder: Path, **question: Any) -> str:
    """The only one."""
    problems = examine(folder, Question(**question)).problems
    assert len(problems) == 1 and "\n" not in problems[0], problems
    return problems[0]


def test_tensors_that_the_index_leaves_out_are_told(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", shards=2)
    (last,) = folder.glob("*-00002-of-00002.safetensors")
    save_file({**load_file(last), "mtp.fc.weight": torch.ones(2)}, last, metadata={"format": "pt"})
    report = examine(folder, Question())
    assert report.would_serve and any(
        line.startswith("model.safetensors.index.json: 1 tensor is left out")
        and line.endswith(f"the first is mtp.fc.weight in {last.name}")
        for line in report.warnings
    )


def test_a_model_that_would_be_served_is_described(tmp_path: Path) -> None:
    config = checkpoints.config(vocab_size=4096, torch_dtype="bfloat16")
    folder = write(tmp_path / "model", config, shards=2)
    report = examine(folder, Question())
    assert report.would_serve and not report.warnings
    weights = checkpoints.tensors(config)
    parameters = sum(t.numel() for t in weights.values())
    assert (report.architecture, report.recipe, report.fallback) == ("LlamaForCausalLM", "llama", False)
    assert report.parameters == parameters and report.weight_bytes_per_shard == [2 * parameters]
    assert report.stored_dtypes == {"F32": 4 * parameters} and report.dtype == "bfloat16"
    # 3 layers, keys and values, 2 heads of 16 numbers of two bytes.
    assert report.kv_bytes_per_token == [3 * 2 * 2 * 16 * 2] and report.context == 512
    assert report.tokens == 4096 and report.tokenizer == "tokenizer.json"
    assert report.chat_template == "chat_template.jinja" and report.eos_token_ids == [2]
    assert [fit.context for fit in report.fits] == [512] and report.fits[0].sequences > 100
    text = as_text(report)
    assert text.endswith("would be served")
    assert report.family is not None and report.family.startswith("Llama 1, 2 and 3")
    runs = "torch" if report.engine == "torch" else "CPU engine"
    assert "architecture  LlamaForCausalLM\n" in text
    assert f"family        {report.family} (recipe llama, {runs}" in text


def test_every_architecture_has_a_name_that_people_know_it_by() -> None:
    assert NAMES.keys() == RECIPES.keys()
    assert all(0 < len(name) < 60 and "For" not in name for name in NAMES.values())


def test_what_computes_a_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = checkpoints.config(vocab_size=4096, torch_dtype="bfloat16")
    folder = write(tmp_path / "model", config)
    report = examine(folder, Question(device="cpu", dtype="float32"))
    assert (report.engine, report.why_torch) == ("torch", "the CPU engine does not serve float32 weights")
    assert "(recipe llama, torch: the CPU engine does not serve float32 weights)" in as_text(report)
    report = examine(folder, Question(device="cpu", implementation="transformers"))
    assert (report.family, report.engine, report.why_torch) == (None, "torch", None)
    assert "family        not known by a name (no recipe, through transformers, torch)" in as_text(report)
    monkeypatch.setenv(cpu_engine.VARIABLE, "none")
    report = examine(folder, Question(device="cpu"))
    assert (report.engine, report.why_torch) == ("torch", "PENSTOCK_CPU_ISA is none")
    monkeypatch.delenv(cpu_engine.VARIABLE)
    try:
        cpu_engine.instruction_set()
    except NoCpuEngine as error:
        pytest.skip(str(error))
    assert examine(folder, Question(device="cpu")).engine == "cpu"


def test_the_program_of_the_cpu_engine_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        cpu_engine.instruction_set()
    except NoCpuEngine as error:
        pytest.skip(str(error))
    config = checkpoints.config(vocab_size=4096, torch_dtype="bfloat16")
    folder = write(tmp_path / "model", config)
    asked = Question(device="cpu", program=True)
    report = examine(folder, asked)
    _, loaded = building.load(config, folder, tensors.bfloat16, Processor(), ALONE, False, "auto")
    assert isinstance(loaded, NativeDecoder) and report.program == str(loaded.program).splitlines()
    assert report.program[1] == "   0  x = embed(ids): columns 64, weight"
    assert report.program[1] in as_text(report) and not examine(folder, Question(device="cpu")).program
    quantized = examine(folder, replace(asked, quantize="int8")).program
    assert quantized != report.program and any("format int8" in line for line in quantized)
    says = "no program: only the CPU engine runs one"
    assert examine(folder, replace(asked, dtype="float32")).program == [
        f"{says}, and it does not serve float32 weights"
    ]
    monkeypatch.setenv(cpu_engine.VARIABLE, "none")
    assert examine(folder, asked).program[0].startswith(f"{says}: PENSTOCK_CPU_ISA is none")


def test_weights_that_the_engine_serves_in_another_dtype_are_a_warning(tmp_path: Path) -> None:
    try:
        cpu_engine.instruction_set()
    except NoCpuEngine as error:
        pytest.skip(str(error))
    folder = write(tmp_path / "model", checkpoints.config(vocab_size=4096, torch_dtype="float16"))
    report = examine(folder, Question(device="cpu"))
    assert report.would_serve and report.dtype == "bfloat16"
    assert report.warnings == ["float16 weights are served in bfloat16, as the CPU engine computes"]
    for question in (
        Question(device="cpu", dtype="float16"),
        Question(device="cpu", stages=2),
        Question(device="cpu", implementation="transformers"),
    ):
        report = examine(folder, question)
        assert report.would_serve and report.dtype == "float16" and not report.warnings, question


def test_quantized_weights_are_counted_as_they_will_be_held(tmp_path: Path) -> None:
    config = checkpoints.config(vocab_size=4096, intermediate_size=128)  # in whole tiles
    folder = write(tmp_path / "model", config)
    try:
        cpu_engine.instruction_set()
    except NoCpuEngine as error:
        assert str(error) in problem(folder, device="cpu", quantize="int8")
        return
    weights = checkpoints.tensors(config)
    matrices = sum(tensor.numel() for name, tensor in weights.items() if "_proj." in name)
    others = sum(tensor.numel() for tensor in weights.values()) - matrices
    report = examine(folder, Question(device="cpu", quantize="int8"))
    assert report.would_serve and report.dtype == "bfloat16"
    assert report.weight_bytes_per_shard == [matrices + 2 * others]
    head = examine(folder, Question(device="cpu", quantize="int8", quantize_head=True))
    assert head.weight_bytes_per_shard == [matrices + 2 * others - 4096 * 64]
    says = "--quantize int4: only the CPU engine quantizes weights, and it does not serve"
    assert f"{says} float16 weights" in problem(folder, device="cpu", quantize="int4", dtype="float16")
    assert f"{says} several stages" in problem(folder, device="cpu", quantize="int4", stages=2)
    groups = examine(folder, Question(device="cpu", quantize="int4-g128-zp")).weight_bytes_per_shard
    # 1 KB and 16 scales for 16 outputs x 128 inputs.
    shapes = [tensor.shape for name, tensor in weights.items() if "_proj." in name]
    held_in_groups = sum(rows // 16 * -(-columns // 128) * 1088 for rows, columns in shapes)
    assert groups == [held_in_groups + 2 * others]
    halves = examine(folder, Question(device="cpu", quantize="int8", shards=2))
    norms = sum(tensor.numel() for name, tensor in weights.items() if "norm" in name)
    filled_up = 3 * 64 * 32  # a layer's attention gives 32 numbers on each rank, and int8 is read in 64
    held = (matrices + 2 * (others - norms)) // 2 + 2 * norms + filled_up
    assert halves.would_serve and halves.weight_bytes_per_shard == [held, held]
    bf16 = examine(folder, Question(device="cpu", dtype="bfloat16"))
    halved = examine(folder, Question(device="cpu", dtype="bfloat16", cache_dtype="fp8_e5m2"))
    assert halved.kv_bytes_per_token == [bf16.kv_bytes_per_token[0] // 2]
    says = "--kv-cache-dtype int8: only the CPU engine has such a cache, and it does not serve"
    assert f"{says} float16 weights" in problem(folder, device="cpu", cache_dtype="int8", dtype="float16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="each part needs a GPU of its own there")
def test_shards_have_their_parts_and_what_does_not_divide_is_named(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "model", checkpoints.config(vocab_size=4096, num_attention_heads=6, head_dim=16)
    )
    whole = examine(folder, Question())
    halves = examine(folder, Question(shards=2))
    assert halves.would_serve and len(halves.weight_bytes_per_shard) == 2
    norms = 4 * 64 * 7
    assert sum(halves.weight_bytes_per_shard) == whole.weight_bytes_per_shard[0] + norms
    assert halves.kv_bytes_per_token == [whole.kv_bytes_per_token[0] // 2] * 2
    assert "on each of 2 shards" in as_text(halves)
    assert "--num-shard 4 does not divide the attention heads" in problem(folder, shards=4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="each part needs a GPU of its own there")
@pytest.mark.parametrize("tied", [False, True])
def test_stages_have_their_layers(tied: bool, tmp_path: Path) -> None:
    """Of three layers the first stage has two, and the embedding; the second one the head."""
    config = checkpoints.config(vocab_size=4096, tie_word_embeddings=tied)
    folder = write(tmp_path / "model", config)
    whole = examine(folder, Question())
    stages = examine(folder, Question(stages=2))
    assert stages.would_serve and stages.parameters == whole.parameters
    table = 4 * 4096 * 64
    first, second = stages.weight_bytes_per_shard
    assert first + second == whole.weight_bytes_per_shard[0] + (table if tied else 0)
    tensors = checkpoints.tensors(config)
    layer = sum(4 * t.numel() for name, t in tensors.items() if ".layers.0." in name)
    assert first == table + 2 * layer
    each = whole.kv_bytes_per_token[0] // 3
    assert stages.kv_bytes_per_token == [2 * each, each]
    assert "on each of 2 stages" in as_text(stages)
    grid = examine(folder, Question(shards=2, stages=2))
    assert grid.would_serve and grid.parameters == whole.parameters
    assert grid.kv_bytes_per_token == [each, each, each // 2, each // 2]
    assert sum(grid.weight_bytes_per_shard) >= first + second
    assert "on each of 2 stages of 2 shards" in as_text(grid)
    assert "--pipeline-parallel 4 is more than the model's layers (3)" in problem(folder, stages=4)


def test_what_cannot_be_divided_is_a_problem(tmp_path: Path) -> None:
    folder = encoder_decoders.write(tmp_path / "model", next(iter(encoder_decoders.FAMILIES)))
    shutil.copy(tiny.MODEL / "tokenizer.json", folder)
    assert "use --pipeline-parallel 1" in problem(folder, stages=2)
    folder = write(tmp_path / "other")
    assert "--pipeline-parallel 2: LlamaForCausalLM runs through transformers" in problem(
        folder, stages=2, implementation="transformers"
    )


def test_shards_that_meet_at_an_address_are_torchs(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", checkpoints.config(vocab_size=4096, torch_dtype="bfloat16"))
    apart = examine(folder, Question(device="cpu", shards=2, meets_elsewhere=True))
    assert (apart.would_serve, apart.engine) == (True, "torch")
    assert apart.why_torch == "the CPU engine does not serve shards that meet at --master-addr"
    refused = problem(folder, device="cpu", shards=2, meets_elsewhere=True, quantize="int8")
    assert refused.endswith("it does not serve shards that meet at --master-addr")
    alone, elsewhere = (
        examine(folder, Question(device="cpu", meets_elsewhere=is_far)) for is_far in (False, True)
    )
    assert alone.engine == elsewhere.engine


def test_what_depends_on_the_batch_is_not_deterministic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "model", checkpoints.config(vocab_size=4096))
    monkeypatch.setenv(cpu_engine.VARIABLE, "none")
    assert examine(folder, Question(device="cpu", deterministic=True, shards=2)).would_serve
    four = problem(folder, device="cpu", deterministic=True, shards=4)
    assert four.startswith("--deterministic: the sums of 4 shards depend on the batch")
    other = problem(folder, deterministic=True, implementation="transformers")
    assert other == (
        "--deterministic: LlamaForCausalLM runs through transformers, whose sums depend on the batch"
    )


def test_adapters_that_fit_are_named_and_others_are_problems(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    good, _ = adapted.adapter(tmp_path / "good", folder, rank=4, seed=0)
    bad = adapted.write(tmp_path / "bad", adapted.random_pairs({"lm_head": (8, 8)}, 4, 0))
    given = (f"good={good}", f"bad={bad}", "none=/no/such", "some/where")
    for shards in (1, 2):
        report = examine(folder, Question(adapters=given, shards=shards))
        assert report.adapters == ["good"]
        assert [problem.partition(": ")[0] for problem in report.problems] == [
            "--lora-adapters bad",
            "--lora-adapters none",
        ]
        assert (
            "--lora-adapters some/where: what is on the hub is looked at when it is downloaded"
            in report.warnings
        )
    report = examine(folder, Question(adapters=given[:1], implementation="transformers"))
    assert report.adapters == [] and NO_ADAPTERS in report.problems


def test_a_recipe_can_be_passed_over(folder: Path) -> None:
    report = examine(folder, Question(implementation="transformers"))
    assert report.would_serve and (report.recipe, report.fallback) == (None, True)
    assert report.parameters == examine(folder, Question()).parameters
    config = {
        **checkpoints.config(vocab_size=4096),
        "architectures": ["BitNetForCausalLM"],
        "model_type": "bitnet",
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert "unsupported architecture BitNetForCausalLM" in problem(folder, implementation="penstock")


@pytest.mark.parametrize("family", encoder_decoders.FAMILIES)
def test_an_encoder_decoder_is_described(family: str, tmp_path: Path) -> None:
    folder = encoder_decoders.write(tmp_path / "model", family)
    shutil.copy(tiny.MODEL / "tokenizer.json", folder)
    report = examine(folder, Question())
    assert report.would_serve, report.problems
    assert report.recipe in ("t5", "bart") and report.fits[-1].sequences > 10


def test_dynamic_rotary_tables_are_stretched_only_where_longer_sequences_are_asked_for(
    tmp_path: Path,
) -> None:
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    config = checkpoints.config(vocab_size=4096, max_position_embeddings=512, rope_scaling=scaling)
    folder = write(tmp_path / "model", config)
    report = examine(folder, Question())
    assert (report.context, report.longer_context) == (512, True)
    assert examine(folder, Question(longest=2048)).would_serve
    assert "--max-total-tokens 2049 is more than the 2048 positions" in problem(folder, longest=2049)


def test_linear_biases_allow_longer_sequences(tmp_path: Path) -> None:
    plain = examine(write(tmp_path / "plain"), Question())
    assert not plain.longer_context and "--max-total-tokens" not in as_text(plain)
    config = {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "vocab_size": 4096,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 4,
        "seq_length": 128,
    }
    folder = tmp_path / "bloom"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    report = examine(folder, Question())
    assert (report.context, report.longer_context) == (128, True)
    assert "128 tokens; more with --max-total-tokens" in as_text(report)


def test_every_problem_is_said_not_only_the_first(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text("[")
    (folder / "config.json").write_text(json.dumps(checkpoints.config(vocab_size=5000)))
    problems = examine(folder, Question(device="cuda:77")).problems
    assert len(problems) == 4
    for words in (
        "cuda:77",
        "[4096, 64], not [5000, 64]",
        "tokenizer.json: is not valid",
        "generation_config",
    ):
        assert sum(words in problem for problem in problems) == 1, words


def break_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def break_architecture(folder: Path) -> None:
    config = checkpoints.config(architectures=["NobodysModel"])
    (folder / "config.json").write_text(json.dumps(config))


def break_quantization(folder: Path) -> None:
    config = checkpoints.config(vocab_size=4096, quantization_config={"quant_method": "aqlm"})
    (folder / "config.json").write_text(json.dumps(config))


def break_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def break_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (break_config, "no config.json"),
        (break_architecture, "NobodysModel"),
        (break_quantization, "quantized (aqlm)"),
        (break_weights, "cut short"),
        (break_pickled, "--trust-remote-code"),
        (break_tokenizer, "tokenizer.json: missing"),
    ],
)
def test_what_would_not_be_served_is_said(breaks: Any, words: str, folder: Path) -> None:
    breaks(folder)
    assert words in problem(folder)


def test_missing_shards_are_listed(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    report = examine(folder, Question())
    assert report.missing_files == ["model-00002-of-00003.safetensors"]
    assert report.problems == [
        "model.safetensors.index.json: 1 file is missing: model-00002-of-00003.safetensors"
    ]


def test_weights_that_memory_cannot_hold_are_a_problem(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "device_room", lambda _: Room(2_000_000, 1_500_000))
    assert "the weights take 2.5 MB of memory, and 1.5 MB are free" in problem(folder, device="cpu")
    monkeypatch.setattr(memory, "device_room", lambda _: Room(2 << 30, (1 << 30) + (20 << 20)))
    assert "memory is too small" in problem(folder, device="cpu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_of_a_long_context_what_fits_is_served_and_a_length_that_is_asked_for_has_to(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 10 << 20
    config = checkpoints.config(vocab_size=4096, torch_dtype=dtype, max_position_embeddings=most)
    folder = write(tmp_path / "model", config)
    monkeypatch.setattr(memory, "device_room", lambda _: Room(8 << 30, 2 << 30))
    asked = Question(device="cpu", dtype=dtype)
    report = examine(folder, asked)
    assert report.would_serve, report.problems
    (warning,) = [line for line in report.warnings if "whole context" in line]
    found = re.search(r"more than about (\d+) tokens", warning)
    assert found is not None and 100_000 < int(found[1]) < most
    served = int(found[1])
    for fit in report.fits:
        assert (fit.sequences > 0) == (fit.context <= served), fit
    short = examine(folder, replace(asked, longest=4096))
    assert short.would_serve and not short.warnings
    assert [fit.context for fit in short.fits] == [1024, 2048, 4096] and short.fits[-1].sequences > 10
    assert "--max-total-tokens 10000000: memory has room for" in problem(
        folder, device="cpu", dtype=dtype, longest=10_000_000
    )
    less = examine(folder, replace(asked, memory_fraction=0.1))
    assert less.fits[0].sequences < report.fits[0].sequences


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_server_that_is_told_to_take_little_at_once_needs_less_memory(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who lowers the limits of a step does that because memory is short."""
    config = checkpoints.config(vocab_size=200_000, torch_dtype=dtype, max_position_embeddings=8192)
    folder = write(tmp_path / "model", config)
    asked = Question(device="cpu", dtype=dtype, longest=8192)
    monkeypatch.setattr(memory, "device_room", lambda _: Room(8 << 30, 2 << 30))
    roomy = examine(folder, asked)
    assert roomy.would_serve, roomy.problems
    assert roomy.cache_bytes_per_shard is not None
    taken = (2 << 30) - roomy.cache_bytes_per_shard
    monkeypatch.setattr(memory, "device_room", lambda _: Room(8 << 30, taken))
    (problem,) = examine(folder, asked).problems
    assert "memory has room for" in problem or "memory is too small" in problem
    small = replace(asked, slots=4, step_tokens=64)
    assert examine(folder, small).would_serve, examine(folder, small).problems


def test_a_draft_model_needs_positions_for_what_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model was made for more, of which memory has no room for all."""

    def of(positions: int) -> Path:
        config = checkpoints.config(vocab_size=4096, max_position_embeddings=positions)
        return write(tmp_path / str(positions), config)

    folder, enough, short = of(10 << 20), of(9 << 20), of(2048)
    monkeypatch.setattr(memory, "device_room", lambda _: Room(8 << 30, 2 << 30))
    report = examine(folder, Question(device="cpu", draft=enough))
    assert report.would_serve, report.problems
    assert any("requests of more than about" in line for line in report.warnings)
    says = r"made for 2048 positions, and sequences have up to \d+; lower --max-total-tokens"
    assert re.search(says, problem(folder, device="cpu", draft=short))
    assert examine(folder, Question(device="cpu", draft=short, longest=2048)).would_serve
    assert "sequences have up to 2049;" in problem(folder, device="cpu", draft=short, longest=2049)


def test_pickled_weights_are_looked_at_with_consent(folder: Path) -> None:
    plain = examine(folder, Question())
    torch.save(checkpoints.tensors(checkpoints.config(vocab_size=4096)), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    report = examine(folder, Question(trusted=True))
    assert report.would_serve and report.pickled
    assert (report.parameters, report.stored_dtypes) == (plain.parameters, plain.stored_dtypes)


def test_what_is_no_error_is_a_warning(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(checkpoints.config(vocab_size=4096, eos_token_id=None)))
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").unlink()
    report = examine(folder, Question())
    assert report.would_serve
    assert [line.split(":")[0] for line in report.warnings] == ["no chat template", "no eos_token_id"]


def test_every_name_of_the_json_is_documented() -> None:
    page = PAGE.read_text()
    for name in as_json(Report()):
        assert f"| `{name}` |" in page, name


@pytest.fixture
def served(folder: Path) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with Hub({"owner/model": Repo(files)}) as served:
        yield served


def ask(hub: Hub, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "penstock.doctor", "--model-id", "owner/model", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**inherited, "HOME": str(home / "home"), "HF_ENDPOINT": hub.url},
    )


def test_of_a_model_on_the_hub_only_headers_are_read(served: Hub, folder: Path, tmp_path: Path) -> None:
    ended = ask(served, tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    here = as_json(examine(folder, Question()))
    for name in (
        "parameters",
        "weight_bytes_per_shard",
        "kv_bytes_per_token",
        "architecture",
        "context",
        "tokens",
    ):
        assert found[name] == here[name], name
    assert found["commit"] == "a" * 40 and found["model"] == "owner/model" and found["would_serve"]
    asked = [seen.range for seen in served.seen if seen.method == "GET" and "/content/" in seen.path]
    assert asked == ["bytes=0-100000"]
    assert not list((tmp_path / "home").rglob("*.safetensors"))


def test_a_header_that_the_hub_refuses_for_a_moment_is_asked_for_again(served: Hub, tmp_path: Path) -> None:
    served.faults = [Fault("GET", "/content/", 503)]
    ended = ask(served, tmp_path, "--json")
    assert ended.returncode == 0 and json.loads(ended.stdout)["would_serve"], ended.stdout
    assert [seen.range for seen in served.seen if "/content/" in seen.path] == ["bytes=0-100000"] * 2


def test_a_model_on_the_hub_that_does_not_exist_is_a_problem(served: Hub, tmp_path: Path) -> None:
    served.repos.clear()
    ended = ask(served, tmp_path)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert re.search(r"^problem +there is no model owner/model on the hub", ended.stdout, re.MULTILINE)
    assert ended.stdout.endswith("would not be served\n")


def test_a_folder_that_is_not_there_is_said_to_be_none(served: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "none"
    ended = ask(served, tmp_path, "--model-id", str(folder))
    assert ended.returncode == 1
    assert f"there is no folder {folder}, and it is no name of a model on the hub" in ended.stdout


HERE = "--for-this-machine"  # as the launcher asks


def download(served: Hub, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "penstock.download", "owner/model", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**inherited, "HOME": str(home / "home"), "HF_ENDPOINT": served.url},
    )


def test_before_a_large_download_the_doctor_is_asked(served: Hub, tmp_path: Path) -> None:
    repo = served.repos["owner/model"]
    repo.sizes["model.safetensors"] = hub.LARGE
    ended = download(served, tmp_path, HERE, "--num-shard", "3")
    assert ended.returncode == 1
    failed = json.loads(ended.stdout.splitlines()[-1])["failed"]
    assert failed.startswith("the model owner/model would not be served: --num-shard 3 does not divide")
    asked = [seen.range for seen in served.seen if seen.method == "GET" and "/content/" in seen.path]
    assert asked == ["bytes=0-100000"]
    long = json.loads(
        download(served, tmp_path, HERE, "--max-total-tokens", "999999").stdout.splitlines()[-1]
    )["failed"]
    assert (
        "--max-total-tokens 999999 is more than the" in long and "positions this model was made for" in long
    )
    little = download(served, tmp_path, HERE, "--memory-fraction", "1e-9").stdout.splitlines()[-1]
    assert "memory is too small" in json.loads(little)["failed"]
    large = ("--max-batch-size", "50000000", "--max-batch-prefill-tokens", "50000000")
    steps = download(served, tmp_path, HERE, *large).stdout.splitlines()[-1]
    assert "memory is too small" in json.loads(steps)["failed"]
    # A small one is fetched at once; the worker finds the same.
    del repo.sizes["model.safetensors"]
    assert download(served, tmp_path, HERE, "--num-shard", "3").returncode == 0


def test_who_only_fetches_is_not_asked_whether_the_model_can_be_served_here(
    served: Hub, tmp_path: Path
) -> None:
    """A builder of images, an init container, a machine whose memory another server has at the moment."""
    served.repos["owner/model"].sizes["model.safetensors"] = hub.LARGE
    ended = download(served, tmp_path, "--memory-fraction", "1e-9")
    # The hub of the test says more than it has: that is met only where the weights themselves are asked for.
    assert "would not be served" not in ended.stdout and "looking at the headers" not in ended.stdout
    asked = [seen.range for seen in served.seen if seen.method == "GET" and "/content/" in seen.path]
    assert asked and "bytes=0-100000" not in asked
    del served.repos["owner/model"].sizes["model.safetensors"]
    ended = download(served, tmp_path, "--num-shard", "3")
    assert ended.returncode == 0 and "snapshot" in json.loads(ended.stdout.splitlines()[-1])
