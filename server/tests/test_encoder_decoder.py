"""Encoder-decoders: logits match Hugging Face transformers, however a sequence is cut into steps and batched."""

import dataclasses
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from client import DEVICE, row, sampled
from driver import NAN, Driver
from encoder_decoders import (
    FAMILIES,
    LONG,
    NEVER_SAID,
    SAID,
    SHORT,
    WIDTH,
    Reference,
    architecture_of,
    blocks,
    padded,
    reference,
    write,
)
from penstock.engine.engine import Engine
from penstock.engine.preparation import prepare
from penstock.errors import BadPlan, UnusableModel
from penstock.models.architectures import RECIPES
from penstock.models.decoder_start import decoder_start_ids
from penstock.models.native_encoder_decoder import NativeEncoderDecoder
from penstock.models.packing import FORMATS
from penstock.models.recipes import load
from penstock.parallel.group import Pipeline, TensorGroup
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.description import description_of
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine
from penstock_kernels.program import Kind
from test_verify import Text, accepted, chain

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- encoder-decoders: begin -->", "<!-- encoder-decoders: end -->"
MODES = ("whole", "pieces", "decode", "prefix hit", "ragged batch", "refill")

try:
    SETS = cpu_engine.instruction_sets() if DEVICE == "cpu" else []
except NoCpuEngine:
    SETS = []

# Family to the instruction sets of the CPU engine whose logits were those of transformers.
sets: dict[str, set[str]] = {family: set() for family in FAMILIES}

# Family to column of the table of docs/models.md to what was seen.
seen: dict[str, dict[str, str]] = {family: {} for family in FAMILIES}

# What is computed, and by which instructions; and what of it has been, for each family.
RUNS = [("fp32", "none"), ("bf16", "none"), *(("bf16", one) for one in SETS)]
computed: dict[str, set[tuple[str, str]]] = {family: set() for family in FAMILIES}


