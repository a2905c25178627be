"""What went on inside the segment stores of a run, by mechanism: the totals show whether seeds reach it at all."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from typing import Final

from penstock.segmentstore.container.activity.offset_index import OffsetIndexes
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.btree.footer import Footer
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.catalog import SegmentCatalog
from penstock.segmentstore.container.reads.disk_cache import DiskCache
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.tables.compaction import TableCompactor
from penstock.segmentstore.container.tables.index import TableIndex
from penstock.segmentstore.container.tables.indexer import TableIndexer
from penstock.segmentstore.container.tables.tables import Tables
from penstock.segmentstore.tier1.object_log.journal_writer import JournalWriter
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.log_process import LogProcess
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from penstock.segmentstore.tier1.object_log.server_claim import ServerClaim
from penstock.segmentstore.tier2.chunk_joiner import ChunkJoiner

#: What a call represents: its name in the totals and how often it counts, given its arguments. None: not at all.
_Meaning = Callable[..., "tuple[str, int] | None"]


def _index_update(index: BTreeIndex, *_: object, **__: object) -> tuple[str, int]:
    return f"inside: updates of {'attribute' if '$attributes-' in index.name else 'table'} indexes", 1


def _give_back(index: BTreeIndex, state: Footer) -> tuple[str, int] | None:
    is_due = state.lowest - index._start_offset >= index._settings.truncate_bytes_min
    return ("inside: indexes shortened", 1) if is_due else None


def _apply_copies(_: TableIndex, copies: Sized, *__: object, **___: object) -> tuple[str, int] | None:
    return ("inside: table copies met by scans", len(copies)) if copies else None


def _find(catalog: SegmentCatalog, name: str) -> tuple[str, int] | None:
    return ("inside: finds that had to read", 1) if name not in catalog._metadata.by_name else None


def _make_room(catalog: SegmentCatalog, _: str) -> tuple[str, int] | None:
    is_due = catalog._metadata.active_count >= catalog._settings.active_segments_max
    return ("inside: rooms made", 1) if is_due else None


def _always(name: str) -> _Meaning:
    return lambda *_, **__: (f"inside: {name}", 1)


_POINTS: Final[tuple[tuple[type, str, _Meaning], ...]] = (
    (ContainerState, "accept_deactivate", lambda _, segments: ("inside: deactivations", len(segments))),
    (ContainerState, "accept_activate", _always("activations")),
    (ContainerState, "accept_spill", _always("attribute spills")),
    (Attributes, "flush", _always("attribute flushes")),
    (Attributes, "bring_in", _always("writers that waited for their number")),
    (SegmentCatalog, "inactive", _always("infos of inactive segments")),
    (SegmentCatalog, "make_room", _make_room),
    (SegmentCatalog, "_flush_some", _always("flushes for room")),
    (SegmentCatalog, "find", _find),
    (BTreeIndex, "update", _index_update),
    (BTreeIndex, "_give_back", _give_back),
    (TableIndexer, "load", _always("tables loaded")),
    (TableIndexer, "_make", _always("table indexes begun")),
    (TableIndexer, "_reopen", _always("table indexes opened again")),
    (TableIndex, "commit", _always("table tails moved")),
    (TableIndex, "rebase", _always("table tails rebased")),
    (TableIndex, "apply_copies", _apply_copies),
    (TableIndex, "apply_copies_made", _always("table compaction steps")),
    (TableCompactor, "compact", _always("table compactions")),
    (Tables, "delta", _always("table deltas")),
    (OffsetIndexes, "write", _always("offset index entries")),
    (OffsetIndexes, "locate", _always("offsets located")),
    (
        ChunkJoiner,
        "_end_pass",
        lambda _, ended: ("inside: segments in which chunks were joined", 1) if ended.has_joined else None,
    ),
    (DiskCache, "read", _always("reads of the disk cache")),
    (ObjectLog, "_try_to_claim", _always("claims of logs in a bucket")),
    (ObjectLog, "hop", _always("pieces of idle logs examined")),
    (LogBucket, "seal", _always("seals of journals")),
    (LogBucket, "delete_slots", lambda _, __, slots: ("inside: slots of journals deleted", len(slots))),
    (JournalWriter, "_roll", _always("journals continued in another one")),
    (LogProcess, "fenced", _always("logs found to be taken over")),
    (ServerClaim, "take", _always("servers started on a log")),
)


@contextmanager
def counted(counts: Counter[str]) -> Iterator[None]:
    """Count into `counts` meanwhile. Nothing else changes; also what dead processes still do counts."""
    with ExitStack() as stack:
        for owner, name, meaning in _POINTS:
            stack.enter_context(_counting(owner, name, meaning, counts))
        yield


@contextmanager
def _counting(owner: type, name: str, meaning: _Meaning, counts: Counter[str]) -> Iterator[None]:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: object, **options: object) -> object:
        if (found := meaning(*arguments, **options)) is not None:
            counts[found[0]] += found[1]
        return original(*arguments, **options)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)
