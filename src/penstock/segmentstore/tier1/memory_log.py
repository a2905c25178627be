"""`DurableLog` in memory: for tests and ``--memory``. The factory holds the frames; they outlive the log objects.

Faults for tests: `MemoryLogFactory.fail_append` (an append fails before or after its frame is stored) and
`hold_appends` / `release_appends` (appends stay in flight).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from penstock.model.errors import (
    InvalidArgumentError,
    LogClosedError,
    LogDisabledError,
    LogFencedError,
    PenstockError,
    StorageError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.durable_log import InspectFrame, LogAddress, LogFrame, LogFrameRun

#: Number of frames returned together.
_RUN_LENGTH = 256


@dataclass(slots=True)
class _AppendFault:
    countdown: int
    has_effect: bool
    error: PenstockError


@dataclass(slots=True)
class _StoredLog:
    """State that outlives the log objects. Frames at or before `truncation_address` are removed from `frames`."""

    frames: list[LogFrame] = field(default_factory=list)
    epoch: int = 0
    is_enabled: bool = True
    cause: str = ""
    last_address: int = 0
    truncation_address: int = 0
    fault: _AppendFault | None = None
    is_held: bool = False
    holders: list[MemoryLog] = field(default_factory=list)
    #: Whether incarnations that were not closed may still answer reads.
    is_lease_kept: bool = False
    #: The last epoch before which an incarnation may still answer; 0: none.
    unsettled_epoch: int = 0


@dataclass(frozen=True, slots=True)
class _Append:
    data: bytes
    future: asyncio.Future[LogAddress]


class MemoryLog:
    """`DurableLog` of one container in memory. Made by `MemoryLogFactory`."""

    def __init__(
        self, container_id: int, stored: _StoredLog, frame_length_max: int, now_s: Callable[[], float]
    ) -> None:
        self.on_synced: Callable[[], None] = lambda: None
        self.on_full: Callable[[], None] = lambda: None
        self._now_s = now_s
        self._confirmed_s = float("-inf")
        self._may_predecessor_answer = False
        self._container_id = container_id
        self._stored = stored
        self._frame_length_max = frame_length_max
        self._epoch = 0
        self._state = "not open"
        self._queue: list[_Append] = []
        self._is_commit_scheduled = False
        self._recovered: Sequence[LogFrame] = ()

    @property
    def epoch(self) -> int:
        """See `DurableLog.epoch`. 0 before `open`."""
        return self._epoch

    @property
    def frame_length_max(self) -> int:
        """See `DurableLog.frame_length_max`."""
        return self._frame_length_max

    @property
    def outstanding_bytes(self) -> int:
        """Payload bytes appended but not acknowledged yet."""
        return sum(len(append.data) for append in self._queue)

    @property
    def ownership_confirmed_s(self) -> float:
        """See `DurableLog.ownership_confirmed_s`."""
        return self._confirmed_s

    @property
    def is_check_billed(self) -> bool:
        """See `DurableLog.is_check_billed`."""
        return False

    @property
    def is_long_to_open(self) -> bool:
        """See `DurableLog.is_long_to_open`. Never: an open reads nothing of other containers."""
        return False

    @property
    def problem(self) -> str:
        """See `DurableLog.problem`. Always empty."""
        return ""

    @property
    def may_predecessor_answer(self) -> bool:
        """See `DurableLog.may_predecessor_answer`."""
        return self._may_predecessor_answer

    async def settle(self) -> None:
        """See `DurableLog.settle`."""
        self._check_open()
        await asyncio.sleep(0)
        self._check_owned()
        self._may_predecessor_answer = False
        self._stored.unsettled_epoch = 0

    async def confirm_ownership(self, *, is_shared: bool = False) -> None:
        """See `DurableLog.confirm_ownership`."""
        self._check_open()
        await asyncio.sleep(0)
        self._check_owned()
        self._confirmed_s = self._now_s()

    async def open(self, inspect: InspectFrame | None = None) -> None:
        """See `DurableLog.open`. A log object opens once."""
        if self._state != "not open":
            raise LogClosedError(f"{self._describe()} is {self._state}: a log object opens only once")
        self._state = "opening"
        await asyncio.sleep(0)
        if not self._stored.is_enabled:
            self._state = "failed"
            raise LogDisabledError(f"{self._describe()} is disabled: find out why, then enable it{self._stored.cause}")
        if inspect is not None:
            self._inspect(inspect)
        if self._stored.is_lease_kept and (self._stored.holders or self._stored.unsettled_epoch):
            self._may_predecessor_answer = True
            self._stored.unsettled_epoch = self._stored.epoch + 1
        self._stored.epoch += 1
        self._epoch = self._stored.epoch
        self._recovered = tuple(self._stored.frames)
        self._stored.holders.append(self)
        self._confirmed_s = self._now_s()
        self._state = "open"

    def _inspect(self, inspect: InspectFrame) -> None:
        for frame in self._stored.frames:
            try:
                inspect(frame.data)
            except LaterFormatError as error:
                self._state = "failed"
                raise error.at(f"{self._describe()}, frame {frame.address},") from error

    @property
    def is_truncated(self) -> bool:
        """See `DurableLog.is_truncated`."""
        return self._stored.truncation_address > 0

    async def frame_runs(self) -> AsyncIterator[LogFrameRun]:
        """See `DurableLog.frame_runs`."""
        self._check_open()
        for start in range(0, len(self._recovered), _RUN_LENGTH):
            frames = self._recovered[start : start + _RUN_LENGTH]
            yield LogFrameRun([frame.address for frame in frames], [frame.data for frame in frames])

    async def frames(self) -> AsyncIterator[LogFrame]:
        """See `DurableLog.frames`."""
        self._check_open()
        for frame in self._recovered:
            yield frame

    def append(self, buffers: Sequence[Buffer], length: int) -> asyncio.Future[LogAddress]:
        """See `DurableLog.append`. The buffers are copied at once."""
        self._check_open()
        if length > self._frame_length_max:
            raise InvalidArgumentError(
                f"a frame of {length} bytes is longer than {self._frame_length_max}, the maximum of the log"
            )
        data = b"".join(buffers)
        if len(data) != length:
            raise InvalidArgumentError(f"the buffers hold {len(data)} bytes, not {length}")
        future: asyncio.Future[LogAddress] = asyncio.get_running_loop().create_future()
        self._queue.append(_Append(data, future))
        self._schedule_commit()
        return future

    async def truncate(self, address: LogAddress) -> None:
        """See `DurableLog.truncate`. An address beyond the last frame means that frame."""
        self._check_open()
        await asyncio.sleep(0)
        self._check_owned()
        stored = self._stored
        stored.truncation_address = max(stored.truncation_address, min(address, stored.last_address))
        stored.frames = [frame for frame in stored.frames if frame.address > stored.truncation_address]

    async def space(self) -> DiskSpace | None:
        """See `DurableLog.space`. Always None."""
        return None

    async def disable(self, cause: PenstockError | None = None) -> None:
        """See `DurableLog.disable`. Appends in flight fail."""
        if self._epoch == 0 or self._state == "closed":
            raise LogClosedError(f"{self._describe()} is {self._state}: only its owner can disable it")
        self._check_owned()
        self._stored.is_enabled = False
        self._stored.cause = "" if cause is None else f" ({cause})"
        self._fail(LogDisabledError(f"{self._describe()} was disabled"))
        await self.close()

    async def close(self) -> None:
        """See `DurableLog.close`. Waits for held appends to be released."""
        if self._state == "open":
            self._state = "closing"
        while self._queue and self._state == "closing":
            await asyncio.wait([append.future for append in self._queue])
            await asyncio.sleep(0)
        self._state = "closed"
        if self in self._stored.holders:
            self._stored.holders.remove(self)

    def _schedule_commit(self) -> None:
        if self._queue and not self._is_commit_scheduled and not self._stored.is_held:
            self._is_commit_scheduled = True
            asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        self._is_commit_scheduled = False
        stored = self._stored
        if stored.is_held or self._state not in ("open", "closing"):
            return
        try:
            self._check_owned()
        except LogFencedError as error:
            self._fail(error)
            return
        self._confirmed_s = self._now_s()
        batch, self._queue = self._queue, []
        for index, append in enumerate(batch):
            fault = stored.fault
            if fault is not None:
                fault.countdown -= 1
            has_failed = fault is not None and fault.countdown == 0
            if fault is None or not has_failed or fault.has_effect:
                stored.last_address += 1
                stored.frames.append(LogFrame(LogAddress(stored.last_address), append.data))
            if fault is not None and has_failed:
                stored.fault = None
                self._queue = batch[index:]
                self._fail(fault.error)
                return
            if not append.future.done():
                append.future.set_result(LogAddress(stored.last_address))
        self.on_synced()

    def _fail(self, error: PenstockError) -> None:
        self._state = "failed"
        queue, self._queue = self._queue, []
        for append in queue:
            if not append.future.done():
                append.future.set_exception(error)

    def _check_open(self) -> None:
        if self._state != "open":
            raise LogClosedError(f"{self._describe()} is {self._state}")

    def _check_owned(self) -> None:
        if self._epoch != self._stored.epoch or not self._stored.is_enabled:
            raise LogFencedError(
                f"{self._describe()} has been opened by another incarnation since epoch {self._epoch}: "
                "this one must stop"
            )

    def _describe(self) -> str:
        return f"the memory log of container {self._container_id}"


class MemoryLogFactory:
    """`DurableLogFactory` that keeps the frames itself, so that a log can be opened repeatedly."""

    def __init__(
        self, runtime: Runtime, *, frame_length_max_bytes: int = 1024 * 1024, is_lease_kept: bool = False
    ) -> None:
        """`is_lease_kept`: an incarnation that was not closed counts as one that may still answer, not as dead."""
        self._is_lease_kept = is_lease_kept
        self._runtime = runtime
        self._frame_length_max = frame_length_max_bytes
        self._stored: dict[int, _StoredLog] = {}

    async def start(self) -> None:
        """See `DurableLogFactory.start`. Logs share nothing but memory."""

    async def close(self) -> None:
        """See `DurableLogFactory.close`. Does nothing."""

    def create(self, container_id: int) -> MemoryLog:
        """See `DurableLogFactory.create`."""
        return MemoryLog(container_id, self._get(container_id), self._frame_length_max, self._runtime.monotonic_s)

    async def check(self) -> None:
        """See `DurableLogFactory.check`."""
        await self.has_logs()

    async def has_logs(self) -> bool:
        """See `DurableLogFactory.has_logs`."""
        return any(stored.epoch for stored in self._stored.values())

    async def enable(self, container_id: int) -> None:
        """See `DurableLogFactory.enable`. Raises `InvalidArgumentError` when the log is not disabled."""
        stored = self._get(container_id)
        if stored.is_enabled:
            raise InvalidArgumentError(f"the memory log of container {container_id} is not disabled")
        stored.is_enabled = True

    def fail_append(
        self, container_id: int, *, nth: int = 1, has_effect: bool = False, error: PenstockError | None = None
    ) -> None:
        """Make the `nth` append from now on fail (1: the next one), and with it the log.

        `has_effect`: the frame is still stored and is present after the next open.
        """
        if nth < 1:
            raise InvalidArgumentError(f"nth must be at least 1, not {nth}")
        fault = _AppendFault(nth, has_effect, error or StorageError("injected failure of an append"))
        self._get(container_id).fault = fault

    def hold_appends(self, container_id: int) -> None:
        """Keep appends in flight, neither stored nor failed, until `release_appends`."""
        self._get(container_id).is_held = True

    def release_appends(self, container_id: int) -> None:
        """Release held appends: they are stored, or fail if their log was fenced meanwhile."""
        stored = self._get(container_id)
        stored.is_held = False
        for log in stored.holders:
            log._schedule_commit()

    def _get(self, container_id: int) -> _StoredLog:
        return self._stored.setdefault(container_id, _StoredLog(is_lease_kept=self._is_lease_kept))
