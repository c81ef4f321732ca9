"""How the server starts, stops and fails to start: exit codes, one clear line, no orphan, no stack trace."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import wire
from checkpoints import SHIPPED, random_llama
from conftest import Launch, assert_no_stack_trace
from launched import BINARY, Launched
from load import Answer, ask, complete
from processes import wait_for

FOREVER = complete("A long story", 900)


class Running:
    """A stream that was begun in the background; `answer` is what it got."""

    def __init__(self, address: wire.Address, request: Any = FOREVER) -> None:
        import threading

        self.tokens = 0
        self.answer: Answer | None = None
        self.error: BaseException | None = None

        def seen() -> None:
            self.tokens += 1

        def run() -> None:
            try:
                self.answer = ask(address, request, seen)
            except BaseException as error:  # noqa: BLE001 - looked at by the test
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        wait_for(lambda: self.tokens >= 3 or self.error, "the stream to begin")

    def finish(self) -> Answer:
        self.thread.join(60)
        if self.error:
            raise self.error
        assert self.answer is not None, "the stream did not end"
        return self.answer


# Stopping.


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(launch: Launch, number: signal.Signals) -> None:
    launched = launch("--dtype", "float32").wait_ready()
    undisturbed = ask(launched.address, FOREVER)
    running = Running(launched.address)
    idle = socket.create_connection((launched.address.host, launched.address.port))
    launched.process.send_signal(number)

    def refused() -> bool:
        try:
            reply = wire.post(
                launched.address, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 1}}
            )
        except OSError:
            return True  # It does not even listen any more.
        if reply.status == 503:
            assert "shutting down" in reply.json()["error"]
            return True
        return False

    wait_for(refused, "new requests to be refused", 5)
    assert running.answer is None, "the stream was over before the signal had an effect: nothing was shown"
    assert running.finish().same_as(undisturbed), "the running stream ends complete"
    assert launched.wait_ended() == 0
    idle.close()
    launched.assert_no_orphan()
    assert_no_stack_trace(launched.log())


def test_a_second_signal_stops_at_once(launch: Launch) -> None:
    launched = launch().wait_ready()
    running = Running(launched.address)
    worker = launched.worker()
    worker.signal(signal.SIGSTOP)  # the stream would never end
    launched.process.send_signal(signal.SIGTERM)
    wait_for(lambda: draining(launched), "draining", 5)
    assert launched.process.poll() is None
    before = time.monotonic()
    launched.process.send_signal(signal.SIGTERM)
    launched.wait_ended(10)
    assert time.monotonic() - before < 5
    launched.assert_no_orphan(5)
    running.thread.join(10)
    assert running.answer is None or running.answer.finish is None


def draining(launched: Launched) -> bool:
    reply = launched.health()
    return reply is None or reply.status == 503


def test_the_shutdown_timeout_ends_what_does_not_end(launch: Launch) -> None:
    launched = launch("--shutdown-timeout", "1", "--step-timeout", "60").wait_ready()
    running = Running(launched.address)
    launched.worker().signal(signal.SIGSTOP)
    before = time.monotonic()
    launched.process.send_signal(signal.SIGTERM)
    launched.wait_ended(15)
    assert 0.9 < time.monotonic() - before < 10
    launched.assert_no_orphan(5)
    running.thread.join(10)
    assert not running.thread.is_alive(), "the client was left hanging"


def test_an_idle_server_stops_at_once_with_code_0(launch: Launch) -> None:
    launched = launch().wait_ready()
    before = time.monotonic()
    launched.process.send_signal(signal.SIGTERM)
    assert launched.wait_ended() == 0
    assert time.monotonic() - before < 5
    launched.assert_no_orphan(2)


def test_a_signal_while_loading_stops_with_code_0(launch: Launch) -> None:
    launched = launch()
    wait_for(launched.workers, "the worker process to be started")
    launched.process.send_signal(signal.SIGTERM)
    assert launched.wait_ended(15) == 0
    launched.assert_no_orphan(5)


def test_killing_the_launcher_leaves_no_orphan(launch: Launch) -> None:
    launched = launch().wait_ready()
    running = Running(launched.address)
    launched.process.kill()
    launched.wait_ended()
    launched.assert_no_orphan()
    running.thread.join(10)
    assert not running.thread.is_alive(), "the client was left hanging"


def test_killing_the_launcher_of_a_frozen_worker_leaves_no_orphan(launch: Launch) -> None:
    launched = launch().wait_ready()
    launched.worker().signal(signal.SIGSTOP)
    launched.process.kill()
    launched.wait_ended()
    launched.assert_no_orphan()


def test_killing_the_launcher_while_it_loads_leaves_no_orphan(launch: Launch) -> None:
    launched = launch()
    wait_for(launched.workers, "the worker process to be started")
    launched.process.kill()
    launched.wait_ended()
    launched.assert_no_orphan()


# Starting.


def test_not_ready_while_loading_then_ready(launch: Launch) -> None:
    launched = launch()
    seen: list[int] = []

    def ready() -> bool:
        reply = launched.health()
        if reply is not None:
            seen.append(reply.status)
            if reply.status == 503:
                assert reply.json()["error_type"] == "healthcheck"
        return reply is not None and reply.status == 200

    wait_for(ready, "the server to be ready", 60)
    assert set(seen[:-1]) <= {503}
    assert wire.post(launched.address, "/generate", {"inputs": "x"}).status == 200


def test_the_log_tells_each_phase_in_one_line(launch: Launch) -> None:
    launched = launch().wait_ready()
    lines = [line.lower() for line in launched.stdout().splitlines()]
    for phase in ("load", "warm", "ready in"):
        assert any(phase in line for line in lines), f"no line about {phase!r}:\n{launched.stdout()}"
    assert len(lines) < 30, "a start is a few lines, not a wall"


def test_json_output_is_one_object_per_line(launch: Launch) -> None:
    launched = launch("--json-output").wait_ready()
    lines = [json.loads(line) for line in launched.stdout().splitlines()]
    assert lines and all({"timestamp", "level"} <= set(line) for line in lines)


def test_flags_may_come_from_the_environment_and_the_flag_wins(launch: Launch) -> None:
    env = {"MAX_TOTAL_TOKENS": "333", "MAX_CONCURRENT_REQUESTS": "9", "MAX_STOP_SEQUENCES": "7"}
    launched = launch("--max-stop-sequences", "2", env=env).wait_ready()
    info = wire.get(launched.address, "/info").json()
    assert (info["max_total_tokens"], info["max_concurrent_requests"], info["max_stop_sequences"]) == (
        333,
        9,
        2,
    )


def test_help_is_in_groups_and_exits_0() -> None:
    out = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    for flag in ("--model-id", "--revision", "--dtype", "--port", "--max-total-tokens", "--shutdown-timeout"):
        assert flag in out
    assert sum(line.endswith(":") and not line.startswith(" ") for line in out.splitlines()) >= 4, "groups"


# Not starting.


def fails(launched: Launched, code: int, *mentions: str, seconds: float = 60) -> str:
    """It ends by itself with this code; the last line of stderr is one error that names these things."""
    assert launched.wait_ended(seconds) == code, launched.log()[-4000:]
    launched.assert_no_orphan(5)
    text = launched.log()
    assert_no_stack_trace(text)
    errors = [line for line in launched.stderr().splitlines() if line.strip()]
    assert errors, f"nothing on stderr:\n{text}"
    for mention in mentions:
        assert mention in errors[-1], f"{mention!r} is not named in the last line:\n{text[-4000:]}"
    return errors[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        "--no-such-flag",
        "--port 70000",
        "--port many",
        "--dtype int3",
        "--max-total-tokens 0",
        "--hostname nowhere",
    ],
)
def test_a_flag_that_does_not_exist_or_parse_exits_2(launch: Launch, arguments: str) -> None:
    if "--port" in arguments or "--hostname" in arguments:
        out = subprocess.run([BINARY, *arguments.split()], check=False, capture_output=True, text=True)
        assert out.returncode == 2 and arguments.split()[0] in out.stderr
    else:
        launched = launch(*arguments.split())
        assert launched.wait_ended(10) == 2
        assert arguments.split()[0] in launched.stderr()


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ("--max-input-tokens 100 --max-total-tokens 100", "--max-input-tokens"),
        ("--max-input-length 100 --max-total-tokens 50", "--max-input-tokens"),
        ("--max-batch-total-tokens 10 --max-total-tokens 100", "--max-batch-total-tokens"),
        ("--max-batch-size 64 --max-batch-prefill-tokens 32", "--max-batch-prefill-tokens"),
        ("--num-shard 2 --sharded false", "--num-shard"),
        ("--num-shard 2 --device cuda:1", "--num-shard"),
        ("--sharded true", "--num-shard"),
        ("--sharded true --num-shard 1", "--num-shard"),
        ("--revision main", "--revision"),
        ("--quantize gptq", "--quantize"),
        ("--quantize-head", "--quantize-head"),
        ("--tokenizer-config-path /no/such.json", "--tokenizer-config-path"),
    ],
)
def test_a_wrong_combination_is_one_line_that_names_the_flag(
    launch: Launch, arguments: str, flag: str
) -> None:
    launched = launch(*arguments.split())
    line = fails(launched, 1, flag, seconds=10)
    assert launched.stderr().strip() == line, "exactly one line"


def test_a_limit_above_the_models_context_names_the_flag(launch: Launch) -> None:
    fails(launch("--max-total-tokens", "1000000"), 1, "--max-total-tokens")


def test_a_taken_port_is_named(launch: Launch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        fails(launch(port=port), 1, str(port))


def test_a_missing_folder_is_named(launch: Launch, tmp_path: Path) -> None:
    fails(launch("--model-id", str(tmp_path / "nothing")), 1, "nothing", seconds=20)


def test_a_hub_model_that_is_not_here_is_named(launch: Launch, tmp_path: Path) -> None:
    fails(
        launch("--model-id", "nobody/nothing", env={"HF_HOME": str(tmp_path)}),
        1,
        "no such folder: nobody/nothing",
        seconds=30,
    )


def test_too_little_memory_for_the_cache_is_named(launch: Launch) -> None:
    fails(launch("--max-batch-total-tokens", "1000000000000"), 1, "--max-batch-total-tokens")


def test_too_little_memory_for_anything_is_named(launch: Launch) -> None:
    fails(launch("--memory-fraction", "0.00001"), 1, "KV cache", "MiB", "--max-total-tokens")


Break = Callable[[Path], None]


def checkpoint(folder: Path) -> Path:
    return random_llama(folder, hidden=32, layers=1, heads=2, kv_heads=1)


def remove(name: str) -> Break:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Break:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return apply


def edit_config(**changes: Any) -> Break:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return apply


def truncate_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit_header(change: Callable[[dict[str, Any]], None]) -> Break:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + size])
        change(header)
        new = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])

    return apply


def beyond_the_end(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["data_offsets"] = [2**60, 2**60 + 128]


def overlapping(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["data_offsets"] = [0, 128]


def backwards(header: dict[str, Any]) -> None:
    start, end = header["model.norm.weight"]["data_offsets"]
    header["model.norm.weight"]["data_offsets"] = [end, start]


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Break:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def lose_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.0.mlp.up_proj.weight"]


def misshape_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(7)


def add_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.99.mlp.up_proj.weight"] = torch.ones(7)


def spoil_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = torch.nan


def whole_numbers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


def lose_a_shard(folder: Path) -> None:
    names = list(load_file(folder / WEIGHTS))
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    index["weight_map"][names[0]] = "model-00002-of-00002.safetensors"
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": torch.ones(32)}, folder / "pytorch_model.bin")


WEIGHTS = "model.safetensors"
BROKEN: dict[str, tuple[Break, tuple[str, ...]]] = {
    "no config": (remove("config.json"), ("config.json",)),
    "config is not JSON": (write("config.json", b"{"), ("config.json",)),
    "config is an array": (write("config.json", b"[]"), ("config.json",)),
    "config lacks a size": (edit_config(hidden_size=None), ("hidden_size",)),
    "config has a negative size": (edit_config(num_hidden_layers=-1), ("num_hidden_layers",)),
    "heads do not divide": (
        edit_config(num_attention_heads=3, num_key_value_heads=2),
        ("num_attention_heads",),
    ),
    "unsupported architecture": (
        edit_config(model_type="zamba2", architectures=["Zamba2ForCausalLM"]),
        ("Zamba2ForCausalLM", "no recipe", "keeps a recurrent state"),
    ),
    "unknown architecture": (
        edit_config(model_type="nobodys", architectures=["NobodysModelForCausalLM"]),
        ("NobodysModelForCausalLM", "no recipe", "does not know"),
    ),
    "no weights": (remove(WEIGHTS), ("safetensors",)),
    "only pickled weights": (only_pickled, ("pytorch_model.bin", "--trust-remote-code")),
    "quantized": (edit_config(quantization_config={"quant_method": "gptq"}), ("quantized (gptq)",)),
    "no tokenizer": (remove("tokenizer.json"), ("tokenizer.json",)),
    "tokenizer is broken": (write("tokenizer.json", b'{"version": 1}'), ("tokenizer.json",)),
    "truncated weights": (truncate_weights, (WEIGHTS,)),
    "empty weights": (write(WEIGHTS, b""), (WEIGHTS,)),
    "huge header": (write(WEIGHTS, struct.pack("<Q", 2**62) + b"{}"), (WEIGHTS,)),
    "header beyond the file": (write(WEIGHTS, struct.pack("<Q", 5000) + b"{}"), (WEIGHTS,)),
    "header is not JSON": (write(WEIGHTS, struct.pack("<Q", 8) + b"garbage!"), (WEIGHTS,)),
    "offsets beyond the end": (edit_header(beyond_the_end), (WEIGHTS,)),
    "offsets overlap": (edit_header(overlapping), (WEIGHTS,)),
    "offsets run backwards": (edit_header(backwards), (WEIGHTS,)),
    "a tensor is missing": (edit_tensors(lose_a_tensor), ("model.layers.0.mlp.up_proj.weight",)),
    "a tensor has another shape": (edit_tensors(misshape_a_tensor), ("model.norm.weight",)),
    "a tensor too many": (edit_tensors(add_a_tensor), ("model.layers.99.mlp.up_proj.weight",)),
    "a tensor of whole numbers": (edit_tensors(whole_numbers), ("model.norm.weight (I8)",)),
    "a number that is none": (edit_tensors(spoil_a_tensor), ("NaN", "model.layers.0.mlp.up_proj.weight")),
    "a shard is missing": (lose_a_shard, ("1 file is missing: model-00002-of-00002.safetensors",)),
}


# One of each class: what the launcher sees, the configuration, the architecture, the tokenizer, weights that are not
# there, a file's header, its tensors. The rest are the long tail.
USUAL_BREAKS = {
    "config is not JSON",
    "config has a negative size",
    "unsupported architecture",
    "no weights",
    "tokenizer is broken",
    "offsets beyond the end",
    "a tensor is missing",
}
CASES = [case if case in USUAL_BREAKS else pytest.param(case, marks=pytest.mark.tail) for case in BROKEN]


@pytest.mark.parametrize("case", CASES)
def test_a_broken_checkpoint_is_one_clear_error(launch: Launch, tmp_path: Path, case: str) -> None:
    break_it, mentions = BROKEN[case]
    folder = checkpoint(tmp_path / "broken-model")
    break_it(folder)
    fails(launch("--model-id", str(folder)), 1, *mentions)


def test_pickled_weights_are_served_with_consent(launch: Launch, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "pickled")
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    launched = launch("--model-id", str(folder), "--trust-remote-code").wait_ready()
    answer = wire.post(launched.address, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}})
    assert answer.status == 200


def test_the_doctor_says_what_serving_would(tmp_path: Path) -> None:
    def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        command = [str(BINARY), "doctor", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=inherited)

    shipped = asked()
    assert shipped.returncode == 0 and shipped.stdout.endswith("would be served\n"), shipped.stderr
    folder = checkpoint(tmp_path / "model")
    assert json.loads(asked("--model-id", str(folder), "--json").stdout)["would_serve"] is True
    edit_tensors(lose_a_tensor)(folder)
    ended = asked("--model-id", str(folder), "--json")
    assert ended.returncode == 1
    (problem,) = json.loads(ended.stdout)["problems"]
    assert "lacks 1 tensor: model.layers.0.mlp.up_proj.weight" in problem


def test_a_chat_template_that_does_not_compile_is_a_warning_and_a_422(launch: Launch, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "{% if %}"}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    launched = launch("--model-id", str(folder)).wait_ready()
    assert "template" in launched.log()
    assert (
        wire.post(launched.address, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}}).status
        == 200
    )
    chat = wire.post(
        launched.address, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}
    )
    assert chat.status == 422 and "template" in chat.json()["error"]["message"]


def test_a_local_copy_of_the_shipped_model_is_served_by_its_folder(launch: Launch, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(SHIPPED, folder)
    launched = launch("--model-id", str(folder)).wait_ready()
    assert wire.get(launched.address, "/info").json()["model_id"] == str(folder)
