"""A writer that writes to a stream throughout a test, as producers do while a query starts, restarts and runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.sync import Client

#: Bytes of each event, as those of the fixture `write`.
LIVE_EVENT_BYTES = 20

#: Seconds between events where batches are few events each: a run to what is there now has more of them for each event.
SLOW_S = 0.3

#: Each pause of a slow writer is so much longer than the one before: on a slow machine a run takes longer, and would
#: have more events to read, which would make it longer still.
SLOW_FACTOR = 1.1

#: Routing keys, used in turn.
LIVE_KEY_COUNT = 17


class LiveWriter:
    """Writes events to a stream from a thread, one at a time, each stored before the next, until `stop`."""

    def __init__(self, client: Client, stream: str, interval_s: float = 0.002) -> None:
        self._client, self._stream, self._interval_s = client, stream, interval_s
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"live writer of {stream}")
        #: The events stored so far, in the order written.
        self.events: list[bytes] = []

    def __enter__(self) -> LiveWriter:
        self._thread.start()
        self.wait_for(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def stop(self) -> list[bytes]:
        """Stop writing; return all events. Raises what the writer raised."""
        self._is_over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.events

    def wait_for(self, count: int, timeout_s: float = 30) -> None:
        """Wait until `count` more events are stored."""
        wanted, end_s = len(self.events) + count, time.monotonic() + timeout_s
        while len(self.events) < wanted:
            if self._failure is not None:
                raise self._failure
            assert time.monotonic() < end_s, f"{self._stream}: the live writer stored {len(self.events)} events"
            time.sleep(0.001)

    def _run(self) -> None:
        pause_s, factor = self._interval_s, SLOW_FACTOR if self._interval_s >= SLOW_S else 1.0
        try:
            with self._client.event_writer(self._stream) as writer:
                while not self._is_over.wait(pause_s):
                    pause_s *= factor
                    number = len(self.events)
                    event = b"live-%08d" % number + b"." * (LIVE_EVENT_BYTES - 13)
                    writer.write(event, routing_key=f"key-{number % LIVE_KEY_COUNT}")
                    writer.flush()
                    self.events.append(event)
        except BaseException as error:
            self._failure = error
            raise


def check_gapless(written: Sequence[bytes], seen: Iterable[bytes]) -> None:
    """Check that `seen` has no event twice, and of each routing key all that was written from its first one on.

    A cut has one place in each segment, taken at moments that may lie apart.
    """
    counts = Counter(seen)
    assert max(counts.values()) == 1
    for key in range(LIVE_KEY_COUNT):
        mine = [event in counts for event in written[key::LIVE_KEY_COUNT]]
        assert mine == sorted(mine), f"key {key}"
