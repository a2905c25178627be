"""`GroupOverview`: a reader group as its controller knows it, whoever made it: what it holds of its streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut


@dataclass(frozen=True, slots=True)
class StreamOfGroup:
    """A stream that a reader group reads.

    Attributes:
        is_subscribed: whether the stream's retention keeps what the group has not acknowledged.
        acknowledged: where the group has said that it needs nothing before; None: it has said nothing yet, and counts
            from where the stream begins.
        age_s: seconds since it did so, or since it subscribed. 0 of a stream that it does not hold.
    """

    is_subscribed: bool
    acknowledged: StreamCut | None
    age_s: float


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A reader group at one moment.

    Attributes:
        name: ``scope/group``.
        made_by: "penstock"; "java" for those whose state is in a stream, as of Pravega's Java client; or "rust" for
            those in a table of Pravega's Rust client, of which the PyPI client is made: of them nothing else is known.
        retention: whether it subscribes to its streams, and who says what it needs no more.
        generation: how often its configuration was changed.
        streams: what it reads, by ``scope/stream``.
    """

    name: str
    made_by: str
    retention: GroupRetention
    generation: int
    streams: Mapping[str, StreamOfGroup]
