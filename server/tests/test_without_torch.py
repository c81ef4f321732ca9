"""A worker whose model the CPU engine runs never imports torch, whatever its requests ask for, whether the packed cache has the model or
not. What needs torch says so where it is not installed."""

import base64
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex  # type: ignore[import-untyped]
from tokenizers import Tokenizer

import checkpoints
import encoder_decoders
from client import DEVICE, Worker, mask_of, row, sampled
from penstock import tiny
from penstock.doctor.examination import examine
from penstock.doctor.question import Question
from penstock.hub import kimi
from penstock.hub.tokenizer import Unconvertible, convert, obtain
from penstock.loading import host
from penstock.loading.host import INSTALL_TORCH
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine
from test_draft_model import llama_of
from test_parity import PROMPT as LONG
from test_parity import VARIANTS
from test_rendezvous import free_port
from test_shards import started, steps, together, two_sequences

try:
    SETS = cpu_engine.instruction_sets() if DEVICE == "cpu" else []
except NoCpuEngine:
    SETS = []
pytestmark = pytest.mark.skipif(not SETS, reason="there is no CPU engine here")

# Whatever module on the way imports torch, or what imports it, gets an error, which ends the worker.
REFUSES = """
import sys
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise RuntimeError(f"a worker without torch imports {name}")
sys.meta_path.insert(0, Refuses())
from penstock.worker import main
main()
"""
WITHOUT = ("-c", REFUSES)
# As where it is not installed.
ABSENT = ("-c", REFUSES.replace("RuntimeError", "ModuleNotFoundError"))
PROMPT = LONG[:20]
# What rows are sampled with: all that a sampler does.
STARTS: list[dict[str, Any]] = [
    {"top_tokens": 3},
    {"temperatures": 1.2, "seeds": 5, "top_ks": 40, "top_ps": 0.95, "min_ps": 0.01, "typical_ps": 0.9},
    {"temperatures": 0.8, "seeds": 6, "repetition_penalties": 1.3, "history": PROMPT, "top_tokens": 2},
    {"temperatures": 0.9, "seeds": 7, "watermark_deltas": 2.0, "watermark_greens": 60},
]


def served(worker: Worker, trees: bool = True) -> list[tuple[bytes, ...]]:
    """Answers to a prompt with log probabilities, to rows that are sampled in all ways, masked, and with drafts that are a tree."""
    worker.prepare()
    run = worker.run()
    starts = [
        row(slot, PROMPT, 0, [3 * slot, 3 * slot + 1, 3 * slot + 2], start=start, targets=[1] * len(PROMPT))
        for slot, start in enumerate(STARTS)
    ]
    results = [run.step(starts)]
    position = len(PROMPT)
    for _ in range(3):
        results.append(run.step([row(slot, None, position) for slot in range(len(STARTS))]))
        position += 1
    run.send([row(0, None, position, masked=True), row(1, None, position, drafts=[4, 5])])
    run.send_masks(mask_of([3, 9, 11], 199))
    results.append(run.receive())
    assert sampled(results[-1])[0] in (3, 9, 11)
    if trees:
        results.append(run.step([row(0, None, position + 1, drafts=[4, 5, 6], parents=[0, 0, 1])]))
    worker.check()
    run.end()
    return [(one.sampled, one.top_tokens, one.accepted, *floats_of(one)) for one in results]


def floats_of(result: Any) -> list[bytes]:
    return [result.logprobs, result.prompt_logprobs, result.top_logprobs]


@pytest.mark.parametrize(
    ("name", "quantize", "cached"),
    [("llama3", "", "auto"), ("dynamic", "int8", "auto"), ("llama3", "", "int8")],
)
def test_no_start_imports_torch_and_all_answer_the_same(
    name: str, quantize: str, cached: str, tmp_path: Path
) -> None:
    model = checkpoints.write(tmp_path / "model", checkpoints.config(**VARIANTS[name]))
    cache = tmp_path / "packed"
    options = ["--dtype", "bfloat16", "--packed-cache-dir", str(cache), "--threads", "2"]
    options += ["--kv-cache-dtype", cached]
    if quantize:
        options += ["--quantize", quantize]
    with Worker(model, tmp_path / "first", *options, program=WITHOUT) as first:
        expected = served(first)
        wait_for_files(cache, first)
        described = first.describe()
    with Worker(model, tmp_path / "second", *options, program=WITHOUT) as second:
        assert served(second) == expected
        assert second.describe() == described
    assert any("are mapped from" in line["message"] for line in second.log)
    assert not any(line["level"] in ("WARN", "ERROR", "RAW") for line in second.log), second.log


