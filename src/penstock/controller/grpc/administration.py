"""The calls for administrators: members of a cluster and their containers, accounts, and the audit log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.controller.errors import FinalArgumentError
from penstock.controller.grpc.call import Front, principal
from penstock.model.errors import UnsupportedOperationError
from penstock.rpc import additions_pb2 as added

if TYPE_CHECKING:
    from penstock.controller.cluster.control import ClusterControl, ClusterStatus
    from penstock.model.assignment_plan import Move
    from penstock.model.cluster_nodes import MovedContainer

#: Entries of the audit log in one reply, and their bytes.
AUDIT_ENTRIES_MAX: int = 1000
AUDIT_BYTES_MAX: int = 1024 * 1024
_Request = added.ChangeAssignmentRequest


def _control(front: Front) -> ClusterControl:
    if front.cluster is None:
        raise UnsupportedOperationError(
            "this server is no cluster on several machines: its containers belong to its own segment stores"
        )
    return front.cluster


async def describe_members(front: Front, request: added.DescribeMembersRequest) -> added.ClusterMembers:
    """Answer describeMembers."""
    return _members(await _control(front).status())


def _members(found: ClusterStatus) -> added.ClusterMembers:
    view = found.view
    stores = []
    for name, host in sorted(view.hosts.items()):
        load = view.loads.get(name)
        held = sorted(number for number, each in view.held.items() if each.owner == name and each.phase == "serving")
        stores.append(added.ClusterMembers.Store(
            name=name,
            addresses=[f"{each.host}:{each.port}" for _, each in sorted(host.endpoints.items())],
            zone=host.zone,
            state="draining" if name in view.drains else str(host.state),
            version=host.version,
            hasLoad=load is not None,
            busy=0.0 if load is None else load.busy,
            assigned=[number for number, owner in enumerate(view.assignment.owners) if owner == name],
            serving=held,
        ))  # fmt: skip
    containers = []
    for number, owner in enumerate(view.assignment.owners):
        holder = view.held.get(number)
        containers.append(
            added.ClusterMembers.Container(id=number, assigned=owner)
            if holder is None
            else added.ClusterMembers.Container(
                id=number, assigned=owner, holder=holder.owner, phase=str(holder.phase), epoch=holder.epoch,
                error=holder.error,
            )
        )  # fmt: skip
    return added.ClusterMembers(
        clusterId=found.identity.cluster_id, stores=stores, containers=containers,
        controllers=sorted(found.controllers), leader=found.leader, latest=_moves(view.assignment.why),
    )  # fmt: skip


def _moves(found: Iterable[Move | MovedContainer]) -> list[added.ContainerMove]:
    return [
        added.ContainerMove(
            container=each.container_id, source=each.source, target=each.target, reason=str(each.reason)
        )
        for each in found
    ]


async def change_assignment(front: Front, request: _Request) -> added.ChangeAssignmentReply:
    """Answer changeAssignment."""
    control, is_dry = _control(front), request.isDry
    by = f"account {principal.get()}" if principal.get() else "a client of the controller"
    if request.kind == _Request.DRAIN:
        moves = await control.drain(request.store, by, is_dry=is_dry)
    elif request.kind == _Request.UNDRAIN:
        moves = await control.undrain(request.store, by, is_dry=is_dry)
    elif request.kind == _Request.MOVE:
        moves = await control.move(request.container, request.store, by, is_dry=is_dry)
    elif request.kind == _Request.BALANCE:
        moves = await control.balance(by, is_dry=is_dry)
    else:
        raise FinalArgumentError(f"the change of the assignment is {request.kind}, of a kind that is not known")
    return added.ChangeAssignmentReply(moves=_moves(moves))


async def describe_accounts(front: Front, request: added.DescribeAccountsRequest) -> added.AccountDescriptions:
    """Answer describeAccounts for a server without accounts: with accounts, the guard answers it."""
    return added.AccountDescriptions()


async def read_audit(front: Front, request: added.ReadAuditRequest) -> added.AuditEntries:
    """Answer readAudit."""
    if front.audit is None:
        raise UnsupportedOperationError("this controller writes no audit log: see setting audit.file")
    if not 0 < request.limit <= AUDIT_ENTRIES_MAX:
        raise FinalArgumentError(f"{request.limit} entries of the audit log: ask for 1 to {AUDIT_ENTRIES_MAX}")
    lines = await front.audit.latest(request.limit, AUDIT_BYTES_MAX)
    return added.AuditEntries(
        lines=lines, file=str(front.audit.path), problem=front.audit.problem, lost=front.audit.lost_count
    )
