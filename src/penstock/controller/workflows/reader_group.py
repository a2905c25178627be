"""Creating, changing and deleting reader groups.

A group is one record in its scope, one subscriber entry per stream if it subscribes, and the stream ``_RG<group>`` in
which its readers keep their common state. Work on a group holds the lock of that stream.

Create: announce; record CREATING; subscribe; stream; record ACTIVE; withdraw the announcement.
Update: announce; record with the next configuration; subscribe and unsubscribe; record with it in force; withdraw.
Delete: announce; record DELETING; unsubscribe; seal and delete the stream, and the table of Penstock's clients; remove
the record; withdraw.

Source: controller-internals 10; controller-api 9.16.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from penstock.controller.change_log import CHANGES, names_text
from penstock.controller.errors import ReaderGroupMismatchError
from penstock.controller.metadata.pending_work import CreateGroup, DeleteGroup, Order, Subject, SubjectKind, UpdateGroup
from penstock.controller.metadata.scope_records import (
    ChildState,
    ReaderGroupConfig,
    ReaderGroupRecord,
)
from penstock.controller.metadata.subscribers import add_subscriber, remove_subscriber
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.create_stream import create_stream
from penstock.controller.workflows.delete_stream import delete_stream
from penstock.controller.workflows.seal_stream import seal_stream
from penstock.model.errors import (
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    StreamExistsError,
)
from penstock.model.names import STATE_STREAM_PREFIX, reader_group_table
from penstock.model.policies import Scaling, StreamConfig

_logger = logging.getLogger(__name__)

#: Largest chunk of such a stream: it is truncated often, and only whole chunks can be deleted.
STATE_STREAM_ROLLOVER_BYTES = 4 * 1024 * 1024


def state_stream(group: str) -> str:
    """Return the name of the stream in which a group's readers keep their state."""
    return f"{STATE_STREAM_PREFIX}{group}"


async def create_group(
    context: WorkflowContext, scope: str, group: str, config: ReaderGroupConfig, group_id: str
) -> ReaderGroupRecord:
    """Create a group, or return the existing one. Raises `NoSuchScopeError`, `NoSuchStreamError`.

    `StreamExistsError` when a stream with the name of its state stream exists and was not created for the group.

    No work may be pending for the group.
    """
    found = await context.groups.get(scope, group)
    if found is not None and found.record.state is not ChildState.CREATING:
        return found.record
    if found is not None:
        # No work is in progress: the request that wrote it arrived again after the group was deleted, or its creation
        # was given up.
        await context.groups.remove(scope, group, found.version)
    await context.catalog.open_scope_id(scope)
    if found is None and await context.catalog.stream_id(scope, state_stream(group)) is not None:
        # The group's deletion would delete a stream that was not created for the group.
        raise StreamExistsError(
            f"reader group {scope}/{group} cannot be created: stream {scope}/{state_stream(group)} exists and belongs "
            "to no group; choose another name for the group, or seal and delete that stream"
        )
    await _need_streams(context, (cut.name for cut in config.subscriptions))
    announced = await _announce(context, scope, group, CreateGroup(), group_id)
    record = ReaderGroupRecord(group_id, ChildState.CREATING, announced.work.created_ms, config)
    try:
        async with context.locks.hold(scope):
            await context.groups.create(scope, group, record)
    except NoSuchScopeError:
        await context.claims.withdraw(announced)
        raise
    await resume_group(context, announced)
    done = await context.groups.get(scope, group)
    if done is None:
        raise MetadataConflictError(f"reader group {scope}/{group} was deleted while it was being created")
    return done.record


async def update_group(
    context: WorkflowContext, scope: str, group: str, config: ReaderGroupConfig, group_id: str, generation: int
) -> int:
    """Replace a group's configuration; return the new generation. No work may be pending for the group.

    Raises `NoSuchReaderGroupError`, `NoSuchStreamError`; `ReaderGroupMismatchError` unless id and generation are those
    of the group.
    """
    found = await context.groups.get(scope, group)
    if found is None:
        raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist")
    record = found.record
    if (record.id, record.generation) != (group_id, generation):
        raise ReaderGroupMismatchError(
            f"reader group {scope}/{group} has id {record.id} and generation {record.generation}, the request says "
            f"{group_id} and {generation}; read its configuration and try again"
        )
    known = {cut.name for cut in record.config.subscriptions}
    await _need_streams(context, (cut.name for cut in config.subscriptions if cut.name not in known))
    announced = await _announce(context, scope, group, UpdateGroup(), record.id)
    staying = {cut.name for cut in config.subscriptions}
    leaving = tuple(cut.name for cut in record.config.subscriptions if cut.name not in staying)
    await context.groups.put(scope, group, replace(record, next_config=config, leaving=leaving), found.version)
    await resume_group(context, announced)
    return generation + 1


async def delete_group(context: WorkflowContext, scope: str, group: str, group_id: str | None) -> None:
    """Delete a group of any generation. No work may be pending for the group.

    Raises `NoSuchReaderGroupError`, also when the group has another id (None = any).
    """
    found = await context.groups.get(scope, group)
    if found is None or group_id not in (None, found.record.id):
        raise NoSuchReaderGroupError(f"reader group {scope}/{group} with id {group_id or 'any'} does not exist")
    announced = await _announce(context, scope, group, DeleteGroup(), found.record.id)
    await context.groups.put(scope, group, replace(found.record, state=ChildState.DELETING), found.version)
    await resume_group(context, announced)


