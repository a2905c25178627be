"""Commands of the administrator, not served to clients.


Source: wire-protocol 2.7.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import I32, I64, StorageChunks, Text


@dataclass(frozen=True, slots=True, eq=False)
class FlushToStorage(Request):
    """Flush everything in a container to long-term storage."""

    TYPE: ClassVar[int] = -3

    container_id: I32
    token: Text = field(repr=False)
    request_id: I64


@dataclass(frozen=True, slots=True, eq=False)
class StorageFlushed(Reply):
    """Confirm a flush."""

    TYPE: ClassVar[int] = -4

    request_id: I64


@dataclass(frozen=True, slots=True, eq=False)
class ListStorageChunks(Request):
    """Request the chunks of a segment in long-term storage."""

    TYPE: ClassVar[int] = -5

    segment: Text
    token: Text = field(repr=False)
    request_id: I64


@dataclass(frozen=True, slots=True, eq=False)
class StorageChunksListed(Reply):
    """Return the chunks of a segment, in order."""

    TYPE: ClassVar[int] = -6

    request_id: I64
    chunks: StorageChunks
