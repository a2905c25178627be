"""`ContainerClosing`: releases what one incarnation of a container holds, when it stops or could not be opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator

from penstock.model.errors import ContainerOfflineError, PenstockError, StaleLogError
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container.acceptor import OperationAcceptor
from penstock.segmentstore.container.back_pressure import BackPressure
from penstock.segmentstore.container.life import ContainerLife, ContainerStatus
from penstock.segmentstore.container.log.pipeline import OperationPipeline
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.container_storage import ContainerStorage
from penstock.segmentstore.container.storage.storage_writer import StorageWriter
from penstock.segmentstore.container.tables.tables import Tables
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.tier1.durable_log import DurableLog

logger: logging.Logger = logging.getLogger(__name__)

#: Segments whose memory is released before yielding to the event loop.
_DROP_STEP = 1024


class ContainerClosing:
    """The end of one incarnation. Parts that have not been created yet are None.

    Attributes:
        acceptor: its pipeline completes accepted operations.
        tables, reader, storage, writer: parts that hold jobs or memory.
    """

    def __init__(
        self,
        life: ContainerLife,
        log: DurableLog,
        state: ContainerState,
        *,
        ownership: OwnershipLease,
        back_pressure: BackPressure,
        settings: ContainerSettings,
    ) -> None:
        self.acceptor: OperationAcceptor | None = None
        self.tables: Tables | None = None
        self.reader: SegmentReader | None = None
        self.storage: ContainerStorage | None = None
        self.writer: StorageWriter | None = None
        self._life = life
        self._log = log
        self._state = state
        self._ownership = ownership
        self._back_pressure = back_pressure
        self._settings = settings

    async def stop(self) -> None:
        """Complete accepted operations, then stop. Every pending call ends, at worst with `ContainerOfflineError`."""
        life = self._life
        if life.is_stopping:
            return
        if life.status is ContainerStatus.RUNNING:
            life.status = ContainerStatus.STOPPING
        await self.run()
        life.status = ContainerStatus.STOPPED

    async def run(self) -> None:
        """End all jobs and calls, close the log, release the memory. May be repeated."""
        self._ownership.end()
        self._back_pressure.close()
        if self.writer is not None:
            self.writer.begin_stop()
        await self._life.end_jobs()
        if self.writer is not None:
            await self.writer.stop()
        self._log_clean_end()
        try:
            if isinstance(self._life.failure, StaleLogError):
                await self.disable_log(self._life.failure)
            if self.acceptor is not None:
                await self._complete(self.acceptor.pipeline)
            # Before the log is closed, which may take long if the log does not answer: clients wait.
            await self._end_calls()
            # A separate timeout: a pipeline that hangs must not leave the log open.
            await self._close_in_time("its log", self._log.close())
        finally:
            await self._end_calls()

    async def _complete(self, pipeline: OperationPipeline) -> None:
        """Complete accepted operations, for as long as the log answers: each waits for one lease at most."""
        closing = asyncio.ensure_future(pipeline.close())
        loop, until_s = asyncio.get_running_loop(), asyncio.get_running_loop().time() + self._settings.stop_timeout_s
        try:
            while not closing.done() and (left_s := until_s - loop.time()) > 0:
                answer_s = self._settings.ownership_lease_s - pipeline.oldest_wait_s(loop.time())
                if answer_s <= 0:
                    break
                await asyncio.wait((closing,), timeout=min(answer_s, left_s))
        finally:
            if not closing.done():
                logger.warning("container %d: its log does not complete accepted operations", self._life.id)
            await cancel_and_wait(closing)

    async def _end_calls(self) -> None:
        """End every pending call, and release the memory. May be repeated."""
        if self.acceptor is not None:
            self.acceptor.pipeline.abandon("stopped")
        if self.reader is not None:
            await self.reader.close()
        self._back_pressure.release()
        await self._drop_memory()

    def _log_clean_end(self) -> None:
        """Log that no chunk is left without a record, if the container was running and that is so."""
        if self._life.status is not ContainerStatus.STOPPING or self.storage is None or self.acceptor is None:
            return
        note = self.storage.close()
        if note is not None:
            self.acceptor.log(note, lambda: self._state.accept_pinned(note.values))

    async def disable_log(self, cause: PenstockError) -> None:
        """Keep the evidence, and prevent the next incarnation from failing in a loop. The caller raises `cause`."""
        try:
            await self._log.disable(cause)
        except (PenstockError, OSError) as error:
            # Either the log was never claimed: then the damage refuses the next claim as well. Or its disk fails, or
            # another incarnation owns it: then the next open finds the same damage and disables it.
            logger.warning("container %d: its log could not be disabled: %s", self._life.id, error)

    async def _close_in_time(self, what: str, closing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await closing
        except (TimeoutError, PenstockError, OSError) as error:
            # Operations still running there are fenced when the next incarnation opens the log.
            logger.warning("container %d: %s did not close: %r", self._life.id, what, error)

    async def _drop_memory(self) -> None:
        """End all reads' waits and release the cache; stepwise for very many segments, or at once if cancelled."""
        steps = self._drop_memory_in_steps()
        try:
            await asyncio.sleep(0)  # It may be repeated in one turn of the loop.
            for _ in steps:
                await asyncio.sleep(0)
        finally:
            for _ in steps:
                pass

    def _drop_memory_in_steps(self) -> Iterator[None]:
        offline = ContainerOfflineError(self._life.id, "stopped")
        if self.tables is not None:
            self.tables.close(offline)
        for number, waiter in enumerate(self._state.waits.take_all()):
            if number % _DROP_STEP == _DROP_STEP - 1:
                yield
            waiter.fail(offline)
        for number, segment in enumerate(list(self._state.metadata.by_id.values())):
            if number % _DROP_STEP == _DROP_STEP - 1:
                yield
            segment.index.clear()
            segment.close_indexes()
        self._state.backlog.close()
