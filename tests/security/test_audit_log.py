"""The audit log: its file, and what a secured server records."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock import aio
from penstock.cli.command_audit import audited
from penstock.controller.grpc.call_audit import NOT_CHANGES, CallAudit
from penstock.controller.grpc.table import access_table
from penstock.model.errors import ControllerUnavailableError
from penstock.rpc import controller_pb2 as pb
from penstock.runtime.client_security import Credentials
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.security import audit_log
from penstock.security.audit_log import AuditEntry, AuditLog, AuditSettings, latest_lines
from penstock.security.errors import AuditLogError
from penstock.server.settings import StandaloneSettings
from penstock.wire.commands import AuthTokenCheckFailed, GetStreamSegmentInfo
from support.command_line import run_command
from support.containers import until
from support.secured_server import PASSWORD, SecuredServer


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    running = real_runtime()
    yield running
    await running.work.close()


def entry(call: str = "createScope", **change: object) -> AuditEntry:
    return AuditEntry(1_700_000_000_123, "ann", "ipv4:1.2.3.4:5", call, "prn::/", "done", "SUCCESS", 1.26, "7", change)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_an_entry_is_a_line_of_json(tmp_path: Path, runtime: Runtime) -> None:
    log = AuditLog(tmp_path / "made" / "audit.jsonl", AuditSettings(), runtime.work, lambda: 0)
    await log.start()
    log.record(entry(request={"scope": "caf\u00e9"}))
    await log.stop()
    assert lines(log.path) == [{
        "time": "2023-11-14T22:13:20.123Z", "call": "createScope", "outcome": "done", "principal": "ann",
        "peer": "ipv4:1.2.3.4:5", "resource": "prn::/", "detail": "SUCCESS", "request_id": "7", "duration_ms": 1.3,
        "change": {"request": {"scope": "caf\u00e9"}},
    }]  # fmt: skip
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert log.written_count == 1


async def test_a_long_change_is_cut() -> None:
    found = json.loads(entry(text="x" * 100_000).line())
    assert len(found["change"]) == audit_log.CHANGE_LENGTH_MAX


async def test_files_are_renamed_by_size_and_the_oldest_is_removed(tmp_path: Path, runtime: Runtime) -> None:
    size = len(entry().line())
    log = AuditLog(tmp_path / "a", AuditSettings(file_bytes_max=2 * size, files_max=2), runtime.work, lambda: 0)
    await log.start()
    for number in range(8):
        log.record(entry(f"call{number:08}"[-11:]))
        await until(lambda: log.written_count == number + 1)  # noqa: B023  # called within this turn of the loop
    await log.stop()
    kept = [[line["call"][-1] for line in lines(tmp_path / name)] for name in ("a", "a.1", "a.2")]
    assert kept == [["6", "7"], ["4", "5"], ["2", "3"]]
    assert len(list(tmp_path.iterdir())) == 3


def test_the_latest_lines_are_whole_and_in_order(tmp_path: Path) -> None:
    """Also of the file that was renamed last; without a line that is being written, or that begins before the bound."""
    path = tmp_path / "audit.jsonl"
    assert latest_lines(path, 10, 1000) == []
    (tmp_path / "audit.jsonl.1").write_bytes(b"one\ntwo\n")
    path.write_bytes(b"three\nf\xffur\nfiv")
    assert latest_lines(path, 10, 1000) == ["one", "two", "three", "f\\xffur"]
    assert latest_lines(path, 3, 1000) == ["two", "three", "f\\xffur"]
    assert latest_lines(path, 10, len(path.read_bytes()) + 6) == ["two", "three", "f\\xffur"]
    assert latest_lines(path, 10, 12) == ["f\\xffur"]


async def test_a_file_moved_by_another_program_is_created_again(tmp_path: Path, runtime: Runtime) -> None:
    log = AuditLog(tmp_path / "a", AuditSettings(), runtime.work, lambda: 0)
    await log.start()
    log.record(entry("first"))
    await until(lambda: log.written_count == 1)
    log.path.rename(tmp_path / "moved")
    log.record(entry("second"))
    await log.stop()
    assert [line["call"] for line in lines(tmp_path / "moved") + lines(log.path)] == ["first", "second"]


async def test_a_file_that_cannot_be_written_prevents_the_start(tmp_path: Path, runtime: Runtime) -> None:
    with pytest.raises(AuditLogError, match="cannot be written: Is a directory"):
        await AuditLog(tmp_path, AuditSettings(), runtime.work, lambda: 0).start()


async def test_entries_wait_for_a_file_that_cannot_be_written(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bounded number waits; further ones are lost and counted. Changes are refused only where that is set."""
    monkeypatch.setattr(audit_log, "_WAITING_MAX", 3)
    monkeypatch.setattr(audit_log, "_RETRY_DELAY_S", 0.01)
    log = AuditLog(tmp_path / "a", AuditSettings(on_failure="refuse"), runtime.work, lambda: 0)
    await log.start()
    log.path.unlink()
    log.path.mkdir()
    log.check_may_change()
    for number in range(5):
        log.record(entry(f"call {number}"))
    await until(lambda: bool(log.problem))
    assert "Is a directory" in log.problem
    assert log.lost_count == 2
    with pytest.raises(ControllerUnavailableError, match=r"audit\.on_failure"):
        log.check_may_change()
    log.path.rmdir()
    await until(lambda: not log.problem)
    log.check_may_change()
    await log.stop()
    assert [line["call"] for line in lines(log.path)] == ["call 0", "call 1", "call 2"]


