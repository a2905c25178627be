"""`IcebergTable`: an Iceberg table as the target of exports of streams, exactly once.

Each commit is a snapshot, whose summary names the stream and its start and end cut. The position of a stream is in its
newest snapshot on the table's main branch: so a table that is rolled back is filled again from where it was rolled back
to. Where these snapshots were expired, a property of the table has the cut, and the user has to confirm it, because it
cannot be determined any more whether the table was rolled back. The catalogue accepts a snapshot only if its parent is
still the latest; commits of other writers, and of exports of other streams, may come in between, and are skipped.

Files of commits that a crash has lost are in the table's location and belong to no snapshot: a removal of orphan files
removes them.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.jobs.errors import ExportTargetError
from penstock.jobs.export import TablePosition, WrittenBatch, WrittenFile
from penstock.jobs.parquet_files import write_parquet
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    InvalidNameError,
    OutcomeUnknownError,
    PenstockError,
)
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.extras import missing_extra
from penstock.runtime.pacing import GrowingDelay

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from penstock.jobs.iceberg_commit import SingleAttempt

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Keys in the summary of a snapshot.
STREAM, START, END, BATCH = "penstock.stream", "penstock.start-cut", "penstock.end-cut", "penstock.batch-id"
#: Missing in snapshots of earlier versions, and of streams whose controller does not support identities.
IDENTITY = "penstock.stream-identity"
#: Placeholder in a file's path for the number of the file in its batch.
_FILE = "FILE-NUMBER"
#: Properties of a table that control which column metrics each commit has.
_METRICS_DEFAULT, _METRICS_OF_COLUMN = "write.metadata.metrics.default", "write.metadata.metrics.column"
#: Errors of a library about the content of a file, which are permanent. `OSError` is not among them.
_LIBRARY_FAULTS = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, NotImplementedError)
#: Pauses between attempts to commit.
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 5.0


@dataclass(frozen=True, slots=True)
class Commit:
    """The part of a snapshot's summary that describes an export."""

    id: str
    position: TablePosition


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Writes files in the location of a table. Implements `FileMaker`.

    Attributes:
        place: path of a file, with `_FILE` for its number.
    """

    io: FileIO
    place: str
    schema: pa.Schema
    metadata: dict[str, str]

    def write(self, rows: Iterable[pa.RecordBatch]) -> WrittenFile:
        """See `FileMaker.write`."""
        place = self.place.replace(_FILE, uuid.uuid4().hex[:8])
        try:
            with self.io.new_output(place).create() as file:
                row_count = write_parquet(file, self.schema, rows, self.metadata)
        except BaseException as error:
            _remove(self.io, [place])
            if isinstance(error, OSError) and not isinstance(error, PenstockError):
                raise ExportTargetError(f"{place} was not written: {error}") from error
            raise
        return WrittenFile(place, row_count)


class IcebergTable:
    """See the module. Implements `ExportTarget`.

    Args:
        catalog: created by PyIceberg; `open_catalog`.
        name: of the table, ``namespace.table``; created if missing.
        stream: ``scope/stream``.
        schema: the columns.
        confirmed: the confirmed end of a table whose snapshots of the stream were expired.
        outage_s_max: how long each call retries while the catalogue is unavailable, and a commit while other writers
            commit first.
    """

    def __init__(
        self, catalog: Catalog, name: str, stream: str, schema: pa.Schema, *, confirmed: StreamCut | None = None,
        outage_s_max: float = 120.0,
    ) -> None:  # fmt: skip
        self._catalog = catalog
        self._name = name
        self._stream = stream
        self._schema = schema
        self._confirmed = confirmed
        self._outage_s_max = outage_s_max
        self._table = self._made()
        self._check(self._table)

    def latest(self) -> TablePosition | None:
        """See `ExportTarget.latest`."""
        self._table = self._loaded()
        return self._end(self._table, list(self._commits(self._table)))

    def new_files(self, batch_id: str, start: StreamCut, end: StreamCut) -> TableFiles:
        """See `ExportTarget.new_files`."""
        place: str = self._table.location_provider().new_data_location(f"penstock-{batch_id}-{_FILE}.parquet")
        return TableFiles(self._table.io, place, self._schema, {START: start.to_text(), END: end.to_text()})

    def commit(self, batch: WrittenBatch) -> bool:
        """See `ExportTarget.commit`.

        Raises:
            OutcomeUnknownError: an attempt was sent, and its outcome could not be determined in time.
            ExportTargetError: no attempt was sent, or each one was refused: nothing was committed.
        """
        from pyiceberg.exceptions import CommitFailedException

        give_up_s, pause = time.monotonic() + self._outage_s_max, GrowingDelay(_PAUSE_FIRST_S, _PAUSE_MAX_S)
        # The error of an attempt without a clear answer. It may still arrive as long as the batch is not found
        # committed.
        unanswered: Exception | None = None
        while True:
            failure: Exception
            try:
                table = self._catalog.load_table(self._name)
                commits = list(self._commits(table))
                if any(commit.id == batch.id for commit in commits):
                    # An earlier attempt succeeded, although its answer was an error, or was lost.
                    return True
                if self._end(table, commits) != batch.before:
                    # A late attempt of ours cannot succeed: its parent snapshot is not the latest.
                    self.discard(batch)
                    return False
                staged = self._staged(table, batch)
            except PenstockError:
                if unanswered is None:
                    raise
                raise self._unknown(batch, unanswered) from unanswered
            except Exception as error:  # noqa: BLE001  # of any catalogue and file system; nothing was sent
                failure = error
            else:
                try:
                    staged.send(self._catalog)
                    return True
                except CommitFailedException as error:
                    # Another writer was first: of this stream, of another one, or of another kind.
                    failure = error
                except _refusals() as error:
                    if unanswered is None:
                        raise ExportTargetError(
                            f"table {self._name}: the catalogue refused the commit, and nothing was committed: "
                            f"{_said(error)}"
                        ) from error
                    failure = error
                except Exception as error:  # noqa: BLE001  # of any catalogue: the attempt may be taken or not
                    _log.warning("table %s: an attempt to commit got no answer, checking: %s", self._name, error)
                    failure = unanswered = error
            if time.monotonic() + pause.next_s > give_up_s:
                if unanswered is not None:
                    raise self._unknown(batch, unanswered) from failure
                raise ExportTargetError(
                    f"table {self._name}: nothing was committed within {self._outage_s_max:g} s: {_said(failure)}"
                ) from failure
            time.sleep(pause.take())

    def _unknown(self, batch: WrittenBatch, why: Exception) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"table {self._name}: it is not known whether batch {batch.id} was committed: the catalogue did not answer "
            f"({_said(why)}). Run the export again: it continues from the progress recorded in the table"
        )

    def discard(self, batch: WrittenBatch) -> None:
        """See `ExportTarget.discard`."""
        _remove(self._table.io, batch.files)

    def _staged(self, table: Table, batch: WrittenBatch) -> SingleAttempt:
        """Return the changes of a batch's commit. Reads the footers of its files, and sends nothing.

        Their commit is sent once, on condition that the table's main branch is as in `table`.

        Raises `ExportTargetError`: PyIceberg cannot add the files; and the errors of file systems.
        """
        summary = {
            STREAM: self._stream,
            START: batch.start.to_text(),
            END: batch.end.to_text(),
            BATCH: batch.id,
        }
        properties = {f"{END}.{self._stream}": summary[END]}
        if batch.identity is not None:
            summary[IDENTITY] = batch.identity
            properties[f"{IDENTITY}.{self._stream}"] = batch.identity

        from penstock.jobs.iceberg_commit import SingleAttempt  # PyIceberg is optional.

        def stage(*, has_bounds: bool) -> SingleAttempt:
            staged = SingleAttempt(table)
            staged.set_properties(properties)
            if not has_bounds:
                staged.set_properties(dict.fromkeys(self._metrics_modes(), "counts"))
            staged.add_files(list(batch.files), snapshot_properties=summary, check_duplicate_files=False)
            if not has_bounds:
                before = {name: table.properties.get(name) for name in self._metrics_modes()}
                staged.remove_properties(*before)
                staged.set_properties({name: mode for name, mode in before.items() if mode is not None})
            return staged

        try:
            return stage(has_bounds=True)
        except _LIBRARY_FAULTS as error:
            # PyIceberg cannot compute the bounds of some values, such as texts with U+D7FF at certain positions.
            _log.warning("table %s: batch %s gets no column bounds: %s", self._name, batch.id, _said(error))
        try:
            return stage(has_bounds=False)
        except _LIBRARY_FAULTS as error:
            raise ExportTargetError(
                f"table {self._name}: PyIceberg cannot add the files of batch {batch.id}, and nothing was committed: "
                f"{_said(error)}"
            ) from error

    def _metrics_modes(self) -> list[str]:
        """Return the properties that control which column metrics a commit has."""
        return [_METRICS_DEFAULT, *(f"{_METRICS_OF_COLUMN}.{name}" for name in self._schema.names)]

    def _commits(self, table: Table) -> Iterator[Commit]:
        """Yield the exports of this stream in snapshots of the main branch, newest first."""
        metadata = table.metadata
        snapshot = metadata.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            if summary is not None and summary[STREAM] == self._stream:
                source = f"snapshot {snapshot.snapshot_id} of table {self._name}"
                identity = summary[IDENTITY]
                try:
                    end = StreamCut.from_text(str(summary[END]))
                    yield Commit(str(summary[BATCH]), TablePosition(end, None if identity is None else str(identity)))
                except (InvalidArgumentError, InvalidNameError) as error:
                    raise CorruptionError(source, 0, f"{END} is no cut: {summary[END]!r}") from error
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else metadata.snapshot_by_id(parent)

    def _end(self, table: Table, commits: Sequence[Commit]) -> TablePosition | None:
        """Return the end of the table. Raises `ExportTargetError`: it was in snapshots that were expired."""
        if commits:
            return commits[0].position
        metadata = table.metadata
        oldest, text = metadata.current_snapshot(), table.properties.get(f"{END}.{self._stream}")
        while oldest is not None and oldest.parent_snapshot_id is not None:
            parent = metadata.snapshot_by_id(oldest.parent_snapshot_id)
            if parent is None:
                break
            oldest = parent
        if text is None or oldest is None or oldest.sequence_number == 1:
            # There was no export, or the table was rolled back to before the first: its history is complete.
            return None
        if self._confirmed is None or self._confirmed != StreamCut.from_text(text):
            raise ExportTargetError(
                f"table {self._name}: the snapshots that record the progress of {self._stream} have expired. If the "
                f"table was not rolled back since, its progress is the cut {text}: start there with --from; otherwise "
                f"remove its property {END}.{self._stream} to export from the beginning"
            )
        return TablePosition(self._confirmed, table.properties.get(f"{IDENTITY}.{self._stream}"))

    def _made(self) -> Table:
        try:
            namespace, _, _ = self._name.rpartition(".")
            if not namespace:
                raise InvalidArgumentError(f"{self._name!r} is not the name of a table: write NAMESPACE.TABLE")
            what = f"opening table {self._name}"
            _answered(what, self._outage_s_max, lambda: self._catalog.create_namespace_if_not_exists(namespace))
            return _answered(
                what, self._outage_s_max,
                lambda: self._catalog.create_table_if_not_exists(self._name, schema=self._schema),
            )  # fmt: skip
        except PenstockError:
            raise
        except Exception as error:
            raise ExportTargetError(f"table {self._name} can be neither created nor opened: {error}") from error

    def _loaded(self) -> Table:
        """Return the current table; retries for `outage_s_max` while the catalogue is unavailable."""
        from pyiceberg.exceptions import NoSuchTableError

        give_up_s, pause = time.monotonic() + self._outage_s_max, GrowingDelay(_PAUSE_FIRST_S, _PAUSE_MAX_S)
        while True:
            try:
                return self._catalog.load_table(self._name)
            except NoSuchTableError as error:
                raise ExportTargetError(f"table {self._name} no longer exists: {error}") from error
            except Exception as error:
                if time.monotonic() + pause.next_s > give_up_s:
                    raise ExportTargetError(f"table {self._name} cannot be opened: {error}") from error
            time.sleep(pause.take())

    def _check(self, table: Table) -> None:
        """Refuse a table whose schema does not fit the rows of this export."""
        if not table.spec().is_unpartitioned():
            raise InvalidArgumentError(
                f"table {self._name} is partitioned: export to an unpartitioned table, and partition a table derived "
                "from it"
            )
        has = {field.name: str(field.field_type) for field in table.schema().fields}
        probe = {field.name: kind for field, kind in zip(self._schema, _iceberg_types(self._schema), strict=True)}
        others = sorted(name for name, kind in probe.items() if has.get(name) != kind)
        required = sorted(field.name for field in table.schema().fields if field.required)
        if others or required:
            raise InvalidArgumentError(
                f"table {self._name} has different columns from this export: {(others + required)[0]!r} differs; it "
                "has "
                f"{', '.join(f'{name} {kind}' for name, kind in has.items())}"
            )


def _remove(io: FileIO, places: Iterable[str]) -> None:
    """Remove uncommitted files. Those that cannot be removed stay, as after a crash."""
    for place in places:
        try:
            io.delete(place)
        except Exception as error:  # noqa: BLE001  # of any file system; the file does no harm
            _log.warning("%s is not part of a table and could not be deleted: %s", place, error)


def _refusals() -> tuple[type[Exception], ...]:
    """Return the error classes by which catalogues refuse a commit: it was received, and not done."""
    from pyiceberg import exceptions

    return (
        exceptions.BadRequestError,
        exceptions.UnauthorizedError,
        exceptions.AuthorizationExpiredError,
        exceptions.ForbiddenError,
        exceptions.OAuthError,
        exceptions.NoSuchTableError,
        exceptions.ValidationError,
        exceptions.ValidationException,
    )


def _said(error: Exception) -> str:
    """Return the message of a library's error with its type, because many messages are meaningless without it."""
    return f"{type(error).__name__}: {error}"


