"""`Catalog`: scopes, the streams in them, their tags, and the last segment numbers of deleted streams."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.controller.change_log import CHANGES
from penstock.controller.locks import StreamLocks
from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore, Versioned
from penstock.controller.metadata.records import LastSegment, ScopeRecord, StreamEntry, TagChunk
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.settings import ControllerSettings
from penstock.model.checksum import crc32c
from penstock.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchScopeError,
    NoSuchSegmentError,
    NoSuchStreamError,
    OutcomeUnknownError,
    ScopeExistsError,
    ScopeNotEmptyError,
    TableNotEmptyError,
)
from penstock.model.names import SCOPE_NAME_LENGTH_MAX, STREAM_NAME_LENGTH_MAX, SYSTEM_SCOPE
from penstock.model.policies import TAG_LENGTH_LIMIT
from penstock.model.segments import VERSION_ABSENT

T = TypeVar("T")
_logger = logging.getLogger(__name__)

#: Number of chunks that the streams of one tag are spread over.
TAG_CHUNK_COUNT = 25
_TAG_TOKEN = "chunk-"
#: A key that is no stream's name: read to find out whether a table exists.
_ANY_KEY = " "


@dataclass(frozen=True, slots=True)
class NamePage:
    """A page of names. An empty page ends a listing; its token repeats the token of the request."""

    names: tuple[str, ...]
    token: str


def tag_chunk(stream: str) -> int:
    """Return the chunk of the tag index that a stream belongs to."""
    return crc32c(stream.encode(), 0) % TAG_CHUNK_COUNT


class Catalog:
    """Scope and stream ids are cached; a stale id is detected by its missing tables."""

    def __init__(self, records: RecordStore, settings: ControllerSettings) -> None:
        self._records = records
        self._settings = settings
        self._scope_ids: dict[str, str] = {}
        self._stream_ids: dict[tuple[str, str], str] = {}
        self._tag_locks = StreamLocks()

    # Scopes.

    async def create_scope(self, scope: str, new_id: Callable[[], str]) -> None:
        """Create a scope, or replace one that was created or deleted in part. Raises `ScopeExistsError`.

        Concurrent creations and deletions by several controllers are resolved by the scope's record: each attempt has
        its own id (`new_id`), creates tables of that id only, and succeeds once it has written the record again while
        the record still has its id. Raises `MetadataConflictError` when other controllers won each time.
        """
        half: Versioned[ScopeRecord] | None = None
        for _ in range(self._settings.conflict_attempts_max):
            found = await self._records.get(layout.SCOPES, scope, ScopeRecord)
            if found is not None:
                if found.record.is_deleting:
                    raise ScopeExistsError(f"scope {scope} is being deleted; create it again after its deletion")
                if await self._has_streams_table(scope, found.record.id):
                    raise ScopeExistsError(f"scope {scope} exists already")
                if half != found:
                    # Another controller may be about to complete it.
                    half = found
                    await asyncio.sleep(self._settings.peer_poll_ms / 1000)
                    continue
            try:
                await self._create_scope(scope, ScopeRecord(new_id()), found)
            except MetadataConflictError:
                continue
            CHANGES.info("created scope %s", scope)
            return
        raise MetadataConflictError(f"scope {scope} is being created and deleted by other controllers; try again")

    async def _create_scope(self, scope: str, record: ScopeRecord, found: Versioned[ScopeRecord] | None) -> None:
        """Create a scope in place of what was `found`. Raises `MetadataConflictError` if another controller won."""
        is_visible = False
        try:
            version = await self._put_scope(scope, record, VERSION_ABSENT if found is None else found.version)
            # The table of streams comes last: if it exists, the scope is complete.
            for table in (layout.tags_in_scope(scope, record.id), layout.streams_in_scope(scope, record.id)):
                await self._records.store.create_table(table)
            is_visible = True
            # From here on no other creation can replace it: the version that it has read is outdated.
            await self._put_scope(scope, record, version)
        except MetadataConflictError:
            was_dropped = await self._drop_tables_of_lost_creation(scope, record.id)
            if not (is_visible and was_dropped):
                raise
            _logger.info("scope %s was deleted immediately after its creation", scope)
        if found is not None:
            # The rest of the incomplete scope, which is no longer referenced.
            await self._records.store.drop_table(layout.tags_in_scope(scope, found.record.id))
        self._scope_ids.pop(scope, None)

    async def _drop_tables_of_lost_creation(self, scope: str, scope_id: str) -> bool:
        """Drop the tables of an id that is not in the scope's record; return whether a deletion does or did so."""
        try:
            streams = layout.streams_in_scope(scope, scope_id)
            was_there = await self._records.store.drop_table(streams, must_be_empty=True)
        except TableNotEmptyError:
            return True  # The scope is being deleted with its contents.
        await self._records.store.drop_table(layout.tags_in_scope(scope, scope_id))
        return not was_there

    async def _put_scope(self, scope: str, record: ScopeRecord, version: int) -> int:
        """Write the record of a scope at a version; return the new one. After a lost reply the record is read back."""
        for attempt in range(self._settings.attempts_max):
            try:
                return await self._records.put(layout.SCOPES, scope, record, version=version)
            except OutcomeUnknownError:
                if attempt + 1 == self._settings.attempts_max:
                    raise
            present = await self._records.get(layout.SCOPES, scope, ScopeRecord)
            if present is not None and present.record.id == record.id:
                version = present.version  # The id belongs to this attempt alone: the record was not replaced.
            elif (VERSION_ABSENT if present is None else present.version) != version:
                raise MetadataConflictError(f"scope {scope} was created or deleted by another controller")
        raise AssertionError("attempts_max is positive")

    async def _has_streams_table(self, scope: str, scope_id: str) -> bool:
        try:
            await self._records.store.get(layout.streams_in_scope(scope, scope_id), [_ANY_KEY])
        except NoSuchSegmentError:
            return False
        return True

    async def delete_scope(self, scope: str) -> None:
        """Delete an empty scope. Raises `NoSuchScopeError`, `ScopeNotEmptyError`."""
        scope_id = await self.scope_id(scope, cached=False)
        if scope == SYSTEM_SCOPE:
            raise ScopeNotEmptyError(f"scope {scope} belongs to the system")
        # The table of streams goes last: the other tables are created on demand, so a scope without them is complete.
        for table, content in (
            (layout.reader_groups_in_scope(scope, scope_id), "reader groups; delete"),
            (layout.key_value_tables_in_scope(scope, scope_id), "key-value tables; delete"),
            (layout.streams_in_scope(scope, scope_id), "streams; seal and delete"),
        ):
            try:
                # The store checks and drops in one step: a concurrent addition is either seen, or finds no table.
                await self._records.store.drop_table(table, must_be_empty=True)
            except TableNotEmptyError as error:
                raise ScopeNotEmptyError(f"scope {scope} still holds {content} them first") from error
        await self._records.store.drop_table(layout.tags_in_scope(scope, scope_id))
        for _ in range(self._settings.conflict_attempts_max):
            found = await self._records.get(layout.SCOPES, scope, ScopeRecord)
            if found is None or found.record.id != scope_id:
                break  # Another controller has removed it, or has created the scope again.
            try:
                await self._records.remove_version(layout.SCOPES, scope, found.version)
            except MetadataConflictError:
                continue  # Its creation has rewritten it meanwhile: the tables are gone, so the record goes too.
            break
        else:
            raise MetadataConflictError(f"the record of scope {scope} keeps changing; try again")
        self._scope_ids.pop(scope, None)
        CHANGES.info("deleted scope %s", scope)

    async def scope_id(self, scope: str, *, cached: bool = True) -> str:
        """Return the id of a scope. Raises `NoSuchScopeError`."""
        known = self._scope_ids.get(scope)
        if known is not None and cached:
            return known
        found = None
        if 0 < len(scope) <= SCOPE_NAME_LENGTH_MAX:
            found = await self._records.get(layout.SCOPES, scope, ScopeRecord)
        if found is None:
            self._scope_ids.pop(scope, None)
            raise NoSuchScopeError(f"scope {scope} does not exist")
        _remember(self._scope_ids, scope, found.record.id, self._settings.id_cache_entries_max)
        return found.record.id

    async def open_scope_id(self, scope: str) -> str:
        """Return the id of a scope that accepts new streams, groups and tables. Not cached.

        Raises `NoSuchScopeError`, also for a scope that is being deleted.
        """
        found = None
        if 0 < len(scope) <= SCOPE_NAME_LENGTH_MAX:
            found = await self._records.get(layout.SCOPES, scope, ScopeRecord)
        if found is None:
            self._scope_ids.pop(scope, None)
            raise NoSuchScopeError(f"scope {scope} does not exist")
        if found.record.is_deleting:
            raise NoSuchScopeError(f"scope {scope} is being deleted")
        _remember(self._scope_ids, scope, found.record.id, self._settings.id_cache_entries_max)
        return found.record.id

    async def close_scope(self, scope: str) -> None:
        """Make a scope accept no more streams, groups and tables. Raises `NoSuchScopeError`."""
        found = await self._records.get(layout.SCOPES, scope, ScopeRecord)
        if found is None:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        if not found.record.is_deleting:
            closed = ScopeRecord(found.record.id, is_deleting=True)
            await self._records.put(layout.SCOPES, scope, closed, version=found.version)

    async def scope_exists(self, scope: str) -> bool:
        """Say whether a scope's record exists."""
        try:
            await self.scope_id(scope, cached=False)
        except NoSuchScopeError:
            return False
        return True

    async def list_scopes(self, token: str, limit: int) -> NamePage:
        """Return up to `limit` scopes after `token` ('' = from the start)."""
        return await self.list_table(layout.SCOPES, token, limit)

    async def in_scope(self, scope: str, action: Callable[[str], Awaitable[T]]) -> T:
        """Run `action(scope_id)`; again with a fresh id when the cached one is stale."""
        was_cached = scope in self._scope_ids
        try:
            return await action(await self.scope_id(scope))
        except NoSuchSegmentError as error:
            self._scope_ids.pop(scope, None)
            if not was_cached:
                raise NoSuchScopeError(f"scope {scope} is not completely created, or is being deleted") from error
        return await self.in_scope(scope, action)

    # Streams in a scope.

    async def add_stream(self, scope: str, stream: str, new_id: str) -> str:
        """Add a stream to its scope's listing; return its id: the existing one if the stream is listed already."""

        async def add(scope_id: str) -> str:
            table = layout.streams_in_scope(scope, scope_id)
            if await self._records.create(table, stream, StreamEntry(new_id)):
                return new_id
            found = await self._records.get(table, stream, StreamEntry)
            if found is None:
                raise MetadataConflictError(f"stream {scope}/{stream} was deleted while it was being created")
            return found.record.id

        stream_id = await self.in_scope(scope, add)
        self._remember_stream(scope, stream, stream_id)
        return stream_id

    async def remove_stream(self, scope: str, stream: str, stream_id: str) -> None:
        """Remove one incarnation of a stream from its scope's listing; a later one of the same name stays."""
        self._stream_ids.pop((scope, stream), None)

        async def remove(scope_id: str) -> None:
            table = layout.streams_in_scope(scope, scope_id)
            found = await self._records.get(table, stream, StreamEntry)
            if found is not None and found.record.id == stream_id:
                await self._records.remove_version(table, stream, found.version)

        await self.in_scope(scope, remove)

    async def stream_id(self, scope: str, stream: str) -> str | None:
        """Return the id of a listed stream, not cached; None if it is not listed. Raises `NoSuchScopeError`."""

        async def read(scope_id: str) -> str | None:
            if not 0 < len(stream) <= STREAM_NAME_LENGTH_MAX:
                return None
            found = await self._records.get(layout.streams_in_scope(scope, scope_id), stream, StreamEntry)
            return None if found is None else found.record.id

        stream_id = await self.in_scope(scope, read)
        if stream_id is None:
            self._stream_ids.pop((scope, stream), None)
        else:
            self._remember_stream(scope, stream, stream_id)
        return stream_id

    async def list_streams(self, scope: str, token: str, limit: int) -> NamePage:
        """Return up to `limit` streams of a scope after `token`. Raises `NoSuchScopeError`."""
        return await self.in_scope(
            scope, lambda scope_id: self.list_table(layout.streams_in_scope(scope, scope_id), token, limit)
        )

    async def on_stream(self, scope: str, stream: str, action: Callable[[StreamTables], Awaitable[T]]) -> T:
        """Run `action` on a stream's tables; again when the cached stream has been deleted since.

        Raises `NoSuchStreamError`, also for a missing scope.
        """
        known = self._stream_ids.get((scope, stream))
        if known is not None:
            try:
                return await action(self.tables_of(scope, stream, known))
            except (NoSuchSegmentError, NoSuchStreamError) as error:
                _raise_unless_metadata(error)
                self._stream_ids.pop((scope, stream), None)
        try:
            stream_id = await self.stream_id(scope, stream)
        except NoSuchScopeError as error:
            raise NoSuchStreamError(f"stream {scope}/{stream} does not exist: {error}") from error
        if stream_id is None:
            raise NoSuchStreamError(f"stream {scope}/{stream} does not exist")
        try:
            return await action(self.tables_of(scope, stream, stream_id))
        except NoSuchSegmentError as error:
            _raise_unless_metadata(error)
            raise NoSuchStreamError(f"stream {scope}/{stream} is not completely created, or partly deleted") from error

    def tables_of(self, scope: str, stream: str, stream_id: str) -> StreamTables:
        """Return the tables of one incarnation of a stream."""
        return StreamTables(self._records, scope, stream, stream_id)

    def _remember_stream(self, scope: str, stream: str, stream_id: str) -> None:
        _remember(self._stream_ids, (scope, stream), stream_id, self._settings.id_cache_entries_max)

    # Last segment numbers.

    async def first_segment_number(self, scope: str, stream: str) -> int:
        """Return the number of the first segment of a new stream of this name."""
        found = await self._records.get(layout.DELETED_STREAMS, f"{scope}/{stream}", LastSegment)
        return 0 if found is None else found.record.number + 1

    async def record_last_segment(self, scope: str, stream: str, number: int) -> None:
        """Record that numbers up to `number` are used for this name."""
        key = f"{scope}/{stream}"
        found = await self._records.get(layout.DELETED_STREAMS, key, LastSegment)
        if found is None or found.record.number < number:
            version = VERSION_ABSENT if found is None else found.version
            await self._records.put(layout.DELETED_STREAMS, key, LastSegment(number), version=version)

    # Tags.

    async def add_tags(self, scope: str, stream: str, tags: Sequence[str]) -> None:
        """Make the stream findable by each tag."""
        await self._change_tags(scope, stream, tags, lambda streams: {*streams, stream})

    async def remove_tags(self, scope: str, stream: str, tags: Sequence[str]) -> None:
        """Make the stream no longer findable by any of the tags."""
        await self._change_tags(scope, stream, tags, lambda streams: {*streams} - {stream})

    async def _change_tags(
        self, scope: str, stream: str, tags: Sequence[str], change: Callable[[tuple[str, ...]], set[str]]
    ) -> None:
        async def apply(scope_id: str) -> None:
            table = layout.tags_in_scope(scope, scope_id)
            for tag in tags:
                key = layout.tag_key(tag_chunk(stream), tag)
                # One at a time, so that concurrent changes of one tag do not exhaust each other's attempts.
                async with self._tag_locks.hold(f"{table}/{key}"):
                    await self._change_tag(table, key, change)

        if tags:
            await self.in_scope(scope, apply)

    async def _change_tag(self, table: str, key: str, change: Callable[[tuple[str, ...]], set[str]]) -> None:
        for attempt in range(self._settings.conflict_attempts_max):
            found = await self._records.get(table, key, TagChunk)
            before = found.record.streams if found is not None else ()
            after = tuple(sorted(change(before)))
            if after == before:
                return
            try:
                version = VERSION_ABSENT if found is None else found.version
                await self._records.put(table, key, TagChunk(after), version=version)
            except MetadataConflictError:
                if attempt + 1 == self._settings.conflict_attempts_max:
                    raise
            else:
                return

    async def list_streams_by_tag(self, scope: str, tag: str, token: str) -> NamePage:
        """Return the streams with `tag` of the next non-empty chunk. Raises `NoSuchScopeError`."""
        first = 0
        if token:
            known = [f"{_TAG_TOKEN}{chunk}" for chunk in range(TAG_CHUNK_COUNT)]
            if token not in known:
                raise InvalidArgumentError(f"{token[:80]!r} is not a continuation token of a listing by tag")
            first = known.index(token) + 1
        # A tag that no stream can have is not looked up: it may be too long for a key.
        chunks = range(first, TAG_CHUNK_COUNT if len(tag) < TAG_LENGTH_LIMIT else first)

        async def read(scope_id: str) -> NamePage:
            table = layout.tags_in_scope(scope, scope_id)
            # The table is read even if no chunk is left, so that a missing scope is always detected.
            keys = [layout.tag_key(chunk, tag) for chunk in chunks] or [layout.tag_key(0, "")]
            rows = await self._records.get_rows(table, keys)
            for chunk, row in zip(chunks, rows, strict=False):
                found = self._records.decoded(table, row, TagChunk)
                if found is not None and found.record.streams:
                    return NamePage(found.record.streams, f"{_TAG_TOKEN}{chunk}")
            return NamePage((), token or f"{_TAG_TOKEN}{TAG_CHUNK_COUNT - 1}")

        return await self.in_scope(scope, read)

    async def list_table(self, table: str, token: str, limit: int) -> NamePage:
        """Return up to `limit` keys of a table after `token` ('' = from the start)."""
        try:
            after = base64.b64decode(token.encode(), validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise InvalidArgumentError(f"{token[:80]!r} is not a continuation token") from error
        names: list[str] = []
        while len(names) < limit:
            page = await self._records.store.rows(table, limit=limit - len(names), token=after)
            if not page.rows:
                break
            names += [row.key for row in page.rows]
            after = page.token
        return NamePage(tuple(names), base64.b64encode(after).decode() if names else token)


def _remember(cache: dict[T, str], key: T, value: str, limit: int) -> None:
    cache.pop(key, None)
    while len(cache) >= max(1, limit):
        del cache[next(iter(cache))]
    cache[key] = value


def _raise_unless_metadata(error: Exception) -> None:
    """Re-raise an error about a segment that is not a table of the controller: it does not show that an id is stale."""
    if isinstance(error, NoSuchSegmentError) and not layout.is_metadata_table(error.segment):
        raise error
