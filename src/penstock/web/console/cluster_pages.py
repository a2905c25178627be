"""The pages of the cluster: which store runs which container; and the account of the caller."""

from __future__ import annotations

from penstock.model.errors import AccessDeniedError
from penstock.web.console.overview import findings, store_rows
from penstock.web.console.pages import Answer, Page, PageRequest, PageRoute
from penstock.web.console.snippets import Snippet, command, curl, rest_path
from penstock.web.console.streams import scopes_of


async def show_cluster(request: PageRequest) -> Answer:
    """Show segment stores and containers."""
    sampler = await request.rates.of(request.client)
    found = sampler.statistics
    return Page("cluster.html", "Cluster", {
        "found": found, "problem": sampler.problem, "stores": [] if found is None else store_rows(found),
        "findings": [] if found is None else list(findings(found, sampler)),
        "snippets": [
            Snippet("Live view", command("penstock", "top", "--uri", request.controller)),
            Snippet("Stores of a cluster of several machines", command("penstock", "cluster", "stores")),
            Snippet("Move all containers off a store", command("penstock", "cluster", "drain", "STORE", "--dry-run")),
            Snippet("REST", curl(request.origin, "GET", rest_path("cluster"), user=request.user)),
        ],
    })  # fmt: skip


async def show_account(request: PageRequest) -> Answer:
    """Show the account of the caller, and where accounts and the audit log are."""
    scopes: list[str] | None
    try:
        scopes = await scopes_of(request)
    except AccessDeniedError:
        scopes = None
    sampler = await request.rates.of(request.client)
    return Page("account.html", "Account", {
        "scopes": scopes, "may_see_cluster": sampler.statistics is not None, "problem": sampler.problem,
        "snippets": [
            Snippet("Accounts and what each may do", command("penstock", "user", "list")),
            Snippet("REST", curl(request.origin, "GET", rest_path("whoami"), user=request.user)),
        ],
    })  # fmt: skip


ROUTES: tuple[PageRoute, ...] = (PageRoute("/cluster", show_cluster), PageRoute("/account", show_account))