@pytest.mark.parametrize(
    ("family", "quantize", "cached"),
    [
        ("T5", "", "auto"),
        ("Flan-T5", "int4", "int8"),
        ("T5", "int4-g64-zp", "auto"),
        ("BART", "int8", "auto"),
    ],
)
def test_an_encoder_decoder_is_loaded_and_starts_again_without_torch(
    family: str, quantize: str, cached: str, tmp_path: Path
) -> None:
    model, cache = encoder_decoders.write(tmp_path / "model", family), tmp_path / "packed"
    options = ["--dtype", "bfloat16", "--packed-cache-dir", str(cache), "--threads", "2"]
    if quantize:
        options += ["--quantize", quantize]
    answers, described = [], []
    for start in ("first", "second"):
        with Worker(model, tmp_path / start, *options, "--kv-cache-dtype", cached, program=WITHOUT) as worker:
            worker.prepare()
            run = worker.run()
            read = [encoder_decoders.LONG, encoder_decoders.SHORT]
            rows = [
                row(
                    slot,
                    [*encoder_decoders.padded(one), 2],
                    0,
                    encoder_decoders.blocks(96, 6 * slot),
                    start={**STARTS[slot + 1], "history": [2], "encoder": len(one)},
                )
                for slot, one in enumerate(read)
            ]
            results = [run.step(rows)]
            for step in range(4):
                results.append(run.step([row(0, None, 65 + step), row(1, None, 33 + step)]))
            worker.check()
            run.end()
            answers.append([(one.sampled, one.top_tokens, *floats_of(one)) for one in results])
            described.append(worker.describe())
            wait_for_files(cache, worker)
    assert answers[0] == answers[1] and described[0] == described[1]
    assert any("are mapped from" in line["message"] for line in worker.log)
    assert not any(line["level"] in ("WARN", "ERROR", "RAW") for line in worker.log), worker.log


@pytest.mark.parametrize(("factor", "holds"), [(1 / 1000, True), (1000, False)])
def test_what_an_earlier_start_has_measured_holds_unless_steps_are_far_faster(
    factor: float, holds: bool, tmp_path: Path
) -> None:
    """What was measured beside other work is not believed for ever; what is measured beside other work now says nothing. How many drafts
    steps may have changes nothing of it."""
    model = checkpoints.write(tmp_path / "model", checkpoints.config())
    cache = tmp_path / "packed"
    options = ["--dtype", "bfloat16", "--packed-cache-dir", str(cache), "--threads", "2"]

    def cost(start: str, drafts: int) -> Any:
        with Worker(model, tmp_path / start, *options) as worker:
            told = worker.prepare(max_step_drafts=drafts).cost
            wait_for_files(cache, worker)
            return told

    cost("first", 16)
    (file,) = cache.glob("*.measured")
    content = json.loads(file.read_text())
    content["measured"]["fixed_ns"] *= factor
    content["measured"]["per_token_ns"] = content["measured"]["per_context_token_ns"] = 0.0
    file.write_text(json.dumps(content))
    assert (cost("second", 0).fixed_ns == content["measured"]["fixed_ns"]) == holds


def wait_for_files(cache: Path, worker: Worker) -> None:
    """Until what the worker keeps for the next start is written."""
    deadline = time.monotonic() + 60
    while not (list(cache.glob("*.packed")) and list(cache.glob("*.measured"))):
        assert time.monotonic() < deadline, worker.log
        time.sleep(0.01)


def test_a_draft_model_is_loaded_without_torch(tmp_path: Path) -> None:
    model, draft = llama_of(tmp_path / "model"), llama_of(tmp_path / "draft", seed=1)
    options = ["--dtype", "bfloat16", "--packed-cache", "off", "--threads", "2"]
    flags = {"plain": options, "drafting": [*options, "--draft-model-dir", str(draft)]}
    answers = []
    for name, given in flags.items():
        with Worker(model, tmp_path / name, *given, program=WITHOUT) as worker:
            answers.append(served(worker, trees=False))
    assert answers[0] == answers[1]


