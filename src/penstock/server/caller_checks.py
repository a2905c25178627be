"""The checks of a server's callers: of calls by a controller, of requests by a segment store.

Their modules are loaded only by servers that check their callers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.runtime.runtime import Runtime

if TYPE_CHECKING:
    import grpc

    from penstock.controller.grpc.guard import CallGuard
    from penstock.security.audit_log import AuditLog
    from penstock.security.client_certificates import CertificatePort
    from penstock.security.server_security import ServerSecurity
    from penstock.segmentstore.token_access import TokenAccess


def token_access(security: ServerSecurity | None, runtime: Runtime, audit: AuditLog | None) -> TokenAccess | None:
    """Return the check of the tokens of requests to a store; None without authentication. `audit` gets refusals."""
    if security is None or security.verifier is None:
        return None
    from penstock.segmentstore.request_audit import RequestAudit
    from penstock.segmentstore.token_access import TokenAccess

    recorder = None if audit is None else RequestAudit(audit)
    return TokenAccess(
        security.verifier,
        lambda: runtime.wall_clock_ms() / 1000,
        recorder,
        needs_certificate=security.settings.requires_certificates,
    )


def call_guard(security: ServerSecurity | None) -> CallGuard | None:
    """Return the check of a controller's callers; None without authentication."""
    if security is None or security.authenticator is None or security.signer is None:
        return None
    from penstock.controller.grpc.guard import CallGuard

    is_strict = not security.settings.readers_write_group_state
    return CallGuard(security.authenticator, security.signer, is_strict=is_strict, certificates=security.certificates)


def port_security(
    security: ServerSecurity | None, controller_port: int
) -> tuple[grpc.ServerCredentials | None, CertificatePort | None]:
    """Return the credentials of a controller's port, and its further port for client certificates.

    None: the port is not encrypted; there is no further one. `controller_port`: the wanted one; 0: any free one.
    """
    if security is None:
        return None, None
    return security.grpc_credentials(), security.certificate_port(controller_port)
