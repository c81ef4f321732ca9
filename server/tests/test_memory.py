"""What memory a machine is said to have, where the process is in a control group."""

from pathlib import Path

import pytest

from penstock.loading import memory


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
