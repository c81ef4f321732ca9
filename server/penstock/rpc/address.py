"""Where a worker listens: a unix socket in a folder of this user alone, or a port, in plain or by mutual TLS.

Read from the arguments, and checked before the model is loaded. Must not import gRPC, which takes a while.
"""

import errno
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """PEM files: our own chain and its key, and the authority that the router's certificate is signed by."""

    chain: Path
    key: Path
    authority: Path

    def check(self) -> None:
        """Raises OSError with the flag whose file is at fault."""
        import ssl  # most workers need none, and it takes 10 ms of each start

        for flag, path in (
            ("--tls-cert", self.chain),
            ("--tls-key", self.key),
            ("--tls-ca", self.authority),
        ):
            try:
                path.read_bytes()
            except OSError as error:
                raise OSError(f"{flag} {path}: {error.strerror}") from error
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_verify_locations(self.authority)
        except ssl.SSLError as error:
            raise OSError(f"--tls-ca {self.authority}: it holds no certificate") from error
        try:
            context.load_cert_chain(self.chain, self.key)
        except ssl.SSLError as error:
            why = error.reason or str(error)
            raise OSError(f"--tls-cert {self.chain} with --tls-key {self.key}: {why}") from error


@dataclass(frozen=True)
class UnixSocket:
    """At a path."""

    path: Path

    @property
    def is_remote(self) -> bool:
        """Whether a router of another host may come."""
        return False

    @property
    def for_grpc(self) -> str:
        """As gRPC writes it."""
        return f"unix:{self.path}"

    @property
    def for_frames(self) -> Path:
        """The path of the socket that takes plans without gRPC."""
        return self.path.with_name(self.path.name + ".run")

    def check(self) -> None:
        """Raises OSError where others could come in."""
        folder = self.path.absolute().parent
        found = folder.stat()
        private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
        if not private or found.st_uid != os.geteuid():
            raise PermissionError(f"--listen: {folder} must be a folder of this user with the mode 0700")


@dataclass(frozen=True)
class Port:
    """At a port of this host. Without certificates whoever reaches it is served."""

    host: str
    port: int
    certificates: Certificates | None

    @property
    def is_remote(self) -> bool:
        """Whether a router of another host may come."""
        return True

    @property
    def for_grpc(self) -> str:
        """As gRPC writes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self) -> None:
        """Raises OSError where the port cannot be taken, or a certificate cannot be used."""
        if self.certificates is not None:
            self.certificates.check()
        try:
            family, kind, _, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "another program listens on it" if taken else error.strerror or str(error)
            raise OSError(f"--listen {self.for_grpc}: {why}") from error


Address = UnixSocket | Port


def parse(text: str, certificates: Certificates | None, plain_allowed: bool) -> Address:
    """`unix:PATH`, `tcp:HOST:PORT` or `tls:HOST:PORT`. Raises ValueError."""
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest:
        return UnixSocket(Path(rest))
    host, _, number = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (
        scheme not in ("tcp", "tls")
        or not host
        or not number.isascii()
        or not number.isdigit()
        or not 0 < int(number) < 1 << 16
    ):
        raise ValueError(f"--listen {text}: must be unix:PATH, tcp:HOST:PORT or tls:HOST:PORT")
    if scheme == "tls":
        if certificates is None:
            raise ValueError("--listen tls:... needs --tls-cert, --tls-key and --tls-ca")
        return Port(host, int(number), certificates)
    port = Port(host, int(number), None)
    if not (port.is_loopback or plain_allowed):
        raise ValueError(
            f"--listen {text}: whoever reaches this port could use the worker and read its requests; take tls:, or "
            "say --allow-plain-tcp"
        )
    return port
