"""`TransactionalTails`: the end of a stream, with each transaction entirely before it or entirely after it.

Transactions are merged segment by segment, so lengths read meanwhile may lie between two merges of one transaction. The
record of the transactions being merged is written before the first merge and cleared after the last, and each change
gives it a new version. So the record must be empty, then the lengths are read, then the record again: if its version is
unchanged, nothing was merged in between. Otherwise the reads are repeated while no workflow runs on the stream.
"""

from __future__ import annotations

from penstock.controller.errors import HalfCreatedStreamError, WorkElsewhereError
from penstock.controller.metadata.pending_work import Subject, SubjectKind
from penstock.controller.metadata.records import StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.queries import check_not_empty
from penstock.controller.workflow_runner import WorkflowRunner
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import NoSuchSegmentError
from penstock.model.names import segment_name


class TransactionalTails:
    """See the module."""

    def __init__(self, context: WorkflowContext, runner: WorkflowRunner) -> None:
        self._context = context
        self._runner = runner

    async def of(self, scope: str, stream: str) -> dict[int, int]:
        """Return a cut, by segment id, after everything that was acknowledged or merged at the time of the call.

        Two reads and the lengths; during commits it waits for its turn, up to `workflow_timeout_s`. Raises
        `NoSuchStreamError`, `HalfCreatedStreamError`; `WorkElsewhereError` and `WorkflowTimeoutError` when transactions
        are merged continuously, or cannot be.
        """
        check_not_empty(scope, stream)

        async def read() -> dict[int, int] | None:
            return await self._context.catalog.on_stream(scope, stream, self._read_tails)

        async def read_alone() -> dict[int, int]:
            found = await read()
            if found is None:
                raise WorkElsewhereError(f"the tail of {scope}/{stream}: transactions are being merged; try again")
            return found

        found = await read()
        if found is not None:
            return found
        return await self._runner.alone(Subject(SubjectKind.STREAM, scope, stream), read_alone)

    async def _read_tails(self, tables: StreamTables) -> dict[int, int] | None:
        """Read once; None if something was merged, or the segments changed, meanwhile."""
        before = await tables.commit_view()
        if before.state.record.state is StreamState.CREATING:
            raise HalfCreatedStreamError(f"stream {tables.name} is not completely created; try again")
        if not before.committing.record.is_empty:
            return None
        names: dict[int, str] = {
            segment.id: segment_name(tables.scope, tables.stream, segment.id) for segment in before.current.segments
        }
        missing: NoSuchSegmentError | None = None
        try:
            infos = await self._context.segments.infos(list(names.values()))
        except NoSuchSegmentError as error:
            missing = error
        after = await tables.commit_view()
        if missing is not None and after.current.epoch == before.current.epoch:
            raise missing
        if missing is not None or after.committing.version != before.committing.version:
            return None
        return {segment: infos[name].length for segment, name in names.items()}
