"""The blocking `SegmentReader`. Generated from `penstock.client.transport.segment_reader`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.client.sync.handle import PlainHandle
from penstock.client.transport import segment_reader as aio


class SegmentReader(PlainHandle[aio.SegmentReader]):
    """Reads `[start_offset, end_offset)` of a segment; iterate over it, or `read` block by block.

    Without `end_offset` it waits at the tail for new data and ends when the segment is sealed. It reads ahead of the
    consumer, by default `read_ahead_block_count` blocks of `read_bytes`. Made by `Client.segment_reader`; close it when
    done, or use it as a context manager.
    """

    @property
    def segment(self) -> str:
        """The segment's full name."""
        return self._part.segment

    def read(self, timeout_s: float | None = None) -> bytes:
        """Return the next block, waiting for it up to `timeout_s` (None: without limit); empty at the end.

        Raises `SegmentTruncatedError` if the data were truncated, `NoSuchSegmentError` if the segment was deleted,
        `ClosedError`, `TimeoutError`. After that it may be called again: no data is lost.
        """
        return self._portal.call(self._part.read(timeout_s))

    def __iter__(self) -> Iterator[bytes]:
        return self._portal.iterate(self._part)
