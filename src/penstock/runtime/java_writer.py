"""`JavaWriter`: the writer of one ledger over a handle of BookKeeper's Java client."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from penstock.model.errors.ledgers import LedgerError, ledger_error
from penstock.runtime.bookkeeper_errors import java_error
from penstock.runtime.entry_sender import EntrySender, take_batch
from penstock.runtime.ledgers import LedgerEntry, LedgerObserver, LedgerQuorum

#: From so many batches in flight on, their outcomes are passed to the event loop in about so many groups: a turn of it
#: costs as much as tens of outcomes. The time of an append grows by an eighth in the mean.
_GROUPED_MIN = 32
_GROUPS_IN_FLIGHT = 4


class JavaWriter:
    """`LedgerWriter` over a handle of the Java client. Made in a thread of the pool.

    Three threads work on it. The event loop's queues entries. The sender's hands them to Java in batches, and queues
    the future of the last entry of each batch. The writer's own waits for these futures, and passes outcomes to the
    event loop, those of a deep pipeline in groups. Both queues are bounded by the bytes in flight that the caller
    permits.

    JPype examines each class of Java when it is first used, which takes long: all that the event loop's thread uses
    later is used here once. `java_exception`: what calls of Java raise.
    """

    def __init__(
        self,
        handle: Any,
        quorum: LedgerQuorum,
        observer: LedgerObserver,
        loop: asyncio.AbstractEventLoop,
        sender: EntrySender,
        close_handle: Callable[[], Awaitable[None]],
        java_exception: type[BaseException],
    ) -> None:
        self._handle = handle
        self._java_error = java_exception
        self._observer = observer
        self._loop = loop
        self._sender = sender
        self._close_handle = close_handle
        self._quorum = quorum
        self._ledger_id = int(handle.getId())
        #: Written by the event loop's thread only.
        self._is_over = False
        _ = self.bookies
        #: Entries that are not sent, and whether the sender will take them. It clears the mark before it takes any.
        self._pending: deque[LedgerEntry] = deque()
        self._is_woken = False
        #: Written by the sender's thread only. An entry after one that was not sent would get its number.
        self._has_failed = False
        #: Futures of the last entries of batches, in their order; None ends the thread.
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._drain, name=f"ledger {self._ledger_id}", daemon=True).start()

    @property
    def ledger_id(self) -> int:
        """See `LedgerWriter.ledger_id`."""
        return self._ledger_id

    @property
    def quorum(self) -> LedgerQuorum:
        """See `LedgerWriter.quorum`."""
        return self._quorum

    @property
    def bookies(self) -> Collection[str]:
        """See `LedgerWriter.bookies`."""
        return tuple(str(each) for each in self._handle.getLedgerMetadata().getAllEnsembles().lastEntry().getValue())

    def append(self, entry: LedgerEntry) -> None:
        """See `LedgerWriter.append`."""
        if self._is_over:
            raise ledger_error(-11, f"ledger {self._ledger_id} is closed")
        self._pending.append(entry)
        if not self._is_woken:
            self._wake()

    def send_batch(self) -> None:
        """See `EntrySource.send_batch`."""
        self._is_woken = False
        if self._is_over or self._has_failed:
            self._pending.clear()
            return
        batch = take_batch(self._pending)
        if not batch:
            return
        try:
            self._answers.put(self._sender.send(self._handle, batch))
        except self._java_error as error:
            self._fail(java_error(error))
        except LedgerError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - ends this ledger
            # The thread continues with other ledgers.
            self._fail(ledger_error(-999, f"entries of ledger {self._ledger_id} were not sent: {error!r}"))
        if self._pending:
            self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._sender.wake(self)

    def _fail(self, error: LedgerError) -> None:
        """Send nothing more, in the sender's thread: which entries of the batch were sent is unknown."""
        self._has_failed = True
        self._tell(-1, error)

    def _drain(self) -> None:
        """Wait for answers, and pass each run of them to the event loop, in a thread of its own."""
        answers = self._answers
        following = answers.get()
        while following is not None:
            last, failure = -1, None
            group = self._group(following)
            try:
                last = int(group[-1].get())
                following = None
                while following is None:
                    following = answers.get_nowait()
                    if following is None or not following.isDone():
                        break
                    last = int(following.get())
                    following = None
                is_over = following is None
            except queue.Empty:
                is_over = False
            except self._java_error as error:
                failure, is_over = java_error(error), True
                last = max(last, _last_confirmed(group))
            if not self._tell(last, failure) or is_over:
                return
            if following is None:
                following = answers.get()

    def _group(self, first: Any) -> list[Any]:
        """Return `first` and the futures after it whose outcomes are passed on together. They complete in order."""
        waiting_count = self._answers.qsize()
        if waiting_count < _GROUPED_MIN:
            return [first]
        # The None at the end of the queue stays there.
        return [first, *(self._answers.get_nowait() for _ in range(waiting_count // _GROUPS_IN_FLIGHT))]

    def _tell(self, last: int, failure: LedgerError | None) -> bool:
        """Pass outcomes to the event loop; return False if it is closed."""
        try:
            self._loop.call_soon_threadsafe(self._settled, last, failure)
        except RuntimeError:
            return False
        return True

    def _settled(self, last: int, failure: LedgerError | None) -> None:
        if self._is_over:
            return
        if last >= 0:
            self._observer.confirmed(last)
        if failure is not None and not self._is_over:
            self._end()
            self._observer.failed(failure)

    def _end(self) -> None:
        """Send nothing more."""
        self._is_over = True
        self._wake()

    async def close(self) -> None:
        """See `LedgerWriter.close`."""
        is_first = not self._is_over
        self._end()
        try:
            await self._close_handle()
        finally:
            self._answers.put(None)
            if is_first:
                self._observer.failed(ledger_error(-11, f"ledger {self._ledger_id} was closed"))


def _last_confirmed(futures: list[Any]) -> int:
    """Return the last entry of those futures that have completed without an error; -1: none has."""
    for future in reversed(futures):
        if future.isDone() and not future.isCompletedExceptionally():
            return int(future.get())
    return -1
