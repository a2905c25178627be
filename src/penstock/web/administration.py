"""The members of a cluster, accounts, and the audit log over REST, for administrators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock.client.controller.administration import AccountRights, AssignmentChange, ContainerMove
from penstock.client.low_level import controller_of
from penstock.web.errors import BadRequestError
from penstock.web.routes import Query, Reply, Request, Route

AUDIT_ENTRIES_MAX: int = 1000


class Member(msgspec.Struct):
    """A segment store. ``busy``: share of the time in which it works; null: not known."""

    name: str
    addresses: list[str]
    zone: str
    state: str
    version: str
    busy: float | None
    assigned: list[int]
    serving: list[int]


class MemberContainer(msgspec.Struct):
    """A container. ``assigned`` and ``holder`` are names of stores; empty: none. ``error``: why it does not open."""

    container: int
    assigned: str
    holder: str
    phase: str
    epoch: int
    error: str


class Move(msgspec.Struct):
    """A container that goes from one store to another. ``source`` is empty: it had none."""

    container: int
    source: str
    target: str
    reason: str


class Members(msgspec.Struct):
    """A cluster on several machines. ``latest``: the latest moves, oldest first."""

    clusterId: str
    stores: list[Member]
    containers: list[MemberContainer]
    controllers: list[str]
    leader: str
    latest: list[Move]


class AssignmentRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A change: ``store`` is needed to drain, undrain and move, ``container`` to move."""

    change: Literal["drain", "undrain", "move", "balance"]
    store: str = ""
    container: int | None = None
    dryRun: bool = False


class AssignmentReply(msgspec.Struct):
    """The moves that follow, and whether the change was made."""

    moves: list[Move]
    isDone: bool


class AccountEntry(msgspec.Struct):
    """An account, and what it may do: pattern and permission of each entry. The first that matches decides."""

    name: str
    hasPassword: bool
    entries: list[str]


class AccountListing(msgspec.Struct):
    """Accounts. ``own``: of the caller; null: there are none. ``all``: null: the caller may not see it."""

    own: AccountEntry | None
    all: list[AccountEntry] | None


class AuditReply(msgspec.Struct):
    """Entries of one controller, oldest first. ``problem``: why the file cannot be written; empty: it can."""

    entries: list[msgspec.Raw]
    file: str
    problem: str
    lost: int


async def members(request: Request) -> Reply:
    """Return the stores and containers of a cluster on several machines."""
    found = await controller_of(request.client).members()
    return Reply(content=Members(
        found.cluster_id,
        [
            Member(each.name, list(each.addresses), each.zone, each.state, each.version, each.busy,
                   list(each.assigned), list(each.serving))
            for each in found.stores
        ],
        [
            MemberContainer(each.id, each.assigned, each.holder, each.phase, each.epoch, each.error)
            for each in found.containers
        ],
        list(found.controllers), found.leader, _moves(found.latest),
    ))  # fmt: skip


async def change_assignment(request: Request) -> Reply:
    """Drain a store, end a drain, move a container, or even out the stores."""
    wanted = request.json(AssignmentRequest)
    if wanted.change != "balance" and not wanted.store:
        raise BadRequestError(f"give the store to {wanted.change}")
    if wanted.change == "move" and wanted.container is None:
        raise BadRequestError("give the container to move")
    moves = await controller_of(request.client).change_assignment(
        AssignmentChange[wanted.change.upper()], wanted.store, wanted.container or 0, is_dry=wanted.dryRun
    )
    return Reply(content=AssignmentReply(_moves(moves), not wanted.dryRun))


async def accounts(request: Request) -> Reply:
    """Return the account of the caller and what it may do, and all accounts for callers who may see them."""
    found = await controller_of(request.client).accounts()
    everyone = None if found.everyone is None else [_account(each) for each in found.everyone]
    return Reply(content=AccountListing(None if found.own is None else _account(found.own), everyone))


async def audit(request: Request) -> Reply:
    """Return the latest entries of the audit log of the controller that answers."""
    limit = request.number("limit", 100, least=1, most=AUDIT_ENTRIES_MAX)
    found = await controller_of(request.client).audit_entries(limit)
    entries = [msgspec.Raw(line) for line in found.lines if is_json(line)]
    return Reply(content=AuditReply(entries, found.file, found.problem, found.lost_count))


def is_json(line: str) -> bool:
    """Return whether a line of the log is JSON. One that was damaged in the file is not."""
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True


def _moves(found: Sequence[ContainerMove]) -> list[Move]:
    return [Move(each.container_id, each.source, each.target, each.reason) for each in found]


def _account(found: AccountRights) -> AccountEntry:
    return AccountEntry(found.name, found.has_password, list(found.entries))


ROUTES: tuple[Route, ...] = (
    Route(
        "GET", "/v1/cluster/members", "Return the stores and containers of a cluster on several machines.", members,
        reply=(Members,), needs="READ on prn::/",
    ),
    Route(
        "POST", "/v1/cluster/assignment", "Drain a store, end a drain, move a container, or even out the stores.",
        change_assignment, body=AssignmentRequest, reply=(AssignmentReply,), needs="READ_UPDATE on prn::/",
    ),
    Route(
        "GET", "/v1/accounts", "Return what the caller may do, and all accounts.", accounts,
        reply=(AccountListing,), needs="an account; READ_UPDATE on prn::/ for all accounts",
    ),
    Route(
        "GET", "/v1/audit", "Return the latest entries of the audit log of a controller.", audit,
        queries=(Query("limit", "At most so many entries.", is_number=True),),
        reply=(AuditReply,), needs="READ_UPDATE on prn::/",
    ),
)  # fmt: skip
