"""Options of the Spark source and sink: every spelling, every default, every complaint. Pure, no Spark."""

from __future__ import annotations

import json

import pytest

from penstock.model.errors import InvalidArgumentError, InvalidNameError
from penstock.spark.options import (
    COLUMN_TYPES,
    Column,
    SourceOptions,
    StoreSettings,
    metadata_name,
    narrowed,
    parse_metadata_options,
    parse_sink_options,
    parse_source_options,
    source_columns,
)


def test_a_stream_alone_gets_every_default() -> None:
    options = parse_source_options({"stream": "retail/orders"})
    assert options == SourceOptions(StoreSettings("tcp://localhost:9090"), ("retail/orders",))
    assert options.only == "retail/orders"
    assert options.columns == ("event", "scope", "stream", "segment_id", "offset")
    assert options.start is options.end is options.trigger_bytes_max is None  # type: ignore[comparison-overlap]


def test_keys_are_compared_without_case() -> None:
    options = parse_source_options({"STREAM": "a/b", "maxbytespertrigger": "10", "StartingStreamCut": "earliest"})
    assert (options.trigger_bytes_max, options.start) == (10, "earliest")


@pytest.mark.parametrize(
    ("alias", "attribute", "text", "value"),
    [
        ("approx_bytes_per_trigger", "trigger_bytes_max", "33", 33),
        ("start_stream_cut", "start", "latest", "latest"),
        ("end_stream_cut", "end", "unbounded", "unbounded"),
        ("start", "start", "earliest", "earliest"),
        ("until", "end", "2026-11-22T10:30:00Z", "2026-11-22T10:30:00Z"),
        ("maxBytesPerPartition", "partition_bytes_max", "2k", 2048),
        ("maxBytesPerPartition", "partition_bytes_max", "8MiB", 8 << 20),
        ("minPartitions", "partition_count_min", "7", 7),
    ],
)
def test_aliases_and_units_are_understood(alias: str, attribute: str, text: str, value: object) -> None:
    assert getattr(parse_source_options({"stream": "a/b", alias: text}), attribute) == value


def test_without_a_uri_the_environment_says_where_the_store_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URI", "tcp://elsewhere:9090")
    assert parse_source_options({"stream": "a/b"}).store.uri == "tcp://elsewhere:9090"
    assert parse_sink_options({"stream": "a/b"}).store.uri == "tcp://elsewhere:9090"
    assert parse_sink_options({"stream": "a/b", "uri": "tcp://h:1"}).store.uri == "tcp://h:1"
    monkeypatch.delenv("PENSTOCK_URI")
    assert parse_source_options({"stream": "a/b"}).store.uri == "tcp://localhost:9090"


def test_controller_is_another_name_of_uri() -> None:
    assert parse_source_options({"stream": "a/b", "controller": "tcp://h:1"}).store.uri == "tcp://h:1"
    assert parse_sink_options({"stream": "a/b", "uri": "tcp://h:2"}).store.uri == "tcp://h:2"


def test_equal_values_under_two_spellings_pass_and_different_ones_do_not() -> None:
    same = {"stream": "a/b", "uri": "tcp://h:1", "controller": "tcp://h:1"}
    assert parse_source_options(same).store.uri == "tcp://h:1"
    with pytest.raises(InvalidArgumentError, match="mean the same but differ"):
        parse_source_options(same | {"controller": "tcp://h:2"})


def test_an_unknown_option_names_the_nearest_known_one() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'maxBytesPerTriger'.*did you mean 'maxBytesPerTrigger'"):
        parse_source_options({"stream": "a/b", "maxBytesPerTriger": "1"})
    with pytest.raises(InvalidArgumentError, match=r"'zzz' of the penstock sink; known options: "):
        parse_sink_options({"stream": "a/b", "zzz": "1"})


