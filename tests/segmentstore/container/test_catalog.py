"""Active and inactive segments: putting away, coming back, limits, and crashes in between.

Over a container with a log and chunks in memory; `lives.restart` crashes it and replays the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.model.errors import (
    ContainerOfflineError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentInactiveError,
    SegmentSealedError,
    TooManyActiveSegmentsError,
)
from penstock.model.segments import NO_VALUE, VERSION_ANY, TableRemoval, TableUpdate
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.catalog import metadata_segment
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.table_names import tables_of
from penstock.wire.statistics import TablesPage
from support.containers import Incarnations, append, read_all, turns, until

A, B = "s/a/0.#epoch.0", "s/b/0.#epoch.0"
WRITER = b"w" * 16


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    """A container's lives; closed in the end."""
    incarnations = Incarnations()
    yield incarnations
    await incarnations.close()


async def put_away(container: SegmentContainer, *names: str) -> None:
    """Flush and deactivate segments; every one of them must go."""
    await container.flush()
    segments = [container.state.metadata.by_name[name] for name in names]
    assert await container.catalog.deactivate(segments, len(segments)) == len(segments)
    await container.pipeline.barrier()  # A crash may follow.
    for name in names:
        assert name not in container.state.metadata.by_name


async def test_a_segment_comes_back_as_it_was_with_its_id(lives: Incarnations) -> None:
    """SS-22: put away, restarted, touched: same id, length, start, seal, attributes, policy and bytes."""
    container = await lives.start()
    segment = await container.create(A, scale_type=1, target_rate=7, rollover_bytes=4096)
    await append(container, A, b"0123456789")
    await container.truncate(A, 3)
    assert await container.update_attribute(A, WRITER, value=5, expected=NO_VALUE)
    await container.seal(A)
    await put_away(container, A)
    container = await lives.restart(container)
    assert A not in container.state.metadata.by_name
    back = await container.find(A)
    assert back is not segment
    assert (back.id, back.length, back.start_offset, back.is_sealed) == (segment.id, 10, 3, True)
    assert (back.scale_type, back.target_rate, back.rollover_bytes) == (1, 7, 4096)
    assert await container.get_attribute(A, WRITER) == 5
    assert await read_all(container, A) == b"3456789"
    with pytest.raises(SegmentSealedError):
        await append(container, A, b"x")


async def test_appends_continue_after_the_stored_bytes(lives: Incarnations) -> None:
    """A segment that came back takes appends at its end, and is flushed and put away again; a crash at any point."""
    container = await lives.start()
    await container.create(A)
    expected = b""
    for number in range(4):
        await container.find(A)
        piece = f"piece {number} ".encode()
        await append(container, A, piece)
        expected += piece
        if number % 2:
            container = await lives.restart(container)
        assert await read_all(container, await container.find(A)) == expected
        await put_away(container, A)
        container = await lives.restart(container)
    assert await read_all(container, await container.find(A)) == expected


async def test_info_does_not_activate(lives: Incarnations) -> None:
    """SS-251: information of an inactive segment comes from its record; the number of active ones stays."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, b"abc")
    await put_away(container, A)
    info = await container.info(A)
    assert (info.length, info.start_offset, info.is_sealed, info.is_table) == (3, 0, False, False)
    assert container.state.metadata.active_count == 0
    with pytest.raises(NoSuchSegmentError):
        await container.info(B)


async def test_pinned_segments_stay_and_do_not_count(lives: Incarnations) -> None:
    """SS-21: the container's own tables are not counted as active and survive a clean-up of everything."""
    container = await lives.start()
    await container.create(A)
    await put_away(container, A)
    assert container.state.metadata.active_count == 0
    systems = [segment for segment in container.segments() if segment.is_system]
    assert len(systems) == 2
    assert await container.catalog.deactivate(systems, 10) == 0
    assert all(segment.name in container.state.metadata.by_name for segment in systems)


async def test_what_is_in_use_or_not_stored_stays(lives: Incarnations) -> None:
    """SS-23: bytes that are only in the log, or a call under way, keep a segment in memory."""
    container = await lives.start()
    segment = await container.create(A)
    await append(container, A, b"abc")
    assert await container.catalog.deactivate([segment], 1) == 0
    await container.flush()
    with segment.in_use():
        assert await container.catalog.deactivate([segment], 1) == 0
    assert await container.catalog.deactivate([segment], 1) == 1


