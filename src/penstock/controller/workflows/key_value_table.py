"""Creating and deleting key-value tables.

A table is one record in its scope and a table segment per partition. Work on it holds the lock of its name with the
suffix of table segments.

Create: announce; record CREATING; segments; record ACTIVE; withdraw the announcement.
Delete: announce; record DELETING; segments; remove the record; withdraw the announcement.

Source: controller-internals 17; controller-api 9.17.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.controller.change_log import CHANGES
from penstock.controller.metadata.pending_work import CreateTable, DeleteTable, Subject, SubjectKind
from penstock.controller.metadata.scope_records import (
    ChildState,
    KeyValueTableConfig,
    KeyValueTableRecord,
)
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import NoSuchScopeError, NoSuchTableError, TableExistsError
from penstock.model.names import KEY_VALUE_TABLE_SUFFIX, segment_id, segment_name


def table_stream(table: str) -> str:
    """Return the part of the table's segment names that is in the place of a stream's name."""
    return f"{table}{KEY_VALUE_TABLE_SUFFIX}"


def table_segment_name(scope: str, table: str, partition: int) -> str:
    """Return the name of a partition's segment."""
    return segment_name(scope, table_stream(table), segment_id(partition, 0))


async def create_table(
    context: WorkflowContext, scope: str, table: str, config: KeyValueTableConfig
) -> KeyValueTableRecord:
    """Create a table. No work may be pending for it. Raises `NoSuchScopeError`, `TableExistsError`."""
    found = await context.key_value_tables.get(scope, table)
    if found is not None and found.record.state is not ChildState.CREATING:
        raise TableExistsError(f"key-value table {scope}/{table} exists already")
    if found is not None:
        # No work is in progress: the request that wrote it arrived again after the table was deleted, or its creation
        # was given up.
        await context.key_value_tables.remove(scope, table, found.version)
    await context.catalog.open_scope_id(scope)
    first = table_segment_name(scope, table, 0)
    if await context.segments.table_exists(first):
        # Pravega's Rust client creates the tables of its reader groups itself, under names of this form.
        raise TableExistsError(f"segment {first} exists, but belongs to no known table")
    table_id = context.new_id()
    announced = await context.begin(Subject(SubjectKind.TABLE, scope, table), CreateTable(), table_id)
    record = KeyValueTableRecord(table_id, ChildState.CREATING, announced.work.created_ms, config)
    try:
        async with context.locks.hold(scope):
            await context.key_value_tables.create(scope, table, record)
    except NoSuchScopeError:
        await context.claims.withdraw(announced)
        raise
    await resume_table(context, announced)
    return replace(record, state=ChildState.ACTIVE)


async def delete_table(context: WorkflowContext, scope: str, table: str) -> None:
    """Delete a table and its contents. No work may be pending for it. Raises `NoSuchTableError`."""
    try:
        found = await context.key_value_tables.get(scope, table)
    except NoSuchScopeError as error:
        raise NoSuchTableError(f"key-value table {scope}/{table} does not exist: {error}") from error
    if found is None:
        raise NoSuchTableError(f"key-value table {scope}/{table} does not exist")
    announced = await context.begin(Subject(SubjectKind.TABLE, scope, table), DeleteTable(), found.record.id)
    await context.key_value_tables.put(scope, table, replace(found.record, state=ChildState.DELETING), found.version)
    await resume_table(context, announced)


async def resume_table(context: WorkflowContext, announced: WorkClaim) -> None:
    """Complete announced work on a table.

    The record describes the work, not the announcement: without a record nothing lasting was begun.
    """
    # Segments have no versions: an overtaken controller must not change those of a later incarnation.
    await context.claims.confirm(announced)
    await _finish(context, announced.subject.scope, announced.subject.name)
    await context.claims.withdraw(announced)


async def _finish(context: WorkflowContext, scope: str, table: str) -> None:
    try:
        found = await context.key_value_tables.get(scope, table)
    except NoSuchScopeError:
        found = None
    if found is not None:
        record = found.record
        names = [table_segment_name(scope, table, segment.number) for segment in record.segments()]
        if record.state is ChildState.CREATING:
            config = record.config
            await together(
                context.segments.create_table(name, config.key_bytes, config.rollover_bytes) for name in names
            )
            await context.key_value_tables.put(scope, table, replace(record, state=ChildState.ACTIVE), found.version)
            CHANGES.info("created key-value table %s/%s: %d partitions", scope, table, config.partitions)
        elif record.state is ChildState.DELETING:
            await together(context.segments.delete_table(name) for name in names)
            await context.key_value_tables.remove(scope, table, found.version)
            CHANGES.info("deleted key-value table %s/%s", scope, table)
