"""`ContainerEvents`: what the parts of one container report to each other.

Parts that report an event are created before those that handle it: the state and its read indexes before the log is
replayed, the storage writer after it. Both get this object. Only `ContainerOpening` connects handlers; an event without
a handler is ignored.

| Event | Reported by | Handled by |
| --- | --- | --- |
| `on_storage_work`, `on_truncation`, `on_merge` | `ContainerState`, once the operation is durable | `StorageWriter` |
| `on_pressure` | `BackPressure`, when an operation must wait | `StorageWriter` |
| `on_relief` | `StorageWriter` | `BackPressure` |
| `on_damage` | `ReadIndex` | `ContainerLife`, which fails |
| `on_evicted` | `ReadIndex` | `SegmentReader`, if there is a disk cache |
| `on_frames_sent` | `OperationPipeline` | `Checkpoints` |
| `on_durable` | `OperationPipeline` | the segment store, which sends replies |
| `on_shrunk` | `OperationPipeline` | the throttle |
| `on_failure` | `ContainerLife` | the segment store, which starts another incarnation |
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.errors import InconsistentStateError
from penstock.model.segments import Buffer
from penstock.segmentstore.container.segment import Segment


def _ignore() -> None:
    """Do nothing: the event has no handler yet."""


def _ignore_failure(error: BaseException) -> None:
    """Do nothing: the container does not serve yet, and its opening raises the error."""


class ContainerEvents:
    """The events of one container. A handler must not block, and must not change what reports the event.

    Attributes:
        on_storage_work: long-term storage has work that is due immediately.
        on_truncation: a segment was truncated; long-term storage need not be updated at once.
        on_merge: a segment was merged; long-term storage need not be updated at once.
        on_pressure: an operation waits for space. Reported often.
        on_relief: long-term storage may have freed space.
        on_damage: a lookup found corrupt memory.
        on_evicted: stored bytes of a segment leave the cache: the segment, their offset, the bytes. None: no handler,
            and their checksum need not be verified.
        on_frames_sent: at the end of a turn of the loop in which frames were sent. All accepted operations have then
            been given to the log.
        on_durable: after the callbacks of durable operations have run: once per sync, in the turn in which the log
            reports it.
        on_shrunk: the pipeline's outstanding bytes have decreased, or the pipeline has ended.
        on_failure: the container has ended by itself while it served; reported once, with the cause.
    """

    __slots__ = (
        "on_damage",
        "on_durable",
        "on_evicted",
        "on_failure",
        "on_frames_sent",
        "on_merge",
        "on_pressure",
        "on_relief",
        "on_shrunk",
        "on_storage_work",
        "on_truncation",
    )

    def __init__(self) -> None:
        self.on_storage_work: Callable[[], None] = _ignore
        self.on_truncation: Callable[[], None] = _ignore
        self.on_merge: Callable[[], None] = _ignore
        self.on_pressure: Callable[[], None] = _ignore
        self.on_relief: Callable[[], None] = _ignore
        self.on_damage: Callable[[InconsistentStateError], None] | None = None
        self.on_evicted: Callable[[Segment, int, Buffer], None] | None = None
        self.on_frames_sent: Callable[[], None] = _ignore
        self.on_durable: Callable[[], None] = _ignore
        self.on_shrunk: Callable[[], None] = _ignore
        self.on_failure: Callable[[BaseException], None] = _ignore_failure
