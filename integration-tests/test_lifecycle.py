"""How the server starts, stops and fails to start: exit codes, one clear line, no orphan, no stack trace.

With null workers where the model does not matter. What is wrong with a model is in `test_broken_models.py`.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import wire
from checkpoints import SHIPPED
from conftest import Launch, assert_no_stack_trace, fails
from launched import BINARY, SLOW_STEPS, Launched
from load import Answer, ask, complete
from processes import wait_for

FOREVER = complete("A long story", 900)


class Running:
    """A stream that was begun in the background; `answer` is what it got."""

    def __init__(self, address: wire.Address, request: Any = FOREVER) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(launch_null: Launch, number: signal.Signals) -> None:
    launched = launch_null().wait_ready()
    undisturbed = ask(launched.address, FOREVER)

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

    # Slow, so that the stream is not over before the signal has an effect.
    with launched.slow_worker():
        running = Running(launched.address)
        idle = socket.create_connection((launched.address.host, launched.address.port))
        launched.process.send_signal(number)
        wait_for(refused, "new requests to be refused", 5)
        assert running.answer is None
    assert running.finish().same_as(undisturbed), "the running stream ends complete"
    assert launched.wait_ended() == 0
    idle.close()
    launched.assert_no_orphan()
    assert_no_stack_trace(launched.log())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_drains(launch_null: Launch, number: signal.Signals) -> None:
    """As systemd and Slurm send it."""
    launched = launch_null().wait_ready()
    undisturbed = ask(launched.address, FOREVER)
    with launched.slow_worker():
        running = Running(launched.address)
        launched.worker().signal(number)
        launched.process.send_signal(number)
        wait_for(lambda: draining(launched), "draining", 5)
        assert running.answer is None
    assert running.finish().same_as(undisturbed), "the running stream ends complete"
    assert launched.wait_ended() == 0
    assert "starting the workers again" not in launched.log()
    launched.assert_no_orphan()


def test_a_second_signal_stops_at_once(launch_null: Launch) -> None:
    launched = launch_null(env=SLOW_STEPS).wait_ready()
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


def test_the_shutdown_timeout_ends_what_does_not_end(launch_null: Launch) -> None:
    launched = launch_null("--shutdown-timeout", "1", "--step-timeout", "60", env=SLOW_STEPS).wait_ready()
    running = Running(launched.address)
    launched.worker().signal(signal.SIGSTOP)
    before = time.monotonic()
    launched.process.send_signal(signal.SIGTERM)
    launched.wait_ended(15)
    assert 0.9 < time.monotonic() - before < 10
    launched.assert_no_orphan(5)
    running.thread.join(10)
    assert not running.thread.is_alive(), "the client was left hanging"


def test_an_idle_server_stops_at_once_with_code_0(launch_null: Launch) -> None:
    launched = launch_null().wait_ready()
    before = time.monotonic()
    launched.process.send_signal(signal.SIGTERM)
    assert launched.wait_ended() == 0
    assert time.monotonic() - before < 5
    launched.assert_no_orphan(2)


def test_a_signal_while_loading_stops_with_code_0(launch_null: Launch) -> None:
    launched = launch_null()
    wait_for(launched.workers, "the worker process to be started")
    launched.process.send_signal(signal.SIGTERM)
    assert launched.wait_ended(15) == 0
    launched.assert_no_orphan(5)


def test_killing_the_launcher_leaves_no_orphan(launch_null: Launch) -> None:
    launched = launch_null().wait_ready()
    running = Running(launched.address)
    launched.process.kill()
    launched.wait_ended()
    launched.assert_no_orphan()
    running.thread.join(10)
    assert not running.thread.is_alive(), "the client was left hanging"


def test_killing_the_launcher_of_a_frozen_worker_leaves_no_orphan(launch_null: Launch) -> None:
    launched = launch_null().wait_ready()
    launched.worker().signal(signal.SIGSTOP)
    launched.process.kill()
    launched.wait_ended()
    launched.assert_no_orphan()


def test_killing_the_launcher_while_it_loads_leaves_no_orphan(launch_null: Launch) -> None:
    launched = launch_null()
    wait_for(launched.workers, "the worker process to be started")
    launched.process.kill()
    launched.wait_ended()
    launched.assert_no_orphan()


# Starting.


def test_the_port_opens_when_the_model_is_ready_where_that_is_asked(
    launch_null: Launch, tmp_path: Path
) -> None:
    """For probes that only connect. Otherwise it is open while the model is loaded."""
    hold = tmp_path / "hold"
    for asked, is_open in (("true", False), ("false", True)):
        hold.touch()
        launched = launch_null(env={"LISTEN_WHEN_READY": asked}, hold=hold)
        launched.worker()
        if is_open:
            wait_for(launched.health, "an answer")
            assert wire.get(launched.address, "/livez").status == 200
            health = wire.get(launched.address, "/health")
            assert health.status == 503 and health.json()["error_type"] == "healthcheck", health
        else:
            with pytest.raises(ConnectionRefusedError):
                wire.get(launched.address, "/livez")
        hold.unlink()
        launched.wait_ready()
        one_token = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
        assert wire.post(launched.address, "/generate", one_token).status == 200


def test_the_log_tells_each_phase_in_one_line(launch: Launch) -> None:
    launched = launch().wait_ready()
    # The last one comes when it is ready.
    launched.wait_told("loading", "warm", "ready in")
    assert len(launched.stdout().splitlines()) < 30, "a start is a few lines, not a wall"


def test_json_output_is_one_object_per_line(launch_null: Launch) -> None:
    launched = launch_null("--json-output").wait_ready()
    lines = [json.loads(line) for line in launched.stdout().splitlines()]
    assert lines and all({"timestamp", "level"} <= set(line) for line in lines)


def test_flags_may_come_from_the_environment_and_the_flag_wins(launch_null: Launch) -> None:
    env = {"MAX_TOTAL_TOKENS": "333", "MAX_CONCURRENT_REQUESTS": "9", "MAX_STOP_SEQUENCES": "7"}
    launched = launch_null("--max-stop-sequences", "2", env=env).wait_ready()
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
def test_a_flag_that_does_not_exist_or_parse_exits_2(launch_null: Launch, arguments: str) -> None:
    if "--port" in arguments or "--hostname" in arguments:
        out = subprocess.run([BINARY, *arguments.split()], check=False, capture_output=True, text=True)
        assert out.returncode == 2 and arguments.split()[0] in out.stderr
    else:
        launched = launch_null(*arguments.split())
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
        ("--quantize exl2", "--quantize"),
        ("--quantize-head", "--quantize-head"),
        ("--tokenizer-config-path /no/such.json", "--tokenizer-config-path"),
    ],
)
def test_a_wrong_combination_is_one_line_that_names_the_flag(
    launch_null: Launch, arguments: str, flag: str
) -> None:
    launched = launch_null(*arguments.split())
    line = fails(launched, 1, flag, seconds=10)
    assert launched.stderr().strip() == line, "exactly one line"


def test_a_limit_above_the_models_context_names_the_flag(launch_null: Launch) -> None:
    fails(launch_null("--max-total-tokens", "1000000"), 1, "--max-total-tokens")


def test_a_taken_port_is_named(launch_null: Launch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        fails(launch_null(port=port), 1, str(port))


def test_a_missing_folder_is_named(launch_null: Launch, tmp_path: Path) -> None:
    fails(launch_null("--model-id", str(tmp_path / "nothing")), 1, "nothing", seconds=20)


def test_a_hub_model_that_is_not_here_is_named(launch_null: Launch, tmp_path: Path) -> None:
    fails(
        launch_null("--model-id", "nobody/nothing", env={"HF_HOME": str(tmp_path)}),
        1,
        "no such folder: nobody/nothing",
        seconds=30,
    )


def test_a_server_that_downloads_its_model_is_alive_and_can_be_stopped(
    launch_null: Launch, tmp_path: Path
) -> None:
    with socket.socket() as hub:  # takes connections, and never answers
        hub.bind(("127.0.0.1", 0))
        hub.listen()
        endpoint = f"http://127.0.0.1:{hub.getsockname()[1]}"
        env = {"HF_HUB_OFFLINE": "", "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
        launched = launch_null("--model-id", "owner/model", env=env)
        wait_for(lambda: "looking up owner/model" in launched.log(), "the download")
        assert wire.get(launched.address, "/livez").status == 200
        health = wire.get(launched.address, "/health")
        assert health.status == 503 and "downloading owner/model" in health.json()["error"]
        launched.process.send_signal(signal.SIGTERM)
        assert launched.wait_ended(10) == 0


def test_a_chat_template_that_does_not_compile_is_a_warning_and_a_422(
    launch_null: Launch, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "{% if %}"}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    launched = launch_null("--model-id", str(folder)).wait_ready()
    launched.wait_told("template")
    assert (
        wire.post(launched.address, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}}).status
        == 200
    )
    chat = wire.post(
        launched.address, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}
    )
    assert chat.status == 422 and "template" in chat.json()["error"]["message"]


def test_a_local_copy_of_the_shipped_model_is_served_by_its_folder(
    launch_null: Launch, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(SHIPPED, folder)
    launched = launch_null("--model-id", str(folder)).wait_ready()
    assert wire.get(launched.address, "/info").json()["model_id"] == str(folder)


def test_a_null_worker_is_a_worker_without_torch(launch_null: Launch) -> None:
    launched = launch_null().wait_ready()
    mapped = Path(f"/proc/{launched.worker().pid}/maps").read_text()
    assert "grpc" in mapped and "libtorch" not in mapped
    assert ask(launched.address, complete("x", 20)).finish == "length"
