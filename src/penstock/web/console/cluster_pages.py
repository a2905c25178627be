"""The page of the cluster: which store runs which container, and moves between stores on several machines."""

from __future__ import annotations

from penstock.client.controller.administration import ClusterMembers
from penstock.client.low_level import controller_of
from penstock.model.errors import AuthenticationError, PenstockError, UnsupportedOperationError
from penstock.web.console.overview import findings, store_rows
from penstock.web.console.pages import Answer, Page, PageRequest, PageRoute
from penstock.web.console.snippets import Snippet, command, curl, rest_path


async def show_cluster(request: PageRequest) -> Answer:
    """Show segment stores and containers."""
    sampler = await request.rates.of(request.client)
    found = sampler.statistics
    members: ClusterMembers | None = None
    members_problem = ""
    try:
        members = await controller_of(request.client).members()
    except UnsupportedOperationError:
        pass  # A single server: its containers do not move.
    except AuthenticationError:
        raise
    except PenstockError as error:
        members_problem = str(error)
    snippets = [
        Snippet("Live view", command("penstock", "top", "--uri", request.controller)),
        Snippet("REST", curl(request.origin, "GET", rest_path("cluster"), user=request.user)),
    ]
    if members is not None:
        snippets += [
            Snippet("Stores, on a machine that reaches ZooKeeper", command("penstock", "cluster", "stores")),
            Snippet("REST, stores on several machines",
                    curl(request.origin, "GET", rest_path("cluster", "members"), user=request.user)),
        ]  # fmt: skip
    return Page("cluster.html", "Cluster", {
        "found": found, "problem": sampler.problem, "stores": [] if found is None else store_rows(found),
        "findings": [] if found is None else list(findings(found, sampler)), "members": members,
        "members_problem": members_problem, "snippets": snippets,
        "moving": [] if members is None else [
            each for each in members.containers
            if each.holder != each.assigned or each.phase != "serving" or each.error
        ],
    })  # fmt: skip


ROUTES: tuple[PageRoute, ...] = (PageRoute("/cluster", show_cluster),)
