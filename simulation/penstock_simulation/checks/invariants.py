"""Live assertions about segment containers: the global invariants, as far as the inside of a running server shows them.

`check_container` and `check_store` are synchronous and read only, so they see one moment; a simulation calls them every
so often. `InvariantMonitor` remembers between calls what must never go back. `check_tables` and `check_storage` read
segments and chunks, so they are for quiet moments. All return violations in words, each with its invariant's name.

Where each of the twelve invariants (segment-store 0) is asserted:

===  ========================================================  ==============================================
G1   an acknowledged operation survives any crash              `checks_events`, `checks_bytes`; `InvariantMonitor`
                                                               (durable lengths); `crash_states` of the log
G2   a failed operation is whole or absent                     `checks_events`, `checks_tables`; `crash_states`
G3   effects and acknowledgements in order                     `checks_events`; `check_container` (pipeline, log)
G4   one incarnation changes what later ones see               `check_incarnations`; `checks_bytes` (epochs)
G5   storage length at most length, only what is committed     `check_container`; `check_storage`
G6   the log is truncated at checkpoints before anything unflushed   `check_container` (checkpoints, pending work)
G7   bytes not in storage stay in memory                       `check_container`
G8   reads give the bytes appended, or a typed outcome         `checks_bytes`; `check_storage` (cache and chunks agree)
G9   chunk bytes are user bytes                                `check_storage`
G10  only its creator appends to a chunk                       `check_storage` (chunks of earlier epochs do not grow)
G11  validation against all that was accepted before           `check_container` (accepted state covers durable);
                                                               `checks_tables`
G12  corruption stops the container, nothing is skipped        `check_store` (failed ones do not serve); byte flips
===  ========================================================  ==============================================

What is not in memory, inactive segments, attribute indexes and table indexes, has its checks in `invariants_indexes`.

This module reads private attributes of the container's parts: it asserts how they keep their books.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from penstock.model.errors import NoSuchChunkError, NoSuchSegmentError, PenstockError, SegmentTruncatedError
from penstock.model.segments import READ_LENGTH_MAX
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.log.pipeline import OperationPipeline
from penstock.segmentstore.container.pending import PendingAppend, PendingMerge, PendingTruncate
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.reads.read_index import ReadIndex, _Block, _Redirect
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.tables.entries import parse_entries
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from penstock.segmentstore.tier2.chunk_name import chunk_origin
from penstock_simulation.checks.invariants_indexes import check_activity, check_attributes

#: The longest append, in simulated clusters: it is let in whole, however little of the quota is left.
_UNDER_WAY_BYTES = 8 * 1024
#: ... and the longest update of a table: a scale writes a chunk of its stream's history.
_UPDATE_BYTES = 32 * 1024
#: Checks in a row at which a segment was stuck before nothing more of it may be let in.
_STUCK_CHECKS = 3
#: Checks in a row at which a bound may be passed.
_BOUND_CHECKS = 8
#: ... and a log in a bucket: a change of its record, which a truncation waits for, may stall for ten seconds and hang.
_BUCKET_LOG_CHECKS = 40
#: ... and a log of which data are being copied. Each copy, of 300 bytes in some clusters, waits for a sync.
_COPY_CHECKS = 40
#: How long each chunk was when it was last inspected, and in which epoch that was.
SeenChunks = dict[str, tuple[int, int]]


def check_container(container: SegmentContainer) -> list[str]:
    """Return what is wrong inside a running container at this moment; nothing for one that does not run."""
    if container.status is not ContainerStatus.RUNNING or container.failure is not None:
        return []
    violations = [
        *_check_metadata(container),
        *check_activity(container),
        *_check_pipeline(container.pipeline),
        *_check_checkpoints(container),
    ]
    for segment in container.state.metadata.by_id.values():
        violations += [f"{segment.name} (id {segment.id}): {problem}" for problem in _check_segment(container, segment)]
    return [f"container {container.id}: {violation}" for violation in violations]


def check_store(store: SegmentStore) -> list[str]:
    """Return what is wrong in a store: in each of its containers, and in the cache that they share."""
    violations = check_cache(store.cache)
    for container in store.containers:
        violations += check_container(container)
        if container.failure is not None and container.status is ContainerStatus.RUNNING:
            violations.append(f"G12: container {container.id} serves although it failed: {container.failure!r}")
    return violations


def check_incarnations(containers: Iterable[SegmentContainer]) -> list[str]:
    """Return containers that run twice with one epoch (G4). Give the running ones of all stores."""
    owners: dict[tuple[int, int], SegmentContainer] = {}
    violations: list[str] = []
    for container in containers:
        if container.status is ContainerStatus.RUNNING:
            slot = (container.id, container.log.epoch)
            if owners.setdefault(slot, container) is not container:
                violations.append(f"G4: container {slot[0]} runs twice with epoch {slot[1]}")
    return violations


def check_cache(cache: Cache) -> list[str]:
    """Return where the cache's books and what its members hold differ."""
    held = sum(entry.byte_count for entry in cache.entries())
    if held != cache.used_bytes - cache.member_bytes:
        return [f"cache: it counts {cache.used_bytes - cache.member_bytes} bytes, its members hold {held}"]
    if count := sum(1 for _ in cache.forgotten()):
        return [f"cache: {count} entries are set aside that long-term storage has, and would never go"]
    return []


