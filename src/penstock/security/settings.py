"""`SecuritySettings`: encryption, authentication and authorization of a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.errors import InvalidArgumentError
from penstock.security.client_certificates import CHOICES, NONE, OPTIONAL, REQUIRED

_CHOICES = ("off", "on")


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Encryption, authentication and authorization. Both are off by default, for a server on this machine alone.

    Attributes:
        tls: "on": all ports are encrypted with TLS.
        certificate, private_key: PEM files; the first may have a chain. Empty: ``security/server.crt`` and
            ``security/server.key`` in `data_dir`.
        authority: PEM file with the certificate authorities of the other processes of a cluster. Empty:
            ``security/ca.crt`` in `data_dir`, or, if that is missing, those of the system.
        client_ca: PEM file with the authorities of client certificates.
        client_certificates: "none"; "optional": an account can be proved by a certificate in place of a password, at
            the controller's port for them; "required": every client needs a certificate. Both need `client_ca`.
        certificate_port: port of the controller at which a certificate is needed, if they are optional; 0: the second
            one after the controller's. If the controller has any free port, so has this.
        auth: "on": callers need an account, and permissions on what they use.
        accounts: file of accounts, in Pravega's format. Empty: ``security/passwd`` in `data_dir`.
        token_key_file: keys of delegation tokens, one per line; the first one signs. Empty: ``security/token.key`` in
            `data_dir`.
        token_key: the key itself, in place of the file; it cannot be rotated while the server runs. It appears in no
            message.
        token_ttl_s: how long a delegation token is valid.
        readers_write_group_state: whether READ permission suffices for readers of groups; else they need READ_UPDATE.
        reload_interval_s: how often the files are checked for changes, which are applied without a restart.
        makes_missing_files: make the files that are missing: a private certificate authority, a certificate, a key of
            tokens, and an administrator.
        is_insecure_allowed: listen for other machines although authentication is off.
    """

    tls: str = "off"
    certificate: str = ""
    private_key: str = ""
    authority: str = ""
    client_ca: str = ""
    client_certificates: str = NONE
    certificate_port: int = 0
    auth: str = "off"
    accounts: str = ""
    token_key_file: str = ""
    token_key: str = field(default="", repr=False)
    token_ttl_s: int = 600
    readers_write_group_state: bool = True
    reload_interval_s: float = 10.0
    makes_missing_files: bool = False
    is_insecure_allowed: bool = False

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        for name in ("tls", "auth"):
            if getattr(self, name) not in _CHOICES:
                raise InvalidArgumentError(f"security.{name} is {getattr(self, name)!r}: it is on or off")
        self._check_client_certificates()
        if self.token_ttl_s < 1:
            # Clients of Pravega need an expiry: the Rust client fails without one.
            raise InvalidArgumentError(f"security.token_ttl_s is {self.token_ttl_s}: it is at least 1")
        if self.reload_interval_s <= 0:
            raise InvalidArgumentError(f"security.reload_interval_s is {self.reload_interval_s}: it is above 0")

    def _check_client_certificates(self) -> None:
        mode = self.client_certificates
        if mode not in CHOICES:
            raise InvalidArgumentError(f"security.client_certificates is {mode!r}: it is none, optional or required")
        if not 0 <= self.certificate_port <= 65535:
            raise InvalidArgumentError(
                f"security.certificate_port is {self.certificate_port}: a port is between 0 (chosen here) and 65535"
            )
        if mode == NONE:
            return
        if not (self.has_tls and self.has_auth):
            raise InvalidArgumentError(
                f"security.client_certificates is {mode}, which needs security.tls and security.auth: certificates are "
                "part of TLS, and represent accounts"
            )
        if not self.client_ca:
            raise InvalidArgumentError(
                f"security.client_certificates is {mode}, and security.client_ca names no file with their authorities"
            )

    @property
    def has_tls(self) -> bool:
        """Whether ports are encrypted."""
        return self.tls == "on"

    @property
    def has_auth(self) -> bool:
        """Whether callers need an account."""
        return self.auth == "on"

    @property
    def has_certificate_port(self) -> bool:
        """Whether the controller has a port for client certificates besides the one for passwords."""
        return self.client_certificates == OPTIONAL

    @property
    def requires_certificates(self) -> bool:
        """Whether every client needs a certificate."""
        return self.client_certificates == REQUIRED
