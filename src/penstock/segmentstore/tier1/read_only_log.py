"""`ReadOnlyLog`: reads the frames of a local log without opening it: the epoch is not raised, nothing is written.

For administrators: the caller excludes other processes with the lock of the data directory. A disabled log is read like
any other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from penstock.model.errors import CorruptionError, LogMissingError
from penstock.runtime.disk import Disk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.durable_log import LogFrame, LogFrameRun
from penstock.segmentstore.tier1.frame_format import BLOCK_LENGTH
from penstock.segmentstore.tier1.log_directory import has_log
from penstock.segmentstore.tier1.log_records import EPOCH_FILE, read_epoch, read_truncation
from penstock.segmentstore.tier1.log_recovery import (
    ChainFile,
    RecoveredLog,
    check_end,
    check_log,
    read_frames,
    recover,
)
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier1.log_work import LogWork
from penstock.segmentstore.tier1.recovered_frames import READ_BATCH_LENGTH, one_by_one, recovered_frames


class ReadOnlyLog:
    """The log of one container in `directory`. Call `open` first and `close` at the end."""

    def __init__(
        self, directory: str, container_id: int, runtime: Runtime, settings: LocalLogSettings, *, cluster_id: str = ""
    ) -> None:
        """`cluster_id`: a log of another cluster is refused; empty: any is read."""
        self._cluster_id = cluster_id
        self.container_id: int = container_id
        self.path: str = directory
        #: The epoch of its last owner; 0 before `open`.
        self.epoch: int = 0
        self._disk = runtime.disk
        self._work = LogWork(runtime, container_id, settings, f"the log of container {container_id} in {directory}")
        self._truncation_address = 0
        self._files: Sequence[ChainFile] = ()

    @property
    def is_truncated(self) -> bool:
        """See `DurableLog.is_truncated`."""
        return self._truncation_address > 0

    async def open(self) -> None:
        """Find the log's files and its end, as recovery does.

        Raises `CorruptionError`, `LogIdentityError`, `LaterVersionError`, `StorageError`.
        """
        await self._work.run("inspect", self._open)

    def _open(self) -> None:
        self.epoch, self._truncation_address, found = inspect_log(
            self._disk, self.path, self.container_id, self._cluster_id
        )
        self._files = found.files

    async def frame_runs(self) -> AsyncGenerator[LogFrameRun, None]:
        """See `DurableLog.frame_runs`."""
        found = recovered_frames(self._work, self._disk, self.path, self._files, self._truncation_address)
        try:
            async for run in found:
                yield run
        finally:
            await found.aclose()

    async def frames(self) -> AsyncIterator[LogFrame]:
        """See `DurableLog.frames`."""
        async with aclosing(one_by_one(self.frame_runs())) as found:
            async for frame in found:
                yield frame

    def close(self) -> None:
        """Close the file being read."""
        self._work.close()


def inspect_log(disk: Disk, directory: str, container_id: int, cluster_id: str = "") -> tuple[int, int, RecoveredLog]:
    """Return a log's epoch, its truncation address, and its files with its end. Blocks and changes nothing.

    `cluster_id`: a log of another cluster is refused; empty: any is read. Raises as `ReadOnlyLog.open`.
    """
    if not disk.exists(directory) or not has_log(disk, directory):
        raise LogMissingError(container_id, directory, record="this data directory")
    epoch = read_epoch(disk, directory)
    if epoch is None:
        raise CorruptionError(f"{directory}/{EPOCH_FILE}", 0, "the file is missing, although there are log files")
    truncation = read_truncation(disk, directory)
    for record in (epoch, truncation):
        if record is not None and record.container_id != container_id:
            raise CorruptionError(
                directory, 0, f"it is the log of container {record.container_id}, not of {container_id}"
            )
    check_log(disk, directory, epoch, cluster_id)
    address = 0 if truncation is None else truncation.address
    found = recover(disk, directory, container_id, address, must_exist=truncation is not None, cluster_id=cluster_id)
    check_end(directory, found, epoch.closed_address)
    return epoch.epoch, address, found


def check_frames(disk: Disk, directory: str, container_id: int, cluster_id: str = "") -> None:
    """Read every frame of a log that is not in use. Raises `CorruptionError`, and as `inspect_log`. Blocks."""
    _, _, found = inspect_log(disk, directory, container_id, cluster_id)
    sequence: int | None = None
    for file in found.files:
        if sequence not in (None, file.first_sequence):
            raise CorruptionError(
                f"{directory}/{file.name}",
                BLOCK_LENGTH,
                f"expected frame {sequence}, found frame {file.first_sequence}",
            )
        offset, sequence = BLOCK_LENGTH, file.first_sequence
        while offset < file.end:
            _, offset, sequence = read_frames(disk, directory, file, offset, sequence, READ_BATCH_LENGTH)