def test_options_added_by_spark_are_ignored() -> None:
    noise = {"path": "/x", "checkpointlocation": "/y", "owner": "me", "provider": "penstock", "option.stream": "a/b"}
    assert parse_source_options({"stream": "a/b"} | noise) == parse_source_options({"stream": "a/b"})
    assert parse_sink_options({"stream": "a/b"} | noise).stream == "b"


@pytest.mark.parametrize("options", [{}, {"stream": " "}, {"scope": "a"}])
def test_a_missing_stream_is_requested(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="'stream' is required"):
        parse_source_options(options)


def test_scope_and_stream_may_come_apart_but_must_agree() -> None:
    assert parse_source_options({"scope": "a", "stream": "b"}).only == "a/b"
    assert parse_source_options({"scope": "a", "stream": "a/b"}).only == "a/b"
    with pytest.raises(InvalidArgumentError, match="names scope 'a', but option 'scope' is 'c'"):
        parse_source_options({"scope": "c", "stream": "a/b"})
    with pytest.raises(InvalidArgumentError, match="has no scope"):
        parse_source_options({"stream": "b"})
    with pytest.raises(InvalidNameError):
        parse_source_options({"stream": "a/b c"})


@pytest.mark.parametrize("text", ["0", "-1", "ten", "", "1.5", "8x"])
def test_a_bad_byte_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'maxBytesPerTrigger'.*number of bytes"):
        parse_source_options({"stream": "a/b", "maxBytesPerTrigger": text})


@pytest.mark.parametrize("text", ["-1", "many", ""])
def test_a_bad_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="'minPartitions'"):
        parse_source_options({"stream": "a/b", "minPartitions": text})


@pytest.mark.parametrize(
    ("text", "seconds"), [("2", 2.0), ("500ms", 0.5), ("1.5s", 1.5), ("2m", 120.0), ("1 h", 3600.0)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_source_options({"stream": "a/b", "readTimeout": text}).store.outage_s_max == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "5 days"])
def test_a_bad_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'readTimeout'.*give a time"):
        parse_source_options({"stream": "a/b", "readTimeout": text})


def test_the_path_may_name_a_stream_and_never_a_directory() -> None:
    assert parse_source_options({"path": "retail/orders"}).only == "retail/orders"
    assert parse_sink_options({"path": "retail/orders", "uri": "tcp://h:1"}).target == "retail/orders"
    assert parse_source_options({"path": "a/b", "stream": "retail/orders"}).only == "retail/orders"
    for path in ("file:/warehouse/orders", "orders", "/data/retail/orders", "a/b/c"):
        with pytest.raises(InvalidArgumentError, match="option 'stream' is required"):
            parse_source_options({"path": path})


def test_a_metadata_table_is_about_a_stream_or_a_scope() -> None:
    assert metadata_name({"Metadata": " Streams "}) == "Streams"
    assert metadata_name({"stream": "a/b"}) is None
    options = {"scope": "retail", "metadata": "Streams"}
    assert parse_metadata_options(options, needs_stream=False).scope == "retail"
    assert parse_metadata_options({"stream": "retail/orders"}, needs_stream=False).scope == "retail"
    assert parse_metadata_options({"stream": "retail/orders"}, needs_stream=True).target == "retail/orders"
    with pytest.raises(InvalidArgumentError, match="option 'stream' is required"):
        parse_metadata_options(options, needs_stream=True)


def test_a_micro_batch_has_a_most_and_a_least() -> None:
    given = {"stream": "a/b", "maxEventsPerTrigger": "10", "minBytesPerTrigger": "1k", "maxTriggerDelay": "2m"}
    options = parse_source_options(given)
    assert (options.trigger_events_max, options.trigger_bytes_min, options.trigger_delay_s_max) == (10, 1024, 120.0)
    options = parse_source_options({"stream": "a/b"})
    assert (options.trigger_events_max, options.trigger_bytes_min, options.trigger_delay_s_max) == (None, 0, 900.0)
    with pytest.raises(InvalidArgumentError, match="more than 'maxBytesPerTrigger'"):
        parse_source_options({**given, "maxBytesPerTrigger": "1000"})
    with pytest.raises(InvalidArgumentError, match="'maxEventsPerTrigger' is 0"):
        parse_source_options({"stream": "a/b", "maxEventsPerTrigger": "0"})


