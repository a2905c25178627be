"""Import of segments in the storage layout of an older Pravega (PDP-34), with a stopped server.

`check_rolling` inspects the segments of an older store, `import_rolling` imports them. Both can be interrupted anywhere
and repeated. The way back: `rolling_export`. See docs/rolling-storage.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace

from penstock.administration.stopped_store import stopped_store
from penstock.administration.storage_administration import ShowProgress
from penstock.model.errors import (
    AdoptionError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchSegmentError,
    StorageUnavailableError,
)
from penstock.model.routing import container_of
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.inspection import UNBOUNDED_BYTES
from penstock.segmentstore.container.storage.adoptions import is_adoptable
from penstock.segmentstore.layout_settings import LayoutMode
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.rolling_layout import RollingLayout, read_layout, rolling_segments
from penstock.server.data_directory import DataDirectory
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings


@dataclass(frozen=True, slots=True)
class RollingSegment:
    """A segment of an older store: bytes [`start_offset`, `length`), in so many chunks.

    Attributes:
        gone_count: truncated chunks at its front.
        surplus_bytes: bytes after the valid ones of its chunks.
        is_adoptable: False for tables, indexes and transactions, which only the older store can read.
        source: the segment with the header, if it was imported under another name.
    """

    name: str
    start_offset: int
    length: int
    chunk_count: int
    gone_count: int
    surplus_bytes: int
    is_adoptable: bool
    source: str = ""


@dataclass(frozen=True, slots=True)
class RollingProblem:
    """Why a segment cannot be used."""

    segment: str
    message: str


@dataclass(slots=True)
class RollingReport:
    """The segments of an older store. `left_over_count`: headers of segments that no longer exist."""

    place: str
    segments: list[RollingSegment] = field(default_factory=list)
    problems: list[RollingProblem] = field(default_factory=list)
    left_over_count: int = 0


@dataclass(slots=True)
class ImportReport:
    """The result of an import.

    Attributes:
        imported: segments that this call imported.
        present: segments that existed before.
        deleted_count: segments imported before and deleted since, or imported under another name.
        skipped: segments that cannot be imported, because only the older store can read them.
        problems: segments that are damaged, or conflict with others.
        read_bytes: bytes read for checksums.
    """

    imported: list[RollingSegment] = field(default_factory=list)
    present: list[RollingSegment] = field(default_factory=list)
    deleted_count: int = 0
    skipped: list[str] = field(default_factory=list)
    problems: list[RollingProblem] = field(default_factory=list)
    read_bytes: int = 0


def is_chosen(segment: str, names: Collection[str]) -> bool:
    """Return whether `names`, of segments, streams or scopes, include a segment; no names include all."""
    return not names or any(segment == name or segment.startswith(f"{name}/") for name in names)


async def check_rolling(
    settings: StandaloneSettings, runtime: Runtime, *, names: Collection[str] = ()
) -> RollingReport:
    """Compare all headers of an older store with its chunks. Reads no bytes of chunks and changes nothing.

    Raises `StorageUnavailableError` when long-term storage is missing, `StorageError`.
    """
    chunks = open_long_term_storage(settings, DataDirectory(settings.data_dir, runtime), runtime)
    try:
        report = RollingReport(chunks.place)
        async for segment, layout in _layouts(chunks, report.problems, names):
            if layout is None:
                report.left_over_count += 1
            else:
                report.segments.append(_described(segment, layout))
        is_empty = not (report.segments or report.problems or report.left_over_count)
        if is_empty and not names and await chunks.read_identity() is None:
            raise StorageUnavailableError(
                f"{chunks.place} contains no data of any store: mount the storage, or give another place"
            )
        report.segments.sort(key=lambda segment: segment.name)
        return report
    finally:
        await chunks.close()


async def import_rolling(
    settings: StandaloneSettings,
    runtime: Runtime,
    show_progress: ShowProgress,
    *,
    names: Collection[str] = (),
    stream: str = "",
) -> ImportReport:
    """Import segments of an older store permanently: its server must be stopped, and this one, too.

    `stream`: the stream that all segments chosen by `names` become part of; numbered from 0 in the order of creation.

    Chunks are not moved; they become chunks of this store's segments. Segments already imported stay imported if this
    is interrupted, and a repeated call continues. From then on the store runs under `layout_upgrade`.

    Raises:
        DataDirectoryInUseError: a server runs on the directory.
        DataDirectoryError: it is not a data directory; start the server once.
        StorageUnavailableError, StorageIdentityError: long-term storage is missing, or belongs to another cluster.
        StorageError: storage became unavailable, or a container could not be started.
    """
    layout = replace(
        settings.segment_store.container.layout, mode=LayoutMode.LAYOUT_UPGRADE, adopted_bytes_max=UNBOUNDED_BYTES
    )
    report = ImportReport()
    async with stopped_store(settings, runtime, layout) as (store, chunks):
        found = [
            _described(segment, there)
            async for segment, there in _layouts(chunks, report.problems, names)
            if there is not None
        ]
        became = _renamed(found, stream) if stream else {}
        report.skipped = sorted(segment.name for segment in found if not segment.is_adoptable)
        wanted = sorted((segment for segment in found if segment.is_adoptable), key=lambda segment: segment.name)
        containers = {container.id: container for container in store.containers}
        with show_progress(sum(segment.length - segment.start_offset for segment in wanted)) as progress:
            chunk_count = 0

            def note(byte_count: int) -> None:
                report.read_bytes += byte_count
                progress.note(chunk_count, report.read_bytes)

            for container in containers.values():
                container.adoptions.progress = note
            for segment in wanted:
                source = containers[container_of(segment.name, len(containers))]
                if not stream:
                    await _import(source, segment, report)
                else:
                    name = became[segment.name]
                    target = containers[container_of(name, len(containers))]
                    await _import_as(name, source, target, segment, chunks, report)
                chunk_count += segment.chunk_count
                note(0)
    return report


def _renamed(found: Sequence[RollingSegment], stream: str) -> dict[str, str]:
    """Return new names for segments: in the order of their creation epochs, then of their numbers."""
    scope, slash, name = stream.partition("/")
    if not (scope and slash and name) or "/" in name:
        raise InvalidArgumentError(f"{stream!r} is not a stream: write scope/stream")
    if any(segment.name.startswith(f"{stream}/") for segment in found):
        raise InvalidArgumentError(f"{stream} has segments here: import them under the name of another stream")
    segments = sorted((_age(segment.name), segment.name) for segment in found if segment.is_adoptable)
    return {old: f"{stream}/{number}.#epoch.0" for number, (_, old) in enumerate(segments)}


def _age(segment: str) -> tuple[int, int]:
    number, _, epoch = segment.rpartition("/")[2].partition(".#epoch.")
    try:
        return int(epoch), int(number)
    except ValueError as error:
        raise InvalidArgumentError(f"{segment} is not named as a segment of a stream") from error


async def _import_as(
    name: str,
    source: SegmentContainer,
    target: SegmentContainer,
    segment: RollingSegment,
    chunks: ChunkStorage,
    report: ImportReport,
) -> None:
    """Import a segment as `name`. `source` and `target` are the containers of the old and the new name."""
    try:
        # Before anything else: two segments must never share chunks.
        await source.storage.reserve(segment.name, name)
        layout = await read_layout(chunks, segment.name)
    except (CorruptionError, AdoptionError) as error:
        report.problems.append(RollingProblem(segment.name, str(error)))
        return
    if layout is not None:
        target.adoptions.given[name] = replace(layout, segment=name)
    await _import(target, replace(segment, name=name, source=segment.name), report)
    target.adoptions.given.pop(name, None)


async def _import(container: SegmentContainer, segment: RollingSegment, report: ImportReport) -> None:
    adopted_count = container.adoptions.adopted_count
    try:
        await container.find(segment.name)
        await container.pipeline.barrier()
    except NoSuchSegmentError:
        report.deleted_count += 1
    except (CorruptionError, AdoptionError, InvalidArgumentError) as error:
        report.problems.append(RollingProblem(segment.name, str(error)))
    else:
        if container.adoptions.adopted_count > adopted_count:
            report.imported.append(segment)
        else:
            report.present.append(segment)


async def _layouts(
    chunks: ChunkStorage, problems: list[RollingProblem], names: Collection[str]
) -> AsyncIterator[tuple[str, RollingLayout | None]]:
    """Yield the chunks in storage of each segment with a header; record the damaged ones."""
    async for segment in rolling_segments(chunks):
        if not is_chosen(segment, names):
            continue
        try:
            layout = await read_layout(chunks, segment)
        except (CorruptionError, InvalidArgumentError) as error:
            problems.append(RollingProblem(segment, str(error)))
        else:
            yield segment, layout


def _described(segment: str, layout: RollingLayout) -> RollingSegment:
    return RollingSegment(
        segment,
        layout.start_offset,
        layout.length,
        len(layout.chunks),
        layout.gone_count,
        layout.surplus_bytes,
        is_adoptable(segment),
    )