def _answered(what: str, outage_s: float, call: Callable[[], T]) -> T:
    """Return the result of a call of a catalogue that has the same effect twice; retries while it is unavailable."""
    give_up_s, pause = time.monotonic() + outage_s, GrowingDelay(_PAUSE_FIRST_S, _PAUSE_MAX_S)
    is_told = False
    while True:
        try:
            return call()
        except _absences() as error:
            if time.monotonic() + pause.next_s > give_up_s:
                raise
            if not is_told:
                is_told = True
                _log.warning("%s: the catalogue is unavailable, retrying for %g s: %s", what, outage_s, _said(error))
        time.sleep(pause.take())


def _absences() -> tuple[type[Exception], ...]:
    """Return the error classes of a catalogue that cannot be reached or does not work at present."""
    from pyiceberg import exceptions
    from requests.exceptions import ConnectionError as NoConnectionError
    from requests.exceptions import Timeout

    return (ConnectionError, TimeoutError, NoConnectionError, Timeout, exceptions.ServerError,
            exceptions.ServiceUnavailableError)  # fmt: skip


def open_catalog(
    name: str, properties: Mapping[str, str], directory: Path | None, first_contact_s: float = 0.0
) -> Catalog:
    """Return PyIceberg's catalogue `name`; `properties` override PyIceberg's own files and variables.

    `directory`: a local catalogue, in SQLite, with its tables in the same directory; created if missing.
    `first_contact_s`: how long it retries while the catalogue is unavailable; 0: its address may be wrong.

    Raises `ExportTargetError`; `InvalidArgumentError`: PyIceberg is not installed.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise InvalidArgumentError(missing_extra("Iceberg", "iceberg", error)) from error
    used: dict[str, Any] = dict(properties)
    if directory is not None:
        directory = directory.resolve()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExportTargetError(f"{directory} cannot be used: {error.strerror or error}") from error
        used = {
            "type": "sql",
            "uri": f"sqlite:///{directory / 'catalog.db'}",
            "warehouse": directory.as_uri(),
            "py-io-impl": "penstock.jobs.synced_io.SyncedFileIO",
        } | used
    try:
        return _answered(f"opening catalogue {name}", first_contact_s, lambda: load_catalog(name, **used))
    except Exception as error:
        raise ExportTargetError(f"catalogue {name} cannot be opened: {error}") from error


def _iceberg_types(schema: pa.Schema) -> list[str]:
    import pyarrow as pa

    names = {
        pa.binary(): "binary", pa.string(): "string", pa.int32(): "int", pa.int64(): "long", pa.float64(): "double",
        pa.bool_(): "boolean", pa.date32(): "date", pa.timestamp("us", tz="UTC"): "timestamptz",
    }  # fmt: skip
    return [names[field.type] for field in schema]