def test_shards_on_the_engine_import_no_torch(tmp_path: Path) -> None:
    model = checkpoints.write(tmp_path / "model", checkpoints.config())
    options = ("--dtype", "bfloat16", "--packed-cache", "off")
    with started(model, tmp_path, 2, 1, *options, program=WITHOUT) as ranks:
        together(ranks, Worker.prepare)
        results = steps(two_sequences(), [rank.run() for rank in ranks])
        assert any(sampled(one) for one in results[0]) and not any(one.sampled for one in results[1])


def test_torch_is_asked_for_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for pip, begins in ((object(), f"{sys.executable} -m pip install "), (None, "uv pip install --python ")):
        monkeypatch.setattr(host, "find_spec", {"pip": pip}.get)
        assert host.install_torch().startswith(begins) and sys.executable in host.install_torch()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--dtype", "float32"],
            f"models in float32 need torch, which is not installed: {INSTALL_TORCH}",
        ),
        (["--model-impl", "transformers"], "models through transformers need torch"),
        (["--device", "cuda"], "models on --device cuda need torch"),
    ],
)
def test_what_needs_torch_says_so_where_there_is_none(options: list[str], says: str, tmp_path: Path) -> None:
    model = checkpoints.write(tmp_path / "model", checkpoints.config())
    given = {"--dtype": "bfloat16", **dict(zip(options[::2], options[1::2], strict=True))}
    flags = [part for pair in given.items() for part in pair]
    worker = Worker(model, tmp_path / "only", *flags, program=ABSENT)
    assert worker.exit_status() == 1
    (line,) = [line["message"] for line in worker.log if line["level"] == "ERROR"]
    assert says in line


@pytest.mark.parametrize(
    ("dtype", "program"), [("float16", WITHOUT), ("float32", ABSENT)], ids=["fp16", "fp32"]
)
def test_weights_of_another_dtype_are_served_in_bf16_and_a_line_says_so(
    dtype: str, program: tuple[str, ...], tmp_path: Path
) -> None:
    """fp16 always, fp32 where there is no torch; and the same text as of --dtype bfloat16."""
    model = checkpoints.write(tmp_path / "model", checkpoints.config(torch_dtype=dtype))
    options = ("--packed-cache", "off", "--threads", "2")
    with Worker(model, tmp_path / "auto", *options, program=program) as worker:
        assert worker.describe().dtype == "bfloat16"
        answers = served(worker)
    assert any(line["message"].startswith(f"{dtype} weights are served in bfloat16") for line in worker.log)
    with Worker(model, tmp_path / "asked", *options, "--dtype", "bfloat16", program=program) as asked:
        assert served(asked) == answers
    assert not any("are served in bfloat16" in line["message"] for line in asked.log)


def test_a_checkpoint_whose_config_names_no_dtype_is_served_as_its_weights_are_stored(
    tmp_path: Path,
) -> None:
    made = checkpoints.config()
    weights = {name: tensor.bfloat16() for name, tensor in checkpoints.tensors(made).items()}
    weights["model.norm.weight"] = weights["model.norm.weight"].float()  # of some, more digits are kept
    del made["torch_dtype"]
    model = checkpoints.write(tmp_path / "model", made, weights)
    options = ("--packed-cache", "off", "--threads", "2")
    with Worker(model, tmp_path / "auto", *options, program=WITHOUT) as worker:
        assert worker.describe().dtype == "bfloat16"
    assert examine(model, Question(device="cpu")).dtype == "bfloat16"


def test_a_driver_without_a_gpu_changes_nothing_of_how_fp16_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's driver has torch asked for GPUs, and where it finds none the CPU engine serves what it serves without a driver."""
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(cpu_engine.LIBRARY)  # any library can be loaded
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model = checkpoints.write(tmp_path / "model", checkpoints.config(torch_dtype="float16"))
    options = ("--packed-cache", "off", "--threads", "2", "--device", "auto")
    with Worker(model, tmp_path / "auto", *options) as worker:
        assert worker.describe().dtype == "bfloat16"
    said = [line["message"] for line in worker.log]
    assert any(line.startswith("the CPU engine runs the model") for line in said), said
    assert any(line.startswith("float16 weights are served in bfloat16") for line in said), said
    (unseen,) = [line for line in worker.log if "torch sees no GPU" in line["message"]]
    assert unseen["level"] == "WARN" and unseen["message"].endswith("; the CPU serves"), unseen
    with Worker(model, tmp_path / "asked", *options, "--dtype", "float16") as worker:
        assert worker.describe().dtype == "float16"


