"""Members of a cluster, accounts and the audit log: over gRPC, REST and in the console, with the rights of the caller.

The cluster is a simulated ZooKeeper behind a server in memory with accounts.
"""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from penstock import aio
from penstock.client.low_level import controller_of
from penstock.controller.cluster.view import read_cluster
from penstock.model.cluster_nodes import (
    ASSIGNMENT_PATH,
    HELD_PATH,
    HOSTS_PATH,
    AssignmentNode,
    ClusterIdentity,
    Endpoint,
    HeldNode,
    HeldPhase,
    HostNode,
    MovedContainer,
    encode_node,
)
from penstock.model.errors import AccessDeniedError, ControllerUnavailableError, UnsupportedOperationError
from penstock.model.errors.coordination import CoordinationUnavailableError
from penstock.runtime.client_security import ClientSecurity, Credentials
from penstock.runtime.coordination import CoordinationSettings
from penstock.server.cluster import control
from penstock.server.cluster.control import SessionControl
from penstock.server.cluster.identity import make_cluster
from penstock.testing import MemoryServer
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.console.account_pages import audit_row
from penstock.web.settings import WebSettings
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.containers import memory_runtime
from support.secured_server import PASSWORD, SecuredServer

HOSTILE = "<script>window.hit=1</script>"
_IDENTITY = ClusterIdentity(
    cluster_id="ab" * 16, container_count=4, log="s3://b/log", tier2="s3://b/data", ownership_lease_s_max=4.0
)


class Cluster:
    """Stores a, b and one with a hostile name, of which a and b have two containers each.

    One server of ZooKeeper: others apply changes later, so that a test could read an earlier state.
    """

    def __init__(self) -> None:
        self.zookeeper = SimulatedZooKeeper(random.Random(1), ZooKeeperSettings(server_count=1))
        service = self.service("controller")
        self.control = SessionControl(service, memory_runtime(), 1.0)

    def service(self, name: str) -> SimulatedCoordination:
        return SimulatedCoordination(self.zookeeper, name, random.Random(2), CoordinationSettings())

    async def make(self) -> None:
        self.session = await self.service("admin").open_session()
        await make_cluster(self.session, "zk", _IDENTITY)
        for name in ("a", "b", "c&d"):
            host = HostNode(endpoints={"internal": Endpoint(f"{name}.example", 6000)}, zone=HOSTILE, version="0.1.0")
            await self.session.create(f"{HOSTS_PATH}/{name}~1", encode_node(host), is_ephemeral=True)
        why = (MovedContainer(3, "", "b", HOSTILE),)
        assigned = AssignmentNode(number=1, nonce="", owners=("a", "a", "b", "b"), why=why)
        await self.session.set(ASSIGNMENT_PATH, encode_node(assigned))
        for number, (owner, phase, error) in enumerate(
            (("a", HeldPhase.SERVING, ""), ("a", HeldPhase.SERVING, ""), ("a", HeldPhase.SERVING, ""),
             ("b", HeldPhase.OPENING, HOSTILE))
        ):  # fmt: skip
            node = HeldNode(owner=owner, incarnation="1", phase=phase, epoch=5, error=error)
            await self.session.create(f"{HELD_PATH}/{number}", encode_node(node), is_ephemeral=True)

    async def owners(self) -> tuple[str, ...]:
        return (await read_cluster(self.session)).assignment.owners

    async def drains(self) -> set[str]:
        return set((await read_cluster(self.session)).drains)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SecuredServer]:
    server = SecuredServer(tmp_path)
    await server.server.start()
    yield server
    await server.close()


@pytest.fixture
async def cluster(server: SecuredServer) -> Cluster:
    made = Cluster()
    await made.make()
    assert server.server.front is not None
    object.__setattr__(server.server.front._front, "cluster", made.control)
    return made


def client_of(server: SecuredServer, user: str) -> aio.Client:
    security = ClientSecurity(Credentials(user, PASSWORD), server.authority)
    return aio.Client(server.server.controller_uri, security=security)


@pytest.fixture
async def pages(server: SecuredServer) -> AsyncIterator[httpx.AsyncClient]:
    """The console for the account with all rights."""
    app = WebApp(connection_to(server.server.controller_uri, server.authority), WebSettings(), controller="tls://here")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost:9091", timeout=60, auth=("root", PASSWORD)
    ) as client:
        yield client
    await app.close()


def rows_of(page: str, caption: str) -> list[list[str]]:
    """Return the texts of the cells of each row of a table."""
    found = re.search(rf'<caption class="hidden">{re.escape(caption)}</caption>(.*?)</table>', page, re.DOTALL)
    assert found is not None, page
    rows = re.findall(r"<tr[^>]*>(<th scope=\"row\".*?)</tr>", found[1], re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells]