async def _announce(context: WorkflowContext, scope: str, group: str, order: Order, group_id: str) -> WorkClaim:
    return await context.begin(Subject(SubjectKind.GROUP, scope, group), order, group_id)


async def resume_group(context: WorkflowContext, announced: WorkClaim) -> None:
    """Complete announced work on a group. Pending work on its stream must be completed first.

    The record describes the work, not the announcement: without a record nothing lasting was begun.
    """
    await _finish(context, announced.subject.scope, announced.subject.name)
    await context.claims.withdraw(announced)


async def _finish(context: WorkflowContext, scope: str, group: str) -> None:
    try:
        found = await context.groups.get(scope, group)
    except NoSuchScopeError:
        found = None
    if found is not None:
        record, version = found.record, found.version
        if record.state is ChildState.DELETING:
            await _finish_delete(context, scope, group, record, version)
        elif record.state is ChildState.CREATING:
            await _finish_create(context, scope, group, record, version)
        elif record.next_config is not None:
            await _finish_update(context, scope, group, record, version)


async def _finish_create(
    context: WorkflowContext, scope: str, group: str, record: ReaderGroupRecord, version: int
) -> None:
    await _subscribe(context, scope, group, record.config, record.generation)
    rollover_bytes = record.config.rollover_bytes or STATE_STREAM_ROLLOVER_BYTES
    try:
        await create_stream(
            context, scope, state_stream(group), StreamConfig(Scaling.fixed(1), rollover_bytes=rollover_bytes)
        )
    except StreamExistsError:
        _logger.debug("reader group %s/%s: its stream exists already", scope, group)
    await context.groups.put(scope, group, replace(record, state=ChildState.ACTIVE), version)
    streams = _streams_text(record.config)
    CHANGES.info("created reader group %s/%s, identity %s, of %s", scope, group, record.id, streams)


async def _finish_update(
    context: WorkflowContext, scope: str, group: str, record: ReaderGroupRecord, version: int
) -> None:
    config, generation = record.next_config or record.config, record.generation + 1
    await _subscribe(context, scope, group, config, generation)
    await _unsubscribe(context, scope, group, record.leaving, generation)
    done = replace(record, config=config, generation=generation, next_config=None, leaving=())
    await context.groups.put(scope, group, done, version)
    CHANGES.info("updated reader group %s/%s, generation %d, of %s", scope, group, generation, _streams_text(config))


async def _finish_delete(
    context: WorkflowContext, scope: str, group: str, record: ReaderGroupRecord, version: int
) -> None:
    # One higher: an update interrupted by the deletion may have subscribed with its generation already.
    streams = {cut.name: None for config in (record.config, record.next_config) if config for cut in config.starts}
    await _unsubscribe(context, scope, group, [*streams, *record.leaving], record.generation + 1)
    stream = state_stream(group)
    try:
        await context.catalog.on_stream(scope, stream, lambda tables: seal_stream(context, tables))
    except NoSuchStreamError:
        _logger.debug("reader group %s/%s has no stream to seal", scope, group)
    try:
        await delete_stream(context, scope, stream)
    except NoSuchStreamError:
        _logger.debug("reader group %s/%s has no stream to delete", scope, group)
    # Penstock's clients keep their state there. No later incarnation of the group has a table of this name.
    await context.segments.delete_table(reader_group_table(scope, record.id))
    await context.groups.remove(scope, group, version)
    CHANGES.info("deleted reader group %s/%s, identity %s", scope, group, record.id)


def _streams_text(config: ReaderGroupConfig) -> str:
    return names_text([cut.name for cut in config.starts])


async def _need_streams(context: WorkflowContext, streams: Iterable[str]) -> None:
    for name in streams:
        scope, _, stream = name.partition("/")
        await context.catalog.on_stream(scope, stream, lambda tables: tables.configuration())


async def _subscribe(
    context: WorkflowContext, scope: str, group: str, config: ReaderGroupConfig, generation: int
) -> None:
    for cut in config.subscriptions:
        try:
            # One at a time, so that many groups at once do not exhaust each other's attempts.
            async with context.locks.hold(f"{cut.name}/subscribers"):
                await context.catalog.on_stream(
                    cut.scope,
                    cut.stream,
                    lambda tables: add_subscriber(
                        tables,
                        f"{scope}/{group}",
                        generation,
                        context.runtime.wall_clock_ms(),
                        context.settings.conflict_attempts_max,
                    ),
                )
        except NoSuchStreamError:
            # It existed when the work began. A stream deleted since needs no subscriber.
            _logger.warning("reader group %s/%s cannot subscribe to %s: it was deleted", scope, group, cut.name)


async def _unsubscribe(
    context: WorkflowContext, scope: str, group: str, streams: Iterable[str], generation: int
) -> None:
    for name in streams:
        of_scope, _, stream = name.partition("/")
        try:
            async with context.locks.hold(f"{name}/subscribers"):
                await context.catalog.on_stream(
                    of_scope,
                    stream,
                    lambda tables: remove_subscriber(
                        tables, f"{scope}/{group}", generation, context.settings.conflict_attempts_max
                    ),
                )
        except NoSuchStreamError:
            _logger.debug("reader group %s/%s need not leave %s: it was deleted", scope, group, name)