async def check_tables(container: SegmentContainer) -> list[str]:
    """Return tables whose index is not what a scan of their log gives. Tables that change meanwhile are left out."""
    violations: list[str] = []
    for segment in container.segments():
        table = segment.table
        if table is None or container.tables.is_busy(segment):
            continue
        before = (segment.start_offset, segment.length)
        scanned = await _live_entries(container, segment)
        versions: dict[bytes, int] = {}
        token = b""
        while (page := await container.tables.keys(segment, limit=1000, token=token)).keys:
            versions.update(page.keys)
            token = page.token
        count = await table.live_count()
        if (segment.start_offset, segment.length) != before or segment.table is not table:
            continue
        where = f"container {container.id}: table {segment.name}"
        for key in sorted(versions.keys() | scanned.keys()):
            found = scanned[key][0] if key in scanned else None
            if versions.get(key) != found:
                violations.append(
                    f"{where}: key {key!r} has version {versions.get(key)} in the index, {found} in the log"
                )
        live_bytes = sum(length for _, length in scanned.values())
        if table.live_bytes != live_bytes:
            violations.append(f"{where}: the index counts {table.live_bytes} live bytes, the log has {live_bytes}")
        if count != len(scanned):
            violations.append(f"{where}: the index counts {count} keys, the log has {len(scanned)}")
    return violations


async def _live_entries(container: SegmentContainer, segment: Segment) -> dict[bytes, tuple[int, int]]:
    """Return version and length of each key's live entry, as the whole of the log says."""
    data = await container.reader.read_exactly(segment, segment.start_offset, segment.length - segment.start_offset)
    last: dict[bytes, tuple[int, int]] = {}
    for entry in parse_entries(segment.name, data, segment.start_offset):
        if entry.key not in last or last[entry.key][0] <= entry.version:
            last[entry.key] = entry.version, 0 if entry.value_length < 0 else entry.end - entry.offset
    return {key: found for key, found in last.items() if found[1]}


async def check_storage(container: SegmentContainer, seen: SeenChunks | None = None) -> list[str]:
    """Return where long-term storage, the container's metadata and its memory disagree. For quiet moments.

    Every stored byte is read and verified. Segments that vanish meanwhile are left out. `seen` remembers how long
    each chunk was from one call to the next, over incarnations: give the same one, empty at first.
    """
    known = {} if seen is None else seen
    violations: list[str] = []
    for segment in container.segments():
        try:
            violations += [f"{segment.name}: {problem}" for problem in await _check_stored(container, segment, known)]
        except NoSuchSegmentError:
            continue
        except PenstockError as error:
            violations.append(f"G8: {segment.name}: what is stored cannot be read: {error!r}")
    return [f"container {container.id}: {violation}" for violation in violations]


