"""`--quantize` from the command line to the text: on a machine whose CPU engine was built."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import wire
from conftest import Launch, fails
from launched import PACKED_CACHE_DIR
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
        (("--kv-cache-dtype", "fp8_e4m3fn"), "keys and values are held as fp8_e4m3fn"),
        (("--quantize", "int8", "--kv-cache-dtype", "int8"), "keys and values are held as int8"),
    ],
)
def test_a_quantized_model_answers_the_same_alone_and_among_others(
    launch: Launch, flags: tuple[str, ...], says: str
) -> None:
    server = launch(*flags).wait_ready()
    assert says in server.log(), "a line says what runs the model"

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