async def test_a_segment_used_while_its_record_is_written_stays(lives: Incarnations) -> None:
    """SS-24: an append between the record and the drop keeps the segment; nothing of the append is lost."""
    container = await lives.start()
    segment = await container.create(A)
    await append(container, A, b"abc")
    await container.flush()
    lives.logs.hold_appends(0)
    leaving = asyncio.create_task(container.catalog.deactivate([segment], 1))
    await turns()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    container.acceptor.append(segment, AppendRequest(b"def"), completer(done))
    lives.logs.release_appends(0)
    assert await leaving == 0
    await done
    assert container.segment(A) is segment
    container = await lives.restart(container)
    assert await read_all(container, A) == b"abcdef"


async def test_the_limit_makes_room_first_and_then_refuses(lives: Incarnations) -> None:
    """SS-20: with ten active allowed an eleventh is made after others went; with storage out it is refused."""
    container = await lives.start(active_segments_max=10)
    names = [f"s/t{number}/0.#epoch.0" for number in range(30)]
    for name in names:
        await container.create(name)
        await append(container, name, name.encode())
        assert container.state.metadata.active_count <= 10
    for name in names:
        assert await read_all(container, await container.find(name)) == name.encode()
    await container.flush()
    lives.chunks.fail("write", times=1000)
    for segment in list(container.segments()):
        if not segment.is_system:
            await append(container, segment.name, b"more")
    with pytest.raises(TooManyActiveSegmentsError, match="flushing them failed"):
        await container.create("s/late/0.#epoch.0")
    inactive = next(name for name in names if name not in container.state.metadata.by_name)
    with pytest.raises(TooManyActiveSegmentsError):
        await container.find(inactive)
    lives.chunks.heal()
    await container.create("s/late/0.#epoch.0")
    assert await read_all(container, await container.find(inactive)) == inactive.encode()


async def test_idle_segments_are_deactivated_by_themselves(lives: Incarnations) -> None:
    """Segments not used between two passes are deactivated, down to the number that may stay."""
    container = await lives.start(active_segments_idle_max=2, deactivation_interval_s=0.01)
    for number in range(6):
        await container.create(f"s/t{number}/0.#epoch.0")
    await until(lambda: container.state.metadata.active_count == 2)
    assert container.catalog.deactivated_count == 4


async def test_a_failure_of_the_search_for_idle_segments_ends_the_container(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SS-15: what the clean-up raises is the container's failure; it does not continue without."""
    container = await lives.start(deactivation_interval_s=0.01)

    async def fail() -> int:
        raise RuntimeError("no clean-up")

    monkeypatch.setattr(container.catalog, "deactivate_idle", fail)
    await until(lambda: bool(lives.failures))
    assert str(lives.failures[0]) == "no clean-up"
    with pytest.raises(ContainerOfflineError):
        container.segment(A)


async def test_a_failure_of_any_job_in_the_background_ends_the_container(lives: Incarnations) -> None:
    """A bug in one must not leave a container that serves on without it."""
    container = await lives.start()

    async def fail() -> None:
        raise RuntimeError("a bug")

    container.life.spawn(fail())
    await until(lambda: bool(lives.failures))
    assert str(lives.failures[0]) == "a bug"


async def test_creating_an_inactive_name_is_refused(lives: Incarnations) -> None:
    """A name is taken whether its segment is in memory or not; and free again behind its deletion."""
    container = await lives.start()
    await container.create(A)
    await put_away(container, A)
    with pytest.raises(SegmentExistsError):
        await container.create(A)
    await container.delete(A)
    with pytest.raises(NoSuchSegmentError):
        await container.find(A)
    await container.create(A)
    assert (await container.info(A)).length == 0


async def test_a_deleted_segment_does_not_come_back_with_its_record(lives: Incarnations) -> None:
    """Deleted after it was put away and came back, with a crash behind each step of the deletion."""
    for step in range(4):
        container = await lives.start()
        name = f"s/step{step}/0.#epoch.0"
        await container.create(name)
        await append(container, name, b"abc")
        await put_away(container, name)
        await container.find(name)
        lives.logs.hold_appends(0)
        deleting = asyncio.create_task(container.delete(name))
        for _ in range(step):
            lives.logs.release_appends(0)
            await turns(3)
            lives.logs.hold_appends(0)
        lives.logs.release_appends(0)
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)
        container = await lives.restart(container)
        try:
            segment = await container.find(name)
        except NoSuchSegmentError:
            pass
        else:
            assert await read_all(container, segment) == b"abc"
            await container.delete(name)
        container = await lives.restart(container)
        with pytest.raises(NoSuchSegmentError):
            await container.find(name)
        await lives.stop(container)


