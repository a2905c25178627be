"""`ParquetDirectory`: a directory of Parquet files as the target of an export of a stream, exactly once.

``_penstock/0000000012.json`` is the manifest of the 12th commit: its start and end cut, and its files. The commit
exists if its manifest exists; a manifest is never changed or removed. Files are written into ``_penstock/staged``,
which tools that read a directory ignore, and are moved next to it once the manifest exists. Bytes:
``docs/formats.md``.

Commits are sequential: a manifest is linked under its number, which fails if that exists. So one of two concurrent
exporters is first, whatever they have read before.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.jobs.errors import ExportTargetError
from penstock.jobs.export import TablePosition, WrittenBatch, WrittenFile
from penstock.jobs.parquet_files import sync_directory, sync_file, write_parquet
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    InvalidNameError,
    LaterVersionError,
    PenstockError,
)
from penstock.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION = 1
_MANIFEST = re.compile(r"(\d{10})\.json")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A commit.

    Attributes:
        number: from 1, without a gap.
        id: of the batch, unique.
        schema: name and type of each column.
        files: names, in the order of the rows.
        identity: of the stream; None: unknown, as in manifests of earlier versions.
    """

    number: int
    id: str
    start: StreamCut
    end: StreamCut
    schema: tuple[tuple[str, str], ...]
    files: tuple[str, ...]
    row_count: int
    identity: str | None = None

    def encode(self) -> bytes:
        """Return the manifest as stored."""
        fields: dict[str, object] = {
            "v": FORMAT_VERSION, "number": self.number, "id": self.id, "start": self.start.to_text(),
            "end": self.end.to_text(), "schema": self.schema, "files": self.files, "row_count": self.row_count,
        }  # fmt: skip
        if self.identity is not None:
            fields["identity"] = self.identity
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, source: str) -> Manifest:
        """Decode a stored manifest. Raises `CorruptionError`, `LaterVersionError`, which name `source`."""
        try:
            fields = json.loads(data)
            if fields["v"] > FORMAT_VERSION:
                raise LaterVersionError(source, found=int(fields["v"]), known=FORMAT_VERSION)
            if fields["v"] != FORMAT_VERSION:
                raise ValueError(f"version {fields['v']}")
            identity = fields.get("identity")
            return cls(
                int(fields["number"]),
                str(fields["id"]),
                StreamCut.from_text(fields["start"]),
                StreamCut.from_text(fields["end"]),
                tuple((str(name), str(kind)) for name, kind in fields["schema"]),
                tuple(map(str, fields["files"])),
                int(fields["row_count"]),
                None if identity is None else str(identity),
            )
        except (ValueError, KeyError, TypeError, AttributeError, InvalidArgumentError, InvalidNameError) as error:
            raise CorruptionError(source, 0, f"not a manifest of an export: {error!r}") from error


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """Writes files staged for one commit. Implements `FileMaker`, on any machine with access to the directory."""

    staged: Path
    prefix: str
    schema: pa.Schema
    metadata: dict[str, str]

    def write(self, rows: Iterable[pa.RecordBatch]) -> WrittenFile:
        """See `FileMaker.write`."""
        name = f"{self.prefix}-{uuid.uuid4().hex[:8]}.parquet"
        try:
            with (self.staged / name).open("xb") as file:
                row_count = write_parquet(file, self.schema, rows, self.metadata)
                sync_file(file)
            sync_directory(self.staged)
        except BaseException as error:
            (self.staged / name).unlink(missing_ok=True)
            if isinstance(error, OSError) and not isinstance(error, PenstockError):
                raise ExportTargetError(f"{self.staged}: {name} was not written: {error.strerror or error}") from error
            raise
        return WrittenFile(name, row_count)