async def confirmed(pages: httpx.AsyncClient, path: str, typed: str, **fields: str) -> httpx.Response:
    shown = await pages.get(path, params=fields or None)
    token = re.search(r'name="token_of_form" value="([^"]+)"', shown.text)
    assert token is not None, shown.text
    return await pages.post(path, data={"token_of_form": token[1], "confirm": typed, **fields})


async def test_the_cluster_shows_stores_and_containers_on_their_way(pages: httpx.AsyncClient, cluster: Cluster) -> None:
    page = (await pages.get("/console/cluster")).text
    assert HOSTILE not in page
    stores = rows_of(page, "Stores on several machines")
    assert [row[0] for row in stores] == ["a", "b", "c&d"]
    assert stores[0][1:] == ["up", "drain…", "0 1", "0 1 2", "", "a.example:6000", HOSTILE, "0.1.0"]
    assert rows_of(page, "Containers that are not served by the store that they belong to") == [
        ["2", "b", "a", "serving", ""], ["3", "b", "b", "opening", HOSTILE],
    ]  # fmt: skip
    assert rows_of(page, "Latest moves, the latest first") == [["3", "no store", "b", HOSTILE]]
    assert "/console/cluster/stores/c%26d/change/drain" in page


async def test_a_store_is_drained_and_the_drain_ended_after_typing_its_name(
    pages: httpx.AsyncClient, cluster: Cluster
) -> None:
    path = "/console/cluster/stores/a/change/drain"
    shown = (await pages.get(path)).text
    assert {row[0] for row in re.findall(r"<td>(container \d)</td><td>a</td><td>(b|c&amp;d)</td>", shown)} == {
        "container 0", "container 1",
    }  # fmt: skip
    assert await cluster.drains() == set()
    wrong = await confirmed(pages, path, "b")
    assert (wrong.status_code, await cluster.drains()) == (400, set())
    done = await confirmed(pages, path, "a")
    assert done.status_code == 200
    assert "penstock cluster drain a" in done.text
    assert "/v1/cluster/assignment" in done.text
    assert await cluster.drains() == {"a"}
    page = (await pages.get("/console/cluster")).text
    assert rows_of(page, "Stores on several machines")[0][1] == "draining"
    ended = await confirmed(pages, "/console/cluster/stores/a/change/undrain", "a")
    assert ended.status_code == 200
    assert await cluster.drains() == set()
    again = await pages.get("/console/cluster/stores/a/change/undrain")
    assert again.status_code == 400
    assert "store a is not drained" in again.text


async def test_a_container_is_moved_and_the_stores_are_evened_out(pages: httpx.AsyncClient, cluster: Cluster) -> None:
    path = "/console/cluster/containers/0/change/move"
    assert "Move</button>" not in (await pages.get(path)).text
    assert "<td>container 0</td><td>a</td><td>b</td>" in (await pages.get(path, params={"store": "b"})).text
    moved = await confirmed(pages, path, "0", store="c&d")
    assert moved.status_code == 200, moved.text
    assert (await cluster.owners())[0] == "c&d"
    await cluster.session.set(
        ASSIGNMENT_PATH, encode_node(AssignmentNode(number=9, nonce="", owners=("a", "a", "a", "a"))),
        (await read_cluster(cluster.session)).version,
    )  # fmt: skip
    balanced = await confirmed(pages, "/console/cluster/change/balance", "balance")
    assert balanced.status_code == 200
    assert set(await cluster.owners()) == {"a", "b", "c&d"}
    assert (await pages.get("/console/cluster/containers/x/change/move")).status_code == 400
    assert (await pages.get("/console/cluster/stores/none/change/drain")).status_code == 400


async def test_the_same_over_rest(pages: httpx.AsyncClient, cluster: Cluster) -> None:
    found = (await pages.get("/v1/cluster/members")).json()
    assert [each["name"] for each in found["stores"]] == ["a", "b", "c&d"]
    assert found["containers"][3] == {
        "container": 3, "assigned": "b", "holder": "b", "phase": "opening", "epoch": 5, "error": HOSTILE,
    }  # fmt: skip
    path = "/v1/cluster/assignment"
    dry = await pages.post(path, json={"change": "drain", "store": "a", "dryRun": True})
    assert {each["container"] for each in dry.json()["moves"]} == {0, 1}
    assert (dry.json()["isDone"], await cluster.drains()) == (False, set())
    assert (await pages.post(path, json={"change": "drain", "store": "a"})).json()["isDone"] is True
    assert await cluster.drains() == {"a"}
    for wrong in (
        {"change": "drain"},
        {"change": "move", "store": "b"},
        {"change": "stop", "store": "b"},
        {"store": "b"},
    ):
        assert (await pages.post(path, json=wrong)).status_code == 400


