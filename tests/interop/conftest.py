"""Fixtures of the tests with other projects' clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock_simulation.java_client import JavaUnavailableError
from support import java_client
from support.java_calls_streams import create_scope
from support.java_client import JavaProcess
from support.standalone_process import StandaloneProcess


class JavaHolder:
    """The Java process of a run: one, unless a test has ended it."""

    def __init__(self) -> None:
        self.process: JavaProcess | None = None

    def running(self) -> JavaProcess:
        """Return it, started when there is none."""
        if self.process is None or not self.process.is_running:
            java_client.find_java()
            self.process = JavaProcess(java_client.classpath())
        return self.process


@pytest.fixture(scope="session")
def java_holder() -> Iterator[JavaHolder]:
    """Keep the Java process until the end."""
    holder = JavaHolder()
    yield holder
    if holder.process is not None:
        holder.process.kill()


@pytest.fixture
def java(java_holder: JavaHolder, server: StandaloneProcess) -> Iterator[JavaProcess]:
    """Connect the Java client to the server, and make the scope."""
    try:
        process = java_holder.running()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    process.run(java_client.connect, server.uri)
    try:
        # It is not new if a controller was killed before its answer, and the client has repeated the call.
        process.run(create_scope)
        yield process
    finally:
        if process.is_running:
            process.run(java_client.disconnect)
