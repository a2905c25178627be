"""`StreamHistory`: which segments a stream had from one scale to the next, and how to ask for it.

A controller keeps all epochs of a stream, and tells those asked for by their numbers; it does not tell when they began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from penstock.client.controller import ControllerClient
from penstock.client.settings import ClientSettings
from penstock.client.stream_segments import SegmentRange
from penstock.model.errors import InvalidArgumentError, NoSuchStreamError, PenstockError
from penstock.model.names import segment_epoch
from penstock.runtime.bulk import for_each

#: Epochs are int32.
_EPOCH_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class StreamEpoch:
    """The segments of a stream between two scales.

    Attributes:
        number: 0 for those that the stream began with.
        segments: by the keys they take, all of [0, 1).
    """

    number: int
    segments: tuple[SegmentRange, ...]


@dataclass(frozen=True, slots=True)
class SegmentLife:
    """How long a segment was one of its stream's, as far as a history tells.

    Attributes:
        segment: the segment and the keys it takes.
        first_epoch: where it began, or the first epoch of the history if it began earlier.
        last_epoch: the last epoch that has it.
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
        epoch_count: epochs that the stream has had so far; more than `epochs` if only the latest were asked for.
        is_sealed: whether it takes no more events. The segments of its last epoch can still be read then.
    """

    scope: str
    stream: str
    epochs: tuple[StreamEpoch, ...]
    epoch_count: int
    is_sealed: bool

    def lives(self) -> list[SegmentLife]:
        """Return how long each segment was one of the stream's, by where they began and the keys they take."""
        lives: dict[int, SegmentLife] = {}
        for epoch in self.epochs:
            for segment in epoch.segments:
                first = lives[segment.segment_id].first_epoch if segment.segment_id in lives else epoch.number
                lives[segment.segment_id] = SegmentLife(segment, first, epoch.number)
        return sorted(lives.values(), key=lambda life: (life.first_epoch, life.segment.key_low))

    def changes(self) -> list[tuple[StreamEpoch, list[SegmentRange], list[SegmentRange]]]:
        """Return each epoch with the segments that it has no more, and those that it is the first to have.

        All of the first epoch's count as new.
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
        raise InvalidArgumentError(f"{epoch_count_max} epochs of {scope}/{stream}: ask for one or more")
    if before is not None and before < 1:
        raise InvalidArgumentError(f"{scope}/{stream} has no epoch before {before}: the first one is 0")
    current = await controller.current_segments(scope, stream)
    if current:
        # Whatever changes the segments makes one at least, so the youngest of them are of the last epoch.
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
    """Find the last epoch of a sealed stream, of which there are no current segments to tell it by.

    As many requests as its number has bits, twice.
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
