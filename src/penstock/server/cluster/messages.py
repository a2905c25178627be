"""Messages between `StoreHost` and its segment stores: one JSON object per line, over pipes.

The parent writes a `MemberOrder` to the child's standard input, and keeps it open: its end means that the parent has
exited. The child writes `MemberReady` or `Refusal` to its standard output, then a `Beat` at intervals.
"""

from __future__ import annotations

import msgspec

from penstock.model.cluster_nodes import Endpoint
from penstock.model.errors import ProtocolError
from penstock.server.store_processes.messages import Message, Refusal


class MemberOrder(Message, frozen=True, tag="member-order"):
    """What the child runs.

    Attributes:
        parent_pid: the parent's process id; the child exits with it.
        name: of the segment store in the cluster.
        incarnation: token in hex under which it opens logs, new for each process.
        port_offset: is added to each port of the settings that is not 0.
        settings: see `settings_values`; with what the cluster fixes.
        cluster_id: of the cluster.
    """

    parent_pid: int
    name: str
    incarnation: str
    port_offset: int
    settings: dict[str, object]
    cluster_id: str


class MemberReady(Message, frozen=True, tag="member-ready"):
    """The child listens and is announced in the cluster. `endpoints`: given to clients, by listener."""

    endpoints: dict[str, Endpoint]


class Beat(Message, frozen=True, tag="beat"):
    """The child's event loop runs."""


FromMember = MemberReady | Refusal | Beat


def decode_member_order(line: bytes) -> MemberOrder:
    """Decode the parent's line. Raises `ProtocolError`."""
    try:
        return msgspec.json.decode(line, type=MemberOrder)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"expected an order for a segment store, found {line[:200]!r}: {error}") from error


def decode_from_member(line: bytes) -> FromMember:
    """Decode a line of the child. Raises `ProtocolError`."""
    try:
        message: FromMember = msgspec.json.decode(line, type=FromMember)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"expected a message of a segment store process, found {line[:200]!r}: {error}") from error
    return message
