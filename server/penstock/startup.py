"""The start of a worker, from arguments to the open socket: ranks meet, the model is loaded, gRPC listens.

Called by `penstock.worker` once the process is set up; apart from it because of what it imports. Torch is imported
only where the model is not in the packed cache, or is not the CPU engine's.
"""

import argparse
import gc
import itertools
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from penstock import quantization
from penstock.engine.engine import Engine
from penstock.engine.engine_thread import EngineThread
from penstock.engine.preparation import prepare
from penstock.errors import UnusableModel
from penstock.loading.checks import check_folder, check_weights
from penstock.loading.host import (
    INSTALL_TORCH,
    NEEDS_TORCH,
    Processor,
    has_torch,
    in_bf16,
    may_have_accelerator,
    threads_of,
)
from penstock.loading.model_files import (
    GENERATION,
    dtype_name,
    eos_ids,
    read_config,
    read_json,
    unread_adapter,
)
from penstock.models import choice
from penstock.models.architectures import left_out
from penstock.models.decoder_start import decoder_start_ids
from penstock.models.packed_cache import PackedCache, usual_folder
from penstock.parallel import rendezvous
from penstock.parallel.group import TensorGroup
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.address import Address
from penstock.rpc.description import description_of
from penstock.rpc.server import ProcessExit, listen
from penstock.rpc.servicer import WorkerServicer
from penstock.telemetry import log
from penstock_kernels import tensors

if TYPE_CHECKING:
    from penstock.adapters import Adapter
    from penstock.engine.draft_model import DraftModel

# How often a rank says that it waits for others, and one of how many of these lines is for operators.
WAITING_SECONDS = 3.0
WAITING_LINES = 20


def serve(
    arguments: argparse.Namespace, address: Address, listening: threading.Event, began: float
) -> NoReturn:
    """Serves on this thread until a signal handler raises, and sets `listening` when it is loaded. Raises UnusableModel."""
    imported = time.perf_counter()
    folder: Path = arguments.model_dir
    config = quantization.with_what_is_beside(read_config(folder), folder)
    # Of what is quantized the rest is bf16: nothing else is served with it.
    is_free = arguments.dtype == "auto" and arguments.quantize not in (None, quantization.NONE)
    dtype = dtype_name(
        config,
        "bfloat16" if is_free else arguments.dtype,
        lambda: check_weights(folder, arguments.trust_remote_code).stored,
    )
    packed_cache = _packed_cache(arguments)
    adapters = _adapters(arguments)
    on_engine = in_bf16(dtype, arguments.dtype)
    engine = _without_torch(arguments, config, on_engine, packed_cache, adapters)
    if isinstance(engine, str):
        engine = _loaded(arguments, config, dtype, packed_cache, adapters, engine)
    elif on_engine != dtype:
        _tell_of_bf16(arguments, dtype)
    del adapters  # as read they are larger than as the engine has them
    for unserved in (left_out(config), unread_adapter(os.listdir(folder))):
        if unserved is not None and arguments.rank == 0:
            log("WARN", unserved)
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


def _adapters(arguments: argparse.Namespace) -> "list[Adapter]":
    """The LoRA adapters that requests may name. Raises UnusableModel."""
    if not arguments.lora_adapters:
        return []
    from penstock import adapters

    found = [adapters.read(*source) for source in adapters.sources(arguments.lora_adapters)]
    for one in found if arguments.rank == 0 else []:
        ranks = sorted({pair.rank for pair in one.pairs.values()})
        shown = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        # Not compared: models are served under other names, and adapters made for one fit what was trained on from it.
        base = f", made for {one.base}" if one.base else ""
        log("INFO", f"adapter {one.name}: {len(one.pairs)} pairs of matrices of {shown}{base}")
    return found


def _without_torch(
    arguments: argparse.Namespace,
    config: dict[str, Any],
    named: str,
    packed_cache: PackedCache | None,
    adapters: "list[Adapter]",
) -> Engine | str:
    """The engine of a model that the CPU engine runs, from the packed cache or from its checkpoint; or what needs torch, in words."""
    if arguments.stages > 1:
        return "several stages"
    if _meets_elsewhere(arguments):
        return "shards that meet at --master-addr"
    if named != "bfloat16":
        return f"models in {named}"
    if arguments.device not in ("cpu", "auto"):
        return f"models on --device {arguments.device}"
    if arguments.device == "auto" and may_have_accelerator():
        if has_torch():
            return "models on a GPU"
        told = f"this machine has a GPU's driver, and torch is not installed, which GPUs need: {INSTALL_TORCH}; the CPU serves"
        log("WARN", told)
    quantize, head, trusted = arguments.quantize or "", arguments.quantize_head, arguments.trust_remote_code
    threads, found, device = threads_of(arguments.threads), None, Processor()
    group = TensorGroup(arguments.rank, arguments.world_size)  # as it will be
    if arguments.draft_model_dir is not None:  # first: what is found below is mapped, and counted as mapped
        from penstock.models import native_choice

        why = native_choice.needs_torch(check_folder(arguments.draft_model_dir, trusted), named, "penstock")
        if why is not None:
            return f"draft {why}"
    if packed_cache is not None and group.size == 1:
        how = (trusted, arguments.model_impl, quantize, head, packed_cache, threads)
        found = choice.find(config, arguments.model_dir, *how)
    if found is None:
        from penstock.models import native_choice

        why = native_choice.needs_torch(config, named, arguments.model_impl, group)
        if why is not None:
            return why
    elif arguments.kv_cache_dtype != "auto":  # as where a model is loaded from its checkpoint
        from penstock.models import native_choice

        native_choice.refuse_cache(arguments.kv_cache_dtype, found[1].config, named, device, group)
    engine = Engine(
        config,
        arguments.model_dir,
        tensors.bfloat16,
        device,
        _meet(arguments, device),
        deterministic=arguments.deterministic,
        implementation=arguments.model_impl,
        found=found,
        adapters=adapters,
        **_options(arguments, packed_cache),
    )
    _give_drafter(engine, arguments, packed_cache)
    return engine