async def test_a_write_that_is_cut_short_leaves_no_partial_line(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_RETRY_DELAY_S", 0.01)
    write, cuts = audit_log.os.write, [10]

    def cut(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[: cuts.pop()] if cuts else data)

    log = AuditLog(tmp_path / "a", AuditSettings(), runtime.work, lambda: 0)
    await log.start()
    monkeypatch.setattr(audit_log.os, "write", cut)
    log.record(entry())
    await log.stop()
    assert not cuts
    assert len(lines(log.path)) == 1


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[SecuredServer]:
    running = SecuredServer(tmp_path, audit=AuditSettings(file=str(tmp_path / "audit.jsonl")))
    await running.server.start()
    yield running
    await running.close()


def stream(name: str, segments: int = 1) -> pb.StreamConfig:
    return pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope="shop", stream=name),
        scalingPolicy=pb.ScalingPolicy(scaleType=pb.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=segments),
    )


async def test_a_server_records_changes_and_refusals(tmp_path: Path, secured: SecuredServer) -> None:
    root, reader, wrong = secured.stub("root"), secured.stub("reader"), secured.stub("root", "wrong")
    await root.createScope(pb.ScopeInfo(scope="shop"))
    await root.createStream(stream("orders"))
    await root.createStream(stream("orders"))
    await root.updateStream(stream("orders", 2))
    await reader.getStreamConfiguration(pb.StreamInfo(scope="shop", stream="orders"))
    await root.getDelegationToken(pb.StreamInfo(scope="shop", stream="orders"))
    for stub in (reader, wrong):
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.sealStream(pb.StreamInfo(scope="shop", stream="orders"))
    assert secured.server.audit is not None
    await until(lambda: secured.server.audit.written_count == 6)
    found = lines(tmp_path / "audit.jsonl")
    assert [(line["call"], line["principal"], line["outcome"], line["detail"][:13]) for line in found] == [
        ("createScope", "root", "done", "SUCCESS"),
        ("createStream", "root", "done", "SUCCESS"),
        ("createStream", "root", "done", "STREAM_EXISTS"),
        ("updateStream", "root", "done", "SUCCESS"),
        ("sealStream", "reader", "refused", "sealStream: u"),
        ("sealStream", "", "refused", found[5]["detail"][:13]),
    ]
    change = found[3]["change"]
    assert change["request"]["scalingPolicy"]["minNumSegments"] == 2
    assert change["before"]["scalingPolicy"]["minNumSegments"] == 1
    assert {line["resource"] for line in found[1:5]} == {"prn::/scope:shop", "prn::/scope:shop/stream:orders"}
    assert PASSWORD not in (tmp_path / "audit.jsonl").read_text()