def test_a_schema_selects_existing_columns() -> None:
    options = parse_source_options({"stream": "a/b"})
    plain = narrowed(options, [Column("offset", "bigint"), Column("event", "binary")])
    assert (plain.columns, plain.declared) == (("offset", "event"), ())
    for columns in ([Column("event", "string")], [Column("value", "binary")]):
        with pytest.raises(InvalidArgumentError, match=r"the penstock source has event binary, scope string"):
            narrowed(options, columns)
    for columns in ([], [Column("event", "binary"), Column("EVENT", "binary")]):
        with pytest.raises(InvalidArgumentError, match="name at least one, each once"):
            narrowed(options, columns)


def test_lost_data_is_an_error_by_default() -> None:
    assert parse_source_options({"stream": "a/b"}).fails_on_loss
    assert not parse_source_options({"stream": "a/b", "failOnDataLoss": "False"}).fails_on_loss
    assert parse_source_options({"stream": "a/b"}).has_whole_transactions
    assert not parse_source_options({"stream": "a/b", "wholeTransactions": "false"}).has_whole_transactions
    with pytest.raises(InvalidArgumentError, match="'failOnDataLoss' is 'no': give true or false"):
        parse_source_options({"stream": "a/b", "failOnDataLoss": "no"})


def test_columns_narrow_and_order_the_schema() -> None:
    assert parse_source_options({"stream": "a/b", "columns": "offset, Event"}).columns == ("offset", "event")
    assert source_columns({"Columns": "event"}) == {"event": "binary"}
    assert source_columns({}) == dict(COLUMN_TYPES)


@pytest.mark.parametrize("text", ["", " , ", "event,event"])
def test_columns_must_name_something_once(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="at least one column, each once"):
        source_columns({"columns": text})


def test_an_unknown_column_names_the_nearest_one() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'ofset' \(did you mean 'offset'\?\)"):
        source_columns({"columns": "ofset"})


def test_a_sink_writes_exactly_once_unless_this_is_switched_off() -> None:
    assert parse_sink_options({"stream": "a/b"}).is_exactly_once
    assert parse_sink_options({"stream": "a/b", "exactlyOnce": "TRUE"}).is_exactly_once
    assert not parse_sink_options({"stream": "a/b", "exactly_once": "false"}).is_exactly_once
    with pytest.raises(InvalidArgumentError, match="give true or false"):
        parse_sink_options({"stream": "a/b", "exactlyOnce": "perhaps"})


def test_a_writer_is_an_application_with_batches_or_a_job() -> None:
    assert parse_sink_options({"stream": "a/b"}).app is None
    application = parse_sink_options({"stream": "a/b", "appId": "revenue", "batchId": "7"})
    assert (application.app, application.batch) == ("revenue", 7)
    job = parse_sink_options({"stream": "a/b", "jobId": "backfill-2026-11"})
    assert (job.app, job.batch) == ("backfill-2026-11", 0)
    assert parse_sink_options({"stream": "a/b", "transactionLimit": "2h"}).transaction_limit_s == 7200.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batchId": "7"}, "give its 'appId' as well"),
        ({"appId": "a", "jobId": "j"}, "exclude each other"),
        ({"jobId": "j", "batchId": "1"}, "a job is one batch"),
        ({"appId": "a", "batchId": "-1"}, "give at least 0"),
        ({"transactionLimit": "500ms"}, "at least '1s'"),
    ],
)
def test_contradicting_writer_options_are_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        parse_sink_options({"stream": "a/b"} | options)


