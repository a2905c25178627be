"""`penstock storage check`, on the data directory of a real server."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_line import run_command
from support.standalone_process import StandaloneProcess


def test_a_server_is_checked_once_it_is_stopped(make_server: Callable[..., StandaloneProcess], tmp_path: Path) -> None:
    """Exit code 0 if all is well, 3 with what is wrong, 1 with a line where that cannot be found out."""
    server = make_server().start()
    check = ("storage", "check", "--data-dir", str(server.data_dir))
    refused = run_command(*check)
    assert (refused.code, refused.stdout) == (1, "")
    assert f"nothing was checked: a server runs on {server.data_dir}; stop it" in refused.stderr
    server.kill9()

    assert run_command(*check).ok.lines[-1] == "no problems found"
    assert "checking" in run_command(*check, is_screen=True).stderr
    told = run_command(*check, "--json").ok.json
    assert (told["type"], told["container_count"], told["problem_count"]) == ("storage_check", 4, 0)

    (server.data_dir / "tier1" / "2" / "log.epoch").write_bytes(b"damaged")
    damaged = run_command(*check, "--lengths-only", "--json")
    assert (damaged.code, damaged.json["is_read"]) == (3, False)
    (problem,) = damaged.json["problems"]  # type: ignore[misc]  # A list.
    assert (problem["kind"], problem["container"]) == ("log_damaged", 2)  # type: ignore[has-type]
    lines = run_command(*check)
    assert lines.code == 3
    assert lines.stdout.startswith("log_damaged: container 2: ")
    assert lines.lines[-1] == "1 problem"

    for arguments, message in (
        (("storage", "check", "--data-dir", str(tmp_path / "none")), "is not a data directory of Penstock"),
        ((*check, "--tier2", str(tmp_path)), "it has no identity; mount it, or give its place with --tier2"),
    ):
        wrong = run_command(*arguments)
        assert wrong.code == 1, arguments
        assert message in wrong.stderr, wrong.stderr
        assert message in str(run_command(*arguments, "--json").json["message"])


def test_the_command_that_a_backup_prints_works_as_printed(
    make_server: Callable[..., StandaloneProcess], tmp_path: Path
) -> None:
    """Also when the backup's path has a space, and when the proposed data directory exists."""
    server = make_server().start()
    uri = ("--uri", server.uri)
    run_command("stream", "create", "shop/orders", *uri).ok  # noqa: B018  # It demands code 0.
    server.stop()
    target = tmp_path / "my backup"
    (tmp_path / "my backup-restored").mkdir()
    lines = run_command("storage", "backup", str(target), "--data-dir", str(server.data_dir)).ok.lines
    program, *arguments = shlex.split(lines[-1])
    assert program == "penstock"
    restored = run_command(*arguments).ok
    data_dir = tmp_path / "my backup-restored-2"
    assert str(data_dir) in restored.lines[-1]
    assert any(data_dir.iterdir())


@pytest.mark.parametrize("command", ["check", "backup", "recover", "survey"])
def test_help_of_storage_commands_names_every_kind_of_long_term_storage(command: str) -> None:
    """S3 and HDFS."""
    told = " ".join(run_command("storage", command, "--help").ok.stdout.split())
    assert "s3://" in told
    assert "hdfs://" in told


def event(text: str) -> bytes:
    """Return an event as it lies in a segment, docs/formats.md."""
    return b"\0\0\0\0" + len(text).to_bytes(4) + text.encode()


def test_a_stream_that_an_older_pravega_left_is_read_written_and_given_back(
    make_server: Callable[..., StandaloneProcess],
) -> None:
    """Survey, import, a stream over the imported one, its events by our client; then an export with the new events."""
    server = make_server().start()
    server.stop()
    root = server.data_dir / "tier2"
    folder = root / "older" / "orders"
    folder.mkdir(parents=True)
    for number in range(2):
        name = f"older/orders/{number}.#epoch.0"
        pieces = [b"".join(event(f"{number}.{at}.{n}") for n in range(3)) for at in range(4)]
        header, offset = "maxsize=64&", 0
        for piece in pieces:
            (root / f"{name}$offset.{offset}").write_bytes(piece)
            header += f"{offset}={name}$offset.{offset}&"
            offset += len(piece)
        (root / f"{name}$header").write_text(header)
    place = ("--data-dir", str(server.data_dir))
    told = run_command("storage", "survey", *place, "--json").ok.json
    assert (told["type"], told["problems"]) == ("storage_surveyed", [])
    assert len(told["segments"]) == 2  # type: ignore[arg-type]  # A list.
    lines = run_command("storage", "import", *place).ok.lines
    assert lines[-1] == "to read them: penstock stream create older/orders --segments 2"
    assert len(run_command("storage", "import", *place, "--json").ok.json["present"]) == 2  # type: ignore[arg-type]

    server.start()
    uri = ("--uri", server.uri)
    run_command("stream", "create", "older/orders", "--segments", "2", *uri).ok  # noqa: B018  # It demands code 0.
    run_command("write", "older/orders", *uri, stdin=b"new\n").ok  # noqa: B018
    read = run_command("read", "older/orders", *uri).ok.lines
    expected = [f"{number}.{at}.{n}" for number in range(2) for at in range(4) for n in range(3)]
    assert sorted(read) == sorted([*expected, "new"])
    for number in range(2):
        own = [line for line in read if line.startswith(f"{number}.")]
        assert own == [one for one in expected if one.startswith(f"{number}.")]
    server.stop()

    assert run_command("storage", "export", "older/orders", *place).ok.lines[-1].startswith("2 segments exported to ")
    told = run_command("storage", "export", "older", *place, "--json").ok.json
    assert (told["type"], told["unchanged_count"], told["problems"]) == ("storage_exported", 2, [])
    exported = b""
    for number in range(2):
        entries = (root / f"older/orders/{number}.#epoch.0$header").read_text().split("&")[1:-1]
        exported += b"".join((root / entry.partition("=")[2]).read_bytes() for entry in entries)
    assert exported.count(event("new")) == 1
    assert len(exported) == sum(len(event(line)) for line in read)
