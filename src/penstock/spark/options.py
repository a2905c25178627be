"""Options of the Spark source and sink: from Spark's string map to checked, frozen settings.

Spark passes options with lower-cased keys and adds keys that the user never typed (`checkpointlocation`, `path`,
`owner`, `provider`, `option.<key>` and the like). So keys are compared without case, the known additions are ignored,
and any other unknown key is an error that names the nearest known one. Options travel to every task and show in
plans, so none of them may hold a secret.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.model.errors import InvalidArgumentError
from penstock.model.names import PATTERN_CHARACTERS, check_scope_name, check_stream_name, split_scoped_name
from penstock.spark.decode_options import MALFORMED, VALUE, Decoding, parse_decoding
from penstock.spark.option_values import byte_count, count, duration_s, flag

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of the source, in order, with their Spark types. The order and names of Pravega's own Spark connector.
COLUMN_TYPES: Mapping[str, str] = {
    "event": "binary",
    "scope": "string",
    "stream": "string",
    "segment_id": "bigint",
    "offset": "bigint",
}

#: Default of option `maxTriggerDelay`: how long `minBytesPerTrigger` delays a micro-batch.
TRIGGER_DELAY_S_MAX = 900.0

#: Default of option `streamRefreshInterval`: how often patterns list streams.
STREAM_REFRESH_S = 10.0

#: Default of option `transactionLimit`: how long a task's transactions wait for the driver.
TRANSACTION_LIMIT_S = 86_400.0

#: Which partitions read chunks of long-term storage directly: where it pays, none, or all (and it must be possible).
DIRECT_AUTO, DIRECT_NEVER, DIRECT_ALWAYS = "auto", "never", "always"

#: Default of option `layoutLease`: how long chunks are kept for the tasks of a query.
LAYOUT_LEASE_S = 900.0

# Canonical option name -> every spelling of it.
_SHARED = {
    "uri": ("uri", "controller"),
    "scope": ("scope",),
    "stream": ("stream",),
}
_READ = _SHARED | {
    "stream": ("stream", "streams", "streamPattern"),
    "streamRefreshInterval": ("streamRefreshInterval",),
    "startingStreamCut": ("startingStreamCut", "start_stream_cut", "start"),
    "endingStreamCut": ("endingStreamCut", "end_stream_cut", "until"),
    "maxBytesPerTrigger": ("maxBytesPerTrigger", "approx_bytes_per_trigger"),
    "maxEventsPerTrigger": ("maxEventsPerTrigger",),
    "minBytesPerTrigger": ("minBytesPerTrigger",),
    "maxTriggerDelay": ("maxTriggerDelay",),
    "maxBytesPerPartition": ("maxBytesPerPartition",),
    "minPartitions": ("minPartitions",),
    "columns": ("columns",),
    "numRetries": ("numRetries",),
    "retryInterval": ("retryInterval",),
    "readTimeout": ("readTimeout",),
    "failOnDataLoss": ("failOnDataLoss", "fail_on_data_loss"),
    "metadata": ("metadata",),
    "directReads": ("directReads",),
    "storagePlace": ("storagePlace",),
    "layoutLease": ("layoutLease",),
    "decode": ("decode",),
    "decodeSchema": ("decodeSchema",),
    "malformed": ("malformed",),
    "subscriber": ("subscriber",),
    "wholeTransactions": ("wholeTransactions",),
}
_WRITE = _SHARED | {
    # A SQL view is read and written with the same options: this one fits its rows to the sink, which ignores it.
    "columns": ("columns",),
    "exactlyOnce": ("exactlyOnce", "exactly_once"),
    "writeTimeout": ("writeTimeout",),
    "appId": ("appId",),
    "jobId": ("jobId",),
    "batchId": ("batchId",),
    "transactionLimit": ("transactionLimit",),
}

#: Every spelling of every option, in lower case.
_SPELLINGS = frozenset(
    spelling.lower() for known in (_READ, _WRITE) for spellings in known.values() for spelling in spellings
)

#: Keys that Spark adds itself.
_NOISE = frozenset(
    {
        "path",
        "paths",
        "checkpointlocation",
        "owner",
        "provider",
        "location",
        "comment",
        "external",
        "is_managed_location",
        "serialization.format",
        "queryname",
        "outputmode",
        "truncate",
    }
)
_NOISE_PREFIXES = ("option.", "__", "spark.")

#: The argument of `load` and `save`, where it is a stream; a table's path is a directory.
_STREAM_PATH = re.compile(r"[^/:\s,]+/[^/:\s,]+(\s*,\s*[^/:\s,]+/[^/:\s,]+)*\Z")


def _default_uri() -> str:
    # Not at the top: Spark imports this in processes that only plan, and the settings import more than that needs.
    from penstock.runtime.settings import default_uri

    return default_uri()


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Address and time limits of the store. Hashable: it is the key of the cache of clients.

    Attributes:
        uri: the controller's address, by default that of `PENSTOCK_URI` where the query is planned, then this machine.
        retry_count_max: how often in a row a read is resumed after a transient error, before the task fails; None: as
            often as `outage_s_max` allows.
        retry_interval_s: pause before each resumption.
        outage_s_max: the longest outage of the store that is tolerated: time limit of one call, one write, or a read
            without progress, retries included.
    """

    uri: str = field(default_factory=_default_uri)
    retry_count_max: int | None = None
    retry_interval_s: float = 0.5
    outage_s_max: float = 120.0


