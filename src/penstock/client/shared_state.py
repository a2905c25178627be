"""`SharedState`: one value that several clients hold a copy of, and change in turn.

The state is a revisioned stream. Its entries are whole states, or updates that every client applies to its copy, in one
order. A change is made on condition that its client knows the latest revision: if not, it fetches and decides anew.
What is stored is what Pravega's Java client stores (`StateSynchronizer`), if both use the same serializers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.deadline import Deadline, in_turn, within
from penstock.client.life_cycle import LifeCycle
from penstock.client.revisioned_stream import Revision, RevisionedStream
from penstock.client.serializers import Serializer
from penstock.client.state_entries import StateEntry
from penstock.client.state_watch import Growth, StateChange, StateChanges
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
    """See the module. Made by `Client.shared_state`. Calls at the same time take their turns.

    `value` is this client's copy: of the newest state when something was fetched or written here last. States are never
    changed in place: `apply`, and the steps that methods take, return new ones.

    A change is made once though replies be lost. `OutcomeUnknownError` means that the time was up before it was known;
    `fetch` shows what became of it.
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
            raise InvalidArgumentError("a shared state has updates, and a function to apply them, or neither")
        super().__init__(f"shared state {stream.name}", close_timeout_s=cluster.settings.close_timeout_s)
        self._cluster = cluster
        self._stream = stream
        self._state = initial
        self._states = states
        self._updates = updates
        self._apply = apply
        #: None until there is a state in the stream.
        self._revision: Revision | None = None
        self._turn = asyncio.Lock()
        self._growth = Growth(cluster.segments, stream._segment)

    @classmethod
    async def _open(
        cls,
        cluster: Cluster,
        stream: RevisionedStream[StateEntry],
        initial: State,
        states: Serializer[State],
        updates: Serializer[Update] | None,
        apply: Callable[[State, Update], State] | None,
        owner: LifeCycle,
    ) -> SharedState[State, Update]:
        """Fetch the newest state; write `initial` if there is none."""
        opened = cls(cluster, stream, initial, states, updates, apply)
        opened._open_life(owner)
        try:
            with opened._call("open"):
                await opened._begin(initial)
        except BaseException:
            await opened.abandon()
            raise
        return opened

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
        """Where in the stream `value` is."""
        assert self._revision is not None, "set before it is handed out"
        return self._revision

    async def __aenter__(self) -> Self:
        return self

    async def fetch(self) -> State:
        """Take in what others have written, and return the newest state."""
        self._check_open()
        with self._call("fetch"):
            async with in_turn(self._turn):
                await self._fetch()
        return self._state

    def watch(self, *, from_now: bool = False) -> AsyncIterator[StateChange[State]]:
        """Iterate over the states that come, each once; the one that is there is the first, unless `from_now`.

        It waits for the stream to grow, and takes in what others have written as `fetch` does, so `value` follows.
        Whoever is slow is told the newest state: what was in between may be left out, what lasts is not. Several
        may be under way at once. A state that is as before is told too if somebody has written it.

        It may be cancelled anywhere, and after an error, it may be asked again: nothing is lost. It ends when the
        stream is sealed. Raises `ClosedError` when this is closed meanwhile, and what `fetch` raises.
        """
        self._check_open()
        return StateChanges(self._newest, self._growth, self._check_open, is_from_now=from_now)

    async def replace(self, step: Callable[[State], State]) -> State:
        """Replace the state by what `step` makes of the newest one, with no other change between; return it.

        `step` may be called more than once. The whole state is written: fit for small ones.

        Raises `MetadataConflictError` after `shared_state_update_count_max` lost races, `OutcomeUnknownError`.
        """

        def make(state: State) -> tuple[StateEntry, State]:
            new = step(state)
            return StateEntry(self._states.serialize(new)), new

        return await self._write("replace the state", make)

    async def update(self, make: Callable[[State], Sequence[Update]]) -> State:
        """Write the updates that `make` returns for the newest state, with no other change between; return the next.

        All of them or none are written. `make` may be called more than once; it returns none if nothing is to be done.

        Raises `MetadataConflictError` after `shared_state_update_count_max` lost races, `OutcomeUnknownError`.
        """
        return await self._write("update", lambda state: self._entry(make(state), state))

    async def compare_and_set(self, revision: Revision, state: State) -> bool:
        """Replace the state if `revision` is that of the newest one; return whether it was. Fetches if not."""
        self._check_open()
        with self._call("compare and set"):
            async with in_turn(self._turn):
                if self.revision != revision:
                    await self._fetch()
                if self.revision != revision:
                    return False
                return await self._try(StateEntry(self._states.serialize(state)), state)

    async def post(self, *updates: Update) -> None:
        """Write updates whatever others do meanwhile; `value` has them once they are fetched.

        For updates that are right in every state, as "add 1". Stored once. Raises `OutcomeUnknownError`.
        """
        self._check_open()
        with self._call("post"):
            await self._stream.write(self._encoded(updates))

    async def compact(self) -> None:
        """Write the newest state whole, for clients that begin later, and forget what was before the last time.

        Whoever fetched last before that begins with the whole state too. Do so when many updates were written.
        """
        with self._call("compact"):
            before: list[Revision] = []

            def make(state: State) -> tuple[StateEntry, State]:
                before[:] = [self.revision]
                return StateEntry(self._states.serialize(state)), state

            await self._write("compact", make)
            # Where the whole state begins: an entry's revision is behind it.
            mark = Revision(before[0].segment, before[0].offset)
            old = await self._stream.mark()
            if old is None or old < mark:
                try:
                    await self._stream.set_mark(old, mark)
                except OutcomeUnknownError:
                    pass  # Set or not: what is before the old one is needed by nobody either way.
            if old is not None:
                await self._stream.truncate(old)

    # -- inside -------------------------------------------------------------------------------------------------

    def _call(self, what: str) -> AbstractContextManager[Deadline]:
        return within(f"{what} of {self._what}", self._cluster.settings.retry_time_max_s, "retry_time_max_s")

    async def _newest(self) -> StateChange[State]:
        await self.fetch()
        # Not what `fetch` returned: others may have their turn before its caller goes on.
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
                raise StreamError(f"stream {self.name} is no shared state: it begins with no state")

    async def _write(self, what: str, make: Callable[[State], tuple[StateEntry, State] | None]) -> State:
        self._check_open()
        attempt_count_max = self._cluster.settings.shared_state_update_count_max
        with self._call(what):
            async with in_turn(self._turn):
                for _ in range(attempt_count_max):
                    made = make(self._state)
                    if made is None:
                        # Nothing is to be done if this is the newest state; another may need it.
                        known = self._revision
                        await self._fetch()
                        if self._revision == known:
                            return self._state
                    elif await self._try(*made):
                        return self._state
        raise MetadataConflictError(
            f"{self._what}: {attempt_count_max} attempts in a row to {what} lost against others "
            "(shared_state_update_count_max)"
        )

    async def _try(self, entry: StateEntry, state: State) -> bool:
        """Write an entry that makes `state` of the copy, if that is the newest state; else fetch."""
        # The next entry begins where this one ends, whichever of its updates was the last.
        written = await self._stream.write_if(Revision(self.revision.segment, self.revision.offset), entry)
        if written is None:
            await self._fetch()
            return False
        self._state = state
        self._revision = Revision(written.segment, written.offset, max(len(entry.updates) - 1, 0))
        return True

    async def _fetch(self) -> None:
        start, is_anew = self._revision, False
        if start is None:
            start, is_anew = await self._stream.mark() or await self._stream.oldest(), True
        while True:
            try:
                await self._read(start, is_anew=is_anew)
                return
            except SegmentTruncatedError:
                # Others have compacted since: the whole state is behind the mark.
                mark = await self._stream.mark()
                if mark is None or mark.offset <= start.offset:
                    raise
                start, is_anew = mark, True

    async def _read(self, start: Revision, *, is_anew: bool) -> None:
        async for revision, entry in self._stream.read(Revision(start.segment, start.offset)):
            if entry.state is not None:
                self._state, self._revision = self._states.deserialize(entry.state), revision
                is_anew = False
                continue
            if is_anew:
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
            raise InvalidArgumentError(f"{self._what}: there is no update to be written")
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
        return InvalidArgumentError(f"{self._what} was opened for whole states alone: give it updates= and apply=")