async def test_an_entry_has_the_id_that_the_client_sent(tmp_path: Path, secured: SecuredServer) -> None:
    """A client sends one id for a call and its repetitions, and another for each other call."""
    (tmp_path / "ca.crt").write_bytes(secured.authority)
    uri, account = secured.server.controller_uri, Credentials("root", PASSWORD)
    async with aio.connect(uri, credentials=account, ca=tmp_path / "ca.crt") as client:
        await client.create_scope("shop")
        await client.create_scope("cafe")
    assert secured.server.audit is not None
    await until(lambda: secured.server.audit.written_count == 2)
    first, second = (line["request_id"] for line in lines(tmp_path / "audit.jsonl"))
    assert 0 <= int(first) < 1 << 63
    assert first != second


async def test_changes_are_refused_while_the_log_cannot_be_written(tmp_path: Path) -> None:
    running = SecuredServer(tmp_path, audit=AuditSettings(file=str(tmp_path / "audit.jsonl"), on_failure="refuse"))
    await running.server.start()
    try:
        root = running.stub("root")
        await root.createScope(pb.ScopeInfo(scope="shop"))
        audit = running.server.audit
        assert audit is not None
        await until(lambda: audit.written_count == 1)
        audit.problem = "the disk is full"
        assert running.server.health.problems() == ["audit: the disk is full"]
        with pytest.raises(grpc.aio.AioRpcError, match="the disk is full"):
            await root.createStream(stream("orders"))
        assert (await root.checkScopeExists(pb.ScopeInfo(scope="shop"))).exists
    finally:
        await running.close()


async def test_repeated_refusals_of_one_address_are_counted(tmp_path: Path, runtime: Runtime) -> None:
    """One per second, so that failing attempts do not push changes out of the log."""
    now = [1_000_000]
    audit = CallAudit(AuditLog(tmp_path / "a", AuditSettings(), runtime.work, lambda: now[0]), {})
    assert [audit.refusals_left_out("ipv4:10.0.0.7") for _ in range(3)] == [0, None, None]
    assert audit.refusals_left_out("ipv4:10.0.0.8") == 0
    now[0] += 1000
    assert [audit.refusals_left_out("ipv4:10.0.0.7") for _ in range(2)] == [2, None]
    now[0] -= 5000
    assert audit.refusals_left_out("ipv4:10.0.0.7") == 1


async def test_a_request_that_a_segment_store_refuses_is_recorded(tmp_path: Path, secured: SecuredServer) -> None:
    """With its segment and the reason; without its token; one per second of an address."""
    wire = await secured.wire()
    for number in range(3):
        request = GetStreamSegmentInfo(number, "shop/orders/0.#epoch.0", f"secret-{number}")
        assert isinstance(await wire.ask(request, AuthTokenCheckFailed), AuthTokenCheckFailed)
    await until(lambda: bool((tmp_path / "audit.jsonl").read_text()))
    (refused,) = lines(tmp_path / "audit.jsonl")
    assert (refused["call"], refused["outcome"]) == ("GetStreamSegmentInfo", "refused")
    assert refused["resource"] == "shop/orders/0.#epoch.0"
    assert refused["detail"]
    assert refused["request_id"] == "0"
    assert refused["peer"].startswith("127.0.0.1:")
    assert "secret" not in json.dumps(refused)


def test_the_calls_without_an_entry_exist() -> None:
    assert set(access_table()) >= NOT_CHANGES


