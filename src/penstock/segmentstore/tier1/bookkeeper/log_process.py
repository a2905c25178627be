"""`BookKeeperProcess`: what the logs of one process share: ledgers, records, and the bound of bytes in flight."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from typing import Protocol, TypeVar

from penstock.model.errors import LogClosedError, PenstockError, StorageError
from penstock.model.errors.ledgers import (
    LedgerError,
    LedgerFencedError,
    LedgerLostError,
    LedgerMetadataError,
    LedgerSilentError,
    LedgerUnavailableError,
    ledger_error,
)
from penstock.runtime.ledgers import LedgerObserver, LedgerStore, LedgerWriter
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.bookkeeper.log_record import LedgerLabels
from penstock.segmentstore.tier1.bookkeeper.record_store import RecordStore
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock.segmentstore.tier1.log_owner import LogOwner

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Errors after which a ledger is created again, or its end is asked for again.
PASSING_ERRORS = (LedgerLostError, LedgerSilentError, LedgerMetadataError, LedgerUnavailableError)
#: How often it is checked whether an append has stalled.
_WATCH_INTERVAL_S = 1.0


class FlightBudget:
    """Bound of the bytes of all logs of the process that are sent and not answered."""

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes: int = 0
        self._limit_bytes = limit_bytes
        #: Ordered: the log that has waited longest is called first.
        self._waiting: dict[Callable[[], None], None] = {}

    def take(self, length: int, own_bytes: int) -> bool:
        """Take room for an entry of a log that occupies `own_bytes`, if there is. One entry is always allowed.

        A log gets at most half, so that one that waits for bookies does not hold up the others.
        """
        if own_bytes and own_bytes + length > self._limit_bytes // 2:
            return False
        if self.used_bytes and self.used_bytes + length > self._limit_bytes:
            return False
        self.used_bytes += length
        return True

    def wait(self, on_room: Callable[[], None]) -> None:
        """Call `on_room` once when there is room again."""
        self._waiting.setdefault(on_room)

    def give(self, length: int) -> None:
        """Give room back."""
        self.used_bytes -= length
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for on_room in waiting:
                on_room()


class OpenLog(Protocol):
    """An open log of this process. See `BookKeeperLog`."""

    container_id: int

    def watch(self, interval_s: float) -> None:
        """Give an append up that has no answer for too long. Called at intervals."""

    def observe_bookies(self, registered: Collection[str], interval_s: float) -> None:
        """Continue in another ledger if this one has lost a bookie for some time. Called at intervals."""

    def fail(self, error: PenstockError) -> None:
        """End: nothing more is acknowledged."""


class BookKeeperProcess:
    """See the module.

    Attributes:
        members: the open logs.
        budget: bytes in flight.
    """

    def __init__(
        self,
        ledgers: LedgerStore,
        records: RecordStore,
        runtime: Runtime,
        settings: BookKeeperSettings,
        owner: LogOwner,
    ) -> None:
        self.ledgers: LedgerStore = ledgers
        self.records: RecordStore = records
        self.runtime: Runtime = runtime
        self.settings: BookKeeperSettings = settings
        self.owner: LogOwner = owner
        self.budget: FlightBudget = FlightBudget(settings.in_flight_bytes_max)
        self.members: list[OpenLog] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._watching: list[asyncio.Task[None]] = []
        #: The bookies that were registered when that was known last; None: it never was.
        self._registered: Collection[str] | None = None
        self._opening: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_closed = False

    def spawn(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Run `work` in the background, at most until this process closes. Its errors are the caller's."""
        if self._is_closed:
            work.close()
            raise LogClosedError("the logs of this process are closed")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # The caller may have been cancelled before the end.
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return task

    def start(self) -> None:
        """Watch logs and bookies from now on. Does nothing if they are watched already."""
        if not self._watching and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._watching = [loop.create_task(self._watch()), loop.create_task(self._observe_bookies())]

    def opening(self, container_id: int) -> asyncio.Lock:
        """Return the lock under which this process opens a container's log."""
        self.start()
        return self._opening[container_id]

    async def check(self) -> None:
        """Return when as many bookies are reached as an entry needs. Raises `LedgerLostError`: they are not.

        The bookies are those that were registered when the metadata service was reached last. Without it appends
        continue, so its absence is no problem of the log.
        """
        if self._registered is None:
            return
        reached = await self.ledgers.reach(self._registered)
        if len(reached) < self.settings.ack:
            raise ledger_error(
                -6, f"{len(reached)} of {len(self._registered)} bookies are reached, and {self.settings.ack} are needed"
            )

    async def create_ledger(
        self, labels: LedgerLabels, observer: LedgerObserver, *, gives_up: bool, on_problem: Callable[[str], None]
    ) -> LedgerWriter:
        """Create a ledger, on fewer bookies after `ensemble_wait_s` if there are too few.

        `gives_up`: raise `LedgerError` when that failed, too; otherwise it is repeated until the process closes.
        `on_problem`: called with the error of each attempt that failed.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            is_late = loop.time() - began_s >= settings.ensemble_wait_s
            quorums = [settings.quorum]
            if is_late and settings.smaller_quorum != settings.quorum:
                quorums.append(settings.smaller_quorum)
            for quorum in quorums:
                try:
                    return await self.ledgers.create(quorum, labels.encode(), observer)
                except PASSING_ERRORS as error:
                    failure: LedgerError = error
            if gives_up and is_late:
                raise failure
            on_problem(str(failure))
            await asyncio.sleep(settings.retry_s)

    def delete_ledgers(self, ledger_ids: Collection[int]) -> None:
        """Delete ledgers that no record names any more. A failure leaves them for the sweep."""
        if ledger_ids and not self._is_closed:
            self.spawn(self._delete(sorted(ledger_ids)))

    async def _delete(self, ledger_ids: Collection[int]) -> None:
        for ledger_id in ledger_ids:
            try:
                await self.ledgers.delete(ledger_id)
            except StorageError as error:
                _log.warning("ledger %d is not needed any more and was not deleted: %s", ledger_id, error)

    async def close_writer(self, writer: LedgerWriter) -> None:
        """Close a ledger whose handle is not used any more. A failure leaves it to the next open, which fences it."""
        try:
            async with asyncio.timeout(self.settings.change_wait_s):
                await writer.close()
        except (TimeoutError, LedgerError) as error:
            level = logging.DEBUG if isinstance(error, LedgerFencedError) else logging.INFO
            _log.log(level, "ledger %d was not closed: %r", writer.ledger_id, error)

    def close_in_background(self, writer: LedgerWriter) -> None:
        """Close a ledger as `close_writer` does. A process that closes ends all its handles."""
        if not self._is_closed:
            self.spawn(self.close_writer(writer))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            for member in list(self.members):
                member.watch(_WATCH_INTERVAL_S)

    async def _observe_bookies(self) -> None:
        interval_s = self.settings.bookies_interval_s
        while True:
            try:
                registered = self._registered = await self.ledgers.bookies()
            except StorageError as error:
                _log.debug("the bookies are not known at present: %s", error)
            else:
                for member in list(self.members):
                    member.observe_bookies(registered, interval_s)
            await asyncio.sleep(interval_s)

    async def close(self) -> None:
        """End what is left in the background, and fail logs that are not closed. Idempotent."""
        self._is_closed = True
        for member in list(self.members):
            member.fail(LogClosedError("the logs of this process are closed"))
        tasks: list[asyncio.Task[object] | asyncio.Task[None]] = [*self._tasks, *self._watching]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
