"""Penstock's own addition to the protocol: the chunks that hold a segment. See ``docs/direct-reads.md``.

Pravega has no such commands, and neither do earlier segment stores: they close a connection on which they receive an
unknown type. So these commands use a separate connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import I64, Bytes, Text


@dataclass(frozen=True, slots=True, eq=False)
class GetChunkLayout(Request):
    """Request the chunks of a range of a segment. `query`: see `penstock.wire.chunk_layouts.LayoutQuery`."""

    TYPE: ClassVar[int] = 0x50530003

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    query: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class ChunkLayoutTold(Reply):
    """Return the chunks. `page`: see `penstock.wire.chunk_layouts.LayoutPage`."""

    TYPE: ClassVar[int] = 0x50530004

    request_id: I64
    page: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class ReturnChunkLease(Request):
    """Return a lease of a layout of `segment`, even if the segment no longer exists."""

    TYPE: ClassVar[int] = 0x50530005

    request_id: I64
    segment: Text
    token: Text = field(repr=False)
    epoch: I64
    number: I64


@dataclass(frozen=True, slots=True, eq=False)
class ChunkLeaseReturned(Reply):
    """Confirm that the lease no longer exists."""

    TYPE: ClassVar[int] = 0x50530006

    request_id: I64
