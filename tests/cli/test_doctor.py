"""``penstock doctor``: a test for each finding, with the fault that it reports, and the list of all findings."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from penstock import aio
from penstock.administration import doctor, machine
from penstock.administration.doctor import examine_machine
from penstock.cli import probe, server_checks
from penstock.cli.errors import NotReadyError
from penstock.cli.server_checks import check_health, check_server, findings_of
from penstock.client.statistics.statistics import ClusterStatistics, ContainerLoad, GroupLag, StoreLoad
from penstock.model.errors import AuthenticationError, ControllerUnavailableError, InvalidArgumentError
from penstock.model.findings import Finding, FindingKind, Severity
from penstock.model.sizes import MIB
from penstock.operations.health import Health, Status
from penstock.operations.settings import OperationsSettings
from penstock.runtime.disk import DiskSpace
from penstock.runtime.runtime import real_runtime
from penstock.runtime.settings import load_settings
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from penstock.testing import memory_server
from support.command_line import Ran, run_command

#: No server listens there.
AWAY = "tcp://127.0.0.1:1"


def run_doctor(*arguments: str) -> Ran:
    return run_command("doctor", "--json", "--timeout", "500ms", *arguments)


def ids_of(ran: Ran) -> set[str]:
    findings = cast("list[dict[str, str]]", ran.json["findings"])
    assert ran.code == (3 if any(each["severity"] == "error" for each in findings) else 0), ran
    return {each["id"] for each in findings}


def kinds(*parts: object) -> set[FindingKind]:
    return {each.kind for part in parts for each in cast("machine.Measurement", part).findings}


@pytest.fixture
def free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default ports may be in use on the machine of the test; the state of its clock is its own, too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PENSTOCK_CONTROLLER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("PENSTOCK_SEGMENT_STORE_PORT", "0")
    monkeypatch.setattr(doctor, "is_clock_unsynchronized", lambda: False)


async def examined(runs: bool = False, **flags: object) -> set[FindingKind]:
    """Return the findings on this machine with these settings; dots are two underscores."""
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    settings = load_settings(StandaloneSettings, flags={"controller_port": 0, "segment_store_port": 0, **dotted})
    runtime = real_runtime(1)
    try:
        return kinds(*await examine_machine(settings, runtime, is_running=runs))
    finally:
        await runtime.work.close()


@pytest.mark.usefixtures("free_ports")
def test_a_stopped_server_that_is_fine_has_no_errors(tmp_path: Path) -> None:
    """A new directory: what was measured is printed, nothing is left there."""
    ran = run_doctor("--data-dir", str(tmp_path / "new"))
    assert {each for each in ids_of(ran) if each not in ("descriptors-few", "memory-short", "disk-slow")} == set()
    facts = " ".join(cast("list[str]", ran.json["facts"]))
    assert "a start makes a new one" in facts
    assert "no server answers" in facts
    assert list(tmp_path.iterdir()) == []


def test_a_running_server_is_examined(tmp_path: Path) -> None:
    """GROUP_STUCK: events that no reader reads."""
    with memory_server() as server, server.connect() as client:
        client.create_stream("shop/orders")
        with client.event_writer("shop/orders") as writer:
            writer.write(b"event", routing_key="a")
        asked = ("doctor", "--uri", server.uri, "--timeout", "60s")
        assert ids_of(run_command(*asked, "--json")) == set()
        assert run_command("group", "create", "shop/audit", "shop/orders", uri=server.uri).code == 0
        ran = run_command(*asked)
    assert ran.code == 0
    assert ran.lines[0].startswith(f"warning: {FindingKind.GROUP_STUCK.id}: ")
    assert "shop/audit: 13 bytes are unread" in ran.lines[1]
    assert ran.lines[-1] == "0 errors, 1 warning"


def test_settings_invalid(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("hots = 'x'\n")
    assert ids_of(run_doctor("--config", str(file))) == {FindingKind.SETTINGS_INVALID.id}


def test_controller_unreachable() -> None:
    assert ids_of(run_doctor("--uri", AWAY)) == {FindingKind.CONTROLLER_UNREACHABLE.id}


@pytest.mark.usefixtures("free_ports")
def test_data_directory_unusable(tmp_path: Path) -> None:
    (tmp_path / "song").touch()
    ran = run_doctor("--data-dir", str(tmp_path))
    assert FindingKind.DATA_DIRECTORY_UNUSABLE.id in ids_of(ran)
    assert "penstock.toml" in ran.stdout


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = machine.check_port("controller", "127.0.0.1", port)
        assert kinds(found) == {FindingKind.PORT_IN_USE}
        assert str(port) in found.findings[0].detail
    assert not machine.check_port("controller", "127.0.0.1", port).findings


async def test_ports_of_a_running_server_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        data_dir = str(tmp_path / "new")
        assert FindingKind.PORT_IN_USE in await examined(data_dir=data_dir, controller_port=port)
        assert FindingKind.PORT_IN_USE not in await examined(runs=True, data_dir=data_dir, controller_port=port)


async def test_credentials_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers, and does not accept the account."""

    async def refuse(uri: str, timeout_s: float) -> None:
        raise NotReadyError(f"{uri} is not ready") from AuthenticationError("no account")

    monkeypatch.setattr(server_checks, "probe", refuse)
    is_running, found = await check_server(AWAY, 1.0, is_required=False)
    assert is_running
    assert kinds(found) == {FindingKind.CREDENTIALS_REFUSED}


