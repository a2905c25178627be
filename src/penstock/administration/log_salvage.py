"""`salvage_log`: copies the intact part of a stopped server's damaged container log into a new log.

The damaged files are kept, under another name. What is kept and what is lost, and failure cases: docs/recovery.md.

Steps of the switch, `<id>` being the container and all names in the directory of the logs:

1. The new log, after it was replayed as a start replays it, is written in `<id>.salvage-draft`, closed and synced.
2. The damaged log is disabled, which fences its last owner.
3. The draft is renamed to `<id>.salvaged`: from now on it is complete.
4. The damaged log is renamed to `<id>.damaged-<epoch>`. The container has no log until the next step, and the record of
   created logs prevents a server from creating one.
5. `<id>.salvaged` is renamed to `<id>`.

A run that finds `<id>.salvaged` and no log continues with step 5. Any other run starts from the beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from penstock.administration.errors import LogNotSalvageableError, NotRecoverableError
from penstock.administration.storage_administration import check_identity
from penstock.administration.storage_recovery import EPOCH_STEP, image_names, newest_whole_image
from penstock.model.errors import (
    CorruptionError,
    DataDirectoryInUseError,
    InvalidArgumentError,
    LogMissingError,
)
from penstock.runtime.disk import Disk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.inspection import ContainerInspection, UnfitSegment
from penstock.segmentstore.container.log.frames import FrameBuilder
from penstock.segmentstore.container.log.image import ContainerImage
from penstock.segmentstore.container.log.operations import Activate, Deactivate, Truncate
from penstock.segmentstore.container.log.recovery import recover
from penstock.segmentstore.container.log.salvage import LogSalvage
from penstock.segmentstore.container.log.salvage_report import SalvageReport
from penstock.segmentstore.container.metadata import encode_ended
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.bytes_in_chunks import MissingBytes, bytes_in_chunks
from penstock.segmentstore.container.storage.container_storage import MARK_KEY
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.damaged_log import DamagedLog, LostRange
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrameRun
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_directory import LogDirectory, has_log
from penstock.segmentstore.tier1.log_records import EpochRecord, read_epoch, write_epoch
from penstock.segmentstore.tier1.made_logs import MadeLogs
from penstock.segmentstore.tier1.read_only_log import check_frames
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings

#: Bytes of the new log's frames that are submitted before their writes are awaited.
_APPEND_BYTES = 8 * 1024 * 1024
#: Maximum length of a frame of the new log.
_FRAME_BYTES = 256 * 1024
#: Maximum number of checkpoints after the last loss that are tried as the new log's first, newest first.
_PLANS_MAX = 4
#: Maximum number of reasons that a refusal names.
_REASONS_MAX = 5
#: Maximum number of replays of a plan until all of its segments fit long-term storage.
_ROUNDS_MAX = 4


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The result of a salvage. Paths are empty where nothing was written.

    Attributes:
        report: what is kept and what is lost; None if an earlier, interrupted run had written the new log.
        problems: other damage of the log: in its metadata files and in headers of its files.
        image_problem: why no image in long-term storage could be used; empty: none was needed, or there is none.
        path: the new log.
        damaged_path: the damaged log.
    """

    report: SalvageReport | None
    problems: tuple[str, ...]
    image_problem: str
    path: str
    damaged_path: str


async def salvage_log(
    settings: StandaloneSettings, runtime: Runtime, container_id: int, *, is_dry_run: bool
) -> Salvaged:
    """Replace the damaged log of a container by a new one with everything in it that is intact.

    With `is_dry_run` nothing is written. The server must be stopped: the data directory is locked meanwhile.

    Raises:
        DataDirectoryInUseError: a server runs on the data directory.
        InvalidArgumentError: the log is not damaged.
        LogNotSalvageableError: neither the log nor long-term storage has a whole checkpoint to begin with.
        LogMissingError: there is no log.
        LogIdentityError: it belongs to another cluster.
        LaterVersionError: only a later version can read it.
        StorageUnavailableError, StorageIdentityError: long-term storage is missing, or belongs to another cluster.
    """
    directory = DataDirectory(settings.data_dir, runtime)
    try:
        identity = await runtime.work.run(directory.open_existing)
    except DataDirectoryInUseError as error:
        raise DataDirectoryInUseError(
            f"nothing was changed: a server runs on {directory.root}; stop it, repeat this command, and start it again"
        ) from error
    try:
        return await _Salvage(directory, identity, settings, runtime, container_id).run(is_dry_run=is_dry_run)
    finally:
        directory.close()


