"""`CommitOrder`: reserves positions in the commit order of streams, many per write, and tracks the waiting ones.

This controller's knowledge of an order is complete while it alone takes positions: each write is conditional on the
version of the stream's counter that it wrote last. Once another controller has taken a position, the order is read
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import ActiveTransaction, CommitCounter
from penstock.controller.metadata.stream_tables import CommitView, StreamTables
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import BackgroundTasks
from penstock.controller.work.deferred_removals import DeferredRemovals
from penstock.model.errors import ControllerUnavailableError, PenstockError

_Key = tuple[str, str, str]


@dataclass(slots=True)
class Waiting:
    """A position in the order.

    Attributes:
        transaction: the transaction that has taken it.
        record: the transaction's record as this controller wrote it; None if it has not.
        is_deciding: whether the decision for which this controller took the position is in progress.
    """

    transaction: str
    record: Versioned[ActiveTransaction] | None = None
    is_deciding: bool = False


@dataclass(slots=True)
class _Known:
    """The known state of one stream's order.

    Attributes:
        counter: as last written or read.
        is_complete: whether `waiting` has all positions that were taken when `counter` was written.
        waiting: taken positions; some of them may be unused.
        view: the initial state of the next commit, if nothing has changed since.
    """

    counter: Versioned[CommitCounter]
    is_complete: bool = False
    waiting: dict[int, Waiting] = field(default_factory=dict)
    view: CommitView | None = None


class CommitOrder:
    """Requests made while a write of the same stream is in progress share the next one, in the order of arrival.

    So concurrent commits do not conflict with each other, and a thousand of them cost ten writes. Keeps the state of
    the `id_cache_entries_max` most recently used streams.
    """

    def __init__(self, tasks: BackgroundTasks, removals: DeferredRemovals, settings: ControllerSettings) -> None:
        self._tasks = tasks
        self._removals = removals
        self._settings = settings
        self._asking: dict[_Key, list[tuple[str, asyncio.Future[int]]]] = {}
        self._orders: dict[_Key, _Known] = {}

    # Positions.

    async def take(self, tables: StreamTables, transaction: str) -> int:
        """Take the next position of a stream for `transaction`; return it. If cancelled, it may have been taken.

        Raises the error of the write: `MetadataConflictError` after losing repeatedly against other controllers.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asking = self._asking.get(tables.key)
        if asking is not None:
            asking.append((transaction, future))
        else:
            self._asking[tables.key] = [(transaction, future)]
            self._tasks.start(f"commit positions of {tables.name}", self._serve(tables))
        return await future

    async def _serve(self, tables: StreamTables) -> None:
        asking = self._asking[tables.key]
        try:
            while asking:
                batch = asking[: self._settings.commit_positions_max]
                try:
                    first = await self._take(tables, [transaction for transaction, _ in batch])
                except PenstockError as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for index, (_, future) in enumerate(batch):
                        if future.done():
                            self.undecided(tables, first + index)
                        else:
                            future.set_result(first + index)
                del asking[: len(batch)]
        finally:
            del self._asking[tables.key]
            for _, future in asking:
                if not future.done():
                    future.set_exception(ControllerUnavailableError("the controller is stopping"))

    async def _take(self, tables: StreamTables, transactions: list[str]) -> int:
        known = self._orders.get(tables.key)
        try:
            first, counter = await tables.take_commit_positions(
                transactions, self._settings.conflict_attempts_max, None if known is None else known.counter
            )
        except BaseException:
            self._orders.pop(tables.key, None)
            raise
        if known is None or counter.record.next_position - len(transactions) != known.counter.record.next_position:
            known = _Known(counter)
        known.counter = counter
        known.waiting.update(
            {first + index: Waiting(text, is_deciding=True) for index, text in enumerate(transactions)}
        )
        self._keep(tables.key, known)
        return first

    def _keep(self, key: _Key, known: _Known) -> None:
        self._orders.pop(key, None)
        self._orders[key] = known
        if len(self._orders) > self._settings.id_cache_entries_max:
            del self._orders[next(iter(self._orders))]

    # Waiting transactions.

    def decided(self, tables: StreamTables, position: int, record: Versioned[ActiveTransaction]) -> None:
        """Record that the transaction at this position is COMMITTING, with its `record`."""
        known = self._orders.get(tables.key)
        if known is not None and position in known.waiting:
            known.waiting[position].record = record
            known.waiting[position].is_deciding = False

    def undecided(self, tables: StreamTables, position: int) -> None:
        """Record that the decision for this position failed or is unknown: the next commit has to read the record."""
        known = self._orders.get(tables.key)
        if known is not None and position in known.waiting:
            known.waiting[position].is_deciding = False

    def view(self, tables: StreamTables) -> CommitView | None:
        """Return the initial state of the next commit, if known. It may be out of date; its versions detect that."""
        known = self._orders.get(tables.key)
        return None if known is None else known.view

    def known(self, tables: StreamTables) -> dict[int, Waiting] | None:
        """Return the waiting positions, valid unless another controller has committed since; None if not known."""
        known = self._orders.get(tables.key)
        return known.waiting if known is not None and known.is_complete else None

    async def waiting(self, tables: StreamTables) -> list[tuple[int, str]]:
        """Read the taken positions, with their transactions, in order; without those being removed."""
        known = self._orders.get(tables.key)
        before = () if known is None else tuple(known.waiting)
        order = layout.commit_order(*tables.key)
        walked = [
            (position, text)
            for position, text in await tables.commit_positions()
            if not self._removals.has(order, str(position))
        ]
        # Positions that this controller took meanwhile are in `waiting` already, since the order is still the same.
        if known is not None and self._orders.get(tables.key) is known:
            # Another controller may have merged earlier ones: their records must be read again.
            for position in before:
                known.waiting.pop(position, None)
            known.waiting = {**{position: Waiting(text) for position, text in walked}, **known.waiting}
            known.is_complete = True
        return walked

    def positions_of(self, tables: StreamTables, transactions: Iterable[str]) -> list[int]:
        """Return the positions of transactions, as far as known."""
        known = self._orders.get(tables.key)
        wanted = set(transactions)
        return [] if known is None else [at for at, one in known.waiting.items() if one.transaction in wanted]

    def leave(self, tables: StreamTables, positions: Iterable[int]) -> None:
        """Record that these positions are no longer used. Their rows are removed later."""
        left = list(positions)
        self._removals.add(layout.commit_order(*tables.key), (str(position) for position in left))
        known = self._orders.get(tables.key)
        if known is not None:
            for position in left:
                known.waiting.pop(position, None)

    def ended(self, tables: StreamTables, view: CommitView | None) -> None:
        """Record the initial state of the next commit; None: it has to be read."""
        known = self._orders.get(tables.key)
        if known is not None:
            known.view = view
