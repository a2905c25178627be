"""Tables against `penstock_simulation.model`, through the public table calls, with crashes between and during them.

The production client and segment store run in virtual time (`support.simulated_stack`); tables are so small that
they are flushed, evicted and compacted all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from penstock.model.errors import OutcomeUnknownError, PenstockError
from penstock.model.names import segment_name
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY, TableEntry, TableRemoval, TableUpdate
from penstock_simulation.model import TableModel, TablesModel
from support.simulated_stack import SimulatedStack, state_machine_settings

T = TypeVar("T")

#: For the nights; by day it takes seconds.
pytestmark = pytest.mark.timeout(3600)

TABLES = [segment_name("scope", "a", 0), segment_name("scope", "b", 0)]
NAMES = st.sampled_from(TABLES)
ALL_KEYS = [b"k", b"key-2", b"x" * 40, b"\0", b"\xff\xff"]
#: Which version a conditional update demands.
CONDITIONS = st.sampled_from(["any", "any", "right", "right", "absent", "wrong"])
CHANGES = st.dictionaries(st.sampled_from(ALL_KEYS), CONDITIONS, min_size=1, max_size=4)
LENGTHS = st.sampled_from([0, 3, 60, 400])
MOMENTS = st.floats(0.0, 0.01)


# Invariants: what must hold whenever nothing is under way.


async def check_table(stack: SimulatedStack, name: str, table: TableModel) -> None:
    """Gets, iteration and size agree with the model; an absent key is absent."""
    segments = stack.client._segment_client
    assert list(await segments.table_get(name, ALL_KEYS)) == [table.entries.get(key) for key in ALL_KEYS]
    assert await all_entries(stack, name, 2) == sorted(table.entries.values(), key=lambda entry: entry.key)
    info = await segments.table_info(name)
    assert info.entry_count == len(table.entries)
    assert info.start_offset <= info.length
    assert info.length > table.version_max


async def check_delta(stack: SimulatedStack, name: str, table: TableModel, position: int) -> None:
    """A delta has every entry put since its position, and nothing that is not live as it says.

    Older entries may come with it: compaction writes them again.
    """
    delta = await stack.client._segment_client.table_delta(name, position=position, limit=1000)
    found = {entry.key: entry for entry in delta.entries}
    assert len(found) == len(delta.entries)
    assert delta.reached_end
    assert all(table.entries.get(key) == entry for key, entry in found.items())
    assert found.keys() >= {entry.key for entry in table.entries.values() if entry.version >= position}
    if delta.should_clear or position == 0:
        assert found == table.entries
    again = await stack.client._segment_client.table_delta(name, position=delta.last_position, limit=1000)
    assert again.reached_end


async def all_entries(stack: SimulatedStack, name: str, limit: int) -> list[TableEntry]:
    found: list[TableEntry] = []
    token = b""
    while (page := await stack.client._segment_client.table_entries(name, limit=limit, token=token)).entries:
        assert len(page.entries) <= limit
        found += page.entries
        token = page.token
    return sorted(found, key=lambda entry: entry.key)


class TableMachine(RuleBasedStateMachine):
    """Two tables that are created, changed, read and deleted."""

    positions = Bundle("positions")

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.stack = SimulatedStack(seed)
        self.model = TablesModel()
        self._count = 0
        self.create(TABLES[0])

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            try:
                self.compare()
                self.stack.pass_time(2.0)
                self.stack.crash()
                self.compare()
            finally:
                self.stack.close()

    def _both(self, expect: Callable[[], object], work: Callable[[], Coroutine[object, object, T]]) -> T | None:
        """Do it to the model and to the store; both must end alike. Return the store's result if there is one."""
        expected: type[PenstockError] | None = None
        try:
            expect()
        except PenstockError as error:
            expected = type(error)

        async def attempt() -> tuple[T | None, type[PenstockError] | None]:
            try:
                return await work(), None
            except PenstockError as error:
                if type(error) is not expected:
                    raise
                return None, expected

        result, raised = self.stack.call(attempt)
        assert raised is expected, f"the model says {expected}, the store {raised}"
        return result

    def _version(self, name: str, key: bytes, condition: str) -> int:
        table = self.model.tables.get(name, TableModel())
        actual = table.version(key)
        match condition:
            case "any":
                return VERSION_ANY
            case "absent":
                return VERSION_ABSENT
            case "right":
                return actual
            case _:
                return table.version_max + 1 if actual < 0 else max(actual - 1, 0)

    def _updates(self, name: str, changes: dict[bytes, str], length: int) -> list[TableUpdate]:
        updates = []
        for key, condition in changes.items():
            self._count += 1
            value = (b"%d " % self._count).ljust(length, b".")
            updates.append(TableUpdate(key, value, self._version(name, key, condition)))
        return updates

    # -- rules --------------------------------------------------------------------------------------------------

    @rule(name=NAMES)
    def create(self, name: str) -> None:
        self._both(lambda: self.model.create(name), lambda: self.stack.client._segment_client.create_table(name))

    @rule(name=NAMES, must_be_empty=st.sampled_from([True, True, True, False]))
    def delete(self, name: str, must_be_empty: bool) -> None:
        self._both(
            lambda: self.model.delete(name, must_be_empty=must_be_empty),
            lambda: self.stack.client._segment_client.delete_table(name, must_be_empty=must_be_empty),
        )

    @rule(name=NAMES, changes=CHANGES, length=LENGTHS)
    def put(self, name: str, changes: dict[bytes, str], length: int) -> None:
        updates = self._updates(name, changes, length)
        versions = self._both(
            lambda: self.model.table(name).check(name, updates),
            lambda: self.stack.client._segment_client.table_put(name, updates),
        )
        if versions is not None:
            self.model.table(name).put(updates, versions)

    @rule(name=NAMES, changes=CHANGES)
    def remove(self, name: str, changes: dict[bytes, str]) -> None:
        removals = [TableRemoval(key, self._version(name, key, condition)) for key, condition in changes.items()]

        def expect() -> None:
            table = self.model.table(name)
            table.check(name, removals)
            table.remove(removals)

        self._both(expect, lambda: self.stack.client._segment_client.table_remove(name, removals))

    @rule(name=NAMES, changes=CHANGES, is_behind=st.booleans())
    def put_at_offset(self, name: str, changes: dict[bytes, str], is_behind: bool) -> None:
        """A batch may demand the length of the table's log, too."""
        if name not in self.model:
            return
        length = self.stack.call(lambda: self.stack.client._segment_client.table_info(name)).length
        expected = length if not is_behind else max(length - 1, 0)
        updates = [TableUpdate(update.key, update.value) for update in self._updates(name, changes, 10)]
        versions = self._both(
            lambda: self.model.check_length(name, expected, length),
            lambda: self.stack.client._segment_client.table_put(name, updates, expected_offset=expected),
        )
        if versions is not None:
            self.model.table(name).put(updates, versions)

    @rule(name=NAMES, changes=CHANGES, is_put=st.booleans(), after_s=MOMENTS)
    def change_in_a_crash(self, name: str, changes: dict[bytes, str], is_put: bool, after_s: float) -> None:
        """A change whose reply is lost was made whole, or not at all; one that was answered is there."""
        if name not in self.model:
            return
        table = self.model.table(name)
        updates = self._updates(name, dict.fromkeys(changes, "any"), 20)
        removals = [TableRemoval(update.key) for update in updates]

        async def work() -> Sequence[int] | bool | None:
            try:
                if is_put:
                    return await self.stack.client._segment_client.table_put(name, updates)
                await self.stack.client._segment_client.table_remove(name, removals)
            except OutcomeUnknownError:
                return None
            return True

        result = self.stack.call_and_crash(work, after_s)
        found = self.stack.call(lambda: self.stack.client._segment_client.table_get(name, list(changes)))
        if is_put:
            is_done = [entry is not None and entry.value == update.value
                       for entry, update in zip(found, updates, strict=True)]  # fmt: skip
            assert len(set(is_done)) == 1, "a batch was done in part"
            assert result is None or is_done[0]
            if is_done[0]:
                table.put(updates, [entry.version for entry in found if entry is not None])
                assert result is None or list(result) == [table.version(key) for key in changes]  # type: ignore[arg-type]
        else:
            before = [table.entries.get(key) for key in changes]
            is_done_whole = list(found) == [None] * len(found)
            assert is_done_whole or (result is None and list(found) == before)
            if is_done_whole:
                table.remove(removals)

    @rule(target=positions, name=NAMES, limit=st.integers(1, 3))
    def take_position(self, name: str, limit: int) -> object:
        """The end of a first, short page."""
        if name not in self.model:
            return multiple()
        delta = self.stack.call(lambda: self.stack.client._segment_client.table_delta(name, position=0, limit=limit))
        assert len(delta.entries) <= limit
        return name, self.model.table(name), delta.last_position

    @rule(taken=positions)
    def read_delta(self, taken: tuple[str, TableModel, int]) -> None:
        name, table, position = taken
        if self.model.tables.get(name) is table:
            self.stack.call(lambda: check_delta(self.stack, name, table, position))

    @rule()
    def compare(self) -> None:
        for name in self.model:
            table = self.model.table(name)
            self.stack.call(lambda name=name, table=table: check_table(self.stack, name, table))  # type: ignore[misc]
            self.stack.call(lambda name=name, table=table: check_delta(self.stack, name, table, 0))  # type: ignore[misc]

    @rule()
    def crash(self) -> None:
        self.stack.crash()

    @rule(seconds=st.sampled_from([0.05, 0.3, 2.0]))
    def pass_time(self, seconds: float) -> None:
        """Flushes, evictions, compactions, checkpoints, log truncation."""
        self.stack.pass_time(seconds)

    @invariant()
    def server_lives(self) -> None:
        if hasattr(self, "stack"):
            assert not self.stack.server.failures


TestTables = TableMachine.TestCase
TestTables.settings = state_machine_settings(max_examples=60, stateful_step_count=40)
