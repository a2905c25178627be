"""Users of key-value tables and of shared state: the client's answers must form one history per key.

Every change and every read is recorded in the history as a table call: a shared state is one key, whose version is the
number of its updates. Outages exceed the users' limits at times, and calls are cancelled at any await.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from functools import partial

from penstock.client.client import Client
from penstock.client.common.serializers import JsonSerializer, JsonValue
from penstock.client.state.shared_state import SharedState
from penstock.client.state.state_watch import StateChange
from penstock.client.tables.table_keys import Entry, TextKeys
from penstock.client.tables.tables import Table, TableChange
from penstock.model.errors import (
    MetadataConflictError,
    OutcomeUnknownError,
    PenstockError,
    TableConditionError,
)
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY
from penstock_simulation.checks.history import GetKey, Invocation, KeyValue, PutKey, RemoveKey
from penstock_simulation.simulated.cancellation import CutShortError, cut_short
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.users import UserHabits, draw_user_settings, in_time, maybe_cut
from penstock_simulation.workloads.world import Workload, World

_KEY_LENGTH = 12
_PARTITION_COUNT = 2
#: A key that is changed only by read-modify-write, and counted by all users.
_COUNTER = "counter"
_STATE_KEY = b"state"
#: Polls of a watch that are cancelled at the end, each within this many suspensions.
_CUT_POLL_COUNT = 5
_POLL_SUSPENSION_COUNT = 8
#: Time limit of such a poll: after a post without effect there is no further change.
_POLL_TIMEOUT_S = 30.0
#: Polls after which a watch must have returned the current state.
_WATCH_POLL_COUNT = 20


class UserTables(Workload):
    """Puts, inserts, removes, gets and scans keys of one table. A watch follows it concurrently.

    Args:
        counted: increments by all users of the table: certain ones, and possible ones.
    """

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, table: str, counted: Counter[str],
        habits: UserHabits, mean_gap_s: float,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self._name = table
        self._keys = tuple(f"key-{number}" for number in range(4))
        self._counted = counted
        self._habits = habits
        self._mean_gap_s = mean_gap_s
        self._number = 0
        self._versions: dict[str, int] = {}
        self._table: Table[str, bytes]
        self._changes: AsyncIterator[TableChange[str, bytes]]
        self._replica: dict[str, int] = {}

    def make_client(self) -> Client:
        """See `Workload.make_client`."""
        return self.world.cluster.client(
            self.host, draw_user_settings(self.rng, self.world.cluster.settings.client, self._habits)
        )

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        create = partial(
            self.client.create_table,
            self._name, key_length=_KEY_LENGTH, partition_count=_PARTITION_COUNT, exist_ok=True,
        )  # fmt: skip
        await self.world.insist(f"create {self._name}", create)
        self._table = await self.world.insist(f"open {self._name}", self._opened)
        self._changes = self._table.watch(prefix="key-")

    async def run(self) -> None:
        """See `Workload.run`."""
        watching = asyncio.get_running_loop().create_task(self._watch())
        choices = (self._put, self._insert, self._remove, self._get, self._count)
        while self.world.is_writing:
            await self.rest(self._mean_gap_s)
            if self.rng.random() < 0.05:
                await self._scan()
                continue
            call = self.rng.choices(choices, (6, 2, 3, 4, 3))[0](self.rng.choice(self._keys))
            limit_s = self.client.settings.retry_time_max_s
            await in_time(self.world, self.host, f"a call on {self._name}", limit_s, call)
        watching.cancel()
        await asyncio.wait([watching])

    async def verify(self) -> None:
        """See `Workload.verify`."""
        for key in self._keys:
            await self.world.insist(f"get {key} of {self._name}", partial(self._certain_get, key))
        count = await self.world.insist(f"count of {self._name}", partial(self._table.get, _COUNTER, b"0"))
        self._check_count(int(count or b"0"))
        await self._check_watch()

    async def _opened(self) -> Table[str, bytes]:
        return await self.client.table(self._name, keys=TextKeys())

    # -- calls --------------------------------------------------------------------------------------------------

    def _value(self) -> bytes:
        self._number += 1
        return f"{self.name}-{self._number}-".encode() + self.world.padding(self.rng)

    async def _put(self, key: str) -> None:
        known = self._versions.get(key)
        version = known if self.rng.random() < 0.8 else None
        value = self._value()
        expected = VERSION_ANY if version is None else version
        call = self.world.history.invoke(self.name, PutKey(self._name, key.encode(), value, expected))
        await self._settle_put(call, key, self._table.put(key, value, version=version))

    async def _insert(self, key: str) -> None:
        value = self._value()
        call = self.world.history.invoke(self.name, PutKey(self._name, key.encode(), value, VERSION_ABSENT))
        await self._settle_put(call, key, self._table.insert(key, value))

    async def _settle_put(self, call: Invocation, key: str, putting: Awaitable[int]) -> None:
        try:
            version = await maybe_cut(self.rng, self._habits.cut_rate, putting)
        except (CutShortError, PenstockError) as error:
            self._failed(call, key, error)
        else:
            self._versions[key] = version
            self.world.history.ok(call, version)
            self.world.counts["user table puts"] += 1

    async def _remove(self, key: str) -> None:
        version = self._versions.get(key)
        expected = VERSION_ANY if version is None else version
        call = self.world.history.invoke(self.name, RemoveKey(self._name, key.encode(), expected))
        try:
            await maybe_cut(self.rng, self._habits.cut_rate, self._table.remove(key, version=version))
        except (CutShortError, PenstockError) as error:
            self._failed(call, key, error)
        else:
            self._versions.pop(key, None)
            self.world.history.ok(call)
            self.world.counts["user table removals"] += 1

    async def _get(self, key: str) -> None:
        call = self.world.history.invoke(self.name, GetKey(self._name, key.encode()))
        try:
            entry = await maybe_cut(self.rng, self._habits.cut_rate, self._table.entry(key))
        except (CutShortError, PenstockError) as error:
            self._failed(call, key, error)
        else:
            self._got(call, key, entry)

    async def _certain_get(self, key: str) -> None:
        call = self.world.history.invoke(self.name, GetKey(self._name, key.encode()))
        try:
            entry = await self._table.entry(key)
        except PenstockError as error:
            self.world.history.unknown(call, error)
            raise
        self._got(call, key, entry)

    async def _scan(self) -> None:
        """Scan everything: each key is checked like a get."""
        history = self.world.history
        calls = {each: history.invoke(self.name, GetKey(self._name, each.encode())) for each in self._keys}
        found: dict[str, Entry[str, bytes]] = {}
        try:
            async for entry in self._table.scan(prefix="key-"):
                found[entry.key] = entry
        except PenstockError as error:
            for call in calls.values():
                history.unknown(call, error)
            return
        if list(found) != sorted(found):
            self.world.problem(f"{self.name}: a scan was not in order: {list(found)}")
        for each, call in calls.items():
            self._got(call, each, found.get(each))
        self.world.counts["user table scans"] += 1

    async def _count(self, key: str) -> None:
        """Increment the counter: never lost, never applied twice; the outcome is known or reported as unknown."""
        try:
            update = self._table.update(_COUNTER, lambda value: b"%d" % (int(value) + 1), default=b"0")
            await maybe_cut(self.rng, self._habits.cut_rate, update)
        except MetadataConflictError:
            return
        except (CutShortError, OutcomeUnknownError):
            self._counted["perhaps"] += 1
        except PenstockError as error:
            if not self.world.is_passing(error):
                self.world.problem(f"{self.name} cannot count: {error!r}")
        else:
            self._counted["done"] += 1
            self.world.counts["user table updates"] += 1

    def _check_count(self, count: int) -> None:
        done, perhaps = self._counted["done"], self._counted["perhaps"]
        if not done <= count <= done + perhaps:
            self.world.problem(f"{self._name}: {done} updates were made and {perhaps} perhaps, but it has {count}")

    def _got(self, call: Invocation, key: str, entry: Entry[str, bytes] | None) -> None:
        if entry is None:
            self._versions.pop(key, None)
            self.world.history.ok(call)
        else:
            self._versions[key] = entry.version
            self.world.history.ok(call, KeyValue(entry.value, entry.version))

    def _failed(self, call: Invocation, key: str, error: CutShortError | PenstockError) -> None:
        history = self.world.history
        if isinstance(error, TableConditionError):
            self._versions.pop(key, None)
            history.refuse(call, error)
            return
        history.unknown(call, error)
        if isinstance(error, OutcomeUnknownError):
            self.world.counts["user table changes of unknown outcome"] += 1
        elif isinstance(error, PenstockError) and not self.world.is_passing(error):
            self.world.problem(f"{self.name}: {call.call} ended with {error!r}")

    # -- the watch ----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Keep a replica of the versions, through all faults of the watch."""
        while True:
            try:
                # The watch is cancelled now and then: unreported changes come with the next call.
                change = await maybe_cut(self.rng, self._habits.cut_rate, anext(self._changes))
            except (CutShortError, PenstockError) as error:
                if isinstance(error, PenstockError) and not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: the watch ended with {error!r}")
                    return
                await asyncio.sleep(0.1)
            else:
                self._take(change)

    def _take(self, change: TableChange[str, bytes]) -> None:
        if change.entry is None:
            self._replica.pop(change.key, None)
        else:
            self._replica[change.key] = change.entry.version
        self.world.counts["user table changes watched"] += 1

    async def _check_watch(self) -> None:
        """Without faults and writes: the watch must have returned the current content."""

        async def there() -> dict[str, int]:
            return {entry.key: entry.version async for entry in self._table.scan(prefix="key-")}

        expected = await self.world.insist(f"scan of {self._name}", there)
        for _ in range(_WATCH_POLL_COUNT):
            if self._replica == expected:
                return
            try:
                async with asyncio.timeout(4 * self.client.settings.table_watch_interval_s):
                    self._take(await anext(self._changes))
            except TimeoutError:
                continue
            except PenstockError as error:
                if not self.world.is_passing(error):
                    raise
        self.world.problem(f"{self.name}: the watch has told {self._replica}, and there is {expected}")


