"""`LedgeredCopy`: events of any source, written into a stream exactly once, in portions, across any number of restarts.

Each portion is a batch of the Spark sink's protocol (``docs/exactly-once.md``), with one task. The note of its row in
the ledger has the start and the end of the portion in the source: the intent records transaction and position in one
write. A portion whose intent is found is read and written again; if the earlier transaction was aborted the new one is
committed, otherwise the earlier one is committed and the new one aborted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    LaterVersionError,
    PenstockError,
    StreamSealedError,
)
from penstock.spark.errors import BatchOvertakenError
from penstock.spark.exactly_once import BatchIdentity, SinkBatch, SinkLimits, SinkTask, by_stream
from penstock.spark.ledger import BatchState, Ledger, LedgerRow, SinkIdentity, create_ledger

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.aio import Client

T = TypeVar("T")

NOTE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Portion:
    """Some events of a source, in order.

    Attributes:
        keys: the routing key of each; None: they have none.
        position: where the next portion begins, in the source's own format.
        length_bytes: as counted by the source.
    """

    events: pa.Array | Sequence[bytes]
    keys: pa.Array | Sequence[str] | None
    position: str
    length_bytes: int


class PortionSource(Protocol):
    """The source of a copy. The same position gives the same events, now and after a restart."""

    #: The parameters of the source, as a text; a job of the same name continues only with equal parameters.
    plan: str

    def portion(self, position: str | None) -> Portion | None:
        """Return the portion at a position (None: at the beginning); None: the end is reached."""


@dataclass(slots=True)
class CopyReport:
    """What a run has copied itself."""

    event_count: int = 0
    length_bytes: int = 0
    commit_count: int = 0


class Pace:
    """A rate limit; 0: no limit. A delay is caught up with."""

    def __init__(self, events_per_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        self._events_per_s = events_per_s
        self._bytes_per_s = bytes_per_s
        self._begin_s = time.monotonic()

    def wait(self, report: CopyReport) -> None:
        """Return when this amount may have been copied."""
        due_s = self._begin_s
        if self._events_per_s:
            due_s = max(due_s, self._begin_s + report.event_count / self._events_per_s)
        if self._bytes_per_s:
            due_s = max(due_s, self._begin_s + report.length_bytes / self._bytes_per_s)
        time.sleep(max(due_s - time.monotonic(), 0.0))


class Caller(Protocol):
    """Runs a coroutine of a client to its end, as `penstock.cli.session.Session.call`."""

    def __call__(self, coroutine: Coroutine[object, object, T], /) -> T:
        """Return its result, or raise its error."""


class LedgeredCopy:
    """See the module.

    Args:
        call: runs coroutines of `client`.
        name: of the job: a stopped job continues under its name, a finished one does nothing.
        target: the stream, ``scope/stream``.
        visible_s: how long it waits until the events of a portion can be read.
    """

    def __init__(
        self, call: Caller, client: Client, name: str, target: str, source: PortionSource, *, visible_s: float = 120.0
    ) -> None:
        self._call = call
        self._client = client
        self._sink = _sink(name, target)
        self._name = name
        self._source = source
        self._limits = SinkLimits(visible_s=visible_s)
        self.report: CopyReport = CopyReport()

    def run(self, pace: Pace, note: Callable[[CopyReport], None]) -> None:
        """Copy until the source is exhausted; call `note` after each portion.

        Raises `InvalidArgumentError`: a job of this name has another plan; and the errors of writing exactly once.
        """
        while self._step():
            note(self.report)
            pace.wait(self.report)

    def _step(self) -> bool:
        """Copy one portion; False: there is none left."""
        row = self._call(_read_row(self._client, self._sink))
        batch, position = 0, None
        if row.state is not BatchState.NONE:
            plan, before, behind = _noted(row)
            if plan != self._source.plan:
                raise InvalidArgumentError(
                    f"job {self._name!r} into {self._sink.target} was started with another plan, {plan}: give this "
                    "job another name"
                )
            is_done = row.state is BatchState.DONE
            batch, position = (row.batch + 1, behind) if is_done else (row.batch, before)
        portion = self._source.portion(position)
        if portion is None:
            return False
        note = {"v": NOTE_VERSION, "plan": self._source.plan, "before": position, "behind": portion.position}
        identity = BatchIdentity(self._sink, batch)
        try:
            is_own = self._call(self._write(identity, portion, json.dumps(note, separators=(",", ":"))))
        except BatchOvertakenError:
            # Another job of the same name is ahead, and has written this portion.
            return True
        if is_own:
            self.report.event_count += len(portion.events)
            self.report.length_bytes += portion.length_bytes
            self.report.commit_count += 1
        return True

    async def _write(self, identity: BatchIdentity, portion: Portion, note: str) -> bool:
        """Write a batch into the stream exactly once; False: another run has written it."""
        task = SinkTask(self._client, identity, self._limits)
        await task.begin()
        try:
            await task.write(self._sink.target, portion.events, portion.keys)
            transactions = by_stream([await task.prepare()])
        except Exception:
            await task.abort()
            raise
        ended = SinkBatch(self._client, identity, transactions, self._limits, note=note)
        try:
            await ended.commit()
        except PenstockError as error:
            try:
                await ended.abort()
            except PenstockError as second:
                error.add_note(f"and the prepared transactions stay until their limit ends: {second}")
            raise
        row = await _read_row(self._client, self._sink)
        return dict(row.transactions) == transactions


async def open_job(client: Client, name: str, target: str) -> str | None:
    """Create the ledger if missing; return the plan with which a job of this name was started, None if there is none.

    Raises `NoSuchStreamError`, `StreamSealedError`: the target cannot be written.
    """
    if not await client.segments_of(target):
        raise StreamSealedError(f"stream {target} is sealed and takes no more events")
    await create_ledger(client, target)
    row = await _read_row(client, _sink(name, target))
    return None if row.state is BatchState.NONE else _noted(row)[0]


def _sink(name: str, target: str) -> SinkIdentity:
    return SinkIdentity(f"job {name}", target)


async def _read_row(client: Client, sink: SinkIdentity) -> LedgerRow:
    ledger = await Ledger.open(client, sink)
    try:
        return (await ledger.read())[0]
    finally:
        await ledger.close()


def _noted(row: LedgerRow) -> tuple[str, str | None, str]:
    try:
        fields = json.loads(row.note)
        if fields["v"] > NOTE_VERSION:
            raise LaterVersionError(f"the note of {row.sink}", found=int(fields["v"]), known=NOTE_VERSION)
        before = fields["before"]
        return str(fields["plan"]), None if before is None else str(before), str(fields["behind"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"the ledger's row of {row.sink}", 0, f"its note is none of a job: {error!r}") from error
