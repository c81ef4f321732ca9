"""Encoder-decoders, served: texts are those of `generate`, alone and in a crowd, streamed, and across a crash.

T5s with a tokenizer of pieces and BARTs with one of bytes, small and with random weights, made on the spot. One of
each is tried always on the CPU engine, the BART on torch as well; the rest of their families with the long tail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    MT5Config,
    MT5ForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    RepetitionPenaltyLogitsProcessor,
    T5Config,
    T5ForConditionalGeneration,
)

import small_tokenizers
import wire
from launched import Launched
from load import Answer, Ask, ask, ask_all, ask_all_through, generate
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine

WIDTH = 64
# Tied tables with random weights say the same word for ever.
PENALTY = 1.5
TEXTS = [
    "summarize: the quick brown fox jumps over the lazy dog, and again!",
    "translate: ça va très bien",
    "it's 1234567890",
]
TOKENS = 60
# What bf16 may move two logits towards each other; the usual one is 4 to 5 behind the highest.
TIE = 0.8
DTYPES = ("float32", "bfloat16")


GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def t5(folder: Path, config: Any = T5Config, kind: Any = T5ForConditionalGeneration, **choices: Any) -> Any:
    """With a head of its own where `choices` say so."""
    small_tokenizers.t5(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    choices = {
        "vocab_size": len(tokenizer),
        "d_model": WIDTH,
        "d_kv": 16,
        "d_ff": 96,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        **choices,
    }
    torch.manual_seed(0)
    model = kind(config(**choices))
    with torch.no_grad():
        if choices.get("tie_word_embeddings", True):
            model.shared.weight.mul_(0.05)  # what is said depends on more than what was said last
        else:
            model.lm_head.weight = torch.nn.Parameter(torch.randn(len(tokenizer), WIDTH))
    return model


def mt5(folder: Path) -> Any:
    return t5(folder, MT5Config, MT5ForConditionalGeneration, **GATED)


def flan_t5(folder: Path) -> Any:
    """T5 1.1 is the same."""
    return t5(folder, **GATED)


def bart(
    folder: Path, config: Any = BartConfig, kind: Any = BartForConditionalGeneration, **choices: Any
) -> Any:
    """Ends are held down, so that its texts are long."""
    tokenizer = small_tokenizers.byte_level(folder, pre_tokenizers.ByteLevel(add_prefix_space=False))
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.add_special_tokens(names)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ids)
    fast: Any = small_tokenizers.FAST(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), names, strict=True)),
    )
    fast.save_pretrained(folder)
    choices = {
        "vocab_size": len(fast),
        "d_model": WIDTH,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96,
        "max_position_embeddings": 256,
        "init_std": 0.3,
        "bos_token_id": fast.bos_token_id,
        "pad_token_id": fast.pad_token_id,
        "eos_token_id": fast.eos_token_id,
        "decoder_start_token_id": fast.eos_token_id,
        "forced_eos_token_id": None,
        **choices,
    }
    torch.manual_seed(0)
    model = kind(config(**choices))
    with torch.no_grad():
        model.final_logits_bias[0, fast.all_special_ids] = -1000.0
    model.generation_config.forced_bos_token_id = fast.bos_token_id
    return model


def mbart(folder: Path) -> Any:
    return bart(folder, MBartConfig, MBartForConditionalGeneration, scale_embedding=True)


def pegasus(folder: Path) -> Any:
    return bart(folder, PegasusConfig, PegasusForConditionalGeneration, scale_embedding=True)


REST = (t5, mt5, mbart, pegasus)
# In fp32 by torch, and in bf16 by the CPU engine.
FAMILIES = [
    pytest.param((one, dtype), id=f"{one.__name__}-{dtype}", marks=[] if is_always else [pytest.mark.tail])
    for one in (flan_t5, bart, *REST)
    for dtype in DTYPES
    for is_always in [(one, dtype) in ((flan_t5, "bfloat16"), (bart, "float32"), (bart, "bfloat16"))]
]


@dataclass
class Served:
    launched: Launched
    model: Any
    tokenizer: Any
    dtype: str

    @property
    def address(self) -> wire.Address:
        return self.launched.address

    def expected(self, text: str, tokens: int) -> tuple[list[int], str]:
        """What transformers generates after what the decoder begins with, and its text."""
        config = self.model.generation_config
        begun = 1 if config.forced_bos_token_id is None else 2
        ids: list[int] = self.model.generate(
            self.tokenizer(text, return_tensors="pt").input_ids,
            max_new_tokens=tokens + begun - 1,
            do_sample=False,
            repetition_penalty=PENALTY,
        )[0].tolist()
        said: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return ids[begun:], said

    def likely(self, text: str, answer: Answer) -> tuple[list[int], str]:
        """What was answered, if transformers finds no token of it unlikely where it stands."""
        config = self.model.generation_config
        begun = [config.decoder_start_token_id]
        begun += [] if config.forced_bos_token_id is None else [config.forced_bos_token_id]
        ids = [*begun, *answer.pieces]
        inputs = self.tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = self.model(input_ids=inputs, decoder_input_ids=torch.tensor([ids])).logits[0]
        processor = RepetitionPenaltyLogitsProcessor(PENALTY)
        for place in range(len(begun), len(ids)):
            scores = processor(torch.tensor([ids[:place]]), logits[place - 1 : place])[0]
            behind = float(scores.max() - scores[ids[place]])
            assert behind <= TIE, f"token {place} of {ids} is {behind:.3f} behind the likeliest"
        said = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return list(answer.pieces), said


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("encoder-decoder")
    folder = root / "model"
    folder.mkdir()
    make, dtype = request.param
    model = make(folder).eval()
    model.save_pretrained(folder)
    if dtype == "bfloat16":
        model = model.bfloat16().float()  # the weights that are served
    with Launched(root / "run", "--model-id", str(folder), "--dtype", dtype) as launched:
        launched.wait_ready()
        on_engine = dtype == "bfloat16"
        assert ("the CPU engine runs the model" in launched.log()) == on_engine or not has_engine()
        yield Served(launched, model, AutoTokenizer.from_pretrained(folder), dtype)


def has_engine() -> bool:
    try:
        cpu_engine.instruction_set()
    except NoCpuEngine:
        return False
    return True


def test_greedy_text_is_that_of_generate(served: Served) -> None:
    """In bf16, where a near-tie may tip: each of its tokens is one that transformers in fp32 finds about as likely as any other."""
    for text in TEXTS:
        if served.dtype == "float32":
            ids, said = served.expected(text, TOKENS)
        else:
            ids, said = served.likely(
                text, ask(served.address, generate(text, TOKENS, repetition_penalty=PENALTY))
            )
        assert len(set(ids)) > 10
        asked = {"max_new_tokens": TOKENS, "repetition_penalty": PENALTY, "decoder_input_details": True}
        for parameters, begin in (({}, ""), ({"return_full_text": True}, text)):
            body = {"inputs": text, "parameters": {**asked, **parameters}}
            reply = wire.post(served.address, "/generate", body)
            assert reply.status == 200, reply.text
            answer = reply.json()
            details = answer["details"]
            assert [token["id"] for token in details["tokens"]] == ids
            assert answer["generated_text"] == begin + said
            assert [token["id"] for token in details["prefill"]] == served.tokenizer(text).input_ids
            assert all(token["logprob"] is None for token in details["prefill"])
        # Its output does not continue the input, which is not put before it unasked.
        alone = {"max_new_tokens": TOKENS, "repetition_penalty": PENALTY}
        reply = wire.post(served.address, "/", {"inputs": text, "parameters": alone})
        assert reply.json() == [{"generated_text": said}]
        stream = ask(served.address, generate(text, TOKENS, repetition_penalty=PENALTY))
        assert (stream.pieces, stream.text) == (ids, said)


def crowd() -> list[Ask]:
    """Greedy and sampled, of lengths from a block to several."""
    return [
        generate(
            TEXTS[n % 3] * (1 + n % 4),
            40,
            repetition_penalty=PENALTY,
            **({"do_sample": True, "seed": n} if n % 2 else {}),
        )
        for n in range(8)
    ]


def test_eight_at_once_get_what_each_gets_alone(served: Served) -> None:
    requests = crowd()
    alone = [ask(served.address, request) for request in requests]
    for _ in range(2):  # the second time their inputs are cached
        for one, other in zip(alone, ask_all(served.address, requests), strict=True):
            assert other.error is None and one.same_as(other)


@pytest.mark.few(1)
def test_streams_go_on_when_the_worker_is_killed(served: Served) -> None:
    requests = [generate(text, 250, repetition_penalty=PENALTY) for text in TEXTS]
    undisturbed = [ask(served.address, request) for request in requests]
    assert all(len(answer.pieces) > 40 for answer in undisturbed)
    # The first token of all is the worker's last.
    for kill in served.launched.interruptions():
        answers = ask_all_through(served.launched, requests, kill)
        for one, other in zip(undisturbed, answers, strict=True):
            assert other.error is None and one.same_as(other)


def test_what_does_not_fit_is_refused_by_name(served: Served) -> None:
    def refused(text: str, tokens: int) -> str:
        reply = wire.post(
            served.address, "/generate", {"inputs": text, "parameters": {"max_new_tokens": tokens}}
        )
        assert reply.status == 422, reply.text
        return str(reply.json()["error"])

    longest = wire.get(served.address, "/info").json()["max_input_tokens"]
    if "t5" in served.model.config.model_type:
        assert longest == 4095
        assert "must be <= 4096" in refused("x1 " * longest, 1)
        return
    assert longest == 256
    assert "`inputs` must have <= 256 tokens" in refused("x " * 200, 1)
    assert "`max_new_tokens` must be <= 254" in refused("x", 255)
    fits = {"inputs": "x", "parameters": {"max_new_tokens": 254, "repetition_penalty": PENALTY}}
    assert wire.post(served.address, "/generate", fits).status == 200


@pytest.mark.few(2)
def test_what_contradicts_itself_ends_the_start_with_one_line(served: Served, tmp_path: Path) -> None:
    is_refused(
        served, tmp_path, "--max-batch-prefill-tokens", "100", "--max-batch-prefill-tokens 100 is less"
    )
    is_refused(served, tmp_path, "--num-shard", "2", "--num-shard")


def test_weights_in_fp32_are_not_quantized(served: Served, tmp_path: Path) -> None:
    if served.dtype == "float32":
        is_refused(served, tmp_path, "--quantize", "int8", "it does not serve float32 weights")


def is_refused(served: Served, folder: Path, flag: str, value: str, says: str) -> None:
    model = served.launched.folder.parent / "model"
    run = ("--model-id", str(model), "--dtype", served.dtype, flag, value)
    launched = Launched(folder / flag, *run)
    assert launched.wait_ended(120) != 0
    assert says in launched.log()
    launched.assert_no_orphan()
