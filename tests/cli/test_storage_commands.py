"""`penstock storage check`, on the data directory of a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.command_line import run_command
from support.standalone_process import StandaloneProcess


def test_a_server_is_checked_once_it_is_stopped(
    make_server: Callable[..., StandaloneProcess], tmp_path: Path
) -> None:
    """Exit code 0 if all is well, 3 with what is wrong, 1 with a line where that cannot be found out."""
    server = make_server().start()
    check = ("storage", "check", "--data-dir", str(server.data_dir))
    refused = run_command(*check)
    assert (refused.code, refused.stdout) == (1, "")
    assert f"a server runs on {server.data_dir}: stop it" in refused.stderr
    server.kill9()

    assert run_command(*check).ok.lines[-1] == "all is as it should be"
    assert "checking" in run_command(*check, is_screen=True).stderr
    told = run_command(*check, "--json").ok.json
    assert (told["event"], told["container_count"], told["problem_count"]) == ("storage_check", 4, 0)

    (server.data_dir / "tier1" / "2" / "log.epoch").write_bytes(b"damaged")
    damaged = run_command(*check, "--lengths-only", "--json")
    assert (damaged.code, damaged.json["is_read"]) == (3, False)
    (problem,) = damaged.json["problems"]  # type: ignore[misc]  # A list.
    assert (problem["kind"], problem["container"]) == ("log_damaged", 2)
    lines = run_command(*check)
    assert lines.code == 3
    assert lines.stdout.startswith("log_damaged: container 2: ")
    assert lines.lines[-1] == "1 problem"

    for arguments, message in (
        (("storage", "check", "--data-dir", str(tmp_path / "none")), "is not a data directory of Penstock"),
        ((*check, "--tier2", str(tmp_path)), "it has no identity; mount it, or say where it is with --tier2"),
    ):
        wrong = run_command(*arguments)
        assert wrong.code == 1, arguments
        assert message in wrong.stderr, wrong.stderr
        assert message in str(run_command(*arguments, "--json").json["message"])
