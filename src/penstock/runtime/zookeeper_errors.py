"""The errors of kazoo, translated into those of `penstock.model.errors.coordination`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.errors.coordination import (
    CoordinationError,
    CoordinationOutcomeUnknownError,
    CoordinationRefusedError,
    CoordinationUnavailableError,
    EphemeralParentError,
    NodeExistsError,
    NodeNotEmptyError,
    NodeVersionError,
    NoSuchNodeError,
    SessionExpiredError,
)
from penstock.runtime.coordination import CreateNode, NodeChange, parent_of


def is_lost(error: Exception) -> bool:
    """Return whether a request got no answer."""
    from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, OperationTimeoutError, SystemZookeeperError

    return isinstance(error, ConnectionClosedError | ConnectionLoss | OperationTimeoutError | SystemZookeeperError)


def translated(error: Exception, what: str, path: str, is_change: bool) -> CoordinationError:
    """Return the error of an answer to a request. `what`: the request, for the message."""
    from kazoo import exceptions as kazoo

    if isinstance(error, kazoo.NoNodeError):
        return NoSuchNodeError(path, f"cannot {what}: it does not exist")
    if isinstance(error, kazoo.NodeExistsError):
        return NodeExistsError(path, "it exists already")
    if isinstance(error, kazoo.BadVersionError):
        return NodeVersionError(path, f"cannot {what}: it was changed meanwhile")
    if isinstance(error, kazoo.NotEmptyError):
        return NodeNotEmptyError(path, "it has children and cannot be deleted")
    if isinstance(error, kazoo.NoChildrenForEphemeralsError):
        return EphemeralParentError(path, f"{parent_of(path)} is ephemeral and can have no children")
    if isinstance(error, kazoo.SessionExpiredError | kazoo.UnknownSessionError):
        return SessionExpiredError(f"cannot {what}: the session has ended; open another one")
    if isinstance(error, kazoo.SessionMovedError | kazoo.ThrottledOpError):
        return CoordinationUnavailableError(f"cannot {what} now: {error!r}")
    refused = (
        kazoo.NoAuthError, kazoo.AuthFailedError, kazoo.InvalidACLError, kazoo.SessionClosedRequireSaslError,
        kazoo.QuotaExceededError, kazoo.BadArgumentsError, kazoo.UnimplementedError, kazoo.NotReadOnlyCallError,
        PermissionError,
    )  # fmt: skip
    if isinstance(error, refused) or not is_change:
        hint = " (check cluster.zookeeper_user and its password)" if isinstance(error, kazoo.NoAuthError) else ""
        return CoordinationRefusedError(f"cannot {what}: ZooKeeper refuses it: {error!r}{hint}")
    return CoordinationOutcomeUnknownError(f"{what}: {error!r}; it may have been done")


def refused_change(changes: Sequence[NodeChange], results: Sequence[object], what: str) -> CoordinationError | None:
    """Return the error of the change by which a transaction was refused; None: it was made."""
    from kazoo.exceptions import RolledBackError, RuntimeInconsistency

    failed = [
        (change, result) for change, result in zip(changes, results, strict=True) if isinstance(result, Exception)
    ]
    for change, result in failed:
        if not isinstance(result, RolledBackError | RuntimeInconsistency):
            verb = "create" if isinstance(change, CreateNode) else "change"
            return translated(result, f"{verb} {change.path}", change.path, True)
    return CoordinationRefusedError(f"cannot {what}: ZooKeeper refuses it: {failed[0][1]!r}") if failed else None
