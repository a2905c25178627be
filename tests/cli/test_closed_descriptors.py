"""Commands, servers and clients that are started with standard descriptors closed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.testing.server import MemoryServer
from support.standalone_process import StandaloneProcess, child_environment

COMMAND = f"exec {sys.executable} -c 'from penstock.cli import main; main()'"


def run(words: str, uri: str, *, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    ran = subprocess.run(
        ["sh", "-c", words.replace("penstock ", f"{COMMAND} ", 1)],
        input=stdin,
        capture_output=True,
        env={**child_environment(), "PENSTOCK_URI": uri},
        timeout=120,
        check=False,
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_commands_do_their_work_without_standard_descriptors(penstock_server: MemoryServer, closed: str) -> None:
    with penstock_server.connect() as client:
        client.create_stream("closed/stdio", exist_ok=True)
    for words in ("stream list", "read closed/stdio", "write closed/stdio", "stream describe closed/stdio"):
        code, _, complaint = run(f"penstock {words} {closed}", penstock_server.uri)
        assert code == 0, (words, code, complaint)
        assert b"Traceback" not in complaint
    code, _, complaint = run(f"penstock stream describe closed/none {closed}", penstock_server.uri)
    assert code == 1, complaint


def test_a_client_program_runs_without_standard_descriptors(penstock_server: MemoryServer) -> None:
    """The event loop's library aborts the process where a socket gets one of the three numbers."""
    program = (
        "import penstock, os\n"
        f"with penstock.connect({penstock_server.uri!r}) as client:\n"
        "    client.create_stream('closed/client', exist_ok=True)\n"
        "    with client.event_writer('closed/client') as writer:\n"
        "        writer.write(b'x')\n"
        # libffi opens its own library, which has the first free number on Python 3.14.
        "    names = [os.readlink(f'/proc/self/fd/{n}') for n in range(3)]\n"
        "    assert all(name == '/dev/null' or '/libffi' in name for name in names), names\n"
    )
    ran = subprocess.run(
        ["sh", "-c", f'exec {sys.executable} -c "$0" <&- >&- 2>&-', program], env=child_environment(), timeout=120,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    with penstock_server.connect() as client, client.batch("closed/client") as batch:
        assert [bytes(event.data) for part in batch.ranges for event in batch.events(part)] == [b"x"]


def test_a_server_started_without_standard_descriptors_never_opens_data_files_as_0_1_or_2(
    make_server: object, tmp_path: object
) -> None:
    server = make_server()  # type: ignore[operator]  # a fixture that makes servers
    assert isinstance(server, StandaloneProcess)
    server.start()
    server.stop()
    words = " ".join(server.command())
    child = subprocess.Popen(["sh", "-c", f"exec {words} <&- >&- 2>&-"], env=child_environment())
    try:
        ready = subprocess.run(
            [sys.executable, "-m", "penstock", "ready", "--uri", server.uri, "--timeout-s", "60"],
            env=child_environment(),
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert ready.returncode == 0, ready.stderr
        assert [os.readlink(f"/proc/{child.pid}/fd/{number}") for number in range(3)] == ["/dev/null"] * 3
    finally:
        child.terminate()
        child.wait(60)
