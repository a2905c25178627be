"""Creating streams and key-value tables, and their scope if it is missing.

A reply may be lost. With `exist_ok` it does not matter which attempt created the object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.client.controller.controller import ControllerClient
from penstock.model.errors import (
    ControllerUnavailableError,
    NoSuchScopeError,
    NoSuchTableError,
    OutcomeUnknownError,
    ScopeExistsError,
    StreamExistsError,
    TableExistsError,
)
from penstock.model.names import check_users_new_scope_name
from penstock.model.policies import StreamConfig
from penstock.model.tables import TableConfig


async def create_stream(
    controller: ControllerClient, scope: str, name: str, config: StreamConfig, *, exist_ok: bool
) -> None:
    """Create a stream. Raises `StreamExistsError` unless `exist_ok`, `OutcomeUnknownError`."""
    try:
        is_new = await _in_scope(controller, scope, lambda: controller.create_stream(scope, name, config))
    except OutcomeUnknownError:
        if exist_ok and await _is_known_to_exist(controller.stream_exists(scope, name)):
            return
        raise
    if not is_new and not exist_ok:
        exists = StreamExistsError(f"stream {scope}/{name} exists already")
        # For programs: the command line has no such argument.
        exists.add_note("exist_ok=True accepts the stream as it is")
        raise exists


async def create_table(
    controller: ControllerClient, scope: str, name: str, config: TableConfig, *, exist_ok: bool
) -> None:
    """Create a table. Raises `TableExistsError`, with `exist_ok` if the shapes differ, and `OutcomeUnknownError`."""
    try:
        is_new = await _in_scope(controller, scope, lambda: controller.create_table(scope, name, config))
    except OutcomeUnknownError:
        if not exist_ok or not await _is_known_to_exist(_table_exists(controller, scope, name)):
            raise
        is_new = False
    if is_new:
        return
    if not exist_ok:
        exists = TableExistsError(f"table {scope}/{name} exists already")
        exists.add_note("exist_ok=True accepts a table of the same shape")
        raise exists
    found = await controller.table_config(scope, name)
    if found != config:
        raise TableExistsError(f"table {scope}/{name} exists with another configuration: {found}, not {config}")


async def _in_scope(controller: ControllerClient, scope: str, create: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await create()
    except NoSuchScopeError:
        check_users_new_scope_name(scope)
        try:
            await controller.create_scope(scope)
        except ScopeExistsError:
            pass  # Created concurrently.
        return await create()


async def _table_exists(controller: ControllerClient, scope: str, name: str) -> bool:
    try:
        await controller.table_config(scope, name)
    except NoSuchTableError:
        return False
    return True


async def _is_known_to_exist(check: Awaitable[bool]) -> bool:
    try:
        return await check
    except ControllerUnavailableError:
        return False  # The outcome stays unknown.
