"""Penstock's own addition for administrators: images of containers, from which a store is built. See docs/recovery.md.

Only the administrator's port answers it. As to types see `statistics`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import I32, I64, Bytes, Text


@dataclass(frozen=True, slots=True)
class GetContainerImage(Request):
    """Ask for an image of a container as it is now. The answer comes in parts."""

    TYPE: ClassVar[int] = 0x50530007

    container_id: I32
    token: Text = field(repr=False)
    request_id: I64


@dataclass(frozen=True, slots=True)
class ContainerImagePart(Reply):
    """Tell a part of it: the bytes from `offset` on, of `length` in all. The last part ends there.

    `cluster_id`: whose container it is.
    """

    TYPE: ClassVar[int] = 0x50530008

    request_id: I64
    cluster_id: Text
    length: I64
    offset: I64
    data: Bytes
