"""Key-value tables, and scopes that hold them: over in-memory seams, and through a real gRPC server.

Shows S-018, S-019 and S-187..S-192, each where it is named, and API-34.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from penstock.controller.key_value_tables import KeyValueTables
from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import DeleteTable, Subject, SubjectKind
from penstock.controller.metadata.scope_records import ChildState, GroupCut, KeyValueTableConfig, ReaderGroupConfig
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    InvalidNameError,
    NoSuchScopeError,
    NoSuchStreamError,
    NoSuchTableError,
    ScopeExistsError,
    ScopeNotEmptyError,
    TableExistsError,
)
from penstock.model.policies import GroupRetention, Scaling, StreamConfig
from penstock.model.segments import TableRemoval
from penstock.rpc import controller_pb2 as pb
from support.in_process_cluster import InProcessCluster
from support.mark_segments import without_marks

if TYPE_CHECKING:
    from controller.conftest import Wire

CONFIG = KeyValueTableConfig(3, 8, 4)


@pytest.fixture
async def tables(service: ControllerService) -> KeyValueTables:
    return service.key_value_tables


def segments_of(cluster: InProcessCluster, table: str = "t") -> dict[str, int]:
    """Return partition -> key length of the table's segments on the store."""
    prefix = f"scope/{table}_kvtable/"
    return {
        name.removeprefix(prefix): found.key_length
        for name, found in cluster.store.tables.items()
        if name.startswith(prefix)
    }


async def test_a_table_whose_segments_could_not_be_stored_is_refused(
    tables: KeyValueTables, cluster: InProcessCluster
) -> None:
    """The directory of its chunks is its name and a suffix, and a directory's name has 255 bytes at most."""
    await tables.create("scope", "t" * 247, CONFIG)
    with pytest.raises(InvalidNameError, match="247 characters at most"):
        await tables.create("scope", "t" * 248, CONFIG)
    assert all(len(name.split("/")[1]) <= 255 for name in cluster.store.tables)


async def test_table_has_a_segment_per_partition(tables: KeyValueTables, cluster: InProcessCluster) -> None:
    """S-187: ACTIVE, even ranges, segments with keys of both parts' length; created again: exists, as it was."""
    made = await tables.create("scope", "t", CONFIG)
    assert made.state is ChildState.ACTIVE
    ranges = [(found.id, found.key_start, found.key_end) for found in await tables.segments("scope", "t")]
    assert [number for number, _, _ in ranges] == [0, 1, 2]
    assert [start for _, start, _ in ranges] == [0.0, 1 / 3, 2 / 3]
    assert ranges[-1][2] == 1.0
    assert segments_of(cluster) == {f"{number}.#epoch.0": 12 for number in range(3)}
    with pytest.raises(TableExistsError):
        await tables.create("scope", "t", KeyValueTableConfig(1, 2))
    assert await tables.configuration("scope", "t") == CONFIG
    assert segments_of(cluster) == {f"{number}.#epoch.0": 12 for number in range(3)}


async def test_rollover_size_reaches_the_store(tables: KeyValueTables, cluster: InProcessCluster) -> None:
    """controller-api 9.17: it is what each segment is created with."""
    seen = []
    create = cluster.store.create_table

    async def watched(segment: str, *, key_length: int = 0, rollover_bytes: int = 0) -> None:
        if "_kvtable" in segment:
            seen.append((key_length, rollover_bytes))
        await create(segment, key_length=key_length, rollover_bytes=rollover_bytes)

    cluster.store.create_table = watched  # type: ignore[method-assign]
    await tables.create("scope", "t", KeyValueTableConfig(2, 1, 0, 1 << 20))
    assert seen == [(1, 1 << 20)] * 2


async def test_concurrent_creators_of_a_table_get_one(tables: KeyValueTables) -> None:
    """One success, and its shape stays."""
    results = await asyncio.gather(
        *(tables.create("scope", "t", KeyValueTableConfig(count, 8)) for count in range(1, 6)), return_exceptions=True
    )
    assert [type(result) for result in results[1:]] == [TableExistsError] * 4
    assert await tables.configuration("scope", "t") == results[0].config  # type: ignore[union-attr]


