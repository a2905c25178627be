"""The transactions of a stream: what each waits for, and its commit or abort."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.controller.transaction_by_id import TransactionById, completed_transactions
from penstock.client.controller.transaction_endings import TransactionInfo
from penstock.client.low_level import controller_of
from penstock.model.errors import InvalidArgumentError
from penstock.web.console.changes import Change, RestCall, change_page
from penstock.web.console.formats import in_seconds
from penstock.web.console.pages import Answer, Page, PageRequest, PageRoute, address
from penstock.web.console.snippets import Snippet, command, curl, rest_path

_SHOWN_MAX = 500
_REASONS = {
    "REQUESTED": "aborted on request", "LEASE_ENDED": "aborted: its lease ran out without renewal",
    "STREAM_SEALED": "aborted: the stream was sealed",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transaction, and what it waits for."""

    info: TransactionInfo
    waits_for: str
    is_late: bool


def waits_for(info: TransactionInfo, committing_before: int) -> str:
    """Return what a transaction waits for. `committing_before`: transactions of the stream that commit before it."""
    left = "" if info.lease_left_s is None else in_seconds(max(info.lease_left_s, 0))
    if info.state == "OPEN":
        if info.lease_left_s is not None and info.lease_left_s <= 0:
            return "its lease has ended: it is about to be aborted"
        return f"its writer: nothing has committed it yet. Without a renewal it is aborted in {left or '?'}"
    if info.state == "PREPARED":
        return f"the decision of its coordinator, by its id. Without one it is aborted in {left or '?'}"
    if info.state == "COMMITTING":
        if committing_before:
            return f"{committing_before} transactions of this stream that commit before it, one after the other"
        return "the segment stores, which merge its segments: containers that do not run or slow storage delay this"
    if info.state == "ABORTING":
        return "the segment stores, which delete its segments"
    return _REASONS.get(info.abort_reason, "nothing: it has ended")


async def list_transactions(request: PageRequest) -> Answer:
    """List the transactions of a stream that are not finished, and those that ended lately."""
    rows: list[TransactionRow] = []
    committing = 0
    is_complete = True
    async for info in request.client.open_transactions(request.stream):
        if len(rows) == _SHOWN_MAX:
            is_complete = False
            break
        is_late = info.state in ("OPEN", "PREPARED") and (info.age_s or 0) > 60
        rows.append(TransactionRow(info, waits_for(info, committing), is_late))
        committing += info.state == "COMMITTING"
    ended = await completed_transactions(controller_of(request.client), request.stream)
    scope, name = request.path["scope"], request.path["stream"]
    path = rest_path("scopes", scope, "streams", name, "transactions")
    return Page("transactions.html", f"{request.stream}: transactions", {
        "stream": request.stream, "tab": "transactions", "rows": rows, "is_complete": is_complete,
        "ended": sorted(ended.items())[:_SHOWN_MAX],
        "snippets": [
            Snippet("Command", command("penstock", "transaction", "list", request.stream, "--uri",
                                       request.controller)),
            Snippet("REST", curl(request.origin, "GET", path, user=request.user)),
        ],
    })  # fmt: skip


async def commit_transaction(request: PageRequest) -> Answer:
    """Commit a transaction by its id."""
    return await _decided(request, "commit", "Commit", [
        "Its events become readable, all at once. That cannot be undone.",
        "Events that its writer has not flushed are not included.",
    ])  # fmt: skip


async def abort_transaction(request: PageRequest) -> Answer:
    """Abort a transaction by its id."""
    return await _decided(request, "abort", "Abort", ["None of its events will ever be read."])


async def _decided(request: PageRequest, verb: str, title: str, effects: list[str]) -> Answer:
    transaction, scope, name = request.path["transaction"], request.path["scope"], request.path["stream"]
    if len(transaction) != 32:
        raise InvalidArgumentError(f"{transaction!r} is not the id of a transaction: 32 hexadecimal digits")
    found = await TransactionById(controller_of(request.client), request.stream, transaction).describe()

    async def perform() -> str:
        decide = request.client.commit_transaction if verb == "commit" else request.client.abort_transaction
        await decide(request.stream, transaction)
        state = await request.client.transaction_state(request.stream, transaction)
        return f"Transaction {transaction} is {state}."

    path = rest_path("scopes", scope, "streams", name, "transactions", transaction, verb)
    return await change_page(request, Change(
        f"{title} transaction {transaction}", transaction, address("streams", scope, name, "transactions"),
        f"transactions of {request.stream}", perform,
        effects=[f"Its state is {found.state}. It waits for {waits_for(found, 0)}.", *effects],
        command=command("penstock", "transaction", verb, request.stream, transaction, "--uri", request.controller),
        rest=[RestCall("POST", path, {})],
    ))  # fmt: skip


_TRANSACTIONS = "/streams/{scope}/{stream}/transactions"
ROUTES: tuple[PageRoute, ...] = (
    PageRoute(_TRANSACTIONS, list_transactions),
    PageRoute(_TRANSACTIONS + "/{transaction}/commit", commit_transaction, is_form=True),
    PageRoute(_TRANSACTIONS + "/{transaction}/abort", abort_transaction, is_form=True),
)
