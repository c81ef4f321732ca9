"""Writes penstock_pb2.py and penstock_pb2.pyi beside itself from proto/penstock.proto.

    python server/penstock/proto/generate.py [FOLDER]

Needs grpcio-tools. The results are committed, because a wheel is built without it; a test compares them.
"""

import sys
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[2] / "proto"


def generate(folder: Path) -> None:
    """Writes the stubs into `folder`."""
    status = protoc.main(
        [
            "protoc",
            f"-I{SOURCE}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            str(SOURCE / "penstock.proto"),
        ]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
