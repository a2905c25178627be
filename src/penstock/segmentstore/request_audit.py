"""`RequestAudit`: records requests that a segment store has refused in the audit log of its process.

Permitted requests are not recorded: the controller has recorded who got a token for what.
"""

from __future__ import annotations

from penstock.security.audit_log import AuditEntry, AuditLog
from penstock.security.refusal_limit import RefusalLimit, with_left_out
from penstock.wire.commands import WireCommand
from penstock.wire.commands.base import Request
from penstock.wire.request_ids import text_of


class RequestAudit:
    """See the module. `log` is written and closed by the process."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._limit = RefusalLimit()

    def note_refused(self, command: WireCommand, peer: str, reason: str, user: str = "") -> None:
        """Record a refused request. `peer`: ``host:port`` of the client. The token is not recorded.

        `user`: the account that the client's certificate represents; empty: it has none.
        """
        now_ms = self._log.now_ms()
        left_out = self._limit.left_out_before(peer.rpartition(":")[0], user, now_ms)
        if left_out is None:
            return
        resource = next(
            (str(found) for name in ("segment", "target", "parent_segment") if (found := getattr(command, name, ""))),
            "",
        )
        self._log.record(
            AuditEntry(
                now_ms,
                user,
                peer,
                type(command).__name__,
                resource,
                "refused",
                with_left_out(reason, left_out),
                request_id=text_of(command.request_id) if isinstance(command, Request) else "",
            )
        )
