"""`JournalWriter`: the only writer of a process. Frames of all its containers become slots of one journal.

Slots are numbered when they are sent, by one task, and acknowledged in the order of their numbers. If a seal is found
nothing more is sent; all slots below it are settled first; then each container moves to a new journal by a conditional
change of its record. What was in the seal's slot or above is sent again. Protocol: docs/object-log.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.model.errors import LogClosedError, LogFencedError, PenstockError, StorageError
from penstock.model.segments import Buffer
from penstock.runtime.runtime import Runtime
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.tier1.durable_log import LogAddress
from penstock.segmentstore.tier1.object_log.journal_format import (
    FRAMES_MAX,
    ObjectHeader,
    ObjectKind,
    SectionFrames,
    encode_data,
)
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings

_log = logging.getLogger(__name__)

#: Event loops may run a timer early by up to this much.
_TIMER_GRAIN_S = 0.001


class Member(Protocol):
    """A container's log that writes to the journal. See `ObjectLog`."""

    container_id: int
    on_synced: Callable[[], None]
    on_full: Callable[[], None]

    @property
    def epoch(self) -> int:
        """See `DurableLog.epoch`."""

    @property
    def is_writing(self) -> bool:
        """Whether its appends still count: it has neither failed nor been fenced."""

    def slot_settled(self, slot: int, appends: Sequence[Append], began_s: float) -> None:
        """Acknowledge appends: they are the log's frames in that slot, in order."""

    def owned_at(self, began_s: float) -> None:
        """Note that no other process had opened the log at that time."""

    async def move(self, end: int) -> None:
        """End the piece in the present journal before slot `end`, and begin one in the writer's new journal.

        Raises `LogFencedError` if another process has opened the log.
        """

    def fail(self, error: PenstockError) -> None:
        """End: nothing more is acknowledged."""

    async def record_truncation(self) -> None:
        """Record a truncation that was not recorded yet."""

    async def hop(self, bytes_after: Callable[[int], int]) -> None:
        """Begin a new piece in the live journal if many bytes were written after the log's last frame.

        `bytes_after`: bytes of the journal's slots after a slot.
        """


@dataclass(frozen=True, slots=True)
class Append:
    """A frame of `member` to append: its payload, and the future of its address."""

    member: Member
    buffers: Sequence[Buffer]
    length: int
    future: asyncio.Future[LogAddress]


@dataclass(slots=True)
class _Slot:
    """A slot in flight. `began_s`: on `Runtime.monotonic_s`, before it was sent."""

    number: int
    groups: Sequence[tuple[Member, Sequence[Append]]]
    length: int
    began_s: float
    is_done: bool = False
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class JournalUse:
    """Traffic of the writer so far: objects created, their bytes, journals begun after the first."""

    object_count: int = 0
    byte_count: int = 0
    roll_count: int = 0
    lengths: dict[int, int] = field(default_factory=dict)