class InvariantMonitor:
    """Remembers what must never go back, over all incarnations, and says when it does."""

    def __init__(self) -> None:
        #: By container and segment id: durable length, start, storage length, all as last seen.
        self._segments: dict[tuple[int, int], tuple[int, int, int]] = {}
        #: By container: epoch, durable sequence number.
        self._containers: dict[int, tuple[int, int]] = {}
        #: By container: how often in a row its log was too long, and callers were held without need.
        self._long_logs: Counter[int] = Counter()
        #: By container: epoch, and bytes that were copied within its log.
        self._copied: dict[int, tuple[int, int]] = {}
        self._held: Counter[int] = Counter()
        #: By container, of its stuck segments: by epoch, segment id and what storage has, how many checks in a row, and
        #: what waited then.
        self._stuck: dict[int, dict[tuple[int, int, int], tuple[int, int]]] = {}

    def observe(self, containers: Iterable[SegmentContainer]) -> list[str]:
        """Compare the running containers with what was seen before. A zombie beside its successor is left out."""
        running = [container for container in containers if container.status is ContainerStatus.RUNNING]
        violations = check_incarnations(running)
        for container in running:
            epoch = container.log.epoch
            number = container.pipeline.durable_sequence_number
            last_epoch, last_number = self._containers.get(container.id, (0, 0))
            if epoch < last_epoch:
                continue
            if number < last_number:
                violations.append(
                    f"G1: container {container.id}: sequence number {last_number} was durable in epoch {last_epoch}, "
                    f"epoch {epoch} has only {number}"
                )
            self._containers[container.id] = (epoch, max(number, last_number))
            for segment in container.state.metadata.by_id.values():
                violations += self._observe_segment(container, segment)
            violations += self._observe_bounds(container)
        return violations

    def _observe_bounds(self, container: SegmentContainer) -> Iterator[str]:
        """A log has a bound, and a segment that can never be flushed delays no other segment, after a short time."""
        log_bytes = container.checkpoints.log_bytes
        backlog = container.state.backlog
        # Copies wait for a checkpoint that is worth it, and for what is on its way.
        limit = 2 * container.settings.log_bytes_max + 4 * backlog.byte_count + 8 * container.checkpoints._last_length
        is_long = log_bytes > limit and container.storage.health.is_available
        self._long_logs[container.id] = self._long_logs[container.id] + 1 if is_long else 0
        if self._long_logs[container.id] > self._long_log_checks(container):
            yield (
                f"container {container.id}: its log has {log_bytes} bytes, {backlog.byte_count} wait for storage; "
                f"its bound is {container.settings.log_bytes_max}"
            )
        yield from self._observe_quotas(container)

    def _long_log_checks(self, container: SegmentContainer) -> int:
        """Return the checks in a row at which the log may be too long. More while it is about to become shorter."""
        copied = (container.log.epoch, container.log_rewriter.carried_bytes)
        before, self._copied[container.id] = self._copied.get(container.id, copied), copied
        if isinstance(container.log, ObjectLog):
            return _BUCKET_LOG_CHECKS
        return _COPY_CHECKS if copied[0] == before[0] and copied[1] > before[1] else _BOUND_CHECKS

    def _observe_quotas(self, container: SegmentContainer) -> Iterator[str]:
        quota = container.quota.bytes_max
        was_stuck = self._stuck.pop(container.id, {})
        now_stuck = self._stuck[container.id] = {}
        stuck = []
        for segment in container.state.unflushed.values():
            # The container's own segments have no quota: they are what relieves.
            if segment.is_system or not segment.is_stuck:
                continue
            # What waited already, or was let in before it was found to be stuck, is no violation. If storage has
            # taken some since the last check it was not stuck all the time, but slow.
            slot = (container.log.epoch, segment.id, segment.storage_length)
            checks, byte_count = was_stuck.get(slot, (0, 0))
            if checks < _STUCK_CHECKS:
                byte_count = segment.pending.byte_count
            else:
                stuck.append(segment)
            now_stuck[slot] = (checks + 1, byte_count)
            whole = _UPDATE_BYTES if segment.is_table else _UNDER_WAY_BYTES
            if segment.pending.byte_count > max(byte_count, 2 * quota) + whole:
                yield (
                    f"container {container.id}: {segment.name} is stuck with {byte_count} bytes, and now "
                    f"{segment.pending.byte_count} wait; its quota is {quota}"
                )
        cache = container.state.cache
        others = cache.lacking_bytes - sum(segment.pending.byte_count for segment in stuck)
        rightful_bytes = len(stuck) * (quota + _UNDER_WAY_BYTES)
        is_held = bool(
            stuck
            and container.throttle.waiting_count
            # Several stuck ones may rightly take what there is: of what may wait for storage, or, with the blocks they
            # lie in and what else there is, of the cache.
            and rightful_bytes + max(others, 0) < container.back_pressure.bounds.backlog_bytes
            and rightful_bytes + len(stuck) * cache.settings.block_length + max(others, 0) + cache.member_bytes
            < container.back_pressure.bounds.cache_bytes
            # A log without room holds callers by itself, and has storage stuck beside it on the same file system.
            and not container.space.is_log_low
            and others < cache.settings.bytes_max // 16
            and container.pipeline.outstanding_bytes < container.outstanding_bytes_max // 16
            and cache.member_bytes < cache.settings.bytes_max // 8
        )
        self._held[container.id] = self._held[container.id] + 1 if is_held else 0
        if self._held[container.id] > _BOUND_CHECKS:
            yield (
                f"container {container.id}: callers are held although only stuck segments wait for storage: "
                f"{', '.join(f'{segment.name} ({segment.pending.byte_count} bytes)' for segment in stuck)}"
            )

    def _observe_segment(self, container: SegmentContainer, segment: Segment) -> Iterator[str]:
        slot = (container.id, segment.id)
        now = (segment.durable_length, segment.durable_start_offset, segment.storage_length)
        last = self._segments.get(slot, (0, 0, 0))
        where = f"container {container.id}: {segment.name}"
        if now[0] < last[0]:
            yield f"G1: {where}: {last[0]} bytes were durable, now {now[0]} are"
        if now[1] < last[1]:
            yield f"G1: {where}: it was truncated durably to {last[1]}, now it begins at {now[1]}"
        # What is stored may be known less exactly after a restart, until storage is asked: only the log's loss counts.
        self._segments[slot] = now


