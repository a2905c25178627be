"""From a byte range of a segment to Arrow record batches of the source's schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.errors import InvalidArgumentError
from penstock.model.events import framed_length_at
from penstock.model.segments import Buffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

#: Bounds of one record batch: past these Spark gets slower (measured), below a tenth of them too.
BATCH_BYTES_TARGET = 4 * 1024 * 1024
BATCH_ROW_COUNT_MAX = 20_000


@dataclass(slots=True)
class Place:
    """How far a range has been given out: `at` is the first byte of which nothing has."""

    at: int


def record_batches(
    blocks: Iterable[Buffer],
    *,
    scope: str,
    stream: str,
    segment: int,
    segment_name: str,
    place: Place,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the events in `blocks`, the bytes of a segment from event boundary `place` on, in order.

    `place` moves with what was yielded.

    Batches hold `columns` out of ``event: binary, scope: string, stream: string, segment_id: int64, offset: int64``;
    `offset` is that of the event's header in the segment. Each has about `BATCH_BYTES_TARGET` bytes, more only for
    a single larger event, and at most `BATCH_ROW_COUNT_MAX` rows.

    Raises:
        InvalidArgumentError: the bytes end inside an event: a cut that does not lie on an event boundary.
        CorruptionError: bytes that cannot be an event's header.
    """
    from penstock.client.arrow import unframe

    shape = _Shape(scope, stream, segment, columns)
    parts: list[Buffer] = []
    pending_bytes, start = 0, place.at
    # What must be there before another batch can come out: the usual size, or one large event.
    wanted_bytes = BATCH_BYTES_TARGET
    for block in blocks:
        parts.append(block)
        pending_bytes += len(block)
        if pending_bytes < wanted_bytes:
            continue
        data = b"".join(parts)
        events, starts, consumed = unframe(data, source=segment_name, base_offset=place.at)
        yield from shape.batches(events, starts, place.at)
        rest = data[consumed:]
        place.at += consumed
        parts, pending_bytes = [rest], len(rest)
        wanted_bytes = max(
            BATCH_BYTES_TARGET, framed_length_at(rest, source=segment_name, base_offset=place.at) or 0
        )
    data = b"".join(parts)
    if not data:
        return
    events, starts, consumed = unframe(data, source=segment_name, base_offset=place.at)
    if consumed != len(data):
        raise InvalidArgumentError(
            f"{segment_name}: the range that starts at byte {start} ends at byte {place.at + len(data)}, inside the "
            f"event at byte {place.at + consumed}: the stream cut does not lie on an event boundary"
        )
    yield from shape.batches(events, starts, place.at)
    place.at += consumed


class _Shape:
    """Puts events into record batches of one fixed schema: Spark checks the first batch and trusts the others."""

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


