"""Kills during a micro-batch, which the checkpoint proves to be running, while its processes are stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.quickstart.driver_process import POLL_INTERVAL_S, DriverProcess
from penstock.quickstart.errors import QueryFailedError
from penstock.quickstart.query import QUERY_TIMEOUT_S, PassResult

if TYPE_CHECKING:
    from penstock import Client

#: So many micro-batches go by for one in which the sink has begun to write; then any will do.
BATCHES_WAITED_MAX = 2


@dataclass(slots=True)
class Kill:
    """Something that was killed while a micro-batch was under way.

    Attributes:
        victim: `store` or `driver`.
        process_count: processes that were killed.
        batch: number of the micro-batch.
        open_count: transactions of the sink that were neither committed nor aborted then.
        event_count: events that earlier micro-batches had read.
        back_s: until it had been started again.
        done_s: until the micro-batch was done; 0 while it is not. Both from the kill on.
    """

    victim: str
    process_count: int
    batch: int
    open_count: int
    event_count: int
    back_s: float = 0.0
    done_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Midst:
    """A micro-batch that is under way, and held: Spark has noted that it began, and not that it ended."""

    batch: int
    open_count: int


class Checkpoint:
    """The part of a query's checkpoint that says which micro-batches began and which are done."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def under_way(self) -> int | None:
        """Return the number of the micro-batch that has begun and is not done, if there is one."""
        names = [path.name for path in (self.directory / "offsets").glob("[0-9]*")]
        begun = max((int(name) for name in names if name.isdigit()), default=None)
        return None if begun is None or (self.directory / "commits" / str(begun)).exists() else begun


class QueryWatch:
    """Follows a query from driver to driver.

    Args:
        client: of the store, while that is up.
        stream: that the sink writes to.
        on_progress: gets what the driver of now has done.
    """

    def __init__(
        self, client: Client, stream: str, checkpoint: Checkpoint, on_progress: Callable[[PassResult], None],
        timeout_s: float = QUERY_TIMEOUT_S,
    ) -> None:  # fmt: skip
        self._client = client
        self._stream = stream
        self._checkpoint = checkpoint
        self._on_progress = on_progress
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s

    def until_done(self, driver: DriverProcess) -> None:
        """Wait for the end of the query. Raises `QueryFailedError`, `SparkStartError`."""
        self._until(driver, lambda progress: False)

    def until_batch_done(self, driver: DriverProcess, batch: int) -> bool:
        """Wait until a micro-batch is done. False: the query is. Errors as `until_done`."""
        return self._until(driver, lambda progress: progress.last_batch >= batch)

    def until_midst(self, driver: DriverProcess, event_count: int) -> Midst | None:
        """Wait for a running micro-batch after `event_count` events, and stop the driver during it.

        One in which the sink has begun to write, if one of the next is. All that the driver has done before is
        reported. None: the query is done.

        Raises:
            QueryFailedError, SparkStartError, ProcessTreeError.
        """
        first: int | None = None
        held: Midst | None = None

        def is_held(progress: PassResult) -> bool:
            nonlocal first, held
            batch = self._checkpoint.under_way()
            if progress.event_count < event_count or batch is None or progress.last_batch < batch - 1:
                return False
            first = batch if first is None else first
            if not self._open_count() and batch < first + BATCHES_WAITED_MAX:
                return False
            driver.hold()
            # Nothing moves: so what is true now stays so.
            if self._checkpoint.under_way() == batch:
                held = Midst(batch, self._open_count())
                return True
            driver.resume()
            return False

        return held if self._until(driver, is_held) else None

    def _until(self, driver: DriverProcess, is_reached: Callable[[PassResult], bool]) -> bool:
        """Follow until something is reached; False: the query ended before."""
        while True:
            progress = driver.poll()
            self._on_progress(progress)
            if is_reached(progress):
                return True
            if driver.is_done:
                return False
            if time.monotonic() > self._deadline_s:
                raise QueryFailedError(
                    f"the query was not done after {self._timeout_s:g} s (QUERY_TIMEOUT_S): on a busy machine try "
                    "again later, or with fewer flights (--limit)"
                )
            time.sleep(POLL_INTERVAL_S)

    def _open_count(self) -> int:
        return len(list(self._client.open_transactions(self._stream)))