async def test_storage_unavailable_while_the_probe_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe of a segment waits for long-term storage; the server's statistics tell why."""

    async def wait(uri: str, timeout_s: float) -> None:
        raise NotReadyError(f"{uri} is not ready: no answer within {timeout_s:g} s") from TimeoutError()

    monkeypatch.setattr(server_checks, "probe", wait)
    with memory_server() as server:
        problem = Finding(FindingKind.STORAGE_UNAVAILABLE, "the mount is away")
        monkeypatch.setattr(server_checks, "findings_of", lambda statistics: iter([problem]))
        is_running, found = await check_server(server.uri, 30.0, is_required=True)
    assert is_running
    assert found.findings == (problem,)


async def test_a_store_that_does_not_answer_is_no_unreachable_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """STORE_DOWN: calls about tables of the controller, as those of reader groups, wait for the store."""

    async def wait(uri: str, timeout_s: float) -> None:
        raise NotReadyError(f"{uri} is not ready: no answer within {timeout_s:g} s") from TimeoutError()

    async def statistics(self: aio.Client, **options: object) -> ClusterStatistics:
        if options:
            raise ControllerUnavailableError("no answer")
        return ClusterStatistics({"b:2": StoreLoad("b:2", problem="no answer")}, {}, {}, {}, [], 3)

    monkeypatch.setattr(server_checks, "probe", wait)
    monkeypatch.setattr(aio.Client, "statistics", statistics)
    is_running, found = await check_server(AWAY, 1.0, is_required=True)
    assert is_running
    assert [(each.kind, each.detail) for each in found.findings] == [
        (FindingKind.STORE_DOWN, "segment store b:2: no answer")
    ]
    assert found.facts[-1].endswith("reader groups are not known: no answer")


