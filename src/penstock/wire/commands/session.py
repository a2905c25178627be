"""Session commands: greeting, keep-alive, and the frames found inside append blocks.


Source: wire-protocol 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.wire.commands.base import WireCommand
from penstock.wire.fields import I32, EventFrame, Rest, Zeros


@dataclass(frozen=True, slots=True, eq=False)
class Hello(WireCommand):
    """Announce the highest and the lowest supported wire version. Each side sends it first."""

    TYPE: ClassVar[int] = -127

    high: I32
    low: I32


@dataclass(frozen=True, slots=True, eq=False)
class KeepAlive(WireCommand):
    """Keep an idle connection open. A server echoes it and never initiates one."""

    TYPE: ClassVar[int] = 100


@dataclass(frozen=True, slots=True, eq=False)
class Padding(WireCommand):
    """Fill the end of an append block with `length` zero bytes."""

    TYPE: ClassVar[int] = -1

    length: Zeros


@dataclass(frozen=True, slots=True, eq=False)
class PartialEvent(WireCommand):
    """Hold the first bytes of an append whose rest comes in the `AppendBlockEnd`. Only inside append blocks."""

    TYPE: ClassVar[int] = -2

    data: Rest


@dataclass(frozen=True, slots=True, eq=False)
class Event(WireCommand):
    """Hold one event's payload.

    A frame of this type never travels on its own. Its *payload* (the encoded frame without the first 8 bytes) is the
    event as segments store it: i32 type 0, i32 length, payload.
    """

    TYPE: ClassVar[int] = 0

    data: EventFrame