def test_shards_of_several_hosts_are_served_in_the_dtype_of_their_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch serves them, which has fp16."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    model = checkpoints.write(tmp_path / "model", checkpoints.config(torch_dtype="float16"))
    options = ["--packed-cache", "off", "--threads", "1", "--world-size", "2"]
    options += ["--rendezvous", f"tcp://127.0.0.1:{free_port()}/ranks"]
    ranks = [Worker(model, tmp_path / f"{rank}", "--rank", str(rank), *options) for rank in range(2)]
    with ranks[0], ranks[1]:
        assert [rank.describe().dtype for rank in ranks] == ["float16", "float16"]
    said = [line["message"] for rank in ranks for line in rank.log]
    assert any(line.startswith("torch runs the model") for line in said), said
    assert not any("are served in bfloat16" in line for line in said), said


def test_pickled_weights_say_that_only_torch_reads_them(tmp_path: Path) -> None:
    model = checkpoints.write(tmp_path / "model", checkpoints.config())
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"PK")
    options = ["--dtype", "bfloat16", "--trust-remote-code", "--packed-cache", "off"]
    worker = Worker(model, tmp_path / "only", *options, program=ABSENT)
    assert worker.exit_status() == 1
    assert any("pickled weights (pytorch_model.bin) need torch" in line["message"] for line in worker.log), (
        worker.log
    )


# Runs a module where importing torch is an error, with what follows as its arguments.
RUNS = """
import runpy, sys
sys.modules["torch"] = None
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def run_module(*arguments: str) -> str:
    """What it says."""
    command = [sys.executable, "-c", RUNS, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_doctor_imports_no_torch(tmp_path: Path) -> None:
    model = checkpoints.write(tmp_path, checkpoints.config(vocab_size=4096, torch_dtype="bfloat16"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny.MODEL / name, model)
    said = run_module("penstock.doctor", "--folder", str(model), "--device", "cpu", "--program")
    assert said.splitlines()[-1] == "would be served" and "x = embed(ids)" in said


def test_a_tokenizer_is_made_of_older_files_without_torch(tmp_path: Path) -> None:
    pieces = ["<|endoftext|>", *map(chr, range(33, 127)), "\u0120", "he", "hel"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: at for at, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\nhe l\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    said = run_module("penstock.hub.tokenizer", str(tmp_path), "--cache-dir", str(tmp_path / "cache"))
    assert "hel" in Path(json.loads(said.splitlines()[-1])["tokenizer"]).read_text()


@pytest.mark.parametrize("version", [None, 7, 11])
def test_a_tokenizer_is_made_of_mistrals_own_file(version: int | None, tmp_path: Path) -> None:
    """Which says what is special or, up to version 7, leaves it to mistral-common; `<s>` is before every text."""
    pieces = [*(bytes([byte]) for byte in range(256)), b"he", b"hel"]
    vocabulary = [
        {"rank": at, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
        for at, piece in enumerate([*pieces, b"beyond default_vocab_size"])
    ]
    sizes = {"default_vocab_size": 100 + len(pieces), "default_num_special_tokens": 100}
    given: dict[str, Any] = {"config": {"pattern": "[a-z]+|.", "version": f"v{version or 11}", **sizes}}
    if version is None:
        given["special_tokens"] = [
            {"rank": at, "token_str": name, "is_control": True}
            for at, name in enumerate(["<unk>", "<s>", "</s>", "[THINK]"])
        ]
    (tmp_path / "tekken.json").write_text(json.dumps(given | {"vocab": vocabulary}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    arguments = ("penstock.hub.tokenizer", str(tmp_path), "--cache-dir", str(tmp_path / "cache"))
    if version == 11:
        with pytest.raises(AssertionError, match=r"made of tekken\.json .*v11 and has no special_tokens"):
            run_module(*arguments)
        return
    made = Tokenizer.from_file(json.loads(run_module(*arguments).splitlines()[-1])["tokenizer"])
    special = "[THINK]" if version is None else "[INST]"
    encoded = made.encode(f"{special}hel\u00e9")
    assert encoded.ids == [1, 3, 100 + 257, 100 + 0xC3, 100 + 0xA9]
    assert made.decode(encoded.ids) == "hel\u00e9"
    assert made.encode("hel", add_special_tokens=False).ids == [100 + 257]
    assert made.get_vocab_size() == 100 + len(pieces)


# Of the kind that Moonshot's files have: longer ones, some of which are also what others make together.
PIECES = [
    *(
        "th",
        "he",
        "the",
        " t",
        " the",
        "in",
        "ing",
        "er",
        "er'",
        "'s",
        "12",
        "123",
        "1234",
        "ab",
        "bc",
        "abc",
        "Ab",
        "  ",
        "\n\n",
    ),
    *("\u6f22", "\u5b57", "\u6f22\u5b57", "\u5b57a"),
]
TEXTS = [
    "the HTTPServer's things, THE'S ending\n\n  abcAbc abc'LL 12345 1234",
    "in\u6f22\u5b57abc \u6f22\u5b57\u3001the\u3402 \u00e9the\u0301 \ud55c\uae00 \u3042\u30a2 the\u6f22'sThe",
    "  \t x   \r\n\r\n y  ",
    "\U0001f469\u200d\U0001f469 the \u0130ng \u01c5the \u02b0 \u2160 \u00bd",
]


def tiktoken_ids(ranks: dict[bytes, int], text: str) -> list[int]:
    """As tiktoken: of each word's neighbours those are merged, the first ones first, that have the lowest rank together."""
    found: list[int] = []
    for word in regex.findall(kimi.WORDS, text, regex.VERSION1):
        parts = [bytes([byte]) for byte in word.encode()]
        while True:
            pairs = [first + second for first, second in itertools.pairwise(parts)]
            at = min(
                (at for at, pair in enumerate(pairs) if pair in ranks),
                key=lambda at: ranks[pairs[at]],
                default=None,
            )
            if at is None or word.encode() in ranks:
                break
            parts[at : at + 2] = [pairs[at]]
        found += [ranks[word.encode()]] if word.encode() in ranks else [ranks[part] for part in parts]
    return found


