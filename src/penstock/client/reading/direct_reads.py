"""`DirectReads`: reads a segment by a layout of its chunks where possible, and the rest through the store.

A `SegmentFetch` uses it in place of the segment stores. Each result is verified bytes of one chunk, or the store's. If
a direct read fails, the store continues at the same byte, so no byte is returned twice. See docs/direct-reads.md.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

from penstock.client.reading.chunk_places import ChunkPlace, ChunkPlaces, check_chunk_name
from penstock.client.transport.chunk_layouts import SegmentLayout
from penstock.client.transport.segment_fetch import Reads
from penstock.model.block_checksums import block_range, verify_blocks
from penstock.model.errors import CorruptionError, PenstockError
from penstock.model.segments import SegmentData


class DirectReads:
    """See the module. After a chunk cannot be read, all further reads go through the store.

    Attributes:
        direct_bytes: bytes read from chunks.
        store_bytes: bytes read through the store.
        problem: why bytes of the layout were read through the store; None: they were not.
    """

    def __init__(
        self, segments: Reads, layout: SegmentLayout, places: ChunkPlaces, *, place: str = "", is_required: bool = False
    ) -> None:
        """`place`: see `ChunkPlaces.find`. With `is_required` a problem is raised; the store provides only the rest."""
        self._segments = segments
        self._layout = layout
        self._places = places
        self._at = place
        self._is_required = is_required
        self._place: ChunkPlace | None = None
        #: Offset in the segment of each row's first block. A long chunk may have several rows.
        self._starts = [chunk.start_offset + chunk.first_block * chunk.block_length for chunk in layout.chunks]
        self.direct_bytes: int = 0
        self.store_bytes: int = 0
        self.problem: PenstockError | None = None

    async def read(self, segment: str, offset: int, length: int, *, wait: bool = False) -> SegmentData:
        """See `Segments.read`. The result may be shorter than requested: up to the end of a block."""
        if self._layout.start <= offset < self._layout.end and self.problem is None:
            try:
                data = await self._read(offset, min(offset + length, self._layout.end))
            except PenstockError as error:
                if self._is_required:
                    raise
                self.problem = error
            else:
                self.direct_bytes += len(data)
                return SegmentData(offset, (data,), is_at_tail=False, is_end_of_segment=False)
        found = await self._segments.read(segment, offset, length, wait=wait)
        self.store_bytes += sum(map(len, found.data))
        return found

    async def _read(self, offset: int, end: int) -> bytes:
        """Return verified bytes from `offset` on, at most up to `end`, at least one."""
        if self._place is None:
            self._place = await self._places.find(self._layout.storage, self._at)
        chunk = self._layout.chunks[bisect_right(self._starts, offset) - 1]
        name, block_length = chunk.name, chunk.block_length
        check_chunk_name(name)
        told = min(chunk.length, (chunk.first_block + len(chunk.checksums) // 4) * block_length)
        start, stop = offset - chunk.start_offset, min(end - chunk.start_offset, told)
        # Up to the end of a block, so that the next read begins with one, and none is read twice.
        stop = max(stop - stop % block_length, start + 1) if stop < told else stop
        first, last = block_range(start, stop, length=chunk.length, block_length=block_length)
        data = await self._place.read(name, first, last - first)
        if len(data) != last - first:
            raise CorruptionError(name, first + len(data), f"it ends here; its record says {chunk.length} bytes")
        count = len(chunk.checksums) // 4
        checksums = struct.unpack(f">{count}I", chunk.checksums)
        verify_blocks(name, first, data, checksums, block_length=block_length, first_block=chunk.first_block)
        stop = min(last, end - chunk.start_offset)
        return data if (start, stop) == (first, last) else data[start - first : stop - first]