def test_changes_of_accounts_are_recorded(tmp_path: Path) -> None:
    directory = tmp_path / "security"
    directory.mkdir()
    (directory / "audit.jsonl").touch()
    (tmp_path / "password").write_text("secret\n")
    options = ("--data-dir", str(tmp_path))
    for arguments in (
        ("add", "ann", "--password-file", str(tmp_path / "password"), "--grant", "prn::*,READ"),
        ("grant", "ann", "prn::/,READ_UPDATE"), ("revoke", "ann", "prn::/"),
        ("passwd", "ann", "--password-file", str(tmp_path / "password")), ("remove", "ann"),
    ):  # fmt: skip
        assert run_command("user", *arguments, *options).code == 0
    found = lines(directory / "audit.jsonl")
    assert [line["call"] for line in found] == ["user add", "user grant", "user revoke", "user passwd", "user remove"]
    assert found[0]["change"] == {"entries": ["prn::*,READ"]}
    assert "secret" not in (directory / "audit.jsonl").read_text()


def _settings_with_audit(tmp_path: Path, on_failure: str = "continue") -> StandaloneSettings:
    return StandaloneSettings(
        data_dir=str(tmp_path / "data"), audit=AuditSettings(file=str(tmp_path / "a.jsonl"), on_failure=on_failure)
    )


def test_a_command_is_recorded_with_the_system_user_and_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is that of the process. Variables of the environment can name another user."""
    monkeypatch.setenv("LOGNAME", "another")
    settings = _settings_with_audit(tmp_path)
    with audited(settings, "log disable", "log:3", data_dir="d") as audit:
        audit.changes["more"] = 1
    with pytest.raises(AuditLogError, match="broken"), audited(settings, "log enable", "log:3"):
        raise AuditLogError("broken")
    with pytest.raises(KeyboardInterrupt), audited(settings, "log salvage", "log:3"):
        raise KeyboardInterrupt
    with audited(settings, "log salvage", "log:3", is_dry_run=True):
        pass
    found = lines(tmp_path / "a.jsonl")
    user = f"system user {pwd.getpwuid(os.getuid()).pw_name}"
    assert [(each["call"], each["outcome"], each["principal"]) for each in found] == [
        ("log disable", "done", user), ("log enable", "failed", user), ("log salvage", "failed", user),
    ]  # fmt: skip
    assert found[0]["change"] == {"data_dir": "d", "more": 1}
    assert found[1]["detail"] == "AuditLogError: broken"


def test_a_command_is_refused_before_it_changes_anything_if_the_settings_demand_an_entry(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    changed = []
    refusing, continuing = (_settings_with_audit(tmp_path, each) for each in ("refuse", "continue"))
    with (
        pytest.raises(AuditLogError, match="nothing was changed"),
        audited(refusing, "log disable", "log:3"),
    ):
        changed.append(1)
    assert not changed
    with (
        pytest.raises(AuditLogError, match="the change is made"),
        audited(continuing, "log disable", "log:3"),
    ):
        changed.append(1)
    assert changed


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_failed_command_reports_its_own_error_if_it_cannot_be_recorded(
    tmp_path: Path, error: type[BaseException]
) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(error) as caught, audited(_settings_with_audit(tmp_path), "log salvage", "log:3"):
        raise error
    (note,) = caught.value.__notes__
    assert "the command failed" in note
    assert "cannot be written" in note


def test_commands_for_logs_are_recorded_in_the_audit_log_of_the_server(tmp_path: Path) -> None:
    """Also those that fail. Without such a file, as here before it is made, nothing is recorded."""
    data_dir = tmp_path / "data"
    for is_recorded in (False, True):
        path = data_dir / "security" / "audit.jsonl"
        if is_recorded:
            path.parent.mkdir(parents=True)
            path.touch(0o600)
        for arguments in (("enable", "3"), ("disable", "3"), ("salvage", "3"), ("salvage", "3", "--dry-run")):
            assert run_command("log", *arguments, "--data-dir", str(data_dir)).code == 1
        assert path.exists() == is_recorded
    found = [(each["call"], each["resource"], each["outcome"]) for each in lines(path)]
    assert found == [(f"log {command}", "log:3", "failed") for command in ("enable", "disable", "salvage")]
