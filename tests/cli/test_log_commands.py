"""`penstock log list | enable | disable`. Each run is a process, on the data directory of a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.standalone_process import StandaloneProcess, run_penstock


@pytest.fixture
def stopped(make_server: Callable[..., StandaloneProcess]) -> StandaloneProcess:
    """A server that has run and was stopped."""
    made = make_server().start()
    assert made.terminate() == 0
    return made


def logs_of(server: StandaloneProcess) -> dict[int, dict[str, object]]:
    told = run_penstock("log", "list", "--data-dir", str(server.data_dir), "--json")
    assert told.returncode == 0, told.stderr
    return {report["container"]: report for report in json.loads(told.stdout)["logs"]}


def test_logs_are_listed_disabled_and_enabled_again(stopped: StandaloneProcess) -> None:
    """A container whose log is disabled stays offline, the others serve; enabled, it is served again."""
    found = logs_of(stopped)
    assert {container: report["state"] for container, report in found.items()} == dict.fromkeys(range(4), "enabled")
    assert found[3]["path"] == str(stopped.data_dir / "tier1" / "3")
    assert isinstance(found[3]["length_bytes"], int)
    assert found[3]["length_bytes"] > 0

    where = ("--data-dir", str(stopped.data_dir))
    disabled = run_penstock("log", "disable", "3", *where)
    assert (disabled.returncode, disabled.stdout) == (0, "the log of container 3 is disabled\n")
    assert logs_of(stopped)[3]["state"] == "disabled"
    told = run_penstock("log", "list", *where)
    assert "container 3: disabled, epoch 1" in told.stdout
    refused = stopped.launch()
    failures = refused.get("failures") or {"3": refused.get("message")}
    assert isinstance(failures, dict)
    assert "is disabled" in str(failures["3"])
    stopped.kill9()

    enabled = run_penstock("log", "enable", "3", *where, "--json")
    assert json.loads(enabled.stdout) == {"type": "enabled", "container": 3}
    assert logs_of(stopped)[3]["state"] == "enabled"
    stopped.start()
    assert stopped.ready["failures"] == {}


def test_an_operation_that_fails_prints_one_line(stopped: StandaloneProcess, tmp_path: Path) -> None:
    """No traceback, nothing changed or made; the same as JSON."""
    where = ("--data-dir", str(stopped.data_dir))
    for arguments, told in (
        (("enable", "3", *where), "is not disabled"),
        (("enable", "77", *where), "it does not exist"),
        (("disable", "77", *where), "it does not exist"),
        (("list", "--data-dir", str(tmp_path / "none")), "is not a data directory of Penstock"),
        (("enable", "3", "--data-dir", str(tmp_path / "none")), "is not a data directory of Penstock"),
    ):
        refused = run_penstock("log", *arguments)
        assert refused.returncode == (1 if "data directory" in told else 2), arguments
        assert refused.stderr.startswith("penstock: "), refused.stderr
        assert told in refused.stderr, refused.stderr
        assert "Traceback" not in refused.stderr
        assert told in json.loads(run_penstock("log", *arguments, "--json").stdout)["message"]
    assert not (tmp_path / "none").exists()
    assert run_penstock("log", "enable", "-1", *where).returncode == 2


def test_commands_on_data_of_a_running_server_ask_to_stop_it_first(
    make_server: Callable[..., StandaloneProcess],
) -> None:
    """Reading is allowed; changes are refused, and the server keeps running."""
    server = make_server().start()
    where = ("--data-dir", str(server.data_dir))
    assert set(logs_of(server)) == set(range(4))
    for command in ("enable", "disable"):
        refused = run_penstock("log", command, "3", *where)
        assert refused.returncode == 1
        assert f"a server runs on {server.data_dir}; stop it, repeat this command, and start it again" in refused.stderr
    assert logs_of(server)[3]["state"] == "enabled"
    server.restart()
    assert server.ready["failures"] == {}


def test_a_damaged_log_is_disabled_by_the_start_and_listed_as_such(stopped: StandaloneProcess) -> None:
    """And one whose epoch file is damaged is listed with what is wrong, instead of an error."""
    epoch = stopped.data_dir / "tier1" / "2" / "log.epoch"
    content = bytearray(epoch.read_bytes())
    content[20] ^= 1
    epoch.write_bytes(content)
    found = logs_of(stopped)
    assert found[2]["state"] == "damaged"
    assert "checksum does not match" in str(found[2]["problem"])
    assert found[1]["state"] == "enabled"


def damage_a_frame(log_directory: Path) -> Path:
    """Flip a bit in the middle of the newest file of a log; return the file."""
    path = max(log_directory.glob("log-*-*"))
    content = bytearray(path.read_bytes())
    content[len(content.rstrip(b"\0")) // 2 & ~4095 | 60] ^= 1
    path.write_bytes(content)
    return path


def test_a_log_with_a_damaged_frame_is_disabled_and_says_why_until_it_is_put_right(
    stopped: StandaloneProcess, tmp_path: Path
) -> None:
    """The first start disables it, durably, with the reason; nothing enables it while it is damaged."""
    path = max((stopped.data_dir / "tier1" / "2").glob("log-*-*"))
    intact = path.read_bytes()
    assert damage_a_frame(stopped.data_dir / "tier1" / "2") == path
    where = ("--data-dir", str(stopped.data_dir))
    refused = stopped.launch()
    assert str(path) in str(refused)
    stopped.kill9()

    report = logs_of(stopped)[2]
    assert report["state"] == "disabled"
    assert str(path) in str(report["problem"])
    assert "penstock log salvage 2" in str(report["problem"])
    assert str(path) in run_penstock("log", "list", *where).stdout
    enabled = run_penstock("log", "enable", "2", *where)
    assert enabled.returncode == 1
    assert "run `penstock log salvage 2`" in enabled.stderr
    assert logs_of(stopped)[2]["state"] == "disabled"
    backup = run_penstock("storage", "backup", str(tmp_path / "backup"), *where)
    assert backup.returncode == 1
    assert "the log of container 2 is damaged" in backup.stderr

    path.write_bytes(intact)
    assert run_penstock("storage", "backup", str(tmp_path / "of-disabled"), *where).returncode == 0
    assert run_penstock("log", "enable", "2", *where).returncode == 0
    assert logs_of(stopped)[2] | {"length_bytes": 0} == report | {
        "state": "enabled", "problem": "", "length_bytes": 0,
    }  # fmt: skip
    stopped.start()
    assert stopped.ready["failures"] == {}


def test_a_log_that_is_missing_is_listed_and_not_backed_up(stopped: StandaloneProcess, tmp_path: Path) -> None:
    (stopped.data_dir / "tier1" / "2").rename(tmp_path / "gone")
    found = logs_of(stopped)
    assert {container: report["state"] for container, report in found.items()} == {
        0: "enabled", 1: "enabled", 2: "missing", 3: "enabled",
    }  # fmt: skip
    assert "Mount tier 1 or put the log back" in str(found[2]["problem"])
    refused = run_penstock("storage", "backup", str(tmp_path / "backup"), "--data-dir", str(stopped.data_dir))
    assert refused.returncode == 1
    assert "the log of container 2 is missing" in refused.stderr


def test_a_log_with_an_old_epoch_record_is_listed_as_damaged(stopped: StandaloneProcess) -> None:
    record = stopped.data_dir / "tier1" / "2" / "log.epoch"
    old = record.read_bytes()
    stopped.start()
    stopped.stop()
    record.write_bytes(old)
    found = logs_of(stopped)[2]
    assert found["state"] == "damaged"
    assert "the record is an old copy" in str(found["problem"])
