"""`ScopeDeletion`: deletes scopes with all of their contents; the deletion survives the death of a controller.

Source: controller-api 9.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from penstock.controller.key_value_tables import KeyValueTables
from penstock.controller.metadata.pending_work import DeleteScope, Subject, SubjectKind
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.reader_groups import ReaderGroups
from penstock.controller.workflow_runner import WorkflowRunner
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import (
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchTableError,
    ScopeNotEmptyError,
)
from penstock.model.names import SYSTEM_SCOPE

_logger = logging.getLogger(__name__)


class ScopeDeletion:
    """Deletes scopes with their contents. `drop_stream` seals and deletes a stream; a missing stream is no error."""

    def __init__(
        self,
        context: WorkflowContext,
        runner: WorkflowRunner,
        groups: ReaderGroups,
        key_value_tables: KeyValueTables,
        drop_stream: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._context = context
        self._catalog = context.catalog
        self._runner = runner
        self._groups = groups
        self._key_value_tables = key_value_tables
        self._drop_stream = drop_stream

    async def delete(self, scope: str) -> None:
        """Delete a scope with its contents, if it exists. See `ControllerService.delete_scope_recursive`."""
        if scope == SYSTEM_SCOPE:
            raise ScopeNotEmptyError(f"scope {scope} belongs to the system")
        subject = Subject(SubjectKind.SCOPE, scope)
        # As for any call about a scope: if this controller is considered dead, its caller may have called another one.
        await self._context.claims.check_is_member()

        async def run() -> None:
            try:
                async with self._context.locks.hold(scope):
                    scope_id = await self._catalog.scope_id(scope, cached=False)
                    announced = await self._context.begin(subject, DeleteScope(), scope_id)
                    await self._catalog.close_scope(scope)
            except NoSuchScopeError:
                return
            await self.resume(announced)

        # The announced work may be the deletion of an earlier scope of this name: it is finished first.
        await self._runner.alone(subject, run)

    async def resume(self, announced: WorkClaim) -> None:
        """Complete an announced deletion: delete the scope's contents, then the scope."""
        scope = announced.subject.scope
        try:
            if await self._catalog.scope_id(scope, cached=False) == announced.work.life:
                await self._catalog.close_scope(scope)
                await self._delete_with_contents(scope)
        except NoSuchScopeError:
            _logger.debug("scope %s is already deleted", scope)
        await self._context.claims.withdraw(announced)

    async def _delete_with_contents(self, scope: str) -> None:
        for attempt in range(self._context.settings.conflict_attempts_max):
            await self._delete_contents(scope)
            try:
                async with self._context.locks.hold(scope):
                    await self._catalog.delete_scope(scope)
            except ScopeNotEmptyError:
                # An operation that began before the scope was closed has added something after the last listing.
                if attempt + 1 == self._context.settings.conflict_attempts_max:
                    raise
            else:
                return

    async def _delete_contents(self, scope: str) -> None:
        while names := (await self._groups.list(scope, "")).names:
            for group in names:
                try:
                    await self._groups.delete(scope, group)
                except NoSuchReaderGroupError:
                    continue
        while names := (await self._key_value_tables.list(scope, "")).names:
            for table in names:
                try:
                    await self._key_value_tables.delete(scope, table)
                except NoSuchTableError:
                    continue
        try:
            while names := (await self._catalog.list_streams(scope, "", self._context.settings.page_entries_max)).names:
                for stream in names:
                    await self._drop_stream(scope, stream)
        except NoSuchScopeError:
            _logger.debug(
                "scope %s has no table of streams any more: its deletion was interrupted after that step", scope
            )
