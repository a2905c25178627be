"""`IngestControl`: decides when the socket of one connection is read.

It is read while the connection's incoming data fit in the budget of the process (`IngestBudget`) and in the window of
the connection (`IngestWindow`), and nothing else forbids it. Requests that wait unread behind appends wait at most
`read_delay_s_max`: then the writers of those appends get WrongHost, and the socket is read beyond the budget until
everything that was in the receive queue has been read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.segmentstore.append_processor import AppendProcessor
from penstock.segmentstore.ingest_budget import IngestBudget
from penstock.segmentstore.ingest_window import IngestWindow
from penstock.segmentstore.settings import ConnectionSettings

_log = logging.getLogger(__name__)


class IngestControl:
    """See the module.

    Args:
        budget: of all connections.
        window_bytes_min: returns the minimum bytes in flight that each connection may have.
        sync_s: returns the recent duration of a sync of the log.
        appends: its writers are reset when they block other requests.
        may_read: returns whether nothing except incoming data forbids reading.
        resumed: called before the socket is read again.

    Attributes:
        settings: those of the connection.
        outstanding_bytes: bytes of unfinished requests.
        frame_bytes: memory of partly received frames.
        received_bytes: bytes received so far.
        is_reading: whether the socket is read.
        is_closed: set when the connection sends nothing further; then reading does not change.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        loop: asyncio.AbstractEventLoop,
        budget: IngestBudget,
        *,
        window_bytes_min: Callable[[], int],
        sync_s: Callable[[], float],
        appends: AppendProcessor,
        may_read: Callable[[], bool],
        resumed: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.outstanding_bytes: int = 0
        self.frame_bytes: int = 0
        self.received_bytes: int = 0
        self.is_reading: bool = True
        self.is_closed: bool = False
        self._loop = loop
        self._budget = budget
        self._window_bytes_min = window_bytes_min
        self._sync_s = sync_s
        self._appends = appends
        self._may_read = may_read
        self._resumed = resumed
        self._transport: asyncio.Transport
        self._is_lost = False
        self._window = IngestWindow(
            settings.ingest_window_bytes_min, settings.unacknowledged_bytes_max, settings.ingest_wait_s
        )
        #: Runs while the window is full: bytes that are old when it fires are excluded from the window.
        self._window_timer: asyncio.TimerHandle | None = None
        #: Ignore the budget until the connection holds less than its share: its writers got WrongHost.
        self._reads_on = False
        self._reads_on_since_bytes = self._reads_on_outstanding_bytes = 0
        #: Runs while requests may wait behind unread appends; ends when what was there then has been read.
        self._delay_timer: asyncio.TimerHandle | None = None
        self._delayed_through_bytes = 0
        self._resumed_at_bytes = 0

    def open(self, transport: asyncio.Transport) -> None:
        """Control the reading of a socket."""
        self._transport = transport

    def close(self) -> None:
        """Stop the timers and release everything counted: the connection is lost."""
        self.is_closed = True
        self._end_delay()
        if self._window_timer is not None:
            self._window_timer.cancel()

    def release(self) -> None:
        """Release everything counted. What requests release later is ignored."""
        budget = self._budget
        budget.busy_count -= self.outstanding_bytes > 0
        budget.add_requests(-self.outstanding_bytes)
        budget.add_frames(-self.frame_bytes)
        self.outstanding_bytes = self.frame_bytes = 0
        budget.forget(self)
        self._is_lost = True
        # They refer to the connection, which refers to this: the memory of both is freed without a collection.
        del self._appends, self._may_read, self._resumed, self._transport

    @property
    def room_bytes(self) -> int:
        """Bytes to read next: the room in the window, with a minimum."""
        return max(self._window.limit_bytes - self.outstanding_bytes, self._window_bytes_min())

    def note_received(self, byte_count: int, *, is_buffer_full: bool) -> None:
        """Count received bytes. A receive buffer that is not full means that the receive queue is empty."""
        self.received_bytes += byte_count
        if self._delay_timer is not None and (not is_buffer_full or self.received_bytes >= self._delayed_through_bytes):
            self._end_delay()

    def note_outstanding(self, byte_count: int) -> None:
        """Count bytes of requests that arrived (positive) or are done (negative)."""
        if self._is_lost:
            return  # All of it was already released.
        budget = self._budget
        budget.busy_count -= self.outstanding_bytes > 0
        self.outstanding_bytes += byte_count
        budget.busy_count += self.outstanding_bytes > 0
        budget.add_requests(byte_count)
        if byte_count > 0:
            self._window.take(byte_count, self._loop.time())
        else:
            self._window.finish(-byte_count)
        if byte_count > 0 or not self.is_reading or self._reads_on:
            self.review()

    def note_frames(self, byte_count: int) -> None:
        """Set the memory of partly received frames."""
        if byte_count == self.frame_bytes:
            return
        self._budget.add_frames(byte_count - self.frame_bytes)
        self.frame_bytes = byte_count
        self.review()

    def review(self) -> None:
        """See `Contributor.review`: read the socket exactly while there is room for incoming data."""
        if self.is_closed:
            return
        held_bytes = self.outstanding_bytes + self.frame_bytes
        # A partly received frame can only be completed by reading: the window does not count it.
        has_room = self._budget.lets_read(self, held_bytes) and self._is_within_window(self.outstanding_bytes)
        if has_room:
            if self._reads_on:
                self._reads_on = False
                self._appends.resume_writers()
        elif self._reads_on:
            if self._has_read_enough():
                self._reads_on = False
                self._begin_delay()
        elif self._delay_timer is None:
            self._begin_delay()
        should_read = (has_room or self._reads_on) and self._may_read()
        if should_read == self.is_reading:
            return
        self.is_reading = should_read
        if should_read:
            self._resumed_at_bytes = self.received_bytes
            self._resumed()
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _is_within_window(self, under_way_bytes: int) -> bool:
        window, now_s = self._window, self._loop.time()
        if window.is_round_over(now_s):
            window.bytes_min = self._window_bytes_min()
            window.turn(now_s, self._sync_s())
        limit_bytes = window.limit_bytes
        if under_way_bytes <= (limit_bytes if self.is_reading else limit_bytes * 3 // 4):
            return True
        if self._window_timer is None:
            self._window_timer = self._loop.call_later(window.round_s_max, self._review_window)
        return False

    def _review_window(self) -> None:
        self._window_timer = None
        if not self.is_reading or self._reads_on:
            self.review()

    def _has_read_enough(self) -> bool:
        """Whether everything queued behind the appends was read, and new data fill memory, too."""
        room = self.settings.receive_buffer_bytes
        return (
            self.received_bytes - self._reads_on_since_bytes > 2 * room
            and self.outstanding_bytes - self._reads_on_outstanding_bytes > room
        )

    def _begin_delay(self) -> None:
        """Bound the time that data now in the receive queue may wait."""
        # The kernel reserves twice this number.
        self._delayed_through_bytes = self.received_bytes + 2 * self.settings.receive_buffer_bytes
        self._delay_timer = self._loop.call_later(self.settings.read_delay_s_max, self._delay_is_over)

    def _end_delay(self) -> None:
        if self._delay_timer is not None:
            self._delay_timer.cancel()
            self._delay_timer = None

    def _delay_is_over(self) -> None:
        """Give up the appends that block the connection's other requests, and resume reading."""
        self._delay_timer = None
        if self.is_closed or (self.is_reading and self.received_bytes == self._resumed_at_bytes):
            return  # Reading has resumed, and nothing was in the receive queue.
        count = self._appends.reset_writers()
        _log.info(
            "reset %d writers of %s: no append of theirs could be accepted for %g s",
            count,
            self._transport.get_extra_info("peername"),
            self.settings.read_delay_s_max,
        )
        self._reads_on = True
        self._reads_on_since_bytes = self.received_bytes
        self._reads_on_outstanding_bytes = self.outstanding_bytes
        self.review()
