"""`ScopedRecords`: the records of one kind in each scope, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from penstock.controller.metadata.catalog import Catalog, NamePage
from penstock.controller.metadata.codec import encode
from penstock.controller.metadata.record_store import RecordStore, Versioned
from penstock.model.errors import InvalidArgumentError, NoSuchSegmentError
from penstock.model.names import USER_NAME_LENGTH_MAX
from penstock.model.segments import TABLE_VALUE_LENGTH_MAX

R = TypeVar("R")
T = TypeVar("T")


class ScopedRecords(Generic[R]):
    """One table per scope, created with the first record. All calls raise `NoSuchScopeError`.

    `table_of(scope, scope_id)` returns the name of a scope's table.
    """

    def __init__(
        self, records: RecordStore, catalog: Catalog, kind: type[R], table_of: Callable[[str, str], str]
    ) -> None:
        self._records = records
        self._catalog = catalog
        self._kind = kind
        self._table_of = table_of

    async def _in_scope(self, scope: str, action: Callable[[str], Awaitable[T]], otherwise: T) -> T:
        """Run `action(table)`; return `otherwise` if the scope exists but has no such table."""
        try:
            return await action(self._table_of(scope, await self._catalog.scope_id(scope)))
        except NoSuchSegmentError:
            # Either the cached id is stale, or no record was ever written.
            scope_id = await self._catalog.scope_id(scope, cached=False)
        try:
            return await action(self._table_of(scope, scope_id))
        except NoSuchSegmentError:
            return otherwise

    async def get(self, scope: str, name: str) -> Versioned[R] | None:
        """Read a record; None if there is none of this name."""
        if not 0 < len(name) <= USER_NAME_LENGTH_MAX:
            await self._catalog.scope_id(scope)
            return None
        return await self._in_scope(scope, lambda table: self._records.get(table, name, self._kind), None)

    async def create(self, scope: str, name: str, record: R) -> bool:
        """Write a record unless one exists; say whether it was written. Raises `InvalidArgumentError` if too large.

        The scope must be complete and not being deleted.
        """
        _check_size(record)
        scope_id = await self._catalog.open_scope_id(scope)
        table = self._table_of(scope, scope_id)
        try:
            return await self._records.create(table, name, record)
        except NoSuchSegmentError:
            await self._records.store.create_table(table)
        # The scope may have been deleted before its table was created: a record written now would be unreachable.
        if await self._catalog.open_scope_id(scope) != scope_id:
            await self._records.store.drop_table(table)
            return False
        return await self._records.create(table, name, record)

    async def put(self, scope: str, name: str, record: R, version: int) -> int:
        """Replace the record read at `version`; return the new version."""
        _check_size(record)
        table = self._table_of(scope, await self._catalog.scope_id(scope))
        return await self._records.put(table, name, record, version=version)

    async def remove(self, scope: str, name: str, version: int) -> None:
        """Remove the record read at `version`. Raises `MetadataConflictError` if it was changed or removed."""
        await self._in_scope(scope, lambda table: self._records.remove_version(table, name, version), None)

    async def list(self, scope: str, token: str, limit: int) -> NamePage:
        """Return up to `limit` names after `token` ('' = from the start)."""
        empty = NamePage((), token)
        return await self._in_scope(scope, lambda table: self._catalog.list_table(table, token, limit), empty)


def _check_size(record: object) -> None:
    size = len(encode(record))
    if size > TABLE_VALUE_LENGTH_MAX:
        raise InvalidArgumentError(
            f"the configuration takes {size} bytes, at most {TABLE_VALUE_LENGTH_MAX} can be stored: name fewer streams"
        )
