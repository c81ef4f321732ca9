"""deploy/systemd: a server with the unit's arguments and environment serves and ends as the unit means it. No systemd runs here."""

from __future__ import annotations

import configparser
import shlex
import signal
from pathlib import Path

import pytest

import wire
from conftest import Launch

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "deploy/systemd/penstock.service"


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return dict(unit["Service"])


def test_what_the_unit_starts_serves_and_drains(launch_null: Launch, service: dict[str, str]) -> None:
    binary, *arguments = shlex.split(service["ExecStart"])
    assert f"make deploy PREFIX={Path(binary).parent.parent}" in UNIT.read_text()
    model = arguments.index("--model-id")
    environment = dict(word.split("=", 1) for word in shlex.split(service["Environment"]))
    assert environment.pop("HF_HOME") == "/var/lib/" + service["StateDirectory"]
    launched = launch_null(*arguments[:model], *arguments[model + 2 :], env=environment)
    launched.wait_ready()
    assert wire.get(launched.address, "/health").status == 200
    launched.process.send_signal(signal.SIGTERM)
    assert launched.process.wait(30) == 0, "a stop is no failure, after which the unit would start it again"


def test_the_unit_has_time_to_drain_and_gives_up_a_wrong_command_line(service: dict[str, str]) -> None:
    arguments = shlex.split(service["ExecStart"])
    drains = int(arguments[arguments.index("--shutdown-timeout") + 1])
    assert int(service["TimeoutStopSec"]) > drains
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
