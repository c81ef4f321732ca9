"""The main function of a worker process: `python -m penstock.worker --help`.

Started by `penstock`, one for each shard, or by `penstock worker` on another host. Reads its arguments, loads the model, then
listens. Imports only what it needs before the weights are in memory: the time until then is what a restart costs.
"""

import argparse
import ctypes
import gc
import os
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from penstock.rpc.address import Address, Certificates, parse

BEGAN = time.perf_counter()
# How often a worker that loads says that it does.
PROGRESS_SECONDS = 3.0


def main() -> None:
    """Runs until the parent dies or a signal comes. One that was started with signals ignored leaves its end to its parent."""
    arguments = _arguments()
    _die_with_the_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    _set_threads(arguments.threads)
    keep_memory()
    # What is imported makes many objects and no garbage; looking for some is a tenth of the start. `startup`
    # switches it on again.
    gc.disable()

    from penstock.errors import PEER_LOST, PeerLost, UnusableModel, one_line
    from penstock.loading.checks import check_folder
    from penstock.telemetry import log

    try:
        address: Address = arguments.address
        address.check()
        listening = threading.Event()
        _watch_work(listening)
        processors = len(os.sched_getaffinity(0))
        if arguments.threads > processors:
            says = f"--worker-threads {arguments.threads}: more than the {processors} processors that this process may use"
            log("WARN", f"{says}, so that threads wait for others that do not run", progress=True)
        check_folder(arguments.model_dir, arguments.trust_remote_code)
        from penstock.startup import serve

        serve(arguments, address, listening, BEGAN)
    except _Stopped:
        log("INFO", "stopped")
        _leave(0)
    except PeerLost as error:
        log("WARN", f"lost another rank: {one_line(error)}")
        _leave(PEER_LOST)
    except (UnusableModel, OSError, MemoryError) as error:
        log("ERROR", one_line(error) or type(error).__name__, fatal=True)
        _leave(1)
    except Exception as error:
        log("ERROR", f"{type(error).__name__}: {one_line(error)}", fatal=True)
        _leave(1)


class _Stopped(BaseException):
    """A signal asked for the end. No Exception, so that nothing on the way mistakes it for a failure."""


def _stop(number: int, frame: object) -> None:
    raise _Stopped


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.worker",
        description="Holds one shard of a model and executes the router's step plans. Started by `penstock`. "
        "Logs JSON lines to standard error; ends when its parent does, or when its standard input, if it is "
        "a pipe, is closed.",
    )
    parser.add_argument(
        "--model-dir", type=Path, required=True, help="folder with config.json and safetensors files"
    )
    parser.add_argument(
        "--listen",
        required=True,
        help="where: unix:PATH, in a folder with the mode 0700, tcp:HOST:PORT or tls:HOST:PORT",
    )
    parser.add_argument("--tls-cert", type=Path, help="with tls: the certificate chain of this worker")
    parser.add_argument("--tls-key", type=Path, help="with tls: its key")
    parser.add_argument("--tls-ca", type=Path, help="with tls: who has signed the certificates of routers")
    parser.add_argument(
        "--allow-plain-tcp",
        action="store_true",
        help="take tcp: beyond the loopback, where whoever reaches the port can use the worker and read its requests",
    )
    parser.add_argument(
        "--dtype",
        choices=["auto", "float32", "bfloat16", "float16"],
        default="auto",
        help="of weights and activations [default: what config.json says]",
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:N [default: cuda where there is one]"
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="what a token gets does not depend on the batch"
    )
    parser.add_argument(
        "--quantize",
        choices=[
            "int8",
            "int4",
            "int4-zp",
            "int4-g64",
            "int4-g64-zp",
            "int4-g128",
            "int4-g128-zp",
            "none",
        ],
        help="quantize the weights of layers while they are read [default: none, but what is published in 4 bits stays so]",
    )
    parser.add_argument("--quantize-head", action="store_true", help="with --quantize, the head as well")
    parser.add_argument(
        "--kv-cache-dtype",
        choices=["auto", "int8", "fp8_e4m3fn", "fp8_e5m2"],
        default="auto",
        help="how the KV cache of the CPU engine holds its numbers [default: as bf16]",
    )
    parser.add_argument(
        "--packed-cache",
        choices=["auto", "on", "off"],
        default="auto",
        help="keep what the CPU engine has packed for the next start: of quantized weights and small checkpoints (auto), of all, of none",
    )
    parser.add_argument(
        "--packed-cache-dir", type=Path, help="where [default: penstock/packed below HF_HOME]"
    )
    parser.add_argument(
        "--draft-model-dir",
        type=Path,
        help="folder of a smaller model with the same tokenizer, which makes drafts where a plan asks for them",
    )
    parser.add_argument(
        "--lora-adapters",
        metavar="NAME=FOLDER",
        action="append",
        default=[],
        help="a LoRA adapter that sequences may be computed with, as peft saves it; may be given several times",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="load pickled weights where there are no others, and run a model's own code where nothing else can",
    )
    parser.add_argument(
        "--model-impl",
        choices=["auto", "penstock", "transformers"],
        default="auto",
        help="what runs the model: a recipe (penstock), or transformers with our paged attention [default: a "
        "recipe where there is one]",
    )
    parser.add_argument(
        "--rank", type=int, default=0, help="which part of the model this is, from 0 [default: 0]"
    )
    parser.add_argument(
        "--world-size", type=int, default=1, help="number of ranks, over all stages [default: 1]"
    )
    parser.add_argument(
        "--stages",
        type=int,
        default=1,
        help="of a pipeline, each of which holds some of the layers; rank = stage * shards of each + shard "
        "[default: 1]",
    )
    parser.add_argument(
        "--rendezvous",
        default="",
        help="where the shards find each other: file:///PATH, a file that does not exist yet, or "
        "tcp://HOST:PORT/NAME, where rank 0 listens. On CPUs they speak over the interface that the variable "
        "GLOO_SOCKET_IFNAME names",
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="threads that compute on a CPU [default: the cores it may use]"
    )
    parser.add_argument(
        "--otlp-endpoint", help="collector for the spans of steps, such as http://localhost:4317"
    )
    parser.add_argument(
        "--otlp-service-name", default="text-generation-inference.server", help="what those spans call this"
    )
    arguments = parser.parse_args()
    if not 0 <= arguments.rank < arguments.world_size:
        parser.error(f"--rank {arguments.rank} is none of --world-size {arguments.world_size}")
    if arguments.stages < 1 or arguments.world_size % arguments.stages:
        parser.error(f"--world-size {arguments.world_size} is no multiple of --stages {arguments.stages}")
    if arguments.world_size > 1 and not arguments.rendezvous:
        parser.error("--world-size above 1 needs --rendezvous")
    if arguments.world_size > 1 and arguments.draft_model_dir:
        parser.error("--draft-model-dir is for one rank")
    if arguments.quantize_head and arguments.quantize in (None, "none"):
        parser.error("--quantize-head needs --quantize int8 or one of int4")
    if arguments.threads < 0:
        parser.error("--threads must not be negative")
    files = (arguments.tls_cert, arguments.tls_key, arguments.tls_ca)
    if any(files) and not all(files):
        parser.error("--tls-cert, --tls-key and --tls-ca go together")
    try:
        certificates = Certificates(*files) if all(files) else None
        arguments.address = parse(arguments.listen, certificates, arguments.allow_plain_tcp)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def _die_with_the_parent() -> None:
    """No orphans: the kernel kills this process with its parent, and a closed pipe to it ends it, too."""
    parent = os.getppid()
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(1)
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        threading.Thread(target=_watch_standard_input, name="parent", daemon=True).start()


