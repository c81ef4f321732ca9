"""`--quantize` from the command line to the text: on a machine whose CPU engine was built."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import wire
from conftest import Launch, fails
from launched import PACKED_CACHE_DIR
from penstock import tiny
from penstock_kernels import cpu_engine
from penstock_kernels.cpu_engine import NoCpuEngine
from processes import wait_for

try:
    cpu_engine.instruction_set()
except NoCpuEngine as error:
    pytest.skip(str(error), allow_module_level=True)

QUESTIONS = ("What is Penstock?", "Sort these words: pear, apple, fig", "What is 12 + 30?", "Count to five.")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--quantize", "eetq"), "int8, head in bf16"),
        (("--quantize", "int4", "--quantize-head"), "int4, threads"),
        (("--quantize", "int4-g64-zp", "--quantize-head"), "int4 in groups of 64, threads"),
        (("--kv-cache-dtype", "fp8_e4m3fn"), "keys and values are held as fp8_e4m3fn"),
        (("--quantize", "int8", "--kv-cache-dtype", "int8"), "keys and values are held as int8"),
    ],
)
def test_a_quantized_model_answers_the_same_alone_and_among_others(
    launch: Launch, flags: tuple[str, ...], says: str
) -> None:
    server = launch(*flags).wait_ready()
    server.wait_told(says)

    def answer(question: str) -> Any:
        body = {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 40,
            "temperature": 0,
            "logprobs": True,
        }
        choice = wire.post(server.address, "/v1/chat/completions", body).json()["choices"][0]
        return choice["message"]["content"], [token["logprob"] for token in choice["logprobs"]["content"]]

    alone = [answer(question) for question in QUESTIONS]
    assert alone[2][0] == "12 + 30 = 42"
    together: dict[int, Any] = {}

    def ask(number: int) -> None:
        together[number] = answer(QUESTIONS[number % len(QUESTIONS)])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == {number: alone[number % len(QUESTIONS)] for number in range(12)}


def published_in_4_bits(folder: Path) -> Path:
    """The shipped model as GPTQ's files have it: the nearest whole numbers, with a zero point and a scale for each 128 inputs."""
    shutil.copytree(tiny.MODEL, folder)
    held: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if "_proj." not in name:
            held[name] = weight
            continue
        module, groups = name.removesuffix("weight"), weight.float().view(len(weight), -1, 128)
        lowest, highest = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        scales = ((highest - lowest) / 15).half()
        zeros = (-lowest / scales.float()).round().clamp(1, 15)
        numbers = ((groups / scales.float()[:, :, None]).round() + zeros[:, :, None]).clamp(0, 15).flatten(1)
        held[f"{module}qweight"] = words(numbers).T.contiguous()
        held[f"{module}qzeros"] = words(zeros.T - 1)
        held[f"{module}scales"] = scales.T.contiguous()
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
    # As most of them are published.
    config["torch_dtype"] = "float16"
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def words(numbers: torch.Tensor) -> torch.Tensor:
    """Eight numbers along the last dimension in each word, the first lowest."""
    made = sum(numbers[:, place::8].long() << 4 * place for place in range(8))
    assert isinstance(made, torch.Tensor)
    return made.to(torch.uint32).view(torch.int32).contiguous()


@pytest.mark.parametrize("shards", [1, 2])
def test_a_checkpoint_of_4_bits_is_served_as_it_is(launch: Launch, tmp_path: Path, shards: int) -> None:
    folder = published_in_4_bits(tmp_path / "model")
    flags = ("--model-id", str(folder), "--num-shard", str(shards))
    server = launch(*flags, "--quantize", "gptq", env={PACKED_CACHE_DIR: str(tmp_path)}).wait_ready()
    server.wait_told(
        "int4 in groups of 128, head in bf16",
        "--quantize gptq changes nothing: a checkpoint says itself how it is quantized",
        "float16 weights are served in bfloat16",
    )
    question = {"messages": [{"role": "user", "content": QUESTIONS[2]}], "max_tokens": 40, "temperature": 0}
    answers = [wire.post(server.address, "/v1/chat/completions", question).json()]
    server.stop()
    again = launch(*flags, env={PACKED_CACHE_DIR: str(tmp_path)}).wait_ready()
    again.wait_told("packed weights are mapped from")
    answers.append(wire.post(again.address, "/v1/chat/completions", question).json())
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts == ["12 + 30 = 42"] * 2
    plain = launch(*flags, "--quantize", "none").wait_ready()
    plain.wait_told(", bf16, threads: ")
    assert wire.post(plain.address, "/v1/chat/completions", question).json()["choices"][0]["message"][
        "content"
    ]


@pytest.mark.parametrize("shards", [1, 2])
def test_the_second_start_maps_what_the_first_has_packed(launch: Launch, tmp_path: Path, shards: int) -> None:
    environment = {PACKED_CACHE_DIR: "", "HF_HOME": str(tmp_path / "hf")}
    packed = tmp_path / "hf" / "penstock" / "packed"
    flags = ("--quantize", "int8", "--kv-cache-dtype", "int8", "--num-shard", str(shards))
    texts, told = [], []
    for start, says in enumerate(("packed weights are kept in ", "packed weights are mapped from ")):
        if start == 1 and shards == 2:
            # What was measured counts where every rank has it, and so nobody waits for one that measures.
            next(packed.glob("*-1of2-*.measured")).unlink()
        server = launch(*flags, env=environment).wait_ready()
        wait_for(lambda: server.log().count(says) == shards, f"{says!r} in the log of every rank")  # noqa: B023
        told.append(server.log())
        body = {"inputs": QUESTIONS[0], "parameters": {"max_new_tokens": 20, "seed": 3, "do_sample": True}}
        texts.append(wire.post(server.address, "/generate", body).json()["generated_text"])
        server.stop()
    assert texts[0] == texts[1] and texts[0]
    assert "are mapped from" not in told[0] and "are kept in" not in told[1]
    assert sorted(path.suffix for path in packed.iterdir()) == sorted([".measured", ".packed"] * shards)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("flags", "environment", "says"),
    [
        (("--dtype", "float16"), {}, "it does not serve float16 weights"),
        (("--pipeline-parallel", "2"), {}, "it does not serve several stages"),
        (
            ("--num-shard", "2", "--master-addr", "localhost"),
            {},
            "it does not serve shards that meet at --master-addr",
        ),
        (("--model-impl", "transformers"), {}, "it does not serve models through transformers"),
        ((), {"PENSTOCK_CPU_ISA": "none"}, "PENSTOCK_CPU_ISA is none"),
    ],
)
def test_what_cannot_be_quantized_ends_the_start_with_one_line(
    launch: Launch, flags: tuple[str, ...], environment: dict[str, str], says: str
) -> None:
    launched = launch("--quantize", "int8", *flags, env=environment)
    fails(launched, 1, "--quantize int8: only the CPU engine quantizes weights", says)
