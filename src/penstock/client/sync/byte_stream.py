"""Byte streams as the files of Python's `io`. Written by hand: their calls are those of `io.RawIOBase`."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

from penstock.client.common.pickling import NotPicklable
from penstock.client.writing import byte_stream as aio
from penstock.runtime.portal import Portal

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class ByteWriter(NotPicklable, io.RawIOBase):
    """A byte stream as a file to append to. See `penstock.client.writing.byte_stream.ByteWriter`."""

    def __init__(self, client: object, portal: Portal, writer: aio.ByteWriter) -> None:
        super().__init__()
        # Kept alive as long as this is used: a client that is dropped is closed.
        self._client = client
        self._portal = portal
        self._writer = writer
        #: Python's files flush again when they are closed.
        self._is_closing = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Take bytes; durable after `flush`."""
        view = memoryview(data).cast("B")
        return self._portal.call(self._writer.write(view))

    def flush(self) -> None:
        """Make everything written so far durable."""
        if not self._is_closing:
            self._portal.call(self._writer.flush())

    def close(self) -> None:
        """Flush and close. An error that `write` or `flush` has raised before is not raised again."""
        self._is_closing = True
        try:
            if not self._writer.is_closed:
                self._portal.call(self._writer.close())
        finally:
            super().close()

    def __repr__(self) -> str:
        return repr(self._writer)

    def __del__(self) -> None:
        # Not `close`, as of Python's files: this may run in any thread, also in the loop's.
        writer: aio.ByteWriter | None = getattr(self, "_writer", None)
        if writer is not None and writer.is_open:
            warnings.warn(f"unclosed {writer!r}", ResourceWarning, source=self, stacklevel=1)
            self._portal.run_behind(writer.close)

    def tell(self) -> int:
        """Return the offset of the next byte to write."""
        return self._writer.tell()

    def truncate_before(self, offset: int) -> None:
        """Forget the bytes before `offset`."""
        self._portal.call(self._writer.truncate_before(offset))


class ByteReader(NotPicklable, io.RawIOBase):
    """A byte stream as a file to read. See `penstock.client.writing.byte_stream.ByteReader`."""

    def __init__(self, client: object, portal: Portal, reader: aio.ByteReader) -> None:
        super().__init__()
        # Kept alive as long as this is used: a client that is dropped is closed.
        self._client = client
        self._portal = portal
        self._reader = reader

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into `buffer`: what is there, else what comes next. 0 once the stream is sealed and read."""
        view = memoryview(buffer).cast("B")
        return self._portal.call(self._reader.readinto(view))

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to an offset from the first byte ever written, from here, or from the current end."""
        if whence == io.SEEK_CUR:
            offset += self._reader.tell()
        elif whence == io.SEEK_END:
            offset += self._portal.call(self._reader.current_end())
        return self._portal.call(self._reader.seek(offset))

    def tell(self) -> int:
        """Return the offset of the next byte to read."""
        return self._reader.tell()

    def close(self) -> None:
        """Stop reading ahead."""
        if not self._reader.is_closed:
            self._portal.call(self._reader.close())
        super().close()

    def __repr__(self) -> str:
        return repr(self._reader)

    def __del__(self) -> None:
        reader: aio.ByteReader | None = getattr(self, "_reader", None)
        if reader is not None and reader.is_open:
            warnings.warn(f"unclosed {reader!r}", ResourceWarning, source=self, stacklevel=1)
            self._portal.run_behind(reader.close)
