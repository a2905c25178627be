"""Errors of what an operator configures: accounts, entries of access lists, files of security."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError


class AccessEntryError(InvalidArgumentError):
    """An entry of an accounts file that cannot be used; says what is wrong with it."""


class AccountsError(InvalidArgumentError):
    """An accounts file that cannot be used; says which line, and what is wrong with it."""


class AuditLogError(InvalidArgumentError):
    """The file of the audit log cannot be written."""


class PasswordHashError(InvalidArgumentError):
    """A text that is no encoded hash; says what is wrong with it."""


class SecurityFileError(InvalidArgumentError):
    """A file of the server's security is missing, cannot be used, or may be written by others."""


class RotationTooEarlyError(InvalidArgumentError):
    """The next step of a rotation would make servers refuse valid tokens."""
