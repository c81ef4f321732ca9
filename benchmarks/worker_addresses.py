"""What a step costs over each kind of a worker's address: tokens per second, in turns in one run.

    .venv/bin/python benchmarks/worker_addresses.py [--model DIR] [--rounds 7] [--new-tokens 256] [--clients 1 8 32]

Four servers of one model, the shipped one by default, since the shorter a step is the more its way counts: a worker that the launcher
starts (frames over a pair of sockets), and workers started by hand at `unix:`, `tcp:` and `tls:` addresses of the loopback, with
certificates made for the run. Only one has requests at a time. A network adds its own latency to these figures, once a step and not
once a token, as a plan is sent before the one before it has been computed.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from running_server import free_port, penstock, processor, release, spread
from throughput import PROMPT_TOKENS, SHIPPED, seconds_over_http


def certificates(folder: Path) -> None:
    """An authority, and what it signed for a worker at the loopback and for the router."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", *key, "-days", "1", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name, host in (("worker", "IP:127.0.0.1"), ("router", "DNS:router")):
        (folder / "extensions").write_text(f"subjectAltName={host}\n")
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "request")
        signed_by = [
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "1",
            "-extfile",
            "extensions",
        ]
        openssl("x509", "-req", "-in", "request", *signed_by, "-out", f"{name}.pem")


@contextlib.contextmanager
def worker(model: Path, address: str, *flags: str) -> Iterator[None]:
    """`penstock worker` at this address until the block ends."""
    command = [str(release()), "worker", "--model-id", str(model), "--listen", address, *flags]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    print(f"{processor()}; {arguments.model.name}; tokens per second, {arguments.new_tokens} tokens each")
    model = ("--model-id", str(arguments.model))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificates(folder)
        addresses = {
            "unix": f"unix:{folder / 'worker.sock'}",
            "tcp": f"tcp:127.0.0.1:{free_port()}",
            "tls": f"tls:127.0.0.1:{free_port()}",
        }
        servers = {"own worker": stack.enter_context(penstock(*model))}
        for kind, address in addresses.items():
            theirs: list[str] = []
            ours: list[str] = []
            if kind == "tls":
                theirs = [f"--tls-{what}={folder / file}" for what, file in
                          (("cert", "worker.pem"), ("key", "worker.key"), ("ca", "ca.pem"))]  # fmt: skip
                ours = [f"--worker-tls-{what}={folder / file}" for what, file in
                        (("cert", "router.pem"), ("key", "router.key"), ("ca", "ca.pem"))]  # fmt: skip
            stack.enter_context(worker(arguments.model, address, *theirs))
            servers[kind] = stack.enter_context(penstock(*model, "--worker-address", address, *ours))
        fresh = iter(range(10**6))
        for clients in arguments.clients:
            rates: dict[str, list[float]] = {name: [] for name in servers}
            for turn in range(arguments.rounds + 1):
                for name, server in servers.items():
                    prompts = [
                        [300 + (next(fresh) * 977 + 13 * i) % 3000 for i in range(PROMPT_TOKENS)]
                        for _ in range(clients)
                    ]
                    rate = (
                        clients
                        * arguments.new_tokens
                        / seconds_over_http(server, prompts, arguments.new_tokens)
                    )
                    if turn:
                        rates[name].append(rate)
            base = sorted(rates["own worker"])[arguments.rounds // 2]
            for name, values in rates.items():
                middle = sorted(values)[arguments.rounds // 2]
                more = clients / middle - clients / base
                print(
                    f"{clients:>2} clients, {name:>10}: {spread(values, ' tok/s')}; {middle / base:.3f} of the own worker's, "
                    f"{1e6 * more:+.0f} us a step",
                    flush=True,
                )


if __name__ == "__main__":
    main()
