"""Prints what the Penstock on the path of this Python sends to other processes, as JSON: `tests/data/old/protocols`.

    git archive COMMIT | tar x -C /tmp/old
    PYTHONPATH=/tmp/old/src python tests/support/old_protocols.py | xz -9 > tests/data/old/protocols/DATE-COMMIT.json.xz

It uses only what all commits have.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import sys
from types import ModuleType
from typing import Any

Protocols = dict[str, dict[str, Any]]


def described() -> Protocols:
    """Return messages, services, commands of the wire, their payloads, and nodes of clusters."""
    found: Protocols = {"messages": {}, "services": {}, "commands": {}, "payloads": {}, "nodes": {}}
    for name in ("controller_pb2", "additions_pb2"):
        module = _module(f"penstock.rpc.{name}")
        if module is not None:
            _describe_file(module.DESCRIPTOR, found)
    commands = importlib.import_module("penstock.wire.commands")
    for each in (commands, *(importlib.import_module(info.name) for info in _submodules(commands))):
        for command in vars(each).values():
            code = getattr(command, "TYPE", None)
            if isinstance(command, type) and dataclasses.is_dataclass(command) and isinstance(code, int):
                found["commands"][str(code)] = [str(field.type) for field in dataclasses.fields(command)]
    for name in ("statistics", "chunk_layouts"):
        found["payloads"] |= _structs(_module(f"penstock.wire.{name}"))
    found["nodes"] = _structs(_module("penstock.model.cluster_nodes"))
    return found


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _submodules(module: ModuleType) -> list[pkgutil.ModuleInfo]:
    return list(pkgutil.iter_modules(getattr(module, "__path__", []), f"{module.__name__}."))


def _describe_file(file: Any, found: Protocols) -> None:
    for message in file.message_types_by_name.values():
        _describe_message(message, found)
    for enum in file.enum_types_by_name.values():
        found["messages"][enum.full_name] = {str(value.number): [value.name] for value in enum.values}
    for service in file.services_by_name.values():
        for method in service.methods:
            name = f"{service.full_name}.{method.name}"
            found["services"][name] = [method.input_type.full_name, method.output_type.full_name]


def _describe_message(message: Any, found: Protocols) -> None:
    found["messages"][message.full_name] = {
        str(field.number): [field.name, field.type, bool(field.is_repeated)] for field in message.fields
    }
    for nested in message.nested_types:
        _describe_message(nested, found)
    for enum in message.enum_types:
        found["messages"][enum.full_name] = {str(value.number): [value.name] for value in enum.values}


def _structs(module: ModuleType | None) -> dict[str, Any]:
    """Return the fields of the structures of a module, in order, by name; whether they are an array."""
    import msgspec

    return {
        name: [
            bool(struct.__struct_config__.array_like),
            *(field.encode_name for field in msgspec.structs.fields(struct)),
        ]
        for name, struct in vars(module or sys).items()
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct) and struct is not msgspec.Struct
    }


if __name__ == "__main__":
    json.dump(described(), sys.stdout, sort_keys=True, separators=(",", ":"))
    sys.stdout.write("\n")
