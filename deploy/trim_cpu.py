"""Takes out of an installation what only a GPU uses: `PREFIX/bin/python deploy/trim_cpu.py`.

The torch that package registries hold is built for CUDA and is linked to many of its libraries: those are
loaded with torch and have to stay. What torch would load later, on a GPU, goes: the parts of cuDNN, device
code, the Triton compiler. What stays is found by looking, so that a new torch needs no new list.
"""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
COMPUTE = """
import torch, penstock.startup
a = torch.randn(64, 64)
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    assert torch.isfinite(a.to(dtype) @ a.to(dtype)).all()
print(open("/proc/self/maps").read())
"""


def loaded() -> set[Path]:
    """Every library that is in memory once torch has computed on the CPU."""
    maps = subprocess.run([sys.executable, "-c", COMPUTE], check=True, capture_output=True, text=True).stdout
    return {Path(line.split()[-1]).resolve() for line in maps.splitlines() if ".so" in line}


def main() -> None:
    """Removes, then computes once more."""
    keep = loaded()
    freed = 0
    for file in (SITE / "nvidia").rglob("*"):
        unused = (
            file.is_file() and not file.is_symlink() and file.suffix != ".py" and file.resolve() not in keep
        )
        if unused and "dist-info" not in str(file):
            freed += file.stat().st_size
            file.unlink()
    for link in (SITE / "nvidia").rglob("*"):
        if link.is_symlink() and not link.exists():
            link.unlink()
    for folder in (SITE / "triton",):
        freed += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        shutil.rmtree(folder, ignore_errors=True)
    loaded()
    print(f"removed {freed / 1e6:.0f} MB that only a GPU uses")


if __name__ == "__main__":
    main()
