"""Client certificates: which account a verified one represents, and which authorities are trusted to issue them.

The account is named by a subject alternative name of type URI, ``penstock:user/NAME``; a certificate without one names
it by its common name. The certificate of the server itself represents no account: its own processes present it.

The library of gRPC can require a certificate, and cannot ask for one that may be missing. So a controller that accepts
certificates besides passwords has a second port for them.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model.errors import AuthenticationError
from penstock.security.errors import SecurityFileError

if TYPE_CHECKING:
    import grpc

#: Values of `security.client_certificates`.
NONE = "none"
OPTIONAL = "optional"
REQUIRED = "required"
CHOICES = (NONE, OPTIONAL, REQUIRED)

#: The port for certificates is the one of the controller plus this, unless it is set.
PORT_OFFSET = 2
_USER_PREFIX = "penstock:user/"
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
#: Earlier certificates of the server that are remembered: connections may still use them.
_OWN_COUNT_MAX = 8


@dataclass(frozen=True, slots=True)
class CertificatePort:
    """A port of a controller whose clients need a certificate. `port` 0: any free one. `credentials`: the server's."""

    port: int
    credentials: grpc.ServerCredentials


def user_in(uris: Iterable[str], common_names: Iterable[str]) -> str:
    """Return the account that a certificate with these names represents.

    Raises `AuthenticationError` if it names none, or several.
    """
    users = {uri.removeprefix(_USER_PREFIX) for uri in uris if uri.startswith(_USER_PREFIX)}
    if not users:
        users = set(common_names)
    if len(users) != 1 or not all(users):
        found = ", ".join(sorted(map(repr, users))) or "none"
        raise AuthenticationError(
            f"a client certificate names one account, as URI {_USER_PREFIX}NAME among its subject alternative names or "
            f"as its common name; this one names: {found}"
        )
    return users.pop()


def user_of_peer(certificate: Mapping[str, Sequence[Sequence[object]]] | None) -> str:
    """Return the account of a connection of asyncio; empty: no certificate, or one that names no account."""
    try:
        return account_in(certificate) or ""
    except AuthenticationError:
        return ""


def account_in(certificate: Mapping[str, Sequence[Sequence[object]]] | None) -> str | None:
    """Return the account that a certificate represents; None: there is no certificate.

    `certificate`: what `ssl.SSLObject.getpeercert` returns, so it is verified. Raises `AuthenticationError` if it names
    no account, or several.
    """
    if not certificate:
        return None
    uris = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    common_names = [str(pair[1]) for pair in pairs if isinstance(pair, tuple) and pair[0] == "commonName"]
    return user_in(uris, common_names)


class CallerCertificates:
    """Finds the account of the certificate of a gRPC connection. `add_own` names the server's own certificate."""

    def __init__(self) -> None:
        self._own: list[bytes] = []

    def add_own(self, pem: bytes) -> None:
        """Give no account to this certificate, the first one of a PEM text. Earlier ones stay known."""
        found = first_certificate(pem)
        if found not in self._own:
            self._own = [*self._own[1 - _OWN_COUNT_MAX :], found]

    def user_of(self, properties: Mapping[str, Iterable[bytes]]) -> str | None:
        """Return the account that a connection's certificate represents; None: it has none, or that of the server.

        `properties`: what gRPC says of the connection, which it has verified. Raises `AuthenticationError` for a
        certificate that names no account, or several.
        """
        pem = b"".join(properties.get("x509_pem_cert") or ())
        if not pem or first_certificate(pem) in self._own:
            return None
        uris = [each.decode("utf-8", "replace") for each in properties.get("peer_uri") or ()]
        return user_in(uris, [each.decode("utf-8", "replace") for each in properties.get("x509_common_name") or ()])


def first_certificate(pem: bytes) -> bytes:
    """Return the first certificate of a PEM text, as DER; empty: the text has none."""
    begin, end = pem.find(_BEGIN), pem.find(_END)
    if begin < 0 or end < begin:
        return b""
    try:
        return ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)].decode("ascii"))
    except ValueError:
        return b""


def read_client_authorities(path: Path) -> bytes:
    """Return the PEM text of the authorities of client certificates. Raises `SecurityFileError`."""
    try:
        content = path.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode("ascii"))
    except OSError as error:
        raise SecurityFileError(f"security.client_ca: {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # `SSLError` is none of these, and an `OSError`.
        raise SecurityFileError(f"security.client_ca: {path} is not a PEM file: {error}") from error
    return content


def ask_for_certificates(context: ssl.SSLContext, authorities: bytes) -> None:
    """Let a server's context ask clients for a certificate, which they may lack; one of these authorities is accepted.

    More authorities may be added later; none can be removed from a live context.
    """
    context.load_verify_locations(cadata=authorities.decode("ascii"))
    context.verify_mode = ssl.CERT_OPTIONAL
