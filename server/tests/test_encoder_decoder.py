"""Encoder-decoders: logits match Hugging Face transformers, however a sequence is cut into steps and batched."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from client import DEVICE, row
from driver import Driver
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
from penstock.models.recipes import load
from penstock.parallel.group import Pipeline, TensorGroup
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.description import description_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- encoder-decoders: begin -->", "<!-- encoder-decoders: end -->"
MODES = ("whole", "pieces", "decode", "prefix hit", "ragged batch", "refill")

# Family to column of the table of docs/models.md to what was seen.
seen: dict[str, dict[str, str]] = {family: {} for family in FAMILIES}


@pytest.mark.parametrize("short", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_match_transformers_in_a_crowd_and_token_by_token(
    family: str, short: str, tmp_path: Path
) -> None:
    dtype = DTYPES[short]
    wanted = Reference(family, dtype)
    driver = Driver(write(tmp_path, family), dtype)
    for cache in driver.engine.cache.tensors_NJD:
        cache[: driver.engine.cache.zero_row].fill_(torch.nan)  # a former owner's numbers must not leak
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
    for mode in MODES:
        seen[family][mode] = f"{seen[family][mode]}, {short}" if mode in seen[family] else short


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU the order of sums is the library's")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["T5", "BART"])
def test_a_token_is_the_same_to_the_last_bit_however_it_is_computed(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """What makes a text the same alone, in a crowd and refilled after a crash; in bf16 with `--deterministic`."""
    driver = Driver(write(tmp_path, family), dtype, deterministic=dtype != torch.float32)
    alone = {}
    for position in range(20):
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
    """The base model's names without `model.`, the table under another name, a stray one, no bias of the logits."""
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


def test_the_page_says_what_was_seen() -> None:
    columns = (*MODES, "greedy text")
    if any(found.keys() != set(columns) for found in seen.values()):
        pytest.skip("not every family was run, or one failed")
    lines = [
        "| family | architecture | recipe | logits as transformers' in | greedy text |",
        "|---|---|---|---|---|",
    ]
    for family, found in seen.items():
        architecture = architecture_of(family)
        modes = {mode: found[mode] for mode in MODES}
        # One word where all are equal; else each by its name.
        logits = "; ".join(f"{mode}: {what}" for mode, what in modes.items())
        if len(set(modes.values())) == 1:
            logits = modes[MODES[0]]
        cells = [family, f"`{architecture}`", f"`{RECIPES[architecture]}`", logits, found["greedy text"]]
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
