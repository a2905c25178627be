"""`CommitPositions`: places in the commit order of streams, for many transactions with one write."""

from __future__ import annotations

import asyncio

from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import BackgroundTasks
from penstock.model.errors import ControllerUnavailableError, PenstockError


class CommitPositions:
    """Those who ask while a write of the same stream is under way share the next one, in the order of asking.

    So commits at the same moment do not conflict with each other, and a thousand of them cost ten writes.
    """

    def __init__(self, tasks: BackgroundTasks, settings: ControllerSettings) -> None:
        self._tasks = tasks
        self._settings = settings
        self._waiting: dict[tuple[str, str, str], list[tuple[str, asyncio.Future[int]]]] = {}

    async def take(self, tables: StreamTables, transaction: str) -> int:
        """Take the next position of a stream for `transaction`, and return it. Cancelled, it may have been taken.

        Raises what the write raised: `MetadataConflictError` when other controllers were faster again and again.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(tables.key)
        if waiting is not None:
            waiting.append((transaction, future))
        else:
            self._waiting[tables.key] = [(transaction, future)]
            self._tasks.start(f"commit positions of {tables.name}", self._serve(tables))
        return await future

    async def _serve(self, tables: StreamTables) -> None:
        waiting = self._waiting[tables.key]
        count_max = self._settings.commit_positions_max
        try:
            while waiting:
                batch = waiting[:count_max]
                names = [transaction for transaction, _ in batch]
                try:
                    first = await tables.take_commit_positions(names, self._settings.conflict_attempts_max)
                except PenstockError as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for index, (_, future) in enumerate(batch):
                        if not future.done():
                            future.set_result(first + index)
                del waiting[: len(batch)]
        finally:
            del self._waiting[tables.key]
            for _, future in waiting:
                if not future.done():
                    future.set_exception(ControllerUnavailableError("the controller is stopping"))
