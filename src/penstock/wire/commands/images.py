"""Penstock's own addition for administrators: images of containers, to restore a store from. See docs/recovery.md.

Served only on the administrator's port. For the type codes see `statistics`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.wire.commands.base import Reply, Request
from penstock.wire.fields import I32, I64, Bytes, Text


@dataclass(frozen=True, slots=True, eq=False)
class GetContainerImage(Request):
    """Request an image of a container as it is now. The answer has several parts."""

    TYPE: ClassVar[int] = 0x50530007

    container_id: I32
    token: Text = field(repr=False)
    request_id: I64


@dataclass(frozen=True, slots=True, eq=False)
class ContainerImagePart(Reply):
    """One part of an image: the bytes from `offset`, out of `length` in all. The last part ends there.

    `cluster_id`: the cluster of the container.
    """

    TYPE: ClassVar[int] = 0x50530008

    request_id: I64
    cluster_id: Text
    length: I64
    offset: I64
    data: Bytes
