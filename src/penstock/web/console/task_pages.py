"""The page of tasks: programs that left a record in the cluster of how far they have come.

Streaming queries and exports that hold events are reader groups without readers. Sinks, replays and backfills that
write exactly once have a row in the ledger of their scope.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.client.groups.subscribers import subscriber_kind
from penstock.client.statistics.statistics import GroupLag
from penstock.model.errors import AccessDeniedError, NoSuchTableError, PenstockError
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.bulk import for_each
from penstock.spark.ledger import BatchState, LedgerRow, scope_rows
from penstock.web.console.pages import Answer, Page, PageRequest, PageRoute
from penstock.web.console.positions import short_text
from penstock.web.console.snippets import Snippet, command
from penstock.web.console.streams import scopes_of
from penstock.web.console.subscribers import why_subscriber_is_behind

_ROWS_MAX = 200
#: Scopes whose ledgers are read at once.
_AT_ONCE = 16
#: Jobs are named so in a ledger (`penstock.jobs.ledgered_copy`).
_JOB = "job "


@dataclass(frozen=True, slots=True)
class HoldRow:
    """A program that reads, and holds what it has not finished. `streams`: unread bytes by stream."""

    group: str
    kind: str
    lag: GroupLag
    trend: str
    why: str


@dataclass(frozen=True, slots=True)
class WriteRow:
    """A program that writes exactly once.

    Attributes:
        name, kind: as people know it.
        target: the stream that it writes.
        batch: number of the latest batch.
        state: what has become of that batch.
        is_open: the batch is not committed yet.
        changed_ms: when that was recorded, by the clock of the program.
        source: what it reads, as far as it is recorded.
    """

    name: str
    kind: str
    target: str
    batch: int
    state: str
    is_open: bool
    changed_ms: int
    source: str


async def list_tasks(request: PageRequest) -> Answer:
    """List the programs that the cluster has a record of."""
    scope = request.text("scope")
    problems: list[str] = []
    scopes: list[str] = []
    try:
        scopes = await scopes_of(request)
    except AccessDeniedError as error:
        problems.append(f"{error}: enter a scope that your account may read")
    writes: list[LedgerRow] = []

    async def read(each: str) -> None:
        try:
            rows, damaged = await scope_rows(request.client, each, _ROWS_MAX)
        except NoSuchTableError:
            return
        except PenstockError as error:
            problems.append(f"the ledger of scope {each}: {error}")
            return
        writes.extend(rows)
        problems.extend(damaged)

    await for_each([scope] if scope else scopes, read, _AT_ONCE)
    sampler = await request.rates.of(request.client, with_groups=True)
    holds = [
        HoldRow(name, kind, lag, sampler.trend(name), why_subscriber_is_behind(kind, sampler.trend(name)))
        for name, lag in (sampler.groups or {}).items()
        if (kind := subscriber_kind(name)) and not lag.reader_count and name.startswith(f"{scope}/" if scope else "")
    ]
    holds.sort(key=lambda row: (-row.lag.total_unread_bytes, row.group))
    writes.sort(key=lambda row: (-row.changed_ms, str(row.sink)))
    return Page("tasks.html", "Tasks", {
        "holds": holds[:_ROWS_MAX], "writes": [write_row(row) for row in writes[:_ROWS_MAX]],
        "count": len(holds) + len(writes), "shown_max": _ROWS_MAX, "scopes": scopes, "scope": scope,
        "problems": sorted(problems), "lag_problem": sampler.groups_problem or sampler.problem,
        "snippets": [
            Snippet("Export a stream, and hold what is not exported", command(
                "penstock", "export", "shop/orders", "--to", "parquet", "--directory", "orders", "--subscriber",
                "lake", "--uri", request.controller,
            )),
            Snippet("Groups of queries and exports", command("penstock", "group", "list", "--uri", request.controller)),
            Snippet("Ledger of a scope, in Spark", (
                f'spark.read.format("penstock").option("uri", {request.controller!r})'
                f'.option("metadata", "Ledger").option("scope", {scope or "shop"!r}).load().show()'
            )),
        ],
    })  # fmt: skip


def write_row(row: LedgerRow) -> WriteRow:
    """Return a row of a ledger as the page shows it."""
    is_job = row.sink.app.startswith(_JOB)
    source, kind = _job_source(row.note) if is_job else ("", "Spark sink")
    if not is_job and row.query:
        source = f"streaming query {row.query}"
    state = {
        BatchState.NONE: "nothing written yet",
        BatchState.INTENT: "being committed: the next run of the program commits it if this one has ended",
        BatchState.DONE: "committed",
    }[row.state]
    return WriteRow(
        row.sink.app.removeprefix(_JOB), kind, row.sink.target, row.batch, state, row.state is BatchState.INTENT,
        row.changed_ms, source,
    )  # fmt: skip


def _job_source(note: str) -> tuple[str, str]:
    """Return what a job reads and how far it has come, and its kind; of a note that is not understood: only a kind."""
    try:
        fields = json.loads(note)
        plan, behind = json.loads(fields["plan"]), fields["behind"]
        if "files" in plan:
            count = len(plan["files"])
            return f"{count} file{'' if count == 1 else 's'}, at {behind}", "backfill"
        start, end, at = (StreamCut.from_text(text) for text in (plan["start"], plan["end"], behind))
        range_text = f"{start.scope}/{start.stream} from {short_text(start)} to {short_text(end)}"
        return f"{range_text}, {'finished' if at.positions == end.positions else f'at {short_text(at)}'}", "replay"
    except (ValueError, KeyError, TypeError, AttributeError, PenstockError):
        return "", "job"


ROUTES: tuple[PageRoute, ...] = (PageRoute("/tasks", list_tasks),)