def moonshots(folder: Path, pieces: list[bytes]) -> dict[bytes, int]:
    """Writes files such as Moonshot's, with gaps between the special tokens."""
    ranks = {piece: at for at, piece in enumerate(pieces)}
    lines = [b"%s %d" % (base64.b64encode(piece), at) for piece, at in ranks.items()]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    special = {0: ("[BOS]", True), 2: ("<|im_end|>", True), 22: ("<think>", False), 255: ("[PAD]", True)}
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": {
            str(len(ranks) + at): {"content": name, "special": is_special}
            for at, (name, is_special) in special.items()
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]})
    )
    return ranks


def test_a_tokenizer_is_made_of_moonshots_own_file(tmp_path: Path) -> None:
    """Words are cut as its code says it, and special tokens have the numbers of tokenizer_config.json."""
    generator = np.random.default_rng(5)
    pieces = [bytes([byte]) for byte in generator.permutation(256)]  # as in the published file, not in order
    ranks = moonshots(tmp_path, [*pieces, *(piece.encode() for piece in PIECES)])
    base = len(ranks)
    said = run_module("penstock.hub.tokenizer", str(tmp_path), "--cache-dir", str(tmp_path / "cache"))
    made = Tokenizer.from_file(json.loads(said.splitlines()[-1])["tokenizer"])
    assert made.get_vocab_size() == base + 256
    for text in TEXTS:
        ids = made.encode(text).ids
        assert ids == tiktoken_ids(ranks, text), text
        assert made.decode(ids) == text
    assert made.encode(f"the[BOS]<think>the<|reserved_token_{base + 1}|>").ids == [
        ranks[b"the"], base, base + 22, ranks[b"the"], base + 1,
    ]  # fmt: skip
    special = {number: token for number, token in made.get_added_tokens_decoder().items() if token.special}
    assert len(special) == 255 and base + 22 not in special and special[base + 255].content == "[PAD]"
    assert made.decode([base, base + 22, ranks[b"the"], base + 2]) == "<think>the"


