"""`RetentionExplanation`: what is kept of a stream and why, as the controller tells it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.policies import Retention
from penstock.model.stream_cuts import StreamCut


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A place in a stream.

    Attributes:
        cut: where it is.
        size_bytes: what the stream has held before it, over its life: headers of events count, truncated bytes too.
    """

    cut: StreamCut
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """A place that the controller has on record of a stream: how old it is, and what the stream had held before it."""

    age_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RetentionSubscriber:
    """A reader group that holds back what it has not acknowledged.

    Attributes:
        name: ``scope/group``.
        has_published: whether it has said how far it is; else it counts from where the stream begins.
        place: how far it is.
        is_last: whether nobody has come less far, on some of the keys.
    """

    name: str
    has_published: bool
    place: StreamPlace
    is_last: bool


@dataclass(frozen=True, slots=True)
class RetentionExplanation:
    """What the controller's next look at a stream would truncate, and why. A moment later it may be something else.

    Attributes:
        stream: ``scope/stream``.
        policy: what is to be kept; None: everything, and then only `head` and `tail` are told.
        is_sealed: it is not truncated any more, whatever the rest says.
        is_enabled: whether the controller's settings let it enforce policies at all.
        row: what is the case, by its name in the tables of the page on retention, as ``SIZE_BETWEEN``; "" without a
            policy.
        head: where the stream begins.
        tail: where it ends.
        chosen: where it is to begin; None: where it does.
        bound: where the subscribers are that have come least far, key by key; None without any.
        min_cut: the newest recorded cut that keeps the minimum; None: there is none yet.
        max_cut: the oldest that keeps no more than the maximum, of a stream that has one, and subscribers.
        cuts: the newest recorded cuts, oldest first.
        cut_count: how many are recorded.
        subscribers: those that have come least far first; at most as many as the controller tells.
        subscriber_count: how many there are.
        is_cut_due: whether the look would record `tail` first.
        interval_s: pause between two looks at all streams.
        next_look_s: until the next one at this stream; None: another controller's, within `interval_s`.
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
    next_look_s: float | None

    @property
    def kept_bytes(self) -> int:
        """What the stream holds now."""
        return self.tail.size_bytes - self.head.size_bytes

    @property
    def cut_bytes(self) -> int:
        """What the look would truncate."""
        return 0 if self.chosen is None else self.chosen.size_bytes - self.head.size_bytes
