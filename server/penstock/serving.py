"""Loads the model and serves it on the socket until told to stop.

Called by `penstock.worker` once the process is set up; apart from it because importing this imports torch.
"""

import argparse
import gc
import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import grpc
import torch

from penstock import self_check
from penstock.engine import Engine
from penstock.engine_thread import EngineThread
from penstock.errors import LOST_PEER, LostPeer, UnusableModel, one_line
from penstock.model_files import GENERATION, eos_ids, read_config, read_json
from penstock.models.architectures import TEXT_ONLY, reads_images
from penstock.models.config import DecoderConfig
from penstock.models.encoder_decoder import EncoderDecoderConfig
from penstock.models.fallback import Fallback, FallbackConfig
from penstock.rendezvous import meet
from penstock.rpc import handlers
from penstock.service import WorkerService, description_of
from penstock.telemetry import log

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def serve(arguments: argparse.Namespace, began: float) -> NoReturn:
    """Serves on this thread until a signal handler raises. Raises UnusableModel."""
    imported = time.perf_counter()
    folder: Path = arguments.model_dir
    config = read_config(folder)
    dtype = dtype_of(config, arguments.dtype)
    device = device_of(arguments.device, arguments.rank)
    torch.set_grad_enabled(False)
    if device.type == "cpu":
        torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
    group = meet(arguments.rendezvous, arguments.rank, arguments.world_size, arguments.stages, device)
    engine = Engine(
        config,
        folder,
        dtype,
        device,
        group,
        trusted=arguments.trust_remote_code,
        deterministic=arguments.deterministic,
        implementation=arguments.model_impl,
    )
    if reads_images(config) and arguments.rank == 0:
        log("WARN", TEXT_ONLY)
    if isinstance(engine.model, Fallback):
        loaded = time.perf_counter()
        self_check.check(engine, engine.model)
        log("INFO", "checked against transformers", seconds=round(time.perf_counter() - loaded, 3))
    if arguments.otlp_endpoint:
        from penstock.spans import StepSpans

        engine.spans = StepSpans(arguments.otlp_endpoint, arguments.otlp_service_name, arguments.rank)
    # What is loaded stays: no collection between two steps has to look through torch's objects.
    gc.freeze()
    gc.enable()
    loaded = time.perf_counter()
    generation = read_json(folder, GENERATION)
    description = description_of(
        engine,
        config,
        eos_ids(config, generation),
        decoder_start_ids(config, generation, engine.model.config),
        arguments.rank,
        arguments.world_size,
        arguments.stages,
    )
    thread = EngineThread()
    service = WorkerService(engine, thread, description, _Ending())
    server = grpc.server(
        ThreadPoolExecutor(8, thread_name_prefix="grpc"),
        handlers=[handlers(service)],
        options=(("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)),
    )
    server.add_insecure_port(f"unix:{arguments.socket}")
    server.start()
    log(
        "INFO",
        "ready",
        import_seconds=round(imported - began, 3),
        load_seconds=round(loaded - imported, 3),
        listen_seconds=round(time.perf_counter() - loaded, 3),
        parameters=description.parameters,
        dtype=description.dtype,
        device=description.device,
    )
    thread.serve()


def decoder_start_ids(
    config: dict[str, Any],
    generation: dict[str, Any] | None,
    shape: DecoderConfig | EncoderDecoderConfig | FallbackConfig,
) -> list[int]:
    """What the decoder of an encoder-decoder begins with: its start and, where one is forced, its first token.

    generation_config.json, where it is there, says it before config.json. Raises UnusableModel.
    """
    if not isinstance(shape, EncoderDecoderConfig):
        return []

    def token(name: str, default: int | None) -> int | None:
        for file, source in ((GENERATION, generation or {}), ("config.json", config)):
            value = source.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < shape.vocab_size:
                raise UnusableModel(f"{file}: {name} is {value!r}, not a token below {shape.vocab_size}")
            return value
        return default

    start = token("decoder_start_token_id", shape.default_start)
    if start is None:
        start = token("bos_token_id", None)
    if start is None:
        raise UnusableModel(
            "generation_config.json: no decoder_start_token_id, which says what the decoder begins with"
        )
    forced = token("forced_bos_token_id", None)
    return [start] if forced is None else [start, forced]


def dtype_of(config: dict[str, Any], wanted: str) -> torch.dtype:
    """What --dtype stands for. Raises UnusableModel."""
    if wanted == "auto":
        wanted = str(config.get("dtype") or config.get("torch_dtype") or "float32")
        if wanted not in DTYPES:
            raise UnusableModel(f"config.json: unsupported dtype {wanted!r}; choose one by --dtype")
    return DTYPES[wanted]


def device_of(wanted: str, rank: int = 0) -> torch.device:
    """What --device stands for: rank r takes the r-th of the visible GPUs unless one is named. Raises UnusableModel."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UnusableModel(f"--device: {wanted!r} is not cpu, cuda or cuda:N") from error
    if device.type == "cuda":
        index = rank if device.index is None else device.index
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if device.index is None and 0 < count <= index:
            raise UnusableModel(
                f"--num-shard, --pipeline-parallel: each part needs a GPU, and {count} are visible here"
            )
        if index >= count:
            raise UnusableModel(f"--device: there is no {wanted} on this machine")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise UnusableModel(f"--device: {wanted!r} is not cpu, cuda or cuda:N")
    return device


class _Ending:
    """Ends the process after a failure inside a step. Its thread exists beforehand: it may be the memory
    for one more that is missing.
    """

    def __init__(self) -> None:
        self._failures: queue.SimpleQueue[tuple[int, threading.Event]] = queue.SimpleQueue()
        threading.Thread(target=self._wait, name="ending", daemon=True).start()

    def __call__(self, error: Exception, answered: threading.Event) -> None:
        """Logs the cause, lets the answer out, and exits."""
        if isinstance(error, LostPeer):
            log("WARN", f"lost another rank: {one_line(error)}")
        else:
            log("ERROR", f"{type(error).__name__}: {one_line(error)}", fatal=True)
        self._failures.put((LOST_PEER if isinstance(error, LostPeer) else 1, answered))

    def _wait(self) -> None:
        status, answered = self._failures.get()
        answered.wait(1.0)
        os._exit(status)