class Column(NamedTuple):
    """A column of a schema: its name in the schema's letters, its Spark type, and whether it may be null."""

    name: str
    kind: str
    is_nullable: bool = True


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Settings of one read.

    Attributes:
        streams: the streams to read, ``scope/stream`` each, or patterns of their names (``scope/orders-*``).
        start, end: `earliest`, `latest`, a time in ISO 8601, the text of a stream cut, or None for the default of the
            kind of query.
        trigger_bytes_max: most bytes in one micro-batch; None means no limit.
        trigger_events_max: most events in one micro-batch; None means no limit.
        trigger_bytes_min: with fewer bytes than this a micro-batch waits for more.
        trigger_delay_s_max: the longest such wait since the previous micro-batch.
        partition_bytes_max: a segment's range above this is split among tasks; None means never.
        partition_count_min: ranges are split until there are about this many tasks; 0 means one task per segment.
        columns: names out of `COLUMN_TYPES` and those of `decoding`, in the requested order.
        declared: `columns` as in the schema given to the reader; empty: under their own names, nullable.
        fails_on_loss: truncated unread data are an error; otherwise they are skipped, and that is logged.
        direct_reads: `DIRECT_AUTO`, `DIRECT_NEVER` or `DIRECT_ALWAYS`.
        storage_place: the place of long-term storage for tasks, if not the one reported by the store.
        layout_lease_s: how long its chunks are kept for the tasks of a query.
        refresh_s: how often patterns list streams.
        decoding: the format of events; None: they are bytes.
        value_type: of column `value`, in Arrow, once Spark has given it.
        subscriber: ``scope/group``: the name of a streaming query's subscribers, without their number.
        has_whole_transactions: tails are not inside the commit of a transaction.
    """

    store: StoreSettings
    streams: tuple[str, ...]
    start: str | None = None
    end: str | None = None
    trigger_bytes_max: int | None = None
    trigger_events_max: int | None = None
    trigger_bytes_min: int = 0
    trigger_delay_s_max: float = TRIGGER_DELAY_S_MAX
    partition_bytes_max: int | None = None
    partition_count_min: int = 0
    columns: tuple[str, ...] = tuple(COLUMN_TYPES)
    declared: tuple[Column, ...] = ()
    fails_on_loss: bool = True
    direct_reads: str = DIRECT_AUTO
    storage_place: str = ""
    layout_lease_s: float = LAYOUT_LEASE_S
    refresh_s: float = STREAM_REFRESH_S
    decoding: Decoding | None = None
    value_type: pa.StructType | None = None
    subscriber: str | None = None
    has_whole_transactions: bool = True

    @property
    def only(self) -> str | None:
        """The single stream to read; None: there may be several."""
        return self.streams[0] if len(self.streams) == 1 and not is_pattern(self.streams[0]) else None


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Settings of a read of a metadata table.

    Attributes:
        stream: None where the table is about a scope.
    """

    store: StoreSettings
    scope: str
    stream: str | None

    @property
    def target(self) -> str:
        """``scope/stream``."""
        return f"{self.scope}/{self.stream}"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Settings of one write.

    Attributes:
        stream: None: column `stream` names it, row by row.
        is_exactly_once: by transactions; otherwise events are appended, and repeated with a task or a batch.
        app: id of the writer over all of its runs; None: the streaming query's own id, or for a batch write no id,
            because it is not repeated.
        batch: number of the batch, of a batch write.
        transaction_limit_s: how long transactions prepared by tasks wait for the driver.
    """

    store: StoreSettings
    scope: str
    stream: str | None
    is_exactly_once: bool = True
    app: str | None = None
    batch: int = 0
    transaction_limit_s: float = TRANSACTION_LIMIT_S

    @property
    def target(self) -> str:
        """``scope/stream``, or ``scope/*`` where rows name their streams."""
        return f"{self.scope}/{self.stream or '*'}"


def _canonical(options: Mapping[str, str], known: Mapping[str, tuple[str, ...]], role: str) -> dict[str, str]:
    """Return the options under their canonical names; raise for unknown, duplicate and contradicting ones.

    Options of the other role are left out: a view is read and written with the same ones. Without `stream`, the
    argument of `load` or `save` is the stream.
    """
    by_spelling = {spelling.lower(): (name, spelling) for name, spellings in known.items() for spelling in spellings}
    found: dict[str, str] = {}
    spelt: dict[str, str] = {}
    for key, value in sorted(options.items()):
        lowered = key.lower()
        if lowered not in by_spelling:
            if lowered in _NOISE or lowered.startswith(_NOISE_PREFIXES):
                continue
            if lowered in _SPELLINGS:
                continue
            raise InvalidArgumentError(_unknown(key, by_spelling, role))
        name, spelling = by_spelling[lowered]
        if name in found and found[name] != value:
            raise InvalidArgumentError(
                f"options {spelt[name]!r} and {spelling!r} mean the same but differ "
                f"({found[name]!r} and {value!r}): give one of them"
            )
        found[name] = value
        spelt[name] = spelling
    loaded = {key.lower(): value.strip() for key, value in options.items()}
    path = loaded.get("path", "")
    if "paths" in loaded and known is _READ:
        path = _listed_streams(loaded["paths"])
        stream = found.get("stream", "").strip()
        if stream and "".join(stream.split()) != path:
            raise InvalidArgumentError(
                f"option 'stream' is {stream!r}, but load() was given {path!r}: give one of them"
            )
    if not found.get("stream", "").strip() and _STREAM_PATH.match(path):
        found["stream"] = path
    return found


def _listed_streams(text: str) -> str:
    """Convert the list given to `load`, which Spark passes as JSON, to the form of option `stream`."""
    try:
        paths = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"option 'paths' is {text!r}, which is not a JSON list: use 'stream'") from error
    if not isinstance(paths, list) or not paths:
        raise InvalidArgumentError(f"load() was given {text}: name at least one stream, as 'scope/stream'")
    for path in paths:
        if not isinstance(path, str) or not _STREAM_PATH.match(path.strip()):
            raise InvalidArgumentError(f"load() was given {path!r} in a list: name each stream as 'scope/stream'")
    return ",".join("".join(path.split()) for path in paths)


def _unknown(key: str, by_spelling: Mapping[str, tuple[str, str]], role: str) -> str:
    near = difflib.get_close_matches(key.lower(), by_spelling, n=1, cutoff=0.6)
    hint = f"did you mean {by_spelling[near[0]][1]!r}?" if near else ""
    listing = ", ".join(sorted({spelling for _, spelling in by_spelling.values()}, key=str.lower))
    return f"unknown option {key!r} of the penstock {role}; {hint}{' ' if hint else ''}known options: {listing}"


def _scoped_stream(found: Mapping[str, str]) -> tuple[str, str]:
    stream = found.get("stream", "").strip()
    scope = found.get("scope", "").strip()
    if not stream:
        raise InvalidArgumentError(
            "option 'stream' is required: write it as 'scope/stream', or add option 'scope'. (Spark does not pass on "
            "the options of CREATE TABLE: name them in the query, FROM t WITH (stream='scope/stream'), or use a view)"
        )
    if "/" in stream:
        named, name = split_scoped_name(stream)
        if scope and scope != named:
            raise InvalidArgumentError(f"option 'stream' names scope {named!r}, but option 'scope' is {scope!r}")
        return named, name
    if not scope:
        raise InvalidArgumentError(f"stream {stream!r} has no scope: write 'scope/{stream}', or add option 'scope'")
    return check_scope_name(scope), check_stream_name(stream)


def is_pattern(name: str) -> bool:
    """Return whether ``scope/stream`` is a pattern of streams' names."""
    return not PATTERN_CHARACTERS.isdisjoint(name)


def _streams(found: Mapping[str, str]) -> tuple[str, ...]:
    """Return the streams and patterns in option `stream`, without duplicates."""
    names: list[str] = []
    for name in filter(None, map(str.strip, found.get("stream", "").split(","))):
        if is_pattern(name):
            scope, slash, rest = name.rpartition("/")
            if not slash:
                scope, rest = found.get("scope", "").strip(), name
            if is_pattern(scope) or not scope:
                raise InvalidArgumentError(f"pattern {name!r} is of one scope: write it as 'scope/pattern'")
            names.append(f"{check_scope_name(scope)}/{rest}")
        else:
            names.append("/".join(_scoped_stream({**found, "stream": name})))
    return tuple(dict.fromkeys(names)) or ("/".join(_scoped_stream(found)),)


def _choice(found: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """Return one of `choices`; by default the first."""
    text = found.get(name, choices[0]).strip().lower()
    if text not in choices:
        raise InvalidArgumentError(f"option {name!r} is {found[name]!r}: give one of {', '.join(choices)}")
    return text


def _timeout_s(found: Mapping[str, str], name: str, default_s: float | None = None) -> float:
    timeout_s = duration_s(found, name, StoreSettings().outage_s_max if default_s is None else default_s)
    if not timeout_s:
        raise InvalidArgumentError(f"option {name!r} is {found[name]!r}: give a time above 0")
    return timeout_s


def _columns(text: str | None, decoding: Decoding | None) -> tuple[str, ...]:
    known = _column_types(decoding)
    if text is None:
        # Decoded columns replace the column that they are decoded from.
        return tuple(name for name in known if name != "event" or decoding is None)
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InvalidArgumentError(f"option 'columns' names {name!r}{hint}; the source has {', '.join(known)}")
    if not names or len(set(names)) != len(names):
        raise InvalidArgumentError(f"option 'columns' is {text!r}: name at least one column, each once")
    return names


def _column_types(decoding: Decoding | None) -> dict[str, str]:
    return ({} if decoding is None else decoding.columns) | dict(COLUMN_TYPES)


def source_columns(options: Mapping[str, str]) -> dict[str, str]:
    """Return the columns requested by `options` with their Spark types, ignoring all other options.

    Raises `InvalidArgumentError`, also where the type of decoded events is missing.
    """
    found = {name: value for key, value in options.items() for name in _READ if name.lower() == key.lower()}
    decoding = parse_decoding(found)
    types = _column_types(decoding)
    columns = {name: types[name] for name in _columns(found.get("columns"), decoding)}
    if not all(columns.values()):
        raise InvalidArgumentError(
            "option 'decode' is 'json': give columns as 'decodeSchema', like 'amount double, item string', or a "
            "schema to the reader"
        )
    return columns


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options of a read.

    Raises:
        InvalidArgumentError: an unknown key, a missing stream or an unusable value.
    """
    found = _canonical(options, _READ, "source")
    streams = _streams(found)
    decoding = parse_decoding(found)
    bytes_max, bytes_min = byte_count(found, "maxBytesPerTrigger"), byte_count(found, "minBytesPerTrigger") or 0
    if bytes_max is not None and bytes_min > bytes_max:
        raise InvalidArgumentError(
            f"option 'minBytesPerTrigger' is {found['minBytesPerTrigger']!r}, more than 'maxBytesPerTrigger', which is "
            f"{found['maxBytesPerTrigger']!r}: give less"
        )
    return SourceOptions(
        store=_source_store(found),
        streams=streams,
        start=found.get("startingStreamCut"),
        end=found.get("endingStreamCut"),
        trigger_bytes_max=bytes_max,
        trigger_events_max=count(found, "maxEventsPerTrigger", 1, 1) if "maxEventsPerTrigger" in found else None,
        trigger_bytes_min=bytes_min,
        trigger_delay_s_max=duration_s(found, "maxTriggerDelay", TRIGGER_DELAY_S_MAX),
        partition_bytes_max=byte_count(found, "maxBytesPerPartition"),
        partition_count_min=count(found, "minPartitions", 0, 0),
        columns=_columns(found.get("columns"), decoding),
        fails_on_loss=flag(found, "failOnDataLoss", default=True),
        direct_reads=_choice(found, "directReads", (DIRECT_AUTO, DIRECT_NEVER, DIRECT_ALWAYS)),
        storage_place=found.get("storagePlace", "").strip(),
        layout_lease_s=_timeout_s(found, "layoutLease", LAYOUT_LEASE_S),
        refresh_s=duration_s(found, "streamRefreshInterval", STREAM_REFRESH_S),
        decoding=decoding,
        subscriber=_subscriber(found, streams),
        has_whole_transactions=flag(found, "wholeTransactions", default=True),
    )


def _subscriber(found: Mapping[str, str], streams: Sequence[str]) -> str | None:
    name = found.get("subscriber", "").strip()
    if not name:
        return None
    return "/".join(split_scoped_name(name if "/" in name else f"{streams[0].partition('/')[0]}/{name}"))


def matched(columns: Sequence[Column], types: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in `types` of the columns of a schema. Names are compared without case, as in Spark.

    Decoded events have type ``struct<...>`` in `types`, or no type yet: any struct fits.

    Raises:
        InvalidArgumentError: an unknown column, another type, a duplicate, or no column at all.
    """
    names = tuple(column.name.lower() for column in columns)
    for name, column in zip(names, columns, strict=True):
        is_decoded = name == VALUE and name in types and column.kind.startswith("struct<")
        if types.get(name) != column.kind and not is_decoded:
            known = ", ".join(f"{each} {its_kind}" for each, its_kind in types.items())
            raise InvalidArgumentError(
                f"the schema has column '{column.name} {column.kind}'; the penstock source has {known}"
            )
    if not names or len(set(names)) != len(names):
        listing = ", ".join(column.name for column in columns) or "none"
        raise InvalidArgumentError(f"the schema has the columns {listing}: name at least one, each once")
    return names


def narrowed(options: SourceOptions, columns: Sequence[Column]) -> SourceOptions:
    """Return `options` with the columns of a schema: `spark.read.schema(...)` narrows, orders and renames them.

    Raises:
        InvalidArgumentError: as `matched`, or a column that may be null is declared as not null.
    """
    names = matched(columns, _column_types(options.decoding))
    for name, column in zip(names, columns, strict=True):
        if column.is_nullable or options.decoding is None or not options.decoding.is_lenient:
            continue
        if name in (VALUE, MALFORMED):
            raise InvalidArgumentError(
                f"the schema has column {column.name!r} as not null, but option 'malformed' is 'null': each row has "
                f"null in '{VALUE}' or in '{MALFORMED}'; leave 'not null' out, or set malformed to fail"
            )
    is_plain = all(name == column.name and column.is_nullable for name, column in zip(names, columns, strict=True))
    return replace(options, columns=names, declared=() if is_plain else tuple(columns))


def metadata_name(options: Mapping[str, str]) -> str | None:
    """Return the table requested by `options`, ignoring all other options; None: they request events."""
    lowered = {key.lower(): value for key, value in options.items()}
    return lowered.get("metadata", "").strip() or None


def parse_metadata_options(options: Mapping[str, str], *, needs_stream: bool) -> MetadataOptions:
    """Check the options of a read of a metadata table.

    Raises:
        InvalidArgumentError: an unknown key, a missing stream or scope, or an unusable value.
    """
    found = _canonical(options, _READ, "source")
    if needs_stream:
        return MetadataOptions(_source_store(found), *_scoped_stream(found))
    return MetadataOptions(_source_store(found), _target(found)[0], None)


def _source_store(found: Mapping[str, str]) -> StoreSettings:
    return StoreSettings(
        uri=found.get("uri", "").strip() or _default_uri(),
        retry_count_max=count(found, "numRetries", 0, 0) if "numRetries" in found else None,
        retry_interval_s=duration_s(found, "retryInterval", StoreSettings().retry_interval_s),
        outage_s_max=_timeout_s(found, "readTimeout"),
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write.

    Raises:
        InvalidArgumentError: an unknown key, a missing stream, or an unusable value.
    """
    found = _canonical(options, _WRITE, "sink")
    scope, stream = _target(found)
    exactly_once = flag(found, "exactlyOnce", default=True)
    store = StoreSettings(
        uri=found.get("uri", "").strip() or _default_uri(), outage_s_max=_timeout_s(found, "writeTimeout")
    )
    app = _app(found)
    if "batchId" in found and app is None:
        raise InvalidArgumentError("option 'batchId' counts the batches of an application: give its 'appId' as well")
    limit_s = duration_s(found, "transactionLimit", TRANSACTION_LIMIT_S)
    if limit_s < 1:
        raise InvalidArgumentError(f"option 'transactionLimit' is {found['transactionLimit']!r}: give at least '1s'")
    return SinkOptions(store, scope, stream, exactly_once, app, count(found, "batchId", 0, 0), limit_s)


def _target(found: Mapping[str, str]) -> tuple[str, str | None]:
    if found.get("stream", "").strip():
        return _scoped_stream(found)
    if found.get("scope", "").strip():
        return check_scope_name(found["scope"].strip()), None
    raise InvalidArgumentError(
        "option 'stream' is required: write it as 'scope/stream', or add option 'scope'. Where a column 'stream' names "
        "each row's stream, option 'scope' alone will do"
    )


def _app(found: Mapping[str, str]) -> str | None:
    app, job = found.get("appId", "").strip(), found.get("jobId", "").strip()
    if app and job:
        raise InvalidArgumentError(
            "options 'appId' and 'jobId' exclude each other: a job is written once, an application batch by batch"
        )
    if job and "batchId" in found:
        raise InvalidArgumentError("option 'batchId' goes with 'appId': a job is one batch")
    return app or job or None
