"""`RetentionExplanation`: which data of a stream is retained and why, as the controller reports it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.policies import Retention
from penstock.model.stream_cuts import StreamCut

#: The reasons for the outcome of a scan, by the row of the tables in docs/retention.md.
REASONS = {
    "NO_CUTS": "no cut is recorded yet, and there are no events to record a cut of",
    "SIZE_NO_SUBSCRIBERS": "no group subscribes, so everything before the newest cut that keeps the minimum is deleted",
    "SIZE_BELOW_MIN_WITHOUT_CUT": "the stream holds less than the minimum",
    "SIZE_BELOW_MIN": "the subscribers have read all but less than the minimum, so the minimum decides",
    "SIZE_BELOW_MIN_OVERLAPPING": "the subscribers are past the minimum's cut on some keys only, so the newest cut "
    "that all of them have reached decides",
    "SIZE_BETWEEN": "the subscribers' unread data is between the minimum and the maximum, so their positions decide",
    "SIZE_PAST_MAX": "the subscribers' unread data exceeds the maximum, so the maximum decides: unread events are "
    "deleted",
    "SIZE_PAST_MAX_WITHOUT_GAIN": "the subscribers' unread data equals the maximum, and the maximum's cut would free "
    "nothing more",
    "TIME_NO_SUBSCRIBERS": "no group subscribes, so everything before the newest cut of the minimum's age is deleted",
    "TIME_WITHOUT_CUT": "no recorded cut is as old as the minimum",
    "TIME_ABOVE_MIN": "the subscribers have read all events older than the minimum, so the minimum decides",
    "TIME_MIN_OVERLAPPING": "the subscribers are past the minimum's cut on some keys only, so the newest cut that all "
    "of them have reached decides",
    "TIME_BETWEEN": "the age of the subscribers' unread data is between the minimum and the maximum, so their "
    "positions decide",
    "TIME_PAST_MAX": "the subscribers have unread events older than the maximum: these are deleted",
    "TIME_MAX_OVERLAPPING": "on some keys the subscribers have unread events older than the maximum: these are deleted",
}


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A place in a stream.

    Attributes:
        cut: its position.
        size_bytes: bytes written to the stream before it, over its life: headers of events count, truncated bytes too.
    """

    cut: StreamCut
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """A cut that the controller has recorded for a stream, with its age and the bytes written before it."""

    age_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RetentionSubscriber:
    """A reader group that retains data which it has not acknowledged.

    Attributes:
        name: ``scope/group``.
        has_published: whether it has published a position; otherwise it counts from the stream's head.
        place: its position.
        is_last: whether no subscriber is further behind, for some of the keys.
    """

    name: str
    has_published: bool
    place: StreamPlace
    is_last: bool


@dataclass(frozen=True, slots=True)
class RetentionExplanation:
    """The result of the controller's next retention pass over a stream, with its reasons. It may change any moment.

    Attributes:
        stream: ``scope/stream``.
        policy: the retention policy; None: everything is retained, and only `head` and `tail` are set.
        is_sealed: the stream is not truncated any more, regardless of the other values.
        is_enabled: whether the controller's settings let it enforce policies at all.
        row: the applicable case, by its name in the tables of the page on retention, as ``SIZE_BETWEEN``; "" without a
            policy.
        head: the stream's head.
        tail: the stream's end.
        chosen: the new head; None: the head does not move.
        bound: the least of the subscribers' positions, key by key; None without any.
        min_cut: the newest recorded cut that retains the minimum; None: there is none yet.
        max_cut: the oldest that retains no more than the maximum, for a stream with a maximum and subscribers.
        cuts: the newest recorded cuts, oldest first.
        cut_count: how many are recorded.
        subscribers: those furthest behind first; at most as many as the controller returns.
        subscriber_count: how many there are.
        is_cut_due: whether the pass would record `tail` first.
        interval_s: pause between two passes over all streams.
        next_scan_s: until the next pass over this stream; None: done by another controller, within `interval_s`.
    """

    stream: str
    policy: Retention | None
    is_sealed: bool
    is_enabled: bool
    row: str
    head: StreamPlace
    tail: StreamPlace
    chosen: StreamPlace | None
    bound: StreamPlace | None
    min_cut: RecordedCut | None
    max_cut: RecordedCut | None
    cuts: tuple[RecordedCut, ...]
    cut_count: int
    subscribers: tuple[RetentionSubscriber, ...]
    subscriber_count: int
    is_cut_due: bool
    interval_s: float
    next_scan_s: float | None

    @property
    def kept_bytes(self) -> int:
        """Bytes that the stream retains now."""
        return self.tail.size_bytes - self.head.size_bytes

    @property
    def cut_bytes(self) -> int:
        """Bytes that the pass would truncate."""
        return 0 if self.chosen is None else self.chosen.size_bytes - self.head.size_bytes

    @property
    def is_held(self) -> bool:
        """Whether subscribers keep what the policy's minimum alone would not."""
        return self.row in (
            "SIZE_BETWEEN", "SIZE_PAST_MAX_WITHOUT_GAIN", "TIME_BETWEEN", "SIZE_BELOW_MIN_OVERLAPPING",
            "TIME_MIN_OVERLAPPING",
        )  # fmt: skip
