"""Penstock's own addition to the protocol: which chunks hold a segment. See ``docs/direct-reads.md``.

Pravega has no such commands, nor have segment stores of before: they close a connection over which they hear a type
that they do not know. So these travel over a connection of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import I64, Bytes, Text


@dataclass(frozen=True, slots=True)
class GetChunkLayout(Request):
    """Ask which chunks hold a range of a segment. `question`: see `penstock.wire.chunk_layouts.LayoutQuestion`."""

    TYPE: ClassVar[int] = 0x50530003

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    question: Bytes


@dataclass(frozen=True, slots=True)
class ChunkLayoutTold(Reply):
    """Tell it. `page`: see `penstock.wire.chunk_layouts.LayoutPage`."""

    TYPE: ClassVar[int] = 0x50530004

    request_id: I64
    page: Bytes


@dataclass(frozen=True, slots=True)
class ReturnChunkLease(Request):
    """Give a lease of a layout of `segment` back, whatever became of the segment."""

    TYPE: ClassVar[int] = 0x50530005

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    epoch: I64
    number: I64


@dataclass(frozen=True, slots=True)
class ChunkLeaseReturned(Reply):
    """Say that there is no such lease any more."""

    TYPE: ClassVar[int] = 0x50530006

    request_id: I64
