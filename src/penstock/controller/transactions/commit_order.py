"""`CommitOrder`: places in the commit order of streams, for many transactions with one write; and who waits in it.

What this controller knows of an order is complete as long as it alone takes places: each taking is on condition of
the version of the stream's counter that it has written last. Once another controller has taken one, the order is read
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.controller.deferred_removals import DeferredRemovals
from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import ActiveTransaction, CommitCounter
from penstock.controller.metadata.stream_tables import CommitView, StreamTables
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import BackgroundTasks
from penstock.model.errors import ControllerUnavailableError, PenstockError

_Key = tuple[str, str, str]


@dataclass(slots=True)
class Waiting:
    """A place in the order.

    Attributes:
        transaction: whose place it is.
        record: what this controller has written of the transaction, None if it has not.
        is_deciding: whether the decision for which this controller has taken the place is on its way.
    """

    transaction: str
    record: Versioned[ActiveTransaction] | None = None
    is_deciding: bool = False


@dataclass(slots=True)
class _Known:
    """What is known of one stream's order.

    Attributes:
        counter: as it was written, or read, last.
        is_complete: whether `waiting` has all places that were taken when `counter` was written.
        waiting: places that are taken, by position; some of them may lead nowhere.
        view: what the next commit starts from, if nothing has changed since.
    """

    counter: Versioned[CommitCounter]
    is_complete: bool = False
    waiting: dict[int, Waiting] = field(default_factory=dict)
    view: CommitView | None = None


class CommitOrder:
    """Those who ask while a write of the same stream is under way share the next one, in the order of asking.

    So commits at the same moment do not conflict with each other, and a thousand of them cost ten writes. What is known
    of `id_cache_entries_max` streams is kept, those that were asked for last.
    """

    def __init__(self, tasks: BackgroundTasks, removals: DeferredRemovals, settings: ControllerSettings) -> None:
        self._tasks = tasks
        self._removals = removals
        self._settings = settings
        self._asking: dict[_Key, list[tuple[str, asyncio.Future[int]]]] = {}
        self._orders: dict[_Key, _Known] = {}

    # Places.

    async def take(self, tables: StreamTables, transaction: str) -> int:
        """Take the next position of a stream for `transaction`, and return it. Cancelled, it may have been taken.

        Raises what the write raised: `MetadataConflictError` when other controllers were faster again and again.
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

    # Who waits.

    def decided(self, tables: StreamTables, position: int, record: Versioned[ActiveTransaction]) -> None:
        """Note that the transaction with this position is COMMITTING, as `record` says."""
        known = self._orders.get(tables.key)
        if known is not None and position in known.waiting:
            known.waiting[position].record = record
            known.waiting[position].is_deciding = False

    def undecided(self, tables: StreamTables, position: int) -> None:
        """Note that what was to be decided with this position is not, or nobody knows: who commits has to look."""
        known = self._orders.get(tables.key)
        if known is not None and position in known.waiting:
            known.waiting[position].is_deciding = False

    def view(self, tables: StreamTables) -> CommitView | None:
        """Return what the next commit starts from, if it is known. It may be out of date, as its versions show."""
        known = self._orders.get(tables.key)
        return None if known is None else known.view

    def known(self, tables: StreamTables) -> dict[int, Waiting] | None:
        """Return who waits, as far as nobody else has committed meanwhile; None if that is not known."""
        known = self._orders.get(tables.key)
        return known.waiting if known is not None and known.is_complete else None

    async def waiting(self, tables: StreamTables) -> list[tuple[int, str]]:
        """Read the positions that are taken, with their transactions, in order; not those that were left."""
        known = self._orders.get(tables.key)
        before = () if known is None else tuple(known.waiting)
        order = layout.commit_order(*tables.key)
        walked = [
            (position, text)
            for position, text in await tables.commit_positions()
            if not self._removals.has(order, str(position))
        ]
        # Places that were taken meanwhile are there already: by this controller, as the order is still the same.
        if known is not None and self._orders.get(tables.key) is known:
            # Others may have merged what was known before: its records are to be read again.
            for position in before:
                known.waiting.pop(position, None)
            known.waiting = {**{position: Waiting(text) for position, text in walked}, **known.waiting}
            known.is_complete = True
        return walked

    def positions_of(self, tables: StreamTables, transactions: Iterable[str]) -> list[int]:
        """Return the positions of transactions, as far as they are known."""
        known = self._orders.get(tables.key)
        wanted = set(transactions)
        return [] if known is None else [at for at, one in known.waiting.items() if one.transaction in wanted]

    def leave(self, tables: StreamTables, positions: Iterable[int]) -> None:
        """Note that these places lead nowhere any more. Their rows go in a while."""
        left = list(positions)
        self._removals.add(layout.commit_order(*tables.key), (str(position) for position in left))
        known = self._orders.get(tables.key)
        if known is not None:
            for position in left:
                known.waiting.pop(position, None)

    def ended(self, tables: StreamTables, view: CommitView | None) -> None:
        """Note what the next commit starts from; None: it has to look."""
        known = self._orders.get(tables.key)
        if known is not None:
            known.view = view
