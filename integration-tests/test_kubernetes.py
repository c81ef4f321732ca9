"""deploy/kubernetes: a server with the manifest's arguments and environment answers its probes as they are meant, while it loads and after.

No kubelet is here; what is tested is that the manifest asks for what there is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import wire
from conftest import Launch
from launched import Launched
from processes import wait_for

ROOT = Path(__file__).parent.parent
MANIFEST = ROOT / "deploy/kubernetes/penstock.yaml"
DOCKERFILE = ROOT / "Dockerfile"


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return {part["kind"]: part for part in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def pod(parts: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = parts["Deployment"]["spec"]["template"]["spec"]
    return pod


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return dict(container)


def probed(launched: Launched, probe: dict[str, Any], container: dict[str, Any]) -> int:
    asked = probe["httpGet"]
    (port,) = (port for port in container["ports"] if port["name"] == asked["port"])
    assert {"name": "PORT", "value": str(port["containerPort"])} in container["env"]
    return wire.get(launched.address, asked["path"]).status


def test_a_pod_that_loads_lives_and_is_ready_once_it_serves(
    launch_null: Launch, container: dict[str, Any], tmp_path: Path
) -> None:
    arguments = container["args"]
    model = arguments.index("--model-id")
    env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    launched = launch_null(*arguments[:model], *arguments[model + 2 :], env=env, hold=tmp_path / "hold")
    launched.wait_ready()
    liveness, readiness = container["livenessProbe"], container["readinessProbe"]
    assert probed(launched, liveness, container) == probed(launched, readiness, container) == 200
    with launched.without_worker():
        wait_for(lambda: probed(launched, readiness, container) == 503, "the loss to be seen")
        assert probed(launched, liveness, container) == 200


def test_the_pod_is_of_the_images_user_and_has_time_to_drain(
    parts: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]
) -> None:
    assert f"--uid {pod['securityContext']['runAsUser']}" in DOCKERFILE.read_text()
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    drains = int(container["args"][container["args"].index("--shutdown-timeout") + 1])
    assert pod["terminationGracePeriodSeconds"] > drains
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"data": "/data", "shm": "/dev/shm"} and "HF_HOME=/data" in DOCKERFILE.read_text()
    (service,) = parts["Service"]["spec"]["ports"]
    assert service["targetPort"] in [port["name"] for port in container["ports"]]
