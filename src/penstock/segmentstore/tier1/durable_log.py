"""`DurableLog` (tier 1): a fenced, ordered, append-only log of frames, one per segment container.

Source: segment store specification, section 3.1. Implementations: a local directory (`local_log`), memory
(`memory_log`, for tests and ``--memory``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NewType, Protocol

import msgspec

from penstock.model.errors import PenstockError
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace

#: Where a frame lies. Opaque and comparable: later frames have greater addresses.
LogAddress = NewType("LogAddress", int)


#: Checks a frame, as appended, of a log that is not claimed yet.
InspectFrame = Callable[[bytes], None]


# A struct, not a dataclass: a replay makes one for each frame.
class LogFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame read back: its address and its bytes, as appended."""

    address: LogAddress
    data: bytes


class LogFrameRun(msgspec.Struct, frozen=True):
    """Frames that follow each other: their addresses, and in the same order their bytes. One at least."""

    addresses: Sequence[int]
    data: Sequence[bytes]


class DurableLog(Protocol):
    """One container's log. Created by a `DurableLogFactory`; `open` first.

    Attributes:
        on_synced: called in the turn in which the log hears that frames are synced, when the futures of all of them
            have their addresses; what waits for these futures is called a turn later. May append.
    """

    on_synced: Callable[[], None]

    @property
    def epoch(self) -> int:
        """The epoch of this incarnation: greater than that of every earlier `open` of the same log."""

    @property
    def frame_length_max(self) -> int:
        """The longest frame that `append` takes, in bytes."""

    @property
    def is_truncated(self) -> bool:
        """Whether `truncate` was ever called on the log, by this incarnation or an earlier one. After `open`."""

    @property
    def ownership_confirmed_s(self) -> float:
        """When, on `Runtime.monotonic_s`, the last look began that found the log still ours; minus infinity: never.

        Every append that succeeds is such a look, and so is `open`.
        """

    @property
    def may_predecessor_answer(self) -> bool:
        """Whether an incarnation before this one may still answer reads, and has to be waited for; after `open`.

        Not if it was closed in order, or is known to be dead.
        """

    async def settle(self) -> None:
        """Record that no earlier incarnation can answer any more, because its lease is over.

        Raises `LogFencedError`, `LogClosedError`, `StorageError`.
        """

    async def confirm_ownership(self) -> None:
        """Look whether the log is still ours. Takes as long as the log's disk does.

        Raises `LogFencedError` when another incarnation has opened it, `LogClosedError`, `StorageError`.
        """

    async def open(self, inspect: InspectFrame | None = None) -> None:
        """Become the only writer: raise the epoch durably and fence every other holder.

        `inspect` is called with each frame of the log's newest file before anything is changed. It runs in any thread,
        and raises `LaterFormatError` for a frame that only a later version reads: then the log stays as it is.

        Raises `LogRefusedError` (missing, another cluster's, disabled), `LaterVersionError`, `CorruptionError` (with
        file and offset), `StorageFullError`.
        """

    def frame_runs(self) -> AsyncIterator[LogFrameRun]:
        """Yield what `frames` does, many at a time. Either of the two is called once."""

    def frames(self) -> AsyncIterator[LogFrame]:
        """Yield every frame after the truncation point, oldest first, as they were when `open` returned.

        Call it once, before the first append. Raises `CorruptionError`; a torn end is the end of the log.
        """

    def append(self, buffers: Sequence[Buffer], length: int) -> asyncio.Future[LogAddress]:
        """Append one frame made of `buffers` (`length` bytes in all); the future gives its address once it is synced.

        Call order is address order. Many frames share one sync. The buffers must not change until the future ends.
        If one append fails all later ones fail and the log is closed. Raises at once, changing nothing:
        `InvalidArgumentError` (longer than `frame_length_max`), `LogClosedError`. The future raises
        `LogFencedError`, `StorageFullError`, `StorageError`.
        """

    async def truncate(self, address: LogAddress) -> None:
        """Allow everything up to and including `address` to be forgotten. More may be kept."""

    async def space(self) -> DiskSpace | None:
        """Return how much room there is where the log lies; None when nobody can say. Raises `StorageError`."""

    async def disable(self, cause: PenstockError | None = None) -> None:
        """Close the log and refuse every later `open` until an administrator enables it. Durable.

        `cause`: what the errors of later opens say; None: an administrator wanted it.
        """

    async def close(self) -> None:
        """Finish the appends under way, then release everything. Idempotent."""


class DurableLogFactory(Protocol):
    """Makes the logs of a segment store."""

    def create(self, container_id: int) -> DurableLog:
        """Return the log of a container, not yet opened."""

    async def has_logs(self) -> bool:
        """Say whether any log of the cluster was ever opened, by whomever. Changes nothing and fences nobody."""

    async def enable(self, container_id: int) -> None:
        """Take back `DurableLog.disable`."""
