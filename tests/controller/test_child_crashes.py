"""Crashes and lost replies at every single write of the workflows on reader groups, tables, mark streams and scopes.

As `test_crashes`, with a script that creates, changes and deletes what a scope holds beside streams: a store fails at
its n-th write, for every n; after a death a fresh controller starts; the step that failed is repeated, and the end must
be the same as without a failure.

Shows S-018, S-179, S-180, S-188, S-189.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.controller.errors import ReaderGroupMismatchError
from penstock.controller.metadata import layout
from penstock.controller.metadata.scope_records import ChildState, GroupCut, KeyValueTableConfig, ReaderGroupConfig
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    NoSuchReaderGroupError,
    NoSuchTableError,
    ScopeExistsError,
    StreamExistsError,
    TableExistsError,
)
from penstock.model.policies import GroupRetention, Scaling, StreamConfig
from penstock_simulation.memory_segments import MemorySegments
from support.crash_script import at_each_write, run_with_survivor
from support.failing_segments import FailingSegments, Fault, attempt
from support.in_process_cluster import InProcessCluster

SETTINGS = ControllerSettings(retry_delay_ms_first=0, retry_delay_ms_max=0)
IDS = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(2)]


def config(*streams: str, retention: GroupRetention = GroupRetention.MANUAL) -> ReaderGroupConfig:
    return ReaderGroupConfig(tuple(GroupCut("s", stream) for stream in streams), retention=retention)


class Script:
    """Creates, changes and deletes a group, a table, a mark stream and a scope; each step can be repeated."""

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.is_recreated = False

    def steps(self) -> list[Callable[..., Awaitable[Any]]]:
        return [
            self.create_scope, self.create_streams, self.create_group, self.publish, self.update_group,
            self.leave, self.rejoin, self.delete_group, self.create_group_again, self.delete_group_again,
            self.create_group, self.create_table, self.delete_table, self.create_table, self.open_marks,
            self.delete_marked, self.delete_scope,
        ]  # fmt: skip

    async def create_scope(self, service: ControllerService) -> None:
        try:
            await service.create_scope("s")
        except ScopeExistsError:
            pass

    async def create_streams(self, service: ControllerService) -> None:
        for stream in ("a", "b"):
            try:
                await service.create_stream("s", stream, StreamConfig(Scaling.fixed(1)))
            except StreamExistsError:
                pass

    async def check_group(self, service: ControllerService, generation: int, **subscribers: tuple[str, ...]) -> None:
        found = await service.reader_groups.get("s", "g")
        assert (found.state, found.generation, found.next_config) == (ChildState.ACTIVE, generation, None)
        for stream, names in subscribers.items():
            assert await service.reader_groups.subscribers("s", stream) == names

    async def create_group(self, service: ControllerService) -> None:
        made = await service.reader_groups.create("s", "g", config("a"), IDS[0])
        assert (made.id, made.config) == (IDS[0], config("a"))
        await self.check_group(service, 0, a=("s/g",), b=())
        assert self.store.segments[f"s/_RGg/{2 * self.is_recreated}.#epoch.0"] is not None

    async def publish(self, service: ControllerService) -> None:
        await service.reader_groups.publish("s", "a", "s/g", IDS[0], 0, {0: 0})

    async def update(self, service: ControllerService, generation: int, wanted: ReaderGroupConfig) -> None:
        try:
            await service.reader_groups.update("s", "g", wanted, IDS[0], generation)
        except ReaderGroupMismatchError:
            assert (await service.reader_groups.get("s", "g")).generation == generation + 1

    async def update_group(self, service: ControllerService) -> None:
        await self.update(service, 0, config("a", "b"))
        await self.check_group(service, 1, a=("s/g",), b=("s/g",))
        # The cut that it had published is still there.
        await service.reader_groups.publish("s", "a", "s/g", IDS[0], 1, {0: 0})

    async def leave(self, service: ControllerService) -> None:
        await self.update(service, 1, config("a", retention=GroupRetention.NONE))
        await self.check_group(service, 2, a=(), b=())

    async def rejoin(self, service: ControllerService) -> None:
        await self.update(service, 2, config("b"))
        await self.check_group(service, 3, a=(), b=("s/g",))

    async def _delete_group(self, service: ControllerService, group_id: str) -> None:
        try:
            await service.reader_groups.delete("s", "g", group_id)
        except NoSuchReaderGroupError:
            pass
        assert (await service.reader_groups.list("s", "")).names == ()
        for stream in ("a", "b"):
            assert await service.reader_groups.subscribers("s", stream) == ()
        assert not [name for name in self.store.segments if "_RG" in name]

    async def delete_group(self, service: ControllerService) -> None:
        await self._delete_group(service, IDS[0])

    async def create_group_again(self, service: ControllerService) -> None:
        made = await service.reader_groups.create("s", "g", config("b"), IDS[1])
        assert (made.id, made.generation) == (IDS[1], 0)
        # A late request of the life before changes nothing.
        for late in (
            service.reader_groups.update("s", "g", config("a"), IDS[0], 0),
            service.reader_groups.delete("s", "g", IDS[0]),
        ):
            with pytest.raises((ReaderGroupMismatchError, NoSuchReaderGroupError)):
                await late
        await self.check_group(service, 0, a=(), b=("s/g",))

    async def delete_group_again(self, service: ControllerService) -> None:
        await self._delete_group(service, IDS[1])
        self.is_recreated = True

    async def create_table(self, service: ControllerService) -> None:
        wanted = KeyValueTableConfig(3, 4, 2)
        try:
            await service.key_value_tables.create("s", "t", wanted)
        except TableExistsError:
            pass
        assert await service.key_value_tables.configuration("s", "t") == wanted
        assert len(await service.key_value_tables.segments("s", "t")) == 3
        for partition in range(3):
            assert self.store.tables[f"s/t_kvtable/{partition}.#epoch.0"].key_length == 6

    async def delete_table(self, service: ControllerService) -> None:
        try:
            await service.key_value_tables.delete("s", "t")
        except NoSuchTableError:
            pass
        assert not [name for name in self.store.tables if "t_kvtable" in name]

    async def open_marks(self, service: ControllerService) -> None:
        for stream in ("a", "b"):
            assert len(await service.current_segments("s", f"_MARK{stream}")) == 1
            assert f"s/_MARK{stream}/0.#epoch.0" in self.store.segments

    async def delete_marked(self, service: ControllerService) -> None:
        if await service.stream_exists("s", "a"):
            await service.seal_stream("s", "a")
            await service.delete_stream("s", "a")
        assert not [name for name in self.store.segments if "_MARKa" in name]

    async def delete_scope(self, service: ControllerService) -> None:
        await service.delete_scope_recursive("s")
        assert not await service.scope_exists("s")


async def run(cluster: InProcessCluster, at: int, fault: Fault, *, again_at: int = 0) -> int:
    """Run the script with a fault at write `at`, and another at `again_at` of the next life; return its writes."""
    store = cluster.store
    failing = FailingSegments(store, at, fault)
    service = cluster.build(SETTINGS, segments=failing)
    for step in (ControllerService.start, *Script(store).steps()):
        for _ in range(5):
            if await attempt(step, service, failing):
                break
            while failing.is_dead:
                await service.stop()
                failing, again_at = FailingSegments(store, again_at, fault), 0
                service = cluster.build(SETTINGS, segments=failing)
                if await attempt(ControllerService.start, service, failing):
                    await attempt(ControllerService.idle, service, failing)
        else:
            raise AssertionError(f"{step} did not succeed")
    await service.stop()
    last = await cluster.start(SETTINGS)
    await last.idle()
    assert not store.segments
    assert not [key for key in store.tables[layout.PENDING_WORK].entries if b"/" in key]
    left = [name for name in store.tables if name not in layout.SYSTEM_TABLES]
    assert sorted(left) == sorted(name for name in store.tables if name.startswith("_system/_tables/_system/"))
    return failing.count


@pytest.mark.parametrize("fault", list(Fault))
async def test_script_over_children_ends_the_same_whichever_write_fails(
    fault: Fault, cluster: InProcessCluster
) -> None:
    """For every write of the script in turn, every third for lost messages: fail there, repeat, compare the end."""
    writes = await run(cluster, 0, fault)
    assert writes > 150
    step = 1 if fault in (Fault.DIES_BEFORE, Fault.DIES_AFTER) else 3
    for at in range(1, writes + 1, step):
        one = type(cluster)()
        try:
            await run(one, at, fault)
        except Exception as error:
            raise AssertionError(f"{fault.value}, at write {at} of {writes}") from error
        finally:
            await one.stop()


@pytest.mark.parametrize("fault", [Fault.DIES_BEFORE, Fault.DIES_AFTER])
async def test_a_death_at_any_write_over_children_is_followed_by_the_controller_that_is_alive(
    fault: Fault, fresh: Callable[[], InProcessCluster]
) -> None:
    """Two controllers are alive; one dies at each write of the script in turn, the other one finishes all it began."""
    await at_each_write(run_with_survivor, fresh, Script, fault)


async def test_recovery_of_children_that_is_cut_off_is_finished_by_the_next(cluster: InProcessCluster) -> None:
    """The recovery from a death at one of many writes dies itself at one of its first writes."""
    for at in range(20, 260, 20):
        for again_at in (1, 2, 3, 5):
            one = type(cluster)()
            try:
                await run(one, at, Fault.DIES_AFTER, again_at=again_at)
            except Exception as error:
                raise AssertionError(f"at write {at}, then at write {again_at}") from error
            finally:
                await one.stop()
