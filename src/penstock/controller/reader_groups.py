"""`ReaderGroups`: the calls for reader groups and subscribers, independent of the protocol.

Source: controller-api 9.16.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from penstock.controller.errors import NoSuchSubscriberError, StreamCutBehindError, SubscriberGenerationError
from penstock.controller.metadata.catalog import NamePage
from penstock.controller.metadata.pending_work import Subject, SubjectKind
from penstock.controller.metadata.records import Subscriber
from penstock.controller.metadata.scope_records import ReaderGroupConfig, ReaderGroupRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.subscribers import put_subscriber, read_subscriber, subscriber_names
from penstock.controller.steps import in_turns
from penstock.controller.stream_cuts import is_equal_or_after
from penstock.controller.stream_positions import position_of, valid_position_of
from penstock.controller.workflow_runner import WorkflowRunner
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.reader_group import (
    create_group,
    delete_group,
    update_group,
)
from penstock.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
)
from penstock.model.names import check_user_name

T = TypeVar("T")


class ReaderGroups:
    """Groups that clients of Pravega's protocol share through the controller."""

    def __init__(self, context: WorkflowContext, runner: WorkflowRunner) -> None:
        self._context = context
        self._runner = runner

    async def _alone(self, scope: str, group: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._runner.alone(Subject(SubjectKind.GROUP, scope, group), work)

    async def create(
        self, scope: str, group: str, config: ReaderGroupConfig, group_id: str | None = None
    ) -> ReaderGroupRecord:
        """Create a group of generation 0, or return the existing one of this name.

        `group_id`: a UUID as text, chosen by the caller; None generates one. Raises `InvalidNameError`,
        `InvalidArgumentError`, `NoSuchScopeError`; `NoSuchStreamError` for a stream to subscribe to.
        """
        config.checked()
        _check_not_empty(scope, group)
        check_user_name("reader group", group)
        chosen = group_id or self._context.new_id()
        return await self._alone(scope, group, lambda: create_group(self._context, scope, group, config, chosen))

    async def get(self, scope: str, group: str) -> ReaderGroupRecord:
        """Return a group's current record. Raises `NoSuchReaderGroupError`."""
        _check_not_empty(scope, group)
        try:
            found = await self._context.groups.get(scope, group)
        except NoSuchScopeError as error:
            raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist: {error}") from error
        if found is None:
            raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist")
        return found.record

    async def update(self, scope: str, group: str, config: ReaderGroupConfig, group_id: str, generation: int) -> int:
        """Replace a group's configuration; return the new generation.

        Raises `NoSuchReaderGroupError`; `ReaderGroupMismatchError` unless id and generation are the group's;
        `InvalidArgumentError`; `NoSuchStreamError` for a stream to subscribe to.
        """
        config.checked()
        await self.get(scope, group)
        return await self._alone(
            scope, group, lambda: update_group(self._context, scope, group, config, group_id, generation)
        )

    async def delete(self, scope: str, group: str, group_id: str | None = None) -> None:
        """Delete a group (`group_id` None: any of this name). Raises `NoSuchReaderGroupError`."""
        await self.get(scope, group)
        await self._alone(scope, group, lambda: delete_group(self._context, scope, group, group_id))

    async def list(self, scope: str, token: str, limit: int | None = None) -> NamePage:
        """Return a page of a scope's groups. Raises `NoSuchScopeError`, `InvalidArgumentError` for a bad token."""
        return await self._context.groups.list(scope, token, limit or self._context.settings.page_entries_max)

    # Subscribers.

    async def subscribers(self, scope: str, stream: str) -> tuple[str, ...]:
        """Return the scoped names of the groups that subscribe to a stream. Raises `NoSuchStreamError`."""
        _check_not_empty(scope, stream)
        return await self._context.catalog.on_stream(scope, stream, subscriber_names)

    async def publish(
        self, scope: str, stream: str, subscriber: str, group_id: str, generation: int, cut: Mapping[int, int]
    ) -> None:
        """Record that a subscriber needs nothing before `cut`.

        Raises in this order `NoSuchStreamError`, `NoSuchSubscriberError`, `SubscriberGenerationError`,
        `StreamCutBehindError`.
        """
        _check_not_empty(scope, stream)

        async def write(tables: StreamTables) -> None:
            await tables.state()
            for _ in range(self._context.settings.conflict_attempts_max):
                found = await read_subscriber(tables, subscriber)
                if found is None or not await self._is_of(subscriber, group_id):
                    raise NoSuchSubscriberError(f"{subscriber} with id {group_id} does not subscribe to {tables.name}")
                if found.record.generation != generation:
                    raise SubscriberGenerationError(
                        f"subscriber {subscriber} of {tables.name} has generation {found.record.generation}, "
                        f"not {generation}"
                    )
                await _check_cut(tables, cut, found.record.stream_cut)
                record = Subscriber(generation, dict(sorted(cut.items())), self._context.runtime.wall_clock_ms())
                try:
                    await put_subscriber(tables, subscriber, record, found.version)
                except MetadataConflictError:
                    continue
                return
            raise MetadataConflictError(f"subscriber {subscriber} of {tables.name} keeps changing; try again")

        await self._context.catalog.on_stream(scope, stream, write)

    async def _is_of(self, subscriber: str, group_id: str) -> bool:
        scope, _, group = subscriber.partition("/")
        try:
            return bool(group) and (await self.get(scope, group)).id == group_id
        except NoSuchReaderGroupError:
            return False


async def _check_cut(tables: StreamTables, cut: Mapping[int, int], previous: Mapping[int, int]) -> None:
    try:
        position = await valid_position_of(tables, cut)
        is_good = position is not None and (
            not previous or await in_turns(is_equal_or_after(position, await position_of(tables, previous)))
        )
    except InvalidArgumentError as error:
        raise StreamCutBehindError(f"the stream cut is not valid for {tables.name}: {error}") from error
    if not is_good:
        raise StreamCutBehindError(
            f"the stream cut does not cover every key of {tables.name} exactly once, or is before the one published "
            "last"
        )


def _check_not_empty(scope: str, name: str) -> None:
    if not scope or not name:
        raise InvalidArgumentError(f"scope {scope!r}, name {name!r}: neither may be empty")