async def test_tables_streams_and_groups_do_not_share_names(service: ControllerService, tables: KeyValueTables) -> None:
    """One name for all three at once, and each can go alone."""
    await service.create_stream("scope", "same", StreamConfig(Scaling.fixed(1)))
    await tables.create("scope", "same", CONFIG)
    await service.reader_groups.create("scope", "same", ReaderGroupConfig((GroupCut("scope", "same"),)))
    await tables.delete("scope", "same")
    assert await service.stream_exists("scope", "same")
    assert await service.reader_groups.get("scope", "same")


async def test_a_segment_of_another_owner_is_not_taken_over(tables: KeyValueTables, cluster: InProcessCluster) -> None:
    """H5: Rust's reader groups make tables of such names themselves: the name is taken, and they stay as they are."""
    await cluster.store.create_table("scope/t_kvtable/0.#epoch.0")
    with pytest.raises(TableExistsError):
        await tables.create("scope", "t", CONFIG)
    assert segments_of(cluster) == {"0.#epoch.0": 0}
    assert (await tables.list("scope", "")).names == ()
    with pytest.raises(NoSuchTableError):
        await tables.delete("scope", "t")
    assert segments_of(cluster) == {"0.#epoch.0": 0}


async def test_deletion_removes_segments_and_record(tables: KeyValueTables, cluster: InProcessCluster) -> None:
    """S-189: missing, deleted, repeated, and created again with another shape."""
    for scope in ("scope", "none"):
        with pytest.raises(NoSuchTableError):
            await tables.delete(scope, "t")
    await tables.create("scope", "t", CONFIG)
    await tables.delete("scope", "t")
    assert segments_of(cluster) == {}
    for call in (tables.delete("scope", "t"), tables.segments("scope", "t"), tables.configuration("scope", "t")):
        with pytest.raises(NoSuchTableError):
            await call
    await tables.create("scope", "t", KeyValueTableConfig(1, 2))
    assert segments_of(cluster) == {"0.#epoch.0": 2}


async def test_failure_of_the_store_is_made_good_by_the_next_call(cluster: InProcessCluster) -> None:
    """S-188, S-190: one of three segments cannot be made; the part is listed but not usable; the retry completes it."""
    settings = ControllerSettings(retry_delay_ms_first=0, retry_delay_ms_max=0, attempts_max=2)
    service = await cluster.start(settings)
    await service.create_scope("scope")
    tables = service.key_value_tables
    create = cluster.store.create_table

    async def failing(segment: str, **options: int) -> None:
        if segment.endswith("_kvtable/1.#epoch.0"):
            raise ControllerUnavailableError("away")
        await create(segment, **options)

    cluster.store.create_table = failing  # type: ignore[method-assign]
    with pytest.raises(ControllerUnavailableError):
        await tables.create("scope", "t", CONFIG)
    assert (await tables.list("scope", "")).names == ("t",)
    with pytest.raises(ControllerUnavailableError, match="not completely created"):
        await tables.segments("scope", "t")
    cluster.store.create_table = create  # type: ignore[method-assign]
    with pytest.raises(TableExistsError):
        await tables.create("scope", "t", KeyValueTableConfig(1, 1))
    assert await tables.configuration("scope", "t") == CONFIG
    assert len(segments_of(cluster)) == 3


async def test_work_announced_for_another_life_is_dropped(
    service: ControllerService, tables: KeyValueTables, cluster: InProcessCluster
) -> None:
    """S-191: the announcement of a deletion whose table was replaced since deletes nothing."""
    await tables.create("scope", "t", CONFIG)
    subject = Subject(SubjectKind.TABLE, "scope", "t")
    await service._context.begin(subject, DeleteTable(), "another id")
    await service._runner.settle(subject)
    assert len(segments_of(cluster)) == 3
    assert not [key for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]