@dataclass(frozen=True, slots=True)
class _Ended:
    """A segment whose start or end (`length`) is set to that in long-term storage; `before`: its length by the log.

    `operations` are appended to the new log. They bring the segment to its state in storage.
    """

    id: int
    name: str
    before: int
    length: int
    is_system: bool
    operations: Sequence[Activate | Deactivate | Truncate]

    @classmethod
    def of(cls, unfit: UnfitSegment) -> _Ended:
        segment = unfit.segment
        operations: Sequence[Activate | Deactivate | Truncate]
        if unfit.length is None:
            operations = [Truncate(segment.id, unfit.stored.start_offset, segment.last_modified_ms)]
        else:
            operations = [
                Deactivate([segment.id]), Activate(encode_ended(segment, unfit.length, unfit.stored))
            ]  # fmt: skip
        length = segment.length if unfit.length is None else unfit.length
        return cls(segment.id, segment.name, segment.length, length, segment.is_system, operations)

    def correct(self, report: SalvageReport) -> None:
        """Update the loss of the segment in `report`."""
        loss = report.segments.get(self.id)
        if self.is_system or self.length == self.before or (loss is None and self.length > self.before):
            return  # It is as long as in storage, and nothing shows that it was longer.
        loss = report.loss_of(self.id, self.name, self.length)
        # The number of events before and after the cut is not known.
        loss.start, loss.event_count, loss.is_exact = self.length, 0, False
        loss.end = max(loss.end, self.before)
        if loss.end <= loss.start:
            del report.segments[self.id]


@dataclass(slots=True)
class _Plan:
    """A new log: what it begins with, and the segments whose ends are taken from long-term storage.

    `image`: it begins with that image. `start_at`: it begins with that checkpoint of the damaged log; 0: with the
    first. `keeps_system` and `found`: see `LogSalvage`.
    """

    image: ContainerImage | None = None
    start_at: int = 0
    keeps_system: bool = False
    ended: list[_Ended] = field(default_factory=list)
    found: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    report: SalvageReport = field(default_factory=lambda: SalvageReport(0))


class _StreamedLog:
    """`ReplayedLog` of frames that are generated on the fly."""

    is_truncated = False

    def __init__(self, frames: Iterator[list[bytes]], runtime: Runtime) -> None:
        self._frames = frames
        self._runtime = runtime

    async def frame_runs(self) -> AsyncIterator[LogFrameRun]:
        """See `ReplayedLog`."""
        address = 1
        while (ready := await self._runtime.work.run(next, self._frames, None)) is not None:
            yield LogFrameRun([LogAddress(address + index) for index in range(len(ready))], ready)
            address += len(ready)