def _watch_standard_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def _watch_work(listening: threading.Event) -> None:
    usual = threading.stack_size(256 << 10)
    threading.Thread(target=_show_work, args=(listening,), name="loading", daemon=True).start()
    threading.stack_size(usual)


def _show_work(listening: threading.Event) -> None:
    """Until the worker listens, tells the launcher that loading goes on, whatever it is that takes long: torch's own
    import, a transformers model, the disk. A line that is marked as progress says so.
    """
    from penstock.telemetry import log

    work = Work()
    while not listening.wait(PROGRESS_SECONDS):
        if work.goes_on():
            log("DEBUG", "still loading", progress=True)


class Work:
    """Whether this process does something: it computes or reads. One that waits for ever does neither."""

    # Of the time between two looks, and bytes: below is what waiting takes.
    LEAST_SHARE = 0.02
    LEAST_BYTES = 64 << 10

    def __init__(self) -> None:
        self._looked, self._computed, self._read = time.monotonic(), time.process_time(), _bytes_read()

    def goes_on(self) -> bool:
        """Since the last look."""
        looked, computed, read = self._looked, self._computed, self._read
        self._looked, self._computed, self._read = time.monotonic(), time.process_time(), _bytes_read()
        share = (self._computed - computed) / max(self._looked - looked, 1e-9)
        return share >= self.LEAST_SHARE or self._read - read >= self.LEAST_BYTES


def _bytes_read() -> int:
    """By system calls, and from disks on behalf of mapped files (proc_pid_io(5)). 0 where the system does not say."""
    try:
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(lines["rchar"]) + int(lines["read_bytes"])
    except (OSError, ValueError, KeyError):
        return 0


def _set_threads(threads: int) -> None:
    """OpenMP reads its settings when torch is imported, hence by environment.

    Its threads spin while they wait for each other, which bridges the gaps between operations, and by default (libgomp's,
    which torch's wheels bring) for milliseconds: beside any other load the one that is waited for does not run meanwhile.
    100,000 turns, about a millisecond, are a third of the default: as fast on idle processors (10,000 take 3 to 8 % longer),
    and the longest answer beside five computing processes takes 1.6 s instead of 3.3 (`benchmarks/busy.py`).
    """
    os.environ["OMP_NUM_THREADS"] = str(threads or len(os.sched_getaffinity(0)))
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")


def keep_memory() -> None:
    """Makes the C library keep what large tensors free, where it can be told to (glibc).

    By default a large tensor is fresh pages of the kernel, zeroed, and given back after a few microseconds
    of use. Measured on a cumulated sum of (32, 32000): 0.3 ms instead of 4.8 ms.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_mmap_max, 0)
        mallopt(m_arena_max, 1)


def _leave(status: int) -> NoReturn:
    """Ends without the tear-down of torch and gRPC, which has nothing to save and takes long."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
