"""The generated protocol modules and the .proto they come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

import penstock.rpc
from penstock.rpc import additions_pb2, additions_pb2_grpc, controller_pb2, controller_pb2_grpc
from penstock_tools.generate_rpc import PROTOS, generate, module_name, service_stubs, whole_types

PACKAGE = Path(penstock.rpc.__file__).parent
MODULES = [controller_pb2, additions_pb2]


def described(serialized: bytes) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(serialized)


def test_generated_code_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the .proto again with whatever grpcio-tools is installed: it must describe the same messages."""
    pytest.importorskip("grpc_tools")
    assert generate(PACKAGE.parents[1], tmp_path) == 0
    for proto, module in zip(PROTOS, MODULES, strict=True):
        text = (tmp_path / proto.replace(".proto", "_pb2.py")).read_text()
        literal = re.search(r"AddSerializedFile\((b'.*?')\)\n", text, re.DOTALL)
        assert literal is not None
        fresh = described(eval(literal[1]))
        assert fresh == described(module.DESCRIPTOR.serialized_pb)
        messages = proto.replace(".proto", "_pb2.pyi")
        assert (tmp_path / messages).read_text().count("\nclass ") == (PACKAGE.parents[1] / messages).read_text().count(
            "\nclass "
        )


def test_stubs_have_whole_types() -> None:
    """What protoc leaves out is filled in, so that a type checker knows every type of the package."""
    for module, count in zip(MODULES, (47, 14), strict=True):
        name = module_name(module.DESCRIPTOR)
        messages = (PACKAGE / f"{name}_pb2.pyi").read_text()
        assert whole_types(messages) == messages
        assert "_Mapping[str, object]" in messages
        assert "_Mapping]" not in messages
        stubs = service_stubs(module.DESCRIPTOR)
        assert (PACKAGE / f"{name}_pb2_grpc.pyi").read_text() == stubs
        assert stubs.count("    def ") == count + 1
    assert {name for name in vars(controller_pb2_grpc) if name.startswith(("Controller", "add_"))} - {
        "ControllerService"
    } == {"ControllerServiceStub", "ControllerServiceServicer", "add_ControllerServiceServicer_to_server"}


def test_service_has_all_calls_under_the_names_that_clients_use() -> None:
    """47 unary calls, with the package and service name of the wire."""
    service = controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]
    assert service.full_name == "io.pravega.controller.stream.api.grpc.v1.ControllerService"
    assert len(service.methods) == 47
    assert not any(method.client_streaming or method.server_streaming for method in service.methods)
    assert hasattr(controller_pb2_grpc, "ControllerServiceStub")


def test_additions_are_a_separate_service() -> None:
    """Pravega's clients never meet it: another package, and no message of theirs has a field more."""
    service = additions_pb2.DESCRIPTOR.services_by_name["PenstockControllerService"]
    assert service.full_name == "penstock.controller.v1.PenstockControllerService"
    assert not {call.name for call in service.methods} & {
        call.name for call in controller_pb2.DESCRIPTOR.services_by_name["ControllerService"].methods
    }
    assert hasattr(additions_pb2_grpc, "PenstockControllerServiceStub")


@pytest.mark.parametrize("name", ["controller", "additions"])
def test_generated_code_asks_for_no_newer_libraries_than_the_project_does(name: str) -> None:
    """The guards in the generated modules name protobuf 6.31.1 and grpcio 1.76.0."""
    assert "# Protobuf Python Version: 6.31." in (PACKAGE / f"{name}_pb2.py").read_text()
    assert "GRPC_GENERATED_VERSION = '1.76.0'" in (PACKAGE / f"{name}_pb2_grpc.py").read_text()


@pytest.mark.parametrize(
    ("message", "field", "number"),
    [
        ("ListCompletedTxnResponse", "response", 2),
        ("StreamConfig", "rolloverSizeBytes", 6),
        ("StreamCutRange", "from", 2),
        ("TxnRequest", "timestamp", 4),
        ("ReaderGroupConfiguration", "endingStreamCuts", 10),
        ("SuccessorResponse.SegmentEntry", "value", 2),
    ],
)
def test_fields_have_the_numbers_of_the_wire(message: str, field: str, number: int) -> None:
    """Samples of the numbers that are easiest to get wrong."""
    found = controller_pb2.DESCRIPTOR
    kind = found.message_types_by_name[message.split(".")[0]]
    for inner in message.split(".")[1:]:
        kind = kind.nested_types_by_name[inner]
    assert kind.fields_by_name[field].number == number
