"""`HeldDisk`: a disk that changes nothing by a path once the directory that its user holds is not there any more.

A server works by paths in its data directory. When that directory is renamed and another one, say a backup, put in its
place, the paths lead there. Files that are open stay those of the directory that was opened, but a chunk or a file of a
log that is created, opened for writing, renamed or removed would be the other one's. So each of these calls checks
first. Reads and calls on open files do not.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.runtime.disk import Disk, DiskFile, DiskLock, DiskSpace


class HeldDisk:
    """`Disk` that calls `check` before it changes anything by a path; what that raises, the call raises."""

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
