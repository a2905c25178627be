"""`LogSpace`: where a local log gets its files from, with and without free space.

A log needs space to be opened (a record of its owner, a first file), to be truncated (a record), and for its
container's own operations, deletions and truncations among them. So a few filled files are kept in reserve in its
directory and outlive the incarnation that made them. They are used when a new file would leave too little free, or does
not fit.

Failure cases: docs/full-disk.md.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar

from penstock.model.errors import LogClosedError, PenstockError, StorageFullError
from penstock.runtime.disk import DiskFile, DiskSpace
from penstock.segmentstore.tier1.frame_format import BLOCK_LENGTH
from penstock.segmentstore.tier1.log_directory import LogDirectory, fill
from penstock.segmentstore.tier1.log_settings import LocalLogSettings

T = TypeVar("T")

_log = logging.getLogger(__name__)


class RunBlocking(Protocol):
    """Runs blocking work of a log; errors of the operating system become `StorageError`."""

    def __call__(self, what: str, function: Callable[..., T], *args: object) -> Awaitable[T]:
        """Return the result of `function(*args)`. `what` is a verb for messages."""


class LogSpace:
    """The files of one incarnation before they are part of its log.

    `check_wanted` raises `LogClosedError` once no more files are needed, which ends a long filling.

    Attributes:
        is_short: the last file could not be made without leaving less than `free_bytes_min` free. Files of the log do
            not grow then.
    """

    def __init__(
        self,
        directory: LogDirectory,
        settings: LocalLogSettings,
        *,
        run: RunBlocking,
        run_locked: RunBlocking,
        new_spare_name: Callable[[], str],
        check_wanted: Callable[[], None],
    ) -> None:
        self.is_short: bool = False
        self._directory = directory
        self._settings = settings
        self._run = run
        self._run_locked = run_locked
        self._new_spare_name = new_spare_name
        self._check_wanted = check_wanted

    async def new_file(self, length: int, *, may_take_reserve: bool = True) -> tuple[str, DiskFile]:
        """Return name and handle of a spare filled with zeros: a new one if there is room, or one in reserve.

        It is shorter than `length` when there is little space. Raises `StorageFullError` if there is none and the
        reserve may not be used: a file prepared ahead may never be needed.
        """
        space = await self._run("check the free space for", self._directory.space)
        room_bytes = space.free_bytes - self._keep_bytes(space)
        self.is_short = room_bytes < length
        if self.is_short:
            length = min(length, self._settings.first_file_length_bytes)
            if room_bytes < length and not may_take_reserve:
                raise StorageFullError(
                    f"{space.free_bytes} bytes are free: too few for one more file of the log in {self._directory.path}"
                )
            if room_bytes < length and (taken := await self._take_reserve(space)) is not None:
                return taken
        try:
            return await self._filled_file(length)
        except StorageFullError:
            # The space was used by others meanwhile; or there is no reserve.
            self.is_short = True
            taken = await self._take_reserve(space) if may_take_reserve else None
            if taken is None:
                raise
            return taken

    async def has_room_for_spares(self) -> bool:
        """Return whether the free space covers all files kept for re-use, so that keeping them displaces nothing."""
        settings = self._settings
        try:
            space = await self._run("check the free space for", self._directory.space)
        except PenstockError as error:
            _log.warning("files of the log in %s cannot be kept for re-use: %s", self._directory.path, error)
            return False
        return space.free_bytes - self._keep_bytes(space) >= settings.spare_file_count_max * settings.file_length_bytes

    async def fill_reserve(self) -> bool:
        """Add the missing reserve files, as far as that leaves enough space; return whether the reserve is complete."""
        try:
            return await self._fill_reserve()
        except LogClosedError:
            return False
        except PenstockError as error:
            _log.warning("the reserve of the log in %s is not complete: %s", self._directory.path, error)
            return False

    async def _fill_reserve(self) -> bool:
        settings, directory = self._settings, self._directory
        file_count, record_count = await self._run("count the reserve of", directory.reserve_counts)
        missing_records = max(settings.reserve_record_count - record_count, 0)
        if missing_records:
            if not await self._has_room(missing_records * BLOCK_LENGTH):
                return False
            spares = [self._new_spare_name() for _ in range(missing_records)]
            async with self._discarding(spares):
                for spare in spares:
                    await self._run("fill the reserve of", directory.fill_record, spare)
                await self._run_locked(
                    "fill the reserve of", partial(directory.put_in_reserve, spares, are_records=True)
                )
        for _ in range(file_count, settings.reserve_file_count):
            if not await self._has_room(settings.reserve_length_bytes):
                return False
            spare, file = await self._filled_file(settings.reserve_length_bytes)
            async with self._discarding([spare]):
                await self._run("close", file.close)
                await self._run_locked(
                    "fill the reserve of", partial(directory.put_in_reserve, [spare], are_records=False)
                )
        return True

    @asynccontextmanager
    async def _discarding(self, spares: Sequence[str]) -> AsyncIterator[None]:
        """Remove these spares after an error: the next attempt makes others."""
        try:
            yield
        except (OSError, PenstockError):
            for spare in spares:
                await self._run("remove a file of", self._directory.discard_spare, spare)
            raise

    async def _has_room(self, length: int) -> bool:
        self._check_wanted()
        space = await self._run("check the free space for", self._directory.space)
        return space.free_bytes - length >= self._keep_bytes(space)

    def _keep_bytes(self, space: DiskSpace) -> int:
        settings = self._settings
        return min(settings.free_bytes_min, space.total_bytes * settings.free_percent_max // 100)

    async def _take_reserve(self, space: DiskSpace) -> tuple[str, DiskFile] | None:
        spare = self._new_spare_name()
        file = await self._run_locked("use a reserve file of", self._directory.take_reserve, spare)
        if file is None:
            return None
        _log.warning("the log in %s uses its reserve: %d bytes are free", self._directory.path, space.free_bytes)
        return spare, file

    async def _filled_file(self, length: int) -> tuple[str, DiskFile]:
        """Create a spare of zeros; after an error it is removed."""
        spare = self._new_spare_name()
        file = await self._run("create a file of", self._directory.create_spare, spare)
        try:
            step = self._settings.zero_chunk_length_bytes
            for offset in range(0, length, step):
                self._check_wanted()
                await self._run("prepare a file of", fill, file, offset, min(step, length - offset))
        except (OSError, PenstockError):
            await self._run("close", file.close)
            await self._run("remove a file of", self._directory.discard_spare, spare)
            raise
        return spare, file
