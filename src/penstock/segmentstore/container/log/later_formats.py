"""`LaterFormats`: finds what only a later version reads in the frames of a log that is not claimed yet."""

from __future__ import annotations

from penstock.segmentstore.container.log.frames import RecordReader, check_later_formats
from penstock.segmentstore.container.log.operations import Checkpoint, UpdatePinned, decode_operation
from penstock.segmentstore.container.metadata import pinned_in_snapshot
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.layout_settings import layout_of


class LaterFormats:
    """Call it with each frame of a file in order; with an empty one before the frames of another file.

    Raises `LaterFormatError` for a kind of record, a checkpoint or a mode of layout that only a later version reads.
    Everything else is left to the replay, also a checkpoint that begins in another file.
    """

    def __init__(self) -> None:
        #: Reads a checkpoint of several frames.
        self._reader: RecordReader | None = None

    def __call__(self, frame: bytes) -> None:
        """See the class."""
        if not frame:
            self._reader = None
            return
        begins = check_later_formats(frame)
        if self._reader is None:
            if not begins:
                return
            self._reader = RecordReader()
        try:
            records = self._reader.feed(frame)
        except ValueError:
            self._reader = None
            return
        for record in records:
            if record[0] in (Checkpoint.TYPE, UpdatePinned.TYPE):
                _check_record(bytes(record))
        if not self._reader.is_open:
            self._reader = None


def _check_record(record: bytes) -> None:
    try:
        _, operation = decode_operation(record)
        if isinstance(operation, Checkpoint):
            layout_of(pinned_in_snapshot(operation.snapshot))
        elif isinstance(operation, UpdatePinned):
            layout_of({key: value for key, value in operation.values.items() if value is not None})
    except LaterFormatError:
        raise
    except ValueError:
        return  # The replay reports it.
