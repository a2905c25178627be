"""Events to and from Arrow arrays, without a Python step per event where numpy can do it.

pyarrow and numpy come with the extra ``penstock[arrow]`` and are imported here on first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeGuard, cast

from penstock.model.errors import InvalidArgumentError, UnsupportedOperationError
from penstock.model.events import EVENT_HEADER_LENGTH, HEADER_LENGTH_VALUE_MAX, event_starts, framed_length_at
from penstock.model.segments import Buffer
from penstock.runtime.extras import missing_extra

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

if TYPE_CHECKING:
    ArrowRecordBatch: TypeAlias = pa.RecordBatch
else:
    #: A `pyarrow.RecordBatch`, for signatures that are evaluated while pyarrow may not be installed.
    ArrowRecordBatch = object

#: The limit of Arrow's int32 offsets.
UNFRAME_BYTES_MAX = (1 << 31) - 1


class ArrowStrings(Protocol):
    """A pyarrow `Array` or `ChunkedArray` of (large) binary or (large) string."""

    @property
    def null_count(self) -> int:
        """Number of nulls."""

    @property
    def type(self) -> object:
        """The Arrow data type."""

    def __len__(self) -> int: ...


def import_arrow() -> tuple[ModuleType, ModuleType]:
    """Return the modules pyarrow and numpy. Raises `UnsupportedOperationError` naming the extra if they are missing."""
    try:
        import numpy
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise UnsupportedOperationError(missing_extra("an Arrow array", "arrow", error)) from error
    return pyarrow, numpy


def is_arrow(values: object) -> TypeGuard[ArrowStrings]:
    """Return whether `values` is a pyarrow array or chunked array, without importing pyarrow."""
    return hasattr(values, "null_count") and hasattr(values, "type")


def slice_of(values: ArrowStrings, start: int, end: int) -> ArrowStrings:
    """Return the values `[start, end)`, without a copy."""
    array = cast("pa.Array", values)
    return cast(ArrowStrings, array.slice(start, end - start))


def byte_count_of(values: ArrowStrings) -> int:
    """Return how many bytes the values take, their offsets in the array included."""
    return int(cast("pa.Array", values).nbytes)


def check_keys(values: ArrowStrings) -> None:
    """Raise `InvalidArgumentError` for values that cannot be routing keys."""
    _check_strings(values, "routing keys", text_only=True)


def keys_of(values: ArrowStrings) -> Sequence[str]:
    """Return the strings of an Arrow array. Each distinct string becomes one Python object."""
    _, numpy = import_arrow()
    _check_strings(values, "routing keys", text_only=True)
    result: list[str] = []
    for chunk in _chunks(values):
        encoded = chunk.dictionary_encode()
        words = numpy.array(encoded.dictionary.to_pylist(), dtype=object)
        result += words[encoded.indices.to_numpy(zero_copy_only=False)].tolist()
    return result


def payloads_of(values: ArrowStrings) -> Sequence[bytes]:
    """Return the payloads of an Arrow array as `bytes`."""
    pyarrow, _ = import_arrow()
    _check_strings(values, "events")
    result: list[bytes] = []
    for chunk in _chunks(values):
        result += chunk.cast(pyarrow.large_binary()).to_pylist()
    return result


def frame_array(array: ArrowStrings, bytes_max: int) -> Iterator[tuple[Buffer, int]]:
    """Frame the events of an Arrow array; yield buffers of up to `bytes_max` bytes with their event counts.

    A larger event has a buffer of its own. Raises `InvalidArgumentError` for nulls and other types.
    """
    pyarrow, numpy = import_arrow()
    _check_strings(array, "events")
    large_binary = pyarrow.large_binary()
    for chunk in _chunks(array):
        count = len(chunk)
        if not count:
            continue
        payloads = chunk.cast(large_binary)
        lengths = pyarrow.compute.binary_length(payloads).to_numpy(zero_copy_only=False)
        if lengths.max() > HEADER_LENGTH_VALUE_MAX:
            raise InvalidArgumentError(f"an event of {lengths.max()} bytes cannot be framed: the limit is 2 GiB - 1")
        # A header, read as one big-endian number, is the length: the type code in the upper half is 0.
        headers = pyarrow.Array.from_buffers(
            large_binary,
            count,
            [
                None,
                pyarrow.py_buffer(numpy.arange(count + 1, dtype=numpy.int64) * EVENT_HEADER_LENGTH),
                pyarrow.py_buffer(lengths.astype(">u8")),
            ],
        )
        separator = pyarrow.scalar(b"", large_binary)
        framed = pyarrow.compute.binary_join_element_wise(headers, payloads, separator)
        view = memoryview(framed.buffers()[2])
        ends = numpy.cumsum(lengths + EVENT_HEADER_LENGTH)
        start = start_bytes = 0
        while start < count:
            end = max(int(numpy.searchsorted(ends, start_bytes + bytes_max, side="right")), start + 1)
            end_bytes = int(ends[end - 1])
            yield view[start_bytes:end_bytes], end - start
            start, start_bytes = end, end_bytes


def starts_of(data: Buffer, *, source: str = "buffer", base_offset: int = 0) -> tuple[npt.NDArray[np.int64], int]:
    """Return where each whole event starts in `data`, as an int64 array, and the end of the last one.

    numpy finds and verifies events of equal size; otherwise a loop follows the chain of lengths. Raises
    `CorruptionError` as `split_events` does.
    """
    _, numpy = import_arrow()
    first = int.from_bytes(bytes(data[:EVENT_HEADER_LENGTH]), "big") if len(data) >= EVENT_HEADER_LENGTH else -1
    if 0 <= first <= HEADER_LENGTH_VALUE_MAX:
        stride = first + EVENT_HEADER_LENGTH
        count = len(data) // stride
        if count > 1:
            rows = numpy.frombuffer(data, numpy.uint8, count * stride).reshape(count, stride)
            headers = numpy.ascontiguousarray(rows[:, :EVENT_HEADER_LENGTH]).view(">u8").ravel()
            same = int(numpy.argmin(headers == first)) if not bool((headers == first).all()) else count
            if same == count:
                starts = numpy.arange(count, dtype=numpy.int64) * stride
                rest, end = event_starts(data, at=count * stride, source=source, base_offset=base_offset)
                # The bytes that follow are shorter than the stride, but may hold shorter whole events.
                return numpy.concatenate((starts, numpy.array(rest, dtype=numpy.int64))), end
    found, end = event_starts(data, source=source, base_offset=base_offset)
    return numpy.array(found, dtype=numpy.int64), end


def unframe(
    data: Buffer, *, head: Buffer = b"", source: str = "buffer", base_offset: int = 0
) -> tuple[pa.BinaryArray, npt.NDArray[np.int64], int]:
    """Return the payloads in `data` as a binary array, the offsets of their headers, and the bytes used.

    `data` starts at an event; a partial event at the end is not consumed. `(events,) int64 offsets, bytes`. `head` is
    one whole event before `data` that was split across blocks: offsets, the bytes used and `base_offset` count from its
    start.

    Costs one copy of the payloads; a `head` before events of other lengths costs another. Raises `CorruptionError` as
    `split_events` does, `InvalidArgumentError` above 2 GiB.
    """
    pyarrow, numpy = import_arrow()
    if len(head) + len(data) > UNFRAME_BYTES_MAX:
        raise InvalidArgumentError(f"{len(head) + len(data)} bytes at once: unframe up to {UNFRAME_BYTES_MAX}")
    found = _unframed_equal(head, data, source, base_offset)
    if found is not None:
        return found
    if head:
        data = b"".join((head, data))
    starts, consumed = starts_of(data, source=source, base_offset=base_offset)
    count = len(starts)
    # Headers and payloads alternate over the raw bytes without a copy; taking every other one copies the payloads.
    offsets = numpy.empty(2 * count + 1, dtype=numpy.int32)
    offsets[:-1:2] = starts
    offsets[1::2] = starts + EVENT_HEADER_LENGTH
    offsets[-1] = consumed
    alternating = pyarrow.Array.from_buffers(
        pyarrow.binary(), 2 * count, [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    )
    payloads = alternating.take(pyarrow.array(numpy.arange(1, 2 * count, 2, dtype=numpy.int64)))
    return cast("pa.BinaryArray", payloads), starts, consumed


def _unframed_equal(
    head: Buffer, data: Buffer, source: str, base_offset: int
) -> tuple[pa.BinaryArray, npt.NDArray[np.int64], int] | None:
    """Do the work of `unframe` for events of one length above 0, checking each header; None: they are not that."""
    pyarrow, numpy = import_arrow()
    stride = framed_length_at(head or data, source=source, base_offset=base_offset)
    if stride is None or stride == EVENT_HEADER_LENGTH or len(head) not in (0, stride):
        return None
    length, count = stride - EVENT_HEADER_LENGTH, len(data) // stride
    if not count:
        return None
    headers = numpy.ndarray((count,), ">u8", buffer=data, strides=(stride,))
    if not bool((headers == length).all()):
        return None
    # The rest is shorter than the stride, but may hold shorter whole events.
    end = count * stride
    if len(data) - end >= EVENT_HEADER_LENGTH:
        following = int.from_bytes(data[end : end + EVENT_HEADER_LENGTH], "big")
        if end + EVENT_HEADER_LENGTH + following <= len(data):
            return None
    total = count + bool(head)
    # Arrow's pool reuses the memory of the batch before: fresh pages would cost more than the copy.
    buffer = pyarrow.allocate_buffer(total * length)
    payloads = numpy.ndarray((total, length), numpy.uint8, buffer=buffer)
    if head:
        payloads[0] = numpy.ndarray((length,), numpy.uint8, buffer=head, offset=EVENT_HEADER_LENGTH)
    payloads[total - count :] = numpy.ndarray((count, stride), numpy.uint8, buffer=data)[:, EVENT_HEADER_LENGTH:]
    offsets = numpy.arange(total + 1, dtype=numpy.int32)
    offsets *= length
    array = pyarrow.Array.from_buffers(pyarrow.binary(), total, [None, pyarrow.py_buffer(offsets), buffer])
    starts = numpy.arange(total, dtype=numpy.int64)
    starts *= stride
    return cast("pa.BinaryArray", array), starts, total * stride


def _chunks(array: ArrowStrings) -> Sequence[pa.Array]:
    chunks: Sequence[pa.Array] | None = getattr(array, "chunks", None)
    return [array] if chunks is None else chunks


def _check_strings(array: ArrowStrings, what: str, *, text_only: bool = False) -> None:
    pyarrow, _ = import_arrow()
    types = pyarrow.types
    kind = array.type
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if not is_text and (text_only or not (types.is_binary(kind) or types.is_large_binary(kind))):
        wanted = "string" if text_only else "binary or string"
        raise InvalidArgumentError(f"{what} came as an Arrow array of {kind}: use {wanted}")
    if array.null_count:
        raise InvalidArgumentError(f"{what} came with {array.null_count} nulls; drop or fill them first")
