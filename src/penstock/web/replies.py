"""The JSON of replies that are not a stream's configuration. Each type is a schema of the OpenAPI document.

Source: controller-api 13 for scopes, scales and reader groups; the others are additions to Pravega's interface.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.web.models import Name, RetentionPolicy, StreamProperty


class ScopeName(msgspec.Struct):
    """A scope."""

    scopeName: Name


class ScopeList(msgspec.Struct):
    """A page of scopes."""

    scopes: list[ScopeName]


class StreamName(msgspec.Struct):
    """A stream without its configuration."""

    streamName: str


class StreamList(msgspec.Struct):
    """A page of streams with their configurations."""

    streams: list[StreamProperty]


class StreamNames(msgspec.Struct):
    """A page of streams without their configurations."""

    streams: list[StreamName]


class ScaledSegment(msgspec.Struct):
    """A segment after a scale. ``start`` is the time of its epoch, in milliseconds since 1970."""

    number: int
    epoch: int
    start: int
    keyStart: float
    keyEnd: float


class ScalingEvent(msgspec.Struct):
    """A scale, and the segments after it. ``timestamp`` is in milliseconds since 1970."""

    timestamp: int
    segments: list[ScaledSegment]
    splits: int
    merges: int


class KeyRange(msgspec.Struct):
    """A segment, and the range of keys that it takes."""

    segment: int
    keyLow: float
    keyHigh: float


class SegmentTail(msgspec.Struct):
    """A segment that takes events. ``tail`` is the offset of its end; null: the segment is not part of the tail."""

    segment: int
    keyLow: float
    keyHigh: float
    tail: int | None


class Epoch(msgspec.Struct):
    """An epoch. ``beganMillis`` is in milliseconds since 1970; null: the controller does not know it."""

    epoch: int
    beganMillis: int | None
    splits: int
    merges: int
    segments: list[KeyRange]


class History(msgspec.Struct):
    """A page of epochs, oldest first, and the number of all epochs."""

    epochs: list[Epoch]
    epochCount: int
    isSealed: bool


class SegmentTails(msgspec.Struct):
    """Segments that take events, and the stream's ends as offsets by segment."""

    segments: list[SegmentTail]
    head: dict[str, int]
    tail: dict[str, int]
    isSealed: bool


class EpochSegments(msgspec.Struct):
    """The segments of an epoch."""

    epoch: int
    segments: list[KeyRange]


class Truncated(msgspec.Struct):
    """Where the stream begins now, or would begin after a dry run: offsets by segment."""

    cut: dict[str, int]
    dryRun: bool


class Scaled(msgspec.Struct):
    """Segments that take events after a scale; none while it continues (status 202).

    ``epoch`` is the one in which it began; null: an earlier attempt of this request made the change.
    """

    epoch: int | None
    segments: list[KeyRange]


class ScaleState(msgspec.Struct):
    """The state of the scale that began in an epoch. Without a later epoch it is IN_PROGRESS."""

    epoch: int
    state: Literal["IN_PROGRESS", "SUCCESS"]


class StreamPlace(msgspec.Struct):
    """A place in a stream: offsets by segment, and the bytes that were ever written before it."""

    cut: dict[str, int]
    writtenBytes: int


class RecordedCut(msgspec.Struct):
    """A cut that the controller recorded: its age, and the bytes that were ever written before it."""

    ageSeconds: float
    writtenBytes: int


class RetentionSubscriber(msgspec.Struct):
    """A reader group that retains what it has not acknowledged. ``isLast``: none is further behind on some keys."""

    readerGroup: str
    place: StreamPlace
    unreadBytes: int
    hasPublished: bool
    isLast: bool


class Retention(msgspec.Struct):
    """What the next retention pass would delete of a stream, and why.

    ``reason`` is a sentence about ``row``, the case in the table of the page on retention; both are empty without a
    policy. ``newHead`` is null if the head does not move; ``nextPassSeconds`` if another controller makes the pass.
    """

    policy: RetentionPolicy | None
    isEnabled: bool
    isSealed: bool
    row: str
    reason: str
    keptBytes: int
    bytesToDelete: int
    head: StreamPlace
    tail: StreamPlace
    newHead: StreamPlace | None
    bound: StreamPlace | None
    minimumCut: RecordedCut | None
    maximumCut: RecordedCut | None
    cuts: list[RecordedCut]
    cutCount: int
    isCutDue: bool
    subscribers: list[RetentionSubscriber]
    subscriberCount: int
    intervalSeconds: float
    nextPassSeconds: float | None


class ListedEvent(msgspec.Struct, omit_defaults=True):
    """An event. One of ``text`` and ``base64`` is set: its bytes, if they are UTF-8 or not.

    ``length`` is of the whole event, in bytes; ``isCut``: only its first 64 KiB are returned.
    """

    segment: int
    offset: int
    length: int
    isCut: bool = False
    text: str | None = None
    base64: str | None = None


class ListedEvents(msgspec.Struct, omit_defaults=True):
    """Events, and the token of the next page, if there is one.

    ``isEnd``: no event is left. Without it and without a token, read one segment at a time.
    """

    events: list[ListedEvent]
    scannedBytes: int
    isEnd: bool
    token: str | None = None


class Stored(msgspec.Struct):
    """The number of events that were stored."""

    stored: int


class GroupName(msgspec.Struct):
    """A reader group."""

    readerGroupName: str


class GroupList(msgspec.Struct):
    """A page of the reader groups of a scope, sorted."""

    readerGroups: list[GroupName]


class Group(msgspec.Struct):
    """A reader group. The readers of a group that another client made are not known."""

    scopeName: str
    readerGroupName: str
    streamList: list[str]
    onlineReaderIds: list[str]


class LagSeconds(msgspec.Struct):
    """Bounds of the age of the oldest unread event. ``atMost`` is null if it is not known; both are 0 without one."""

    atLeast: float
    atMost: float | None


class GroupLag(msgspec.Struct):
    """Bytes that a group has not read, by stream and in all. ``problem``: why they are not known; null: they are.

    ``unreadSeconds``: ages of the oldest unread events by stream; null without ``seconds=1``.
    """

    unreadBytes: dict[str, int]
    unreadBytesAll: int
    readers: int
    unassignedSegments: int
    isFinished: bool
    recreatedStreams: list[str]
    problem: str | None
    unreadSeconds: dict[str, LagSeconds] | None = None


class ListedTransaction(msgspec.Struct):
    """A transaction. Times are in seconds; null: not known, see `penstock.TransactionInfo`."""

    id: str
    state: str
    age_s: float | None
    lease_s: float | None
    lease_left_s: float | None
    lifetime_left_s: float | None
    writer: str
    abort_reason: str
    length_bytes: int | None


class TransactionList(msgspec.Struct):
    """Transactions of a stream that are not finished, at most 1000."""

    transactions: list[ListedTransaction]


class TransactionState(msgspec.Struct):
    """The state of a transaction after a call."""

    state: Literal["COMMITTED", "ABORTED"]


class Store(msgspec.Struct):
    """A segment store, its containers, and its problems as text; null: none. ``failures``: by container."""

    address: str
    containers: list[int]
    residentBytes: int
    cacheBytes: int
    cacheBytesMax: int
    problem: str | None
    storageProblem: str | None
    failures: dict[str, str]


class Cluster(msgspec.Struct):
    """Segment stores, and containers that none of them serves."""

    containerCount: int
    missingContainers: list[int]
    stores: list[Store]


class Caller(msgspec.Struct):
    """The account of the caller; null: none."""

    user: str | None
