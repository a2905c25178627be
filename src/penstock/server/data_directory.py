"""`DataDirectory`: one directory with everything that a standalone server stores, owned by one process at a time.

::

    LOCK           held by the server that runs on it
    penstock.toml  identity of the data: format version, cluster id, number of containers, checksum
    logs/          records which containers' logs were created, so that a missing tier 1 is not taken for a new one
    tier1/         durable logs, one directory per container
    tier2/         chunks: long-term storage

The number of containers decides which container a segment is in, so it cannot change once there are data.

The lock is a file, which other programs can remove or replace while it is held, and the directory can be renamed. So
`check_held` compares what the path leads to with what was locked, at each claim of a log, and `retake`, at intervals,
takes the lock again where that is possible. Of two processes that have locked the directory in succession the later
one keeps it.
"""

from __future__ import annotations

import fcntl
import os
import tomllib
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.checksum import crc32c
from penstock.model.errors import (
    CorruptionError,
    DataDirectoryInUseError,
    DataDirectoryLostError,
    InvalidArgumentError,
    LaterVersionError,
)
from penstock.model.sizes import IDENTITY_LENGTH_MAX
from penstock.runtime.disk import DiskLock, LocalLock, LockState
from penstock.runtime.held_disk import HeldDisk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.later_format import version_error
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.server.errors import DataDirectoryError

