"""`GroupMembership`: the segments that one reader holds, always as the group's shared record says.

One task owns it. Only this task changes the record for its reader, so a cancelled caller cannot interrupt a change.
After each read of the record the local state follows in one step without waiting. The events returned to the
application belong to the reader, which is consulted through `ReaderCallbacks`. See ``docs/reader-groups.md``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from penstock.client.common.tasks import start_watched
from penstock.client.groups import reader_group_state as rgs
from penstock.client.groups.failing_reads import failing_longer_than, note_recovered
from penstock.client.groups.group_pace import store_interval_s
from penstock.client.groups.group_rotation import Rotation
from penstock.client.groups.group_state import GroupState, HeldSegment
from penstock.client.groups.group_watch import GroupWatch, Sign
from penstock.client.groups.reader_change import ReaderChange
from penstock.client.groups.reader_group_leader import GroupLeader, beat_interval_s
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.groups.segment_ends import Ends, SegmentEnds
from penstock.client.groups.segment_events import SegmentEvents
from penstock.client.groups.store_requests import StoreRequests, answer
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.read_ahead import ReadAhead
from penstock.model.errors import (
    NoSuchReaderGroupError,
    OutcomeUnknownError,
    PenstockError,
    StreamError,
)

_log = logging.getLogger(__name__)

#: Called with the full names of segments that were added, and of those removed.
OnChange = Callable[[Sequence[str], Sequence[str]], None]


class ReaderCallbacks(Protocol):
    """What the membership reads from the reader and reports to it: a `Delivery`."""

    def position_of(self, source: SegmentEvents, *, is_leaving: bool) -> int | None:
        """Return where the group resumes in a segment if this reader ends now. None: at the stored position.

        `is_leaving`: the segment is released permanently.
        """

    def handed_out(self) -> dict[str, int]:
        """Return the end of the returned events that do not count as read (segment -> offset)."""

    def is_settled(self, source: SegmentEvents) -> bool:
        """Return whether all returned events of a segment are done, so that it may move."""

    def idle_s(self) -> float:
        """Return how long, in seconds, the application has not called for more events. 0 while it waits for events."""

    def has_chunk(self) -> bool:
        """Return whether events are with the application, or the rest of their chunk may go to it at any time."""

    def enqueue(self, source: SegmentEvents) -> None:
        """Note that a segment has events."""

    def revoke(self, source: SegmentEvents) -> None:
        """Return no more events of a segment: it was reassigned."""

    def notice(self) -> None:
        """Check for changes."""


class GroupMembership:
    """See the module.

    Attributes:
        open_segments: the segments that are read here, by full name.
        is_finished: every stream of the group was read to its end.
        failure: why this membership has ended permanently.
    """

    def __init__(
        self,
        record: GroupRecord,
        watch: GroupWatch,
        name: str,
        incarnation: str,
        cluster: Cluster,
        hands: ReaderCallbacks,
        on_change: OnChange | None,
    ) -> None:
        self.open_segments: dict[str, SegmentEvents] = {}
        self.is_finished: bool = False
        self.failure: PenstockError | None = None
        self._record = record
        self._name = name
        self._incarnation = incarnation
        self._cluster = cluster
        self._settings = cluster.settings
        self._hands = hands
        self._on_change = on_change
        self._read_ahead = ReadAhead(
            self._settings.reader_read_ahead_bytes_max,
            self._settings.read_bytes * self._settings.read_ahead_block_count,
        )
        self._is_joined = False
        self._reader_timeout_s = cluster.settings.reader_timeout_s
        self._beat_interval_s = cluster.settings.position_interval_s
        self._is_interval_reported = False
        self._is_end_reported = False
        self._rotation = Rotation(f"{record.scope}/{record.name}", name, cluster.settings)
        self._watch = watch
        self._wake = asyncio.Event()
        self._is_requested = False  # A pass over the record, not only a new time-out.
        # The result of the last poll, if it needs a pass.
        self._polled: tuple[GroupState, Mapping[str, Sign]] | None = None
        self._is_passing = False
        # Nothing was handed out since positions were compared with the record, so there is nothing to store.
        self._is_quiet = False
        self._requests = StoreRequests(f"store positions of reader {name}", self._settings.retry_time_max_s)
        self._trouble: PenstockError | None = None
        self._state: GroupState | None = None
        self._surplus: Collection[str] = ()  # The segments of `_state` that this reader is to release.
        self._left: GroupState | None = None
        self._keeper = GroupLeader(record, name, cluster)
        self._ends = SegmentEnds(
            cluster, f"{record.scope}/{record.name}", on_removed=self._keeper.poll_soon, on_error=self._note
        )
        self._working_s = 0.0
        self._beaten_s = 0.0
        # Until then other readers may take the segments. None: this reader takes part.
        self._aside_until_s: float | None = None
        self._task: asyncio.Task[None] | None = None

    # -- for the reader -----------------------------------------------------------------------------------------

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes read ahead of the application, of all segments together."""
        return self._read_ahead.held_bytes

    @property
    def streams(self) -> Sequence[str]:
        """The streams that the group reads, as of the last read of the record."""
        return () if self._state is None else self._state.streams

    def group_positions(self) -> dict[str, int] | None:
        """Return the group's positions (segment -> offset), those of other readers as stored. None: unknown."""
        return None if self._state is None else rgs.positions_of(self._state)

    async def join(self) -> None:
        """Join; returns once this reader is in the group and has its share."""
        self._working_s = self._beaten_s = asyncio.get_running_loop().time()
        self._task = start_watched(self._run(), f"keep reader {self._name}", self._fail)
        self._watch.add(self)
        await self.store()

    async def store(self) -> None:
        """Have the positions stored; returns once they are. A cancelled caller only stops waiting.

        Raises the error that the membership failed with, or `OutcomeUnknownError` if the store was unavailable for
        longer than `retry_time_max_s`. The time restarts if the task was in the middle of another pass.
        """
        if self.failure is not None:
            raise self.failure
        request = self._requests.add()
        self.wake()
        await self._requests.wait(request)

    def wake(self) -> None:
        """Check the record soon: events are done, a segment ended, or a caller requested it."""
        self._is_requested = True
        self._wake.set()

    def note_news(self) -> None:
        """Note that events are handed out, so positions must be stored after an interval."""
        if self._is_quiet:
            self._is_quiet = False
            self._beaten_s = asyncio.get_running_loop().time()
            self._wake.set()

    def came_back(self) -> None:
        """Take part again, if the segments were given away because the application did not read."""
        if self._aside_until_s is not None:
            self.wake()

    def take_trouble(self) -> PenstockError | None:
        """Return, once, why the record cannot be updated, if the error persists."""
        trouble, self._trouble = self._trouble, None
        return trouble

    async def stop(self) -> None:
        """End the task. A change in progress is visible in the record at the next read."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._watch.stop(self)
        self._drop_all()
        self._requests.settle(self.failure or StreamError(f"reader {self._name} was closed"))

    async def leave(self, positions: Mapping[str, HeldSegment], handed_out: Mapping[str, int] | None) -> bool:
        """Remove this reader from the group. Safe to repeat. Returns whether the group has its positions."""
        was_member = False

        def step(state: GroupState) -> GroupState:
            nonlocal was_member
            if not rgs.is_member(state, self._name, self._incarnation):
                return state
            was_member = True
            return rgs.leave(state, self._name, positions, handed_out=handed_out)

        self._left = await self._record.update(step)
        try:
            await self._watch.leave(self)
        except PenstockError as error:
            text = "reader %s could not remove its entry from the group's table; it will be deleted later: %s"
            _log.info(text, self._name, error)
        return was_member

    async def tell_last(self) -> None:
        """Publish the group's positions to the controller, if it has no reader any more since this one left."""
        if self._left is not None:
            await self._keeper.leave(self._left)

    def positions(self, *, is_leaving: bool) -> dict[str, HeldSegment]:
        """Return where the group resumes in each segment if this reader ends now."""
        found = {}
        for segment, source in self.open_segments.items():
            offset = self._hands.position_of(source, is_leaving=is_leaving)
            if offset is not None:
                found[segment] = HeldSegment(offset, source.turn)
        return found

    # -- for the watch ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """See `WatchingReader.name`."""
        return self._name

    @property
    def incarnation(self) -> str:
        """See `WatchingReader.incarnation`."""
        return self._incarnation

    def is_working(self) -> bool:
        """See `WatchingReader.is_working`."""
        latest_s = self._working_s + self._settings.retry_time_max_s
        return self._is_joined and asyncio.get_running_loop().time() <= latest_s

    def polled(self, state: GroupState, dead: Mapping[str, Sign]) -> None:
        """See `WatchingReader.polled`."""
        if not self._is_passing and not dead and self._is_idle_in(state):
            self._working_s = asyncio.get_running_loop().time()
            self._trouble = self._ends.lost
            return
        self._polled = state, dead
        self._wake.set()

    def poll_failed(self, error: PenstockError) -> None:
        """See `WatchingReader.poll_failed`."""
        self._rotation.postpone()
        if self._is_joined:
            self._note(error)
        else:
            self.wake()

    def watch_failed(self, error: PenstockError) -> None:
        """See `WatchingReader.watch_failed`."""
        self._fail(error)

    def _is_idle_in(self, state: GroupState) -> bool:
        """Return whether a pass over the record `state` would do nothing, also if the last pass has failed.

        The cause of each pass lasts until one succeeds: what is checked here, a caller, or a time that is due again.
        """
        if state is not self._state or not self._is_joined or state.unassigned:
            return False
        if self._name in state.checkpoint.awaited or self._name == next(iter(state.readers), None):
            return False  # The first reader does the group's work.
        if any(
            source.is_at_end or source.is_leaving or source.failing_since_s is not None
            for source in self.open_segments.values()
        ):
            return False
        return not self.open_segments or self._hands.idle_s() <= state.processing_time_max_s

    # -- the task -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self.failure is None:
            self._wake.clear()
            is_woken, self._is_requested = self._is_requested or self._state is None, False
            requests = self._requests.take()
            polled, self._polled = self._polled, None
            self._is_passing = True
            try:
                is_due = loop.time() >= self._store_due_s() and self._has_news()
                is_beat = bool(requests) or is_due or self._is_awaited()
                if is_woken or is_beat or polled is not None or loop.time() >= self._exchange_due_s():
                    await self._poll_record(polled, is_beat=is_beat)
            except PenstockError as error:
                self._rotation.postpone()
                self._note(error)
                answer(requests, error)
                # Give waiting callers precedence.
                await asyncio.sleep(self._settings.retry_delay_initial_s)
            except BaseException:
                answer(requests, self.failure or StreamError(f"reader {self._name} was closed"))
                raise
            else:
                answer(requests, self.failure)
                if self._state is not None and await self._keeper.keep(self._state):
                    self.wake()
                if self._is_joined and self._is_awaited():
                    continue
            finally:
                self._is_passing = False
            await self._pause()
        self._requests.settle(self.failure)

    def _is_awaited(self) -> bool:
        """Return whether a checkpoint waits for this reader, or is due to be started by it."""
        if self._state is None:
            return False
        return self._name in self._state.checkpoint.awaited or self._keeper.checkpoint_due(self._state) is not None

    def _store_due_s(self) -> float:
        """Return when changed positions are due to be stored, on the loop's clock; infinite: none have changed."""
        if self._is_quiet:
            return float("inf")
        reader_count = 1 if self._state is None else len(self._state.readers)
        return self._beaten_s + store_interval_s(self._beat_interval_s, reader_count)

    def _exchange_due_s(self) -> float:
        """Return when segments are due to be exchanged for others that no reader holds, on the loop's clock."""
        return self._rotation.due_s() if self._is_joined else float("inf")

    def _has_news(self) -> bool:
        """Return whether the record lacks an update of this reader; check again after an interval."""
        self._beaten_s = asyncio.get_running_loop().time()
        me = None if self._state is None else self._state.readers.get(self._name)
        if me is None:
            return True
        told = {segment: end for segment, end in self._hands.handed_out().items() if segment in me.segments}
        has_news = told != me.handed_out or any(
            segment in me.segments and me.segments[segment] != position
            for segment, position in self.positions(is_leaving=False).items()
        )
        self._is_quiet = not has_news and not self._hands.has_chunk()
        return has_news

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout_at(min(self._store_due_s(), self._exchange_due_s())):
                await self._wake.wait()
        except TimeoutError:
            pass  # An interval elapsed.

    def _note(self, error: PenstockError) -> None:
        now_s = asyncio.get_running_loop().time()
        is_passing = error.is_retriable or isinstance(error, OutcomeUnknownError)
        if isinstance(error, NoSuchReaderGroupError):
            self._fail(error)
        elif not is_passing or now_s - self._working_s >= self._settings.retry_time_max_s:
            self._trouble = error
            self._hands.notice()
        _log.warning("reader %s cannot store its positions in group %s: %s", self._name, self._record.name, error)

    def _fail(self, error: PenstockError) -> None:
        self.failure = error
        self._watch.discard(self)
        self._drop_all()
        self._requests.settle(error)
        self._hands.notice()

    async def _poll_record(self, found: tuple[GroupState, Mapping[str, Sign]] | None, *, is_beat: bool) -> None:
        """Update this reader's part of the current record, and follow the record.

        `found`: the record as polled just now, and dead readers. None: the record may have changed.
        """
        now_s = asyncio.get_running_loop().time()
        if self._aside_until_s is not None:
            if now_s < self._aside_until_s or self._hands.idle_s():
                return
            self._aside_until_s = None
        ended = [
            source for source in self.open_segments.values() if source.is_at_end and self._hands.is_settled(source)
        ]
        # Any longer, and this reader would be declared dead.
        ends = await self._ends.find(self._state, ended, self._is_held, self._beat_interval_s)
        polled, dead = found or (self._state, {})
        change = self._change(ends, dead, is_beat=is_beat)
        # Another reader of this client may have freed segments in the same write of the record.
        if self._is_joined and polled is not None and polled is self._state and not change.is_needed_in(polled):
            state = polled
        else:
            state = await self._record.update(change.apply, max_age_s=self._watch.shared_age_s if found else 0.0)
        for name in dead:
            _log.warning(
                "reader %s declared reader %s dead: no heartbeat for %g s (reader_timeout_s)",
                self._name, name, self._reader_timeout_s,
            )  # fmt: skip
        self._working_s = asyncio.get_running_loop().time()
        if is_beat:
            self._beaten_s = self._working_s
            self._watch.shown(self)
        self._trouble = self._ends.lost
        self._note_stored(state, change.given)
        self._follow(state)
        if self.failure is None and len(state.readers) > 1:
            await note_recovered(self._cluster.segments, self.open_segments.values(), self._beat_interval_s)
            if self._is_in_the_way(state):
                await self._step_aside()

    def _change(self, ends: Ends, dead: Mapping[str, Sign], *, is_beat: bool) -> ReaderChange:
        """Return what this reader has to change in the record. `ends`: of segments; `dead`: readers to remove."""
        leaving = {
            segment: HeldSegment(offset, source.turn)
            for segment, source in self.open_segments.items()
            if source.is_leaving and segment not in ends and self._hands.is_settled(source)
            and (offset := self._hands.position_of(source, is_leaving=True)) is not None
        }  # fmt: skip
        exchanged, wanted = self._exchanged()
        return ReaderChange(
            self._name, self._incarnation, self._settings.reader_segment_count_max,
            is_joined=self._is_joined, is_beat=is_beat,
            dead=dead, ends=ends, leaving=leaving, exchanged=exchanged, wanted=wanted,
            positions=self.positions(is_leaving=False) if is_beat and self._is_joined else {},
            handed_out=self._hands.handed_out(),
            # It starts with the positions of this reader, so a single reader writes nothing more.
            checkpoint=self._keeper.checkpoint_due(self._state) if self._state is not None and is_beat else None,
        )  # fmt: skip

    def _is_held(self, source: SegmentEvents) -> bool:
        return self.open_segments.get(source.segment) is source

    def _exchanged(self) -> tuple[dict[str, HeldSegment], Sequence[str]]:
        """Return the positions of segments to release in exchange for others that no reader holds, and those others."""
        if asyncio.get_running_loop().time() < self._exchange_due_s():
            return {}, ()
        positions = self.positions(is_leaving=True)

        def may_go(source: SegmentEvents) -> bool:
            return source.segment in positions and self._hands.is_settled(source)

        going, wanted = self._rotation.choose(self.open_segments.values(), may_go)
        return {source.segment: positions[source.segment] for source in going}, wanted

    def _note_stored(self, state: GroupState, given: Mapping[str, HeldSegment]) -> None:
        """Note which positions of the open segments the record has. `given`: positions of segments released here."""
        me = state.readers.get(self._name)
        if me is None or me.incarnation != self._incarnation:
            return
        is_reset = self._state is not None and self._state.reset_id != state.reset_id
        for segment, source in self.open_segments.items():
            held = me.segments.get(segment)
            if held is not None and held.turn == source.turn:
                source.stored.offset = held.offset
            elif source.stream not in state.streams:
                source.stored.offset = source.offset  # The group no longer has a position there.
            elif segment in given and not is_reset:
                # This reader was a member throughout, so no other client took the segment away.
                source.stored.offset = given[segment].offset

    def _follow(self, state: GroupState) -> None:
        """Hold exactly the segments that the record assigns. Never waits, so that no other step can interleave."""
        me = state.readers.get(self._name)
        is_known = state is self._state
        self._state = state
        self._observe(state)
        if me is None or me.incarnation != self._incarnation:
            if me is not None:
                self._fail(
                    StreamError(
                        f"reader {self._name} of group {self._record.name} was started again elsewhere; this reader "
                        "is closed"
                    )
                )
            self._drop_all()
            if me is None and self._is_joined:
                self._is_joined = False
                _log.warning("reader %s was removed from its group, probably declared dead; joining again", self._name)
                self.wake()
            return
        self._is_joined = True
        came, went = [], []
        for segment, source in list(self.open_segments.items()):
            held = me.segments.get(segment)
            if held is None or held.turn != source.turn:
                self._drop(source)
                went.append(segment)
        for segment, held in me.segments.items():
            if segment not in self.open_segments:
                self.open_segments[segment] = SegmentEvents(
                    self._cluster.segments, segment, held, self._settings, self._hands.enqueue, self._read_ahead,
                    state.redeliveries.get(segment), state.ends.get(segment),
                )  # fmt: skip
                came.append(segment)
        if not is_known:
            self._surplus = frozenset(rgs.surplus(state, self._name))
            self.is_finished = state.is_finished
        surplus = self._surplus
        for segment, source in self.open_segments.items():
            if segment in surplus and not source.is_leaving:
                source.is_leaving = True
                self.wake()
            elif segment not in surplus and source.is_leaving and not source.is_at_end:
                source.is_leaving = False
                self._hands.enqueue(source)
        self._rotation.follow(state, len(me.segments))
        self._report_end()
        if came or went or surplus or self.is_finished:
            self._hands.notice()
        if (came or went) and self._on_change is not None:
            self._on_change(came, went)

    def _report_end(self) -> None:
        """Log, once, that the group has read everything."""
        if self.is_finished and not self._is_end_reported:
            group = f"{self._record.scope}/{self._record.name}"
            _log.info("reader %s: group %s is finished: it read every stream to its end", self._name, group)
        self._is_end_reported = self.is_finished

    # -- holding up others, and being dead --------------------------------------------------------------------

    def _is_in_the_way(self, state: GroupState) -> bool:
        """Return whether other readers should have the segments: the application does not read, or cannot read them."""
        if not self.open_segments:
            return False
        if self._hands.idle_s() > state.processing_time_max_s:
            _log.warning(
                "reader %s: the application has not called for more than %g s (processing_time_max_s); other readers "
                "take its segments",
                self._name, state.processing_time_max_s,
            )  # fmt: skip
            return True
        failing = failing_longer_than(state.reader_timeout_s, self.open_segments.values())
        if failing:
            self._aside_until_s = asyncio.get_running_loop().time() + state.reader_timeout_s
            _log.warning("reader %s cannot read %s; leaving it to other readers", self._name, ", ".join(failing))
        return bool(failing)

    async def _step_aside(self) -> None:
        """Leave the group until the application reads again: the events it has are delivered again elsewhere."""
        handed_out = self._hands.handed_out()
        positions = self.positions(is_leaving=False)
        stored = {segment: source.stored for segment, source in self.open_segments.items()}
        self._drop_all()
        self._is_joined = False
        self._aside_until_s = max(self._aside_until_s or 0.0, asyncio.get_running_loop().time())
        if await self.leave(positions, handed_out):
            for segment, position in positions.items():
                stored[segment].offset = position.offset

    def _observe(self, state: GroupState) -> None:
        """Apply the intervals of the group."""
        self._watch.follow(state)
        self._reader_timeout_s = state.reader_timeout_s
        self._beat_interval_s = beat_interval_s(self._settings, state)
        if self._settings.position_interval_s > self._beat_interval_s and not self._is_interval_reported:
            self._is_interval_reported = True
            _log.warning(
                "reader %s: position_interval_s is %g s, too long for group %s, which expels a reader after %g s "
                "(reader_timeout_s); positions are stored every %.3g s",
                self._name, self._settings.position_interval_s, self._record.name, state.reader_timeout_s,
                self._beat_interval_s,
            )  # fmt: skip

    def _drop(self, source: SegmentEvents) -> None:
        if self.open_segments.get(source.segment) is source:
            del self.open_segments[source.segment]
        source.stop()
        self._hands.revoke(source)

    def _drop_all(self) -> None:
        for source in list(self.open_segments.values()):
            self._drop(source)
