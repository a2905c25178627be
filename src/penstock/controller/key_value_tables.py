"""`KeyValueTables`: the calls for key-value tables, independent of the protocol.

Tables have their own namespace in each scope: a stream or a reader group may have the same name.
Source: controller-api 9.17.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.controller.metadata.catalog import NamePage
from penstock.controller.metadata.pending_work import Subject, SubjectKind
from penstock.controller.metadata.records import SegmentRecord
from penstock.controller.metadata.scope_records import (
    ChildState,
    KeyValueTableConfig,
    KeyValueTableRecord,
)
from penstock.controller.workflow_runner import WorkflowRunner
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.key_value_table import create_table, delete_table, table_stream
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    InvalidNameError,
    NoSuchScopeError,
    NoSuchTableError,
)
from penstock.model.names import STREAM_NAME_LENGTH_MAX, check_user_name

T = TypeVar("T")


class KeyValueTables:
    """Tables of keys with a fixed length, spread over a fixed number of partitions."""

    def __init__(self, context: WorkflowContext, runner: WorkflowRunner) -> None:
        self._context = context
        self._runner = runner

    async def _alone(self, scope: str, table: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._runner.alone(Subject(SubjectKind.TABLE, scope, table), work)

    async def create(self, scope: str, table: str, config: KeyValueTableConfig) -> KeyValueTableRecord:
        """Create a table.

        Raises `InvalidArgumentError`, `InvalidNameError`, `NoSuchScopeError`, `TableExistsError`; the last one also
        for a table that an earlier call created only in part: it is completed first.
        """
        config.checked()
        if config.partitions > self._context.settings.segments_per_stream_max:
            raise InvalidArgumentError(
                f"{config.partitions} partitions: a table has {self._context.settings.segments_per_stream_max} at most"
            )
        _check_not_empty(scope, table)
        check_user_name("key-value table", table)
        if len(table_stream(table)) > STREAM_NAME_LENGTH_MAX:
            length_max = STREAM_NAME_LENGTH_MAX - len(table_stream(""))
            raise InvalidNameError(f"key-value table name {table!r}: use {length_max} characters at most")
        await self._context.catalog.open_scope_id(scope)
        return await self._alone(scope, table, lambda: create_table(self._context, scope, table, config))

    async def delete(self, scope: str, table: str) -> None:
        """Delete a table and its contents. Raises `NoSuchTableError`."""
        await self._get(scope, table)
        await self._alone(scope, table, lambda: delete_table(self._context, scope, table))

    async def configuration(self, scope: str, table: str) -> KeyValueTableConfig:
        """Return a table's configuration. Raises `NoSuchTableError`."""
        return (await self._get(scope, table)).config

    async def segments(self, scope: str, table: str) -> tuple[SegmentRecord, ...]:
        """Return a table's segments by key. Raises `NoSuchTableError`; `ControllerUnavailableError` during creation."""
        found = await self._get(scope, table)
        if found.state is ChildState.CREATING:
            raise ControllerUnavailableError(f"key-value table {scope}/{table} is not completely created")
        if found.state is ChildState.DELETING:
            raise NoSuchTableError(f"key-value table {scope}/{table} is being deleted")
        return found.segments()

    async def list(self, scope: str, token: str, limit: int | None = None) -> NamePage:
        """Return a page of a scope's tables. Raises `NoSuchScopeError`, `InvalidArgumentError` for a bad token."""
        return await self._context.key_value_tables.list(scope, token, limit or self._context.settings.page_entries_max)

    async def _get(self, scope: str, table: str) -> KeyValueTableRecord:
        _check_not_empty(scope, table)
        try:
            found = await self._context.key_value_tables.get(scope, table)
        except NoSuchScopeError as error:
            raise NoSuchTableError(f"key-value table {scope}/{table} does not exist: {error}") from error
        if found is None:
            raise NoSuchTableError(f"key-value table {scope}/{table} does not exist")
        return found.record


def _check_not_empty(scope: str, name: str) -> None:
    if not scope or not name:
        raise InvalidArgumentError(f"scope {scope!r}, name {name!r}: neither may be empty")