async def test_credentials_refused_before_the_last_attempt_has_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is the finding, not that the server did not answer."""
    attempts = iter([NotReadyError("refused"), TimeoutError()])

    async def ask(*arguments: object) -> None:
        error = next(attempts)
        raise error from (AuthenticationError("wrong password") if isinstance(error, NotReadyError) else None)

    monkeypatch.setattr(probe, "_ask", ask)
    _, found = await check_server(AWAY, 60.0, is_required=True)
    assert kinds(found) == {FindingKind.CREDENTIALS_REFUSED}
    assert next(attempts, None) is None


def test_findings_of_a_cluster() -> None:
    """STORE_DOWN, STORAGE_UNAVAILABLE, CONTAINER_OFFLINE, APPENDS_HELD, LOG_LONG, GROUP_STUCK: as a cluster has them.

    Spark queries and exports have no readers, and are not stuck.
    """
    load = ContainerLoad(
        0, "a:1", 1, 0, 0, 0.0, 0.0, (0.0,) * 4, (0.0,) * 4, 0, 0, 1 << 30, True, 0, 0, 0, 3, 0.0
    )  # fmt: skip
    statistics = ClusterStatistics(
        stores={
            "a:1": StoreLoad(
                "a:1",
                storage_problem="the mount is away",
                failures={1: "its log is disabled"},
                log_problem="no bookies",
            ),
            "b:2": StoreLoad("b:2", problem="no answer"),
        },
        containers={0: load},
        segments={},
        groups={
            "s/done": GroupLag("s/done", {"s/x": 5}, 0, 0, is_finished=True),
            "s/read": GroupLag("s/read", {}, 2, 0),
            "s/query-0123abcd": GroupLag("s/query-0123abcd", {"s/x": 5}, 0, 1),
            "s/export-x": GroupLag("s/export-x", {"s/x": 5}, 0, 1),
            "s/unknown": GroupLag("s/unknown", {"s/x": 5}, 0, 1, "container 1 is offline"),
            "s/unread": GroupLag("s/unread", {"s/x": 5}, 0, 1),
        },
        missing_containers=[1, 2],
        container_count=3,
    )
    found = [(each.kind, each.detail) for each in findings_of(statistics)]
    assert found == [
        (FindingKind.STORAGE_UNAVAILABLE, "segment store a:1: the mount is away"),
        (FindingKind.LOG_UNAVAILABLE, "segment store a:1: no bookies"),
        (FindingKind.CONTAINER_OFFLINE, "container 1 on a:1: its log is disabled"),
        (FindingKind.STORE_DOWN, "segment store b:2: no answer"),
        (FindingKind.CONTAINER_OFFLINE, "container 2 runs on no segment store that answers"),
        (FindingKind.APPENDS_HELD, "container 0: 3 appends wait"),
        (FindingKind.LOG_LONG, "container 0: 1024 MiB of log"),
        (FindingKind.GROUP_STUCK, "s/unread: 5 bytes are unread"),
    ]


async def test_storage_unavailable(tmp_path: Path) -> None:
    found = await examined(data_dir=str(tmp_path / "new"), tier2=str(tmp_path / "not-mounted"))
    assert FindingKind.STORAGE_UNAVAILABLE in found


async def test_storage_of_another_cluster(tmp_path: Path) -> None:
    """STORAGE_FOREIGN: the directory of a store that was created again."""
    places = []
    for name in ("first", "second"):
        settings = StandaloneSettings(data_dir=str(tmp_path / name), controller_port=0, segment_store_port=0)
        async with Standalone(settings):
            pass
        places.append(settings.data_dir)
    assert (Path(places[1]) / "tier2").is_dir()
    assert not {FindingKind.STORAGE_FOREIGN, FindingKind.STORAGE_UNAVAILABLE} & await examined(data_dir=places[0])
    found = await examined(data_dir=places[0], tier2=f"{places[1]}/tier2")
    assert FindingKind.STORAGE_FOREIGN in found


async def test_log_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr(doctor, "STORAGE_TIMEOUT_S", 0.5)
    found = await examined(
        data_dir=str(tmp_path / "new"),
        log="s3://bucket/log",
        tier2="s3://bucket/data",
        object_storage__store__endpoint="http://127.0.0.1:1",
        object_storage__store__region="here",
        object_storage__store__access_key_id="a",
        object_storage__store__secret_access_key="b",
    )
    assert {FindingKind.LOG_UNAVAILABLE, FindingKind.STORAGE_UNAVAILABLE} <= found


@pytest.mark.parametrize(
    ("free_bytes_min", "kind"), [(1 << 60, FindingKind.WRITES_BLOCKED), (0, None)], ids=["full", "empty"]
)
async def test_a_full_disk(tmp_path: Path, free_bytes_min: int, kind: FindingKind | None) -> None:
    found = await examined(
        data_dir=str(tmp_path / "new"),
        segment_store__container__space__log_free_bytes_min=free_bytes_min,
        segment_store__container__space__log_free_percent_max=100,
    )
    assert found & {FindingKind.WRITES_BLOCKED, FindingKind.SPACE_SHORT} == ({kind} if kind else set())


@pytest.mark.parametrize(
    ("free", "is_log", "kind"),
    [
        (100, True, FindingKind.WRITES_BLOCKED),
        (400, True, FindingKind.SPACE_SHORT),
        (100, False, FindingKind.SPACE_SHORT),
        (600, True, None),
    ],
)
def test_space_short(free: int, is_log: bool, kind: FindingKind | None) -> None:
    """Twice the limit of the server is where it warns."""
    space = DiskSpace(free * MIB, 10_000 * MIB)
    found = machine.check_space(StandaloneSettings().segment_store.container.space, space, "/data", is_log=is_log)
    assert kinds(found) == ({kind} if kind else set())


def test_disk_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: time.sleep(machine.SYNC_S_MAX))
    assert kinds(machine.check_disk_speed(tmp_path)) == {FindingKind.DISK_SLOW}
    assert list(tmp_path.iterdir()) == []


def test_descriptors_few() -> None:
    assert kinds(machine.check_descriptors(336, 1024)) == {FindingKind.DESCRIPTORS_FEW}
    assert not machine.check_descriptors(10_000, 20_000).findings


async def test_clock_back(tmp_path: Path) -> None:
    """The log was written in the future."""
    file = tmp_path / "tier1"
    file.touch()
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    assert FindingKind.CLOCK_BACK in await examined(data_dir=str(tmp_path))
    os.utime(file)
    assert FindingKind.CLOCK_BACK not in await examined(data_dir=str(tmp_path))


@pytest.mark.parametrize(("state", "count"), [(True, 1), (False, 0), (None, 0)])
async def test_clock_unsynchronized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: bool | None, count: int
) -> None:
    monkeypatch.setattr(doctor, "is_clock_unsynchronized", lambda: state)
    found = await examined(data_dir=str(tmp_path / "new"))
    assert len(found & {FindingKind.CLOCK_UNSYNCHRONIZED}) == count
    assert machine.is_clock_unsynchronized() in (True, False, None)


async def test_memory_short(tmp_path: Path) -> None:
    found = await examined(data_dir=str(tmp_path / "new"), segment_store__cache__bytes_max=1 << 50)
    assert FindingKind.MEMORY_SHORT in found


@pytest.mark.parametrize(("limit", "expected"), [("max", 1000), ("400", 400), (None, 1000)])
def test_the_memory_of_a_container_counts(tmp_path: Path, limit: str | None, expected: int) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
    assert machine.memory_limit_bytes(tmp_path, 1000) == expected


async def test_security_unusable_and_doubtful(tmp_path: Path) -> None:
    """SECURITY_UNUSABLE: TLS without its files. SECURITY_DOUBTFUL: the administrator's first password is kept."""
    pytest.importorskip("cryptography")
    data_dir = str(tmp_path / "secured")
    assert FindingKind.SECURITY_UNUSABLE in await examined(data_dir=data_dir, security__tls="on")
    secured = {"security.tls": "on", "security.auth": "on", "security.makes_missing_files": True}
    flags = {"data_dir": data_dir, "controller_port": 0, "segment_store_port": 0, **secured}
    async with Standalone(load_settings(StandaloneSettings, flags=flags)):
        pass
    found = await examined(data_dir=data_dir, security__tls="on", security__auth="on")
    assert FindingKind.SECURITY_UNUSABLE not in found
    assert FindingKind.SECURITY_DOUBTFUL in found