def _meet(arguments: argparse.Namespace, device: Any) -> TensorGroup:
    """See rendezvous.meet. A rank that `penstock worker` watches alone says that it waits for the others, which may be hours behind:
    it is not hung. The launcher watches all of its own ranks at once, of which the one that is waited for shows progress.
    """
    met = threading.Event()

    def tell() -> None:
        said = itertools.count()
        while not met.wait(WAITING_SECONDS):
            level = "DEBUG" if next(said) % WAITING_LINES else "INFO"
            log(level, f"waits for the other ranks at {arguments.rendezvous}", progress=True)

    if arguments.address.is_remote and arguments.world_size > 1:
        threading.Thread(target=tell, name="waiting", daemon=True).start()
    try:
        return rendezvous.meet(
            arguments.rendezvous, arguments.rank, arguments.world_size, arguments.stages, device
        )
    finally:
        met.set()


def _meets_elsewhere(arguments: argparse.Namespace) -> bool:
    """Whether ranks may be on several hosts, which torch brings together."""
    return arguments.world_size > 1 and rendezvous.parse(arguments.rendezvous).scheme != "file"


def _loaded(
    arguments: argparse.Namespace,
    config: dict[str, Any],
    named: str,
    packed_cache: PackedCache | None,
    adapters: "list[Adapter]",
    what: str,
) -> Engine:
    """The engine of a model that needs torch, with its draft model. `what` needs it. Raises UnusableModel."""
    try:
        import torch
    except ImportError as error:
        raise UnusableModel(what + NEEDS_TORCH) from error

    from penstock.loading.device import DTYPES, device_of, gpu_of

    # Ranks that a router of another host may reach are on hosts of their own, with GPUs of their own.
    gpu = gpu_of(arguments.rank) if arguments.address.is_remote else arguments.rank
    folder = arguments.model_dir
    device = device_of(arguments.device, gpu, partial(log, "WARN") if arguments.rank == 0 else lambda _: None)
    if device.type == "cuda":
        from penstock.models import native_choice

        how = (arguments.dtype, arguments.quantize or "", arguments.model_impl)
        published, named = named, native_choice.dtype_on_gpu(config, named, *how)
        if published != named and arguments.rank == 0:
            log(
                "WARN",
                f"{published} is served in {named}, as weights of 4 bits are on a GPU; --quantize none has all in {published}",
            )
    elif arguments.stages == 1 and not _meets_elsewhere(arguments):
        from penstock.models import native_choice

        # A GPU's driver without a GPU, or a draft model that needs torch: the engine computes here, too.
        published, on_engine = named, in_bf16(named, arguments.dtype)
        ranks = TensorGroup(arguments.rank, arguments.world_size)  # as they will be
        asked = (config, on_engine, arguments.model_impl, ranks)
        if on_engine != published and native_choice.needs_torch(*asked) is None:
            named = on_engine
            _tell_of_bf16(arguments, published)
    dtype = DTYPES[named]
    torch.set_grad_enabled(False)
    if device.type == "cpu":
        torch.set_num_threads(threads_of(arguments.threads))
    group = _meet(arguments, device)
    engine = Engine(
        config,
        folder,
        dtype,
        device,
        group,
        deterministic=arguments.deterministic,
        implementation=arguments.model_impl,
        adapters=adapters,
        **_options(arguments, packed_cache),
    )
    drafter = _give_drafter(engine, arguments, packed_cache)
    if engine.native is not None and (drafter is None or drafter.is_native):
        torch.set_num_threads(1)  # torch only samples: its threads would spin where the engine's compute
    return engine


def _tell_of_bf16(arguments: argparse.Namespace, published: str) -> None:
    if arguments.rank == 0:
        log(
            "WARN",
            f"{published} weights are served in bfloat16, as the CPU engine computes; --dtype {published} has torch serve them",
        )


def _options(arguments: argparse.Namespace, packed_cache: PackedCache | None) -> dict[str, Any]:
    """What is said of the model that is served and of its draft model alike."""
    return {
        "trusted": arguments.trust_remote_code,
        "quantize": arguments.quantize or "",
        "quantize_head": arguments.quantize_head,
        "packed_cache": packed_cache,
        "cache_dtype": arguments.kv_cache_dtype,
        "threads": threads_of(arguments.threads),
    }


def _give_drafter(
    engine: Engine, arguments: argparse.Namespace, packed_cache: PackedCache | None
) -> "DraftModel | None":
    """Loads the draft model, if there is one."""
    if arguments.draft_model_dir is None:
        return None
    from penstock.engine import draft_model

    drafter = draft_model.load(
        arguments.draft_model_dir,
        engine.model.config,
        arguments.model_dir,
        engine.dtype,
        engine.device,
        **_options(arguments, packed_cache),
    )
    if arguments.deterministic:
        drafter.make_batch_invariant()
    engine.drafter = drafter
    return drafter


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