class JournalWriter:
    """See the module. Runs from the first `attach` to `close`.

    Attributes:
        journal: id of the live journal; it changes when it is sealed or full.
        next_slot: slots below it have been sent.
        settled: slots below it are there, except deleted ones.
        use: traffic; its `lengths` are those of slots of the live journal that were not deleted.
    """

    def __init__(self, bucket: LogBucket, runtime: Runtime, settings: ObjectLogSettings) -> None:
        self.journal: bytes = runtime.random_id()
        self.next_slot: int = 0
        self.settled: int = 0
        self.use: JournalUse = JournalUse()
        self._bucket = bucket
        self._runtime = runtime
        self._settings = settings
        self._members: dict[int, Member] = {}
        self._pending: deque[Append] = deque()
        self._pending_bytes = 0
        self._pending_since_s = 0.0
        self._is_urgent = False
        self._slots: deque[_Slot] = deque()
        self._in_flight_bytes = 0
        #: When the next object may be sent that is not full.
        self._next_due_s = float("-inf")
        self._sealed_at: int | None = None
        #: Whether containers are being moved to another journal. Until each record names it, the journal's state says
        #: nothing about who owns them.
        self._is_rolling = False
        #: When the last check that no other process has sealed the journal began.
        self._owned_s = float("-inf")
        self._checking: asyncio.Task[bool] | None = None
        self._sender: asyncio.Task[None] | None = None
        self._wakeup = asyncio.Event()
        bucket.space.on_full = self._found_full
        #: Set and replaced whenever slots settle, the journal changes, or a member ends.
        self._progress = asyncio.Event()

    @property
    def members(self) -> Collection[Member]:
        """The logs that write now."""
        return list(self._members.values())

    def attach(self, member: Member) -> None:
        """Begin to write the frames of a log, which has a piece in the live journal."""
        self._members[member.container_id] = member
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._run())

    def detach(self, member: Member) -> None:
        """Write no more frames of a log. Those in flight may still be stored; none is acknowledged."""
        if self._members.get(member.container_id) is member:
            del self._members[member.container_id]
        self._told()

    def member(self, container_id: int) -> Member | None:
        """Return the log of a container that writes now."""
        return self._members.get(container_id)

    def append(self, append: Append) -> None:
        """Add a frame; call order is slot order."""
        if not self._pending:
            self._pending_since_s = asyncio.get_running_loop().time()
            self._wakeup.set()
        self._pending.append(append)
        self._pending_bytes += append.length
        if self._pending_bytes >= self._settings.batch_bytes_max:
            self._wakeup.set()

    def hurry(self) -> None:
        """Send what is pending without waiting for more."""
        self._is_urgent = True
        self._wakeup.set()

    async def quiesce(self, journal: bytes) -> int | None:
        """Wait until all that was sent so far is settled; return the end. None if `journal` is not live any more."""
        target = self.next_slot
        while self.journal == journal and self.settled < target:
            await self._next_progress()
        return self.settled if self.journal == journal else None

    async def confirm(self, *, is_shared: bool) -> None:
        """Check whether the journal was sealed, by its next slot, and note the answer with all members.

        `is_shared`: a check or a creation in progress is enough; otherwise one that begins after this call is. Raises
        `StorageError` if the bucket does not answer.
        """
        called_s = self._runtime.monotonic_s()
        while True:
            is_creating = bool(self._slots) and not self._bucket.space.is_full
            if self._sealed_at is not None or is_creating or self._is_rolling:
                await self._next_progress()
            else:
                if self._checking is None or self._checking.done():
                    self._checking = asyncio.get_running_loop().create_task(self._check_next_slot())
                    # After a cancellation no caller is left to retrieve the result.
                    self._checking.add_done_callback(lambda done: None if done.cancelled() else done.exception())
                if not await asyncio.shield(self._checking):
                    return
            if is_shared or self._owned_s >= called_s or not self._members:
                return

    async def _check_next_slot(self) -> bool:
        """Check the first slot that is not settled once. Return False if it says nothing. Raises `StorageError`.

        It may be in flight, in a full bucket. If it is free, the journal has no seal: that is in the first free slot.
        """
        journal, slot = self.journal, self.settled
        began_s = self._runtime.monotonic_s()
        header = await self._hedged_header(journal, slot)
        if self.journal != journal:
            return True
        if header is None:
            self._owned_at(began_s)
        elif header.kind is ObjectKind.SEAL:
            self._found_seal(slot)
            while self.journal == journal and self._members:
                await self._next_progress()
        elif not self._slots:
            return False  # Another process wrote it, which the next creation finds out.
        return True

    async def _hedged_header(self, journal: bytes, slot: int) -> ObjectHeader | None:
        """Read a header once, and a second time if the bucket takes long. The first answer counts."""
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(self._bucket.header(journal, slot, is_repeated=False))}
        try:
            if self._settings.hedge_s:
                _, waiting = await asyncio.wait(tasks, timeout=self._settings.hedge_s)
                if waiting:
                    tasks.add(loop.create_task(self._bucket.header(journal, slot, is_repeated=False)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            await cancel_and_wait(*tasks)

    async def close(self) -> None:
        """Stop, and seal the journal, so that all of it may be deleted one day. Every member has been detached."""
        tasks = [task for task in (self._sender, self._checking) if task is not None]
        await cancel_and_wait(*tasks)
        await self._cancel_slots(self._slots)
        if self.next_slot and not self._slots:
            try:
                async with asyncio.timeout(self._settings.close_wait_s):
                    await self._bucket.seal(self.journal, self.next_slot, self.journal)
            except (TimeoutError, StorageError) as error:
                _log.info("the journal %s stays without a seal: %r", self.journal.hex(), error)

    # -- sending --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                if self._sealed_at is not None:
                    if self.settled >= self._sealed_at or not self._slots:
                        await self._roll(self._sealed_at)
                    else:
                        await self._wait(None)
                    continue
                if self.next_slot >= self._settings.slots_max and not self._slots:
                    await self._bucket.seal(self.journal, self.next_slot, self.journal)
                    await self._roll(self.next_slot)
                    continue
                due_s = self._due_s()
                if due_s is None or due_s - loop.time() > _TIMER_GRAIN_S:
                    await self._wait(due_s)
                else:
                    self._send()
        except PenstockError as error:
            await self._fail(error)

    def _due_s(self) -> float | None:
        """Return when the next slot may be sent; None if there is nothing to send, or no room for it."""
        settings = self._settings
        is_full = len(self._slots) >= settings.in_flight_max or (
            self._slots and self._in_flight_bytes + self._pending_bytes > settings.in_flight_bytes_max
        )
        if not self._pending or is_full or self.next_slot >= settings.slots_max:
            return None
        if self._is_urgent or self._pending_bytes >= settings.batch_bytes_max:
            return 0.0
        return max(self._pending_since_s + settings.gather_s, self._next_due_s)

    async def _wait(self, until_s: float | None) -> None:
        """Wait for an event that may let the sender continue, at most until a time of the loop."""
        self._wakeup.clear()
        loop = asyncio.get_running_loop()
        timer = None if until_s is None else loop.call_at(until_s, self._wakeup.set)
        try:
            await self._wakeup.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _send(self) -> None:
        groups: dict[int, tuple[Member, list[Append]]] = {}
        length = 0
        while self._pending:
            append = self._pending[0]
            if not append.member.is_writing:
                self._drop_pending()
                continue
            if length and length + append.length > self._settings.batch_bytes_max:
                break
            _, group = groups.setdefault(append.member.container_id, (append.member, []))
            if len(group) == FRAMES_MAX:
                break
            group.append(append)
            length += append.length
            self._drop_pending()
        loop = asyncio.get_running_loop()
        if not self._pending:
            self._is_urgent = False
        self._pending_since_s = loop.time()
        if not groups:
            return
        nonce = self._runtime.random_id()
        sections = [
            SectionFrames(container_id, member.epoch, [append.buffers for append in group])
            for container_id, (member, group) in groups.items()
        ]
        content = encode_data(self.journal, self.next_slot, nonce, sections)
        slot = _Slot(self.next_slot, list(groups.values()), len(content), self._runtime.monotonic_s())
        self.next_slot += 1
        # The longer this object is, the sooner the next one may follow: n objects of b bytes in all take at least
        # (n - b / batch_bytes_max) intervals.
        rest = max(0.0, 1 - length / self._settings.batch_bytes_max)
        self._next_due_s = max(self._next_due_s, loop.time()) + self._settings.batch_interval_s * rest
        self._in_flight_bytes += slot.length
        self._slots.append(slot)
        slot.task = loop.create_task(self._create(self.journal, slot, content, nonce))

    def _drop_pending(self) -> None:
        self._pending_bytes -= self._pending.popleft().length

    async def _create(self, journal: bytes, slot: _Slot, content: bytes, nonce: bytes) -> None:
        try:
            is_there = await self._bucket.create(journal, slot.number, content, nonce)
        except PenstockError as error:
            await self._fail(error)
            return
        if not is_there:
            self._found_seal(slot.number)
            return
        slot.is_done = True
        self.use.object_count += 1
        self.use.byte_count += slot.length
        self._settle()
        self._wakeup.set()

    # -- settling -------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Acknowledge all slots that are there and have no missing or sealed slot below them."""
        synced: dict[int, Member] = {}
        began_s = float("-inf")
        while self._slots and self._slots[0].is_done:
            slot = self._slots.popleft()
            self._in_flight_bytes -= slot.length
            self.settled = slot.number + 1
            self.use.lengths[slot.number] = slot.length
            began_s = max(began_s, slot.began_s)
            self._owned_at(slot.began_s)
            for member, appends in slot.groups:
                if member.is_writing:
                    member.slot_settled(slot.number, appends, slot.began_s)
                    synced[member.container_id] = member
        for member in synced.values():
            member.on_synced()
        if began_s > float("-inf"):
            self._told()

    def _owned_at(self, began_s: float) -> None:
        self._owned_s = max(self._owned_s, began_s)
        for member in self._members.values():
            member.owned_at(began_s)

    def _found_seal(self, slot: int) -> None:
        """Note that a slot is sealed. What is in flight above it is given up; it is sent again later."""
        self._sealed_at = slot if self._sealed_at is None else min(slot, self._sealed_at)
        for each in self._slots:
            if each.number > self._sealed_at and each.task is not None:
                each.task.cancel()
        self._wakeup.set()

    async def _roll(self, end: int) -> None:
        """Continue in a new journal. All slots below `end` are settled."""
        _log.warning("the journal %s ends at slot %d; its containers move to another", self.journal.hex(), end)
        left = list(self._slots)
        await self._cancel_slots(left)
        again = [append for slot in left for _, appends in slot.groups for append in appends]
        self._pending.extendleft(reversed(again))
        self._pending_bytes += sum(append.length for append in again)
        self._slots.clear()
        self._in_flight_bytes = 0
        self.journal = self._runtime.random_id()
        self.next_slot = self.settled = 0
        self.use.lengths.clear()
        self.use.roll_count += 1
        self._sealed_at = None
        members = self.members
        self._is_rolling = True
        try:
            outcomes = await asyncio.gather(*(member.move(end) for member in members), return_exceptions=True)
        finally:
            self._is_rolling = False
        for member, outcome in zip(members, outcomes, strict=True):
            if isinstance(outcome, PenstockError):
                self.detach(member)
                if not isinstance(outcome, LogFencedError):  # Such a member has noted it, and fails its appends.
                    member.fail(outcome)
            elif outcome is not None:
                raise outcome
        self._told()

    async def _fail(self, error: PenstockError) -> None:
        """Give the journal up: what is in flight has an unknown outcome. The next logs begin another one."""
        if isinstance(error, LogFencedError | LogClosedError):
            _log.info("the journal %s ends: %s", self.journal.hex(), error)
        else:
            _log.error("the journal %s is given up: %s", self.journal.hex(), error)
        left = list(self._slots)
        self._slots.clear()
        self._pending.clear()
        self._pending_bytes = self._in_flight_bytes = 0
        self._sealed_at = None
        self.journal = self._runtime.random_id()
        self.next_slot = self.settled = 0
        self.use.lengths.clear()
        members, self._members = self.members, {}
        for member in members:
            member.fail(error)
        self._told()
        await self._cancel_slots(left)

    async def _cancel_slots(self, slots: Collection[_Slot]) -> None:
        own = asyncio.current_task()
        tasks = [slot.task for slot in slots if slot.task is not None and slot.task is not own]
        await cancel_and_wait(*tasks)

    def _found_full(self) -> None:
        for member in self.members:
            member.on_full()

    def _told(self) -> None:
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    async def _next_progress(self) -> None:
        await self._progress.wait()
