"""`ClientSecurity`: the account of a client, and the certificate authorities that it trusts.

What a program does not give comes from environment variables, so that commands, jobs and Spark tasks need no options:
``PENSTOCK_USER``, ``PENSTOCK_PASSWORD_FILE`` or ``PENSTOCK_PASSWORD``, and ``PENSTOCK_CA``, a PEM file.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.model.errors import InvalidArgumentError

USER_VARIABLE = "PENSTOCK_USER"
PASSWORD_VARIABLE = "PENSTOCK_PASSWORD"
PASSWORD_FILE_VARIABLE = "PENSTOCK_PASSWORD_FILE"
CA_VARIABLE = "PENSTOCK_CA"
#: Of clients; none is a setting of a server.
SECURITY_VARIABLES = (USER_VARIABLE, PASSWORD_VARIABLE, PASSWORD_FILE_VARIABLE, CA_VARIABLE)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The name and the password of an account. The password is not in its representation."""

    user: str
    password: str = field(repr=False)

    def header(self) -> str:
        """Return the value of the ``authorization`` header of a call."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """The session of an account that has logged in, in place of its password. It is not in its representation."""

    token: str = field(repr=False)

    def header(self) -> str:
        """Return the value of the ``authorization`` header of a call."""
        return f"Bearer {self.token}"


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """See the module.

    Attributes:
        credentials: None: the client sends none.
        ca: certificates of trusted authorities, PEM; None: those of the system.
    """

    credentials: Credentials | SessionCredentials | None = None
    ca: bytes | None = None

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of encrypted connections. Raises `InvalidArgumentError` for bad certificates."""
        try:
            return ssl.create_default_context(cadata=None if self.ca is None else self.ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgumentError(f"the certificates of trusted authorities cannot be used: {error}") from error


def client_security(
    credentials: Credentials | None = None, ca: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ClientSecurity:  # fmt: skip
    """Return the security of a client: what is given, else what the environment says.

    Raises `InvalidArgumentError` for a file that cannot be read, or a user without a password.
    """
    variables = os.environ if environment is None else environment
    if credentials is None and (user := variables.get(USER_VARIABLE)):
        if file := variables.get(PASSWORD_FILE_VARIABLE):
            password = _read(file, PASSWORD_FILE_VARIABLE).decode("utf-8", "replace").split("\n", 1)[0].rstrip("\r")
        else:
            password = variables.get(PASSWORD_VARIABLE, "")
        if not password:
            raise InvalidArgumentError(
                f"{USER_VARIABLE} is set, and there is no password: set {PASSWORD_FILE_VARIABLE} or {PASSWORD_VARIABLE}"
            )
        credentials = Credentials(user, password)
    path = ca if ca is not None else variables.get(CA_VARIABLE) or None
    return ClientSecurity(credentials, None if path is None else _read(os.fspath(path), "ca"))


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgumentError(f"{what}: {path} cannot be read: {error.strerror or error}") from error
