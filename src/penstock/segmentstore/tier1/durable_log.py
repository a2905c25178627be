"""`DurableLog` (tier 1): a fenced, ordered, append-only log of frames, one per segment container.

Source: segment-store 3.1. Implementations: a local directory (`local_log`), memory
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

#: Position of a frame. Opaque and comparable: later frames have greater addresses.
LogAddress = NewType("LogAddress", int)


#: Checks a frame, as appended, of a log that is not claimed yet.
InspectFrame = Callable[[bytes], None]


# A struct, not a dataclass: a replay makes one for each frame.
class LogFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame read back: its address and its bytes, as appended."""

    address: LogAddress
    data: bytes


class LogFrameRun(msgspec.Struct, frozen=True):
    """Consecutive frames: their addresses, and their bytes in the same order. At least one."""

    addresses: Sequence[int]
    data: Sequence[bytes]


class DurableLog(Protocol):
    """One container's log. Created by a `DurableLogFactory`; `open` first.

    Attributes:
        on_synced: called in the event loop turn in which frames are reported synced, after the futures of all of them
            have their addresses. Callbacks of these futures run one turn later. May append.
        on_full: called when storage whose free space is unknown refuses a frame because it is full: `space` says so
            from now on, and a periodic check would find it late.
    """

    on_synced: Callable[[], None]
    on_full: Callable[[], None]

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
        """When the last check that confirmed ownership began, on `Runtime.monotonic_s`; minus infinity: never.

        `open` and every successful append include such a check.
        """

    @property
    def is_check_billed(self) -> bool:
        """Whether each check of ownership costs a request to a service: then one is made per lease."""

    @property
    def is_long_to_open(self) -> bool:
        """Whether the next open reads much although there are few bytes, which a truncation would change."""

    @property
    def problem(self) -> str:
        """Why appends wait, as far as it is known, for operators; empty: they do not, or nothing is known."""

    @property
    def may_predecessor_answer(self) -> bool:
        """Whether an earlier incarnation may still answer reads and must be waited for; valid after `open`.

        False if it was closed cleanly, or is known to be dead.
        """

    async def settle(self) -> None:
        """Record that no earlier incarnation can answer any more, because its lease has expired.

        Raises `LogFencedError`, `LogClosedError`, `StorageError`.
        """

    async def confirm_ownership(self, *, is_shared: bool = False) -> None:
        """Check that this incarnation still owns the log. Takes as long as the log's disk does.

        `is_shared`: a check in progress, which may have begun before this call, is enough.

        Raises `LogFencedError` when another incarnation has opened it, `LogClosedError`, `StorageError`.
        """

    async def open(self, inspect: InspectFrame | None = None) -> None:
        """Become the only writer: raise the epoch durably and fence every other holder.

        `inspect` is called with the frames of the log's newest file, and of older ones up to a limit, before anything
        is changed; with an empty frame where those that follow do not continue those before. It runs in any thread, and
        raises `LaterFormatError` for a frame that only a later version reads: then the log stays as it is.

        Raises `LogRefusedError` (missing, another cluster's, disabled), `LaterVersionError`, `CorruptionError` (with
        file and offset), `StorageFullError`.
        """

    def frame_runs(self) -> AsyncIterator[LogFrameRun]:
        """Yield the same frames as `frames`, many at a time. Only one of the two may be called, once."""

    def frames(self) -> AsyncIterator[LogFrame]:
        """Yield every frame after the truncation point, oldest first, as they were when `open` returned.

        Call it once, before the first append. Raises `CorruptionError`; a torn end is the end of the log.
        """

    def append(self, buffers: Sequence[Buffer], length: int) -> asyncio.Future[LogAddress]:
        """Append one frame made of `buffers` (`length` bytes in all); the future gives its address once it is synced.

        Call order is address order. Many frames share one sync. The buffers must not change any more.
        If one append fails all later ones fail and the log is closed. Raises at once, changing nothing:
        `InvalidArgumentError` (longer than `frame_length_max`), `LogClosedError`. The future raises
        `LogFencedError`, `StorageFullError`, `StorageError`.
        """

    async def truncate(self, address: LogAddress) -> None:
        """Allow everything up to and including `address` to be forgotten. More may be kept."""

    async def space(self) -> DiskSpace | None:
        """Return the free space where the log is stored; None if unknown. Raises `StorageError`."""

    async def disable(self, cause: PenstockError | None = None) -> None:
        """Close the log and refuse every later `open` until an administrator enables it. Durable.

        `cause`: given in the errors of later opens; None: disabled by an administrator.
        """

    async def close(self) -> None:
        """Finish the appends in flight, then release all resources. Idempotent."""


class DurableLogFactory(Protocol):
    """Creates the logs of a segment store, and holds what they share: connections, or a journal of all of them.

    The store owns it: it calls `start` once, before the first log is created, and `close` once, after all logs are
    closed, also when its own start fails. `has_logs` and `enable` may be used without `start`, as administration does.
    """

    async def start(self) -> None:
        """Open what the logs share. Writes nothing that `has_logs` counts: storage is not claimed yet.

        Raises `LogRefusedError` and `StorageError`, with nothing left to close except by `close`.
        """

    async def close(self) -> None:
        """Release what the logs share. No log may be used afterwards. Also called after a failed or cancelled `start`.

        Waits for requests in progress only as long as they can still be acknowledged. Idempotent.
        """

    def create(self, container_id: int) -> DurableLog:
        """Return the log of a container, not yet opened."""

    async def check(self) -> None:
        """Return when the service that the logs are kept in has answered: appends would probably succeed.

        A part that appends do not need is not asked. Raises `PenstockError`; may wait without a limit.
        """

    async def has_logs(self) -> bool:
        """Return whether any log of the cluster was ever opened, by any process. Changes and fences nothing."""

    async def enable(self, container_id: int) -> None:
        """Undo `DurableLog.disable`."""
