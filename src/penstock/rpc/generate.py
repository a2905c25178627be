"""Regenerate `controller_pb2` and `controller_pb2_grpc` from `controller.proto`.

Run it with the oldest grpcio-tools that the project supports, because generated modules refuse to be loaded by a
protobuf or grpcio older than the one they were made for::

    pip install "grpcio-tools==1.76.0"      # makes code for protobuf >= 6.31.1 and grpcio >= 1.76
    python -m penstock.rpc.generate
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

PROTO = "penstock/rpc/controller.proto"


def generate(source_root: Path, output_root: Path) -> int:
    """Compile ``<source_root>/penstock/rpc/controller.proto`` into `output_root`; return protoc's exit status."""
    try:
        protoc = import_module("grpc_tools.protoc")
    except ImportError as error:
        raise SystemExit("grpcio-tools is missing: pip install 'grpcio-tools==1.76.0'") from error
    arguments = ["protoc", f"--proto_path={source_root}"]
    arguments += [f"--{kind}_out={output_root}" for kind in ("python", "pyi", "grpc_python")]
    return int(protoc.main([*arguments, str(source_root / PROTO)]))


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.exit(generate(root, root))