FORMAT_VERSION = 1
IDENTITY_NAME = "penstock.toml"
LOCK_NAME = "LOCK"
#: A temporary name: an identity that was not renamed because of a crash.
_IDENTITY_DRAFT_NAME = "penstock.toml.new"
_DIRECTORY_GONE = (
    "it was renamed, replaced or unmounted. Put it back and start a server on it; it contains all acknowledged data"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a data directory."""

    cluster_id: str
    container_count: int

    def encode(self) -> bytes:
        """Return the content of `penstock.toml`."""
        body = (
            "# Written by Penstock when this directory was first used. Do not edit.\n"
            f"format_version = {FORMAT_VERSION}\n"
            f'cluster_id = "{self.cluster_id}"\n'
            f"container_count = {self.container_count}\n"
        ).encode()
        return body + b'crc32c = "%08x"\n' % crc32c(body, 0)

    @classmethod
    def decode(cls, data: bytes, path: str) -> Identity:
        """Decode the output of `encode`. Raises `CorruptionError`, `LaterVersionError`."""
        body, mark, checksum = data.rpartition(b"crc32c = ")
        if not mark or checksum.strip() != b'"%08x"' % crc32c(body, 0):
            raise CorruptionError(path, len(body), "the checksum does not match: it was edited or damaged")
        fields = tomllib.loads(body.decode())
        if fields["format_version"] != FORMAT_VERSION:
            raise version_error(path, fields["format_version"], (FORMAT_VERSION,))
        return cls(str(fields["cluster_id"]), int(fields["container_count"]))


class DataDirectory:
    """Locks a directory, checks or writes its identity. Blocks: run it through the runtime's pool."""

    def __init__(self, root: str, runtime: Runtime) -> None:
        self.root: str = os.path.abspath(root)
        self._disk = runtime.disk
        self._runtime = runtime
        #: The runtime for code that uses paths in the directory; it refuses changes once another directory is in its
        #: place.
        self.held: Runtime = runtime.with_disk(HeldDisk(runtime.disk, self.check_in_place))
        self._lock: DiskLock | None = None
        #: The identity of the directory when it was opened.
        self._identity: Identity | None = None
        #: Why this process no longer holds the directory, once that is certain.
        self._loss: str = ""
        #: After `open`: whether it has initialized the directory.
        self.is_new: bool = False

    @property
    def tier1(self) -> str:
        """Where the durable logs are."""
        return os.path.join(self.root, "tier1")

    @property
    def made_logs(self) -> str:
        """The directory that records the creation of logs."""
        return os.path.join(self.root, "logs")

    def logs(
        self,
        identity: Identity,
        settings: LocalLogSettings,
        *,
        token: bytes = b"",
        may_live: Callable[[bytes], bool] = lambda token: False,
    ) -> LocalLogFactory:
        """Return the durable logs of the cluster that the directory belongs to.

        They can be claimed while the directory is held, see `check_held`. `token`, `may_live`: see `LogOwner`; by
        default no other process opens logs here.
        """
        return LocalLogFactory(
            self.tier1,
            self.held,
            settings,
            owner=LogOwner(token or self._runtime.random_id(), may_live, self.check_held),
            cluster_id=identity.cluster_id,
            made_logs_directory=self.made_logs,
        )

    @property
    def tier2(self) -> str:
        """The directory of the chunks."""
        return os.path.join(self.root, "tier2")

    def cache(self, store_number: int) -> str:
        """The directory for the second level of a segment store process's cache; useless after its end."""
        return os.path.join(self.root, "cache", str(store_number))

    def open(self, container_count: int) -> Identity:
        """Lock the directory and return its identity; create both if it is new.

        Raises:
            DataDirectoryInUseError: another process runs on it.
            DataDirectoryError: it is not a data directory, or has another number of containers.
            CorruptionError: its identity is damaged.
            LaterVersionError: a later version has created it.
        """
        try:
            self._disk.make_directory(self.root)
            names = self._disk.list_directory(self.root)
            # Checked before the lock file is created: a directory that is not ours is left unchanged.
            if IDENTITY_NAME not in names and (others := sorted(set(names) - {LOCK_NAME, _IDENTITY_DRAFT_NAME})):
                raise DataDirectoryError(
                    f"{self.root} is not empty ({', '.join(others[:3])}{', ...' if len(others) > 3 else ''}) and has "
                    f"no {IDENTITY_NAME}: use an empty directory, or put its {IDENTITY_NAME} back"
                )
            self._lock = self._disk.lock(os.path.join(self.root, LOCK_NAME))
        except OSError as error:
            raise self._unusable(error) from error
        try:
            identity = self._read_identity()
            if identity is None:
                identity = self._write_identity(container_count)
                self.is_new = True
            if identity.container_count != container_count:
                raise DataDirectoryError(
                    f"{self.root} was created with {identity.container_count} containers, a number that cannot change: "
                    f"start with --containers {identity.container_count}, not {container_count}"
                )
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise self._unusable(error) from error
            raise
        self._identity = identity
        return identity

    def _unusable(self, error: OSError) -> DataDirectoryError:
        return DataDirectoryError(f"{self.root} cannot be used as data directory: {error.strerror}")

    @property
    def lock_descriptor(self) -> int:
        """The lock's file descriptor, for child processes that work on the directory on behalf of this process.

        They inherit it and call `check_lock`; the directory stays locked until the last of them has ended, so that
        no other server can start before.
        """
        if not isinstance(self._lock, LocalLock):
            raise InvalidArgumentError(f"{self.root} is not open, or its disk cannot be shared with child processes")
        return self._lock.descriptor

    def check_lock(self, descriptor: int) -> None:
        """Check that `descriptor`, which this process has inherited, holds the lock of the directory.

        If so, this object owns it, in place of an earlier one, and `close` closes it. Raises `DataDirectoryError` when
        it does not, or when the lock is not held at all.
        """
        path = os.path.join(self.root, LOCK_NAME)
        try:
            if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
                raise DataDirectoryError(
                    f"descriptor {descriptor} is not {path}: only a server's own child process may use it"
                )
            try:
                # The lock must be held, ...
                self._disk.lock(path).release()
            except DataDirectoryInUseError:
                # ... and through this descriptor: then this call changes nothing, otherwise it is refused.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                raise DataDirectoryError(f"{path} is not locked: only a server's own child process may use it")
            os.set_inheritable(descriptor, False)
            lock = LocalLock(path, descriptor)
        except OSError as error:
            raise DataDirectoryError(
                f"{path} is not locked through descriptor {descriptor} ({error.strerror}): only a server's own child "
                "process may use it"
            ) from error
        former, self._lock = self._lock, lock
        if former is not None:
            former.release()

    def check_held(self) -> None:
        """Check that the directory is still locked by the lock of this process. Costs two `stat` calls.

        For each claim of a log. Thread-safe, also during `retake`.

        Raises `DataDirectoryLostError` when it is not, temporarily or permanently, and `OSError` when that cannot be
        determined.
        """
        if self._loss:
            raise DataDirectoryLostError(self.root, self._loss)
        lock = self._lock
        if lock is None:
            raise DataDirectoryLostError(
                self.root, "it has not locked the directory, or has closed it; it claims no log"
            )
        match lock.state():
            case LockState.FILE_GONE:
                raise DataDirectoryLostError(
                    self.root,
                    f"its {LOCK_NAME} was removed or replaced; this server claims no log until it holds the lock again",
                )
            case LockState.DIRECTORY_GONE:
                raise DataDirectoryLostError(self.root, _DIRECTORY_GONE)
            case LockState.IN_PLACE:
                pass

    def check_in_place(self) -> None:
        """Raise `DataDirectoryLostError` if this process has locked the directory and another directory replaced it.

        For each change by path. Thread-safe. A missing lock file does not matter here.
        """
        if self._loss:
            raise DataDirectoryLostError(self.root, self._loss)
        lock = self._lock
        if lock is not None and lock.state() is LockState.DIRECTORY_GONE:
            raise DataDirectoryLostError(self.root, _DIRECTORY_GONE)

    def retake(self) -> DiskLock | None:
        """Take the lock again if its file was removed or replaced and no other process has locked the current one.

        One call at a time. If it did, returns the former lock, to be released once the new one has been shared;
        otherwise None. A permanent loss is remembered: later calls raise it again.

        Raises:
            DataDirectoryLostError: another process has locked the directory, or it is missing or replaced.
            OSError: that cannot be determined, or the lock cannot be taken now: call again.
        """
        if self._loss:
            raise DataDirectoryLostError(self.root, self._loss)
        former = self._lock
        if former is None or self._identity is None:
            raise InvalidArgumentError(f"{self.root} is not open: it has no lock to take again")
        if (state := former.state()) is LockState.IN_PLACE:
            return None
        if state is LockState.DIRECTORY_GONE:
            raise self._lost(_DIRECTORY_GONE)
        try:
            identity = self._read_identity()
        except (CorruptionError, LaterVersionError) as error:
            raise self._lost(f"its {LOCK_NAME} was removed or replaced, and its identity, too: {error}") from error
        if identity != self._identity:
            what = "is gone" if identity is None else "is another store's"
            raise self._lost(f"its {LOCK_NAME} was removed or replaced, and its {IDENTITY_NAME} {what}")
        try:
            lock = self._disk.lock(os.path.join(self.root, LOCK_NAME))
        except DataDirectoryInUseError as error:
            raise self._lost(
                f"its {LOCK_NAME} was removed or replaced, and another process has locked the new one since and is "
                "its server now. No acknowledged data is lost"
            ) from error
        if former.state() is LockState.DIRECTORY_GONE:
            lock.release()
            raise self._lost(_DIRECTORY_GONE)
        if self._lock is not former:
            lock.release()  # The directory was closed concurrently.
            return None
        self._lock = lock
        return former

    def _lost(self, why: str) -> DataDirectoryLostError:
        self._loss = why
        return DataDirectoryLostError(self.root, why)

    def open_existing(self) -> Identity:
        """Lock a directory that a server has created, and return its identity; create nothing.

        Raises `DataDirectoryError` when it is not one, `DataDirectoryInUseError`, `CorruptionError`.
        """
        identity = self.identity()
        try:
            self._lock = self._disk.lock(os.path.join(self.root, LOCK_NAME))
        except OSError as error:
            raise self._unusable(error) from error
        self._identity = identity
        return identity

    def begin(self) -> None:
        """Create the directory, or use an empty one, and lock it. It is not a data directory until `finish`.

        Raises `DataDirectoryError` when it is not empty, `DataDirectoryInUseError`.
        """
        try:
            self._disk.make_directory(self.root)
            if found := sorted(set(self._disk.list_directory(self.root)) - {LOCK_NAME}):
                raise DataDirectoryError(
                    f"{self.root} is not empty ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''}): name a new "
                    "directory, or an empty one"
                )
            self._lock = self._disk.lock(os.path.join(self.root, LOCK_NAME))
        except OSError as error:
            raise self._unusable(error) from error

    def finish(self, identity: Identity) -> None:
        """Write the identity, durably: from now on a server can be started on the directory."""
        try:
            self._put_identity(identity)
        except OSError as error:
            raise self._unusable(error) from error

    def is_used(self) -> bool:
        """Return whether a server has initialized the directory. Changes nothing."""
        return self._disk.exists(os.path.join(self.root, IDENTITY_NAME))

    def identity(self) -> Identity:
        """Return the identity of the directory. Raises `DataDirectoryError` when it has none."""
        try:
            identity = self._read_identity()
        except OSError as error:
            raise self._unusable(error) from error
        if identity is None:
            raise DataDirectoryError(f"{self.root} has no {IDENTITY_NAME}: it is not a data directory of Penstock")
        return identity

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _read_identity(self) -> Identity | None:
        path = os.path.join(self.root, IDENTITY_NAME)
        try:
            file = self._disk.open(path, writable=False)
        except FileNotFoundError:
            return None
        try:
            identity = Identity.decode(file.read(0, IDENTITY_LENGTH_MAX), path)
        finally:
            file.close()
        # Its writer may have been killed before the name was durable; data written from now on depend on it.
        self._disk.sync_directory(self.root)
        return identity

    def _write_identity(self, container_count: int) -> Identity:
        identity = Identity(str(uuid.UUID(bytes=self._runtime.random_id(), version=4)), container_count)
        self._put_identity(identity)
        return identity

    def _put_identity(self, identity: Identity) -> None:
        draft = os.path.join(self.root, _IDENTITY_DRAFT_NAME)
        file = self._disk.open(draft, create=True)
        try:
            file.truncate(0)
            file.write(0, [identity.encode()])
            file.sync()
        finally:
            file.close()
        self._disk.rename(draft, os.path.join(self.root, IDENTITY_NAME))
        self._disk.sync_directory(self.root)
