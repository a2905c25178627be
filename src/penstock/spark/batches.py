"""Converts a byte range of a segment to Arrow record batches of the source's schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.errors import InvalidArgumentError
from penstock.model.events import EVENT_HEADER_LENGTH, framed_length_at
from penstock.model.segments import Buffer
from penstock.spark.options import Column

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

#: Size of one record batch: Spark is slower (measured) with several MB, and with less than a tenth of that. A block of
#: this size or more becomes a batch of its own and is not joined with others, which would copy it.
BATCH_BYTES_TARGET = 1024 * 1024
BATCH_ROW_COUNT_MAX = 20_000


@dataclass(slots=True)
class RangeProgress:
    """The progress in a range: `at` is the first byte that was not yielded."""

    at: int


def record_batches(
    blocks: Iterable[Buffer],
    *,
    scope: str,
    stream: str,
    segment: int,
    segment_name: str,
    place: RangeProgress,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the events in `blocks`, the bytes of a segment from event boundary `place`, in order.

    `place` advances past the yielded events.

    Batches have `columns` out of ``event: binary, scope: string, stream: string, segment_id: int64, offset: int64``;
    `offset` is that of the event's header in the segment. A batch has at least `BATCH_BYTES_TARGET` bytes and at most
    that plus a block, more only for a single larger event, and at most `BATCH_ROW_COUNT_MAX` rows.

    Raises:
        InvalidArgumentError: the bytes end inside an event: a cut that does not lie on an event boundary.
        CorruptionError: bytes that cannot be an event's header.
    """
    from penstock.client.common.arrow import unframe

    shape = _Shape(scope, stream, segment, columns)
    parts: list[Buffer] = []
    pending_bytes, start = 0, place.at
    # The number of bytes needed for the next batch: the usual size, or one large event.
    wanted_bytes = BATCH_BYTES_TARGET
    for block in blocks:
        parts.append(block)
        pending_bytes += len(block)
        if pending_bytes < wanted_bytes:
            continue
        head, data = _joined(parts, segment_name, place.at)
        events, starts, consumed = unframe(data, head=head, source=segment_name, base_offset=place.at)
        yield from shape.batches(events, starts, place.at)
        rest = bytes(memoryview(data)[consumed - len(head) :])
        place.at += consumed
        parts, pending_bytes = [rest] if rest else [], len(rest)
        wanted_bytes = max(BATCH_BYTES_TARGET, framed_length_at(rest, source=segment_name, base_offset=place.at) or 0)
    if not pending_bytes:
        return
    head, data = _joined(parts, segment_name, place.at)
    events, starts, consumed = unframe(data, head=head, source=segment_name, base_offset=place.at)
    yield from shape.batches(events, starts, place.at)
    end = place.at + pending_bytes
    rest = bytes(memoryview(data)[consumed - len(head) :])
    place.at += consumed
    if rest:
        framed_length_at(rest, source=segment_name, base_offset=place.at)
        raise InvalidArgumentError(
            f"{segment_name}: the range that starts at byte {start} ends at byte {end}, inside the event at byte "
            f"{place.at}: the stream cut does not lie on an event boundary"
        )


def _joined(parts: Sequence[Buffer], segment_name: str, base_offset: int) -> tuple[Buffer, Buffer]:
    """Return `parts`, which start at an event, as one buffer: the second one returned.

    If there are two, and the first is the start of an event, that event may be returned separately, as the first
    buffer, and the rest of the second part unchanged: so a large block is not copied because of an event cut by its
    start.
    """
    if len(parts) == 1:
        return b"", parts[0]
    if len(parts) == 2:
        first, second = parts
        header = bytes(first[:EVENT_HEADER_LENGTH])
        header += bytes(second[: EVENT_HEADER_LENGTH - len(header)])
        length = framed_length_at(header, source=segment_name, base_offset=base_offset)
        if length is not None and 0 <= (missing := length - len(first)) <= len(second):
            view = memoryview(second)
            return b"".join((first, view[:missing])), view[missing:]
    return b"", b"".join(parts)


def as_declared(batches: Iterable[pa.RecordBatch], declared: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the names and nullability of a schema's columns, without copying bytes."""
    import pyarrow as pa

    for batch in batches:
        fields = [
            pa.field(column.name, array.type, nullable=column.is_nullable)
            for column, array in zip(declared, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


class _Shape:
    """Builds record batches of one fixed schema from events: Spark checks only the first batch."""

    def __init__(self, scope: str, stream: str, segment: int, columns: Sequence[str]) -> None:
        import pyarrow as pa

        self._types = {
            "event": pa.binary(),
            "scope": pa.string(),
            "stream": pa.string(),
            "segment_id": pa.int64(),
            "offset": pa.int64(),
        }
        self._constants: dict[str, pa.Scalar] = {
            "scope": pa.scalar(scope, pa.string()),
            "stream": pa.scalar(stream, pa.string()),
            "segment_id": pa.scalar(segment, pa.int64()),
        }
        self._schema = pa.schema([pa.field(name, self._types[name]) for name in columns])

    def batches(self, events: pa.BinaryArray, starts: npt.NDArray[np.int64], base: int) -> Iterator[pa.RecordBatch]:
        """Yield `events` in batches of bounded size; `starts` are their headers' offsets from `base`."""
        import pyarrow as pa

        row_count = len(events)
        offsets = pa.array(starts, pa.int64()) if "offset" in self._schema.names else None
        for first in range(0, row_count, BATCH_ROW_COUNT_MAX):
            count = min(BATCH_ROW_COUNT_MAX, row_count - first)
            arrays: list[pa.Array] = []
            for name in self._schema.names:
                if name == "event":
                    arrays.append(events.slice(first, count))
                elif name == "offset":
                    assert offsets is not None
                    arrays.append(pa.compute.add(offsets.slice(first, count), base))
                else:
                    arrays.append(pa.repeat(self._constants[name], count))
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
