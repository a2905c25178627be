"""The pages of accounts: what the caller may do, all accounts for administrators, and the audit log. Read only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.client.controller.administration import AccountList
from penstock.client.low_level import controller_of
from penstock.model.errors import AccessDeniedError, UnsupportedOperationError
from penstock.web.console.pages import Answer, Page, PageRequest, PageRoute
from penstock.web.console.snippets import Snippet, command, curl, rest_path
from penstock.web.console.streams import scopes_of

_AUDIT_MAX = 1000
_OUTCOMES = ("done", "refused", "failed")


async def show_account(request: PageRequest) -> Answer:
    """Show the account of the caller and what it may do, and all accounts if it may see them."""
    scopes: list[str] | None
    try:
        scopes = await scopes_of(request)
    except AccessDeniedError:
        scopes = None
    found: AccountList | None
    try:
        found = await controller_of(request.client).accounts()
    except UnsupportedOperationError:
        found = None
    sampler = await request.rates.of(request.client)
    return Page("account.html", "Account", {
        "scopes": scopes, "may_see_cluster": sampler.statistics is not None, "problem": sampler.problem,
        "own": None if found is None else found.own, "everyone": None if found is None else found.everyone,
        "is_known": found is not None,
        "snippets": [
            Snippet("Accounts, on the machine of a controller", command("penstock", "user", "list")),
            Snippet("REST", curl(request.origin, "GET", rest_path("accounts"), user=request.user)),
        ],
    })  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry of the audit log as the page shows it. `detail`: status or error; `change`: JSON of what was asked."""

    time: str
    account: str
    peer: str
    call: str
    resource: str
    outcome: str
    detail: str
    change: str


async def show_audit(request: PageRequest) -> Answer:
    """Show the latest entries of the audit log, the latest first."""
    wanted, outcome = request.text("contains").lower(), request.text("outcome")
    found = await controller_of(request.client).audit_entries(_AUDIT_MAX)
    rows = [
        audit_row(line) for line in reversed(found.lines) if not wanted or wanted in line.lower()
    ]  # fmt: skip
    rows = [row for row in rows if outcome not in _OUTCOMES or row.outcome == outcome]
    return Page("audit.html", "Audit log", {
        "rows": rows, "read": len(found.lines), "file": found.file, "problem": found.problem, "lost": found.lost_count,
        "contains": request.text("contains"), "outcome": outcome, "outcomes": _OUTCOMES,
        "snippets": [
            Snippet("On the machine of the controller", command("tail", "-n", "100", found.file)),
            Snippet("REST", curl(request.origin, "GET", rest_path("audit", limit=100), user=request.user)),
        ],
    })  # fmt: skip


def audit_row(line: str) -> AuditRow:
    """Return a line of the log as the page shows it. One that is damaged is shown as it is."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, Mapping):
        return AuditRow("", "", "", "", "", "", f"not a line of an audit log: {line[:1000]}", "")

    def text(name: str) -> str:
        return str(fields.get(name, ""))

    change = fields.get("change")
    shown = "" if change is None else change if isinstance(change, str) else json.dumps(change, indent=1)
    return AuditRow(text("time"), text("principal"), text("peer"), text("call"), text("resource"), text("outcome"),
                    text("detail"), shown)  # fmt: skip


ROUTES: tuple[PageRoute, ...] = (PageRoute("/account", show_account), PageRoute("/account/audit", show_audit))
