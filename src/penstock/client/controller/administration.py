"""What administrators see of a cluster, its stores and containers, accounts and audit log; and what they change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.rpc import additions_pb2 as added


@dataclass(frozen=True, slots=True)
class MemberStore:
    """A segment store of a cluster on several machines.

    Attributes:
        name, zone, version: as it was started; zone is empty if unknown.
        addresses: ``host:port``, one for each listener.
        state: ``up``, ``draining`` or ``impaired``.
        busy: share of the time in which it works, 0 to 1; None: not known.
        assigned, serving: containers that belong to it, and those that it serves.
    """

    name: str
    addresses: Sequence[str]
    zone: str
    state: str
    version: str
    busy: float | None
    assigned: Sequence[int]
    serving: Sequence[int]


@dataclass(frozen=True, slots=True)
class MemberContainer:
    """A container of a cluster on several machines.

    Attributes:
        assigned, holder: names of the store that it belongs to and of the one that holds it; empty: none.
        phase: ``opening``, ``serving`` or ``closing``; empty: no store holds it.
        epoch: of its log; 0 while it opens.
        error: why it could not be opened; empty: it could.
    """

    id: int
    assigned: str
    holder: str
    phase: str
    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class ContainerMove:
    """A container that goes from one store to another. `source` is empty: it had none."""

    container_id: int
    source: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    """A cluster on several machines. `leader`: empty: none; `latest`: the latest moves, oldest first."""

    cluster_id: str
    stores: Sequence[MemberStore]
    containers: Sequence[MemberContainer]
    controllers: Sequence[str]
    leader: str
    latest: Sequence[ContainerMove]


class AssignmentChange(Enum):
    """A change of which store runs which containers."""

    DRAIN = added.ChangeAssignmentRequest.DRAIN
    UNDRAIN = added.ChangeAssignmentRequest.UNDRAIN
    MOVE = added.ChangeAssignmentRequest.MOVE
    BALANCE = added.ChangeAssignmentRequest.BALANCE


@dataclass(frozen=True, slots=True)
class AccountRights:
    """An account. `entries`: what it may do, ``pattern,permission`` each; the first that matches decides."""

    name: str
    has_password: bool
    entries: Sequence[str]


@dataclass(frozen=True, slots=True)
class AccountList:
    """Accounts. `own`: of the caller; None: the server has no accounts. `everyone`: None: the caller may not see it."""

    own: AccountRights | None
    everyone: Sequence[AccountRights] | None


@dataclass(frozen=True, slots=True)
class AuditEntries:
    """The latest entries of the audit log of one controller.

    Attributes:
        lines: JSON, oldest first.
        file: where they are, on the machine of that controller.
        problem: why the file cannot be written; empty: it can.
        lost_count: entries that were lost meanwhile.
    """

    lines: Sequence[str]
    file: str
    problem: str
    lost_count: int


def members_of(message: added.ClusterMembers) -> ClusterMembers:
    """Return a message as a value."""
    return ClusterMembers(
        message.clusterId,
        [
            MemberStore(
                each.name, tuple(each.addresses), each.zone, each.state, each.version,
                each.busy if each.hasLoad else None, tuple(each.assigned), tuple(each.serving),
            )
            for each in message.stores
        ],
        [
            MemberContainer(each.id, each.assigned, each.holder, each.phase, each.epoch, each.error)
            for each in message.containers
        ],
        tuple(message.controllers), message.leader, moves_of(message.latest),
    )  # fmt: skip


def moves_of(messages: Iterable[added.ContainerMove]) -> list[ContainerMove]:
    """Return messages as values."""
    return [ContainerMove(each.container, each.source, each.target, each.reason) for each in messages]


def accounts_of(message: added.AccountDescriptions) -> AccountList:
    """Return a message as a value."""
    if not message.HasField("own"):
        return AccountList(None, None)
    everyone = [_rights(each) for each in message.accounts]
    return AccountList(_rights(message.own), everyone if message.hasAll else None)


def _rights(message: added.AccountDescriptions.Account) -> AccountRights:
    return AccountRights(message.name, message.hasPassword, tuple(message.entries))
