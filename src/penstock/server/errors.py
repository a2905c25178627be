"""Errors of the assembled server and of its processes."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.errors.coordination import CoordinationError


class DataDirectoryError(InvalidArgumentError):
    """The directory holds other data than the requested ones."""


class ClusterMismatchError(InvalidArgumentError):
    """Settings differ from the identity of the cluster, which never changes."""


class NoSuchStoreError(InvalidArgumentError):
    """No live segment store of the cluster has this name."""


class PortInUseError(InvalidArgumentError):
    """A port to listen on is in use, or this user may not listen on it."""


class ServerProcessError(PenstockError):
    """A server did not start, did not stop, or ended on its own."""


class StoreProcessError(PenstockError):
    """A process with a segment store did not start, or did not stop cleanly."""


class StoreRefusedError(StoreProcessError):
    """A segment store refused to start. `kind` is the name of its error."""

    def __init__(self, store: int, kind: str, message: str) -> None:
        super().__init__(f"segment store {store} does not start: {message}")
        self.kind = kind


class UnknownClusterError(CoordinationError):
    """There is no cluster at the given place."""


class JarsUnavailableError(PenstockError):
    """The jars of BookKeeper's client cannot be fetched."""
