"""What memory a machine is said to have, where the process is in a control group or bound to memory nodes."""

from pathlib import Path

import pytest

from penstock.loading import memory, memory_nodes


@pytest.mark.parametrize(
    ("line", "root", "names", "stat"),
    [
        ("0::/box", "", ("memory.max", "memory.current"), "anon 50\ninactive_file 200\nactive_file 100\n"),
        (
            "4:memory:/box",
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "inactive_file 1\nactive_file 1\ntotal_inactive_file 200\ntotal_active_file 100\n",
        ),
    ],
)
def test_files_in_a_control_groups_memory_are_free(
    line: str, root: str, names: tuple[str, str], stat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = tmp_path / root / "box"
    box.mkdir(parents=True)
    for name, text in zip((*names, "memory.stat"), ("1000\n", "700\n", stat), strict=True):
        (box / name).write_text(text)
    groups = tmp_path / "cgroup"
    groups.write_text(line + "\n")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUPS", groups)
    assert memory.cpu_room() == memory.Room(1000, 600)


@pytest.mark.parametrize(
    ("most", "high", "room"),
    [
        ("max", "1000", (1000, 600)),
        ("2000", "1000", (1000, 600)),
        ("1000", "2000", (1000, 600)),
        ("1000", "max", (1000, 600)),
    ],
)
def test_what_a_control_group_is_slowed_beyond_is_a_limit(
    most: str, high: str, room: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = tmp_path / "box"
    box.mkdir()
    stat = "inactive_file 200\nactive_file 100"
    for name, text in {"max": most, "high": high, "current": "700", "stat": stat}.items():
        (box / f"memory.{name}").write_text(text + "\n")
    groups = tmp_path / "cgroup"
    groups.write_text("0::/box\n")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUPS", groups)
    assert memory.cpu_room() == memory.Room(*room)


KIB = 1024


@pytest.mark.parametrize(
    ("allowed", "policy", "nodes"),
    [
        ("0", None, [0]),
        ("0-1,3", None, None),  # a third one without memory: all that have some
        ("0-1", {0}, [0]),
        ("1", {0}, None),  # they contradict each other
        ("0-1", {0, 1}, None),
        ("1", {1}, [1]),
    ],
)
def test_memory_of_other_nodes_is_not_there(
    allowed: str,
    policy: set[int] | None,
    nodes: list[int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`docker run --cpuset-mems 0`, `numactl --membind 0`."""
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "none")
    monkeypatch.setattr(memory_nodes, "NODES", tmp_path / "absent")
    whole = memory.cpu_room()
    monkeypatch.setattr(memory_nodes, "NODES", tmp_path)
    monkeypatch.setattr(memory_nodes, "OWN_STATUS", tmp_path / "status")
    monkeypatch.setattr(memory_nodes, "bound_by_policy", lambda: policy)
    (tmp_path / "has_memory").write_text("0-1\n")
    (tmp_path / "status").write_text(f"Name:\tpython\nMems_allowed:\t3\nMems_allowed_list:\t{allowed}\n")
    for node, files in enumerate((100, 200)):
        (tmp_path / f"node{node}").mkdir()
        kinds = {"MemTotal": 1000, "MemFree": 500, "Active(file)": files, "Inactive(file)": 20, "Shmem": 70}
        lines = [f"Node {node} {kind}:{size:>10} kB\n" for kind, size in {**kinds, "SReclaimable": 5}.items()]
        (tmp_path / f"node{node}" / "meminfo").write_text(
            "".join(lines) + f"Node {node} HugePages_Total:     0\n"
        )
    room = memory.cpu_room()
    if nodes is None:
        assert room.total == whole.total and room.free > 2000 * KIB
    else:
        free = sum(525 + (100, 200)[node] for node in nodes)
        assert room == memory.Room(1000 * KIB * len(nodes), free * KIB)


def test_the_policy_of_this_process_can_be_asked_for() -> None:
    policy = memory_nodes.bound_by_policy()
    assert policy is None or policy <= memory_nodes._numbers((memory_nodes.NODES / "has_memory").read_text())
