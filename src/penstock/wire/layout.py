"""Encoding and decoding of any command, by the declaration of its fields.

Source: wire-protocol 1.3 and 1.4.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import get_type_hints

from penstock.model.errors import InvalidArgumentError, ProtocolError
from penstock.wire.commands import COMMANDS, OWN_COMMANDS, WireCommand
from penstock.wire.fields import FieldKind

_HEADER = struct.Struct(">ii")


class Layout:
    """The fields of one command in wire order, each with its kind and whether it may be missing at the end."""

    __slots__ = ("_command_type", "_construct", "_fields", "name")

    def __init__(self, command_type: type[WireCommand]) -> None:
        hints = get_type_hints(command_type, include_extras=True)
        self.name: str = command_type.__name__
        self._command_type = command_type
        self._construct: Callable[..., WireCommand] = command_type
        self._fields: list[tuple[str, FieldKind, bool]] = []
        for field in dataclasses.fields(command_type):
            kinds = [kind for kind in getattr(hints[field.name], "__metadata__", ()) if isinstance(kind, FieldKind)]
            if len(kinds) != 1:
                raise TypeError(f"{self.name}.{field.name} needs exactly one field kind, has {len(kinds)}")
            self._fields.append((field.name, kinds[0], field.default is not dataclasses.MISSING))

    def encode(self, command: WireCommand) -> bytes:
        """Return the whole frame, with all fields. Raises `InvalidArgumentError` for a value that has no encoding."""
        frame = bytearray(_HEADER.size)
        for name, kind, _ in self._fields:
            value = getattr(command, name)
            try:
                kind.write(frame, value)
            except (struct.error, InvalidArgumentError) as cause:
                raise InvalidArgumentError(f"cannot encode {self.name}.{name}: {cause}") from cause
        _HEADER.pack_into(frame, 0, self._command_type.TYPE, len(frame) - _HEADER.size)
        return bytes(frame)

    def decode(self, payload: memoryview) -> WireCommand:
        """Read the command. A missing optional field ends the reading: it and all after it take their defaults.

        Fewer bytes than an optional field needs count as missing, and bytes after the last field are skipped: both as
        Java does it. Raises `ProtocolError`.
        """
        values = []
        position = 0
        length = len(payload)
        for name, kind, is_optional in self._fields:
            if is_optional and length - position < kind.length_min:
                break
            try:
                value, position = kind.read(payload, position)
            except (struct.error, ProtocolError) as cause:
                raise ProtocolError(
                    f"cannot decode {self.name} of {length} bytes: field {name} at byte {position}: {cause}"
                ) from cause
            values.append(value)
        return self._construct(*values)


#: The layout of every command, by type code.
LAYOUTS: dict[int, Layout] = {command.TYPE: Layout(command) for command in (*COMMANDS, *OWN_COMMANDS)}