class ParquetDirectory:
    """See the module. Implements `ExportTarget`.

    Args:
        path: created if missing.
        stream: ``scope/stream``; a directory holds one.
        schema: the columns.
    """

    def __init__(self, path: Path, stream: str, schema: pa.Schema) -> None:
        self.path = path
        self._stream = stream
        self._schema = schema
        self._own = path / "_penstock"
        self._staged = self._own / "staged"
        try:
            self._staged.mkdir(parents=True, exist_ok=True)
            for each in (self._own, path, path.resolve().parent):
                sync_directory(each)
        except OSError as error:
            raise ExportTargetError(f"{path} cannot be exported to: {error.strerror or error}") from error
        if (manifest := self._latest()) is not None:
            self._check(manifest)

    def latest(self) -> TablePosition | None:
        """See `ExportTarget.latest`. Also moves files of the latest commit into the directory if its exporter died."""
        manifest = self._latest()
        self._clean(manifest)
        return _position(manifest)

    def new_files(self, batch_id: str, start: StreamCut, end: StreamCut) -> DirectoryFiles:
        """See `ExportTarget.new_files`."""
        manifest = self._latest()
        number = 1 if manifest is None else manifest.number + 1
        metadata = {"penstock.start-cut": start.to_text(), "penstock.end-cut": end.to_text()}
        return DirectoryFiles(self._staged, f"{number:010d}-{batch_id}", self._schema, metadata)

    def commit(self, batch: WrittenBatch) -> bool:
        """See `ExportTarget.commit`."""
        latest = self._latest()
        if latest is not None and latest.id == batch.id:
            return True
        if _position(latest) != batch.before:
            self.discard(batch)
            return False
        number = 1 if latest is None else latest.number + 1
        columns = tuple((field.name, str(field.type)) for field in self._schema)
        manifest = Manifest(
            number, batch.id, batch.start, batch.end, columns, batch.files, batch.row_count, batch.identity
        )
        if not self._link(manifest):
            self.discard(batch)
            return False
        self._clean(manifest)
        return True

    def discard(self, batch: WrittenBatch) -> None:
        """See `ExportTarget.discard`."""
        for name in batch.files:
            (self._staged / name).unlink(missing_ok=True)

    def _link(self, manifest: Manifest) -> bool:
        """Link a manifest, complete and synced, under its number; False: there is another one."""
        place = self._own / f"{manifest.number:010d}.json"
        draft = self._staged / f"{manifest.number:010d}-{manifest.id}.json"
        try:
            with draft.open("xb") as file:
                file.write(manifest.encode())
                sync_file(file)
            try:
                os.link(draft, place)
            except (FileExistsError, FileNotFoundError):
                # Either another exporter's, which may have removed the draft as well; or ours, with a lost reply, as
                # over NFS.
                return self._read(manifest.number) == manifest
            finally:
                draft.unlink(missing_ok=True)
            sync_directory(self._own)
        except OSError as error:
            raise ExportTargetError(f"{place} could not be written: {error.strerror or error}") from error
        return True

    def _clean(self, manifest: Manifest | None) -> None:
        """Move files of the latest commit into the directory, and remove those that no commit can contain any more.

        Files that other exporters have written for the next commit stay.
        """
        number = 0 if manifest is None else manifest.number
        files = () if manifest is None else manifest.files
        try:
            staged = os.listdir(self._staged)
            if any(name in files for name in staged):
                # Its exporter may have died before this: files are moved only after their manifest is durable.
                sync_directory(self._own)
            for name in staged:
                if name in files:
                    try:
                        os.rename(self._staged / name, self.path / name)
                    except FileNotFoundError:
                        pass  # Another exporter has done it.
                elif name[:10].isdecimal() and int(name[:10]) <= number:
                    (self._staged / name).unlink(missing_ok=True)
            if any(name in files for name in staged):
                sync_directory(self.path)
                sync_directory(self._staged)
        except OSError as error:
            raise ExportTargetError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def _latest(self) -> Manifest | None:
        try:
            numbers = [int(found[1]) for name in os.listdir(self._own) if (found := _MANIFEST.fullmatch(name))]
        except OSError as error:
            raise ExportTargetError(f"{self._own} cannot be read: {error.strerror or error}") from error
        return self._read(max(numbers)) if numbers else None

    def _read(self, number: int) -> Manifest:
        place = self._own / f"{number:010d}.json"
        try:
            data = place.read_bytes()
        except OSError as error:
            raise ExportTargetError(f"{place} cannot be read: {error.strerror or error}") from error
        manifest = Manifest.decode(data, str(place))
        if manifest.number != number:
            raise CorruptionError(str(place), 0, f"it is the manifest of commit {manifest.number}")
        return manifest

    def _check(self, manifest: Manifest) -> None:
        stream = f"{manifest.end.scope}/{manifest.end.stream}"
        if stream != self._stream:
            raise InvalidArgumentError(f"{self.path} holds {stream}: export {self._stream} to a directory of its own")
        columns = tuple((field.name, str(field.type)) for field in self._schema)
        if manifest.schema != columns:
            raise InvalidArgumentError(
                f"{self.path} has different columns from this export: it has "
                f"{', '.join(f'{name} {kind}' for name, kind in manifest.schema)}"
            )


def _position(manifest: Manifest | None) -> TablePosition | None:
    return None if manifest is None else TablePosition(manifest.end, manifest.identity)
