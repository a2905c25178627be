"""Scopes, the streams in them and their tags: what is there by half, and which numbers are given to segments."""

from __future__ import annotations

import pytest

from penstock.controller.errors import HalfCreatedStreamError
from penstock.controller.metadata import layout
from penstock.controller.metadata.catalog import tag_chunk
from penstock.controller.metadata.codec import decode, encode
from penstock.controller.metadata.records import ScopeRecord, TagChunk
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.controller.watermarks.mark_streams import MARK_CONFIGURATION, mark_segment
from penstock.model.errors import (
    ConnectionLostError,
    NoSuchScopeError,
    NoSuchStreamError,
    ScopeExistsError,
    StreamExistsError,
)
from penstock.model.names import segment_name
from penstock.model.policies import Scaling, StreamConfig
from support.controller_faults import ScriptedSegments
from support.in_process_cluster import InProcessCluster

CONFIG = StreamConfig(Scaling.fixed(2), tags=("red",))
#: Of a scope or a stream that is made by hand.
ID = "00000000-0000-4000-8000-000000000001"


async def half_create(service: ControllerService, depth: int, created_ms: int) -> None:
    """Leave behind what the first `depth` of four steps of a creation make, without an announcement."""
    catalog, requests = service._catalog, service._context.segments
    tables = catalog.tables_of("scope", "stream", await catalog.add_stream("scope", "stream", ID))
    if depth >= 2:
        await tables.create_tables()
    if depth >= 3:
        first_number = await catalog.first_segment_number("scope", "stream")
        assert await tables.create_records(CONFIG, created_ms, first_number)
    if depth >= 4:
        epoch = await tables.current_epoch()
        for segment in epoch.segments:
            await requests.create(segment_name("scope", "stream", segment.id), CONFIG.scaling, 0)
        await requests.create(mark_segment("scope", "stream", epoch).name, MARK_CONFIGURATION.scaling, 0)  # type: ignore[union-attr]
        await catalog.add_tags("scope", "stream", CONFIG.tags)


async def ids(service: ControllerService) -> list[int]:
    return [segment.id for segment in await service.current_segments("scope", "stream")]


async def test_a_scope_is_found_by_its_name_or_not_at_all(service: ControllerService) -> None:
    """S-003: a scope that exists has its name and an id; one that does not is not found by any call."""
    assert await service.scope_exists("scope")
    assert (await service.list_scopes("")).names == ("_system", "scope")
    assert await service._catalog.scope_id("scope", cached=False)
    assert not await service.scope_exists("missing")
    for ask in (
        service._catalog.scope_id("missing"),
        service.delete_scope("missing"),
        service.list_streams("missing", ""),
        service.create_stream("missing", "stream", CONFIG),
    ):
        with pytest.raises(NoSuchScopeError, match="missing"):
            await ask


@pytest.mark.parametrize("count", [0, 1])
async def test_a_scope_without_all_its_tables_is_replaced_by_the_next_creation(
    service: ControllerService, cluster: InProcessCluster, count: int
) -> None:
    """S-017: its record is there, its tables are not, or one of two; afterwards it is another, and takes streams."""
    await service._records.create(layout.SCOPES, "half", ScopeRecord(ID))
    tables = [layout.tags_in_scope("half", ID), layout.streams_in_scope("half", ID)]
    for table in tables[:count]:
        await service._records.store.create_table(table)
    with pytest.raises(NoSuchScopeError):
        await service.create_stream("half", "stream", CONFIG)
    await service.create_scope("half")
    assert not set(tables) & set(cluster.store.tables), "nothing of the half is left"
    await service.create_stream("half", "stream", CONFIG)
    assert (await service.list_streams("half", "")).names == ("stream",)
    with pytest.raises(ScopeExistsError, match="exists already"):
        await service.create_scope("half")


async def test_a_lost_connection_is_not_taken_for_a_missing_scope_or_stream(
    cluster: InProcessCluster, service: ControllerService
) -> None:
    """S-014: a request for either gets the connection error, also where an answer without an error is possible."""
    await service.create_stream("scope", "stream", CONFIG)
    segments = ScriptedSegments(cluster.store)
    other = cluster.build(ControllerSettings(attempts_max=2, retry_delay_ms_first=0), segments=segments)
    await other.start()
    await other.idle()
    segments.rule = lambda name, arguments: ConnectionLostError("cut off") if name.startswith("table_") else None
    for ask in (
        lambda: other.scope_exists("scope"),
        lambda: other.stream_exists("scope", "stream"),
        lambda: other.current_segments("scope", "stream"),
        lambda: other.is_segment_valid("scope", "stream", 0),
        lambda: other.list_scopes(""),
        lambda: other.list_streams("scope", ""),
        lambda: other.list_streams_by_tag("scope", "red", ""),
    ):
        with pytest.raises(ConnectionLostError):
            await ask()


