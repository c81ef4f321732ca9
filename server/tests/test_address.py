"""Where a worker listens: what an address may be, and what keeps it from being taken."""

import socket
from pathlib import Path

import pytest

from penstock.rpc.address import Certificates, Port, UnixSocket, parse

FILES = Certificates(Path("chain.pem"), Path("key.pem"), Path("authority.pem"))


def test_an_address_says_how_a_worker_is_spoken_to() -> None:
    assert parse("unix:/run/worker.sock", None, False) == UnixSocket(Path("/run/worker.sock"))
    assert parse("tcp:127.0.0.1:9000", None, False) == Port("127.0.0.1", 9000, None)
    assert parse("tcp:[::1]:9000", FILES, False) == Port("::1", 9000, None)
    assert parse("tls:0.0.0.0:9000", FILES, False) == Port("0.0.0.0", 9000, FILES)
    assert parse("tcp:[::1]:9000", None, False).for_grpc == "[::1]:9000"
    assert not parse("unix:/s", None, False).is_remote and parse("tcp:localhost:1", None, False).is_remote


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/run/worker.sock", "must be unix:PATH"),
        ("unix:", "must be unix:PATH"),
        ("http:host:80", "must be unix:PATH"),
        ("tcp:9000", "must be unix:PATH"),
        ("tcp:localhost:0", "must be unix:PATH"),
        ("tcp:localhost:65536", "must be unix:PATH"),
        ("tcp:localhost:²", "must be unix:PATH"),
        ("tls:localhost:9000", "--tls-cert"),
        ("tcp:0.0.0.0:9000", "--allow-plain-tcp"),
        ("tcp:gpu-1:9000", "--allow-plain-tcp"),
    ],
)
def test_what_is_no_address_or_open_to_all_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(text, None, False)


def test_plain_ports_are_open_to_all_only_when_that_was_asked_for() -> None:
    assert parse("tcp:0.0.0.0:9000", None, True) == Port("0.0.0.0", 9000, None)


def test_a_port_that_is_taken_is_named_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{number}: another program listens on it"):
            Port("127.0.0.1", number, None).check()
    Port("127.0.0.1", number, None).check()


def test_a_file_that_is_missing_or_no_certificate_is_named_with_its_flag(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(OSError, match=r"--tls-cert .*none\.pem"):
        Certificates(tmp_path / "none.pem", empty, empty).check()
    with pytest.raises(OSError, match=r"--tls-ca .*empty\.pem"):
        Certificates(empty, empty, empty).check()
