"""Fixtures of the Spark tests: one store process and one Spark session for all of them.

Spark's Python workers are separate processes, so the store is a real one, started as users start it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.quickstart.query import JAVA_OPTIONS
from penstock.server.standalone_process import StandaloneProcess
from support.live_writer import LiveWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.sync import Client

SOURCE_ROOT = Path(penstock.__file__).parent.parent


@pytest.fixture(scope="session")
def spark_environment() -> None:
    """Let Spark's processes find this checkout and this Python; skip where Spark cannot run."""
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'penstock[spark]'")
    from penstock.spark.compiled import ensure_compiled
    from penstock.spark.errors import JavaNotFoundError
    from penstock.spark.java import ensure_java

    try:
        ensure_java()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    ensure_compiled()  # Tests start hundreds of Python processes of Spark.
    # For every Java that tests start: it lives too short for the slower compiler and for collectors with threads.
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    paths = [str(SOURCE_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    # Otherwise Spark takes the address of the name of the host, and ends if the name has none.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark(spark_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session: two cores, nothing registered."""
    from penstock.quickstart.query import start_session

    session = start_session(tmp_path_factory.mktemp("spark") / "spark.log")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def store(spark_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """A store process that runs as long as the tests."""
    with StandaloneProcess(tmp_path_factory.mktemp("store")) as process:
        yield process


@pytest.fixture(scope="session")
def client(store: StandaloneProcess) -> Iterator[Client]:
    """A client of the store."""
    with penstock.connect(store.uri) as connected:
        yield connected


_numbers = itertools.count(1)


@pytest.fixture
def new_stream(client: Client) -> Callable[[int], str]:
    """Return a function that creates a stream of so many segments and returns its scoped name."""

    def create(segment_count: int = 2) -> str:
        stream = f"spark-tests/stream-{next(_numbers)}"
        client.create_stream(stream, scaling=penstock.Scaling.fixed(segment_count), exist_ok=True)
        return stream

    return create


@pytest.fixture
def write(client: Client) -> Callable[..., list[bytes]]:
    """Return a function that writes numbered events by routing key and returns them once they are durable."""

    def write_events(stream: str, count: int, first: int = 0, size: int = 20) -> list[bytes]:
        events = [b"%08d" % number + b"." * (size - 8) for number in range(first, first + count)]
        with client.event_writer(stream) as writer:
            writer.write_many(events, routing_keys=[f"key-{number % 17}" for number in range(first, first + count)])
            writer.flush()
        return events

    return write_events


@pytest.fixture
def live(client: Client) -> Iterator[Callable[..., LiveWriter]]:
    """Return a function that starts a writer to a stream, which writes until `LiveWriter.stop` or the test's end."""
    with contextlib.ExitStack() as writers:

        def start(stream: str, interval_s: float = 0.002) -> LiveWriter:
            return writers.enter_context(LiveWriter(client, stream, interval_s))

        yield start
