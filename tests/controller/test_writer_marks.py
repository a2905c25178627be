"""Times and positions that writers note: through a real gRPC server. Shows API-29."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from penstock.controller.grpc.convert import transaction_id_message
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.watermarks import writer_marks
from penstock.model.errors import NoSuchStreamError, StorageError
from penstock.model.names import segment_id, segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import TableUpdate
from penstock.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from controller.conftest import Wire

NOTED, REMOVED = pb.TimestampResponse, pb.RemoveWriterResponse


@pytest.fixture
async def note(wire: Wire) -> Callable[..., Awaitable[int]]:
    """Note a time on stream scope/a, of two segments, and return the result."""
    await wire.service.create_scope("scope")
    await wire.service.create_stream("scope", "a", StreamConfig(Scaling.fixed(2)))

    async def send(timestamp: int, cut: dict[int, int], writer: str = "w", stream: str = "a") -> Any:
        position = pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream=stream), cut=cut)
        request = pb.TimestampFromWriter(writer=writer, position=position, timestamp=timestamp)
        return (await wire.stub.noteTimestampFromWriter(request)).result  # type: ignore[misc]

    return send


async def test_marks_move_forward_only(note: Callable[..., Awaitable[int]]) -> None:
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


async def test_missing_stream_and_bad_writers_are_errors(note: Callable[..., Awaitable[int]]) -> None:
    """A missing stream is INTERNAL_ERROR; an empty or endless name of a writer is a bad request."""
    assert await note(1, {0: 0}, stream="none") == NOTED.INTERNAL_ERROR
    for writer in ("", "x" * 251):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await note(1, {0: 0}, writer=writer)
        assert failure.value.code() is grpc.StatusCode.INTERNAL


async def test_fault_of_the_store_is_an_internal_error(note: Callable[..., Awaitable[int]], wire: Wire) -> None:
    """And the mark stays as it was."""
    assert await note(10, {0: 5}) == NOTED.SUCCESS
    put = wire.cluster.store.table_put

    async def broken(*arguments: str | list[TableUpdate], **options: Any) -> None:
        raise StorageError("the disk is full")

    wire.cluster.store.table_put = broken  # type: ignore[assignment, method-assign]
    with pytest.raises(grpc.aio.AioRpcError) as failure:  # The kind that clients repeat.
        await note(11, {0: 6})
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    wire.cluster.store.table_put = put  # type: ignore[method-assign]
    assert await note(10, {0: 5}) == NOTED.SUCCESS


async def test_first_marks_of_many_writers_at_once_are_all_kept(note: Callable[..., Awaitable[int]]) -> None:
    """The first writer to arrive makes the table."""
    assert await asyncio.gather(*(note(5, {0: 5}, writer=f"w{n}") for n in range(20))) == [NOTED.SUCCESS] * 20
    for number in range(20):
        assert await note(4, {0: 5}, writer=f"w{number}") == NOTED.INVALID_TIME


async def test_first_mark_beside_the_deletion_of_its_stream_leaves_no_table(
    note: Callable[..., Awaitable[int]], wire: Wire
) -> None:
    """The mark finds no table, and the stream is deleted before it makes one: such a table would never be removed."""
    store, service = wire.cluster.store, wire.service
    put = store.table_put
    deletions = []

    async def racing(segment: str, updates: list[TableUpdate], **options: Any) -> Sequence[int]:
        if "writersPositions" in segment and not deletions:
            await service.seal_stream("scope", "a")
            deletions.append(await service.delete_stream("scope", "a"))  # type: ignore[func-returns-value]
        return await put(segment, updates, **options)

    store.table_put = racing  # type: ignore[assignment, method-assign]
    with pytest.raises(NoSuchStreamError):
        await service.writer_marks.note("scope", "a", "w", 1, {0: 1})
    assert deletions
    assert not [name for name in store.tables if "writersPositions" in name]


async def test_a_removed_writer_may_return_and_unknown_writers_are_reported(
    note: Callable[..., Awaitable[int]], wire: Wire
) -> None:
    """Removal keeps the mark; a missing stream looks like an unknown writer; marks go with their stream."""

    async def remove(writer: str, stream: str = "a") -> Any:
        request = pb.RemoveWriterRequest(writer=writer, stream=pb.StreamInfo(scope="scope", stream=stream))
        return (await wire.stub.removeWriter(request)).result  # type: ignore[misc]

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


async def begin(wire: Wire) -> TransactionId:
    return (await wire.service.transactions.create("scope", "a", 30_000)).id


async def write(wire: Wire, transaction: TransactionId, data: bytes, segment: int = 0) -> None:
    name = transaction_segment_name(segment_name("scope", "a", segment), transaction.high, transaction.low)
    await wire.cluster.store.append(name, data)


async def commit(wire: Wire, transaction: TransactionId, *, writer: str = "w", timestamp: int = 7) -> None:
    """Commit as clients do, and wait until it is merged."""
    request = pb.TxnRequest(
        streamInfo=pb.StreamInfo(scope="scope", stream="a"),
        txnId=transaction_id_message(transaction), writerId=writer, timestamp=timestamp,
    )  # fmt: skip
    assert (await wire.stub.commitTransaction(request)).status == pb.TxnStatus.SUCCESS  # type: ignore[misc]
    await wire.service.idle()


async def mark_of(wire: Wire, writer: str = "w") -> Any:
    """Return the time and the position that are on record of a writer, None if there are none."""

    async def read(tables: StreamTables) -> Any:
        return await writer_marks._read(tables, writer)

    found = await wire.service.queries.on_stream("scope", "a", read)
    return None if found is None else (found.record.timestamp, found.record.position)


async def test_commit_with_writer_and_time_notes_where_the_transaction_ends(
    note: Callable[..., Awaitable[int]], wire: Wire
) -> None:
    """S-172: as if the writer had noted it when its events were in the stream; an earlier mark is refused then."""
    await wire.cluster.store.append("scope/a/0.#epoch.0", b"12345")
    transaction = await begin(wire)
    await write(wire, transaction, b"678")
    await commit(wire, transaction)
    assert await mark_of(wire) == (7, {0: 8, 1: 0})
    assert await note(6, {0: 9, 1: 9}) == NOTED.INVALID_TIME
    assert await note(8, {0: 7, 1: 0}) == NOTED.INVALID_POSITION
    assert await note(8, {0: 8, 1: 0}) == NOTED.SUCCESS


async def test_a_repeated_commit_writes_no_second_mark(note: Callable[..., Awaitable[int]], wire: Wire) -> None:
    """S-149: of two writers each has its mark, once; it is the same row afterwards."""

    async def row_of(writer: str) -> Versioned[Any]:
        async def read(tables: StreamTables) -> Any:
            return await writer_marks._read(tables, writer)

        return await wire.service.queries.on_stream("scope", "a", read)

    made = {writer: await begin(wire) for writer in "wv"}
    for timestamp, (writer, transaction) in enumerate(made.items()):
        await write(wire, transaction, b"678")
        await commit(wire, transaction, writer=writer, timestamp=timestamp)
    before = {writer: await row_of(writer) for writer in made}
    assert [(row.record.timestamp, row.record.position) for row in before.values()] == [
        (0, {0: 3, 1: 0}), (1, {0: 6, 1: 0})
    ]  # fmt: skip
    for writer, transaction in made.items():
        await commit(wire, transaction, writer=writer, timestamp=9)
    assert {writer: await row_of(writer) for writer in made} == before


async def test_a_commit_without_writer_or_time_writes_no_mark(note: Callable[..., Awaitable[int]], wire: Wire) -> None:
    """Java's client sends its writer's id always, and the smallest number for no time."""
    for writer, timestamp in (("", 7), ("w", -(1 << 63)), ("w" * 251, 7)):
        await commit(wire, await begin(wire), writer=writer, timestamp=timestamp)
    assert not [name for name in wire.cluster.store.tables if "writersPositions" in name]


async def test_commits_that_are_merged_together_note_the_last_of_each_writer(
    note: Callable[..., Awaitable[int]], wire: Wire
) -> None:
    """A batch has transactions of several writers, and several of one; a time that went back counts for nothing."""
    made = [await begin(wire) for _ in range(4)]
    for transaction in made:
        await write(wire, transaction, b"ten bytes!")
    gate = asyncio.Event()
    merge = wire.cluster.store.merge_segments

    async def held(target: str, sources: list[str]) -> Sequence[int]:
        await gate.wait()
        return await merge(target, sources)

    wire.cluster.store.merge_segments = held  # type: ignore[assignment, method-assign]
    decide = wire.service.transactions.commit
    # The first one is a batch of its own; the others wait for it, and are merged together.
    for transaction, writer, timestamp in zip(made, "xwvw", (1, 5, 4, 3), strict=True):
        await decide("scope", "a", transaction, writer_id=writer, timestamp=timestamp)
        await asyncio.sleep(0)
    gate.set()
    await wire.service.idle()
    assert [await mark_of(wire, writer) for writer in "xvw"] == [
        (1, {0: 10, 1: 0}), (4, {0: 30, 1: 0}), (5, {0: 20, 1: 0})
    ]  # fmt: skip


async def test_mark_of_a_commit_that_could_not_be_written_is_written_later(
    note: Callable[..., Awaitable[int]], wire: Wire
) -> None:
    """The transaction is merged, the mark's write fails: the commit is not complete before that is done."""
    put, failures = wire.cluster.store.table_put, []

    async def broken(segment: str, updates: list[TableUpdate], **options: Any) -> Sequence[int]:
        if "writersPositions" in segment and not failures:
            failures.append(segment)
            raise StorageError("the disk is full")
        return await put(segment, updates, **options)

    wire.cluster.store.table_put = broken  # type: ignore[assignment, method-assign]
    transaction = await begin(wire)
    await write(wire, transaction, b"678")
    await commit(wire, transaction)
    assert failures
    assert await mark_of(wire) == (7, {0: 3, 1: 0})


async def test_commit_that_a_scale_overtook_notes_the_segments_it_went_to(
    note: Callable[..., Awaitable[int]], wire: Wire
) -> None:
    """They are those of the epoch that was put in for it, and are sealed; what follows is further on."""
    transaction = await begin(wire)
    await write(wire, transaction, b"678")
    await wire.service.scale_stream("scope", "a", [0], [(0.0, 0.25), (0.25, 0.5)])
    await wire.service.idle()
    await commit(wire, transaction)
    assert await mark_of(wire) == (7, {segment_id(0, 2): 3, segment_id(1, 2): 0})
