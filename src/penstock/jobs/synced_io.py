"""`SyncedFileIO`: PyIceberg's file I/O, with files durable before the catalogue refers to them.

PyIceberg closes a local file without a sync. After a power failure the catalogue may then point to metadata that were
never written to disk, and the table is unreadable. Object stores answer when an object is durable, so nothing changes
there.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO

from pyiceberg.io.pyarrow import PyArrowFileIO

from penstock.jobs.parquet_files import sync_directory, sync_file


class _SyncedFile(io.FileIO):
    """A file that is synced when it is closed."""

    def close(self) -> None:
        if not self.closed:
            sync_file(self)
        super().close()


class _SyncedOutput:
    """The ``OutputFile`` by which PyIceberg writes one local file."""

    def __init__(self, location: str, path: Path) -> None:
        self.location = location
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        """Return whether it exists."""
        return self._path.exists()

    def create(self, overwrite: bool = False) -> IO[bytes]:
        """Open it for writing."""
        missing = [each for each in self._path.parents if not each.exists()]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        opened = io.BufferedWriter(_SyncedFile(self._path, "wb" if overwrite else "xb"))
        for each in (self._path.parent, *(directory.parent for directory in missing)):
            sync_directory(each)
        return opened

    def to_input_file(self) -> object:
        """Return it for reading."""
        return PyArrowFileIO().new_input(self.location)


class SyncedFileIO(PyArrowFileIO):  # type: ignore[misc]  # PyIceberg is an extra: to mypy it is nothing
    """See the module. Named in the property ``py-io-impl`` of a catalogue."""

    def new_output(self, location: str) -> object:
        """Return the output of a file: synced where it is local."""
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme == "file":
            return _SyncedOutput(location, Path(path))
        return super().new_output(location)
