"""The start of a worker, from arguments to the open socket: ranks meet, the model is loaded, gRPC listens.

Called by `penstock.worker` once the process is set up; apart from it because of what it imports. Torch is imported
only where the model is not in the packed cache, or is not the CPU engine's.
"""

import argparse
import gc
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from penstock.engine.engine import Engine
from penstock.engine.engine_thread import EngineThread
from penstock.engine.preparation import prepare
from penstock.loading.host import BFloat16, Processor, may_have_accelerator, threads_of
from penstock.loading.model_files import GENERATION, dtype_name, eos_ids, read_config, read_json
from penstock.models import choice
from penstock.models.architectures import left_out
from penstock.models.decoder_start import decoder_start_ids
from penstock.models.packed_cache import PackedCache, usual_folder
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.address import Address
from penstock.rpc.description import description_of
from penstock.rpc.server import ProcessExit, listen
from penstock.rpc.servicer import WorkerServicer
from penstock.telemetry import log


def serve(
    arguments: argparse.Namespace, address: Address, listening: threading.Event, began: float
) -> NoReturn:
    """Serves on this thread until a signal handler raises, and sets `listening` when it is loaded. Raises UnusableModel."""
    imported = time.perf_counter()
    folder: Path = arguments.model_dir
    config = read_config(folder)
    # Of what is quantized the rest is bf16: nothing else is served with it.
    is_free = arguments.dtype == "auto" and arguments.quantize
    dtype = dtype_name(config, "bfloat16" if is_free else arguments.dtype)
    packed_cache = _packed_cache(arguments)
    engine = _kept(arguments, config, dtype, packed_cache)
    if engine is None:
        engine = _loaded(arguments, config, dtype, packed_cache)
    only_text = left_out(config)
    if only_text is not None and arguments.rank == 0:
        log("WARN", only_text)
    if engine.model.reference is not None:
        from penstock.engine import self_check

        loaded = time.perf_counter()
        self_check.check(engine)
        log("INFO", "checked against transformers", seconds=round(time.perf_counter() - loaded, 3))
    if arguments.otlp_endpoint:
        from penstock.engine.spans import StepSpans

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
    meets_again = address.is_remote and arguments.world_size > 1
    servicer = WorkerServicer(
        engine, partial(_prepare, engine), thread, description, ProcessExit(), meets_again
    )
    _server = listen(servicer, address)  # stops when it is collected
    listening.set()
    log(
        "INFO",
        "ready",
        listening=True,
        import_seconds=round(imported - began, 3),
        load_seconds=round(loaded - imported, 3),
        listen_seconds=round(time.perf_counter() - loaded, 3),
        parameters=description.parameters,
        dtype=description.dtype,
        device=description.device,
    )
    thread.serve()


def _kept(
    arguments: argparse.Namespace, config: dict[str, Any], named: str, packed_cache: PackedCache | None
) -> Engine | None:
    """The engine of a model that the packed cache has, without torch; None: torch is needed, or has to say what there is."""
    is_plain = arguments.world_size == 1 and arguments.draft_model_dir is None and named == "bfloat16"
    is_on_cpu = arguments.device == "cpu" or (arguments.device == "auto" and not may_have_accelerator())
    if packed_cache is None or not (is_plain and is_on_cpu):
        return None
    quantize, head, trusted = arguments.quantize or "", arguments.quantize_head, arguments.trust_remote_code
    how = (trusted, arguments.model_impl, quantize, head, packed_cache, threads_of(arguments.threads))
    found = choice.find(config, arguments.model_dir, *how)
    if found is None:
        return None
    return Engine(
        config,
        arguments.model_dir,
        BFloat16(),
        Processor(),
        deterministic=arguments.deterministic,
        packed_cache=packed_cache,
        found=found,
        cache_dtype=arguments.kv_cache_dtype,
    )


def _loaded(
    arguments: argparse.Namespace, config: dict[str, Any], named: str, packed_cache: PackedCache | None
) -> Engine:
    """The engine of a model that is loaded with torch, with its draft model."""
    import torch

    from penstock.engine import draft_model
    from penstock.loading.device import DTYPES, device_of
    from penstock.parallel.rendezvous import meet

    folder, dtype = arguments.model_dir, DTYPES[named]
    device = device_of(arguments.device, arguments.rank)
    torch.set_grad_enabled(False)
    if device.type == "cpu":
        torch.set_num_threads(threads_of(arguments.threads))
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
        quantize=arguments.quantize or "",
        quantize_head=arguments.quantize_head,
        packed_cache=packed_cache,
        cache_dtype=arguments.kv_cache_dtype,
    )
    drafts_natively = True
    if arguments.draft_model_dir is not None:
        drafter = draft_model.load(
            arguments.draft_model_dir,
            engine.model.config,
            folder,
            dtype,
            device,
            trusted=arguments.trust_remote_code,
            quantize=arguments.quantize or "",
            quantize_head=arguments.quantize_head,
            packed_cache=packed_cache,
            cache_dtype=arguments.kv_cache_dtype,
        )
        if arguments.deterministic:
            drafter.make_batch_invariant()
        engine.drafter, drafts_natively = drafter, drafter.is_native
    if engine.native is not None and drafts_natively:
        torch.set_num_threads(1)  # torch only samples: its threads would spin where the engine's compute
    return engine


def _packed_cache(arguments: argparse.Namespace) -> PackedCache | None:
    if arguments.packed_cache == "off":
        return None
    folder: Path = arguments.packed_cache_dir or usual_folder()
    return PackedCache(folder.expanduser().absolute(), arguments.packed_cache == "on")


def _prepare(engine: Engine, request: pb.PrepareRequest) -> pb.Prepared:
    """What was packed at this start is written behind the warm-up, whose steps are timed."""
    prepared = prepare(engine, request)
    if engine.packed_cache is not None:
        engine.packed_cache.keep()
    return prepared