async def test_bad_shapes_and_names_are_refused(tables: KeyValueTables) -> None:
    """controller-api 9.17, S-192: sizes, names, a missing scope; the bounds themselves are fine."""
    for bad in (
        KeyValueTableConfig(0, 1),
        KeyValueTableConfig(10_001, 1),
        KeyValueTableConfig(1, 0),
        KeyValueTableConfig(1, 1, -1),
        KeyValueTableConfig(1, 8000, 193),
        KeyValueTableConfig(1, 1, 0, -1),
    ):
        with pytest.raises(InvalidArgumentError):
            await tables.create("scope", "t", bad)
    for name in ("a_b", "_a", "a/b", "x" * 251):
        with pytest.raises(InvalidNameError):
            await tables.create("scope", name, CONFIG)
    for call in (tables.create("none", "t", CONFIG), tables.list("none", "")):
        with pytest.raises(NoSuchScopeError):
            await call
    assert await tables.create("scope", "x" * 247, KeyValueTableConfig(1, 8000, 192))


async def test_tables_are_listed_in_pages(tables: KeyValueTables) -> None:
    """S-190: every table once, then an empty page that repeats the token."""
    names = [f"t{number}" for number in range(5)]
    for name in names:
        await tables.create("scope", name, KeyValueTableConfig(1, 1))
    token, found = "", []
    while (page := await tables.list("scope", token, 2)).names:
        found += page.names
        token = page.token
    assert (sorted(found), page.token) == (names, token)


async def test_a_recursive_deletion_removes_everything_in_a_scope(
    service: ControllerService, tables: KeyValueTables, cluster: InProcessCluster
) -> None:
    """S-018, API-6: plain deletion is refused for each kind of content; the recursive one removes all of them."""
    group = ReaderGroupConfig((GroupCut("scope", "a"), GroupCut("kept", "b")), retention=GroupRetention.MANUAL)
    await service.create_scope("kept")
    await service.create_stream("kept", "b", StreamConfig(Scaling.fixed(1)))
    await tables.create("scope", "t", CONFIG)
    with pytest.raises(ScopeNotEmptyError, match="tables"):
        await service.delete_scope("scope")
    await tables.delete("scope", "t")
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(1)))
    with pytest.raises(ScopeNotEmptyError, match="streams"):
        await service.delete_scope("scope")
    # The refused deletions have broken nothing.
    await tables.create("scope", "t", CONFIG)
    await service.reader_groups.create("scope", "g", group)
    with pytest.raises(ScopeNotEmptyError, match="groups"):
        await service.delete_scope("scope")
    await asyncio.gather(*(service.delete_scope_recursive("scope") for _ in range(3)))
    assert not await service.scope_exists("scope")
    assert sorted(without_marks(cluster.store)) == ["kept/b/0.#epoch.0"]
    assert not [name for name in cluster.store.tables if "_kvtable" in name or "/scope/" in name]
    assert await service.reader_groups.subscribers("kept", "b") == ()
    await service.delete_scope_recursive("scope")
    await service.create_scope("scope")
    assert (await service.list_streams("scope", "")).names == ()
    with pytest.raises(ScopeNotEmptyError):
        await service.delete_scope_recursive("_system")


async def test_a_scope_in_deletion_refuses_creations(
    service: ControllerService, tables: KeyValueTables, cluster: InProcessCluster
) -> None:
    """S-019, S-192: no streams, groups, tables and mark streams, and it cannot be created; a restart finishes it."""
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(1)))
    gate, began = asyncio.Event(), asyncio.Event()
    seal = cluster.store.seal_segment

    async def slow(segment: str) -> None:
        began.set()
        await gate.wait()
        await seal(segment)

    cluster.store.seal_segment = slow  # type: ignore[method-assign]
    deletion = asyncio.ensure_future(service.delete_scope_recursive("scope"))
    await began.wait()
    for call in (
        service.create_stream("scope", "b", StreamConfig(Scaling.fixed(1))),
        tables.create("scope", "t", CONFIG),
        service.reader_groups.create("scope", "g", ReaderGroupConfig((GroupCut("scope", "a"),))),
    ):
        with pytest.raises(NoSuchScopeError):
            await call
    with pytest.raises(ScopeExistsError):
        await service.create_scope("scope")
    await service.stop()
    with pytest.raises(ControllerUnavailableError):
        await deletion
    gate.set()
    other = await cluster.start()
    await other.idle()
    assert not await other.scope_exists("scope")
    assert not cluster.store.segments
    with pytest.raises(NoSuchStreamError):
        await other.current_segments("scope", "_MARKa")