# Metadata.


def _check_metadata(container: SegmentContainer) -> Iterator[str]:
    metadata = container.state.metadata
    named = {segment.id for segment in metadata.by_name.values()}
    for name, segment in metadata.by_name.items():
        if segment.name != name or metadata.by_id.get(segment.id) is not segment:
            yield f"name {name} leads to {segment.name} (id {segment.id}), which is not the segment of that id"
    for segment_id, segment in metadata.by_id.items():
        if segment.id != segment_id or segment_id >= metadata.next_segment_id:
            yield f"id {segment_id} leads to id {segment.id}; the next id is {metadata.next_segment_id}"
        if (segment.id in named) == (segment.is_deleted or segment.is_merged):
            state = "deleted or merged, yet it has a name" if segment.id in named else "alive, yet it has no name"
            yield f"{segment.name} (id {segment.id}) is {state}"
    for source_id, (target_id, offset) in metadata.merges.items():
        source, target = metadata.by_id.get(source_id), metadata.by_id.get(target_id)
        if source is None or target is None:
            yield f"merge of id {source_id} into id {target_id}: one of them is unknown"
        elif not source.is_merged or offset + source.length > target.length:
            yield f"merge of {source.name} into {target.name} at {offset}: not within its {target.length} bytes"
    for waits in container.state.waits:
        awaited = metadata.by_id.get(waits.segment_id)
        if awaited is not waits.segment or (awaited is not None and awaited.waits is not waits):
            yield f"{waits.count} reads wait for bytes of id {waits.segment_id}, and its appends do not know of them"


def _check_segment(container: SegmentContainer, segment: Segment) -> Iterator[str]:
    if not 0 <= segment.start_offset <= segment.length:
        yield f"G5: it starts at {segment.start_offset}, its length is {segment.length}"
    if segment.durable_length > segment.length or segment.durable_start_offset > segment.start_offset:
        yield (
            f"G11: durable [{segment.durable_start_offset}, {segment.durable_length}) is ahead of accepted "
            f"[{segment.start_offset}, {segment.length})"
        )
    if segment.storage_length > segment.durable_length:
        yield f"G5: storage has {segment.storage_length} bytes, only {segment.durable_length} are durable"
    if segment.durable_sealed and not segment.is_sealed:
        yield "G11: it is sealed durably, but still takes appends"
    if segment.durable_sealed and segment.durable_length != segment.length:
        yield f"G3: it is sealed durably at {segment.length}, but only {segment.durable_length} bytes are durable"
    yield from check_attributes(container, segment)
    yield from _check_index(segment.index)
    for offset, _ in segment.waits or ():
        if offset < segment.durable_length:
            yield f"a read waits for byte {offset}, {segment.durable_length} are durable: its wake-up was lost"
        elif segment.durable_sealed:
            yield f"a read waits for byte {offset} of a segment that has ended"
    if segment.is_deleted or segment.is_merged or segment.id in container.state.gone:
        return
    yield from _check_cached(segment)
    yield from _check_pending(container, segment)


