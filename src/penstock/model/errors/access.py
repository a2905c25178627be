"""Errors about who calls, and what that principal may do. See `penstock.model.errors`."""

from __future__ import annotations

from penstock.model.errors.root import PenstockError


class AccessError(PenstockError):
    """A server refused a request because of who sent it. Nothing was done."""


class AuthenticationError(AccessError):
    """The request has no valid credentials: none at all, an unknown user, or a wrong password."""


class AuthenticationBusyError(AuthenticationError):
    """Too many passwords are being verified, or this address has failed too often. A later attempt may succeed."""

    is_retriable = True


class AccessDeniedError(AccessError):
    """The credentials are valid, and do not permit this request."""


class TokenRefusedError(AccessError):
    """A segment store refused the delegation token of a request."""


class TokenExpiredError(TokenRefusedError):
    """The delegation token has expired. A new one from the controller permits the same request."""

    is_retriable = True
