"""`GroupRecord`: the stored form of a reader group's shared state. For its meaning see `reader_group_state`.

One record in a table segment of its own, changed by compare-and-set. Its revision is also stored in a separate key, so
that a poll of an unchanged record reads a few bytes. A client's readers in a group share the last read of the record,
and their concurrent changes are combined into one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager

import msgspec

from penstock.client.common.deadline import Deadline, within
from penstock.client.common.retry import Backoff
from penstock.client.groups.group_heartbeats import GroupHeartbeats, heartbeat_key
from penstock.client.groups.group_packing import pack_record
from penstock.client.groups.group_state import GroupState
from penstock.client.groups.stored_group import RECORD_KEY, part_key, read_group
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import (
    LaterVersionError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentExistsError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.names import STATE_STREAM_PREFIX, reader_group_table
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY, TableEntry, TableUpdate
from penstock.runtime.pacing import GrowingDelay

#: Key of the record's revision, as a decimal number.
_REVISION_KEY = b"revision"
#: The longest pause after the first lost race; it doubles after each further one.
_UPDATE_PAUSE_MAX_S = 0.02
_UPDATE_PAUSE_S_LIMIT = 1.0
#: After this time without a reply, or after a multiple of the last reply's time, a change no longer waits for the
#: request of another one: both are then under way, and one of them finds that the record has changed.
_TURN_WAIT_S = 1.0
_TURN_WAIT_REPLIES = 3
#: One request of a poll may take this share of the group's `reader_timeout_s`, or this many seconds if that is more.
_ATTEMPT_SHARE = 0.25
_ATTEMPT_S_MIN = 1.0
#: Requests are no longer repeated within an attempt when less is left of it, in seconds.
_ATTEMPT_REST_S = 0.01

_Step = Callable[[GroupState], GroupState]


class _Change:
    """A pending step, and the record after it once it is made."""

    __slots__ = ("oldest_s", "state", "step")

    def __init__(self, step: _Step, oldest_s: float) -> None:
        self.step = step
        # For a step that changes nothing: the earliest acceptable time of the record's last verification.
        self.oldest_s = oldest_s
        self.state: GroupState | None = None

    def is_made(self) -> bool:
        """Return whether the record has it."""
        return self.state is not None


class GroupRecord:
    """The record of the group `name` in `scope`, in the life of that name that has the id `group_id`.

    Attributes:
        phase: 0 to 1: the point in their intervals at which this client's readers do their periodic work.
        known: the record as last read or written, None: not yet.
    """

    def __init__(self, cluster: Cluster, scope: str, name: str, group_id: str) -> None:
        self.scope = scope
        self.name = name
        self.group_id = group_id
        self.phase: float = cluster.rng.random()
        self.known: GroupState | None = None
        # Of the table entry of `known`.
        self._version = VERSION_ABSENT
        # When the request was sent whose reply verified `known`, on the loop's clock.
        self._verified_s = float("-inf")
        self._table = reader_group_table(scope, group_id)
        # The table belongs to the group, which is known by the name of its stream.
        cluster.segments.tokens.alias(self._table, f"{STATE_STREAM_PREFIX}{name}")
        self._cluster = cluster
        self._heartbeats = GroupHeartbeats(cluster, self._table)
        self._changes: list[_Change] = []
        self._turn = asyncio.Lock()
        # Of the last change of the record that was answered: when its reply came, and how long it took.
        self._replied_s = float("-inf")
        self._reply_s = 0.0
        self._poll_turn = asyncio.Lock()
        self._attempt_s = float("inf")  # Until the first poll.

    async def find_or_create(self, make: Callable[[], Awaitable[GroupState]]) -> GroupState:
        """Return the record, created from the result of `make` if missing, which may be called more than once."""
        segments, settings = self._cluster.segments, self._cluster.settings
        backoff = Backoff(settings, self._cluster.rng)
        with within(f"join reader group {self.scope}/{self.name}", settings.retry_time_max_s, "retry_time_max_s"):
            while True:
                try:
                    try:
                        await segments.create_table(self._table)
                    except SegmentExistsError:
                        pass  # The group exists, or another client is creating it right now.
                    (entry,) = await segments.table_get(self._table, [RECORD_KEY])
                    if entry is not None:
                        return await self.state()
                    state = msgspec.structs.replace(await make(), revision=1)
                    await self._put(state, VERSION_ABSENT)
                    return state
                except (OutcomeUnknownError, TableKeyVersionError) as error:
                    # Each step may be repeated: read the current state and continue from it.
                    await backoff.pause(error)

    async def delete(self) -> None:
        """Delete it, if it exists."""
        try:
            await self._cluster.segments.delete_table(self._table)
        except NoSuchSegmentError:
            return

    async def state(self) -> GroupState:
        """Return the current record. Raises `NoSuchReaderGroupError` if the group was deleted."""
        return await self._verify(())

    async def poll(self, readers: Collection[str], max_age_s: float) -> tuple[GroupState, Mapping[str, bytes]]:
        """Return the record, and the heartbeats of these readers: nothing older than `max_age_s`.

        Concurrent polls of one client share their requests. Raises as `state`.
        """
        with self._bounded("poll") as deadline:
            try:
                async with asyncio.timeout_at(deadline.at_s):
                    await self._poll_turn.acquire()
            except TimeoutError:
                raise self._unanswered(deadline) from None
            try:
                oldest_s = asyncio.get_running_loop().time() - max_age_s
                unread = self._heartbeats.stale(readers, oldest_s)
                state = self.known
                if state is None or unread or self._verified_s < oldest_s:
                    state = await self._verify_in_attempts(unread, deadline)
            finally:
                self._poll_turn.release()
        self._attempt_s = max(state.reader_timeout_s * _ATTEMPT_SHARE, _ATTEMPT_S_MIN)
        self._heartbeats.forget_absent(state.readers, readers)
        return state, self._heartbeats.signs(readers)

    async def update(self, step: _Step, *, max_age_s: float = 0.0) -> GroupState:
        """Apply `step`, which must be idempotent, to the record; return the record after it.

        `max_age_s`: for a step that changes nothing, the maximum age of the cached record in seconds.

        Raises `MetadataConflictError` after `reader_group_update_count_max` lost races, or if the time ends during
        them; `OutcomeUnknownError` if the store did not answer in `retry_time_max_s`.
        """
        change = _Change(step, asyncio.get_running_loop().time() - max_age_s)
        self._changes.append(change)
        try:
            with self._bounded("update") as deadline:
                turn = await self._take_turn(change, deadline)
                if turn is not None:
                    try:
                        await self._make_changes(change, deadline)
                    finally:
                        turn.release()
        finally:
            if change in self._changes:
                self._changes.remove(change)
        assert change.state is not None, "made by the loop above, or an error was raised"
        return change.state

    async def show_alive(self, readers: Mapping[str, str], limit_s: float) -> None:
        """Write heartbeats of readers (name -> incarnation) without a change of the record, within `limit_s`."""
        try:
            await self._heartbeats.show(readers, limit_s)
        except NoSuchSegmentError as error:
            raise self._gone() from error

    async def forget_heartbeat(self, reader: str) -> None:
        """Delete the heartbeat of a reader that has left."""
        await self._heartbeats.forget([reader])

    async def sweep_heartbeats(self, state: GroupState) -> None:
        """Delete the heartbeats of readers that are no longer in the group."""
        try:
            await self._heartbeats.sweep(state.readers)
        except NoSuchSegmentError as error:
            raise self._gone() from error

    def _bounded(self, what: str) -> AbstractContextManager[Deadline]:
        limit_s = self._cluster.settings.retry_time_max_s
        return within(f"{what} reader group {self.scope}/{self.name}", limit_s, "retry_time_max_s")

    def _unanswered(self, deadline: Deadline) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{deadline.what}: no answer in the {deadline.limit_s:g} s that it may take ({deadline.limit_name})"
        )

    async def _take_turn(self, change: _Change, deadline: Deadline) -> asyncio.Lock | None:
        """Return the lock of those that write the record, acquired; None: the change was made meanwhile.

        A request that hangs does not keep the lock for long.
        """
        loop = asyncio.get_running_loop()
        while True:
            turn, begun_s = self._turn, loop.time()
            try:
                async with asyncio.timeout(deadline.bounded_s(max(_TURN_WAIT_S, _TURN_WAIT_REPLIES * self._reply_s))):
                    await turn.acquire()
            except TimeoutError:
                if change.is_made():
                    return None
                if not deadline.left_s():
                    raise self._unanswered(deadline) from None
                # Its holder waits for a reply, and does not only lose races.
                if turn is self._turn and self._replied_s < begun_s:
                    self._turn = asyncio.Lock()
                continue
            if turn is self._turn:
                return turn
            # Its holder was overtaken, so this is no longer the turn that others wait for.
            turn.release()

    async def _make_changes(self, mine: _Change, deadline: Deadline) -> None:
        """Make all pending changes, `mine` among them, in one write of the record."""
        attempt_count_max = self._cluster.settings.reader_group_update_count_max
        pause_s_max = GrowingDelay(_UPDATE_PAUSE_MAX_S, _UPDATE_PAUSE_S_LIMIT)
        for _ in range(attempt_count_max):
            if mine.is_made():
                return
            before = self.known or await self._verify(())
            version = self._version
            changes, changed = list(self._changes), before
            for change in changes:
                changed = change.step(changed)
            if changed is before or changed == before:
                oldest_s = max((change.oldest_s for change in changes), default=float("-inf"))
                # The cached record is an earlier one; an equal record may have been read since.
                if self._verified_s < oldest_s and await self._verify(()) != before:
                    continue
                changed = before
            else:
                changed = msgspec.structs.replace(changed, revision=before.revision + 1)
                sent_s = asyncio.get_running_loop().time()
                try:
                    await self._put(changed, version)
                    self._note_reply(sent_s)
                except (TableKeyVersionError, TableKeyMissingError, OutcomeUnknownError) as error:
                    if not isinstance(error, OutcomeUnknownError):
                        self._note_reply(sent_s)
                    if mine.is_made():
                        return  # Made by a change that overtook this one.
                    # A lost race or a lost reply. Repeating the steps is harmless. The pause grows with contention.
                    await self._pause(pause_s_max.take() * self._cluster.rng.random(), deadline, error)
                    continue
                except NoSuchSegmentError as error:
                    raise self._gone() from error
            for change in changes:
                change.state = changed
                if change in self._changes:
                    self._changes.remove(change)
            return
        raise MetadataConflictError(
            f"reader group {self.scope}/{self.name}: {attempt_count_max} updates in a row conflicted with other readers"
        )

    def _note_reply(self, sent_s: float) -> None:
        self._replied_s = asyncio.get_running_loop().time()
        self._reply_s = self._replied_s - sent_s

    async def _pause(self, pause_s: float, deadline: Deadline, error: PenstockError) -> None:
        """Wait before the next attempt. Raises if there is no time for one: it would fail, whatever the store does."""
        if deadline.left_s() > pause_s:
            await asyncio.sleep(pause_s)
        elif isinstance(error, OutcomeUnknownError):
            raise self._unanswered(deadline) from error
        else:
            raise MetadataConflictError(
                f"{deadline.what}: other readers changed the record in all of the {deadline.limit_s:g} s that it may "
                f"take ({deadline.limit_name})"
            ) from error

    async def _put(self, state: GroupState, version: int) -> None:
        parts = pack_record(state.encode())
        updates = [
            TableUpdate(RECORD_KEY, parts[0], version),
            TableUpdate(_REVISION_KEY, _revision_value(state), VERSION_ANY),
        ]
        # Conditional on the first part only: all parts are written together, or none.
        updates += [TableUpdate(part_key(number), part, VERSION_ANY) for number, part in enumerate(parts[1:], 1)]
        asked_s = asyncio.get_running_loop().time()
        # Nothing is known until there is a reply.
        self._forget()
        versions = await self._cluster.segments.table_put(self._table, updates)
        # Another change may have overtaken this one, with a later revision.
        if self.known is None or self.known.revision < state.revision:
            self.known, self._version = state, versions[0]
        self._verified_s = max(self._verified_s, asked_s)

    async def _verify_in_attempts(self, readers: Collection[str], deadline: Deadline) -> GroupState:
        """Return as `_verify`; a request that hangs is given up for another one, so that dead readers are found."""
        while True:
            with within(f"poll reader group {self.scope}/{self.name}", self._attempt_s, "reader_timeout_s") as attempt:
                try:
                    return await self._verify(readers)
                except OutcomeUnknownError:
                    if attempt is deadline or attempt.left_s() > _ATTEMPT_REST_S:
                        raise

    def _forget(self) -> None:
        self.known = None

    async def _verify(self, readers: Collection[str]) -> GroupState:
        """Return the current record, read only if it has changed; read the heartbeats of `readers` as well."""
        names = list(readers)
        asked_s = asyncio.get_running_loop().time()
        if names or self.known is not None:
            keys = [_REVISION_KEY, *map(heartbeat_key, names)]
            try:
                revision, *entries = await self._cluster.segments.table_get(self._table, keys)
            except NoSuchSegmentError as error:
                raise self._gone() from error
            self._heartbeats.take(names, entries, asked_s)
            known = self.known
            if known is not None and _is_revision(revision, known):
                self._verified_s = max(self._verified_s, asked_s)
                return known
        asked_s = asyncio.get_running_loop().time()
        state, version = await self._read()
        # A change made meanwhile is newer than the record just read.
        if self.known is None or state.revision > self.known.revision or not state.revision:
            self.known, self._version = state, version
        self._verified_s = max(self._verified_s, asked_s)
        return self.known

    async def _read(self) -> tuple[GroupState, int]:
        for _ in range(self._cluster.settings.reader_group_update_count_max):
            found = await self._read_once()
            if found is not None:
                return found
        raise MetadataConflictError(f"reader group {self.scope}/{self.name}: the record changes faster than it is read")

    async def _read_once(self) -> tuple[GroupState, int] | None:
        """Return the record and its version; None if it changed while its parts were read."""
        try:
            return await read_group(self._cluster.segments, self._table)
        except NoSuchSegmentError as error:
            raise self._gone() from error
        except LaterVersionError as error:
            raise LaterVersionError(
                f"the state of reader group {self.scope}/{self.name}",
                found=error.found,
                known=error.known,
                oldest=error.oldest,
                what=error.what,
            ) from None

    def _gone(self) -> NoSuchReaderGroupError:
        return NoSuchReaderGroupError(f"reader group {self.scope}/{self.name} no longer exists")


def _revision_value(state: GroupState) -> bytes:
    return b"%d" % state.revision


def _is_revision(entry: TableEntry | None, state: GroupState) -> bool:
    # Releases without revisions wrote neither of them.
    return entry is not None and state.revision > 0 and entry.value == _revision_value(state)