def test_merges_are_those_of_tiktoken(tmp_path: Path) -> None:
    """Of tokens that come about in several ways, and that no training would have made."""
    generator = np.random.default_rng(7)
    letters = [bytes([byte]) for byte in b"abcd"]
    pieces = [bytes([byte]) for byte in range(256)]
    while len(pieces) < 320:
        piece = b"".join(generator.choice(letters, generator.integers(2, 6)))
        if (
            any(piece[:at] in pieces and piece[at:] in pieces for at in range(1, len(piece)))
            and piece not in pieces
        ):
            pieces.append(piece)
    ranks = moonshots(tmp_path, pieces)
    made = Tokenizer.from_str(kimi.convert(tmp_path))
    differing = 0
    for _ in range(300):
        text = b"".join(generator.choice(letters, 12)).decode()
        differing += made.encode(text).ids != tiktoken_ids(ranks, text)
    assert not differing


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokenizer_class": "QWenTokenizer"}, "only Moonshot's"),
        ({"auto_map": {"AutoTokenizer": ["tokenization_kimia.TikTokenTokenizer", None]}}, "only Moonshot's"),
        ({"added_tokens_decoder": None}, "names no special tokens"),
        ({"added_tokens_decoder": {"163584": {"content": "[BOS]"}}}, "gives [BOS] the number 163584"),
        ({"added_tokens_decoder": {"258": {"content": "a"}}}, "special token a would not have the number"),
        ({"added_tokens_decoder": {"one": {"content": "a"}}}, "is not of numbers and tokens"),
    ],
)
def test_a_tiktoken_file_of_others_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    moonshots(tmp_path, [bytes([byte]) for byte in range(256)])
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(Unconvertible, match=re.escape(says)):
        convert(tmp_path, "tiktoken.model")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"YQ== 0\nYg== 2\n", "are not 0 to 1"),
        (b"YQ== 0\n", "no token for the byte 0"),
        (b"YQ== 0\nY= 1\n", "line 2 is no token"),
        (b"YQ== 0\nYg==\n", "line 2 is no token"),
        (b"version https://git-lfs.github.com/spec/v1\n", "line 1 is no token"),
    ],
)
def test_a_tiktoken_file_that_is_none_is_refused(text: bytes, says: str, tmp_path: Path) -> None:
    moonshots(tmp_path, [bytes([byte]) for byte in range(256)])
    (tmp_path / "tiktoken.model").write_bytes(text)
    with pytest.raises(Unconvertible, match=says):
        convert(tmp_path, "tiktoken.model")


def test_a_tiktoken_file_under_another_name_says_what_it_is(tmp_path: Path) -> None:
    """As GLM-4 9B was first published, and Qwen 1."""
    moonshots(tmp_path, [bytes([byte]) for byte in range(256)])
    (tmp_path / "tiktoken.model").rename(tmp_path / "tokenizer.model")
    with pytest.raises(
        Unconvertible, match=r"a file of tiktoken's, not SentencePiece's: .*add a tokenizer\.json"
    ):
        obtain(tmp_path, tmp_path / "cache")
    (tmp_path / "tokenizer.model").rename(tmp_path / "qwen.tiktoken")
    with pytest.raises(Unconvertible, match=r"; qwen\.tiktoken is not read: .*add a tokenizer\.json"):
        obtain(tmp_path, tmp_path / "cache")


def test_an_adapter_beside_the_weights_is_named(tmp_path: Path) -> None:
    model = checkpoints.write(tmp_path / "model", checkpoints.config(vocab_size=4096, torch_dtype="bfloat16"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny.MODEL / name, model)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (model / name).write_text("{}")
    with Worker(model, tmp_path / "worker", "--packed-cache", "off", "--threads", "2") as worker:
        worker.describe()
    (warning,) = [line for line in worker.log if "adapter" in line["message"]]
    assert warning["level"] == "WARN" and warning["message"].startswith("adapter_config.json is not read: ")
    report = examine(model, Question(device="cpu"))
    assert report.would_serve and warning["message"] in report.warnings


def test_the_log_probability_of_a_row_does_not_depend_on_the_others() -> None:
    """Of numpy's logarithm, which computes several at once."""
    totals = np.random.default_rng(3).uniform(1, 1e4, 1001).astype(np.float32)
    together = np.log(totals.astype(np.float64))
    assert all(np.log(np.float64(one)) == whole for one, whole in zip(totals, together, strict=True))
