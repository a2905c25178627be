"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from support.bookkeeper_server import Bookies, BookiesStartError, BookiesUnavailableError
from support.distant_s3 import DistantS3
from support.hdfs_server import HdfsServer, HdfsStartError, HdfsUnavailableError, shared_hdfs
from support.killed_cluster import VARIABLE, ClusterServer
from support.s3_server import MinioServer, S3Server, S3StartError, S3UnavailableError
from support.standalone_process import StandaloneProcess
from support.zookeeper_server import ZooKeeperServers, ZooKeeperStartError, ZooKeeperUnavailableError

# ``--hypothesis-profile=nightly``: new examples each time, and many. What it finds becomes a named test.
settings.register_profile(
    "nightly",
    max_examples=1000,
    stateful_step_count=80,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

# ``--hypothesis-profile=busy``: beside other work, on a machine that may be slow at any moment.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])

# No test fails because the machine is slow. With the variable CI, Hypothesis loads such a profile of its own.
settings.register_profile("untimed", deadline=None)
if "CI" not in os.environ:
    settings.load_profile("untimed")

# A shell's background job ignores SIGINT, and so do all processes that tests start in it: none could be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the long tests."""
    parser.addoption(
        "--kill-cycles",
        type=int,
        default=8,
        help="how often the crash test kills the server (default 8; CI takes 50)",
    )
    parser.addoption("--kill-seed", type=int, default=0, help="seed of the crash test's load and moments")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the collected tests from garbage collection.

    A full collection takes a quarter of a second for these 400,000 permanent objects, and each seed ends with one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the nightly tests, with a reason."""
    if os.environ.get("PENSTOCK_TEST_PROFILE") == "nightly":
        return
    for item in items:
        if item.get_closest_marker("nightly") is not None:
            item.add_marker(pytest.mark.skip(reason="nightly: set PENSTOCK_TEST_PROFILE=nightly"))


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., StandaloneProcess]]:
    """Make servers that don't outlive the test; they are not started yet."""
    made: list[StandaloneProcess] = []

    def make(*options: str, memory: bool = False, segment_stores: int = 1) -> StandaloneProcess:
        directory = tmp_path / f"server{len(made)}"
        directory.mkdir()
        made.append(StandaloneProcess(directory, *options, memory=memory, segment_stores=segment_stores))
        return made[-1]

    yield make
    for server in made:
        if server.is_running:
            server.kill9()


@pytest.fixture
def server(make_server: Callable[..., StandaloneProcess], tmp_path: Path) -> StandaloneProcess:
    """Start a server with a data directory; or give a cluster that runs already, see `support.killed_cluster`."""
    if uri := os.environ.get(VARIABLE):
        return ClusterServer(tmp_path, uri).empty()
    return make_server().start()


def skip_or_fail(error: Exception, *, does_not_run: bool) -> NoReturn:
    """Leave out tests whose server is not here. In CI one that is here and does not run is a failure."""
    if does_not_run and os.environ.get("CI"):
        raise error
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run a real S3 server until the end."""
    try:
        server = S3Server(tmp_path_factory.mktemp("s3")).start()
    except S3UnavailableError as error:
        skip_or_fail(error, does_not_run=isinstance(error, S3StartError))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def distant_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistantS3]:
    """Run the S3 server of measurements until the end."""
    server = DistantS3(tmp_path_factory.mktemp("distant"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def minio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run MinIO until the end, where it is installed."""
    try:
        server = MinioServer(tmp_path_factory.mktemp("minio")).start()
    except S3UnavailableError as error:
        skip_or_fail(error, does_not_run=isinstance(error, S3StartError))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """Run a real HDFS until the end, one for all processes of this run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with ExitStack() as stack:
        try:
            server = stack.enter_context(shared_hdfs(folder / "hdfs"))
        except HdfsUnavailableError as error:
            skip_or_fail(error, does_not_run=isinstance(error, HdfsStartError))
        yield server


def _zookeeper(folder: Path, count: int) -> Iterator[ZooKeeperServers]:
    try:
        servers = ZooKeeperServers(folder, count).start()
    except ZooKeeperUnavailableError as error:
        skip_or_fail(error, does_not_run=isinstance(error, ZooKeeperStartError))
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServers]:
    """Run a real ZooKeeper of one server until the end."""
    yield from _zookeeper(tmp_path_factory.mktemp("zookeeper1"), 1)


@pytest.fixture(scope="session")
def zookeeper_quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServers]:
    """Run a real ZooKeeper of three servers until the end."""
    yield from _zookeeper(tmp_path_factory.mktemp("zookeeper3"), 3)


@pytest.fixture(scope="session")
def bookies(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: ZooKeeperServers) -> Iterator[Bookies]:
    """Run four real bookies until the end."""
    try:
        servers = Bookies(tmp_path_factory.mktemp("bookies"), zookeeper_server.address, 4).start()
    except BookiesUnavailableError as error:
        skip_or_fail(error, does_not_run=isinstance(error, BookiesStartError))
    yield servers
    servers.stop()