async def test_records_of_many_that_are_deleted_at_once_go_together(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two syncs, not one for each. Calls that are cut off meanwhile, or come twice, change nothing for the others."""
    container = await lives.start()
    names = [f"s/many{number}/0.#epoch.0" for number in range(40)]
    for name in names:
        await container.create(name)
        await append(container, name, b"abc")
    await put_away(container, *names)
    for name in names:
        await container.find(name)
    removed: list[int] = []
    remove = container.tables.remove

    async def counted(segment: Segment, removals: Sequence[TableRemoval], expected_offset: int) -> None:
        if segment.name == metadata_segment(container.id):
            removed.append(len(removals))
        await remove(segment, removals, expected_offset)

    monkeypatch.setattr(container.tables, "remove", counted)
    lives.logs.hold_appends(0)
    deleting = [asyncio.create_task(container.delete(name)) for name in names]
    again = asyncio.create_task(container.delete(names[7]))
    await turns(5)
    for number in (5, 7):
        deleting[number].cancel()
    await turns(5)
    lives.logs.release_appends(0)
    ends = await asyncio.gather(*deleting, return_exceptions=True)
    assert [number for number, end in enumerate(ends) if end is not None] == [5, 7]
    await again
    assert len(removed) <= 3, removed
    assert sum(removed) >= len(names) - 1
    container = await lives.restart(container)
    for name in names:
        if name == names[5]:
            assert await read_all(container, await container.find(name)) == b"abc"
            continue
        with pytest.raises(NoSuchSegmentError):
            await container.find(name)


async def test_a_merged_source_does_not_come_back_with_its_record(lives: Incarnations) -> None:
    """Target and source both inactive: the merge activates them, moves the bytes, and the source's name is free."""
    container = await lives.start()
    source = f"{A}#transaction.{'0' * 32}"
    for name, data in ((A, b"target "), (source, b"source")):
        await container.create(name)
        await append(container, name, data)
    await put_away(container, A, source)
    assert await container.merges.merge(A, source) == 13
    container = await lives.restart(container)
    assert await read_all(container, A) == b"target source"
    with pytest.raises(NoSuchSegmentError):
        await container.find(source)
    await put_away(container, A)
    assert await read_all(container, await container.find(A)) == b"target source"


async def test_all_tables_of_a_scope_are_reported_wherever_they_are(lives: Incarnations) -> None:
    """In memory, put away, put away or deleted while pages are turned; none of another kind, scope or partition."""
    container = await lives.start()
    names = [f"s/t{number:02}_kvtable/0.#epoch.0" for number in range(12)]
    for name in names:
        await container.create(name, flags=SegmentFlags.TABLE)
    for name in ("s/a_kvtable/0.#epoch.0", "s2/t_kvtable/0.#epoch.0", "s/t_kvtable/1.#epoch.0"):
        await container.create(name, flags=SegmentFlags(0) if name.startswith("s/a") else SegmentFlags.TABLE)
    wanted = ("s/", "_kvtable/0.#epoch.0")
    assert await tables_of(container, *wanted, "", 5) == TablesPage([*names, *names])
    await put_away(container, *names[:8], "s/a_kvtable/0.#epoch.0", "s2/t_kvtable/0.#epoch.0")
    container = await lives.restart(container)
    page = await tables_of(container, *wanted, "", 5)
    assert page.after
    found = list(page.names)
    await put_away(container, names[8])
    await container.find(names[7])
    await container.delete(names[7])
    while page.after:
        page = await tables_of(container, *wanted, page.after, 5)
        assert len(page.names) <= 10
        found += page.names
    assert set(found) - {names[7]} == set(names) - {names[7]}


async def test_many_callers_share_one_activation(lives: Incarnations) -> None:
    """SS-17: fifty appends that find their segment inactive all land, behind one activation, in the order they came."""
    container = await lives.start()
    await container.create(A)
    await put_away(container, A)
    with pytest.raises(SegmentInactiveError):
        container.segment(A)

    async def add(number: int) -> None:
        segment = await container.find(A)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        container.acceptor.append(segment, AppendRequest(number.to_bytes(2, "big")), completer(done))
        await done

    await asyncio.gather(*map(add, range(50)))
    assert container.catalog.activated_count == 1
    data = await read_all(container, A)
    assert [int.from_bytes(data[at : at + 2], "big") for at in range(0, 100, 2)] == list(range(50))


async def test_a_table_comes_back_with_its_keys(lives: Incarnations) -> None:
    """A table segment that was put away is scanned again when it is used."""
    container = await lives.start()
    await container.create(A, flags=SegmentFlags.TABLE)
    await container.tables.put(await container.find(A), [TableUpdate(b"k", b"v", VERSION_ANY)], -1)
    await put_away(container, A)
    container = await lives.restart(container)
    (entry,) = await container.tables.get(await container.find(A), [b"k"])
    assert entry is not None
    assert entry.value == b"v"


async def test_many_more_segments_than_fit_keep_all_their_bytes(lives: Incarnations) -> None:
    """2 000 segments, 50 in memory, two rounds with a crash between; checkpoints hold the active ones only."""
    container = await lives.start(active_segments_max=50)
    names = [f"s/t{number}/0.#epoch.0" for number in range(2000)]
    for name in names:
        await container.create(name)
        await append(container, name, name.encode())
    container = await lives.restart(container)
    assert container.state.metadata.active_count <= 50
    for name in names[::7]:
        await container.find(name)
        await append(container, name, b" again")
    assert len(container.state.metadata.snapshot()) < 50 * 400 + 100_000
    for name in names[::21]:
        assert await read_all(container, await container.find(name)) == name.encode() + b" again"


async def test_an_interrupted_freeing_is_finished_by_the_next_life(lives: Incarnations) -> None:
    """SS-26: storage is freed, the answer is lost or the process dies before that is noted; the repeat succeeds."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, b"abc")
    await put_away(container, A)
    await container.find(A)
    await container.delete(A)
    lives.chunks.fail("delete", has_effect=True)
    await asyncio.gather(container.flush(), return_exceptions=True)
    container = await lives.restart(container)
    await container.flush()
    assert not container.state.gone
    assert await container.storage._user.info(A) is None
    with pytest.raises(NoSuchSegmentError):
        await container.delete(A)
    assert not await container.catalog.exists(A)


async def test_an_append_to_an_empty_source_before_its_merge_is_not_lost(lives: Incarnations) -> None:
    """SS-28: the source was empty when the merge was asked for; what comes before its seal is merged, or refused."""
    container = await lives.start()
    source = f"{A}#transaction.{'0' * 32}"
    for name in (A, source):
        await container.create(name)
    await put_away(container, source)  # So that the merge has to wait for it.
    merging = asyncio.create_task(container.merges.merge(A, source))
    segment = await container.find(source)
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        container.acceptor.append(segment, AppendRequest(b"late"), completer(outcome))
        await outcome
        expected = b"late"
    except SegmentSealedError:
        expected = b""
    assert await merging == len(expected)
    container = await lives.restart(container)
    assert await read_all(container, A) == expected


async def test_a_record_that_the_log_does_not_contain_is_removed_with_its_segment(lives: Incarnations) -> None:
    """Crashed between the record and `Deactivate`, then deleted: the segment must not come back from its record."""
    container = await lives.start()
    segment = await container.create(A)
    await append(container, A, b"abc")
    await container.flush()
    lives.logs.hold_appends(0)
    leaving = asyncio.create_task(container.catalog.deactivate([segment], 1))
    await turns()
    with segment.in_use():  # So that it stays, as after a crash before `Deactivate`.
        lives.logs.release_appends(0)
        assert await leaving == 0
    assert segment.has_record
    container = await lives.restart(container)
    await container.delete(A)
    container = await lives.restart(container)
    with pytest.raises(NoSuchSegmentError):
        await container.find(A)
