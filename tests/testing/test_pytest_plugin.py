"""The fixtures that an application's tests get, used as an application would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.testing import memory_server

APPLICATION_TEST = """
seen = []


def write(client, stream):
    with client.event_writer(stream) as writer:
        writer.write(b"order", routing_key="customer-42")


def read(client, stream):
    with client.reader_group("audit-" + stream.partition("/")[2], [stream]) as group, group.reader() as reader:
        return reader.read(timeout_s=10).data


def test_one(penstock_client, penstock_stream, penstock_server):
    write(penstock_client, penstock_stream)
    assert read(penstock_client, penstock_stream) == b"order"
    seen.extend((penstock_stream, penstock_server.uri))
    # Left open: the fixture closes the client, and that flushes.
    penstock_client.event_writer(penstock_stream).write(b"left")


def test_another_has_a_stream_of_its_own_on_the_same_server(penstock_client, penstock_stream, penstock_server):
    assert penstock_stream != seen[0]
    assert penstock_server.uri == seen[1]
    assert penstock_client.tail(seen[0]).positions[0] == 8 + 5 + 8 + 4
"""


@pytest.mark.parametrize("also_named_by", ["no one", "the application"])
def test_an_application_gets_a_server_a_client_and_a_stream(tmp_path: Path, also_named_by: str) -> None:
    """The installed plugin is found by pytest itself; an application that names it too does not load it twice."""
    if also_named_by == "the application":
        (tmp_path / "conftest.py").write_text('pytest_plugins = ["penstock.testing.pytest_plugin"]\n')
    (tmp_path / "test_application.py").write_text(APPLICATION_TEST)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout


def test_the_snippets_of_the_guide_are_tests_that_pass(tmp_path: Path) -> None:
    """As they stand there, in one file."""
    guide = Path(__file__).parents[2] / "docs" / "guide" / "testing-applications.md"
    found = re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 2
    (tmp_path / "test_guide.py").write_text("\n".join(found))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "penstock.testing.pytest_plugin", "."],
        capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


def test_the_package_says_where_the_simulation_is() -> None:
    """Its commands were in `penstock.testing` once."""
    ended = subprocess.run(
        [sys.executable, "-m", "penstock.testing", "run"], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 2
    assert "./run seeds" in ended.stderr
    assert "penstock_simulation" in ended.stderr


def test_two_servers_can_run_in_one_process() -> None:
    with memory_server() as one, memory_server() as other:
        assert one.uri != other.uri
        with one.connect() as client:
            client.create_stream("a/b")
        with penstock.connect(other.uri) as client:
            assert not client.stream_exists("a/b")
