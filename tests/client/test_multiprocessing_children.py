"""Clients that are made in child processes of `multiprocessing`: events they have taken are stored before the end."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERVER = """
import sys
from penstock.testing import memory_server

with memory_server() as server:
    print(server.uri, flush=True)
    sys.stdin.read()
"""

CREATE = """
import sys
import penstock

with penstock.connect(sys.argv[1]) as client:
    client.create_stream("started/events")
"""

COUNT = """
import sys
import penstock

with penstock.connect(sys.argv[1]) as client:
    with client.reader_group("started/count", ["started/events"], until="latest") as group, group.reader() as reader:
        print(sum(1 for _ in reader))
"""

PROGRAM = """
import multiprocessing
import os
import sys
import penstock

held = []


def write(uri, is_held):
    client = penstock.connect(uri)
    writer = client.event_writer("started/events")
    if is_held:
        held.extend((client, writer))
    for number in range(5000):
        writer.write(b"%d" % number, f"k{number}")


if __name__ == "__main__":
    uri, method, how = sys.argv[1:]
    context = multiprocessing.get_context(method)
    if how == "pool":
        with context.Pool(1) as pool:
            pool.apply(write, (uri, True))
            pool.close()
            pool.join()
    else:
        child = context.Process(target=write, args=(uri, how == "held"))
        child.start()
        child.join()
        sys.exit(child.exitcode)
"""


def run(program: list[str], *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("how", ["held", "dropped", "pool"])
def test_events_of_a_child_that_ends_without_closing_its_client_are_stored(
    tmp_path: Path, method: str, how: str
) -> None:
    """The client is held by a global, dropped as the function returns, or held by the worker of a pool."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system does not start processes by {method}")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            uri = server.stdout.readline().strip()
            created = run(["-c", CREATE], uri)
            assert created.returncode == 0, created.stderr
            ran = run([str(script)], uri, method, how)
            assert ran.returncode == 0, ran.stderr
            counted = run(["-c", COUNT], uri)
            assert counted.stdout.strip() == "5000", (counted, ran.stderr)
        finally:
            server.stdin.close()
