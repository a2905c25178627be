"""Regenerate what is made from `controller.proto` and `additions.proto`: a ``_pb2`` and a ``_pb2_grpc`` of each.

Run it with the oldest grpcio-tools that the project supports, because generated modules refuse to be loaded by a
protobuf or grpcio older than the one they were made for::

    pip install "grpcio-tools==1.76.0"      # makes code for protobuf >= 6.31.1 and grpcio >= 1.76
    python -m penstock_tools.generate_rpc
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor

import penstock.rpc

#: Pravega's calls, and ours. Each file has one service.
PROTOS = ("penstock/rpc/controller.proto", "penstock/rpc/additions.proto")

_STUB_HEAD = """\
# What protoc leaves out: the types of {module}_pb2_grpc. Made by penstock_tools.generate_rpc; do not edit.
import grpc
import grpc.aio

from penstock.rpc import {module}_pb2 as pb

"""


def generate(source_root: Path, output_root: Path) -> int:
    """Compile ``<source_root>/penstock/rpc/*.proto`` into `output_root`; return protoc's exit status."""
    try:
        protoc = import_module("grpc_tools.protoc")
    except ImportError as error:
        raise SystemExit("grpcio-tools is missing: pip install 'grpcio-tools==1.76.0'") from error
    arguments = ["protoc", f"--proto_path={source_root}"]
    arguments += [f"--{kind}_out={output_root}" for kind in ("python", "pyi", "grpc_python")]
    for proto in PROTOS:
        status = int(protoc.main([*arguments, str(source_root / proto)]))
        if status != 0:
            return status
        messages = output_root / proto.replace(".proto", "_pb2.pyi")
        messages.write_text(whole_types(messages.read_text()))
    return 0


def whole_types(messages: str) -> str:
    """Return the stubs of the messages with the type arguments that protoc leaves out: none may be unknown."""
    return messages.replace("_Mapping]", "_Mapping[str, object]]").replace("**kwargs)", "**kwargs: object)")


def service_stubs(described: FileDescriptor) -> str:
    """Return the stubs of a ``_pb2_grpc``, for which protoc makes none."""
    (service,) = described.services_by_name.values()
    calls = [(call.name, f"pb.{call.input_type.name}", f"pb.{call.output_type.name}") for call in service.methods]
    lines = [f"class {service.name}Stub:"]
    lines += ["    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ..."]
    lines += [f"    {name}: grpc.UnaryUnaryMultiCallable[{asked}, {answer}]" for name, asked, answer in calls]
    lines += ["", f"class {service.name}Servicer:"]
    lines += [
        f"    def {name}(self, request: {asked}, context: grpc.ServicerContext) -> {answer}: ..."
        for name, asked, answer in calls
    ]
    lines += ["", f"def add_{service.name}Servicer_to_server("]
    lines += [f"    servicer: {service.name}Servicer, server: grpc.Server | grpc.aio.Server", ") -> None: ...", ""]
    return _STUB_HEAD.format(module=module_name(described)) + "\n".join(lines)


def module_name(described: FileDescriptor) -> str:
    """Return what the modules that are made of a file are called, without ``_pb2``."""
    return Path(described.name).stem


def main() -> int:
    """Make all of it again, beside this file."""
    root = Path(penstock.rpc.__file__).resolve().parents[2]
    status = generate(root, root)
    if status == 0:
        for proto in PROTOS:
            described = import_module(proto.replace("/", ".").replace(".proto", "_pb2")).DESCRIPTOR
            (root / proto.replace(".proto", "_pb2_grpc.pyi")).write_text(service_stubs(described))
    return status


if __name__ == "__main__":
    sys.exit(main())
