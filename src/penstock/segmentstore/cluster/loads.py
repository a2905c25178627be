"""`LoadReporter`: reports what a segment store does in ``loads/<name>``, and whether it is impaired.

The report is the basis of moves for load; a report that is missing or late only delays these. It also says for how
long the log has not answered: before a store is impaired, the leader gives it no containers of others. An impaired
store says so in its node in ``hosts``, which the leader watches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.model.cluster_nodes import LOADS_PATH, LOG_PROBLEM_S_MAX, ContainerLoad, LoadNode, encode_node
from penstock.model.errors import PenstockError
from penstock.model.errors.coordination import CoordinationError, NoSuchNodeError
from penstock.runtime.coordination import CreateNode, DeleteNode, Session, ensure_node
from penstock.runtime.kept_session import KeptSession
from penstock.segmentstore.cluster.impairment import Impairment
from penstock.segmentstore.cluster.settings import MemberSettings
from penstock.segmentstore.store import SegmentStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ContainerCounts:
    """Counts of one incarnation of a container since its start; `epoch` names the incarnation."""

    epoch: int
    bytes_in: int = 0
    bytes_out: int = 0
    operations_in: int = 0
    operations_out: int = 0
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Counts of a store.

    Attributes:
        cpu_s: CPU time of the thread of its event loop, so far.
        containers: those that serve, by id.
        log_problem_s: for how long its log has not answered; 0: it has.
        own_failures: containers that failed for lack of resources of the process, so far.
    """

    cpu_s: float
    containers: Mapping[int, ContainerCounts] = field(default_factory=dict)
    log_problem_s: float = 0.0
    own_failures: int = 0


class LoadSource(Protocol):
    """Where the counts come from."""

    def counts(self) -> StoreCounts:
        """Return the present counts. Does not wait."""

    async def check_log(self) -> None:
        """Return when the log has answered. Raises `PenstockError`; may wait without a limit."""