class UserStates(Workload):
    """Changes one shared state in every way, and fetches it.

    The state is the tag of its newest update, and the number of updates of each user; an update is a user and a tag.
    """

    verifies_again = False  # Each user's copy is compared once, without faults.

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, stream: str, habits: UserHabits,
        mean_gap_s: float,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self._stream = stream
        self._habits = habits
        self._mean_gap_s = mean_gap_s
        self._number = 0
        self._done = 0
        self._perhaps = 0
        self._state: SharedState[JsonValue, JsonValue]
        self._changes: AsyncIterator[StateChange[JsonValue]]
        self._told: StateChange[JsonValue] | None = None

    def make_client(self) -> Client:
        """See `Workload.make_client`."""
        return self.world.cluster.client(
            self.host, draw_user_settings(self.rng, self.world.cluster.settings.client, self._habits)
        )

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        create = partial(self.client.create_stream, self._stream, exist_ok=True)
        await self.world.insist(f"create {self._stream}", create)
        self._state = await self.world.insist(f"open {self._stream}", self._opened)
        self._changes = self._state.watch()

    async def _opened(self) -> SharedState[JsonValue, JsonValue]:
        return await self.client.shared_state(
            self._stream,
            initial={"tag": "", "counts": {}},
            states=JsonSerializer(),
            updates=JsonSerializer(),
            apply=_applied,
        )

    async def run(self) -> None:
        """See `Workload.run`."""
        watching = asyncio.get_running_loop().create_task(self._watch())
        choices = (self._update, self._post, self._fetch, self._compact)
        while self.world.is_writing:
            await self.rest(self._mean_gap_s)
            call = self.rng.choices(choices, (6, 3, 4, 1))[0]
            limit_s = self.client.settings.retry_time_max_s
            await in_time(self.world, self.host, f"a call on {self._stream}", limit_s, call())
        watching.cancel()
        await asyncio.wait([watching])

    async def verify(self) -> None:
        """See `Workload.verify`."""
        await self._cut_polls_short()
        await self.world.insist(f"fetch {self._stream}", self._certain_fetch)
        count = _counts(self._state.value).get(self.name, 0)
        assert isinstance(count, int)
        if not self._done <= count <= self._done + self._perhaps:
            self.world.problem(
                f"{self._stream}: {self.name} has made {self._done} updates and {self._perhaps} perhaps, but {count} "
                "are counted"
            )
        await self._check_watch()

    async def _watch(self) -> None:
        """Follow the state, through all faults of the watch."""
        while True:
            try:
                change = await maybe_cut(self.rng, self._habits.cut_rate, anext(self._changes))
            except (CutShortError, PenstockError) as error:
                if isinstance(error, PenstockError) and not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: the watch of {self._stream} ended with {error!r}")
                    return
                await asyncio.sleep(0.1)
            else:
                self._take(change)

    def _take(self, change: StateChange[JsonValue]) -> None:
        told = self._told
        if told is not None and (told.revision >= change.revision or _version(told.value) > _version(change.value)):
            self.world.problem(f"{self.name}: the watch of {self._stream} has told {told}, and then {change}")
        self._told = change
        self.world.counts["user states watched"] += 1

    async def _cut_polls_short(self) -> None:
        """Cancel the watch while it takes in a change that may be the last one."""
        for _ in range(_CUT_POLL_COUNT):
            await self._post()
            try:
                async with asyncio.timeout(_POLL_TIMEOUT_S):
                    self._take(await cut_short(anext(self._changes), self.rng.randint(1, _POLL_SUSPENSION_COUNT)))
            except TimeoutError:
                continue
            except (CutShortError, PenstockError) as error:
                if isinstance(error, PenstockError) and not self.world.is_passing(error):
                    raise

    async def _check_watch(self) -> None:
        """The watch must return the current state, or a later one."""
        newest = StateChange(self._state.value, self._state.revision)
        for _ in range(_WATCH_POLL_COUNT):
            if self._told is not None and (self._told == newest or self._told.revision > newest.revision):
                return
            try:
                async with asyncio.timeout(1.0):
                    self._take(await anext(self._changes))
            except TimeoutError:
                continue
            except PenstockError as error:
                if not self.world.is_passing(error):
                    raise
        self.world.problem(f"{self.name}: the watch of {self._stream} has told {self._told}, and there is {newest}")

    def _tag(self) -> str:
        self._number += 1
        return f"{self.name}-{self._number}"

    async def _update(self) -> None:
        """Each attempt is a put on condition of the state it was computed from; all but the last had no effect.

        They are not recorded as refusals of a table: a compaction refuses them too, and changes no state.
        """
        history = self.world.history
        attempts: list[Invocation] = []

        def make(state: JsonValue) -> list[JsonValue]:
            if attempts:
                history.fail(attempts[-1], "another was first")
            tag = self._tag()
            expected = _version(state) or VERSION_ABSENT
            attempts.append(history.invoke(self.name, PutKey(self._stream, _STATE_KEY, tag.encode(), expected)))
            return [[self.name, tag]]

        try:
            await maybe_cut(self.rng, self._habits.cut_rate, self._state.update(make))
        except MetadataConflictError as error:
            history.fail(attempts[-1], error)
        except (CutShortError, PenstockError) as error:
            self._failed(attempts[-1] if attempts else None, error)
        else:
            self._done += 1
            # No other call changes this copy.
            history.ok(attempts[-1], _version(self._state.value))
            self.world.counts["user state updates"] += 1

    async def _post(self) -> None:
        tag = self._tag()
        call = self.world.history.invoke(self.name, PutKey(self._stream, _STATE_KEY, tag.encode(), VERSION_ANY))
        try:
            await maybe_cut(self.rng, self._habits.cut_rate, self._state.post([self.name, tag]))
        except (CutShortError, PenstockError) as error:
            self._failed(call, error)
        else:
            self._done += 1
            # A post does not return its version; it is counted.
            self.world.history.unknown(call, "stored, at a place that is not known")
            self.world.counts["user state posts"] += 1

    async def _fetch(self) -> None:
        call = self.world.history.invoke(self.name, GetKey(self._stream, _STATE_KEY))
        try:
            await maybe_cut(self.rng, self._habits.cut_rate, self._state.fetch())
        except (CutShortError, PenstockError) as error:
            self.world.history.unknown(call, error)
        else:
            self._got(call)

    async def _certain_fetch(self) -> None:
        call = self.world.history.invoke(self.name, GetKey(self._stream, _STATE_KEY))
        try:
            await self._state.fetch()
        except PenstockError as error:
            self.world.history.unknown(call, error)
            raise
        self._got(call)

    def _got(self, call: Invocation) -> None:
        state = self._state.value
        assert isinstance(state, dict)
        tag = state["tag"]
        assert isinstance(tag, str)
        if tag:
            self.world.history.ok(call, KeyValue(tag.encode(), _version(state)))
        else:
            self.world.history.ok(call)

    async def _compact(self) -> None:
        """Write the whole state (compaction). Not in the history: it does not change the state."""
        try:
            await maybe_cut(self.rng, self._habits.cut_rate, self._state.compact())
        except (CutShortError, PenstockError) as error:
            if isinstance(error, PenstockError) and not self.world.is_passing(error):
                self.world.problem(f"{self.name} cannot compact {self._stream}: {error!r}")
        else:
            self.world.counts["user state compactions"] += 1

    def _failed(self, call: Invocation | None, error: CutShortError | PenstockError) -> None:
        if call is not None:
            self._perhaps += 1
            self.world.history.unknown(call, error)
        if isinstance(error, PenstockError) and not self.world.is_passing(error):
            self.world.problem(f"{self.name}: a change of {self._stream} ended with {error!r}")


def _counts(state: JsonValue) -> dict[str, JsonValue]:
    assert isinstance(state, dict)
    counts = state["counts"]
    assert isinstance(counts, dict)
    return counts


def _version(state: JsonValue) -> int:
    """Return the number of updates of a state."""
    return sum(count for count in _counts(state).values() if isinstance(count, int))


def _applied(state: JsonValue, update: JsonValue) -> JsonValue:
    assert isinstance(update, list)
    user, tag = update
    assert isinstance(user, str)
    counts = _counts(state)
    count = counts.get(user, 0)
    assert isinstance(count, int)
    return {"tag": tag, "counts": {**counts, user: count + 1}}
