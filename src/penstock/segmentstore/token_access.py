"""`TokenAccess`: checks the delegation token of each request, before the segment is looked up.

A client without permission gets the same answer for every segment, whether it exists and is here or not. Appends are
covered by the token of their writer's SetupAppend.

Source: wire-protocol 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.model.errors import PenstockError, TokenExpiredError, TokenRefusedError
from penstock.model.names import is_mark_segment
from penstock.model.permissions import Permission
from penstock.security.tokens import LEEWAY_S, STATISTICS_CLAIM, TokenVerifier
from penstock.segmentstore.request_audit import RequestAudit
from penstock.segmentstore.writer_tokens import WITHOUT_TOKEN
from penstock.wire import commands as wire
from penstock.wire.commands import AuthTokenCheckFailed, WireCommand

#: Codes of AuthTokenCheckFailed. Clients of Pravega know no others.
CHECK_FAILED = 0
EXPIRED = 1

#: Returns the segments of a request, all of which its token must permit.
_SegmentsOf = Callable[[Any], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a request needs. `segments` None: a token of a server, or one for statistics."""

    permission: Permission
    segments: _SegmentsOf | None = None
    is_statistics: bool = False


def _segment(command: Any) -> tuple[str, ...]:
    return (command.segment,)


_READ = _Rule(Permission.READ, _segment)
_UPDATE = _Rule(Permission.READ_UPDATE, _segment)
_SERVER = _Rule(Permission.READ_UPDATE)

RULES: Mapping[type[WireCommand], _Rule] = {
    wire.ReadSegment: _READ,
    wire.GetStreamSegmentInfo: _READ,
    wire.GetSegmentAttribute: _READ,
    wire.LocateOffset: _READ,
    wire.GetTableSegmentInfo: _READ,
    wire.ReadTable: _READ,
    wire.ReadTableKeys: _READ,
    wire.ReadTableEntries: _READ,
    wire.ReadTableEntriesDelta: _READ,
    wire.GetChunkLayout: _READ,
    wire.ReturnChunkLease: _READ,
    wire.SetupAppend: _UPDATE,
    wire.CreateTransientSegment: _Rule(Permission.READ_UPDATE, lambda command: (command.parent_segment,)),
    wire.MergeSegments: _Rule(Permission.READ_UPDATE, lambda command: (command.target, command.source)),
    wire.UpdateSegmentAttribute: _UPDATE,
    wire.SealSegment: _UPDATE,
    wire.TruncateSegment: _UPDATE,
    wire.UpdateTableEntries: _UPDATE,
    wire.RemoveTableKeys: _UPDATE,
    wire.CreateTableSegment: _UPDATE,
    wire.DeleteTableSegment: _UPDATE,
    wire.CreateSegment: _SERVER,
    wire.DeleteSegment: _SERVER,
    wire.UpdateSegmentPolicy: _SERVER,
    wire.MergeSegmentsBatch: _SERVER,
    wire.FlushToStorage: _SERVER,
    wire.ListStorageChunks: _SERVER,
    wire.GetContainerImage: _SERVER,
    wire.GetStatistics: _Rule(Permission.READ, is_statistics=True),
}


class TokenAccess:
    """Checks requests. `wall_clock_s` returns the Unix time, `verifier` accepts tokens, `audit` records refusals.

    `needs_certificate`: clients need a certificate besides; other processes of the server have tokens of a server.
    """

    def __init__(
        self,
        verifier: TokenVerifier,
        wall_clock_s: Callable[[], float],
        audit: RequestAudit | None = None,
        *,
        needs_certificate: bool = False,
    ) -> None:
        self._needs_certificate = needs_certificate
        self._verifier = verifier
        self._wall_clock_s = wall_clock_s
        self._audit = audit
        #: Refused requests, by reason, for metrics.
        self.refused: dict[str, int] = {"expired": 0, "refused": 0}

    def check(self, command: WireCommand, peer: str = "", user: str = "") -> AuthTokenCheckFailed | None:
        """Return the refusal of a request; None: it is permitted.

        `peer`: ``host:port`` of the client. `user`: what its certificate represents; empty: it has none.
        """
        if type(command) in WITHOUT_TOKEN:
            return None
        try:
            self._require(command, user)
        except TokenExpiredError as error:
            return self._refusal(command, peer, user, "expired", EXPIRED, error)
        except TokenRefusedError as error:
            return self._refusal(command, peer, user, "refused", CHECK_FAILED, error)
        return None

    def _refusal(
        self, command: WireCommand, peer: str, user: str, kind: str, code: int, error: PenstockError
    ) -> AuthTokenCheckFailed:
        self.refused[kind] += 1
        if self._audit is not None:
            self._audit.note_refused(command, peer, str(error), user)
        return AuthTokenCheckFailed(getattr(command, "request_id", -1), "", code)

    def require_server(self, token: str) -> None:
        """Raise `TokenRefusedError` unless the token is one of a server."""
        if not self._verifier.verify(token).is_master():
            raise TokenRefusedError("this request needs a server's token")

    def left_s(self, token: str) -> float | None:
        """Return for how many seconds an accepted token is still valid; None: it does not expire."""
        expires_s = self._verifier.verify(token).expires_s
        return None if expires_s is None else expires_s + LEEWAY_S - self._wall_clock_s()

    def _require(self, command: WireCommand, user: str) -> None:
        """Raise `TokenRefusedError` if the token does not permit the request."""
        rule = RULES.get(type(command))
        grant = self._verifier.verify(getattr(command, "token", ""))
        if rule is None:
            raise TokenRefusedError(f"{type(command).__name__} is not permitted")
        if grant.is_master():
            return
        if self._needs_certificate and not user:
            raise TokenRefusedError("security.client_certificates is required, and this connection has no certificate")
        if rule.is_statistics:
            if any(claim.name == STATISTICS_CLAIM and claim.permission >= rule.permission for claim in grant.claims):
                return
        elif rule.segments is not None:
            segments = rule.segments(command)
            is_permitted = all(grant.permission(segment) >= rule.permission for segment in segments)
            # Watermarks are written by controllers, whose token covers every segment.
            if is_permitted and (rule.permission is Permission.READ or not any(map(is_mark_segment, segments))):
                return
        raise TokenRefusedError(f"the token does not permit {type(command).__name__}")