@pytest.mark.few(24)
@pytest.mark.parametrize(("short", "runs"), RUNS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_match_transformers_in_a_crowd_and_token_by_token(
    family: str, short: str, runs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu_engine.VARIABLE, runs)
    dtype = DTYPES[short]
    wanted = Reference(family, dtype)
    driver = Driver(write(tmp_path, family), dtype)
    assert isinstance(driver.engine.model, NativeEncoderDecoder) == (runs != "none")
    for cache in driver.engine.cache.tensors_NJD:  # a former owner's numbers must not leak
        cache[: driver.engine.cache.zero_row] = torch.nan if isinstance(cache, torch.Tensor) else NAN
    reads_long, reads_short = {"encoder": len(LONG)}, {"encoder": len(SHORT)}
    # Two read and begin; one only reads.
    driver.step(
        [
            row(0, padded(LONG) + SAID[:2], 0, blocks(64 + 52, 0), start=reads_long),
            row(1, padded(SHORT) + SAID[:1], 0, blocks(32 + 52, 10), start=reads_short),
            row(2, padded(SHORT), 0, blocks(32, 20), start=reads_short, sample=False),
        ]
    )
    wanted.check(driver.last_logits()[0], LONG, 1)
    wanted.check(driver.last_logits()[1], SHORT, 0)
    # One goes on in a piece, one by a token, one begins what it has read; another finds its input in the cache,
    # and one reads beside them.
    driver.step(
        [
            row(1, SAID[1:9], 33),
            row(0, [SAID[2]], 66),
            row(2, SAID[:40], 32, blocks(40, 30)),
            row(3, SAID[:5], 32, [10, 11, 40], start=reads_short),
            row(4, padded(LONG[:9]) + SAID[:3], 0, blocks(19, 42), start={"encoder": 9}),
        ]
    )
    for got, (read, position) in zip(
        driver.last_logits(), [(SHORT, 8), (LONG, 2), (SHORT, 39), (SHORT, 4), (LONG[:9], 2)], strict=True
    ):
        wanted.check(got, read, position)
    for position in range(3, 52):
        rows = [row(0, [SAID[position]], 64 + position)]
        if position + 6 < 52:
            rows.append(row(1, [SAID[position + 6]], 32 + position + 6))
        driver.step(rows)
        wanted.check(driver.last_logits()[0], LONG, position)
        if len(rows) > 1:
            wanted.check(driver.last_logits()[1], SHORT, position + 6)
    # After a crash: what was read and said so far, at once and elsewhere.
    driver.step([row(5, padded(LONG) + SAID[:33], 0, blocks(64 + 40, 50), start=reads_long)])
    wanted.check(driver.last_logits()[0], LONG, 32)
    computed[family].add((short, runs))
    if runs in SETS:
        sets[family].add(runs)
        return
    for mode in MODES:
        seen[family][mode] = f"{seen[family][mode]}, {short}" if mode in seen[family] else short


@pytest.mark.parametrize("family", ["T5", "BART", "M2M-100, NLLB"])
def test_a_head_that_differs_from_the_embedding_is_kept(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    monkeypatch.setenv(cpu_engine.VARIABLE, "none")
    folder = write(tmp_path, family)
    held = load_file(folder / "model.safetensors")
    head = torch.randn(held["shared.weight" if family == "T5" else "model.shared.weight"].shape)
    save_file(held | {"lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    wanted = Reference(family, torch.float32)
    wanted.exact.lm_head.weight = torch.nn.Parameter(head)
    driver = Driver(folder, torch.float32)
    driver.step([row(0, padded(SHORT) + SAID[:9], 0, blocks(32 + 52, 0), start={"encoder": len(SHORT)})])
    wanted.check(driver.last_logits()[0], SHORT, 8)


@pytest.mark.parametrize("family", ["T5", "BART"])
def test_an_embedding_of_one_side_is_refused_by_name_and_a_copy_ignored(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write(tmp_path, family)
    held = load_file(folder / "model.safetensors")
    at = "" if family == "T5" else "model."
    copy, name = held[f"{at}shared.weight"].clone(), f"{at}decoder.embed_tokens.weight"
    save_file(held | {name: copy}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    load(config, folder, torch.float32, torch.device("cpu"))
    copy[-1, -1] += 1
    save_file(held | {name: copy}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnusableModel, match=f"{name} differs from {at}shared.weight"):
        load(config, folder, torch.float32, torch.device("cpu"))


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU the order of sums is the library's")
@pytest.mark.parametrize(
    ("dtype", "runs"),
    [(torch.float32, "none"), (torch.bfloat16, "none"), *((torch.bfloat16, one) for one in SETS)],
)
@pytest.mark.parametrize(
    ("quantize", "cache_dtype"), [("", "auto"), ("int8", "int8"), ("int4", "fp8_e4m3fn"), ("int4-zp", "auto")]
)
@pytest.mark.parametrize("family", ["T5", "BART"])
def test_a_token_is_the_same_to_the_last_bit_however_it_is_computed(
    family: str,
    dtype: torch.dtype,
    runs: str,
    quantize: str,
    cache_dtype: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What makes a text the same alone, in a crowd and refilled after a crash; on torch in bf16 with `--deterministic`."""
    if runs == "none" and (quantize or cache_dtype != "auto"):
        pytest.skip("only the CPU engine has such a cache, and such weights")
    monkeypatch.setenv(cpu_engine.VARIABLE, runs)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    # On the engine with one thread and with two, which divide a context otherwise.
    driver = Driver(
        write(tmp_path, family),
        dtype,
        deterministic=runs == "none" and dtype != torch.float32,
        quantize=quantize,
        cache_dtype=cache_dtype,
    )
    native = driver.engine.native
    assert (native is None) == (runs == "none")
    alone = {}
    for position in range(20):
        if native is not None:
            native.set_threads(1 + position % 2)
        first = position == 0
        tokens = padded(LONG) + SAID[:1] if first else [SAID[position]]
        driver.step(
            [
                row(
                    0,
                    tokens,
                    0 if first else 64 + position,
                    blocks(96, 0) if first else [],
                    start={"encoder": len(LONG)} if first else None,
                )
            ]
        )
        alone[position] = driver.last_logits()[0]
    crowd = [
        row(slot, padded(read) + SAID[:said], 0, blocks(96, 8 * slot), start={"encoder": len(read)})
        for slot, read, said in ((1, SHORT, 3), (2, LONG, 1), (3, LONG, 12), (4, LONG[:40], 7))
    ]
    driver.step(crowd)
    assert torch.equal(driver.last_logits()[1], alone[0])
    assert torch.equal(driver.last_logits()[2], alone[11])
    driver.step([row(1, [SAID[3]], 35), row(2, SAID[1:9], 65), row(3, [SAID[12]], 76), row(4, [SAID[7]], 55)])
    assert torch.equal(driver.last_logits()[1], alone[8])
    assert torch.equal(driver.last_logits()[2], alone[12])


# What a decoder begins with here, and tokens that it says.
BEGUN = SAID[:2]
TOKENS = 48
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperatures": 0.9, "seeds": 7, "top_ks": 40, "top_tokens": 2},
    "penalties": {
        "temperatures": 1.0,
        "seeds": 8,
        "repetition_penalties": 1.3,
        "frequency_penalties": 0.5,
        "history": BEGUN,
        "first_ends": 64 + len(BEGUN) + 20,
        "ends": [3, 4],
    },
}


def text_of(
    driver: Driver, start: dict[str, Any], expected: list[int] | None = None, exact: bool = True
) -> Text:
    """What a decoder says, with drafts where it is `expected`, of which some are right. `exact`: plans know each position; else
    they have its bound.
    """
    rng = Random(len(start))
    driver.begin()
    begun = row(0, padded(LONG) + BEGUN, 0, blocks(64 + 64, 0), start={"encoder": len(LONG), **start})
    text = Text(driver.step([begun]))
    bound = first = 64 + len(BEGUN)
    while len(text.tokens) < TOKENS:
        known = len(text.tokens)
        guess = chain(rng, expected[known:] if expected else [])
        position = first + known - 1 if exact else bound
        result = driver.step([row(0, None, position, drafts=guess.drafts)])
        assert accepted(result) == ([guess.right] if guess.drafts else [])
        bound = position + 1 + len(guess.drafts)
        text.add(result)
    return text


@pytest.mark.few(12)
@pytest.mark.parametrize(("short", "runs"), RUNS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_is_the_same_with_drafts_to_the_last_bit(
    family: str, short: str, runs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEVICE != "cpu":
        pytest.skip("sums depend on the batch there")
    monkeypatch.setenv(cpu_engine.VARIABLE, runs)
    is_exact = runs == "none" and short == "bf16"
    driver = Driver(write(tmp_path, family), DTYPES[short], deterministic=is_exact)
    assert (driver.engine.native is not None) == (runs != "none")
    for name, start in SAMPLINGS.items():
        expected = text_of(driver, start)
        assert len(set(expected.tokens)) > 5 or name == "greedy"
        for exact in (True, False):
            found = text_of(driver, start, expected.tokens, exact)
            assert found.first(TOKENS) == expected.first(TOKENS), (name, exact)


@pytest.mark.skipif(DEVICE != "cpu", reason="sums depend on the batch there")
@pytest.mark.parametrize("runs", ["none", *SETS[:1]])
@pytest.mark.parametrize("family", ["T5", "BART"])
def test_rows_with_drafts_and_without_decode_beside_some_that_read(
    family: str, runs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu_engine.VARIABLE, runs)
    driver = Driver(write(tmp_path, family), torch.float32 if runs == "none" else torch.bfloat16)
    reads_long, reads_short = {"encoder": len(LONG)}, {"encoder": len(SHORT)}
    drawn = {"temperatures": 1.0, "seeds": 3}
    long = text_of(driver, drawn).tokens
    driver.begin()
    at, low = 64 + len(BEGUN), 32 + len(BEGUN)
    short = sampled(driver.step([row(1, padded(SHORT) + BEGUN, 0, blocks(64, 10), start=reads_short)]))
    for position in range(low, low + 8):
        short += sampled(driver.step([row(1, None, position)]))
    driver.begin()
    driver.step(
        [
            row(0, padded(LONG) + BEGUN, 0, blocks(112, 0), start={**reads_long, **drawn}),
            row(1, padded(SHORT) + BEGUN, 0, blocks(64, 10), start=reads_short),
        ]
    )
    wrong = (long[3] + 1) % 199
    # Drafts, one of them wrong; a token; an input that is read, whose decoder begins with drafts; one that only is read.
    result = driver.step(
        [
            row(3, padded(LONG[:40]), 0, blocks(48, 30), start={"encoder": 40}, sample=False),
            row(0, None, at, drafts=[*long[1:3], wrong, 1]),
            row(2, padded(SHORT) + BEGUN, 0, blocks(64, 20), start=reads_short, drafts=[*short[:4], 198]),
            row(1, None, low),
        ]
    )
    assert accepted(result)[0] == 2 and accepted(result)[1] >= 4
    after = 3 + accepted(result)[1] + 1
    assert sampled(result)[:3] == long[1:4]
    assert sampled(result)[3:8] == short[:5]
    assert sampled(result)[after] == short[1]
    # What rejected drafts have left in the pages nobody sees.
    following = driver.step(
        [
            row(0, None, at + 5),
            row(1, None, low + 1, drafts=short[2:6]),
            row(3, BEGUN, 48, blocks(48, 40)),
        ]
    )
    assert accepted(following) == [4]
    assert sampled(following)[:6] == [long[4], *short[2:7]]


@pytest.mark.skipif(DEVICE != "cpu", reason="sums depend on the batch there")
@pytest.mark.parametrize("runs", ["none", *SETS[:1]])
def test_what_a_grammar_forces_is_taken_at_once(
    runs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu_engine.VARIABLE, runs)
    driver = Driver(write(tmp_path, "T5"), torch.float32 if runs == "none" else torch.bfloat16)
    begun = row(0, padded(LONG) + BEGUN, 0, blocks(112, 0), start={"encoder": len(LONG), "top_tokens": 1})
    forced, allowed, at = [17, 8, 99], list(range(50, 120)), 64 + len(BEGUN)
    driver.step([begun])
    singly = Text(driver.step([row(0, None, at, masked=True)], masks=[[forced[0]]]))
    for place, mask in enumerate(([forced[1]], [forced[2]], allowed), 1):
        singly.add(driver.step([row(0, None, at + place, masked=True)], masks=[mask]))
    driver.begin()
    driver.step([begun])
    result = driver.step(
        [row(0, None, at, drafts=forced, masked=True)], masks=[*([token] for token in forced), allowed]
    )
    assert accepted(result) == [3] and sampled(result)[:3] == forced
    assert Text(result).first(4) == singly.first(4)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_equals_generate(family: str, tmp_path: Path) -> None:
    """With a penalty, over what the decoder has said: tied tables with random weights repeat themselves else."""
    model = reference(family)
    start = int(model.config.decoder_start_token_id)
    wanted = model.generate(
        torch.tensor([SHORT]),
        max_new_tokens=40,
        do_sample=False,
        repetition_penalty=2.0,
        eos_token_id=None,
        forced_eos_token_id=None,
        encoder_no_repeat_ngram_size=0,
        bad_words_ids=[[NEVER_SAID[family]]] if family in NEVER_SAID else None,
        use_cache=False,  # transformers mistakes the encoder's layers for the decoder's
    )[0].tolist()
    driver = Driver(write(tmp_path, family))
    starts = {"encoder": len(SHORT), "repetition_penalties": 2.0, "history": [start]}
    result = driver.step([row(0, [*padded(SHORT), start], 0, blocks(96, 0), start=starts)])
    ids = [start, int.from_bytes(result.sampled, "little")]
    for position in range(33, 72):
        ids.append(int.from_bytes(driver.step([row(0, None, position)]).sampled, "little"))
    assert len(set(wanted)) > 5
    assert ids == wanted
    seen[family]["greedy text"] = "`generate`'s"


@pytest.mark.skipif(not SETS, reason="there is no CPU engine here")
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_on_the_engine_is_the_same_alone_in_a_batch_cold_and_warm(
    family: str, tmp_path: Path
) -> None:
    """Most of it in steps that go on from the one before, each in one call, with logits of whole ones in between."""
    folder = write(tmp_path, family)
    begun = [json.loads((folder / "config.json").read_text())["decoder_start_token_id"]]
    penalized = {"encoder": len(SHORT), "repetition_penalties": 2.0, "history": begun}
    short, long, beside = padded(SHORT) + begun, padded(LONG) + begun, padded(LONG[5:40]) + begun
    driver = Driver(folder, torch.bfloat16)

    def said(rows: list[dict[str, Any]], behind: dict[int, int]) -> dict[int, list[int]]:
        """What slots say in 40 steps behind these rows: the position of each one's first token."""
        ids: dict[int, list[int]] = {slot: [] for slot in behind}
        for step in range(40):
            rows = [row(slot, None, at + step - 1) for slot, at in behind.items()] if step else rows
            sampled = np.frombuffer(driver.step(rows).sampled, "<u4").tolist()
            for slot, one in zip(ids, sampled, strict=True):
                ids[slot].append(one)
            assert (driver.engine.repeats is not None) == (step > 1)
        driver.step([], released=[*behind])
        return ids

    cold = said([row(0, short, 0, blocks(32 + 41, 0), start=penalized)], {0: 33})[0]
    assert len(set(cold)) > 5
    # Another slot finds what was read in the cache, beside one that reads.
    others = [
        row(3, long, 0, blocks(64 + 41, 20), start={**penalized, "encoder": len(LONG)}),
        row(2, beside, 0, blocks(48 + 41, 30), start={**penalized, "encoder": 35}),
    ]
    warm = [*others, row(1, begun, 32, [0, 1, *blocks(41, 8)], start=penalized)]
    together = said(warm, {3: 65, 2: 49, 1: 33})
    assert together[1] == cold
    assert said([others[0]], {3: 65})[3] == together[3]
    assert together[2] != together[3]


@pytest.mark.few(4)
@pytest.mark.skipif(not SETS, reason="there is no CPU engine here")
@pytest.mark.parametrize("family", FAMILIES)
def test_quantized_weights_and_a_cache_of_8_bits_change_logits_a_little(family: str, tmp_path: Path) -> None:
    folder = write(tmp_path, family)

    def logits(**options: Any) -> torch.Tensor:
        driver = Driver(folder, torch.bfloat16, **options)
        native = driver.engine.native
        assert native is not None
        formats = {one.format.name for one in native.program.operations if one.kind == Kind.LINEAR}
        wanted = {FORMATS[options["quantize"]][0].name if "quantize" in options else "BF16"}
        assert formats == (wanted if options.get("quantize_head") else wanted | {"BF16"})
        rows = [
            row(slot, padded(one) + SAID[:9], 0, blocks(96, 8 * slot), start={"encoder": len(one)})
            for slot, one in enumerate((LONG, SHORT))
        ]
        driver.step(rows)
        made = driver.last_logits()[:, [token for token in range(199) if token != NEVER_SAID.get(family)]]
        return made - made.mean(-1, keepdim=True)

    exact = logits()
    for options, bound in (
        ({"quantize": "int8"}, 0.2),
        ({"quantize": "int8", "quantize_head": True}, 0.2),
        ({"quantize": "int4"}, 0.8),
        ({"quantize": "int4-zp"}, 0.8),
        ({"quantize": "int4-g64"}, 0.8),
        ({"cache_dtype": "int8"}, 0.05),
        ({"cache_dtype": "fp8_e4m3fn"}, 0.35),
    ):
        error = float((logits(**options) - exact).norm() / exact.norm())
        assert 0 < error < bound, (options, error)


@pytest.mark.skipif(not SETS, reason="there is no CPU engine here")
def test_a_decoder_does_not_go_on_past_its_last_position(tmp_path: Path) -> None:
    driver = Driver(write(tmp_path, "BART"), torch.bfloat16)
    driver.engine.slots.limits = dataclasses.replace(driver.engine.limits, max_side_positions=60)
    starts = {"encoder": len(LONG)}
    driver.step([row(0, padded(LONG) + SAID[:48], 0, blocks(64 + 80, 0), start=starts)])
    for position in range(112, 124):
        driver.step([row(0, None, position)])
    assert driver.engine.repeats is not None
    with pytest.raises(BadPlan, match="a row ends behind the 60 of encoder or decoder"):
        driver.step([row(0, None, 124)])


def test_in_fp16_the_hidden_state_of_t5_may_leave_its_range(tmp_path: Path) -> None:
    """Trained T5s do; fp16 ends at 65504."""
    model = reference("T5")
    with torch.no_grad():
        for block in (*model.encoder.block, *model.decoder.block):
            block.layer[-1].DenseReluDense.wo.weight *= 3e4
    model.save_pretrained(tmp_path)
    driver = Driver(tmp_path, torch.float16)
    driver.step([row(0, padded(LONG) + SAID[:9], 0, blocks(96, 0), start={"encoder": len(LONG)})])
    with torch.inference_mode():
        wanted_V = model(torch.tensor([LONG]), decoder_input_ids=torch.tensor([SAID[:9]])).logits[0, -1]
    ours_V = driver.last_logits()[0]
    assert ours_V.isfinite().all()
    assert float((ours_V - wanted_V).norm() / wanted_V.norm()) < 0.02


def test_names_of_older_checkpoints_are_found(tmp_path: Path) -> None:
    """The base model's names without `model.`, the table under another name, a stray one, no bias of the logits; and its class."""
    from safetensors.torch import load_file, save_file

    wanted = Reference("BART", torch.float32)
    wanted.exact.final_logits_bias.zero_()
    file = write(tmp_path, "BART") / "model.safetensors"
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(file).items()}
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    tensors["decoder.embed_tokens.weight"] = tensors["encoder.embed_tokens.weight"].clone()
    tensors["encoder.version"] = torch.ones(1)
    del tensors["final_logits_bias"]
    save_file(tensors, file)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BartModel"]}))
    driver = Driver(tmp_path)
    driver.step([row(0, padded(SHORT) + SAID[:4], 0, blocks(48, 0), start={"encoder": len(SHORT)})])
    wanted.check(driver.last_logits()[0], SHORT, 3)


def test_a_head_of_its_own_is_refused_where_the_model_has_none(tmp_path: Path) -> None:
    """A checkpoint that contradicts its configuration is no silent other model: tensors are named."""
    from safetensors.torch import load_file, save_file

    file = write(tmp_path, "T5") / "model.safetensors"
    tensors = load_file(file)
    tensors["decoder.block.7.layer.0.layer_norm.weight"] = torch.ones(WIDTH)
    save_file(tensors, file)
    with pytest.raises(UnusableModel, match=r"decoder\.block\.7\.layer\.0\.layer_norm\.weight"):
        Driver(tmp_path)
    del tensors["decoder.block.7.layer.0.layer_norm.weight"]
    del tensors["decoder.block.1.layer.1.EncDecAttention.k.weight"]
    save_file(tensors, file)
    with pytest.raises(UnusableModel, match=r"decoder\.block\.1\.layer\.1\.EncDecAttention\.k\.weight"):
        Driver(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "names"),
    [
        ("T5", {"d_model": 0}, "d_model is 0"),
        ("T5", {"relative_attention_num_buckets": 30}, "relative_attention_num_buckets"),
        ("T5", {"feed_forward_proj": "gated-gelu-new"}, "feed_forward_proj"),
        ("T5", {"feed_forward_proj": "sine"}, "feed_forward_proj 'sine'"),
        ("BART", {"decoder_attention_heads": 5}, "decoder_attention_heads"),
        ("BART", {"activation_function": "sine"}, "activation_function 'sine'"),
        ("BART", {"model_type": "wonder"}, "model_type is 'wonder'"),
        ("MVP", {"use_prompt": True}, "use_prompt is True"),
        ("Marian (Opus-MT)", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
        (
            "Pegasus",
            {"d_model": 49, "encoder_attention_heads": 7, "decoder_attention_heads": 7},
            "d_model 49 is odd",
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name(
    family: str, changes: dict[str, Any], names: str, tmp_path: Path
) -> None:
    config = json.loads((write(tmp_path, family) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UnusableModel, match=names):
        Driver(tmp_path)


def test_what_the_decoder_begins_with_is_what_the_configuration_says(tmp_path: Path) -> None:
    shape = Driver(write(tmp_path / "t5", "T5")).engine.model.config
    of = decoder_start_ids
    assert of({"decoder_start_token_id": 5}, None, shape) == [5]
    assert of({"decoder_start_token_id": 5, "forced_bos_token_id": 7}, None, shape) == [5, 7]
    assert of({"decoder_start_token_id": 5}, {"decoder_start_token_id": 6}, shape) == [6]
    assert of({}, None, shape) == [0]
    with pytest.raises(UnusableModel, match="forced_bos_token_id is 199, not a token below 199"):
        of({}, {"forced_bos_token_id": 199}, shape)
    mbart = Driver(write(tmp_path / "mbart", "mBART")).engine.model.config
    assert of({"bos_token_id": 3}, None, mbart) == [3]
    with pytest.raises(UnusableModel, match="no decoder_start_token_id"):
        of({}, None, mbart)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([row(0, LONG[:40], 0, [0, 1, 2], start={"encoder": 60})], "a part of the 64 positions"),
        ([row(0, SAID[:4], 16, [0, 1, 2], start={"encoder": 30})], "a part of the 32 positions"),
        ([row(0, LONG[:40], 0, [0, 1, 2], start={})], "encoder_counts: 0 entries"),
        ([row(0, LONG[:40], 0, [0, 1, 2], start={"encoder": 0})], "reads no token"),
        ([row(0, padded(LONG), 0, [0, 1, 2, 3], start={"encoder": 60}, targets=[1] * 64)], "PROMPT_LOGPROBS"),
        ([row(0, padded(SHORT), 0, [0, 1], start={"encoder": 23})], "feeds no token of its decoder"),
        (
            [row(0, padded(SHORT), 0, [0, 1, 2], start={"encoder": 23}, drafts=[5, 6])],
            "feeds no token of its decoder but drafts: 2 in all",
        ),
        ([row(0, padded(SHORT) + [1], 0, [0, 1, 2], start={"encoder": 23}, drafts=[1] * 33)], "^drafts: 33"),
    ],
)
def test_plans_that_contradict_what_an_encoder_is_are_refused(
    rows: list[dict[str, Any]], why: str, tmp_path: Path
) -> None:
    driver = Driver(write(tmp_path, "T5"))
    with pytest.raises(BadPlan, match=why):
        driver.step(rows)


def test_it_is_not_divided_over_processes(tmp_path: Path) -> None:
    config = json.loads((write(tmp_path, "T5") / "config.json").read_text())
    with pytest.raises(UnusableModel, match=r"an encoder-decoder is not divided .* use --num-shard 1"):
        load(config, tmp_path, torch.float32, torch.device("cpu"), TensorGroup(0, 2, None))
    stage = TensorGroup(pipeline=Pipeline(0, 2, TensorGroup(0, 2)))
    with pytest.raises(UnusableModel, match="use --pipeline-parallel 1"):
        load(config, tmp_path, torch.float32, torch.device("cpu"), stage)


@pytest.mark.tail
@pytest.mark.skipif(not SETS, reason="there is no CPU engine here")
def test_the_page_says_what_was_seen() -> None:
    """Of all cases above, in this process: `make tail-tests` runs this file so."""
    if any(of_it != set(RUNS) or "greedy text" not in seen[family] for family, of_it in computed.items()):
        assert "PENSTOCK_TEST_EVERYTHING" not in os.environ, "a family was not run, or failed"
        pytest.skip("not every family was run, or one failed")
    lines = [
        "| family | architecture | recipe | logits as transformers' in | greedy text | on a CPU in bf16 |",
        "|---|---|---|---|---|---|",
    ]
    for family, found in seen.items():
        architecture = architecture_of(family)
        modes = {mode: found[mode] for mode in MODES}
        # One word where all are equal; else each by its name.
        logits = "; ".join(f"{mode}: {what}" for mode, what in modes.items())
        if len(set(modes.values())) == 1:
            logits = modes[MODES[0]]
        cells = [family, f"`{architecture}`", f"`{RECIPES[architecture]}`", logits, found["greedy text"]]
        cells.append("engine" if sets[family] == set(SETS) else "torch")
        lines.append(f"| {' | '.join(cells)} |")
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    text = f"{before}{BEGIN}\n{chr(10).join(lines)}\n{END}{rest.split(END)[1]}"
    if os.environ.get("PENSTOCK_WRITE_DOCS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "PENSTOCK_WRITE_DOCS=1 writes the table of docs/models.md anew"


@pytest.mark.parametrize("family", ["T5", "BART"])
def test_it_prepares_for_any_limits_and_says_what_it_is(family: str, tmp_path: Path) -> None:
    config = json.loads((write(tmp_path, family) / "config.json").read_text())
    for slots, step_tokens, longest in ((1, 17, 17), (4, 40, 40), (8, 512, 288)):
        engine = Engine(config, tmp_path, torch.float32, torch.device("cpu"))
        request = pb.PrepareRequest(
            max_slots=slots,
            max_step_tokens=step_tokens,
            max_sequence_tokens=longest,
            max_cache_tokens=1024,
            memory_fraction=0.9,
        )
        prepared = prepare(engine, request)
        assert prepared.pages == 64 and prepared.cost.fixed_ns > 0
    told = description_of(engine, config, [1], [2, 0], 0, 1, 1)
    assert list(told.decoder_start_ids) == [2, 0]
    side = {"T5": 0, "BART": 128}[family]
    assert told.max_side_positions == side
    assert told.max_positions == (1 << 20 if side == 0 else 2 * side - 2)
    engine = Engine(config, tmp_path, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="max_step_tokens or max_sequence_tokens is 16"):
        prepare(engine, pb.PrepareRequest(max_slots=1, max_step_tokens=16, memory_fraction=0.9))