class StoreLoads:
    """`LoadSource` of a `SegmentStore`."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store

    def counts(self) -> StoreCounts:
        """See `LoadSource.counts`."""
        now_s = asyncio.get_running_loop().time()
        containers = self._store.containers
        return StoreCounts(
            cpu_s=self._store.runtime.cpu_s(),
            containers={
                each.id: ContainerCounts(
                    each.epoch,
                    each.pipeline.logged_bytes,
                    each.reader.read_bytes,
                    each.pipeline.sequence_number,
                    each.reader.read_count,
                    each.checkpoints.log_bytes,
                )
                for each in containers
            },
            log_problem_s=max((each.log_problem_s(now_s) for each in containers), default=0.0),
            own_failures=self._store.monitor.own_failure_count,
        )

    async def check_log(self) -> None:
        """See `LoadSource.check_log`."""
        await self._store.check_log()


class LoadReporter:
    """See the module. `on_changed` is called when `impaired` has changed, `on_silent` at each check of a silent log.

    Attributes:
        impaired: why the store is impaired; empty: it is not.
        is_log_silent: whether it is impaired because its log does not answer.
    """

    def __init__(
        self,
        source: LoadSource,
        sessions: KeptSession,
        settings: MemberSettings,
        *,
        name: str,
        on_changed: Callable[[], None],
        on_silent: Callable[[], None],
    ) -> None:
        self.impaired: str = ""
        self.is_log_silent: bool = False
        self._source = source
        self._sessions = sessions
        self._settings = settings
        self._name = name
        self._path = f"{LOADS_PATH}/{name}"
        self._on_changed = on_changed
        self._on_silent = on_silent
        self._impairment = Impairment(settings)
        self._reported: tuple[float, StoreCounts] | None = None
        self._has_log_problem = False
        #: Since when the log has not answered checks that were made while no container was open.
        self._unanswered_since_s: float | None = None

    async def run(self) -> None:
        """Check and report, until cancelled."""
        loop = asyncio.get_running_loop()
        report_s = loop.time()
        while True:
            counts = self._source.counts()
            problem_s = counts.log_problem_s
            if counts.containers:
                self._unanswered_since_s = None
            elif loop.time() >= report_s:
                # No append shows whether the log is well.
                await self._check_log()
            if self._unanswered_since_s is not None:
                problem_s = loop.time() - self._unanswered_since_s
            self._impairment.note(loop.time(), log_problem_s=problem_s, own_failures=counts.own_failures)
            has_changed = bool(self._impairment.reason) != bool(self.impaired)
            if has_changed or self._impairment.is_log_silent != self.is_log_silent:
                self._log_change()
                report_s = loop.time()
            if (problem_s > LOG_PROBLEM_S_MAX) != self._has_log_problem:
                self._has_log_problem = not self._has_log_problem
                report_s = loop.time()
            if self.is_log_silent:
                self._on_silent()
            if loop.time() >= report_s:
                await self._report(loop.time(), counts, problem_s)
                report_s = loop.time() + self._settings.load_interval_s
            await asyncio.sleep(self._settings.check_s)

    async def _check_log(self) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._settings.check_s):
                await self._source.check_log()
        except (TimeoutError, PenstockError, OSError) as error:
            _log.info("store %s: its log does not answer: %r", self._name, error)
            if self._unanswered_since_s is None:
                self._unanswered_since_s = began_s
        else:
            self._unanswered_since_s = None

    def _log_change(self) -> None:
        self.impaired, self.is_log_silent = self._impairment.reason, self._impairment.is_log_silent
        if self.impaired:
            _log.warning("store %s is impaired, other stores get its containers: %s", self._name, self.impaired)
        else:
            _log.warning("store %s is not impaired any more", self._name)
        self._on_changed()

    async def _report(self, now_s: float, counts: StoreCounts, problem_s: float) -> None:
        content = load_node(self._reported, now_s, counts, problem_s)
        self._reported = (now_s, counts)
        store = self._sessions.store
        if store is None or store.session is not Session.CONNECTED:
            return
        try:
            try:
                found = await store.get(self._path)
            except NoSuchNodeError:
                await ensure_node(store, LOADS_PATH)
                await store.create(self._path, encode_node(content), is_ephemeral=True)
                return
            if found.owner == store.session_id:
                await store.set(self._path, encode_node(content))
            else:
                # Of an earlier session or process of this name: it would be deleted with that session.
                await store.multi(
                    [DeleteNode(self._path), CreateNode(self._path, encode_node(content), is_ephemeral=True)]
                )
        except CoordinationError as error:
            _log.debug("store %s: its load is not reported: %s", self._name, error)


def load_node(
    before: tuple[float, StoreCounts] | None, now_s: float, counts: StoreCounts, problem_s: float
) -> LoadNode:
    """Return the report of what happened since `before`: a time and the counts then; None: nothing is known of it.

    A container that was opened since counts from its start.
    """
    if before is None or now_s <= before[0]:
        containers = {number: ContainerLoad(log_bytes=each.log_bytes) for number, each in counts.containers.items()}
        return LoadNode(busy=0.0, containers=containers, log_problem_s=problem_s)
    elapsed_s = now_s - before[0]
    loads: dict[int, ContainerLoad] = {}
    for number, each in counts.containers.items():
        first = before[1].containers.get(number)
        if first is None or first.epoch != each.epoch:
            # Sequence numbers continue those of the previous incarnation.
            first = ContainerCounts(each.epoch, operations_in=each.operations_in)
        loads[number] = ContainerLoad(
            bytes_in=round((each.bytes_in - first.bytes_in) / elapsed_s, 1),
            bytes_out=round((each.bytes_out - first.bytes_out) / elapsed_s, 1),
            operations_in=round((each.operations_in - first.operations_in) / elapsed_s, 1),
            operations_out=round((each.operations_out - first.operations_out) / elapsed_s, 1),
            log_bytes=each.log_bytes,
        )
    busy = min(max((counts.cpu_s - before[1].cpu_s) / elapsed_s, 0.0), 1.0)
    return LoadNode(busy=round(busy, 3), containers=loads, log_problem_s=round(problem_s, 1))
