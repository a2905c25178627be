"""Standard output of a command: the single place where a failed write becomes an exit code.

All commands print through `sys.stdout`. While a command runs, `checked_output` puts an object in its place that turns
the operating system's errors into `OutputError`, so that neither a library nor a command takes them for its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO, cast


class OutputError(Exception):
    """Standard output takes no more. `error`: why. No `OSError`, so that nothing handles it as another file's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.error = error

    def __reduce__(self) -> tuple[type[OutputError], tuple[OSError], dict[str, object]]:
        """Survive pickling: `args` hold the message, the constructor takes the error."""
        return type(self), (self.error,), vars(self)

    @property
    def is_reader_gone(self) -> bool:
        """Whether the program that read the output has ended, as `head` does when it has enough."""
        return isinstance(self.error, BrokenPipeError)


class _Checked:
    """A file whose `write` and `flush` raise `OutputError`; all else is the file's own."""

    def __init__(self, file: TextIO | BinaryIO) -> None:
        self._file: Any = file

    def write(self, data: object) -> int:
        try:
            return int(self._file.write(data))
        except OSError as error:
            raise OutputError(error) from error

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise OutputError(error) from error

    @property
    def buffer(self) -> BinaryIO:
        return cast(BinaryIO, _Checked(self._file.buffer))

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


@contextmanager
def checked_output() -> Iterator[None]:
    """Check all writes to standard output in the block. At its end everything is written, or `OutputError` raised."""
    own = sys.stdout
    sys.stdout = cast(TextIO, _Checked(own))
    try:
        yield
        sys.stdout.flush()
    except OutputError:
        _discard(own)
        raise
    finally:
        sys.stdout = own


def _discard(output: TextIO) -> None:
    """Discard what is still in the buffer: at exit Python would fail on it again."""
    try:
        descriptor = output.fileno()
    except (OSError, ValueError):
        return  # Not a file of this process.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
