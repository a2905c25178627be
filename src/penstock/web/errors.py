"""Statuses of HTTP for the errors of the client, and the body that explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.model.errors import (
    AccessDeniedError,
    AccessError,
    AuthenticationBusyError,
    AuthenticationError,
    ConnectionLostError,
    ControllerUnavailableError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchSegmentError,
    NoSuchStreamError,
    NoSuchTableError,
    OutcomeUnknownError,
    PenstockError,
    ScopeExistsError,
    ScopeNotEmptyError,
    SegmentTruncatedError,
    StorageFullError,
    StreamExistsError,
    StreamNotSealedError,
    StreamSealedError,
    TableExistsError,
    TokenRefusedError,
    TransactionError,
    UnsupportedOperationError,
)


class BadRequestError(InvalidArgumentError):
    """A request that is not understood: a wrong field, type, query or path."""


class WebAccountError(PenstockError):
    """The controller does not accept the account of the web server itself."""


class NoSuchReaderError(PenstockError):
    """A reader group has no reader of this name."""


class NoSuchEpochError(PenstockError):
    """A stream has no epoch of this number."""


class ForeignFormError(AccessError):
    """A form without the token of a page of this server: a page of another site may have made it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is not the wanted one. `body` has ``error`` and ``message``."""

    status: int
    error: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, object]:
        """The JSON body."""
        return {"error": self.error, "message": self.message}


#: The first that matches counts: subclasses before their bases.
_STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (AuthenticationBusyError, 503),
    (WebAccountError, 503),
    (AuthenticationError, 401),
    (AccessDeniedError, 403),
    (TokenRefusedError, 403),
    (ForeignFormError, 403),
    (NoSuchScopeError, 404),
    (NoSuchStreamError, 404),
    (NoSuchEpochError, 404),
    (NoSuchReaderGroupError, 404),
    (NoSuchTableError, 404),
    (NoSuchReaderError, 404),
    (NoSuchSegmentError, 404),
    (SegmentTruncatedError, 410),
    (ScopeExistsError, 409),
    (StreamExistsError, 409),
    (TableExistsError, 409),
    (ScopeNotEmptyError, 412),
    (StreamNotSealedError, 412),
    (StreamSealedError, 409),
    (TransactionError, 409),
    (MetadataConflictError, 409),
    (UnsupportedOperationError, 501),
    (InvalidArgumentError, 400),
    (StorageFullError, 507),
    (ControllerUnavailableError, 503),
    (ConnectionLostError, 503),
    (OutcomeUnknownError, 504),
    (TimeoutError, 504),
    (PenstockError, 500),
)


def refusal_of(error: BaseException) -> Refusal:
    """Return the answer for an error of the client."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="penstock"'
    elif status == 503:
        headers["Retry-After"] = "1"
    message = str(error)
    if status == 504 and not message:
        message = "no answer in time; whether a change was made is unknown"
    return Refusal(status, type(error).__name__.removesuffix("Error"), message, headers)
