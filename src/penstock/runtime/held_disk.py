"""`HeldDisk`: a disk that refuses changes by path once the data directory held by its user has been replaced.

A server uses paths in its data directory. When that directory is renamed and another one, such as a backup, is put in
its place, the paths lead to the other one. Open files remain those of the original directory, but creating, opening
for writing, renaming or removing a file would change the other directory. So each of these calls checks first. Reads
and calls on open files do not.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.runtime.disk import Disk, DiskFile, DiskLock, DiskSpace


class HeldDisk:
    """`Disk` that calls `check` before it changes anything by path; errors of `check` propagate."""

    def __init__(self, inner: Disk, check: Callable[[], None]) -> None:
        self._inner = inner
        self._check = check

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> DiskFile:
        """See `Disk.open`."""
        if create or writable:
            self._check()
        return self._inner.open(path, create=create, exclusive=exclusive, writable=writable)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        self._check()
        self._inner.make_directory(path)

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        return self._inner.list_directory(path)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return self._inner.exists(path)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self._check()
        self._inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """See `Disk.link`."""
        self._check()
        self._inner.link(source, target)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self._check()
        self._inner.remove(path)

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        self._check()
        self._inner.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        self._inner.sync_directory(path)

    def lock(self, path: str) -> DiskLock:
        """See `Disk.lock`."""
        self._check()
        return self._inner.lock(path)

    def space(self, path: str) -> DiskSpace:
        """See `Disk.space`."""
        return self._inner.space(path)