class _Salvage:
    def __init__(
        self,
        directory: DataDirectory,
        identity: Identity,
        settings: StandaloneSettings,
        runtime: Runtime,
        container_id: int,
    ) -> None:
        self._data = directory
        self._identity = identity
        self._settings = settings
        self._runtime = runtime
        self._id = container_id
        self._disk = runtime.disk
        self._path = f"{directory.tier1}/{container_id}"
        self._draft = f"{self._path}.salvage-draft"
        self._whole = f"{self._path}.salvaged"

    async def run(self, *, is_dry_run: bool) -> Salvaged:
        work = self._runtime.work
        if not await work.run(self._has_log):
            if not await work.run(self._disk.exists, self._whole):
                raise LogMissingError(self._id, self._path, record="this data directory")
            damaged_path = await work.run(self._newest_damaged_path)
            if not is_dry_run:
                await work.run(self._finish)
            return Salvaged(None, (), "", self._path, damaged_path)
        damaged = await work.run(DamagedLog, self._disk, self._path, self._id, self._identity.cluster_id)
        plan, image_problem = await self._plan(damaged)
        damaged_path = ""
        if not is_dry_run:
            epoch = max(damaged.epoch, 0 if plan.image is None else plan.image.name.epoch) + EPOCH_STEP
            await work.run(self._begin, epoch)
            await self._write(damaged, plan)
            damaged_path = await work.run(self._switch, damaged)
        path = "" if is_dry_run else self._path
        return Salvaged(plan.report, tuple(damaged.problems), image_problem, path, damaged_path)

    def _has_log(self) -> bool:
        return self._disk.exists(self._path) and has_log(self._disk, self._path)

    # Choosing the new log.

    async def _plan(self, damaged: DamagedLog) -> tuple[_Plan, str]:
        """Return the plan that loses least, and why images were not used. Raises as `salvage_log`."""
        whole = _Plan()
        found = await self._read(damaged, whole)
        if whole.report.is_intact and not damaged.problems:
            raise InvalidArgumentError(
                f"the log of container {self._id} in {self._path} is not damaged and was not changed. If it is "
                f"disabled, `penstock log enable {self._id}` enables it"
            )
        if whole.report.loses_nothing:
            await self._replay(damaged, whole)
            return whole, ""
        async with AsyncExitStack() as held:
            chunks = open_long_term_storage(self._settings, self._data, self._runtime)
            held.push_async_callback(chunks.close)
            # If anything was lost, the ends of segments are taken from storage.
            await check_identity(chunks, self._identity)
            plans = [whole]
            image, image_problem = await self._image(damaged, chunks)
            if image is not None:
                with_image = _Plan(image=image)
                reached = (await self._read(damaged, with_image)).whole_until
                if with_image.report.loses_nothing:
                    await self._replay(damaged, with_image)
                    return with_image, image_problem
                if not whole.report.base or reached > found.whole_until:
                    plans.insert(0, with_image)
            # First the plans that keep the container's own records after the loss, because the log was truncated by
            # them.
            plans = [each for plan in plans for each in (replace(plan, keeps_system=True, ended=[], found={}), plan)]
            # A later checkpoint contains the effect of all lost operations before it; only bytes may be missing.
            plans[:0] = [_Plan(start_at=number) for number in found.whole_checkpoints[: -_PLANS_MAX - 1 : -1]]
            problems: list[str] = []
            for plan in plans:
                await self._read(damaged, plan)
                if plan.report.base and await self._fits(damaged, plan, chunks, problems):
                    return plan, image_problem
        # Each way that was tried has failed for a reason of its own.
        reasons = list(dict.fromkeys(filter(None, [image_problem, *reversed(problems)])))
        more = f"; and {len(reasons) - _REASONS_MAX} more" if len(reasons) > _REASONS_MAX else ""
        because = "; ".join(reasons[:_REASONS_MAX]) + more
        raise LogNotSalvageableError(
            f"the log of container {self._id} in {self._path} has no complete checkpoint that a new log could start "
            f"with and that matches long-term storage, and long-term storage has no usable "
            f"image{f' ({because})' if because else ''}. Nothing "
            "was changed. Put the log's files back from a copy, or build a data directory with `penstock storage "
            "restore`",
            whole.report,
        )

    async def _read(self, damaged: DamagedLog, plan: _Plan) -> LogSalvage:
        """Determine what a plan keeps and store it in its report; write nothing."""
        salvage = self._new_salvage(plan)
        frames = self._frames(salvage, damaged, plan)
        while await self._runtime.work.run(next, frames, None) is not None:
            pass
        plan.report = salvage.report
        return salvage

    def _new_salvage(self, plan: _Plan) -> LogSalvage:
        base = "log" if plan.image is None else plan.image.name.name
        return LogSalvage(
            self._id,
            mark_key=MARK_KEY,
            base=base,
            start_at=plan.start_at,
            keeps_system=plan.keeps_system,
            found=plan.found,
        )

    async def _replay(self, damaged: DamagedLog, plan: _Plan) -> None:
        """Replay the log of a plan that loses nothing. Raises `CorruptionError` when a start would fail."""
        state = ContainerState(
            self._id, Cache(self._settings.segment_store.cache), self._settings.segment_store.container
        )
        try:
            await recover(_StreamedLog(self._frames(self._new_salvage(plan), damaged, plan), self._runtime), state)
        finally:
            for segment in state.metadata.by_id.values():
                segment.index.clear()
                segment.close_indexes()
            state.backlog.close()

    async def _fits(self, damaged: DamagedLog, plan: _Plan, chunks: ChunkStorage, problems: list[str]) -> bool:
        """Replay a plan's log as a start does, and set the ends of segments from the log and long-term storage.

        Return whether the result fits storage; if not, the reason is added to `problems`.
        """
        for _ in range(_ROUNDS_MAX):
            salvage = self._new_salvage(plan)
            inspection = ContainerInspection(
                self._id,
                _StreamedLog(self._frames(salvage, damaged, plan), self._runtime),
                chunks,
                epoch=damaged.epoch + EPOCH_STEP,
                cache=Cache(self._settings.segment_store.cache),
                runtime=self._runtime,
                settings=self._settings.segment_store.container,
            )
            try:
                await inspection.replay()
                live, gone = inspection.names()
                lost = {loss.name for loss in plan.report.segments.values() if loss.is_whole}
                doubtful = gone & (live | lost) | salvage.forgotten_names & live
                if plan.keeps_system and doubtful:
                    # It cannot be determined whether records of storage lead to chunks of the earlier or of the later
                    # segment.
                    problems.append(f"{min(doubtful)} was deleted and created again near the loss")
                    return False
                unfit = await inspection.unfit_system()
                if not unfit and await self._find(plan, await inspection.missing_system(), damaged, chunks):
                    continue
                if not unfit:
                    await inspection.open_tables()
                    # Without the records after the loss, those of a name are of its earlier, deleted segment.
                    freed = set() if plan.keeps_system else gone
                    for name in (salvage.forgotten_names | lost) - freed:
                        if await inspection.is_stored(name):
                            raise CorruptionError(name, 0, "it is in long-term storage but not in the log")
                    if inspection.index_problem is not None:
                        raise inspection.index_problem
                    unfit = await inspection.unfit()
                plan.ended += [_Ended.of(each) for each in unfit]
            except CorruptionError as error:
                problems.append(str(error))
                return False
            finally:
                await inspection.close()
            if not unfit:
                plan.report = salvage.report
                for ended in plan.ended:
                    ended.correct(plan.report)
                return True
        problems.append(
            f"segments do not match long-term storage: {', '.join(each.segment.name for each in unfit[:3])}"
        )
        return False

    async def _find(
        self, plan: _Plan, missing: Sequence[MissingBytes], damaged: DamagedLog, chunks: ChunkStorage
    ) -> bool:
        """Add bytes of system segments, from chunks whose records are lost, to the plan. Return whether there are any.

        Raises `CorruptionError` if bytes are nowhere.
        """
        for each in missing:
            data = await bytes_in_chunks(chunks, each, epoch_max=damaged.epoch)
            if data is None:
                raise CorruptionError(
                    each.segment, each.start, f"neither the log nor any chunk has bytes {each.start} to {each.end}"
                )
            plan.found.setdefault(each.segment_id, []).append((each.start, data))
        return bool(missing)

    def _frames(self, salvage: LogSalvage, damaged: DamagedLog, plan: _Plan) -> Iterator[list[bytes]]:
        """Yield the frames of the new log, in batches. Blocks."""
        builder = FrameBuilder(min(_FRAME_BYTES, self._settings.durable_log.frame_length_max_bytes))
        ready: list[bytes] = []
        ready_bytes = 0
        for record in self._records(salvage, damaged, plan):
            if builder.fits(len(record)):
                builder.add(bytes(record), None, len(record))
                continue
            if not builder.is_empty:
                ready.append(b"".join(builder.take()[0]))
            if builder.fits(len(record)):
                builder.add(bytes(record), None, len(record))
            else:
                ready += [b"".join(parts) for parts, _ in builder.add_spanning(bytes(record), None)]
            ready_bytes += _FRAME_BYTES + len(record)
            if ready_bytes >= _APPEND_BYTES:
                yield ready
                ready, ready_bytes = [], 0
        if not builder.is_empty:
            ready.append(b"".join(builder.take()[0]))
        if ready:
            yield ready

    def _records(self, salvage: LogSalvage, damaged: DamagedLog, plan: _Plan) -> Iterator[bytes]:
        try:
            for frame in () if plan.image is None else plan.image.frames:
                yield from map(bytes, salvage.take(frame))
            for found in damaged.read():
                if isinstance(found, LostRange):
                    salvage.lose(found)
                else:
                    yield from map(bytes, salvage.take(found))
            yield from map(bytes, salvage.finish())
            for ended in plan.ended:
                yield from map(salvage.add, ended.operations)
        except LaterFormatError as error:
            raise error.at(self._path) from error

    async def _image(self, damaged: DamagedLog, chunks: ChunkStorage) -> tuple[ContainerImage | None, str]:
        """Return the newest whole image of this log in long-term storage, or why there is none.

        Images of other epochs than those of the log's files belong to another history: that of a restored store.
        """
        names = (await image_names(chunks)).get(self._id, [])
        names = [name for name in names if damaged.first_epoch <= name.epoch <= damaged.epoch]
        if not names:
            return None, ""
        try:
            return (await newest_whole_image(chunks, names))[0], ""
        except NotRecoverableError as error:
            return None, str(error)

    # Writing the new log.

    def _begin(self, epoch: int) -> None:
        """Remove the leftovers of earlier runs, and create a log with that epoch."""
        for path in (f"{self._draft}/{self._id}", self._draft, self._whole):
            remove_directory(self._disk, path)
        path = f"{self._draft}/{self._id}"
        self._disk.make_directory(path)
        record = EpochRecord(self._id, epoch, True, is_released=True, cluster_id=self._identity.cluster_id)
        write_epoch(self._disk, path, record).close()

    async def _write(self, damaged: DamagedLog, plan: _Plan) -> None:
        logs = LocalLogFactory(
            self._draft, self._runtime, self._settings.durable_log, cluster_id=self._identity.cluster_id
        )
        log = logs.create(self._id)
        frames = self._frames(self._new_salvage(plan), damaged, plan)
        try:
            await log.open()
            while (ready := await self._runtime.work.run(next, frames, None)) is not None:
                await asyncio.gather(*[log.append([frame], len(frame)) for frame in ready])
        finally:
            await log.close()
        await self._runtime.work.run(
            check_frames, self._disk, f"{self._draft}/{self._id}", self._id, self._identity.cluster_id
        )

    # The switch. All methods block.

    def _switch(self, damaged: DamagedLog) -> str:
        """Replace the damaged log by the new one; return the damaged one's new name."""
        try:
            record = read_epoch(self._disk, self._path)
        except CorruptionError:
            record = None  # It is left as it is: the log cannot be claimed with it.
        if record is not None and record.is_enabled:
            LogDirectory(self._disk, self._path, self._id).disable_from_outside()
        MadeLogs(self._disk, self._data.made_logs, self._identity.cluster_id).add(self._id)
        self._rename(f"{self._draft}/{self._id}", self._whole)
        damaged_path = self._damaged_path(damaged.epoch)
        self._rename(self._path, damaged_path)
        self._finish()
        return damaged_path

    def _finish(self) -> None:
        if self._disk.exists(self._path):
            remove_directory(self._disk, self._path)  # A log directory without files, as a server's start creates it.
        self._rename(self._whole, self._path)
        remove_directory(self._disk, self._draft)

    def _rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)
        self._disk.sync_directory(self._data.tier1)

    def _damaged_path(self, epoch: int) -> str:
        path = f"{self._path}.damaged-{epoch:016x}"
        number = 1
        while self._disk.exists(path):
            number += 1
            path = f"{self._path}.damaged-{epoch:016x}-{number}"
        return path

    def _newest_damaged_path(self) -> str:
        prefix = f"{self._id}.damaged-"
        found = [name for name in self._disk.list_directory(self._data.tier1) if name.startswith(prefix)]
        return f"{self._data.tier1}/{max(found)}" if found else ""


def remove_directory(disk: Disk, path: str) -> None:
    """Remove a directory with its files; no error if it does not exist."""
    if not disk.exists(path):
        return
    for name in disk.list_directory(path):
        disk.remove(f"{path}/{name}")
    disk.remove_directory(path)


__all__ = ["LogNotSalvageableError", "Salvaged", "salvage_log"]
