"""The transactions of a stream that have not ended, each with its length."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.controller.transaction_endings import TransactionInfo
from penstock.client.controller.transaction_ids import id_of
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import NoSuchSegmentError, PenstockError
from penstock.model.names import EPOCH_SHIFT, split_scoped_name, transaction_segment_name
from penstock.model.segments import SegmentInfo

#: Segments whose lengths are requested together; for a transaction with more, all of its own.
_SEGMENTS_AT_ONCE = 1000


async def open_transactions(cluster: Cluster, stream: str) -> AsyncIterator[TransactionInfo]:
    """Iterate over the open transactions of a stream, each with its length; see `Client.open_transactions`.

    Stopping early costs at most one unused page, and the lengths of some transactions.
    """
    scope, name = split_scoped_name(stream)
    segments: dict[int, Sequence[SegmentRange]] = {}
    some: list[TransactionInfo] = []
    count = 0
    async for found in cluster.controller.open_transactions(scope, name):
        epoch = _epoch(found)
        if epoch not in segments:
            segments[epoch] = await cluster.controller.epoch_segments(scope, name, epoch)
        if some and count + len(segments[epoch]) > _SEGMENTS_AT_ONCE:
            for each in await _with_lengths(cluster, some, segments):
                yield each
            some, count = [], 0
            segments = {epoch: segments[epoch]}
        some.append(found)
        count += len(segments[epoch])
    for each in await _with_lengths(cluster, some, segments):
        yield each


async def with_length(cluster: Cluster, stream: str, found: TransactionInfo) -> TransactionInfo:
    """Return one transaction with the bytes in its segments, as `open_transactions` does."""
    epoch = _epoch(found)
    segments = await cluster.controller.epoch_segments(*split_scoped_name(stream), epoch)
    (one,) = await _with_lengths(cluster, [found], {epoch: segments})
    return one


async def _with_lengths(
    cluster: Cluster, some: Sequence[TransactionInfo], segments: Mapping[int, Sequence[SegmentRange]]
) -> list[TransactionInfo]:
    names = [
        transaction_segment_name(segment.name, id_of(found.id).highBits, id_of(found.id).lowBits)
        for found in some
        for segment in segments[_epoch(found)]
    ]
    infos = iter(await cluster.segments.segment_infos(names))
    return [replace(found, length_bytes=_sum([next(infos) for _ in segments[_epoch(found)]])) for found in some]


def _sum(infos: Sequence[SegmentInfo | PenstockError]) -> int | None:
    length = 0
    for info in infos:
        if isinstance(info, SegmentInfo):
            length += info.length
        elif not isinstance(info, NoSuchSegmentError):
            return None
    return length


def _epoch(found: TransactionInfo) -> int:
    # The upper half of an id begins with the epoch whose segments the transaction uses.
    return id_of(found.id).highBits >> EPOCH_SHIFT
