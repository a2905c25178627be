"""The blocking client in a program as programs are: they fork, forget to close, and end in the middle of something.

Programs run in processes of their own, against a server in this one.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator

import pytest

import penstock
from penstock.runtime.portal import Portal
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """A running server's controller."""
    portal = Portal("server")
    settings = StandaloneSettings(is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0)
    server = Standalone(settings)
    portal.call(server.start(), 30)
    yield server.controller_uri
    portal.call(server.stop(), 30)
    portal.close()


_names = iter(range(1_000_000))


@pytest.fixture
def stream(uri: str) -> str:
    """A new stream."""
    name = f"programs/stream-{next(_names)}"
    with penstock.connect(uri) as client:
        client.create_stream(name)
    return name


def run_program(source: str, uri: str, stream: str, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program that has `client` and `stream`, and return how it ended and what it said."""
    head = f"import os, sys, penstock\nclient = penstock.connect({uri!r})\nstream = {stream!r}\n"
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(source)],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def events_in(uri: str, stream: str) -> list[bytes]:
    """Every event of a stream."""
    with penstock.connect(uri) as client:
        client.seal_stream(stream)
        with client.reader_group(f"count-{next(_names)}", [stream]) as group, group.reader() as reader:
            return [bytes(event.data) for event in reader]


@pytest.mark.parametrize("last_line", ["", "raise SystemExit(3)", "1 / 0"])
def test_a_program_that_ends_without_closing_loses_nothing(uri: str, stream: str, last_line: str) -> None:
    # It lost 2 000 of 20 000 without a word.
    ended = run_program(
        f"""
        writer = client.event_writer(stream)
        for number in range(20_000):
            writer.write(b"%d" % number)
        {last_line}
        """,
        uri, stream,
    )  # fmt: skip
    assert ended.returncode == {"": 0, "raise SystemExit(3)": 3, "1 / 0": 1}[last_line], ended.stderr
    assert [int(event) for event in events_in(uri, stream)] == list(range(20_000))


def test_an_interrupted_program_loses_nothing(uri: str, stream: str) -> None:
    """Ctrl-C in the middle of its blocks: they are left at once, and closed behind."""
    ended = run_program(
        """
        with client, client.event_writer(stream) as writer:
            for number in range(20_000):
                writer.write(b"%d" % number)
            raise KeyboardInterrupt
        """,
        uri, stream,
    )  # fmt: skip
    assert "KeyboardInterrupt" in ended.stderr
    assert "not acknowledged" not in ended.stderr
    assert [int(event) for event in events_in(uri, stream)] == list(range(20_000))


def test_the_number_of_unflushed_events_is_logged_at_exit() -> None:
    """The server is gone before the program ends. It waits `exit_timeout_s`, and no longer."""
    source = """
        import penstock
        from penstock.runtime.portal import Portal
        from penstock.server.settings import StandaloneSettings
        from penstock.server.standalone import Standalone
        portal = Portal("server")
        server = Standalone(
            StandaloneSettings(is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0)
        )
        portal.call(server.start(), 30)
        client = penstock.connect(server.controller_uri, penstock.ClientSettings(exit_timeout_s=0.5))
        client.create_stream("a/b")
        writer = client.event_writer("a/b")
        writer.write(b"stored").wait(10)
        portal.call(server.stop(), 30)
        for number in range(123):
            writer.write(b"lost")
        """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "the program ended before everything was stored" in ended.stderr
    assert "123 events for a/b are not acknowledged" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_forked_child_gets_an_error_at_once_and_the_parent_continues(uri: str, stream: str) -> None:
    # It hung: the thread it waited for was not in its process.
    ended = run_program(
        """
        writer = client.event_writer(stream)
        acks = [writer.write(b"before") for _ in range(100)]
        child = os.fork()
        if not child:
            refused = 0
            for call in (
                lambda: writer.write(b"child"),
                lambda: writer.write_many([b"child"]),
                lambda: writer.flush(),
                lambda: client.create_scope("child"),
                lambda: client.event_writer(stream),
                lambda: client.begin_transaction(stream),
                lambda: penstock.connect(client.uri),
            ):
                try:
                    call()
                except penstock.ForkedError as error:
                    assert "connect only in the child" in str(error)
                    refused += 1
            writer.close()
            client.close()
            print("refused", refused)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print("child ended", os.waitstatus_to_exitcode(status))
        for _ in range(100):
            acks.append(writer.write(b"after"))
        for ack in acks:
            ack.wait(10)
        client.close()
        """,
        uri, stream,
    )  # fmt: skip
    assert "refused 7" in ended.stdout, ended.stderr
    assert "child ended 0" in ended.stdout, ended.stderr
    assert ended.returncode == 0, ended.stderr
    assert events_in(uri, stream) == [b"before"] * 100 + [b"after"] * 100


def test_a_child_may_connect_if_its_parent_has_not(uri: str, stream: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(f"""
        import os, sys, penstock
        import penstock.client.sync
        child = os.fork()
        with penstock.connect({uri!r}) as client, client.event_writer({stream!r}) as writer:
            writer.write(b"x")
        if child:
            os.waitpid(child, 0)
        """)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert events_in(uri, stream) == [b"x"] * 2


def test_a_dropped_client_ends_its_thread_and_stores_accepted_events(uri: str, stream: str) -> None:
    threads = threading.active_count()

    def use() -> None:
        client = penstock.connect(uri)
        writer = client.event_writer(stream)
        for _ in range(1000):
            writer.write(b"x")

    # Not recorded: a warning that is kept keeps what it is about.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(5):
            use()
            gc.collect()
    deadline_s = time.monotonic() + 60
    while threading.active_count() > threads and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert threading.active_count() <= threads
    assert len(events_in(uri, stream)) == 5000
    with pytest.warns(ResourceWarning, match="unclosed <Client: client of tcp"):
        penstock.connect(uri).stream_exists(stream)


def test_a_dropped_writer_stores_accepted_events_and_is_closed(uri: str, stream: str) -> None:
    with penstock.connect(uri) as client:
        writers = [client.event_writer(stream)]
        inner = writers[0]._part
        ack = writers[0].write(b"x")
        with pytest.warns(ResourceWarning, match=r"unclosed <EventWriter: writer of programs/stream-\d+, open"):
            writers.clear()
        ack.wait(10)
        deadline_s = time.monotonic() + 60
        while not inner.is_closed and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert inner.is_closed
    assert events_in(uri, stream) == [b"x"]


def test_objects_made_by_a_client_keep_it_alive(uri: str, stream: str) -> None:
    writer = penstock.connect(uri).event_writer(stream)
    gc.collect()
    writer.write(b"x").wait(10)
    client = writer._client
    writer.close()
    client.close()  # type: ignore[attr-defined]
    client.close()  # type: ignore[attr-defined]
    writer.close()


def test_a_client_can_be_closed_by_several_threads(uri: str, stream: str) -> None:
    client = penstock.connect(uri)
    writer = client.event_writer(stream)
    for _ in range(1000):
        writer.write(b"x")
    closed: list[int] = []

    def close() -> None:
        client.close()
        closed.append(1)

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(closed) == 8
    assert len(events_in(uri, stream)) == 1000
