"""`CallAudit`: records changes and refusals of the controller's calls in the audit log.

Calls that need write access but only read, or keep something alive, are not recorded (`NOT_CHANGES`). No entry has the
contents of events or delegation tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from penstock.controller.grpc.access import Access, AccessOf
from penstock.controller.grpc.call import principal
from penstock.model.errors import AccessDeniedError, AuthenticationError, PenstockError
from penstock.model.permissions import Permission
from penstock.rpc import controller_pb2 as pb
from penstock.security.audit_log import AuditEntry, AuditLog
from penstock.security.refusal_limit import RefusalLimit, with_left_out

#: Calls that need write access, and change nothing that an administrator would search for.
NOT_CHANGES: frozenset[str] = frozenset({
    "getControllerToBucketMapping", "getCurrentSegments", "getCurrentSegmentsKeyValueTable", "getDelegationToken",
    "getEpochSegments", "getSegments", "listSubscribers", "noteTimestampFromWriter", "pingTransaction",
    "readAudit", "updateSubscriberStreamCut",
})  # fmt: skip
#: Calls that change nothing, and are recorded.
LOG_INS: frozenset[str] = frozenset({"openSession"})
#: Fields that are not recorded.
_SECRET_FIELDS = ("delegationToken",)

Answer = Callable[[Message], Awaitable[Message]]


class CallAudit:
    """Records calls in `log`. `answers` are the controller's own: they give the state before a change."""

    def __init__(self, log: AuditLog, answers: Mapping[str, Answer]) -> None:
        self._log = log
        self._answers = answers
        self._limit = RefusalLimit()

    def begin(self, call: str, access_of: AccessOf, peer: str, request_id: str) -> CallRecord:
        """Return the record of a call that begins."""
        principal.set("")
        return CallRecord(self, call, access_of, peer, request_id)

    def is_recorded(self, call: str, needed: Access | None) -> bool:
        """Return whether a call that is permitted is recorded."""
        if self._log.settings.has_reads or call in LOG_INS:
            return True
        return needed is not None and needed.permission is Permission.READ_UPDATE and call not in NOT_CHANGES

    def check_may_change(self) -> None:
        """See `AuditLog.check_may_change`."""
        self._log.check_may_change()

    async def state_before(self, call: str, request: Message) -> dict[str, object] | None:
        """Return the present state of what a call will change; None where it is not known."""
        found = _BEFORE.get(call)
        if found is None:
            return None
        query, make = found
        try:
            return as_json(await self._answers[query](make(request)))
        except PenstockError as error:
            return {"unknown": str(error)}

    def add(self, entry: AuditEntry) -> None:
        """Add an entry."""
        self._log.record(entry)

    def refusals_left_out(self, address: str) -> int | None:
        """See `RefusalLimit.left_out_before`; for the account of the present call."""
        return self._limit.left_out_before(address, principal.get(), self.now_ms())

    def now_ms(self) -> int:
        """Return the Unix time."""
        return self._log.now_ms()


class CallRecord:
    """One call, from its arrival to its outcome."""

    def __init__(self, audit: CallAudit, call: str, access_of: AccessOf, peer: str, request_id: str) -> None:
        self._audit = audit
        self._call = call
        self._access_of = access_of
        self._peer = peer
        self._resource = ""
        self._request_id = request_id
        self._change: dict[str, object] = {}
        self._is_change = False

    def note_request(self, request: Message) -> None:
        """Note what the request is about, before it is checked."""
        try:
            needed = self._access_of(request)
        except PenstockError:
            needed = None  # The call itself reports what is wrong with the request.
        self._resource = "" if needed is None else needed.resource
        self._is_change = self._audit.is_recorded(self._call, needed)

    async def note_permitted(self, request: Message) -> None:
        """Note the content of a request that will be done now. Raises `ControllerUnavailableError` if it may not be."""
        if not self._is_change:
            return
        self._audit.check_may_change()
        self._change = {"request": as_json(request)}
        if (before := await self._audit.state_before(self._call, request)) is not None:
            self._change["before"] = before

    def end(self, reply: Message, duration_s: float) -> None:
        """Record the reply."""
        if self._is_change:
            self._add("done", _status_of(reply), duration_s)

    def fail(self, error: Exception, code: str, duration_s: float) -> None:
        """Record an error."""
        if isinstance(error, (AuthenticationError, AccessDeniedError)):
            left_out = self._audit.refusals_left_out(self._peer.rpartition(":")[0])
            if left_out is not None:
                self._add("refused", with_left_out(str(error), left_out), duration_s)
        elif self._is_change:
            self._add("failed", f"{code}: {error}" if isinstance(error, PenstockError) else code, duration_s)

    def cancel(self, duration_s: float) -> None:
        """Record that the caller did not wait for the reply."""
        if self._is_change:
            self._add("failed", "cancelled by the caller: it may be done", duration_s)

    def _add(self, outcome: str, detail: str, duration_s: float) -> None:
        self._audit.add(AuditEntry(
            self._audit.now_ms(), principal.get(), self._peer, self._call, self._resource, outcome, detail,
            duration_s * 1000, self._request_id, self._change,
        ))  # fmt: skip


def as_json(message: Message) -> dict[str, object]:
    """Return a message as JSON values, without secrets."""
    found: dict[str, object] = MessageToDict(message, preserving_proto_field_name=True)
    for name in _SECRET_FIELDS:
        found.pop(name, None)
    return found


def _status_of(reply: Message) -> str:
    """Return the name of a reply's status; empty without one."""
    for name in ("status", "result"):
        described = reply.DESCRIPTOR.fields_by_name.get(name)
        if described is not None and described.enum_type is not None:
            return str(described.enum_type.values_by_number[getattr(reply, name)].name)
    return ""


def _group_of(request: pb.ReaderGroupConfiguration) -> Message:
    return pb.ReaderGroupInfo(scope=request.scope, readerGroup=request.readerGroupName)


#: Call -> the call that reads what it changes, and its request.
_BEFORE: Mapping[str, tuple[str, Callable[[Any], Message]]] = {
    "updateStream": ("getStreamConfiguration", lambda request: request.streamInfo),
    "updateReaderGroup": ("getReaderGroupConfig", _group_of),
}