@pytest.mark.parametrize("depth", [3, 4])
async def test_a_repeated_creation_reports_whether_the_stream_existed_or_was_being_created(
    service: ControllerService, cluster: InProcessCluster, depth: int
) -> None:
    """S-009: the same request for a stream that another one has left half created completes it, and says so.

    The next one gets that it exists. The configuration is that of the first one all the time.
    """
    await half_create(service, depth, cluster.clock_ms - 1000)
    with pytest.raises(StreamExistsError, match="was being created by another request, and is complete now"):
        await service.create_stream("scope", "stream", CONFIG)
    assert await ids(service) == [0, 1]
    with pytest.raises(StreamExistsError, match="exists already"):
        await service.create_stream("scope", "stream", CONFIG)
    assert await service.stream_configuration("scope", "stream") == CONFIG
    assert (await service.list_streams_by_tag("scope", "red", "")).names == ("stream",)


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_stream_without_records_is_not_found(
    service: ControllerService, cluster: InProcessCluster, depth: int
) -> None:
    """It is listed, with or without its tables: every call gets that there is no such stream."""
    await half_create(service, depth, cluster.clock_ms)
    for ask in (
        service.stream_configuration("scope", "stream"),
        service.current_segments("scope", "stream"),
        service.head("scope", "stream"),
        service.epoch_segments("scope", "stream", 0),
        service.segments_between("scope", "stream", {}, {0: 0, 1: 0}),
        service.is_stream_cut_valid("scope", "stream", {0: 0, 1: 0}),
    ):
        with pytest.raises(NoSuchStreamError):
            await ask
    assert not await service.stream_exists("scope", "stream")
    assert not await service.is_segment_valid("scope", "stream", 0)


@pytest.mark.parametrize("depth", [3, 4])
async def test_a_stream_that_is_being_made_is_neither_written_nor_read_yet(
    service: ControllerService, cluster: InProcessCluster, depth: int
) -> None:
    """It is not ready to be written, and has no beginning to read from; its records can be read."""
    await half_create(service, depth, cluster.clock_ms)
    with pytest.raises(HalfCreatedStreamError):
        await service.current_segments("scope", "stream")
    with pytest.raises(NoSuchStreamError):
        await service.head("scope", "stream")
    assert not await service.is_segment_valid("scope", "stream", 0)
    assert await service.stream_configuration("scope", "stream") == CONFIG
    assert [segment.id for segment in await service.epoch_segments("scope", "stream", 0)] == [0, 1]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
async def test_a_stream_that_was_made_by_half_can_be_deleted_and_its_name_given_again(
    service: ControllerService, cluster: InProcessCluster, depth: int
) -> None:
    """S-011: listed only; with its tables; with its records; with its segments and tags. Nothing of it is left over."""
    await half_create(service, depth, cluster.clock_ms)
    assert (await service.list_streams("scope", "")).names == ("stream",)
    await service.delete_stream("scope", "stream")
    assert (await service.list_streams("scope", "")).names == ()
    assert (await service.list_streams_by_tag("scope", "red", "")).names == ()
    assert not await service.stream_exists("scope", "stream")
    assert not cluster.store.segments
    assert not [name for name in cluster.store.tables if "/scope/stream/" in name]
    await service.create_stream("scope", "stream", CONFIG)
    # Numbers that were on record may have been given away.
    assert await ids(service) == ([2, 3] if depth >= 3 else [0, 1])
    assert (await service.list_streams_by_tag("scope", "red", "")).names == ("stream",)


async def test_numbers_of_segments_continue_where_the_last_life_of_a_name_has_ended(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    """S-013: from 0 for a new name, behind the highest for one that was deleted, also when its scope is gone by now."""

    async def first_number(of: ControllerService = service, stream: str = "stream") -> int:
        return await of._catalog.first_segment_number("scope", stream)

    assert await first_number() == 0
    await service.create_stream("scope", "stream", CONFIG)
    await service.scale_stream("scope", "stream", [0], [(0.0, 0.25), (0.25, 0.5)])
    await service.idle()
    await service.seal_stream("scope", "stream")
    await service.delete_stream("scope", "stream")
    assert await first_number() == 4
    assert await first_number(stream="other") == 0
    await service.delete_scope("scope")
    second = await cluster.start()
    assert [await first_number(service), await first_number(second)] == [4, 4]
    await second.create_scope("scope")
    await second.create_stream("scope", "stream", CONFIG)
    assert await ids(second) == [4, 5]


async def test_streams_of_a_tag_come_and_go_and_leave_an_empty_record(service: ControllerService) -> None:
    """S-193: added twice and removed twice they are there once and gone; the record of none is stored, and read."""
    catalog, first = service._catalog, "stream-0"
    chunk = tag_chunk(first)
    second = next(name for name in map("stream-{}".format, range(1, 1000)) if tag_chunk(name) == chunk)
    table = layout.tags_in_scope("scope", await catalog.scope_id("scope"))

    async def stored() -> TagChunk:
        return (await service._records.get(table, layout.tag_key(chunk, "red"), TagChunk)).record  # type: ignore[union-attr]

    for _ in range(2):
        await catalog.add_tags("scope", first, ["red"])
        assert await stored() == TagChunk((first,))
    await catalog.add_tags("scope", second, ["red", "blue"])
    assert await stored() == TagChunk(tuple(sorted((first, second))))
    for _ in range(2):
        await catalog.remove_tags("scope", first, ["red"])
        assert await stored() == TagChunk((second,))
    await catalog.remove_tags("scope", second, ["red"])
    assert await stored() == TagChunk(())
    assert (await service.list_streams_by_tag("scope", "red", "")).names == ()
    assert (await service.list_streams_by_tag("scope", "blue", "")).names == (second,)
    for record in (TagChunk(()), TagChunk((first, "ü"))):
        assert decode(TagChunk, encode(record), table=table, key="k") == record