def _check_index(index: ReadIndex[Segment]) -> Iterator[str]:
    entries = index._entries
    if [entry.start for entry in entries] != index._starts:
        yield "index: the starts are not those of the entries"
    for entry, following in pairwise(entries):
        if entry.end > following.start:
            yield f"index: [{entry.start}, {entry.end}) and [{following.start}, {following.end}) overlap"
        if isinstance(entry, _Block) and entry.is_open:
            yield f"index: the block at {entry.start} may grow, but it is not the last"
    held = sum(len(entry.data) for entry in entries if isinstance(entry, _Block))
    if held != index.cached_bytes:
        yield f"index: it counts {index.cached_bytes} bytes, its blocks hold {held}"
    if entries and entries[-1].end > index._segment.length:
        yield f"index: it ends at {entries[-1].end}, behind the segment's length {index._segment.length}"


def _check_cached(segment: Segment) -> Iterator[str]:
    position = max(segment.storage_length, segment.start_offset)
    missing = _first_gap(segment, position, segment.length)
    if missing is not None:
        yield (
            f"G7: byte {missing} is not in memory, storage has {segment.storage_length} of {segment.length} bytes, "
            f"the segment starts at {segment.start_offset}"
        )


def _first_gap(segment: Segment, position: int, end: int) -> int | None:
    """Return the first byte of [`position`, `end`) that is not in memory, own or that of a merged source."""
    for entry in segment.index._entries:
        if position >= end:
            return None
        if entry.end <= position:
            continue
        if entry.start > position:
            return position
        if isinstance(entry, _Redirect):
            source_position = max(position - entry.start, entry.source.storage_length)
            gap = _first_gap(entry.source, source_position, min(entry.end, end) - entry.start)
            if gap is not None:
                return entry.start + gap
        position = entry.end
    return position if position < end else None


def _check_pending(container: SegmentContainer, segment: Segment) -> Iterator[str]:
    """Everything durable that storage does not have must wait for the storage writer, in order (G6)."""
    pending = list(segment.pending)
    if pending and segment.id not in container.state.unflushed:
        yield f"G6: {len(pending)} changes wait for storage, but the writer does not know of the segment"
    position = segment.storage_length
    for piece in pending:
        if isinstance(piece, (PendingAppend, PendingMerge)):
            if piece.end <= position:
                continue
            if piece.start > position and not (
                # Storage has it, for the log was cut there; its length is not known yet, and it is not read.
                not container.storage.lookups.have_ended and piece.start <= segment.durable_start_offset
            ):
                break
            position = piece.end
    # Truncated bytes need not go to storage, though they do.
    needed_to = segment.durable_length if segment.durable_start_offset < segment.durable_length else position
    if position < needed_to:
        yield (
            f"G6: bytes from {position} to {needed_to} are durable and not in storage, and nothing waits to bring them "
            "there: the log could be cut before them"
        )
    yield from _check_backlog_of(segment)
    numbers = [piece.sequence_number for piece in pending if piece.sequence_number]
    if numbers != sorted(numbers) and not segment.pending.is_carried:
        yield f"G3: changes wait for storage out of order: {numbers}"
    for piece in pending:
        if isinstance(piece, PendingTruncate) and piece.offset > segment.start_offset:
            yield f"a truncation to {piece.offset} waits, the segment starts at {segment.start_offset}"


def _check_backlog_of(segment: Segment) -> Iterator[str]:
    lengths = sum(piece.end - piece.start for piece in segment.pending if isinstance(piece, PendingAppend))
    if segment.pending.byte_count != lengths:
        yield f"{segment.pending.byte_count} bytes are counted as waiting for storage, {lengths} do"


# Pipeline and log.


def _check_pipeline(pipeline: OperationPipeline) -> Iterator[str]:
    if pipeline.error is not None:
        return
    if pipeline.durable_sequence_number > pipeline.sequence_number:
        yield (
            f"G3: sequence number {pipeline.durable_sequence_number} is durable, "
            f"the last one given out is {pipeline.sequence_number}"
        )
    numbers = [frame.sequence_number for frame in pipeline._waiting_frames]
    if numbers != sorted(numbers) or (numbers and numbers[0] < pipeline.durable_sequence_number):
        yield f"G3: frames wait out of order: {numbers}, durable is {pipeline.durable_sequence_number}"
    if any(frame.is_told for frame in pipeline._waiting_frames):
        yield "pipeline: a frame whose callers have their results still waits"
    if len(pipeline._waiting_frames) > pipeline._frames_in_flight:
        yield f"pipeline: {len(numbers)} frames wait, {pipeline._frames_in_flight} are in the log's hands"
    if pipeline._bytes_in_flight < sum(frame.length for frame in pipeline._waiting_frames):
        yield f"pipeline: {pipeline._bytes_in_flight} bytes are in flight, those of waiting frames are more"
    is_idle = not pipeline._frames_in_flight and pipeline._builder.is_empty
    if is_idle and pipeline._bytes_in_flight:
        yield f"pipeline: nothing is in flight, but {pipeline._bytes_in_flight} bytes are counted"
    if is_idle and pipeline.durable_sequence_number != pipeline.sequence_number:
        yield (
            f"pipeline: nothing is in flight, but {pipeline.durable_sequence_number} is durable "
            f"of {pipeline.sequence_number}"
        )
    if is_idle and pipeline._callbacks:
        yield f"pipeline: nothing is in flight, but {len(pipeline._callbacks)} callers wait"


