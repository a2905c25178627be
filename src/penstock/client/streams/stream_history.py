"""`StreamHistory`: the segments of a stream in each epoch, and the requests for them.

Penstock's controller returns them in pages, with the times at which they began. Pravega's controller returns the
segments of one epoch per request, and no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from penstock.client.controller.controller import ControllerClient
from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.settings import ClientSettings
from penstock.model.errors import InvalidArgumentError, NoSuchStreamError, PenstockError, ProtocolError
from penstock.model.names import SegmentId, segment_epoch
from penstock.rpc import additions_pb2 as added
from penstock.runtime.bulk import for_each

_EPOCHS_PER_PAGE = 1000
#: Epochs are int32.
_EPOCH_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class StreamEpoch:
    """The segments of a stream between two scales.

    Attributes:
        number: 0 for the initial segments.
        segments: by key range; together they cover [0, 1).
        began_ms: Unix time, by the controller's clock, from which on it took events; None if the controller does not
            report it.
    """

    number: int
    segments: tuple[SegmentRange, ...]
    began_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentLife:
    """The epochs of one segment, as far as a history contains them.

    Attributes:
        segment: the segment and its key range.
        first_epoch: its first epoch, or the first epoch of the history if it began earlier.
        last_epoch: its last epoch.
    """

    segment: SegmentRange
    first_epoch: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """Successive epochs of a stream.

    Attributes:
        scope, stream: the stream's names.
        epochs: oldest first, at least one.
        epoch_count: epochs that the stream has had so far; more than `epochs` if only the latest were requested.
        is_sealed: whether it takes no more events. The segments of its last epoch can still be read then.
    """

    scope: str
    stream: str
    epochs: tuple[StreamEpoch, ...]
    epoch_count: int
    is_sealed: bool

    def lives(self) -> list[SegmentLife]:
        """Return the epochs of each segment, by first epoch and key range."""
        lives: dict[int, SegmentLife] = {}
        for epoch in self.epochs:
            for segment in epoch.segments:
                first = lives[segment.segment_id].first_epoch if segment.segment_id in lives else epoch.number
                lives[segment.segment_id] = SegmentLife(segment, first, epoch.number)
        return sorted(lives.values(), key=lambda life: (life.first_epoch, life.segment.key_low))

    def changes(self) -> list[tuple[StreamEpoch, list[SegmentRange], list[SegmentRange]]]:
        """Return each epoch with the segments that it removed, and those that it added.

        All segments of the first epoch count as added.
        """
        first = self.epochs[0]
        found: list[tuple[StreamEpoch, list[SegmentRange], list[SegmentRange]]] = [(first, [], list(first.segments))]
        for before, epoch in pairwise(self.epochs):
            had = {segment.segment_id for segment in before.segments}
            has = {segment.segment_id for segment in epoch.segments}
            found.append(
                (
                    epoch,
                    [segment for segment in before.segments if segment.segment_id not in has],
                    [segment for segment in epoch.segments if segment.segment_id not in had],
                )
            )
        return found

    def scales(self) -> list[tuple[StreamEpoch, int, int]]:
        """Return each epoch with the number of segments that its scale split and merged.

        A split segment is followed by several; a merged one is the successor of several. The first epoch has none.
        """
        found = []
        for epoch, sealed, created in self.changes():
            splits = sum(sum(_overlap(old, new) for new in created) > 1 for old in sealed)
            merges = sum(sum(_overlap(old, new) for old in sealed) > 1 for new in created)
            found.append((epoch, splits, merges))
        return found


def _overlap(one: SegmentRange, other: SegmentRange) -> bool:
    return one.key_low < other.key_high and other.key_low < one.key_high


async def history_of(
    controller: ControllerClient,
    settings: ClientSettings,
    scope: str,
    stream: str,
    *,
    epoch_count_max: int,
    before: int | None,
) -> StreamHistory:
    """See `Client.history`."""
    if epoch_count_max < 1:
        raise InvalidArgumentError(f"{epoch_count_max} epochs of {scope}/{stream}: request 1 or more")
    if before is not None and before < 1:
        raise InvalidArgumentError(f"{scope}/{stream} has no epoch before {before}: the first one is 0")
    pages: list[StreamHistory] = []
    wanted = epoch_count_max
    while wanted > 0:
        end = pages[-1].epochs[0].number if pages else before or 0
        if pages and not end:
            break
        reply = await controller.stream_history(scope, stream, before=end, limit=min(wanted, _EPOCHS_PER_PAGE))
        if reply is None:
            return await _history_by_epoch(
                controller, settings, scope, stream, epoch_count_max=epoch_count_max, before=before
            )
        pages.append(_page(scope, stream, reply))
        wanted -= len(pages[-1].epochs)
    epochs = tuple(epoch for page in reversed(pages) for epoch in page.epochs)
    return StreamHistory(scope, stream, epochs, pages[0].epoch_count, pages[0].is_sealed)


def _page(scope: str, stream: str, reply: added.StreamHistory) -> StreamHistory:
    """Return the epochs of a reply, each with all of its segments."""
    active: dict[int, SegmentRange] = {}
    epochs = []
    for found in reply.epochs:
        for segment_id in found.sealed:
            active.pop(segment_id, None)
        for made in found.created:
            active[made.id] = SegmentRange(scope, stream, SegmentId(made.id), made.keyLow, made.keyHigh)
        segments = tuple(sorted(active.values(), key=lambda segment: segment.key_low))
        epochs.append(StreamEpoch(found.epoch, segments, found.beganMillis))
    if not epochs:
        raise ProtocolError(f"the controller returned no epoch of {scope}/{stream}")
    return StreamHistory(scope, stream, tuple(epochs), reply.currentEpoch + 1, reply.isSealed)


async def _history_by_epoch(
    controller: ControllerClient,
    settings: ClientSettings,
    scope: str,
    stream: str,
    *,
    epoch_count_max: int,
    before: int | None,
) -> StreamHistory:
    """Read the history from a controller of Pravega, or of an earlier release: a request for each epoch."""
    current = await controller.current_segments(scope, stream)
    if current:
        # Every scale creates at least one segment, so the newest of them are of the last epoch.
        last = max(segment_epoch(segment.segment_id) for segment in current)
    else:
        last = await _last_epoch(controller, scope, stream)
    end = last + 1 if before is None else min(before, last + 1)
    numbers = range(max(0, end - epoch_count_max), end)
    answers = await for_each(numbers, partial(_epoch, controller, scope, stream), settings.bulk_request_count_max)
    epochs: list[StreamEpoch] = []
    for answer in answers:
        if isinstance(answer, PenstockError):
            raise answer
        epochs.append(answer)
    return StreamHistory(scope, stream, tuple(epochs), last + 1, not current)


async def _epoch(controller: ControllerClient, scope: str, stream: str, number: int) -> StreamEpoch:
    found: Sequence[SegmentRange] = await controller.epoch_segments(scope, stream, number)
    return StreamEpoch(number, tuple(sorted(found, key=lambda segment: segment.key_low)))


async def _last_epoch(controller: ControllerClient, scope: str, stream: str) -> int:
    """Find the last epoch of a sealed stream, which has no current segments to show it.

    Costs twice as many requests as its number has bits.
    """
    await controller.epoch_segments(scope, stream, 0)
    known, missing = 0, 1
    while missing < _EPOCH_LIMIT and await _has_epoch(controller, scope, stream, missing):
        known, missing = missing, missing * 2
    while missing - known > 1:
        middle = (known + missing) // 2
        if await _has_epoch(controller, scope, stream, middle):
            known = middle
        else:
            missing = middle
    return known


async def _has_epoch(controller: ControllerClient, scope: str, stream: str, number: int) -> bool:
    try:
        await controller.epoch_segments(scope, stream, number)
    except NoSuchStreamError:
        return False
    return True