async def test_changes_of_the_assignment_are_recorded_with_their_account(
    pages: httpx.AsyncClient, cluster: Cluster, server: SecuredServer
) -> None:
    await confirmed(pages, "/console/cluster/stores/a/change/drain", "a")
    async with client_of(server, "reader") as reader:
        with pytest.raises(AccessDeniedError, match="lacks READ_UPDATE on prn::/"):
            await controller_of(reader).audit_entries(10)
    audit = server.server.audit
    assert audit is not None
    await audit._is_idle.wait()
    page = (await pages.get("/console/account/audit")).text
    rows = rows_of(page, "Entries of the audit log, the latest first")
    calls = [(row[1], row[2], row[4].partition(":")[0]) for row in rows]
    assert calls[:2] == [("reader", "readAudit", "refused"), ("root", "changeAssignment", "done")]
    assert "DRAIN" in rows[1][6]
    only = (await pages.get("/console/account/audit?outcome=refused&contains=READAUDIT")).text
    assert [row[2] for row in rows_of(only, "Entries of the audit log, the latest first")] == ["readAudit"]
    assert "No entries match" in (await pages.get("/console/account/audit?contains=nothing")).text
    entries = (await pages.get("/v1/audit?limit=2")).json()
    assert [each["call"] for each in entries["entries"]] == ["changeAssignment", "readAudit"]
    assert (await pages.get("/v1/audit?limit=1001")).status_code == 400


async def test_an_account_sees_its_own_rights_and_an_administrator_all(
    pages: httpx.AsyncClient, server: SecuredServer
) -> None:
    mine = (await pages.get("/console/account")).text
    rows = rows_of(mine, "Accounts and what each may do")
    assert ["reader", "a password", "prn::/scope:shop READ\nprn::/scope:shop/stream:orders READ"] in [
        [row[0], row[1], row[2].replace("READprn", "READ\nprn")] for row in rows
    ]
    assert "hash" not in mine
    other = await pages.get("/console/account", auth=("reader", PASSWORD))
    assert "Accounts and what each may do" not in other.text
    assert "<code>prn::/scope:shop/stream:orders</code> <b>READ</b>" in other.text
    assert (await pages.get("/console/account/audit", auth=("reader", PASSWORD))).status_code == 403
    listed = (await pages.get("/v1/accounts", auth=("reader", PASSWORD))).json()
    assert listed["all"] is None
    assert listed["own"]["name"] == "reader"
    assert {each["name"] for each in (await pages.get("/v1/accounts")).json()["all"]} > {"root", "none"}


async def test_readers_of_the_cluster_change_nothing(cluster: Cluster, server: SecuredServer) -> None:
    from penstock.client.controller.administration import AssignmentChange

    async with client_of(server, "reader") as reader:
        with pytest.raises(AccessDeniedError):
            await controller_of(reader).members()
        with pytest.raises(AccessDeniedError):
            await controller_of(reader).change_assignment(AssignmentChange.DRAIN, "a")
    assert await cluster.drains() == set()


async def test_a_coordination_service_that_is_away_is_reported(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, pages: httpx.AsyncClient
) -> None:
    async def away(*given: object) -> None:
        raise CoordinationUnavailableError("ZooKeeper is away")

    monkeypatch.setattr(control, "wait_for_session", away)
    with pytest.raises(ControllerUnavailableError, match="coordination service: ZooKeeper is away"):
        await cluster.control.status()


async def test_a_single_server_without_accounts_says_so(penstock_server: MemoryServer) -> None:
    app = WebApp(connection_to(penstock_server.uri), WebSettings(), controller=penstock_server.uri)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:9091") as pages:
        assert "This is a single server" in (await pages.get("/console/cluster")).text
        assert "The cluster has no accounts" in (await pages.get("/console/account")).text
        audit = await pages.get("/console/account/audit")
        assert (audit.status_code, "writes no audit log" in audit.text) == (501, True)
        assert (await pages.get("/v1/cluster/members")).status_code == 501
        assert (await pages.get("/v1/accounts")).json() == {"own": None, "all": None}
    await app.close()
    async with aio.connect(penstock_server.uri) as client:
        with pytest.raises(UnsupportedOperationError, match="no cluster on several machines"):
            await controller_of(client).members()


def test_lines_of_the_log_are_shown_whatever_they_contain() -> None:
    line = json.dumps({"time": "t", "principal": HOSTILE, "call": "c", "change": {"request": 1}})
    assert audit_row(line).account == HOSTILE
    assert audit_row(line).change == '{\n "request": 1\n}'
    assert audit_row('{"change": "cut').detail.startswith("not a line of an audit log")
    assert audit_row("[1]").detail == "not a line of an audit log: [1]"
