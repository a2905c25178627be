"""The controller calls that Penstock adds to Pravega's, a part of `ControllerClient`.

Pravega's own controller, or one of an earlier release, does not have them: they raise `UnsupportedOperationError`, or
return None where documented.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from penstock.client.controller.administration import (
    AccountList,
    AssignmentChange,
    AuditEntries,
    ClusterMembers,
    ContainerMove,
    accounts_of,
    members_of,
    moves_of,
)
from penstock.client.controller.controller_messages import retention_from_message
from penstock.client.controller.group_overview import GroupOverview, StreamOfGroup
from penstock.client.controller.retention import RecordedCut, RetentionExplanation, RetentionSubscriber, StreamPlace
from penstock.client.controller.unary_call import CallGroup, UnaryCall
from penstock.model.errors import (
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    StreamError,
    TransactionError,
    UnsupportedOperationError,
)
from penstock.model.names import STATE_STREAM_PREFIX
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb


class AdditionStub(Protocol):
    """The RPCs that are used here."""

    prepareTransaction: UnaryCall[added.PrepareTransactionRequest, added.PrepareTransactionReply]
    explainRetention: UnaryCall[added.ExplainRetentionRequest, added.RetentionExplanation]
    describeReaderGroups: UnaryCall[added.DescribeReaderGroupsRequest, added.DescribeReaderGroupsReply]
    findWholeTail: UnaryCall[added.WholeTailRequest, added.WholeTail]
    describeStream: UnaryCall[added.DescribeStreamRequest, added.StreamDescription]
    describeHistory: UnaryCall[added.DescribeHistoryRequest, added.StreamHistory]
    openSession: UnaryCall[added.OpenSessionRequest, added.OpenSessionReply]
    describeCaller: UnaryCall[added.DescribeCallerRequest, added.DescribeCallerReply]
    describeMembers: UnaryCall[added.DescribeMembersRequest, added.ClusterMembers]
    changeAssignment: UnaryCall[added.ChangeAssignmentRequest, added.ChangeAssignmentReply]
    describeAccounts: UnaryCall[added.DescribeAccountsRequest, added.AccountDescriptions]
    readAudit: UnaryCall[added.ReadAuditRequest, added.AuditEntries]


class AdditionCalls(CallGroup):
    """See the module."""

    _stub: AdditionStub

    @abstractmethod
    def stream_pages(
        self, scope: str, *, tag: str | None = None, token: str = ""
    ) -> AsyncIterator[tuple[str, Sequence[str]]]:
        """Iterate over the streams of a scope page by page."""

    @abstractmethod
    async def over_error(self, scope: str, stream: str, transaction: pb.TxnId, tried: str) -> TransactionError:
        """Return the error with the reason why `tried` cannot be done with a transaction."""

    async def prepare_transaction(self, scope: str, stream: str, transaction: pb.TxnId, *, limit_ms: int) -> float:
        """Prepare an open transaction: it takes no more events, and waits for its decision up to `limit_ms` from now.

        Returns the seconds until its limit ends. Safe to repeat: the later end counts. Raises the subclass of
        `TransactionError` that names the cause; `InvalidArgumentError` for a limit out of bounds, `NoSuchStreamError`,
        `OutcomeUnknownError` without a reply.
        """
        name = f"{scope}/{stream}"
        request = added.PrepareTransactionRequest(
            streamInfo=pb.StreamInfo(scope=scope, stream=stream), txnId=transaction, limitMillis=limit_ms
        )
        reply, _ = await self._change(self._stub.prepareTransaction, request, f"prepare a transaction of {name}")
        if reply.state != added.PREPARED:
            raise await self.over_error(scope, stream, transaction, "prepare")
        return reply.leftMillis / 1000

    async def group_overviews(self, scope: str) -> AsyncIterator[GroupOverview]:
        """Iterate over the registered reader groups of a scope. Raises `NoSuchScopeError`."""
        async for _, groups in self._described_pages(scope, ""):
            for found in groups:
                yield _overview(scope, found)

    async def reader_group_pages(self, scope: str, *, token: str = "") -> AsyncIterator[tuple[str, Sequence[str]]]:
        """Iterate over the names of a scope's groups page by page, each with the token that leads to it.

        Begins at the page of `token`. A controller that is not Penstock's lists the groups' streams among all streams
        of the scope. Raises `NoSuchScopeError`.
        """
        is_first = True
        try:
            async for page, groups in self._described_pages(scope, token, is_names_only=True):
                is_first = False
                yield page, [each.name for each in groups]
        except UnsupportedOperationError:
            if not is_first:
                raise
            async for page, streams in self.stream_pages(scope, token=token):
                names = [each for each in streams if each.startswith(STATE_STREAM_PREFIX)]
                yield page, [each.removeprefix(STATE_STREAM_PREFIX) for each in names]

    async def _described_pages(
        self, scope: str, token: str, *, is_names_only: bool = False
    ) -> AsyncIterator[tuple[str, Sequence[added.ReaderGroupOverview]]]:
        for _ in range(self._settings.list_page_count_max):
            request = added.DescribeReaderGroupsRequest(
                scopeInfo=pb.ScopeInfo(scope=scope), token=token, isNamesOnly=is_names_only
            )
            try:
                reply = await self._ask(
                    self._stub.describeReaderGroups, request, f"describe the reader groups of scope {scope}"
                )
            except NoSuchStreamError as error:
                raise NoSuchScopeError(f"scope {scope} does not exist") from error
            if not reply.groups:
                return
            yield token, reply.groups
            token = reply.token
        raise StreamError(
            f"listing the reader groups of {scope} did not end within {self._settings.list_page_count_max} pages"
        )

    async def group_overview(self, scope: str, group: str) -> GroupOverview:
        """Return which data a reader group retains in its streams. Raises `NoSuchReaderGroupError`."""
        request = added.DescribeReaderGroupsRequest(scopeInfo=pb.ScopeInfo(scope=scope), readerGroup=group)
        try:
            reply = await self._ask(self._stub.describeReaderGroups, request, f"describe reader group {scope}/{group}")
        except NoSuchStreamError as error:
            raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist") from error
        return _overview(scope, reply.groups[0])

    async def whole_tail(self, scope: str, stream: str) -> StreamCut:
        """Return a stream's end, with each transaction wholly before or after it. Raises `NoSuchStreamError`."""
        request = added.WholeTailRequest(streamInfo=pb.StreamInfo(scope=scope, stream=stream))
        reply = await self._ask(self._stub.findWholeTail, request, f"find the tail of {scope}/{stream}")
        return StreamCut(scope, stream, dict(reply.cut))

    async def stream_identity(self, scope: str, stream: str) -> str | None:
        """Return the identity of the stream that has this name now; see `Client.stream_identity`.

        None if the controller does not support it. Raises `NoSuchStreamError`.
        """
        request = added.DescribeStreamRequest(streamInfo=pb.StreamInfo(scope=scope, stream=stream))
        try:
            reply = await self._ask(self._stub.describeStream, request, f"identify stream {scope}/{stream}")
        except UnsupportedOperationError:
            return None
        return reply.identity

    async def stream_history(self, scope: str, stream: str, *, before: int, limit: int) -> added.StreamHistory | None:
        """Return a page of a stream's epochs, oldest first; `before` 0: up to the current one.

        None if the controller does not support it. Raises `NoSuchStreamError`.
        """
        request = added.DescribeHistoryRequest(
            streamInfo=pb.StreamInfo(scope=scope, stream=stream), before=before, limit=limit
        )
        try:
            return await self._ask(self._stub.describeHistory, request, f"read the history of {scope}/{stream}")
        except UnsupportedOperationError:
            return None

    async def open_session(self, user: str = "") -> tuple[str, int]:
        """Return a session of this client's account, and its end as Unix time in ms. A client with a session renews it.

        `user`: another account, for which this client's one may open sessions. Raises `AccessDeniedError` if it may
        not, or there is no such account, `UnsupportedOperationError` for a controller without accounts, or
        without sessions.
        """
        reply = await self._ask(self._stub.openSession, added.OpenSessionRequest(user=user), "log in")
        return reply.token, reply.expiresMillis

    async def caller(self) -> str:
        """Return the name of this client's account; empty: the controller has no accounts.

        Raises `UnsupportedOperationError` if the controller does not support it.
        """
        return (await self._ask(self._stub.describeCaller, added.DescribeCallerRequest(), "identify the caller")).user

    async def members(self) -> ClusterMembers:
        """Return the stores and containers of a cluster on several machines.

        Raises `UnsupportedOperationError` if the controller belongs to a single server, or does not support it.
        """
        found = await self._ask(self._stub.describeMembers, added.DescribeMembersRequest(), "describe the cluster")
        return members_of(found)

    async def change_assignment(
        self, change: AssignmentChange, store: str = "", container_id: int = 0, *, is_dry: bool = False
    ) -> list[ContainerMove]:
        """Change which store runs which containers; return the moves that follow. Nothing is changed if `is_dry`.

        Raises `InvalidArgumentError` for what cannot be done, `OutcomeUnknownError` without a reply, and as `members`.
        """
        request = added.ChangeAssignmentRequest(kind=change.value, store=store, container=container_id, isDry=is_dry)
        what = f"{change.name.lower()} {store}".strip()
        if is_dry:
            return moves_of((await self._ask(self._stub.changeAssignment, request, f"plan to {what}")).moves)
        return moves_of((await self._change(self._stub.changeAssignment, request, what))[0].moves)

    async def accounts(self) -> AccountList:
        """Return the account of this client and what it may do, and all accounts if it may see them.

        Raises `UnsupportedOperationError` if the controller does not support it.
        """
        request = added.DescribeAccountsRequest()
        return accounts_of(await self._ask(self._stub.describeAccounts, request, "describe the accounts"))

    async def audit_entries(self, limit: int) -> AuditEntries:
        """Return the latest entries of the audit log of the controller that answers.

        Raises `UnsupportedOperationError` if it writes none, or does not support it.
        """
        found = await self._ask(self._stub.readAudit, added.ReadAuditRequest(limit=limit), "read the audit log")
        return AuditEntries(tuple(found.lines), found.file, found.problem, found.lost)

    async def explain_retention(self, scope: str, stream: str) -> RetentionExplanation:
        """Return what the next retention pass over a stream would truncate, and why. Raises `NoSuchStreamError`."""
        request = added.ExplainRetentionRequest(streamInfo=pb.StreamInfo(scope=scope, stream=stream))
        reply = await self._ask(
            self._stub.explainRetention, request, f"explain what is kept of stream {scope}/{stream}"
        )

        def place(found: added.RetentionExplanation.Place) -> StreamPlace:
            return StreamPlace(StreamCut(scope, stream, dict(found.cut)), found.sizeBytes)

        return RetentionExplanation(
            f"{scope}/{stream}",
            retention_from_message(reply.policy),
            reply.isSealed,
            reply.isEnabled,
            _row_name(reply.row),
            place(reply.head),
            place(reply.tail),
            place(reply.chosen) if reply.HasField("chosen") else None,
            place(reply.bound) if reply.HasField("bound") else None,
            _recorded(reply.minCut) if reply.HasField("minCut") else None,
            _recorded(reply.maxCut) if reply.HasField("maxCut") else None,
            tuple(_recorded(each) for each in reply.cuts),
            reply.cutCount,
            tuple(
                RetentionSubscriber(one.name, one.hasPublished, place(one.place), one.isLast)
                for one in reply.subscribers
            ),
            reply.subscriberCount,
            reply.isCutDue,
            reply.intervalMillis / 1000,
            reply.nextLookMillis / 1000 if reply.HasField("nextLookMillis") else None,
        )


def _overview(scope: str, found: added.ReaderGroupOverview) -> GroupOverview:
    streams = {}
    for one in found.streams:
        info = one.streamInfo
        if info.stream == f"{STATE_STREAM_PREFIX}{found.name}":
            continue  # It waits for its first stream, see `reader_group_calls`.
        cut = StreamCut(info.scope, info.stream, dict(one.cut)) if one.cut else None
        streams[f"{info.scope}/{info.stream}"] = StreamOfGroup(one.isSubscribed, cut, one.ageMillis / 1000)
    return GroupOverview(
        f"{scope}/{found.name}",
        "penstock" if found.isPenstock else "java",
        GroupRetention(found.retention),
        found.generation,
        streams,
    )


def _row_name(row: added.RetentionExplanation.Row) -> str:
    if row == added.RetentionExplanation.NONE:
        return ""
    # A later controller may use rows that this release has no name for.
    return added.RetentionExplanation.Row.Name(row) if row in added.RetentionExplanation.Row.values() else f"ROW_{row}"


def _recorded(found: added.RetentionExplanation.RecordedCut) -> RecordedCut:
    return RecordedCut(found.ageMillis / 1000, found.sizeBytes)
