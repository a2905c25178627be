"""`SalvagePlanner`: decides with what a new log replaces a damaged one, so that least is lost. Writes nothing.

What is kept and what is lost: docs/recovery.md. The damaged log is in a directory (`log_salvage.py`) or in a bucket
(`object_log_salvage.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.administration.errors import LogNotSalvageableError, NotRecoverableError
from penstock.administration.storage_recovery import EPOCH_STEP, image_names, newest_whole_image
from penstock.model.errors import CorruptionError, InvalidArgumentError
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
from penstock.segmentstore.tier1.damaged_log import LostRange
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrameRun
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.server.settings import StandaloneSettings

#: Bytes of the new log's frames that are ready at a time.
_READY_BYTES = 8 * 1024 * 1024
#: Maximum length of a frame of the new log.
_FRAME_BYTES = 256 * 1024
#: Maximum number of checkpoints after the last loss that are tried as the new log's first, newest first.
_PLANS_MAX = 4
#: Maximum number of reasons that a refusal names.
_REASONS_MAX = 5
#: Maximum number of replays of a plan until all of its segments fit long-term storage.
_ROUNDS_MAX = 4


class ReadableDamage(Protocol):
    """A damaged log, as far as it is intact.

    Attributes:
        epoch: the latest epoch that the log shows; `first_epoch`: the earliest.
        problems: errors found outside of the frames.
    """

    epoch: int
    first_epoch: int
    problems: list[str]

    def read(self) -> Iterator[bytes | LostRange]:
        """Yield the intact frames in the order of the log, and the lost ranges between them. Blocks."""


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
class SalvagePlan:
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


class SalvagePlanner:
    """See the module.

    `path` and `enable_command`: for messages, the log and the command that enables it; `advice`: what to do if nothing
    can be salvaged. `open_chunks` opens long-term storage of the same cluster.
    """

    def __init__(
        self,
        container_id: int,
        damaged: ReadableDamage,
        settings: StandaloneSettings,
        runtime: Runtime,
        *,
        open_chunks: Callable[[], AbstractAsyncContextManager[ChunkStorage]],
        path: str,
        enable_command: str,
        advice: str,
    ) -> None:
        self._id = container_id
        self._damaged = damaged
        self._settings = settings
        self._runtime = runtime
        self._open_chunks = open_chunks
        self._path = path
        self._enable_command = enable_command
        self._advice = advice

    def frames(self, plan: SalvagePlan) -> Iterator[list[bytes]]:
        """Yield the frames of the new log, in batches. Blocks."""
        return self._frames(self._new_salvage(plan), plan)

    async def plan(self) -> tuple[SalvagePlan, str]:
        """Return the plan that loses least, and why images were not used.

        Raises `InvalidArgumentError` for a log that is not damaged, `LogNotSalvageableError`, and the errors of
        `open_chunks`.
        """
        damaged = self._damaged
        whole = SalvagePlan()
        found = await self._read(whole)
        if whole.report.is_intact and not damaged.problems:
            raise InvalidArgumentError(
                f"the log of container {self._id} in {self._path} is not damaged and was not changed. If it is "
                f"disabled, `{self._enable_command}` enables it"
            )
        if whole.report.loses_nothing:
            await self._replay(whole)
            return whole, ""
        # If anything was lost, the ends of segments are taken from storage.
        async with self._open_chunks() as chunks:
            plans = [whole]
            image, image_problem = await self._image(chunks)
            if image is not None:
                with_image = SalvagePlan(image=image)
                reached = (await self._read(with_image)).whole_until
                if with_image.report.loses_nothing:
                    await self._replay(with_image)
                    return with_image, image_problem
                if not whole.report.base or reached > found.whole_until:
                    plans.insert(0, with_image)
            # First the plans that keep the container's own records after the loss, because the log was truncated by
            # them.
            plans = [each for plan in plans for each in (replace(plan, keeps_system=True, ended=[], found={}), plan)]
            # A later checkpoint contains the effect of all lost operations before it; only bytes may be missing.
            plans[:0] = [SalvagePlan(start_at=number) for number in found.whole_checkpoints[: -_PLANS_MAX - 1 : -1]]
            problems: list[str] = []
            for plan in plans:
                await self._read(plan)
                if plan.report.base and await self._fits(plan, chunks, problems):
                    return plan, image_problem
        # Each way that was tried has failed for a reason of its own.
        reasons = list(dict.fromkeys(filter(None, [image_problem, *reversed(problems)])))
        more = f"; and {len(reasons) - _REASONS_MAX} more" if len(reasons) > _REASONS_MAX else ""
        because = "; ".join(reasons[:_REASONS_MAX]) + more
        raise LogNotSalvageableError(
            f"the log of container {self._id} in {self._path} has no complete checkpoint that a new log could start "
            f"with and that matches long-term storage, and long-term storage has no usable "
            f"image{f' ({because})' if because else ''}. Nothing was changed. {self._advice}",
            whole.report,
        )

    async def _read(self, plan: SalvagePlan) -> LogSalvage:
        """Determine what a plan keeps and store it in its report; write nothing."""
        salvage = self._new_salvage(plan)
        frames = self._frames(salvage, plan)
        while await self._runtime.work.run(next, frames, None) is not None:
            pass
        plan.report = salvage.report
        return salvage

    def _new_salvage(self, plan: SalvagePlan) -> LogSalvage:
        base = "log" if plan.image is None else plan.image.name.name
        return LogSalvage(
            self._id,
            mark_key=MARK_KEY,
            base=base,
            start_at=plan.start_at,
            keeps_system=plan.keeps_system,
            found=plan.found,
        )

    async def _replay(self, plan: SalvagePlan) -> None:
        """Replay the log of a plan that loses nothing. Raises `CorruptionError` when a start would fail."""
        state = ContainerState(
            self._id, Cache(self._settings.segment_store.cache), self._settings.segment_store.container
        )
        try:
            await recover(_StreamedLog(self._frames(self._new_salvage(plan), plan), self._runtime), state)
        finally:
            for segment in state.metadata.by_id.values():
                segment.index.clear()
                segment.close_indexes()
            state.backlog.close()

    async def _fits(self, plan: SalvagePlan, chunks: ChunkStorage, problems: list[str]) -> bool:
        """Replay a plan's log as a start does, and set the ends of segments from the log and long-term storage.

        Return whether the result fits storage; if not, the reason is added to `problems`.
        """
        for _ in range(_ROUNDS_MAX):
            salvage = self._new_salvage(plan)
            inspection = ContainerInspection(
                self._id,
                _StreamedLog(self._frames(salvage, plan), self._runtime),
                chunks,
                epoch=self._damaged.epoch + EPOCH_STEP,
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
                if not unfit and await self._find(plan, await inspection.missing_system(), chunks):
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

    async def _find(self, plan: SalvagePlan, missing: Sequence[MissingBytes], chunks: ChunkStorage) -> bool:
        """Add bytes of system segments, from chunks whose records are lost, to the plan. Return whether there are any.

        Raises `CorruptionError` if bytes are nowhere.
        """
        for each in missing:
            data = await bytes_in_chunks(chunks, each, epoch_max=self._damaged.epoch)
            if data is None:
                raise CorruptionError(
                    each.segment, each.start, f"neither the log nor any chunk has bytes {each.start} to {each.end}"
                )
            plan.found.setdefault(each.segment_id, []).append((each.start, data))
        return bool(missing)

    def _frames(self, salvage: LogSalvage, plan: SalvagePlan) -> Iterator[list[bytes]]:
        """Yield the frames of the new log, in batches. Blocks."""
        builder = FrameBuilder(min(_FRAME_BYTES, self._settings.durable_log.frame_length_max_bytes))
        ready: list[bytes] = []
        ready_bytes = 0
        for record in self._records(salvage, plan):
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
            if ready_bytes >= _READY_BYTES:
                yield ready
                ready, ready_bytes = [], 0
        if not builder.is_empty:
            ready.append(b"".join(builder.take()[0]))
        if ready:
            yield ready

    def _records(self, salvage: LogSalvage, plan: SalvagePlan) -> Iterator[bytes]:
        try:
            for frame in () if plan.image is None else plan.image.frames:
                yield from map(bytes, salvage.take(frame))
            for found in self._damaged.read():
                if isinstance(found, LostRange):
                    salvage.lose(found)
                else:
                    yield from map(bytes, salvage.take(found))
            yield from map(bytes, salvage.finish())
            for ended in plan.ended:
                yield from map(salvage.add, ended.operations)
        except LaterFormatError as error:
            raise error.at(self._path) from error

    async def _image(self, chunks: ChunkStorage) -> tuple[ContainerImage | None, str]:
        """Return the newest whole image of this log in long-term storage, or why there is none.

        Images of other epochs than those of the log's files belong to another history: that of a restored store.
        """
        names = (await image_names(chunks)).get(self._id, [])
        names = [name for name in names if self._damaged.first_epoch <= name.epoch <= self._damaged.epoch]
        if not names:
            return None, ""
        try:
            return (await newest_whole_image(chunks, names))[0], ""
        except NotRecoverableError as error:
            return None, str(error)
