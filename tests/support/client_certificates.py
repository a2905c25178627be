"""`ClientAuthority`: an authority of client certificates, for tests."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM
_DAY = datetime.timedelta(days=1)


class ClientAuthority:
    """See the module. `path`: its certificate."""

    def __init__(self, directory: Path, name: str = "clients") -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name([name])
        self.path = directory / f"{name}.crt"
        made = _builder(self._name, self._name, 9, self._key).add_extension(x509.BasicConstraints(True, 0), True)
        self.path.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def issue(
        self, file: str, common_names: Sequence[str] = (), uris: Sequence[str] = (), valid_days: int = 9
    ) -> tuple[Path, Path]:
        """Return the files of a new certificate and its key; a negative `valid_days`: it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(common_names), self._name, valid_days, key)
        if uris:
            names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
            builder = builder.add_extension(names, False)
        certificate, private_key = self._directory / f"{file}.crt", self._directory / f"{file}.key"
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        private_key.write_bytes(
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return certificate, private_key


def _name(common_names: Sequence[str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text) for text in common_names])


def _builder(
    subject: x509.Name, issuer: x509.Name, valid_days: int, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 20 * _DAY)
        .not_valid_after(now + valid_days * _DAY)
    )
