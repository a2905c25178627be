"""Times and positions that writers note: through a real gRPC server. Shows API-29."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from penstock.model.errors import NoSuchStreamError, StorageError
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb

NOTED, REMOVED = pb.TimestampResponse, pb.RemoveWriterResponse


@pytest.fixture
async def note(wire):
    """Note a time on stream scope/a, of two segments, and return the result."""
    await wire.service.create_scope("scope")
    await wire.service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2)))

    async def send(timestamp, cut, writer="w", stream="a"):
        position = pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream=stream), cut=cut)
        request = pb.TimestampFromWriter(writer=writer, position=position, timestamp=timestamp)
        return (await wire.stub.noteTimestampFromWriter(request)).result

    return send


async def test_marks_move_forward_only(note):
    """Later or equal time and position succeed, earlier ones do not; other writers are not touched."""
    assert await note(10, {0: 5, 1: 5}) == NOTED.SUCCESS
    assert await note(10, {0: 5, 1: 5}) == NOTED.SUCCESS
    assert await note(11, {0: 6, 1: 5}) == NOTED.SUCCESS
    assert await note(10, {0: 7, 1: 5}) == NOTED.INVALID_TIME
    assert await note(12, {0: 5, 1: 5}) == NOTED.INVALID_POSITION
    assert await note(12, {0: 9}) == NOTED.INVALID_POSITION
    assert await note(12, {}) == NOTED.INVALID_POSITION
    assert await note(1, {0: 1, 1: 1}, writer="v") == NOTED.SUCCESS
    # Segments that follow: those noted before need not be there any more.
    assert await note(12, {1: 5, 1 << 32: 0}) == NOTED.SUCCESS
    assert await note(-5, {0: 0}, writer="u") == NOTED.SUCCESS


async def test_missing_stream_and_bad_writers_are_errors(note):
    """A missing stream is INTERNAL_ERROR; an empty or endless name of a writer is a bad request."""
    assert await note(1, {0: 0}, stream="none") == NOTED.INTERNAL_ERROR
    for writer in ("", "x" * 251):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await note(1, {0: 0}, writer=writer)
        assert failure.value.code() is grpc.StatusCode.INTERNAL


async def test_fault_of_the_store_is_an_internal_error(note, wire):
    """And the mark stays as it was."""
    assert await note(10, {0: 5}) == NOTED.SUCCESS
    put = wire.cluster.store.table_put

    async def broken(*arguments, **options):
        raise StorageError("the disk is full")

    wire.cluster.store.table_put = broken
    with pytest.raises(grpc.aio.AioRpcError) as failure:  # The kind that clients repeat.
        await note(11, {0: 6})
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    wire.cluster.store.table_put = put
    assert await note(10, {0: 5}) == NOTED.SUCCESS


async def test_first_marks_of_many_writers_at_once_are_all_kept(note):
    """The table is made by whoever comes first."""
    assert await asyncio.gather(*(note(5, {0: 5}, writer=f"w{n}") for n in range(20))) == [NOTED.SUCCESS] * 20
    for number in range(20):
        assert await note(4, {0: 5}, writer=f"w{number}") == NOTED.INVALID_TIME


async def test_first_mark_beside_the_deletion_of_its_stream_leaves_no_table(note, wire):
    """The mark finds no table, and the stream is deleted before it has made one: nobody would ever remove that."""
    store, service = wire.cluster.store, wire.service
    put = store.table_put
    deletions = []

    async def racing(segment, updates, **options):
        if "writersPositions" in segment and not deletions:
            await service.seal_stream("scope", "a")
            deletions.append(await service.delete_stream("scope", "a"))
        return await put(segment, updates, **options)

    store.table_put = racing
    with pytest.raises(NoSuchStreamError):
        await service.writer_marks.note("scope", "a", "w", 1, {0: 1})
    assert deletions
    assert not [name for name in store.tables if "writersPositions" in name]


async def test_removed_writer_may_come_back_and_unknown_ones_are_told(note, wire):
    """Removal keeps the mark; a missing stream looks like an unknown writer; marks go with their stream."""

    async def remove(writer, stream="a"):
        request = pb.RemoveWriterRequest(writer=writer, stream=pb.StreamInfo(scope="scope", stream=stream))
        return (await wire.stub.removeWriter(request)).result

    assert await remove("w") == REMOVED.UNKNOWN_WRITER
    await note(10, {0: 5})
    assert await remove("w") == await remove("w") == REMOVED.SUCCESS
    assert await remove("v") == REMOVED.UNKNOWN_WRITER
    assert await remove("w", "none") == REMOVED.UNKNOWN_WRITER
    assert await note(9, {0: 5}) == NOTED.INVALID_TIME
    assert await note(11, {0: 5}) == NOTED.SUCCESS
    await wire.service.seal_stream("scope", "a")
    await wire.service.delete_stream("scope", "a")
    assert not [name for name in wire.cluster.store.tables if "writersPositions" in name]
