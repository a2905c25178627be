"""`StorageCheck`: compares the records of long-term storage with the chunks. Changes nothing.

Three passes, each in pages, so that memory does not grow with the number of chunks:

1. every record individually: whether it is readable and consistent (`survey`);
2. every segment: whether the records of its chunks cover it without a gap from its first chunk to its end, and whether
each chunk exists, is as long as recorded, and has the recorded checksums (`verify`);
3. every name in storage: whether a record refers to it (`find_orphans`).

The containers must not be running meanwhile. Orphans, and records to which no segment refers, are not damage: later
starts remove them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.model.block_checksums import verify_blocks
from penstock.model.errors import (
    STORAGE_AWAY,
    CorruptionError,
    InvalidArgumentError,
    LaterVersionError,
    NoSuchChunkError,
    StorageError,
    UnreadableDataError,
)
from penstock.model.segments import TableEntry
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier2.chunk_name import IMAGES_PREFIX, chunk_origin
from penstock.segmentstore.tier2.chunk_run import ChunkRun, describe_key, run_of, runs_of
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.garbage_records import SEGMENTS_FIRST, check_garbage
from penstock.segmentstore.tier2.metadata import MetadataTable
from penstock.segmentstore.tier2.records import (
    ChunkRecord,
    Record,
    StoredSegmentRecord,
    check,
    check_extent,
    decode_record,
)
from penstock.segmentstore.tier2.segment_adoption import ADOPTED_EPOCH
from penstock.segmentstore.tier2.turns import run_bounded, yield_to_loop

#: Small, since each task may have the names of very many chunks.
_GARBAGE_PAGE_LENGTH = 16


class ProblemKind(StrEnum):
    """The kind of a problem found.

    Attributes:
        LOG_DAMAGED: a container's log, or its table of records, cannot be read: its segments are unknown.
        INDEX_DAMAGED: the index of that table cannot be read; the whole table was read instead.
        RECORD_DAMAGED: a record is not as it was written.
        RECORDS_CONTRADICT: records are inconsistent, individually or with each other.
        GAP: no record covers bytes of a segment.
        OVERLAP: two records cover the same bytes.
        CHUNK_MISSING: a chunk does not exist.
        CHUNK_SHORT: it has fewer bytes than belong to its segment.
        CHUNK_UNREADABLE: storage fails to read it.
        BLOCK_DAMAGED: bytes of it are not as they were written.
        LATER_VERSION: a container's log, or a record, can only be read by a later version. This is not damage.
    """

    LOG_DAMAGED = "log_damaged"
    INDEX_DAMAGED = "index_damaged"
    RECORD_DAMAGED = "record_damaged"
    RECORDS_CONTRADICT = "records_contradict"
    GAP = "gap"
    OVERLAP = "overlap"
    CHUNK_MISSING = "chunk_missing"
    CHUNK_SHORT = "chunk_short"
    CHUNK_UNREADABLE = "chunk_unreadable"
    BLOCK_DAMAGED = "block_damaged"
    LATER_VERSION = "later_version"

    @classmethod
    def of(cls, error: StorageError, damage: ProblemKind) -> ProblemKind:
        """Return the kind of an error: `damage`, unless the data are of a later version."""
        return cls.LATER_VERSION if isinstance(error, LaterVersionError) else damage


@dataclass(frozen=True, slots=True)
class StorageProblem:
    """A single problem. `offset`: in the chunk if one is named, else in the segment, bytes."""

    kind: ProblemKind
    container: int
    segment: str
    chunk: str
    offset: int
    message: str


@dataclass(frozen=True, slots=True)
class StorageCheckSettings:
    """Bounds of a check.

    Attributes:
        chunk_checks_max: chunks checked concurrently.
        read_bytes: bytes of a chunk read at a time, in whole blocks; at least one block.
        page_length: records read at a time; names are read in pages a few times as long.
        problems_max: problems reported individually; further ones are only counted.
        orphans_max: orphans reported by name.
        merge_depth_max: nesting of merged runs that is followed; a deeper one is taken for a cycle.
    """

    chunk_checks_max: int = 8
    read_bytes: int = 4 * 1024 * 1024
    page_length: int = 256
    problems_max: int = 1000
    orphans_max: int = 100
    merge_depth_max: int = 200


@dataclass(frozen=True, slots=True)
class CheckedContainer:
    """A container to check, with its tables of records, that of its own segments first."""

    id: int
    epoch: int
    mark: bytes
    tables: Sequence[MetadataTable]


@dataclass(slots=True)
class StorageReport:
    """The result of a check. Bytes are those that belong to segments.

    Attributes:
        container_count, segment_count, chunk_count, chunk_bytes: live records found.
        checked_chunk_count, checked_bytes: chunks of segments that were checked, and their bytes that were read and
            compared.
        surplus_bytes: bytes of chunks after their recorded length: left by failed writes, never read.
        unused_record_count: live records of chunks to which no segment refers: of an interrupted deletion or
            truncation, which the next start finishes, or of a segment whose record is damaged.
        problem_count: all of them; `problems` has the first.
        orphan_count: chunks of these containers without a record; `orphans` has the names of the first.
        stranger_count: chunks not named by Penstock, or of unknown containers; they are not judged.
    """

    container_count: int = 0
    segment_count: int = 0
    chunk_count: int = 0
    chunk_bytes: int = 0
    checked_chunk_count: int = 0
    checked_bytes: int = 0
    surplus_bytes: int = 0
    unused_record_count: int = 0
    problem_count: int = 0
    problems: list[StorageProblem] = field(default_factory=list)
    orphan_count: int = 0
    orphans: list[str] = field(default_factory=list)
    stranger_count: int = 0


class StorageCheck:
    """A check of the chunks of some containers. Call its methods in order; `report` grows with them.

    Every method raises `StorageUnavailableError` and related errors if storage becomes unavailable; the result is then
    incomplete.
    """

    def __init__(
        self,
        chunks: ChunkStorage,
        containers: Sequence[CheckedContainer],
        *,
        runtime: Runtime,
        settings: StorageCheckSettings | None = None,
    ) -> None:
        self.report: StorageReport = StorageReport(container_count=len(containers))
        self._chunks = chunks
        self._containers = containers
        self._runtime = runtime
        self._settings = settings or StorageCheckSettings()
        #: Number of chunks of an older store that belong to segments.
        self._adopted_count = 0

    def note(
        self, kind: ProblemKind, container: int, message: str, *, segment: str = "", chunk: str = "", offset: int = 0
    ) -> None:
        """Count a problem, and keep it if there are not too many."""
        report = self.report
        report.problem_count += 1
        if len(report.problems) < self._settings.problems_max:
            report.problems.append(StorageProblem(kind, container, segment, chunk, offset, message))

    # Every record individually.

    async def survey(self) -> None:
        """Read all records once."""
        report = self.report
        for container in self._containers:
            for table in container.tables:
                await self._survey_garbage(container, table)
                async for entry in self._entries(container, table, is_told=True):
                    record = self._decode(container, entry, is_told=True)
                    if isinstance(record, StoredSegmentRecord):
                        report.segment_count += record.is_active
                    elif isinstance(record, ChunkRecord) and record.is_active:
                        report.chunk_count += 1
                        report.chunk_bytes += record.length

    async def _survey_garbage(self, container: CheckedContainer, table: MetadataTable) -> None:
        """Read the garbage tasks and the leases. They are not records of segments, and are stored before those."""
        token = b""
        try:
            while (page := await table.page(limit=_GARBAGE_PAGE_LENGTH, token=token, last=SEGMENTS_FIRST)).entries:
                token = page.token
                for entry in page.entries:
                    check_garbage(entry.key, entry.value)
        except UnreadableDataError as error:
            self.note(ProblemKind.of(error, ProblemKind.RECORD_DAMAGED), container.id, str(error), chunk=error.path)

    async def _entries(
        self, container: CheckedContainer, table: MetadataTable, *, is_told: bool
    ) -> AsyncIterator[TableEntry]:
        """Yield all entries of a table. An unreadable one ends the iteration."""
        token = b""
        while True:
            try:
                page = await table.page(limit=self._settings.page_length, token=token, first=SEGMENTS_FIRST)
            except UnreadableDataError as error:
                if is_told:
                    kind = ProblemKind.of(error, ProblemKind.RECORD_DAMAGED)
                    self.note(kind, container.id, str(error), chunk=error.path)
                return
            if not page.entries:
                return
            for number, entry in enumerate(page.entries):
                await yield_to_loop(number)
                yield entry
            token = page.token

    def _decode(self, container: CheckedContainer, entry: TableEntry, *, is_told: bool) -> Record | None:
        try:
            return decode_record(entry.key, entry.value)
        except UnreadableDataError as error:
            if is_told:
                run = run_of(entry.key)
                segment = run.segment if run is not None else entry.key.decode(errors="replace")
                kind = ProblemKind.of(error, ProblemKind.RECORD_DAMAGED)
                self.note(kind, container.id, str(error), segment=segment)
            return None

    # Every segment.

    async def verify(
        self, progress: Callable[[int, int], None] = lambda count, byte_count: None, *, is_read: bool = True
    ) -> None:
        """Check the chunks of every segment; call `progress` with the total chunks and bytes done.

        Without `is_read` no bytes are read: only existence and length of chunks are checked.
        """
        for container in self._containers:
            for table in container.tables:
                async for entry in self._segments(table):
                    record = self._decode(container, entry, is_told=False)
                    if isinstance(record, StoredSegmentRecord) and record.is_active:
                        await self._verify_segment(container, table, record, progress, is_read=is_read)
        report = self.report
        report.unused_record_count = max(0, report.chunk_count - report.checked_chunk_count)

    async def _segments(self, table: MetadataTable) -> AsyncIterator[TableEntry]:
        """Yield the entries of segments' own records; those of their chunks, adjacent to them, are skipped."""
        token = b""
        while True:
            try:
                page = await table.page(limit=self._settings.page_length, token=token, first=SEGMENTS_FIRST)
            except UnreadableDataError:
                return  # The survey has reported it.
            if not page.entries:
                return
            token = page.token
            for entry in page.entries:
                if run_of(entry.key) is None:
                    yield entry
            run = run_of(token)
            if run is not None:
                token = runs_of(run.segment)[1]

    async def _verify_segment(
        self,
        container: CheckedContainer,
        table: MetadataTable,
        record: StoredSegmentRecord,
        progress: Callable[[int, int], None],
        *,
        is_read: bool,
    ) -> None:
        report = self.report
        problems_before = report.problem_count
        try:
            check(record)
        except CorruptionError as error:
            self.note(ProblemKind.RECORDS_CONTRADICT, container.id, str(error), segment=record.name)
        count = 0
        found: list[ChunkRecord] = []

        async def verify() -> None:
            async def one(chunk: ChunkRecord) -> None:
                await self._verify_chunk(container, record.name, chunk, is_read=is_read)
                report.checked_chunk_count += 1
                progress(report.checked_chunk_count, report.checked_bytes)

            await run_bounded(one, found, self._settings.chunk_checks_max)
            found.clear()

        walk = _RunWalk(self, container, table, record.name)
        async for chunk in walk.chunks(record.run, record.first_chunk_start, record.length, 0, 0):
            count += 1
            found.append(chunk)
            if len(found) == self._settings.page_length:
                await verify()
        await verify()
        if count != record.chunk_count and report.problem_count == problems_before:
            self.note(
                ProblemKind.RECORDS_CONTRADICT,
                container.id,
                f"its record says {record.chunk_count} chunks, there are records of {count}",
                segment=record.name,
            )

    async def extents_down(
        self, container: CheckedContainer, table: MetadataTable, run: ChunkRun, position: int
    ) -> AsyncIterator[Record]:
        """Yield the extents of a run, from the one that holds `position` downwards; skips unreadable ones."""
        token, first = b"", run.key(position)
        while True:
            try:
                page = await table.page(limit=self._settings.page_length, token=token, first=first, last=run.last_key)
            except UnreadableDataError:
                return
            if not page.entries:
                return
            token = page.token
            for number, entry in enumerate(page.entries):
                await yield_to_loop(number)
                record = self._decode(container, entry, is_told=False)
                if record is not None:
                    yield record

    @property
    def merge_depth_max(self) -> int:
        """See `StorageCheckSettings.merge_depth_max`."""
        return self._settings.merge_depth_max

    async def _verify_chunk(
        self, container: CheckedContainer, segment: str, chunk: ChunkRecord, *, is_read: bool
    ) -> None:
        name = chunk.name

        def note(kind: ProblemKind, message: str, offset: int = 0) -> None:
            self.note(kind, container.id, message, segment=segment, chunk=name, offset=offset)

        try:
            there = (await self._chunks.info(name)).length
            self._adopted_count += chunk.epoch == ADOPTED_EPOCH and chunk_origin(name) is None
            if there < chunk.length:
                note(ProblemKind.CHUNK_SHORT, f"it has {there} bytes, its record says {chunk.length}", there)
            self.report.surplus_bytes += max(0, there - chunk.length)
            if is_read:
                await self._verify_blocks(chunk, min(there, chunk.length), note)
        except NoSuchChunkError:
            note(ProblemKind.CHUNK_MISSING, f"the chunk is missing, its record says {chunk.length} bytes")
        except STORAGE_AWAY:
            raise
        except (StorageError, InvalidArgumentError, OSError) as error:
            note(ProblemKind.CHUNK_UNREADABLE, str(error))

    async def _verify_blocks(self, chunk: ChunkRecord, end: int, note: Callable[[ProblemKind, str, int], None]) -> None:
        block_length = chunk.block_length
        step = max(1, self._settings.read_bytes // block_length) * block_length
        for start in range(0, end, step):
            wanted = min(step, end - start)
            data = await self._chunks.read(chunk.name, start, wanted)
            if len(data) < wanted:
                note(ProblemKind.CHUNK_SHORT, f"it ends after {start + len(data)} bytes", start + len(data))
                return
            if end < chunk.length and start + wanted == end:
                # The last block is truncated, which was reported.
                data = data[: wanted - wanted % block_length]
            try:
                verify_blocks(chunk.name, start, data, chunk.block_checksums, block_length=block_length)
            except CorruptionError as error:
                note(ProblemKind.BLOCK_DAMAGED, str(error), error.offset)
            self.report.checked_bytes += len(data)

    # Every name.

    async def find_orphans(self, *, is_complete: bool) -> None:
        """Scan all names in storage and count those to which no record refers.

        Without `is_complete` the records of some containers are unknown: then only chunks with the mark of a known
        container are taken for orphans.
        """
        report = self.report
        after = ""
        while names := await self._chunks.names(limit=4 * self._settings.page_length, after=after):
            after = names[-1]
            ours: dict[int, list[str]] = {}
            strange: list[str] = []
            for number, name in enumerate(names):
                await yield_to_loop(number)
                if name.startswith(IMAGES_PREFIX):
                    continue  # Images of a container have no record.
                origin = chunk_origin(name)
                owner = next((at for at, one in enumerate(self._containers) if origin and one.mark == origin.mark), -1)
                if owner < 0:
                    strange.append(name)
                else:
                    ours.setdefault(owner, []).append(name)
            for owner, candidates in ours.items():
                left = await self._unrecorded([self._containers[owner]], candidates)
                if is_complete and left:
                    left = await self._unrecorded(self._containers, left)
                report.orphan_count += len(left)
                report.orphans += left[: max(0, self._settings.orphans_max - len(report.orphans))]
            report.stranger_count += len(await self._unrecorded(self._containers, strange))
        # Their names do not give the keys of their records, so they were counted as strangers.
        report.stranger_count = max(0, report.stranger_count - self._adopted_count)

    async def _unrecorded(self, containers: Sequence[CheckedContainer], names: Sequence[str]) -> list[str]:
        left = list(names)
        for container in containers:
            for table in container.tables:
                if left:
                    storage = ChunkedStorage(self._chunks, table, epoch=container.epoch, runtime=self._runtime)
                    left = await self._unrecorded_in(storage, left)
        return left

    async def _unrecorded_in(self, storage: ChunkedStorage, names: Sequence[str]) -> list[str]:
        try:
            return await storage.unrecorded(names)
        except UnreadableDataError:
            # A record that may refer to one of them cannot be read, which was reported: that chunk is not judged.
            if len(names) == 1:
                return []
            half = len(names) // 2
            return [
                *await self._unrecorded_in(storage, names[:half]),
                *await self._unrecorded_in(storage, names[half:]),
            ]


class _RunWalk:
    """Walks the chunks of one segment from its end down, through merged runs, past gaps and overlaps."""

    def __init__(
        self, storage_check: StorageCheck, container: CheckedContainer, table: MetadataTable, segment: str
    ) -> None:
        self._check = storage_check
        self._container = container
        self._table = table
        self._segment = segment

    async def chunks(self, run: ChunkRun, begin: int, end: int, base: int, depth: int) -> AsyncIterator[ChunkRecord]:
        """Yield the chunks that hold [`begin`, `end`) of a run whose offset 0 is the segment's offset `base`."""
        if begin >= end:
            return
        if depth > self._check.merge_depth_max:
            self._note(ProblemKind.RECORDS_CONTRADICT, base + begin, f"{depth} merges within each other")
            return
        upper = end
        async for extent in self._check.extents_down(self._container, self._table, run, end - 1):
            if upper <= begin:
                return
            if isinstance(extent, StoredSegmentRecord) or not extent.is_active:
                continue
            where = describe_key(extent.key)
            try:
                check_extent(extent)
            except CorruptionError as error:
                self._note(ProblemKind.RECORDS_CONTRADICT, base + extent.start, str(error))
                continue
            stop = extent.start + extent.length
            if stop <= begin:
                break
            if stop < upper:
                self._note(ProblemKind.GAP, base + stop, f"no record of bytes {base + stop} to {base + upper}")
            elif stop > upper:
                self._note(
                    ProblemKind.OVERLAP, base + upper, f"{where} extends to {base + stop}, its successor starts there"
                )
            upper = extent.start
            if isinstance(extent, ChunkRecord):
                if extent.start < begin:
                    self._note(
                        ProblemKind.RECORDS_CONTRADICT,
                        base + extent.start,
                        f"{where} starts before the segment's first chunk, at {base + begin}",
                    )
                yield extent
            else:
                inner = self.chunks(
                    extent.source,
                    max(0, begin - extent.start),
                    extent.length,
                    base + extent.start,
                    depth + 1,
                )
                async for chunk in inner:
                    yield chunk
        if upper > begin:
            self._note(ProblemKind.GAP, base + begin, f"no record of bytes {base + begin} to {base + upper}")

    def _note(self, kind: ProblemKind, offset: int, message: str) -> None:
        self._check.note(kind, self._container.id, message, segment=self._segment, offset=offset)
