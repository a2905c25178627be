"""`GroupOverview`: the controller's view of a reader group of any client: which data it retains in its streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut


@dataclass(frozen=True, slots=True)
class StreamOfGroup:
    """A stream that a reader group reads.

    Attributes:
        is_subscribed: whether the stream's retention keeps data that the group has not acknowledged.
        acknowledged: the cut before which the group needs no data; None: nothing is acknowledged, and the group counts
            from the stream's head.
        age_s: seconds since the acknowledgement, or since it subscribed. 0 for a stream in which it retains no data.
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
            those in a table of Pravega's Rust client, which the PyPI client is built on: nothing else is known of
            these.
        retention: whether it subscribes to its streams, and how it releases data.
        generation: number of changes of its configuration.
        streams: the streams it reads, by ``scope/stream``.
    """

    name: str
    made_by: str
    retention: GroupRetention
    generation: int
    streams: Mapping[str, StreamOfGroup]
