"""What only the moment shows: orders inside the segment stores that leave no trace when nothing goes wrong just then.

An attribute index must not get values that the log does not have yet. A crash in between mostly hides it again, because
the record of the index comes behind the values in the same log; that is luck, and no promise of long-term storage.

No answer may pass the check of the lease when the last confirmation of the ownership is older than the lease, by the
time that it is then, also in the rest of a turn in which the process was held.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from penstock.segmentstore.container.acceptor import OperationAcceptor
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.log.pipeline import OperationPipeline
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.container.segment import Segment
from penstock_simulation.mutations.mutation import watched_in_simulation
from penstock_simulation.simulated.loop import SimulatedLoop

#: Of the flush of attributes that is under way in this task: its pipeline, and the last operation accepted before it.
_FLUSH: ContextVar[tuple[OperationPipeline, int] | None] = ContextVar("penstock_attribute_flush", default=None)


@contextmanager
def watched(found: Callable[[str], None]) -> Iterator[None]:
    """Tell `found` of each violation meanwhile."""
    flush_original, update_original, check_original = Attributes.flush, BTreeIndex.update, OwnershipLease._check

    @functools.wraps(flush_original)
    async def flush(self: Attributes, segment: Segment) -> None:
        acceptor = getattr(self._log, "__self__", None)
        if not isinstance(acceptor, OperationAcceptor):
            await flush_original(self, segment)
            return
        token = _FLUSH.set((acceptor.pipeline, acceptor.pipeline.sequence_number))
        try:
            await flush_original(self, segment)
        finally:
            _FLUSH.reset(token)

    @functools.wraps(update_original)
    async def update(self: BTreeIndex, changes: Mapping[bytes, bytes | None], mark: bytes) -> None:
        under_way = _FLUSH.get()
        if under_way is not None:
            pipeline, number = under_way
            durable = pipeline.durable_sequence_number
            if durable < number:
                found(
                    f"container {pipeline.container_id}: {self.name} gets values of operations up to {number}, "
                    f"only those up to {durable} are durable"
                )
        await update_original(self, changes, mark)

    @functools.wraps(check_original)
    def check(self: OwnershipLease) -> None:
        check_original(self)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        age_s = loop.monotonic_s() - self._log.ownership_confirmed_s
        if age_s > self.lease_s:
            found(
                f"container {self._container_id} answers {age_s:.3f} s after the last confirmation of its ownership: "
                f"its lease is {self.lease_s:g} s"
            )

    with (
        watched_in_simulation(Attributes, "flush", flush),
        watched_in_simulation(BTreeIndex, "update", update),
        watched_in_simulation(OwnershipLease, "_check", check),
    ):
        yield
