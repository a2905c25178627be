"""Logs in a bucket, frame by frame: what was acknowledged is in what each later incarnation reads; a roll has a seal.

`watch_logs` compares, for each container of each bucket, the addresses and contents of acknowledged frames with what a
later incarnation finds, and with what an earlier one still acknowledges afterwards. It also checks that a journal ends
only where a seal is: without one its process would have given it up for nothing.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.model.checksum import crc32c
from penstock.runtime.object_requests import CountedObjects
from penstock.runtime.objects import ObjectStore
from penstock.segmentstore.tier1.durable_log import LogFrameRun
from penstock.segmentstore.tier1.object_log.journal_format import HEADER_LENGTH, journal_key
from penstock.segmentstore.tier1.object_log.journal_writer import Append, JournalWriter
from penstock.segmentstore.tier1.object_log.object_log import ObjectLog
from penstock_simulation.mutations.mutation import watched_in_simulation
from penstock_simulation.simulated.objects import SimulatedObjects


@dataclass(slots=True)
class _Known:
    """Of one container's log. By address: epoch and checksum of acknowledged frames; and what was read last."""

    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    read_epoch: int = 0
    read_after: int = 0
    read: frozenset[int] = frozenset()

    def acknowledge(self, epoch: int, address: int, checksum: int) -> str | None:
        """Note a frame; return what is wrong with its acknowledgement."""
        self.acknowledged[address] = epoch, checksum
        if epoch < self.read_epoch and address > self.read_after and address not in self.read:
            return f"epoch {epoch} acknowledges the frame at {address:#x}, which epoch {self.read_epoch} has not read"
        return None

    def see(self, epoch: int, after: int, found: dict[int, int]) -> Iterator[str]:
        """Note what an incarnation has read after address `after`; yield what is wrong with it."""
        if any(one >= other for one, other in pairwise(found)):
            yield f"epoch {epoch} reads frames out of order"
        for address, (earlier, checksum) in self.acknowledged.items():
            if earlier >= epoch or address <= after:
                continue
            if address not in found:
                yield f"epoch {epoch} does not read the frame at {address:#x} that epoch {earlier} acknowledged"
            elif found[address] != checksum:
                yield f"epoch {epoch} reads other bytes at {address:#x} than epoch {earlier} acknowledged"
        self.acknowledged = {address: each for address, each in self.acknowledged.items() if address > after}
        if epoch > self.read_epoch:
            self.read_epoch, self.read_after, self.read = epoch, after, frozenset(found)


def _uncounted(objects: ObjectStore) -> ObjectStore:
    return objects.inner if isinstance(objects, CountedObjects) else objects


@contextmanager
def watch_logs(found: Callable[[str], None]) -> Iterator[None]:
    """Give each violation of logs in simulated buckets to `found`."""
    logs: defaultdict[tuple[int, int], _Known] = defaultdict(_Known)
    settled_original, runs_original, roll_original = ObjectLog.slot_settled, ObjectLog.frame_runs, JournalWriter._roll

    def known(log: ObjectLog) -> _Known:
        objects = _uncounted(log._process.bucket.objects)
        return logs[id(getattr(objects, "bucket", objects)), log.container_id]

    @functools.wraps(settled_original)
    def slot_settled(self: ObjectLog, slot: int, appends: Sequence[Append], began_s: float) -> None:
        for append in appends:
            append.future.add_done_callback(functools.partial(acknowledged, self, append))
        settled_original(self, slot, appends, began_s)

    def acknowledged(self: ObjectLog, append: Append, future: object) -> None:
        if append.future.cancelled() or append.future.exception() is not None:
            return
        wrong = known(self).acknowledge(self.epoch, append.future.result(), crc32c(b"".join(append.buffers), 0))
        if wrong is not None:
            found(f"container {self.container_id}: {wrong}")

    @functools.wraps(runs_original)
    async def frame_runs(self: ObjectLog) -> AsyncGenerator[LogFrameRun, None]:
        read: dict[int, int] = {}
        async with aclosing(runs_original(self)) as runs:
            async for run in runs:
                for address, data in zip(run.addresses, run.data, strict=True):
                    read[address] = crc32c(data, 0)
                yield run
        for wrong in known(self).see(self.epoch, self._recovered_truncation, read):
            found(f"container {self.container_id}: {wrong}")

    @functools.wraps(roll_original)
    async def roll(self: JournalWriter, end: int) -> None:
        objects = _uncounted(self._bucket.objects)
        if isinstance(objects, SimulatedObjects):
            stored = objects.bucket.contents.get(journal_key(self._bucket.prefix, self.journal, end))
            if stored is None or len(stored[0]) != HEADER_LENGTH:
                found(f"the journal {self.journal.hex()} ends at slot {end}, where no seal is")
        await roll_original(self, end)

    with (
        watched_in_simulation(ObjectLog, "slot_settled", slot_settled),
        watched_in_simulation(ObjectLog, "frame_runs", frame_runs),
        watched_in_simulation(JournalWriter, "_roll", roll),
    ):
        yield
