"""`SyncedFileIO`: PyIceberg's files, on disk before the catalogue says that they are there.

PyIceberg closes a local file and is done with it. A power cut may then leave a catalogue that points to metadata that
never came to disk, and with it a table that nobody can read. Object stores answer when an object is durable: there
nothing changes.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO

from pyiceberg.io.pyarrow import PyArrowFileIO

from penstock.jobs.parquet_files import sync_directory, sync_file


class _SyncedFile(io.FileIO):
    """A file that is on disk when it is closed."""

    def close(self) -> None:
        if not self.closed:
            sync_file(self)
        super().close()


class _SyncedOutput:
    """What PyIceberg writes one local file by: an ``OutputFile`` of its."""

    def __init__(self, location: str, path: Path) -> None:
        self.location = location
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        """Say whether it is there."""
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
        """Return what writes a file: synced where it is local."""
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme == "file":
            return _SyncedOutput(location, Path(path))
        return super().new_output(location)
