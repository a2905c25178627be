"""`LogFiles`: the files of one incarnation of a local log: the current, the next, older ones and spares.

Files are filled with zeros, or recycled, before they are written, so a sync changes no file-system metadata. The next
file is prepared in the background once the current one is half full. If it is not ready in time the current file grows
beyond its length, up to twice, before appends wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from penstock.model.errors import LogClosedError, PenstockError, StorageFullError
from penstock.runtime.disk import DiskFile
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.frame_format import BLOCK_LENGTH, FRAME_HEADER_LENGTH, FileHeader, Link
from penstock.segmentstore.tier1.log_batch import WritableFile
from penstock.segmentstore.tier1.log_directory import LogDirectory, spare_name
from penstock.segmentstore.tier1.log_recovery import ChainFile, address_file_number
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier1.log_space import LogSpace
from penstock.segmentstore.tier1.log_work import LogWork

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _OlderFile:
    """A file that is no longer written."""

    name: str
    number: int
    is_recyclable: bool


class LogFiles:
    """All methods run on the event loop.

    `check_wanted` raises `LogClosedError` when no more files are needed; `is_open` returns whether appends may still
    come; `pause` sleeps for the interval of space checks, or until the log ends. `description` is the log, for
    messages.

    Attributes:
        current: the file being written; None before `begin`.
        space: the source of new files.
    """

    def __init__(
        self,
        directory: LogDirectory,
        runtime: Runtime,
        settings: LocalLogSettings,
        work: LogWork,
        *,
        check_wanted: Callable[[], None],
        is_open: Callable[[], bool],
        pause: Callable[[], Awaitable[None]],
        description: str,
    ) -> None:
        self.current: WritableFile | None = None
        self.space: LogSpace = LogSpace(
            directory,
            settings,
            run=work.run,
            run_locked=work.run_locked,
            new_spare_name=self._new_spare_name,
            check_wanted=check_wanted,
        )
        self._directory = directory
        self._runtime = runtime
        self._settings = settings
        self._work = work
        self._is_open = is_open
        self._pause = pause
        self._description = description
        #: Files before the current one, oldest first.
        self._older: list[_OlderFile] = []
        self._spares: list[str] = []
        self._spare_ordinal = 0
        self._next: WritableFile | None = None
        self._preparation: asyncio.Task[object] | None = None
        self._preparation_failed = False

    async def begin(self, recovered: Sequence[ChainFile], sequence: int) -> WritableFile:
        """Create the first file of this incarnation, which joins the log after `recovered` with frame `sequence`."""
        self._older = [_OlderFile(file.name, file.header.number, False) for file in recovered]
        link = Link(0, 0, 0)
        if recovered:
            tail = recovered[-1]
            link = Link(tail.header.epoch, tail.header.number, tail.end)
        self.current = await self._prepare(link.number + 1, self._settings.first_file_length_bytes, link, sequence)
        self.current.position = 2 * BLOCK_LENGTH
        return self.current

    async def with_room(self, length: int) -> WritableFile:
        """Return the file for a frame of that length: the current one, or the next if it no longer fits."""
        current = self.current
        assert current is not None
        if self.fits(current, length):
            return current
        if self._next is None:
            if self._preparation is not None:
                await asyncio.wait([self._preparation])
            if self._next is None:
                # The preparation failed, perhaps long ago.
                self._next = await self._prepare_when_there_is_room()
        assert self._next is not None
        # A recycled file occupies space that may be needed elsewhere.
        is_recyclable = current.length >= self._settings.file_length_bytes and not self.space.is_short
        self._older.append(_OlderFile(current.name, current.header.number, is_recyclable))
        self._work.start(self._work.run("close", current.file.close))
        self._next.link = Link(current.header.epoch, current.header.number, current.position)
        self.current, self._next = self._next, None
        return self.current

    def fits(self, file: WritableFile, length: int) -> bool:
        """Return whether a frame of that length fits in the current file. May be called off the loop."""
        end = file.position + FRAME_HEADER_LENGTH + length
        if end <= file.capacity or file.position <= 2 * BLOCK_LENGTH:
            return True
        return self._next is None and end <= self.growth_limit(file)

    def growth_limit(self, file: WritableFile) -> int:
        """Return the offset up to which a file may be written while it has no successor."""
        return file.capacity if self.space.is_short else 2 * file.capacity

    def prepare_ahead(self) -> None:
        """Start to prepare the next file, if it is due."""
        current = self.current
        assert current is not None
        is_due = current.position > current.capacity // 2 and self._next is None and self._preparation is None
        if is_due and not self._preparation_failed:
            self._preparation = self._work.start(self._prepare_in_background())

    async def truncate(self, address: int) -> None:
        """Record the truncation durably, and release files before it. Raises as `LogDirectory.truncate`."""
        obsolete = [file for file in self._older if file.number < address_file_number(address)]
        removed: list[str] = []
        recycled: list[tuple[str, str]] = []
        spares_max = self._settings.spare_file_count_max
        if any(file.is_recyclable for file in obsolete) and not await self.space.has_room_for_spares():
            spares_max = 0
        for file in obsolete:
            if file.is_recyclable and len(self._spares) + len(recycled) < spares_max:
                recycled.append((file.name, self._new_spare_name()))
            else:
                removed.append(file.name)
        await self._work.run_locked("truncate", self._directory.truncate, address, removed, recycled)
        self._older = self._older[len(obsolete) :]
        self._spares.extend(spare for _, spare in recycled)

    async def give_spares_back(self) -> None:
        """Remove files kept for re-use if space has become short since, to free it for others."""
        if self._spares and not await self.space.has_room_for_spares():
            spares, self._spares = self._spares, []
            try:
                for spare in spares:
                    await self._work.run("remove a file of", self._directory.discard_spare, spare)
            except PenstockError as error:
                _log.warning("%s could not remove unneeded files: %s", self._description, error)

    def take_open(self) -> list[DiskFile]:
        """Return the open files, to be closed."""
        taken = [file.file for file in (self._next, self.current) if file is not None]
        self.current = self._next = None
        return taken

    async def _prepare_when_there_is_room(self) -> WritableFile:
        """Prepare the next file, waiting for space as long as necessary; nothing can be appended meanwhile.

        A closing log does not wait.
        """
        while True:
            try:
                return await self._prepare_next()
            except StorageFullError as error:
                if not self._is_open():
                    raise
                _log.error("%s waits for free space: %s", self._description, error)
            await self._pause()

    async def _prepare_in_background(self) -> None:
        try:
            self._next = await self._prepare_next(may_take_reserve=False)
        except LogClosedError:
            pass  # No longer needed.
        except PenstockError as error:
            # Not fatal yet: the current file may grow. `with_room` retries when it must, and fails then.
            self._preparation_failed = True
            _log.warning("could not prepare the next file of %s: %s", self._description, error)
        finally:
            self._preparation = None

    async def _prepare_next(self, *, may_take_reserve: bool = True) -> WritableFile:
        assert self.current is not None
        length = min(
            max(4 * self.current.length, self._settings.first_file_length_bytes), self._settings.file_length_bytes
        )
        number = self.current.header.number + 1
        return await self._prepare(number, length, None, 0, may_take_reserve=may_take_reserve)

    async def _prepare(
        self, number: int, length: int, link: Link | None, sequence: int, *, may_take_reserve: bool = True
    ) -> WritableFile:
        """Create log file `number`: re-use a spare file, or fill a new one with zeros."""
        directory, work = self._directory, self._work
        header = FileHeader(
            directory.container_id,
            directory.epoch,
            number,
            self._runtime.rng.getrandbits(64),
            link is not None,
            directory.encoded_cluster_id,
        )
        if self._spares:
            spare = self._spares.pop()
            file = await work.run("open a spare file of", directory.open_spare, spare)
        else:
            spare, file = await self.space.new_file(length, may_take_reserve=may_take_reserve)
        try:
            # A recycled file may have grown beyond its length; do not keep the excess.
            found_length = await work.run("prepare a file of", file.length)
            length = min(found_length, max(self._settings.file_length_bytes, self._settings.reserve_length_bytes))
            name = await work.run("prepare a file of", directory.publish, file, spare, header, link, sequence)
        except (OSError, PenstockError):
            await work.run("close", file.close)
            await work.run("remove a file of", directory.discard_spare, spare)
            raise
        self._preparation_failed = False
        return WritableFile(file, name, header, length)

    def _new_spare_name(self) -> str:
        self._spare_ordinal += 1
        return spare_name(self._directory.epoch, self._spare_ordinal)