async def test_work_given_up() -> None:
    """WORK_GIVEN_UP: `FindingKind.WORK_GIVEN_UP`, with the number of pieces, over HTTP from a server."""
    settings = StandaloneSettings(
        is_memory=True, controller_port=0, segment_store_port=0, operations=OperationsSettings(is_enabled=True, port=0)
    )
    async with Standalone(settings) as server:
        assert server.operations is not None
        assert server.service is not None
        address = f"127.0.0.1:{server.operations.port}"
        for count, expected in ((1, "1 piece of work"), (2, "2 pieces of work")):
            await server.service._given_up.add("create stream of stream shop/..", InvalidArgumentError("planted"))
            found = await asyncio.to_thread(check_health, address, 60.0, is_required=True)
            assert kinds(found) == {FindingKind.WORK_GIVEN_UP}, count
            assert expected in found.findings[0].detail


async def test_health_and_doctor_share_the_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP from a server whose parts fail: AUDIT_FAILING, CONTAINER_OFFLINE; and VERSION_DIFFERS."""
    settings = StandaloneSettings(
        is_memory=True, controller_port=0, segment_store_port=0, operations=OperationsSettings(is_enabled=True, port=0)
    )
    async with Standalone(settings) as server:
        assert server.operations is not None
        address = f"127.0.0.1:{server.operations.port}"
        fine = await asyncio.to_thread(check_health, address, 60.0, is_required=True)
        assert fine.findings == ()
        broken = Health(children={
            "audit": Health(problem="no room", finding=FindingKind.AUDIT_FAILING),
            "stores": Health(children={
                "2": Health(Status.DOWN, "its log is disabled", finding=FindingKind.CONTAINER_OFFLINE),
                "3": Health(finding=FindingKind.CONTAINER_OFFLINE),
            }),
        })  # fmt: skip
        monkeypatch.setattr(server.operations, "_health", lambda: broken)
        monkeypatch.setattr(server_checks, "penstock_version", lambda: "0.0.1")
        found = await asyncio.to_thread(check_health, address, 60.0, is_required=True)
    assert [(each.kind, each.detail.partition(", this")[0]) for each in found.findings] == [
        (FindingKind.AUDIT_FAILING, "audit: no room"),
        (FindingKind.CONTAINER_OFFLINE, "stores/2: its log is disabled"),
        (FindingKind.VERSION_DIFFERS, "the server runs penstock 0.1.0"),
    ]


def test_a_health_port_that_does_not_answer() -> None:
    """STORE_DOWN if the server answers elsewhere."""
    assert kinds(check_health("127.0.0.1:1", 1.0, is_required=True)) == {FindingKind.STORE_DOWN}
    assert not check_health("127.0.0.1:1", 1.0, is_required=False).findings


def test_each_finding_has_an_id_of_its_own_and_a_test() -> None:
    """Ids are stable words; each kind is named by a test of this module."""
    text = inspect.getsource(sys.modules[__name__])
    ids = [kind.id for kind in FindingKind]
    assert len(ids) == len(set(ids))
    for kind in FindingKind:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.id)
        assert f"FindingKind.{kind.name}" in text, kind
        assert kind.meaning, kind
        assert kind.action, kind


def test_the_operators_table_lists_every_finding() -> None:
    """In the order of the list, with severity, meaning and action."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "findings.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(kind.id, kind.severity.value, kind.meaning, kind.action) for kind in FindingKind]


def test_findings_are_printed_errors_first() -> None:
    assert {kind.severity for kind in FindingKind} == {Severity.ERROR, Severity.WARNING}
    assert Finding(FindingKind.DISK_SLOW, "slow").kind.severity is Severity.WARNING