def _check_checkpoints(container: SegmentContainer) -> Iterator[str]:
    marks = list(container.checkpoints.marks)
    for mark, following in pairwise(marks):
        is_ascending = mark.sequence_number < following.sequence_number
        if not is_ascending or (mark.address or 0) >= (following.address or 0):
            yield f"G6: checkpoints out of order: {mark}, {following}"
    if marks and marks[-1].sequence_number > container.pipeline.durable_sequence_number:
        yield f"G6: the checkpoint at {marks[-1].sequence_number} is used before it is durable"


# Long-term storage.


async def _check_stored(container: SegmentContainer, segment: Segment, seen: SeenChunks) -> Sequence[str]:
    before = (segment.storage_length, segment.start_offset, segment.is_storage_open)
    storage = container.storage.of(segment)
    stored = await storage.info(segment.name)
    if container.state.is_name_taken(segment):
        return ()
    if stored is None:
        if segment.storage_length and before[0] == segment.storage_length:
            return [f"G5: {segment.storage_length} bytes should be in storage, it has none"]
        return ()
    layout = await storage.chunks_of(segment.name)
    violations: list[str] = []
    if stored.length < before[0] or stored.length > segment.durable_length:
        violations.append(
            f"G5: storage has {stored.length} bytes, the container counts {before[0]} of {segment.durable_length}"
        )
    epoch = container.log.epoch
    for chunk, following in pairwise(layout):
        if chunk.start_offset + chunk.length != following.start_offset:
            violations.append(f"G8: chunk {chunk.name} ends before {following.name} begins at {following.start_offset}")
    for chunk in layout:
        origin = chunk_origin(chunk.name)
        if origin is not None and origin.epoch > epoch:
            violations.append(f"G10: chunk {chunk.name} is of a later epoch than this container's, {epoch}")
        length, seen_epoch = seen.get(chunk.name, (chunk.length, epoch))
        seen[chunk.name] = (chunk.length, epoch)
        # Its creator's last writes may have come after the last check of the creator's time.
        if origin is not None and seen_epoch > origin.epoch and chunk.length > length:
            violations.append(
                f"G10: chunk {chunk.name} grew from {length} to {chunk.length} bytes after epoch {origin.epoch}, "
                f"which made it, had ended (now: {epoch})"
            )
        try:
            info = await container.chunks.info(chunk.name)
        except NoSuchChunkError:
            if chunk in await storage.chunks_of(segment.name):
                raise
            return ()  # Truncated, or moved, while it was inspected.
        if info.length < chunk.length:
            violations.append(f"G8: chunk {chunk.name} has {info.length} bytes, its record says {chunk.length}")
    return violations or await _check_stored_bytes(container, segment, stored.start_offset, stored.length)


async def _check_stored_bytes(container: SegmentContainer, segment: Segment, start: int, end: int) -> Sequence[str]:
    """Read what is stored; where memory has the bytes too they must be the same (G8, G9)."""
    storage = container.storage.of(segment)
    position = max(start, segment.start_offset)
    while position < end:
        try:
            data = await storage.read(segment.name, position, min(READ_LENGTH_MAX, end - position))
        except SegmentTruncatedError as error:
            if error.start_offset <= position or segment.start_offset < error.start_offset:
                raise
            position = error.start_offset  # Truncated, by its owner, while it was inspected.
            continue
        for entry in segment.index._entries:
            if not isinstance(entry, _Block):
                continue
            low, high = max(entry.start, position), min(entry.end, position + len(data))
            if (
                low < high
                and memoryview(entry.data)[low - entry.start : high - entry.start]
                != memoryview(data)[low - position : high - position]
            ):
                return [f"G9: memory and storage differ within [{low}, {high})"]
        position += len(data)
    return ()
