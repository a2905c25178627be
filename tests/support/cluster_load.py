"""`Load`: a writer of events that runs all the time, and `check_events`: all of them are there, once, in order.

``python -m support.cluster_load URI`` does both, with the client of the Penstock that it finds: it writes until the end
of its standard input, and prints the number of events that were read back.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict

import penstock
from support.cluster_processes import WAIT_S

STREAM = "shop/orders"
KEYS = 7


class Load:
    """Writes events until `stop`, and notes which were acknowledged. An event is its key and a number."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._is_stopping = threading.Event()
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        with penstock.connect(self._uri) as client:
            client.create_stream(STREAM, scaling=penstock.Scaling.fixed(3))
        self._thread.start()

    def _run(self) -> None:
        try:
            with penstock.connect(self._uri) as client, client.event_writer(STREAM) as writer:
                number = 0
                while not self._is_stopping.is_set():
                    for _ in range(20):
                        writer.write(b"%d %08d" % (number % KEYS, number), routing_key=str(number % KEYS))
                        number += 1
                    writer.flush(timeout_s=WAIT_S)
                    self.acknowledged = number
                    time.sleep(0.005)
        except BaseException as error:  # noqa: BLE001  # the test reports it
            self.error = error

    def wait_for_more(self) -> None:
        """Wait until events of all keys were acknowledged that were written after this call."""
        wanted = self.acknowledged + 10 * KEYS + 40
        deadline_s = time.monotonic() + WAIT_S
        while self.acknowledged < wanted:
            assert self.error is None, self.error
            assert time.monotonic() < deadline_s, f"{self.acknowledged} events only"
            time.sleep(0.02)

    def stop(self) -> int:
        """Stop; return the number of events, all acknowledged."""
        self._is_stopping.set()
        self._thread.join(WAIT_S)
        assert self.error is None, self.error
        return self.acknowledged


def check_events(uri: str, count: int) -> None:
    """Check that all events are there, once, in the order of their keys."""
    found: dict[int, list[int]] = defaultdict(list)
    with penstock.connect(uri) as client, client.batch(STREAM) as batch:
        for part in batch.ranges:
            for event in batch.events(part):
                key, number = bytes(event.data).split()
                found[int(key)].append(int(number))
    assert {key: len(each) for key, each in found.items()} == {key: len(range(key, count, KEYS)) for key in range(KEYS)}
    for one, numbers in found.items():
        assert numbers == list(range(one, count, KEYS)), f"events of key {one}"


def _main(uri: str) -> None:
    load = Load(uri)
    load.start()
    load.wait_for_more()
    sys.stdout.write(f"{penstock.__file__}\n")
    sys.stdout.flush()
    sys.stdin.read()
    count = load.stop()
    check_events(uri, count)
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    _main(sys.argv[1])
