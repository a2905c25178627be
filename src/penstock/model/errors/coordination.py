"""Errors of the coordination service, in which the processes of a cluster find each other."""

from __future__ import annotations

from penstock.model.errors.root import OutcomeUnknownError, PenstockError


class CoordinationError(PenstockError):
    """A request to the coordination service failed."""


class CoordinationUnavailableError(CoordinationError):
    """No server of the coordination service can be reached, or it gave no answer to a read. Nothing was changed.

    The session may be alive or not; only a server that is reached again can tell.
    """

    is_retriable = True


class CoordinationOutcomeUnknownError(CoordinationError, OutcomeUnknownError):
    """A change was sent to the coordination service and got no answer. It may have been made, or be made later.

    Read the node before repeating the change, and repeat it only on the version that was read.
    """


class CoordinationRefusedError(CoordinationError):
    """The coordination service refused the request: it permits too little, or the settings do not fit it."""


class SessionExpiredError(CoordinationError):
    """The session has ended and its ephemeral nodes are deleted. Open another one."""


class NodeError(CoordinationError):
    """A change or read of one node was refused; nothing was changed.

    Attributes:
        path: the node.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"node {path} of the coordination service: {message}")
        self.path = path


class NoSuchNodeError(NodeError):
    """The node, or the parent of a node to create, does not exist."""


class NodeExistsError(NodeError):
    """The node to create exists."""


class NodeVersionError(NodeError):
    """The node has another version than the change requires: it was changed meanwhile."""


class NodeNotEmptyError(NodeError):
    """The node to delete has children."""


class EphemeralParentError(NodeError):
    """A node to create would be a child of an ephemeral node."""


class NodeFormatError(CoordinationError):
    """A node's content cannot be decoded, or only a later version reads it. Nothing was changed.

    Attributes:
        path: the node.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"node {path} of the coordination service: {message}")
        self.path = path
