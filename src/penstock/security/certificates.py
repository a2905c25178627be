"""A private certificate authority and a server certificate, for `penstock standalone --secure`.

Made with the `cryptography` package (extra ``[security]``).
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from cryptography import x509

#: Validity of the certificates that are made here. Clocks of clients may be late by a day.
_VALID_DAYS = 825
_CA_VALID_DAYS = 3650
_EARLY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM texts: certificate of the authority, certificate of the server, and the server's private key."""

    authority: bytes
    certificate: bytes
    private_key: bytes

    def __repr__(self) -> str:
        """Return a text without the key."""
        return "CertificateFiles()"


def make_certificates(names: Sequence[str], now: datetime.datetime) -> CertificateFiles:
    """Make a new authority and a certificate for these host names and addresses.

    The authority's key is not kept: another certificate needs another authority. Raises `InvalidArgumentError` without
    the package.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise InvalidArgumentError(
            "making certificates needs the package 'cryptography': install penstock with its extra [security], or name "
            "a certificate and its key with --certificate and --private-key"
        ) from error

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = name("Penstock private certificate authority")
    usage = {
        "digital_signature": False, "content_commitment": False, "key_encipherment": False, "data_encipherment": False,
        "key_agreement": False, "key_cert_sign": False, "crl_sign": False, "encipher_only": False,
        "decipher_only": False,
    }  # fmt: skip
    authority = (
        x509.CertificateBuilder()
        .subject_name(authority_name)
        .issuer_name(authority_name)
        .public_key(authority_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + datetime.timedelta(days=_CA_VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    server_key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name(names[0][:64]))
        .issuer_name(authority_name)
        .public_key(server_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        # Old TLS libraries refuse a server certificate that is its own authority.
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return CertificateFiles(
        authority.public_bytes(pem),
        certificate.public_bytes(pem),
        server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _general_name(text: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