async def test_a_stream_created_after_the_last_listing_is_deleted_with_its_scope(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    """A creation that had begun before the scope was closed adds its stream while the scope's tables are dropped."""
    drop = cluster.store.delete_table
    late = ["late"]

    async def racing(segment: str, *, must_be_empty: bool = False) -> None:
        if "streamsInScope" in segment and late:
            await service._catalog.add_stream("scope", late.pop(), "00000000-0000-4000-8000-000000000000")
        await drop(segment, must_be_empty=must_be_empty)

    cluster.store.delete_table = racing  # type: ignore[method-assign]
    await service.delete_scope_recursive("scope")
    assert not late
    assert not await service.scope_exists("scope")
    assert not [key for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]


async def test_scope_made_again_after_its_deletion_can_be_deleted_itself(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    """A deletion is still withdrawing its announcement when the scope is there again, and is to go again.

    The second deletion must not take the first one's announcement for its own.
    """
    gate, began = asyncio.Event(), asyncio.Event()
    remove = cluster.store.table_remove

    async def slow(segment: str, removals: list[TableRemoval], **options: Any) -> None:
        if segment == layout.PENDING_WORK and not began.is_set():
            began.set()
            await gate.wait()
        await remove(segment, removals, **options)

    cluster.store.table_remove = slow  # type: ignore[assignment, method-assign]
    first = asyncio.ensure_future(service.delete_scope_recursive("scope"))
    await began.wait()
    await service.create_scope("scope")
    await service.create_stream("scope", "a", StreamConfig(Scaling.fixed(1)))
    second = asyncio.ensure_future(service.delete_scope_recursive("scope"))
    for _ in range(100):
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, second)
    assert not await service.scope_exists("scope")
    assert not cluster.store.segments
    assert not [key for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]


async def test_scope_is_created_once_and_never_by_half_beside_its_deletion(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    """Of many concurrent creations one reports that it made the scope; a concurrent deletion leaves no table of it."""
    made = await asyncio.gather(*(service.create_scope("other") for _ in range(3)), return_exceptions=True)
    assert sorted(type(found).__name__ for found in made) == ["NoneType", "ScopeExistsError", "ScopeExistsError"]
    await service.delete_scope("other")
    create = cluster.store.create_table
    deletions = []

    async def racing(segment: str, **options: Any) -> None:
        if "/other/" in segment and not deletions:
            deletions.append(asyncio.ensure_future(service.delete_scope("other")))
            for _ in range(100):
                await asyncio.sleep(0)
        await create(segment, **options)

    cluster.store.create_table = racing  # type: ignore[method-assign]
    await service.create_scope("other")
    await asyncio.gather(*deletions)
    assert deletions
    assert not await service.scope_exists("other")
    assert not [name for name in cluster.store.tables if "/other/" in name]


# Over gRPC.


def table(name: str = "t", scope: str = "scope") -> pb.KeyValueTableInfo:
    return pb.KeyValueTableInfo(scope=scope, kvtName=name)


def config(
    name: str = "t", scope: str = "scope", partitions: int = 2, primary: int = 4, secondary: int = 4, rollover: int = 0
) -> pb.KeyValueTableConfig:
    return pb.KeyValueTableConfig(
        scope=scope, kvtName=name, partitionCount=partitions, primaryKeyLength=primary, secondaryKeyLength=secondary,
        rolloverSizeBytes=rollover,
    )  # fmt: skip


async def fails_with(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return failure.value.code().name


async def test_tables_over_grpc(connect: Callable[..., Awaitable[Wire]]) -> None:
    """API-34, K-2: create, list in pages, get, configuration, delete; missing scope, duplicate, bad name, bad sizes."""
    wire = await connect(ControllerSettings(page_entries_max=2))
    stub = wire.stub
    await wire.service.create_scope("scope")
    created, read, deleted = pb.CreateKeyValueTableStatus, pb.KeyValueTableConfigResponse, pb.DeleteKVTableStatus
    for name in ("t", "u", "v"):
        assert (await stub.createKeyValueTable(config(name))).status == created.SUCCESS  # type: ignore[misc]
    assert (await stub.createKeyValueTable(config())).status == created.TABLE_EXISTS  # type: ignore[misc]
    assert (await stub.createKeyValueTable(config(scope="none"))).status == created.SCOPE_NOT_FOUND  # type: ignore[misc]
    assert (await stub.createKeyValueTable(config("a_b"))).status == created.INVALID_TABLE_NAME  # type: ignore[misc]
    for bad in (config("w", partitions=0), config("w", primary=0), config("w", secondary=-1), config(""),
                config("w", rollover=-1)):  # fmt: skip
        assert await fails_with(stub.createKeyValueTable(bad)) == "INTERNAL"
    token, found = "", []
    while True:
        page = await stub.listKeyValueTablesInScope(  # type: ignore[misc]
            pb.KVTablesInScopeRequest(
                scope=pb.ScopeInfo(scope="scope"), continuationToken=pb.ContinuationToken(token=token)
            )
        )
        assert page.status == pb.KVTablesInScopeResponse.SUCCESS
        assert page.HasField("continuationToken")
        if not page.kvtables:
            break
        found += [(entry.scope, entry.kvtName) for entry in page.kvtables]
        token = page.continuationToken.token
    assert sorted(found) == [("scope", name) for name in ("t", "u", "v")]
    missing = await stub.listKeyValueTablesInScope(pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope="none")))  # type: ignore[misc]
    assert (missing.status, missing.HasField("continuationToken")) == (pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND, True)
    nonsense = pb.KVTablesInScopeRequest(
        scope=pb.ScopeInfo(scope="scope"), continuationToken=pb.ContinuationToken(token="!")
    )
    assert await fails_with(stub.listKeyValueTablesInScope(nonsense)) == "UNKNOWN"
    ranges = (await stub.getCurrentSegmentsKeyValueTable(table())).segmentRanges  # type: ignore[misc]
    # As recorded: the segments go by the table's name, without the suffix that is in their names on the store.
    assert [(r.segmentId.streamInfo.stream, r.segmentId.segmentId, r.minKey, r.maxKey) for r in ranges] == [
        ("t", 0, 0.0, 0.5),
        ("t", 1, 0.5, 1.0),
    ]
    assert await fails_with(stub.getCurrentSegmentsKeyValueTable(table("none"))) == "NOT_FOUND"
    answer = await stub.getKeyValueTableConfiguration(table())  # type: ignore[misc]
    assert (answer.status, answer.config) == (read.SUCCESS, config())
    assert (await stub.getKeyValueTableConfiguration(table("none"))).status == read.TABLE_NOT_FOUND  # type: ignore[misc]
    assert (await stub.deleteScope(pb.ScopeInfo(scope="scope"))).status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY  # type: ignore[misc]
    for name in ("t", "u", "v"):
        assert (await stub.deleteKeyValueTable(table(name))).status == deleted.SUCCESS  # type: ignore[misc]
        assert (await stub.deleteKeyValueTable(table(name))).status == deleted.TABLE_NOT_FOUND  # type: ignore[misc]
    assert (await stub.deleteScope(pb.ScopeInfo(scope="scope"))).status == pb.DeleteScopeStatus.SUCCESS  # type: ignore[misc]