def test_streams_named_by_a_column_need_a_scope() -> None:
    options = parse_sink_options({"scope": "a"})
    assert (options.scope, options.stream, options.target) == ("a", None, "a/*")
    with pytest.raises(InvalidArgumentError, match="option 'scope' alone will do"):
        parse_sink_options({})


def test_a_view_is_read_and_written_with_the_options_of_both() -> None:
    options = {"stream": "a/b", "minPartitions": "2", "columns": "event", "jobId": "j", "transactionLimit": "1h"}
    assert parse_sink_options(options).app == "j"
    assert parse_source_options(options).partition_count_min == 2


@pytest.mark.parametrize(
    ("given", "streams"),
    [
        ({"stream": "a/b, c/d,a/b"}, ("a/b", "c/d")),
        ({"streams": "b,c/d", "scope": "e"}, None),
        ({"streams": "b,d", "scope": "c"}, ("c/b", "c/d")),
        ({"streamPattern": "orders-*", "scope": "c"}, ("c/orders-*",)),
        ({"streamPattern": "c/orders-[0-9]?"}, ("c/orders-[0-9]?",)),
        ({"path": "c/*"}, ("c/*",)),
        ({"streamPattern": "*"}, None),
        ({"streamPattern": "c*/orders"}, None),
        ({"stream": ","}, None),
    ],
)
def test_streams_are_listed_or_found_by_patterns(given: dict[str, str], streams: tuple[str, ...] | None) -> None:
    if streams is None:
        with pytest.raises(InvalidArgumentError):
            parse_source_options(given)
        return
    options = parse_source_options(given)
    assert options.streams == streams
    assert options.only is None


def test_a_sink_writes_to_one_stream() -> None:
    for stream in ("a/b,c/d", "a/*"):
        with pytest.raises(InvalidArgumentError):
            parse_sink_options({"stream": stream})


@pytest.mark.parametrize("path", ["a/x,a/y", "a/x , a/y", "a/x,b/*"])
def test_load_takes_streams_in_a_text_or_a_list(path: str) -> None:
    """Spark hands a list on as JSON."""
    streams = tuple(part.strip() for part in path.split(","))
    assert parse_source_options({"path": path}).streams == streams
    assert parse_source_options({"paths": json.dumps(path.split(","))}).streams == streams
    assert parse_source_options({"paths": json.dumps([path]), "stream": ",".join(streams)}).streams == streams


@pytest.mark.parametrize(
    ("paths", "complaint"),
    [
        ('["a/x", "orders"]', "load.. was given 'orders' in a list: name each stream as 'scope/stream'"),
        ('["a/x", "/data/orders"]', "load.. was given '/data/orders' in a list"),
        ("[]", "name at least one stream"),
        ("a/x", "not a JSON list"),
        ('["a/x", "a/z"]', "'stream' is 'a/y', but load.. was given 'a/x,a/z'"),
    ],
)
def test_a_list_that_does_not_name_the_streams_is_refused(paths: str, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        parse_source_options({"paths": paths} | ({"stream": "a/y"} if "a/z" in paths else {}))


def test_columns_of_a_schema_have_their_own_letters_and_nullability() -> None:
    options = parse_source_options({"stream": "a/x"})
    for columns in ([Column("EVENT", "binary")], [Column("event", "binary", is_nullable=False)]):
        found = narrowed(options, columns)
        assert (found.columns, found.declared) == (("event",), tuple(columns))


@pytest.mark.parametrize("column", [Column("Value", "struct<id:bigint>", False), Column("malformed", "binary", False)])
def test_columns_that_may_hold_null_cannot_be_declared_not_null(column: Column) -> None:
    given = {"stream": "a/x", "decode": "json", "decodeSchema": "id long"}
    lenient = parse_source_options(given | {"malformed": "null"})
    with pytest.raises(InvalidArgumentError, match=f"{column.name}' as not null, but option 'malformed' is 'null'"):
        narrowed(lenient, [column])
    if column.name == "Value":
        assert narrowed(parse_source_options(given), [column]).declared == (column,)
