"""`ClientSecurity`: the account of a client, and the certificate authorities that it trusts.

What a program does not give comes from environment variables, so that commands, jobs and Spark tasks need no options:
``PENSTOCK_USER``, ``PENSTOCK_PASSWORD_FILE`` or ``PENSTOCK_PASSWORD``, and the PEM files ``PENSTOCK_CA``,
``PENSTOCK_CERTIFICATE`` and ``PENSTOCK_PRIVATE_KEY``.
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
CERTIFICATE_VARIABLE = "PENSTOCK_CERTIFICATE"
PRIVATE_KEY_VARIABLE = "PENSTOCK_PRIVATE_KEY"
#: Of clients; none is a setting of a server.
SECURITY_VARIABLES = (
    USER_VARIABLE, PASSWORD_VARIABLE, PASSWORD_FILE_VARIABLE, CA_VARIABLE, CERTIFICATE_VARIABLE, PRIVATE_KEY_VARIABLE,
)  # fmt: skip


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
        certificate, private_key: PEM files of the client's own certificate, with its chain, and its key, which has no
            password; empty: the client has none.
    """

    credentials: Credentials | SessionCredentials | None = None
    ca: bytes | None = None
    certificate: str = ""
    private_key: str = ""

    @property
    def has_account(self) -> bool:
        """Whether the client proves an account, by a password, a session, or a certificate."""
        return self.credentials is not None or bool(self.certificate)

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of encrypted connections. Raises `InvalidArgumentError` for bad certificates."""
        try:
            context = ssl.create_default_context(cadata=None if self.ca is None else self.ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgumentError(f"the certificates of trusted authorities cannot be used: {error}") from error
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.private_key, password=_no_password)
            except OSError as error:  # `SSLError` is one.
                raise InvalidArgumentError(
                    f"the client's certificate {self.certificate} with key {self.private_key} cannot be used: "
                    f"{error.strerror or error}"
                ) from error
        return context

    def key_and_chain(self) -> tuple[bytes | None, bytes | None]:
        """Return private key and certificate, PEM; None and None: the client has none. Raises `InvalidArgumentError`.

        They are checked: gRPC reports no error for a pair that does not fit.
        """
        if not self.certificate:
            return None, None
        self.tls_context()
        return _read(self.private_key, "private_key"), _read(self.certificate, "certificate")


def client_security(
    credentials: Credentials | None = None, ca: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None, *,
    certificate: str | os.PathLike[str] | None = None, private_key: str | os.PathLike[str] | None = None,
) -> ClientSecurity:  # fmt: skip
    """Return the security of a client: what is given, else what the environment says.

    Raises `InvalidArgumentError` for a file that cannot be read, a user without a password, or a certificate without
    its key.
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
    if certificate is None and private_key is None:
        certificate = variables.get(CERTIFICATE_VARIABLE) or None
        private_key = variables.get(PRIVATE_KEY_VARIABLE) or None
    if (certificate is None) != (private_key is None):
        missing = "certificate" if certificate is None else "private_key"
        raise InvalidArgumentError(
            f"a client's certificate needs its private key, and {missing} is missing: give certificate= and "
            f"private_key=, or set {CERTIFICATE_VARIABLE} and {PRIVATE_KEY_VARIABLE}"
        )
    return ClientSecurity(
        credentials, None if path is None else _read(os.fspath(path), "ca"),
        "" if certificate is None else os.fspath(certificate), "" if private_key is None else os.fspath(private_key),
    )  # fmt: skip


def _no_password() -> str:
    raise InvalidArgumentError("the client's private key is encrypted: a client needs one without a password")


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgumentError(f"{what}: {path} cannot be read: {error.strerror or error}") from error
