"""`penstock replay`: of a record of all that a server can do, with a worker that is killed in the middle, every plan is right, and a
worker that executes them gives the same results.
"""

from __future__ import annotations

import io
import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, message_factory, proto
from grpc_tools import protoc

import wire
from conftest import Launch
from launched import BINARY, EXACT
from load import Ask, arrivals, ask_all_through, chat, complete, generate
from other_host import RemoteWorker
from processes import wait_for
from prompts import QUESTIONS, REPEAT, as_text, user
from test_speculate_model import first_layers

WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
TOOL = {"type": "function", "function": WEATHER}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "fits": {"type": "boolean"}},
    "required": ["name", "fits"],
    "additionalProperties": False,
}
AGAIN = "again and " * 12

# Whole answers: (path, body).
WHOLE: Sequence[tuple[str, dict[str, Any]]] = (
    ("/generate", {"inputs": AGAIN, "parameters": {"max_new_tokens": 40, "decoder_input_details": True, "details": True, "top_n_tokens": 3}}),
    ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 20, "do_sample": True, "best_of": 2, "details": True}}),
    ("/generate", {"inputs": "It is", "parameters": {"max_new_tokens": 30, "grammar": {"type": "regex", "value": "[a-z ]{5,20}\\."}}}),
    ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 40, "watermark": True, "repetition_penalty": 1.2, "typical_p": 0.9, "do_sample": True, "seed": 4}}),
    ("/v1/completions", {"prompt": ["one two", "three"], "n": 2, "best_of": 3, "max_tokens": 20, "temperature": 0.9, "seed": 5, "logprobs": 2}),
    ("/v1/completions", {"prompt": AGAIN, "echo": True, "logprobs": 1, "max_tokens": 10}),
    ("/v1/chat/completions", {"messages": user(REPEAT), "n": 3, "max_tokens": 30, "temperature": 1.0, "seed": 6, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": user("How is the weather?"), "tools": [TOOL], "tool_choice": "required", "max_tokens": 60}),
    ("/v1/chat/completions", {"messages": user("Who fits?"), "max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}}),
    ("/v1/messages", {"messages": user(QUESTIONS[0]), "max_tokens": 30}),
    ("/v1/messages", {"messages": user("How is the weather?"), "max_tokens": 60, "tools": [{"name": "weather", "input_schema": WEATHER["parameters"]}], "tool_choice": {"type": "any"}}),
    ("/v1/responses", {"input": QUESTIONS[1], "max_output_tokens": 30}),
    ("/v1/responses", {"input": "How is the weather?", "max_output_tokens": 60, "tools": [{"type": "function", **WEATHER}], "tool_choice": "required"}),
)  # fmt: skip

# Streams, beside those.
STREAMED: Sequence[Ask] = (
    *(chat(user(question), 60) for question in QUESTIONS),
    *(complete(f"{number} {AGAIN}", 120 + number) for number in range(4)),
    *(generate(f"{number}: {AGAIN}", 120, do_sample=True, temperature=0.8, seed=number) for number in range(4)),
    generate("It is", 60, grammar={"type": "json", "value": SCHEMA}),
    generate(as_text(REPEAT), 60, stop=["stone"]),
)  # fmt: skip


def ask_whole(address: wire.Address, answered_bodies: list[str]) -> list[threading.Thread]:
    """All at once; a request that comes while the workers are replaced is asked again."""

    def until_answered(path: str, body: dict[str, Any]) -> None:
        def answered() -> bool:
            reply = wire.post(address, path, body)
            assert reply.status in (200, 503), f"{path} {body}: {reply.status} {reply.text}"
            return reply.status == 200

        wait_for(answered, f"an answer of {path}", 120, every=0.1)
        answered_bodies.append(path)

    threads = [threading.Thread(target=until_answered, args=one, daemon=True) for one in WHOLE]
    for thread in threads:
        thread.start()
    return threads


def record(launch: Launch, file: Path, *flags: str) -> int:
    """All of that at once, and the worker killed in the middle. How many runs of workers that took."""
    launched = launch(*EXACT, "--max-best-of", "4", "--record", str(file), *flags).wait_ready()
    for kill in launched.interruptions():
        answered: list[str] = []
        expected = arrivals(launched) + len(WHOLE) + len(STREAMED)
        threads = ask_whole(launched.address, answered)
        answers = ask_all_through(launched, STREAMED, kill, at=150, of=expected)
        for thread in threads:
            thread.join(wire.TIMEOUT)
        assert sorted(answered) == sorted(path for path, _ in WHOLE)
        assert all(answer.error is None for answer in answers), answers
    metrics = launched.metrics()
    if flags:
        assert metrics.value("penstock_accepted_drafts") > 20
    launched.stop()
    return int(metrics.value("penstock_worker_restarts")) + 1


def with_fewer_pages_at_last(file: Path, changed: Path) -> None:
    """The record, as if the worker that came after the loss had found memory for one page fewer."""
    source, described = Path(__file__).parents[1] / "proto", changed.with_suffix(".descriptors")
    command = [
        "protoc",
        f"-I{source}",
        "--include_imports",
        f"--descriptor_set_out={described}",
        "recording.proto",
    ]
    assert protoc.main(command) == 0
    described_files = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes())
    entry_type = message_factory.GetMessages(described_files.file)["penstock.v1.RecordEntry"]
    before, after = io.BytesIO(file.read_bytes()), io.BytesIO()
    entries: list[Any] = list(iter(partial(proto.parse_length_prefixed, entry_type, before), None))
    heads = [entry for entry in entries if entry.WhichOneof("what") == "head"]
    assert len(heads) >= 2
    heads[-1].head.prepared.pages -= 1
    for entry in entries:
        proto.serialize_length_prefixed(entry, after)
    changed.write_bytes(after.getvalue())


def replay(file: Path, *flags: str) -> str:
    done = subprocess.run(
        [str(BINARY), "replay", str(file), *flags], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "drafts", ["text", *(pytest.param(other, marks=pytest.mark.tail) for other in ("none", "model"))]
)
def test_a_record_of_everything_is_executed_again(drafts: str, launch: Launch, tmp_path: Path) -> None:
    flags: tuple[str, ...] = ()
    draft: tuple[str, ...] = ()
    if drafts != "none":
        flags = ("--speculate", "4")
    if drafts == "model":
        draft = ("--speculate-model", str(first_layers(tmp_path / "draft", 4)))
    file = tmp_path / "record"
    runs = record(launch, file, *flags, *draft)

    # Alone, every plan is checked.
    told = replay(file)
    assert told.startswith("every plan is right") and f"{runs} runs" in told, told
    assert "the record ends: the server has stopped" in told, told

    # On a worker that holds the model, one after the other through all runs, every result is compared.
    address = f"unix:{tmp_path / 'socket'}"
    with RemoteWorker(tmp_path / "worker", *EXACT, *draft, "--listen", address) as worker:
        worker.wait_listening()
        uneven = tmp_path / "uneven"
        with_fewer_pages_at_last(file, uneven)
        for one in (file, uneven):
            told = replay(one, "--worker", address)
            assert told.startswith("every result is the same") and f"{runs} runs" in told, told
        assert worker.starts() == 1
