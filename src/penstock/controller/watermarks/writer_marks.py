"""`WriterMarks`: the times that writers note on a stream, with their positions at those times.

`Watermarks` makes watermarks from them, and removes the marks of writers that have left or become silent.
A writer notes a time itself, or gives it with a transaction: then its position is the end of the transaction. The marks
of a stream are rows of one table, which is deleted with the stream.

Source: controller-api 9.14 and 9.15; controller-internals 15.1.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.controller.errors import NoSuchWriterError, WriterPositionError, WriterTimeError
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata import layout
from penstock.controller.metadata.catalog import Catalog
from penstock.controller.metadata.marked_streams import MarkedStreams
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import WriterMark
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.model.errors import InvalidArgumentError, MetadataConflictError, NoSuchSegmentError, NoSuchStreamError
from penstock.model.names import USER_NAME_LENGTH_MAX
from penstock.model.segments import VERSION_ABSENT

_logger = logging.getLogger(__name__)


def check_mark(previous: WriterMark, timestamp: int, position: Mapping[int, int]) -> None:
    """Raise `WriterTimeError` or `WriterPositionError` if a mark does not follow the previous one. Equal is fine."""
    if timestamp < previous.timestamp:
        raise WriterTimeError(f"time {timestamp} is before {previous.timestamp}, the time noted last")
    if max(position) < max(previous.position):
        raise WriterPositionError("the position ends in an older segment than the one noted last")
    for segment, offset in previous.position.items():
        if position.get(segment, offset) < offset:
            raise WriterPositionError(
                f"offset {position[segment]} of segment {segment} is before {offset}, the time noted last"
            )


@dataclass(frozen=True, slots=True)
class MarkWrites:
    """What a write of a mark needs besides its stream.

    Attributes:
        marked: the streams that have marks.
        attempts_max: how often a write is attempted when the mark changes meanwhile.
    """

    marked: MarkedStreams
    attempts_max: int


class WriterMarks:
    """Notes and removes marks."""

    def __init__(self, catalog: Catalog, locks: StreamLocks, writes: MarkWrites) -> None:
        self._catalog = catalog
        self._locks = locks
        self._writes = writes

    async def note(self, scope: str, stream: str, writer: str, timestamp: int, position: Mapping[int, int]) -> None:
        """Record that all events of `writer` up to `timestamp`, in its own unit, lie before `position`.

        Raises `NoSuchStreamError`, `InvalidArgumentError`; `WriterTimeError` and `WriterPositionError` for a mark
        before the one noted last.
        """
        _check_writer(writer)
        if not position:
            raise WriterPositionError("a position needs at least one segment")

        async def write(tables: StreamTables) -> None:
            await tables.state()

            async def create_table() -> None:
                # Under the lock: a concurrent deletion of the stream would miss the table.
                async with self._locks.hold(tables.name):
                    await tables.state()
                    await _create_table(tables)

            mark = WriterMark(timestamp, dict(sorted(position.items())))
            await _put(self._writes, tables, writer, mark, create_table)

        await self._catalog.on_stream(scope, stream, write)

    async def remove(self, scope: str, stream: str, writer: str) -> None:
        """Record that a writer has left. Raises `NoSuchWriterError`, also for a missing stream."""
        _check_writer(writer)

        async def write(tables: StreamTables) -> None:
            for _ in range(self._writes.attempts_max):
                found = await _read(tables, writer)
                if found is None:
                    raise NoSuchWriterError(f"writer {writer} has noted no time on {tables.name}")
                left = replace(found.record, is_alive=False)
                try:
                    await tables.records.put(layout.writer_marks(*tables.key), writer, left, version=found.version)
                except MetadataConflictError:
                    continue
                return
            raise MetadataConflictError(f"the mark of writer {writer} on {tables.name} keeps changing; try again")

        try:
            await self._catalog.on_stream(scope, stream, write)
        except NoSuchStreamError as error:
            raise NoSuchWriterError(f"writer {writer} has noted no time on {scope}/{stream}: {error}") from error


@dataclass(frozen=True, slots=True)
class CommitMark:
    """A transaction of `writer` was merged with this time, and ends at `position`: segment -> offset in bytes."""

    writer: str
    timestamp: int
    position: Mapping[int, int]


async def note_commits(writes: MarkWrites, tables: StreamTables, commits: Iterable[CommitMark]) -> None:
    """Record the marks of committed transactions, given in the order in which they were merged.

    The caller holds the stream's lock. Idempotent. A time or a position before one that the writer has noted since is
    ignored, as is a negative time, by which clients express "none".
    """
    latest: dict[str, WriterMark] = {}
    for commit in commits:
        if commit.timestamp < 0 or not commit.writer or not commit.position:
            continue
        if len(commit.writer) > USER_NAME_LENGTH_MAX:
            _logger.info("the time of writer %s... on %s is not noted: its name is too long",
                         commit.writer[:80], tables.name)  # fmt: skip
            continue
        mark = WriterMark(commit.timestamp, dict(sorted(commit.position.items())))
        if commit.writer not in latest or _follows(latest[commit.writer], mark):
            latest[commit.writer] = mark
    for writer, mark in latest.items():
        try:
            await _put(writes, tables, writer, mark, lambda: _create_table(tables))
        except (WriterTimeError, WriterPositionError) as error:
            _logger.debug("writer %s of %s: %s", writer, tables.name, error)


def _follows(previous: WriterMark, mark: WriterMark) -> bool:
    try:
        check_mark(previous, mark.timestamp, mark.position)
    except (WriterTimeError, WriterPositionError):
        return False
    return True


async def _put(
    writes: MarkWrites,
    tables: StreamTables,
    writer: str,
    mark: WriterMark,
    create_table: Callable[[], Awaitable[None]],
) -> None:
    for _ in range(writes.attempts_max):
        found = await _read(tables, writer)
        if found is not None:
            check_mark(found.record, mark.timestamp, mark.position)
        version = VERSION_ABSENT if found is None else found.version
        try:
            await tables.records.put(layout.writer_marks(*tables.key), writer, mark, version=version)
        except NoSuchSegmentError:
            await create_table()
        except MetadataConflictError:
            continue
        else:
            await writes.marked.add(tables.scope, tables.stream, tables.stream_id, is_new=found is None)
            return
    raise MetadataConflictError(f"the mark of writer {writer} on {tables.name} keeps changing; try again")


async def all_marks(tables: StreamTables) -> dict[str, Versioned[WriterMark]]:
    """Read the marks of all writers of a stream."""
    table = layout.writer_marks(*tables.key)
    try:
        return {writer: found async for writer, found in tables.records.walk(table, WriterMark)}
    except NoSuchSegmentError as error:
        if error.segment != table:
            raise
        return {}


async def forget_marks(tables: StreamTables, marks: Mapping[str, Versioned[WriterMark]]) -> None:
    """Remove marks, except those that have changed since they were read."""
    for writer, found in marks.items():
        try:
            await tables.records.remove_version(layout.writer_marks(*tables.key), writer, found.version)
        except MetadataConflictError:
            _logger.debug("writer %s of %s has noted a time again", writer, tables.name)


async def _create_table(tables: StreamTables) -> None:
    await tables.records.store.create_table(layout.writer_marks(*tables.key))


async def _read(tables: StreamTables, writer: str) -> Versioned[WriterMark] | None:
    try:
        return await tables.records.get(layout.writer_marks(*tables.key), writer, WriterMark)
    except NoSuchSegmentError:
        return None


def _check_writer(writer: str) -> None:
    if not 0 < len(writer) <= USER_NAME_LENGTH_MAX:
        raise InvalidArgumentError(f"writer {writer[:80]!r}: use 1 to {USER_NAME_LENGTH_MAX} characters")
