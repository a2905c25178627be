"""`ChunkFiles`: the blocking half of `DirectoryChunkStorage`; each call is one job for the pool."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.model.errors import (
    BadChunkOffsetError,
    ChunkError,
    ChunkExistsError,
    InvalidArgumentError,
    NoSuchChunkError,
    StorageError,
    StorageFullError,
    StorageIdentityError,
    StorageUnavailableError,
)
from penstock.model.segments import Buffer
from penstock.model.sizes import IDENTITY_LENGTH_MAX
from penstock.runtime.disk import Disk, DiskFile, DiskSpace
from penstock.segmentstore.tier2.chunk_name import RESERVED_NAME_PREFIX
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo

#: The file that holds a storage's identity, in its root. No chunk can have this name.
IDENTITY_NAME = f"{RESERVED_NAME_PREFIX}toml"

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_READ_ONLY = (errno.EROFS, errno.EACCES)


class ChunkFiles:
    """Files below `root`, found by chunk name. Names are checked by the caller. May be called from any thread.

    Every method converts errors of the operating system to `ChunkError` and `StorageFullError`.

    Attributes:
        identity: required content of the identity file when a chunk is created; None: not known yet, any is accepted.
    """

    def __init__(self, root: str, disk: Disk, *, copy_buffer_bytes: int) -> None:
        self._root = root
        self._disk = disk
        self._copy_buffer_bytes = copy_buffer_bytes
        self.identity: bytes | None = None

    # The identity.

    def read_identity(self) -> bytes | None:
        """Return the content of the identity file; None if it does not exist."""
        with _translated(IDENTITY_NAME, "read"):
            try:
                file = self._disk.open(self._path(IDENTITY_NAME), writable=False)
            except (FileNotFoundError, NotADirectoryError):
                return None
            try:
                return file.read(0, IDENTITY_LENGTH_MAX)
            finally:
                file.close()

    def create_identity(self, identity: bytes, draft_name: str) -> None:
        """Write the identity under a temporary name, sync it, and rename it unless an identity exists."""
        draft, path = self._path(draft_name), self._path(IDENTITY_NAME)
        with _translated(IDENTITY_NAME, "create"):
            self._disk.make_directory(self._root)
            file = self._disk.open(draft, create=True, exclusive=True)
            try:
                file.write(0, [identity])
                file.sync()
            finally:
                file.close()
            try:
                try:
                    self._disk.link(draft, path)
                except FileExistsError as error:
                    raise StorageIdentityError(self._root, "it has an identity already") from error
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    self._rename_identity(draft, path)
                self._disk.sync_directory(self._root)
            finally:
                if self._disk.exists(draft):
                    self._disk.remove(draft)

    def _rename_identity(self, draft: str, path: str) -> None:
        # A file system without hard links. Two concurrent callers both continue, and the one whose identity was
        # replaced notices at its next check.
        if self._disk.exists(path):
            raise StorageIdentityError(self._root, "it has an identity already")
        self._disk.rename(draft, path)

    def _demand_identity(self, name: str) -> None:
        """Raise `StorageUnavailableError` unless the root still holds the expected identity."""
        if self.identity is not None and self.read_identity() != self.identity:
            raise StorageUnavailableError(
                f"chunk {name} was not created: {self._root} no longer has its {IDENTITY_NAME}; mount the long-term "
                "storage there again"
            )

    # Chunks.

    def folder(self, name: str) -> str:
        """Return the directory of a chunk."""
        return posixpath.dirname(self._path(name))

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name) if name else self._root

    def make_directories(self, name: str) -> None:
        """Create the directories above `name`, durably, even if another caller created them and did not sync them."""
        self._demand_identity(name)
        with _translated(name, "make the directories of"):
            try:
                self._disk.make_directory(self.folder(name))
                # A predecessor may have created them and stopped before it synced them.
                relative = posixpath.dirname(name)
                while relative:
                    relative = posixpath.dirname(relative)
                    self._disk.sync_directory(self._path(relative))
            except (NotADirectoryError, FileExistsError) as error:
                raise ChunkError(name, "a chunk exists in place of one of its directories") from error

    def create_file(self, name: str, data: Sequence[Buffer]) -> int:
        """Create a file with `data`, synced, or leave nothing. `FileNotFoundError`: no parent.

        It is durable once `sync_folder` has returned. If that fails, `discard` it.
        """
        path = self._path(name)
        self._demand_identity(name)
        with _translated(name, "create"):
            try:
                file = self._disk.open(path, create=True, exclusive=True)
            except FileExistsError as error:
                raise ChunkExistsError(name) from error
            try:
                try:
                    length = file.write(0, data) if data else 0
                    file.sync()
                finally:
                    file.close()
            except BaseException as error:
                self.discard(name, error)
                raise
        return length

    def sync_folder(self, folder: str) -> None:
        """Sync the entries of a directory, as returned by `folder`, and check that it belongs to the storage."""
        with _translated(folder, "sync the entries of"):
            self._disk.sync_directory(folder)
            # Check again: the storage may have been unmounted since, with the files written to the directory under it.
            self._demand_identity(folder)

    def discard_late(self, name: str) -> None:
        """Remove a file that was created after its caller had given up."""
        with _translated(name, "remove the late"):
            try:
                self._disk.remove(self._path(name))
            except FileNotFoundError:
                return  # The orphan cleanup was faster.
            self.prune(name)

    def discard(self, name: str, error: BaseException) -> None:
        """Remove a file whose creation failed with `error`, which the caller raises."""
        try:
            self._disk.remove(self._path(name))
            self.prune(name)
        except OSError as second:
            error.add_note(f"the unfinished chunk {name} could not be removed either: {second}")

    def open(self, name: str) -> DiskFile:
        """Open an existing file for reading and writing."""
        with _translated(name, "open"):
            try:
                return self._open(name)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise NoSuchChunkError(name) from error

    def _open(self, name: str) -> DiskFile:
        try:
            return self._disk.open(self._path(name))
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            # Chunks can be read from a read-only place; a write then fails with its own error.
            return self._disk.open(self._path(name), writable=False)

    def append(self, name: str, file: DiskFile, offset: int, data: Sequence[Buffer]) -> int:
        """Write `data` at `offset`, which must be the length, and sync."""
        with _translated(name, "write"):
            if not file.is_linked():
                raise NoSuchChunkError(name)
            length = file.length()
            if length != offset:
                raise BadChunkOffsetError(name, expected=length, given=offset)
            try:
                count = file.write(offset, data)
            except StorageFullError as error:
                _cut(name, file, offset, error)
                raise
            file.sync()
            return count

    def read(self, name: str, file: DiskFile, offset: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end."""
        with _translated(name, "read"):
            if not file.is_linked():
                raise NoSuchChunkError(name)
            return _read_whole(name, file, offset, length)

    def length(self, name: str) -> int | None:
        """Return a file's length; None if the file does not exist."""
        with _translated(name, "inspect"):
            try:
                file = self._open(name)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
            try:
                return file.length()
            finally:
                file.close()

    def space(self) -> DiskSpace | None:
        """Return the free space below the root; None without a root."""
        with _translated(self._root, "check the free space beside"):
            try:
                return self._disk.space(self._root)
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        """Remove a file, durably."""
        path = self._path(name)
        with _translated(name, "delete"):
            try:
                self._disk.remove(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise NoSuchChunkError(name) from error
            try:
                self._disk.sync_directory(posixpath.dirname(path))
            except FileNotFoundError:
                return  # A concurrent deletion has removed the directory, and with it the entry.

    def prune(self, name: str) -> list[str]:
        """Remove the empty directories above `name`, except the root; return those removed."""
        removed: list[str] = []
        relative = posixpath.dirname(name)
        while relative:
            folder = self._path(relative)
            try:
                self._disk.remove_directory(folder)
            except OSError:
                return removed  # Not empty, or already removed. A remaining empty directory is harmless.
            removed.append(folder)
            relative = posixpath.dirname(relative)
        return removed

    def join(
        self, target: str, file: DiskFile, target_length: int, sources: Sequence[tuple[str, DiskFile, int]]
    ) -> int:
        """Truncate the target to `target_length`, append each source's first bytes, sync, return the new length."""
        with _translated(target, "concatenate to"):
            for name, part, length in ((target, file, target_length), *sources):
                if part.length() < length:
                    raise InvalidArgumentError(f"chunk {name}: cannot take {length} bytes of {part.length()}")
            if file.length() > target_length:
                file.truncate(target_length)
            position = target_length
            try:
                for name, part, length in sources:
                    for start in range(0, length, self._copy_buffer_bytes):
                        count = min(self._copy_buffer_bytes, length - start)
                        position += file.write(position, [_read_whole(name, part, start, count)])
            except StorageError as error:
                _cut(target, file, target_length, error)
                raise
            file.sync()
            return position

    def walk(self, folder: str, prefix: str) -> list[ChunkInfo]:
        """Return the files below `folder` whose names start with `prefix`, sorted by name."""
        found: list[ChunkInfo] = []
        pending = [folder]
        while pending:
            relative = pending.pop()
            with _translated(relative or ".", "list"):
                try:
                    entries = self._disk.list_directory(self._path(relative))
                except FileNotFoundError:
                    continue  # Deleted since its parent was listed, or it never existed.
                except NotADirectoryError:
                    length = self.length(relative)
                    if length is not None and relative.startswith(prefix):
                        found.append(ChunkInfo(relative, length))
                    continue
            for entry in entries:
                if not relative and entry.startswith(RESERVED_NAME_PREFIX):
                    continue
                name = f"{relative}/{entry}" if relative else entry
                if name.startswith(prefix) or prefix.startswith(f"{name}/"):
                    pending.append(name)
        return sorted(found, key=lambda info: info.name)

    def names(self, after: str, limit: int) -> list[str]:
        """Return the names of up to `limit` files after `after`, ordered by the parts of the names."""
        behind = after.split("/") if after else []
        found: list[str] = []
        #: Stack of open directories, each with its remaining entries, last first.
        pending = [("", self._entries("", behind))]
        while pending and len(found) < limit:
            relative, entries = pending[-1]
            if not entries:
                pending.pop()
                continue
            entry = entries.pop()
            name = f"{relative}/{entry}" if relative else entry
            try:
                pending.append((name, self._entries(name, behind)))
            except NotADirectoryError:
                if name.split("/") > behind:
                    found.append(name)
        return found

    def _entries(self, relative: str, behind: Sequence[str]) -> list[str]:
        """Return entries of a directory that may sort after `behind`, last first; `NotADirectoryError` for a file."""
        with _translated(relative or ".", "list", passes=NotADirectoryError):
            try:
                entries = self._disk.list_directory(self._path(relative))
            except FileNotFoundError:
                return []
        if not relative:
            entries = [entry for entry in entries if not entry.startswith(RESERVED_NAME_PREFIX)]
        parts = relative.split("/") if relative else []
        if len(parts) < len(behind) and parts == list(behind[: len(parts)]):
            entries = [entry for entry in entries if entry >= behind[len(parts)]]
        return sorted(entries, reverse=True)


def _read_whole(name: str, file: DiskFile, offset: int, length: int) -> bytes:
    size = file.length()
    if offset > size:
        raise InvalidArgumentError(f"chunk {name}: offset {offset} is beyond its length {size}")
    expected = min(length, size - offset)
    data = file.read(offset, expected)
    if len(data) != expected:
        raise StorageError(
            f"chunk {name} ({file.path}) has {size} bytes but gave only {len(data)} of {expected} at {offset}:"
            " it was truncated while it was read, or the file system is damaged"
        )
    return data


def _cut(name: str, file: DiskFile, length: int, error: BaseException) -> None:
    """Undo an unfinished write because of `error`, which the caller raises."""
    try:
        file.truncate(length)
    except OSError as second:
        error.add_note(f"bytes after {length} of chunk {name} could not be truncated either: {second}")


@contextmanager
def _translated(name: str, verb: str, *, passes: type[OSError] = FileNotFoundError) -> Iterator[None]:
    """Convert errors of the operating system. `FileNotFoundError` and `passes` are raised as they are."""
    try:
        yield
    except (FileNotFoundError, passes):
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFullError(f"no space left to {verb} chunk {name}; free some and try again") from error
        raise ChunkError(name, f"could not {verb} it: {error}") from error
