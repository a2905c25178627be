"""`WorkClaims`: work that has begun, and which controller must finish it.

The announcement of a piece of work is its lock and its fence. There is one row per subject. It is created only if it
does not exist, changes its owner by compare-and-set, and is removed only if it still belongs to the remover. Late
requests have no effect: a removal or a take-over carries an outdated version, and a request to announce also writes the
fence of the subject's bucket, whose version has changed since.

The safety argument, case by case: ``docs/controller-ownership.md``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from penstock.controller.errors import MembershipLostError, WorkElsewhereError, WorkTakenOverError
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import (
    AnnouncementFence,
    Lane,
    PendingWork,
    Subject,
    WaitingRequest,
)
from penstock.controller.metadata.record_store import RecordStore, Versioned
from penstock.controller.metadata.turn_queue import Line, TurnQueue, has_change
from penstock.controller.ownership.coordinator import Membership
from penstock.controller.ownership.peers import Peers
from penstock.controller.retry import conflict_delay_s, delay_s
from penstock.controller.settings import ControllerSettings
from penstock.model.checksum import crc32c
from penstock.model.errors import (
    ControllerUnavailableError,
    MetadataConflictError,
    OutcomeUnknownError,
    PenstockError,
    UnreadableDataError,
)
from penstock.model.names import SCOPE_NAME_LENGTH_MAX, STREAM_NAME_LENGTH_MAX
from penstock.model.segments import VERSION_ABSENT

_logger = logging.getLogger(__name__)

#: Rows that all announcements share as fences: few enough to read them all in passing, enough to avoid contention.
FENCE_COUNT = 64
#: Longer names are never assigned, and might not fit in a key.
_NAME_LENGTH_MAX = max(SCOPE_NAME_LENGTH_MAX, STREAM_NAME_LENGTH_MAX)


@dataclass(frozen=True, slots=True)
class WorkClaim:
    """An announcement that this controller owns, and the version of its row, which proves the ownership."""

    work: PendingWork
    version: int

    @property
    def subject(self) -> Subject:
        """The subject of the work."""
        return self.work.subject


class WorkClaims:
    """The announcements of all controllers, as seen by one of them.

    Attributes:
        taken_over_count: announcements that this controller has taken over from others.
    """

    def __init__(self, records: RecordStore, settings: ControllerSettings, peers: Peers) -> None:
        self._membership: Membership | None = None
        #: Draws waits, which must differ between members; names are drawn from the runtime's generator.
        self._rng = random.Random("")
        self.taken_over_count: int = 0
        self._records = records
        self._settings = settings
        self._locks = StreamLocks()
        #: Fences as last written by this controller; a version that is no longer current causes a conflict.
        self._fences: dict[str, Versioned[AnnouncementFence]] = {}
        self._waiting = TurnQueue(peers, settings.turn_timeout_ms / 1000)
        #: Subjects whose announcements belong to this controller, or may, as far as it knows.
        self._unfinished: set[Subject] = set()

    def enter(self, membership: Membership) -> None:
        """Announce and take over work as this member from now on."""
        self._membership = membership
        self._rng = random.Random(membership.name)

    @property
    def owner(self) -> str:
        """This controller's name among the members; empty before it has started."""
        return "" if self._membership is None else self._membership.name

    async def live_members(self) -> frozenset[str]:
        """Return the names of the live controllers. Raises `MembershipLostError`."""
        if self._membership is None:
            raise MembershipLostError("this controller has not joined the cluster yet")
        return (await self._membership.members()).names

    async def check_is_member(self) -> None:
        """Raise `MembershipLostError` if the others consider this controller dead: its requests may be stale.

        For changes made without an announcement. A coordinator that does not answer prevents nothing.
        """
        try:
            await self.live_members()
        except MembershipLostError:
            raise
        except ControllerUnavailableError as error:
            _logger.info("the membership of this controller cannot be checked; continuing: %s", error)

    def is_unfinished(self, subject: Subject) -> bool:
        """Say whether this controller has announced or taken over work there, and not withdrawn it."""
        return subject in self._unfinished

    async def announce(self, work: PendingWork, *, in_turn: bool = True) -> WorkClaim:
        """Announce `work`. With `in_turn` False it is part of work already begun, and ignores the line.

        Raises `WorkElsewhereError` when other work is announced there, or another controller's turn comes first;
        `MembershipLostError`; `OutcomeUnknownError` when repeated attempts got no reply: `is_unfinished` is true then;
        `WorkTakenOverError` when a request without a reply may have announced it, and another controller completed it.
        """
        if self._membership is None or self._membership.is_over:
            raise MembershipLostError(f"{work.subject}: this controller is no longer a member and starts no work")
        subject = work.subject
        fence = _fence_of(subject)
        # A request that may already have arrived counts as begun: it no longer waits for its turn.
        is_on_its_way = not in_turn
        async with self._locks.hold(fence):
            attempt, lost_count = 1, 0
            #: The fence's count before a request that got no reply.
            unanswered: int | None = None
            version = self._fences.pop(fence, None)
            if version is not None and (is_on_its_way or self._is_free(work, version)):
                try:
                    return await self._write(work, fence, version)
                except MetadataConflictError:
                    _logger.debug("%s: existing claims are checked first", subject)
                except OutcomeUnknownError:
                    is_on_its_way, unanswered = True, version.record.count
            while True:
                found, version = await self._read_fence(subject, fence)
                if found is not None:
                    # After a lost reply it may be this very announcement.
                    if found.record.work_id != work.work_id:
                        self._unfinished.discard(subject)
                        raise WorkElsewhereError(f"{subject}: another change has just started; try again")
                    self._waiting.begun(subject, work.lane)
                    return WorkClaim(found.record, found.version)
                count = _read(version)[0]
                if unanswered is not None and count != unanswered:
                    # If the count is from that request, another controller considered this one dead and did the work:
                    # repeating it would undo later changes.
                    self._unfinished.discard(subject)
                    raise WorkTakenOverError(f"{subject}: the {work.kind} may have been done by another controller")
                if not is_on_its_way and not self._is_free(work, version):
                    self._unfinished.discard(subject)
                    raise WorkElsewhereError(f"{subject}: another change is queued first; try again later")
                try:
                    return await self._write(work, fence, version)
                except MetadataConflictError:
                    if attempt == self._settings.conflict_attempts_max:
                        raise
                    # Another request was faster, mostly for another subject: the bucket is busy, which is no error.
                    await asyncio.sleep(conflict_delay_s(self._settings, attempt, self._rng))
                except OutcomeUnknownError:
                    if attempt == self._settings.conflict_attempts_max:
                        raise
                    is_on_its_way, unanswered, lost_count = True, count, lost_count + 1
                    await asyncio.sleep(delay_s(self._settings, lost_count))
                attempt += 1

    def _is_free(self, work: PendingWork, found: Versioned[AnnouncementFence] | None) -> bool:
        _, line, _ = _read(found)
        return self._waiting.is_free(line, work.subject, work.lane, self.owner, asyncio.get_running_loop().time())

    async def _write(self, work: PendingWork, fence: str, found: Versioned[AnnouncementFence] | None) -> WorkClaim:
        count, line, expected = _read(found)
        now_s = asyncio.get_running_loop().time()
        moved = AnnouncementFence(count + 1, self._waiting.left(line, work.subject, work.lane, self.owner, now_s))
        self._unfinished.add(work.subject)
        version, fence_version = await self._records.put_all(
            layout.PENDING_WORK, [(work.subject.key, work, VERSION_ABSENT), (fence, moved, expected)]
        )
        self._fences[fence] = Versioned(moved, fence_version)
        self._waiting.begun(work.subject, work.lane)
        return WorkClaim(work, version)

    # Turns.

    async def enqueue(self, subject: Subject, lane: Lane, caller: object, ticket: str) -> None:
        """Put this controller in line for `caller`, which met other work; does nothing if it is in line already.

        `ticket`: a UUID, for a new place in line. Call it again with each attempt: a commit by another controller uses
        up the place of a waiting commit. If the line is full, or other controllers write it without a pause, the caller
        waits without a place. A commit that waits only for another commit takes no place: that one merges the same
        transactions.
        """
        if self._membership is None or self._membership.is_over:
            return
        owner, fence = self.owner, _fence_of(subject)
        async with self._locks.hold(fence):
            for attempt in range(1, self._settings.conflict_attempts_max):
                found, version = await self._read_fence(subject, fence)
                count, line, expected = _read(version)
                is_commit_there = found is not None and found.record.lane is Lane.COMMIT
                if lane is Lane.COMMIT and is_commit_there and not has_change(line, subject):
                    return
                own = [one for one in line if (one.subject, one.lane, one.owner) == (subject.key, lane, owner)]
                if own or len(line) >= self._settings.waiting_requests_max:
                    if own:
                        self._waiting.place(subject, lane, caller, own[0].ticket)
                    return
                request = WaitingRequest(subject.key, lane, owner, ticket)
                self._fences.pop(fence, None)
                try:
                    await self._records.put(
                        layout.PENDING_WORK, fence, AnnouncementFence(count, (*line, request)), version=expected
                    )
                except MetadataConflictError:
                    continue  # Another request was faster. No wait, or busier writers would keep winning.
                except OutcomeUnknownError:
                    await asyncio.sleep(delay_s(self._settings, attempt))
                    continue
                self._waiting.place(subject, lane, caller, ticket)
                return

    async def dequeue(self, subject: Subject, lane: Lane, caller: object) -> None:
        """Remove the place of `caller`, which no longer waits, unless other callers of this controller share it.

        A failure is logged only: the place is skipped when its turn comes.
        """
        ticket = self._waiting.give_up(subject, lane, caller)
        if ticket is None:
            return
        fence = _fence_of(subject)
        try:
            async with self._locks.hold(fence):
                for _ in range(self._settings.conflict_attempts_max):
                    count, line, expected = _read((await self._read_fence(subject, fence))[1])
                    left = tuple(request for request in line if request.ticket != ticket)
                    if left == line:
                        return
                    self._fences.pop(fence, None)
                    try:
                        await self._records.put(
                            layout.PENDING_WORK, fence, AnnouncementFence(count, left), version=expected
                        )
                    except MetadataConflictError:
                        continue
                    return
        except PenstockError as error:
            _logger.info("%s: a request that ended is still queued, and will be skipped: %s", subject, error)

    async def _read_fence(
        self, subject: Subject, fence: str
    ) -> tuple[Versioned[PendingWork] | None, Versioned[AnnouncementFence] | None]:
        row, fence_row = await self._records.get_rows(layout.PENDING_WORK, [subject.key, fence])
        return (
            self._records.decoded(layout.PENDING_WORK, row, PendingWork),
            self._records.decoded(layout.PENDING_WORK, fence_row, AnnouncementFence),
        )

    async def claim(self, subject: Subject) -> WorkClaim | None:
        """Return the announced work, now owned by this controller; None if there is none, or the name is too long.

        Work of a departed controller is taken over: its later conditional writes fail, since the version has changed.
        Raises `WorkElsewhereError` for work of a live controller; `MembershipLostError`.
        """
        if max(len(subject.scope), len(subject.name)) > _NAME_LENGTH_MAX:
            return None
        for _ in range(self._settings.conflict_attempts_max):
            found = await self._records.get(layout.PENDING_WORK, subject.key, PendingWork)
            if found is None:
                self._unfinished.discard(subject)
                return None
            if found.record.owner == self.owner:
                self._unfinished.add(subject)
                return WorkClaim(found.record, found.version)
            # Checked after the read: an owner in the row that is no member now will never be one again.
            if found.record.owner in await self.live_members():
                self._unfinished.discard(subject)
                raise WorkElsewhereError(
                    f"{subject}: another controller ({found.record.owner}) is alive and working on it; try again later"
                )
            taken = replace(found.record, owner=self.owner, attempt=found.record.attempt + 1)
            try:
                version = await self._records.put(layout.PENDING_WORK, subject.key, taken, version=found.version)
            except (MetadataConflictError, OutcomeUnknownError):
                continue
            _logger.info("%s: took over the %s that %s had begun", subject, taken.kind, found.record.owner)
            self.taken_over_count += 1
            self._unfinished.add(subject)
            return WorkClaim(taken, version)
        raise MetadataConflictError(f"{subject}: its claim keeps changing; try again")

    async def confirm(self, claim: WorkClaim) -> None:
        """Raise `WorkTakenOverError` unless the announcement still exists and belongs to this controller."""
        found = await self._records.get(layout.PENDING_WORK, claim.subject.key, PendingWork)
        if found is None or found.version != claim.version:
            self._unfinished.discard(claim.subject)
            raise WorkTakenOverError(f"{claim.subject}: another controller has taken this work over")

    async def is_taken_over(self, subject: Subject) -> bool:
        """Say whether work that this controller has begun on `subject` was taken over or ended by another one."""
        if not self.is_unfinished(subject):
            return False
        try:
            return await self.claim(subject) is None
        except WorkElsewhereError:
            return True

    async def withdraw(self, claim: WorkClaim) -> None:
        """Record that the work is finished. Does nothing if the announcement no longer belongs to this controller."""
        subject, attempt = claim.subject, 1
        while True:
            try:
                await self._records.remove_version(layout.PENDING_WORK, subject.key, claim.version)
            except MetadataConflictError:
                _logger.debug("%s: the claim was already released or taken over", subject)
            except OutcomeUnknownError:
                # A repetition gets a conflict at worst: the version is never reused.
                if attempt == self._settings.attempts_max:
                    raise
                await asyncio.sleep(delay_s(self._settings, attempt))
                attempt += 1
                continue
            self._unfinished.discard(subject)
            return

    async def orphans(self) -> AsyncIterator[Subject]:
        """Yield every subject whose announcement has no live owner, or cannot be decoded."""
        async for row in self._records.walk_rows(layout.PENDING_WORK):
            if "/" not in row.key:
                continue
            subject = Subject.of_key(row.key)
            try:
                found = self._records.decoded(layout.PENDING_WORK, row, PendingWork)
            except UnreadableDataError as error:
                _logger.error("%s: the claim cannot be read: %s", subject, error)
                yield subject
                continue
            if found is not None and found.record.owner not in await self.live_members():
                yield subject

    async def pending(self) -> AsyncIterator[Subject]:
        """Yield every subject with an announcement."""
        async for row in self._records.walk_rows(layout.PENDING_WORK):
            if "/" in row.key:
                yield Subject.of_key(row.key)


def _fence_of(subject: Subject) -> str:
    return layout.fence_key(crc32c(subject.key.encode(), 0) % FENCE_COUNT)


def _read(fence: Versioned[AnnouncementFence] | None) -> tuple[int, Line, int]:
    """Return count, line and version of a fence."""
    return (0, (), VERSION_ABSENT) if fence is None else (fence.record.count, fence.record.waiting, fence.version)
