"""`SharedState`: one value that several clients replicate and change in turn.

The state is a revisioned stream. Its entries are whole states, or updates that every client applies to its copy in the
same order. A change requires that its client has the latest revision; otherwise it fetches and decides again. The
stored format is that of Pravega's Java client (`StateSynchronizer`), if both use the same serializers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.common.deadline import Deadline, in_turn, within
from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.serializers import Serializer
from penstock.client.state.revisioned_stream import Revision, RevisionedStream, segment_of
from penstock.client.state.state_entries import StateEntry
from penstock.client.state.state_watch import Growth, StateChange, StateChanges
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    OutcomeUnknownError,
    SegmentTruncatedError,
    StreamError,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Self

State = TypeVar("State")
Update = TypeVar("Update")


class SharedState(LifeCycle, Generic[State, Update]):
    """See the module. Made by `Client.shared_state`. Concurrent calls are serialized.

    `value` is this client's copy: the newest state as of the last fetch or write here. States are never changed in
    place: `apply`, and the steps that methods take, return new ones.

    A change is made exactly once, even if replies are lost. `OutcomeUnknownError` means that the time expired before
    the outcome was known; `fetch` shows the outcome.
    """

    def __init__(
        self,
        cluster: Cluster,
        stream: RevisionedStream[StateEntry],
        initial: State,
        states: Serializer[State],
        updates: Serializer[Update] | None,
        apply: Callable[[State, Update], State] | None,
    ) -> None:
        if (updates is None) != (apply is None):
            raise InvalidArgumentError("give both updates= and apply=, or neither")
        super().__init__(f"shared state {stream.name}", close_timeout_s=cluster.settings.close_timeout_s)
        self._cluster = cluster
        self._stream = stream
        self._state = initial
        self._states = states
        self._updates = updates
        self._apply = apply
        #: None until the stream has a state.
        self._revision: Revision | None = None
        self._turn = asyncio.Lock()
        self._growth = Growth(cluster.segments, segment_of(stream))

    @property
    def name(self) -> str:
        """The stream as ``scope/stream``."""
        return self._stream.name

    @property
    def value(self) -> State:
        """This client's copy of the state."""
        return self._state

    @property
    def revision(self) -> Revision:
        """The place of `value` in the stream."""
        assert self._revision is not None, "set before it is handed out"
        return self._revision

    async def __aenter__(self) -> Self:
        return self

    async def fetch(self) -> State:
        """Fetch the entries of other clients, and return the newest state."""
        self._check_open()
        with self._call("fetch"):
            async with in_turn(self._turn):
                await self._fetch()
        return self._state

    def watch(self, *, from_now: bool = False) -> AsyncIterator[StateChange[State]]:
        """Iterate over new states, each once; the current state comes first, unless `from_now`.

        It waits for the stream to grow, and fetches the entries of other clients as `fetch` does, so `value` follows. A
        slow consumer gets the newest state: intermediate states may be missed, the last one is not. Several iterations
        may be active at once. A state equal to the previous one is returned too if it was written.

        It may be cancelled anywhere, and continued after an error: nothing is lost. It ends when the stream is sealed.
        Raises `ClosedError` if this is closed meanwhile, and the errors of `fetch`.
        """
        self._check_open()
        return StateChanges(self._newest, self._growth, self._check_open, is_from_now=from_now)

    async def replace(self, step: Callable[[State], State]) -> State:
        """Atomically replace the newest state by the result of `step` for it; return the new state.

        `step` may be called more than once. The whole state is written: suitable for small states.

        Raises `MetadataConflictError` after `shared_state_update_count_max` lost races, `OutcomeUnknownError`.
        """

        def make(state: State) -> tuple[StateEntry, State]:
            new = step(state)
            return StateEntry(self._states.serialize(new)), new

        return await self._write("replace the state", make)

    async def update(self, make: Callable[[State], Sequence[Update]]) -> State:
        """Atomically write the updates that `make` returns for the newest state; return the next state.

        All of them or none are written. `make` may be called more than once; it returns none if no update is needed.

        Raises `MetadataConflictError` after `shared_state_update_count_max` lost races, `OutcomeUnknownError`.
        """
        return await self._write("update", lambda state: self._entry(make(state), state))

    async def compare_and_set(self, revision: Revision, state: State) -> bool:
        """Replace the state if `revision` is that of the newest one; return whether it was. Otherwise fetch."""
        self._check_open()
        with self._call("compare and set"):
            async with in_turn(self._turn):
                if self.revision != revision:
                    await self._fetch()
                if self.revision != revision:
                    return False
                return await self._try(StateEntry(self._states.serialize(state)), state)

    async def post(self, *updates: Update) -> None:
        """Write updates unconditionally; `value` contains them after the next fetch.

        For updates that are valid in every state, such as "add 1". Stored once. Raises `OutcomeUnknownError`.
        """
        self._check_open()
        with self._call("post"):
            await self._stream.write(self._encoded(updates))

    async def compact(self) -> None:
        """Write the newest state whole, for clients that start later, and delete the entries before the previous one.

        A client whose last fetch is older starts from the whole state too. Call this after many updates.
        """
        with self._call("compact"):
            before: list[Revision] = []

            def make(state: State) -> tuple[StateEntry, State]:
                before[:] = [self.revision]
                return StateEntry(self._states.serialize(state)), state

            await self._write("compact", make)
            # The start of the whole state: an entry's revision is after it.
            mark = Revision(before[0].segment, before[0].offset)
            old = await self._stream.mark()
            if old is None or old < mark:
                try:
                    await self._stream.set_mark(old, mark)
                except OutcomeUnknownError:
                    pass  # Set or not: the entries before the old mark are no longer needed in either case.
            if old is not None:
                await self._stream.truncate(old)

    # -- inside -------------------------------------------------------------------------------------------------

    def _call(self, what: str) -> AbstractContextManager[Deadline]:
        return within(f"{what} of {self._what}", self._cluster.settings.retry_time_max_s, "retry_time_max_s")

    async def _newest(self) -> StateChange[State]:
        await self.fetch()
        # Not the result of `fetch`: other tasks may run before its caller resumes.
        return StateChange(self._state, self.revision)

    async def _release(self) -> None:
        self._growth.close()
        await self._stream.abandon()

    async def _begin(self, initial: State) -> None:
        entry = StateEntry(self._states.serialize(initial))
        await self._fetch()
        while self._revision is None:
            start = await self._stream.oldest()
            written = await self._stream.write_if(start, entry)
            if written is not None:
                self._state, self._revision = initial, written
                return
            await self._fetch()
            if self._revision is None and await self._stream.oldest() == start:
                raise StreamError(f"stream {self.name} is not a shared state: it does not start with a state")

    async def _write(self, what: str, make: Callable[[State], tuple[StateEntry, State] | None]) -> State:
        self._check_open()
        attempt_count_max = self._cluster.settings.shared_state_update_count_max
        with self._call(what):
            async with in_turn(self._turn):
                for _ in range(attempt_count_max):
                    made = make(self._state)
                    if made is None:
                        # No write is needed if this is the newest state; another state may need one.
                        known = self._revision
                        await self._fetch()
                        if self._revision == known:
                            return self._state
                    elif await self._try(*made):
                        return self._state
        raise MetadataConflictError(
            f"{self._what}: {attempt_count_max} attempts in a row to {what} conflicted with other writers "
            "(shared_state_update_count_max)"
        )

    async def _try(self, entry: StateEntry, state: State) -> bool:
        """Write an entry that makes `state` of the copy, if that is the newest state; else fetch."""
        # The next entry begins where this one ends, regardless of which of its updates was the last.
        written = await self._stream.write_if(Revision(self.revision.segment, self.revision.offset), entry)
        if written is None:
            await self._fetch()
            return False
        self._state = state
        self._revision = Revision(written.segment, written.offset, max(len(entry.updates) - 1, 0))
        return True

    async def _fetch(self) -> None:
        start, is_again = self._revision, False
        if start is None:
            start, is_again = await self._stream.mark() or await self._stream.oldest(), True
        while True:
            try:
                await self._read(start, is_again=is_again)
                return
            except SegmentTruncatedError:
                # Another client has compacted since: the whole state is after the mark.
                mark = await self._stream.mark()
                if mark is None or mark.offset <= start.offset:
                    raise
                start, is_again = mark, True

    async def _read(self, start: Revision, *, is_again: bool) -> None:
        async for revision, entry in self._stream.read(Revision(start.segment, start.offset)):
            if entry.state is not None:
                self._state, self._revision = self._states.deserialize(entry.state), revision
                is_again = False
                continue
            if is_again:
                raise StreamError(f"stream {self.name} holds updates at {start}, and no state before them")
            state = self._state
            for data in entry.updates:
                state = self._applied(state, self._update_of(data))
            self._state = state
            self._revision = Revision(revision.segment, revision.offset, max(len(entry.updates) - 1, 0))

    def _entry(self, updates: Sequence[Update], state: State) -> tuple[StateEntry, State] | None:
        if not updates:
            return None
        for update in updates:
            state = self._applied(state, update)
        return self._encoded(updates), state

    def _encoded(self, updates: Sequence[Update]) -> StateEntry:
        if self._updates is None:
            raise self._no_updates()
        if not updates:
            raise InvalidArgumentError(f"{self._what}: there is no update to write")
        return StateEntry(None, tuple(map(self._updates.serialize, updates)))

    def _update_of(self, data: bytes) -> Update:
        if self._updates is None:
            raise self._no_updates()
        return self._updates.deserialize(data)

    def _applied(self, state: State, update: Update) -> State:
        if self._apply is None:
            raise self._no_updates()
        return self._apply(state, update)

    def _no_updates(self) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._what} was opened without updates: open it with updates= and apply=")


async def open_shared_state(
    cluster: Cluster,
    stream: RevisionedStream[StateEntry],
    initial: State,
    states: Serializer[State],
    updates: Serializer[Update] | None,
    apply: Callable[[State, Update], State] | None,
    owner: LifeCycle,
) -> SharedState[State, Update]:
    """Fetch the newest state; write `initial` if there is none."""
    opened = SharedState(cluster, stream, initial, states, updates, apply)
    opened.open_life(owner)
    try:
        with opened._call("open"):
            await opened._begin(initial)
    except BaseException:
        await opened.abandon()
        raise
    return opened
