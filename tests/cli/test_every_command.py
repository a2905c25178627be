"""What holds for every command there is: help, options, and what it says of bad input and a server that is away."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from unittest import mock

import pytest
import typer
import typer.main

from penstock.cli import COMMANDS, main
from penstock.client.client import Client
from penstock.client.client import connect as real_connect
from penstock.client.settings import ClientSettings
from penstock.testing.server import MemoryServer
from support.command_line import run_command
from support.standalone_process import child_environment

#: No server listens there: the port is reserved (RFC 6335, port 0 cannot be connected to, 1 is tcpmux).
AWAY = "tcp://127.0.0.1:1"

#: Arguments for each command that asks a server. A command that is missing here fails the tests below.
ARGUMENTS = {
    "write": ["s/x"],
    "read": ["s/x"],
    "tail": ["s/x"],
    "export": ["s/x", "--to", "parquet", "--directory", "/nowhere/at/all"],
    "replay": ["s/x", "s/y"],
    "backfill": ["s/x", "/nowhere/at/all"],
    "verify": [],
    "stream list": [],
    "stream create": ["s/x"],
    "stream describe": ["s/x"],
    "stream history": ["s/x"],
    "web": ["--port", "0"],
    "console": ["--no-browser"],
    "stream update": ["s/x", "--tag", "a"],
    "stream seal": ["s/x"],
    "stream scale": ["s/x", "--split", "0"],
    "stream watermark": ["s/x"],
    "stream cut": ["s/x", "--at", "latest"],
    "stream truncate": ["s/x", "--at", "latest", "--yes"],
    "stream delete": ["s/x", "--yes"],
    "scope list": [],
    "scope create": ["s"],
    "scope describe": ["s"],
    "scope delete": ["s", "--yes"],
    "group list": [],
    "group create": ["s/g", "s/x"],
    "group describe": ["s/g"],
    "group lag": ["s/g"],
    "group reset": ["s/g", "--to", "latest"],
    "group remove-reader": ["s/g", "r"],
    "group delete": ["s/g", "--yes"],
    "retention explain": ["s/x"],
    "transaction list": ["s/x"],
    "transaction create": ["s/x"],
    "transaction update": ["s/x", "0" * 32],
    "transaction describe": ["s/x", "0" * 32],
    "transaction prepare": ["s/x", "0" * 32],
    "transaction commit": ["s/x", "0" * 32],
    "transaction abort": ["s/x", "0" * 32],
    "group update": ["s/g", "--add", "s/x"],
    "group acknowledge": ["s/g", '{"scope": "s"}'],
    "table list": [],
    "table create": ["s/t"],
    "table describe": ["s/t"],
    "table delete": ["s/t", "--yes"],
    "table get": ["s/t", "key"],
    "table put": ["s/t", "key", "value"],
    "table remove": ["s/t", "key"],
    "table scan": ["s/t"],
    "bench write": [],
    "bench read": [],
    "bench end-to-end": [],
    "top": [],
    "ready": [],
}
#: Those that ask no server.
LOCAL = {
    "standalone", "quickstart", "version", "controller", "segment-store", "store-child",
    "log list", "log enable", "log disable", "log salvage",
    "log sweep",
    "storage check", "storage probe",
    "storage recover", "storage backup", "storage restore",
    "user add", "user passwd", "user remove", "user grant", "user revoke", "user list", "user check",
    "security show", "security check", "security make", "security rotate-key",
    "settings show", "doctor", "jars",
    "storage survey", "storage import", "storage export",
    "cluster init", "cluster status", "cluster stores", "cluster containers", "cluster drain", "cluster undrain",
    "cluster move", "cluster balance", "cluster log list", "cluster log enable", "cluster log disable",
    "cluster log salvage", "cluster log rebuild", "cluster sweep", "cluster demo",
}  # fmt: skip


#: For each command what it cannot do anything with: words that are missing or too many, names, values.
BAD_INPUT = {
    "write": [[], ["noscope"], ["bad/x", "--rate", "-1"], ["bad/x", "--key", "a", "--key-field", "b"]],
    "read": [[], ["noscope"], ["bad/x", "--from", "nonsense"], ["bad/x", "--count", "-1"], ["bad/x", "--format", "x"]],
    "tail": [[], ["noscope"], ["bad/x", "--count", "-3"], ["bad/x", "--format", "xml"]],
    "export": [
        [],
        ["bad/x"],
        ["bad/x", "--to", "csv"],
        ["bad/x", "--to", "parquet"],
        ["noscope", "--to", "parquet"],
        ["bad/x", "--to", "iceberg"],
        ["bad/x", "--to", "parquet", "--directory", "/dev/null/x", "--once"],
        ["bad/x", "--to", "parquet", "--directory", "/tmp", "--value", "json"],
    ],
    "replay": [
        [],
        ["bad/x"],
        ["noscope", "bad/x"],
        ["bad/none", "bad/x"],
        ["bad/x", "bad/none"],
        ["bad/x", "bad/x", "--from", "nonsense"],
        ["bad/x", "bad/x", "--rate", "-1"],
    ],
    "backfill": [[], ["bad/x"], ["bad/x", "/nowhere/at/all"], ["bad/none", "/tmp"], ["noscope", "/tmp"]],
    "verify": [["noscope"], ["bad/none"], ["bad/x", "bad/none"], ["bad/x", "--outage", "long"]],
    "stream list": [["a/b"], ["a b"], ["bad", "bad"]],
    "stream create": [[], ["noscope"], ["bad/b@d"], ["bad/x", "--segments", "0"], ["bad/x", "--segments", "many"]],
    "stream describe": [[], ["noscope"], ["bad/none"]],
    "web": [["extra"], ["--port", "x"], ["--host", "0.0.0.0"]],
    "console": [["extra"], ["--port", "x"], ["--host", "0.0.0.0"]],
    "stream history": [[], ["noscope"], ["bad/none"], ["bad/x", "--epochs", "0"]],
    "stream update": [[], ["noscope", "--tag", "a"], ["bad/x"], ["bad/none", "--tag", "a"]],
    "stream seal": [[], ["noscope"], ["bad/none"]],
    "stream scale": [[], ["bad/x"], ["bad/x", "--split", "x"], ["noscope", "--split", "0"], ["bad/x", "--split", "7"]],
    "stream watermark": [[], ["noscope"], ["bad/none"]],
    "stream cut": [[], ["bad/x"], ["bad/x", "--at", "nothing"], ["no", "--at", "latest"], ["bad/x", "--at", "noted:x"]],
    "stream truncate": [["bad/x", "--yes"], ["bad/x", "--at", "nothing", "--yes"], ["no", "--at", "latest", "--yes"]],
    "stream delete": [[], ["noscope", "--yes"], ["bad/none", "--yes"], ["bad/x"]],
    "scope list": [["extra"]],
    "scope create": [[], ["a/b"], ["bad"]],
    "scope describe": [[], ["a/b"], ["none"]],
    "scope delete": [[], ["a/b", "--yes"], ["none", "--yes"], ["bad", "--yes"]],
    "group list": [["a/b"], ["bad", "bad"]],
    "group create": [["bad/g"], ["a/b/c", "bad/x"], ["bad/g", "noscope"], ["bad/g", "bad/none"]],
    "group describe": [[], ["nogroup"], ["bad/none"]],
    "group lag": [[], ["nogroup"], ["bad/none"]],
    "group reset": [["bad/g"], ["bad/g", "--to", "nonsense"], ["bad/none", "--to", "latest"]],
    "group remove-reader": [[], ["nogroup", "r"], ["bad/none", "r"], ["bad/g", "none"]],
    "group update": [["bad/g"], ["bad/g", "--add", "noscope"], ["bad/g", "--retention", "x"]],
    "group acknowledge": [["bad/none"], ["bad/g", "nonsense"], ["bad/g", "@/none"], ["bad/none", "nonsense"]],
    "group delete": [[], ["nogroup", "--yes"], ["bad/none", "--yes"], ["bad/g"]],
    "retention explain": [[], ["noscope"], ["bad/none"]],
    "user add": [[], ["a:b"], ["ann", "--grant", "nonsense"], ["ann", "--password-file", "/dev/null/x"]],
    "user passwd": [[], ["ann", "--accounts", "/dev/null/x", "--password-file", "/dev/null"]],
    "user remove": [[], ["ann", "--accounts", "/dev/null/x"]],
    "user grant": [["ann"], ["ann", "nonsense"], ["ann", "prn::*,READ", "--accounts", "/dev/null/x"]],
    "user revoke": [["ann"], ["ann", "prn::*", "--accounts", "/dev/null/x"]],
    "user list": [["extra"], ["--accounts", "/dev/null/x"]],
    "security show": [["extra"], ["--config", "/dev/null/x"]],
    "security check": [["extra"], ["--config", "/dev/null/x"]],
    "security make": [["extra"], [], ["--host", "a", "--config", "/dev/null/x"]],
    "security rotate-key": [["extra"], ["--data-dir", "/dev/null/x"]],
    "doctor": [["extra"], ["--timeout", "long"], ["--uri", "nonsense"]],
    "jars": [[], ["--to", "/dev/null/x"], ["--to", "/tmp", "--timeout", "0"]],
    "settings show": [["--config", "/nowhere.toml"], ["--pravega-config", "/nowhere.properties"], ["--what"]],
    "user check": [["extra"], ["--accounts", "/dev/null/x"]],
    "transaction list": [[], ["noscope"], ["bad/none"]],
    "transaction create": [[], ["noscope"], ["bad/none"]],
    "transaction update": [["bad/x"], ["bad/x", "zz"], ["bad/x", "0" * 32]],
    "transaction describe": [["bad/x"], ["bad/x", "zz"], ["bad/none", "0" * 32]],
    "transaction prepare": [["bad/x"], ["bad/x", "zz"], ["bad/x", "0" * 32]],
    "transaction commit": [["bad/x"], ["bad/x", "zz"], ["bad/x", "0" * 32]],
    "transaction abort": [["bad/x"], ["bad/x", "zz"], ["bad/x", "0" * 32]],
    "table list": [["a/b"], ["bad", "bad"]],
    "table create": [[], ["notable"], ["bad/u", "--key-length", "0"], ["bad/u", "--partitions", "0"], ["bad/t"]],
    "table describe": [[], ["notable"], ["bad/none"]],
    "table delete": [[], ["notable", "--yes"], ["bad/none", "--yes"], ["bad/t"]],
    "table get": [["bad/t"], ["notable", "k"], ["bad/t", "longer" * 40], ["bad/t", "none"]],
    "table put": [["bad/t"], ["notable", "k", "v"], ["bad/t", "longer" * 40, "v"]],
    "table remove": [["bad/t"], ["notable", "k"], ["bad/t", "longer" * 40]],
    "table scan": [[], ["notable"], ["bad/t", "--count", "-1"], ["bad/none"]],
    "bench write": [["extra"], ["--seconds", "-1"], ["--rate", "fast"]],
    "bench read": [["extra"], ["--count", "0"]],
    "bench end-to-end": [["extra"], ["--rate", "0"]],
    "top": [["extra"], ["--interval-s", "0"]],
    "ready": [["extra"], ["--timeout-s", "-1"], ["--uri", "nonsense"], ["--uri", "http://localhost:9090"]],
    "standalone": [["extra"], ["--containers", "0"], ["--controller-port", "99999"], ["--containers", "many"]],
    "store-child": [["extra"]],
    "controller": [["extra"], [], ["--zookeeper", "x:y"], ["--zookeeper", "z:1", "--listeners", "bad"]],
    "segment-store": [
        ["extra"],
        [],
        ["--zookeeper", "z:1", "--host", "0.0.0.0"],
        ["--zookeeper", "z:1", "--name", "/"],
    ],
    "cluster init": [[], ["--log", "s3://b/l"], ["--zookeeper", "z:1", "--log", "nowhere", "--tier2", "s3://b/d"]],
    "cluster status": [["extra"], [], ["--zookeeper", "x:y"]],
    "cluster stores": [["extra"], []],
    "cluster containers": [["extra"], []],
    "cluster drain": [[], ["a"]],
    "cluster undrain": [[], ["a"]],
    "cluster move": [[], ["x", "a"], ["1", "a"]],
    "cluster balance": [["extra"], []],
    "cluster log list": [["extra"], []],
    "cluster log enable": [[], ["x"], ["-1"], ["0"]],
    "cluster log disable": [[], ["x"], ["-1"], ["0"]],
    "cluster log rebuild": [["extra"], []],
    "cluster log salvage": [[], ["x"], ["-1"], ["0"]],
    "cluster sweep": [["extra"], []],
    "cluster demo": [
        ["extra"],
        ["--stores", "0"],
        ["--script", "dance"],
        ["--script", "kill"],
        ["--script", "wait long"],
        ["--directory", "/dev/null/x"],
        ["--bucket", "nowhere"],
    ],
    "quickstart": [["extra"], ["--no-such-option"]],
    "version": [["extra"]],
    "log list": [["extra"], ["--data-dir", "/nowhere/at/all"]],
    "log enable": [[], ["x"], ["0", "--data-dir", "/nowhere/at/all"]],
    "log disable": [[], ["x"], ["0", "--data-dir", "/nowhere/at/all"]],
    "log sweep": [["extra"], []],
    "log salvage": [[], ["x"], ["0", "--data-dir", "/nowhere/at/all"]],
    "storage check": [["extra"], ["--data-dir", "/nowhere/at/all"]],
    "storage probe": [
        ["extra"],
        ["--tier2", "/nowhere/at/all"],
        ["--bytes", "0"],
        ["--log", "/nowhere"],
        ["--rounds", "0"],
    ],
    "storage backup": [[], ["/nowhere/a", "b"], ["/nowhere/a", "--data-dir", "/no/b"], ["/nowhere/a", "--admin", "9"]],
    "storage restore": [[], ["/nowhere/at/all"], ["/nowhere/at/all", "--directory", "/nowhere/either"]],
    "storage survey": [["--no-such-option"], ["--tier2", "/nowhere/at/all"]],
    "storage import": [["--no-such-option"], ["--data-dir", "/nowhere/at/all"]],
    "storage export": [["--container", "x"], ["--data-dir", "/nowhere/at/all"]],
    "storage recover": [["extra"], [], ["--directory", "/nowhere/at/all", "--tier2", "/nowhere/either"]],
}


def options_of(app: typer.Typer) -> dict[str, list[str]]:
    """Return the options of each command of a group."""
    return dict(_options_of(typer.main.get_group(app), ""))


def _options_of(group: object, path: str) -> Iterator[tuple[str, list[str]]]:
    commands: Mapping[str, object] = group.commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        if hasattr(command, "commands"):
            yield from _options_of(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", [opt for param in command.params for opt in param.opts]  # type: ignore[attr-defined]


def every_command() -> Iterator[tuple[str, list[str]]]:
    """Yield each command by its full name, with its options."""
    for name, command in COMMANDS.items():
        loaded = command.load()
        if isinstance(loaded, typer.Typer):
            for sub_name, options in options_of(loaded).items():
                yield f"{name} {sub_name}", options
        else:
            app = typer.Typer()
            app.callback()(lambda: None)
            app.command(name)(loaded)  # type: ignore[type-var]
            yield name, options_of(app)[name]


def test_every_command_is_known_here() -> None:
    """So that the tests below cover each; all support JSON, and those that use a server have `--uri`."""
    names = set()
    for name, options in every_command():
        names.add(name)
        assert "--json" in options or name == "store-child", name
        # `doctor` examines a server that may be stopped.
        assert ("--uri" in options) == (name in ARGUMENTS or name == "doctor"), name
        verb = name.rpartition(" ")[2]
        assert ("--yes" in options) == (verb in ("delete", "truncate")), name
    assert names == set(ARGUMENTS) | LOCAL


def test_the_overview_shows_the_first_line_of_each_commands_help() -> None:
    """It loads none of them, so it has the text twice."""
    for name, command in COMMANDS.items():
        loaded = command.load()
        if not isinstance(loaded, typer.Typer) and not command.is_hidden:
            assert (loaded.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ") == command.summary, name
    overview = run_command("--help").ok.stdout
    for name, command in COMMANDS.items():
        assert (f"\n  {name} " in overview) != command.is_hidden


@pytest.mark.parametrize("name", [name for name, _ in every_command()])
def test_every_command_has_help(name: str) -> None:
    """With what it does, and each option's default."""
    shown = run_command(*name.split(), "--help").ok.stdout
    assert f"Usage: penstock {name}" in shown
    # What must be put in is in capitals, whether it must be or may be left out.
    usage = shown.partition("\n\n")[0].replace(name, "")
    assert not re.search(r"[\[{][a-z]", usage), usage
    if name in ARGUMENTS:
        assert "[env var: PENSTOCK_URI; default: tcp://localhost:9090]" in " ".join(shown.split())


def test_no_summary_is_cut_off() -> None:
    """In the lists of commands, of all and of each group: half a sentence tells less than a line more takes."""
    for name in ("", *(name for name, command in COMMANDS.items() if command.is_group)):
        listed = run_command(*name.split(), "--help").ok.stdout.partition("Show this message and exit.")[2]
        assert listed
        assert "..." not in listed, name


def test_no_command_shows_the_help() -> None:
    """Of all, or of the group that was named."""
    assert run_command().ok == run_command("--help")
    assert run_command("stream").ok == run_command("stream", "--help")
    assert "Missing command" not in run_command("log").ok.stdout


def test_defaults_are_in_the_help() -> None:
    """Those in brackets, too: they are no markup."""
    shown = " ".join(run_command("standalone", "--help").ok.stdout.split())
    for default in ("penstock-data", "127.0.0.1", "9090", "6000", "4", "512", "info", "the --host"):
        assert f"[default: {default}]" in shown
    assert "[default: earliest]" in " ".join(run_command("read", "--help").ok.stdout.split())


def test_the_version_is_reported() -> None:
    """As an option, too, as everywhere."""
    versions = run_command("version", "--json").ok.json
    assert run_command("--version").ok.stdout == f"penstock {versions['penstock']}\n"


@pytest.fixture
def hasty_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the time that clients wait to what a refused connection needs."""

    def connect(uri: str, settings: ClientSettings | None) -> Client:
        # Jobs give settings, in which a first contact has the usual time.
        usual = ClientSettings()
        assert settings is None or settings.first_contact_timeout_s == usual.first_contact_timeout_s
        return real_connect(uri, replace(settings or usual, first_contact_timeout_s=0.05))

    monkeypatch.setattr("penstock.cli.session.connect", connect)


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.usefixtures("hasty_clients")
def test_a_server_that_is_away_is_reported(name: str) -> None:
    """In a line or two that name its address, with exit code 1; the same as JSON; and nothing hangs."""
    if name == "ready":
        refused = run_command(name, "--timeout-s", "0.1", uri=AWAY)
    else:
        refused = run_command(*name.split(), *ARGUMENTS[name], uri=AWAY, stdin=b"line\n")
    assert (refused.code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("penstock: ")
    assert AWAY in refused.stderr
    assert "Traceback" not in refused.stderr
    if name in ("write", "stream list"):
        as_json = run_command(*name.split(), *ARGUMENTS[name], "--json", uri=AWAY, stdin=b"line\n")
        assert as_json.code == 1
        assert as_json.json["kind"] == "ControllerUnavailableError"
        assert as_json.stderr == ""


def test_ready_waits_for_a_server_that_is_started_after_it() -> None:
    """No server listens at first: the command retries until its time is up, not only for the first contact."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    uri = f"tcp://127.0.0.1:{port}"
    command = [sys.executable, "-c", "from penstock.cli import main; main()"]
    asking = [*command, "ready", "--uri", uri, "--timeout-s", "60"]
    waiting = subprocess.Popen(asking, stdout=subprocess.PIPE, text=True, env=child_environment())
    try:
        # Longer than the first contact takes.
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(2.5)
        ports = ["--controller-port", str(port), "--segment-store-port", "0"]
        with subprocess.Popen([*command, "standalone", "--memory", *ports], env=child_environment()) as server:
            try:
                told, _ = waiting.communicate(timeout=60)
            finally:
                server.terminate()
        assert waiting.returncode == 0
        assert told.startswith(f"ready: controller {uri}")
    finally:
        waiting.kill()
        waiting.wait()


def test_ready_gives_the_last_reason_when_its_time_is_up() -> None:
    """What the attempts found out, and not only that the last one had no time."""
    begin_s = time.monotonic()
    refused = run_command("ready", "--timeout-s", "1.2", uri=AWAY)
    assert refused.code == 1
    assert "server listens at this address" in refused.stderr
    assert time.monotonic() - begin_s >= 1.0


@pytest.fixture(scope="module")
def some_of_each(penstock_server: MemoryServer) -> MemoryServer:
    """A server with a stream ``bad/x``, a group ``bad/g`` and a table ``bad/t``."""
    with penstock_server.connect() as client:
        client.create_stream("bad/x", exist_ok=True)
        client.create_table("bad/t", key_length=8, exist_ok=True)
        client.reader_group("bad/g", ["bad/x"]).close()
    return penstock_server


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_reported(name: str, some_of_each: MemoryServer) -> None:
    """In words, with exit code 2 where the command line is wrong, and 1 where it names what does not exist."""
    for arguments in [*BAD_INPUT[name], ["--no-such-option"]]:
        refused = run_command(*name.split(), *arguments, uri=some_of_each.uri, stdin=b"line\n")
        assert refused.code in (1, 2), (arguments, refused)
        assert refused.stdout == "", (arguments, refused)
        # Commands that ask for confirmation and have no terminal exit with 2 as well.
        assert refused.stderr.startswith(("penstock: ", "Usage: ")), (arguments, refused)
        assert "Traceback" not in refused.stderr, (arguments, refused)
    assert run_command(*name.split(), "--no-such-option").code == 2


def test_bad_input_is_tried_with_every_command() -> None:
    """So that none is forgotten."""
    assert set(BAD_INPUT) == set(ARGUMENTS) | LOCAL


def test_a_defect_is_reported_in_a_line_and_its_traceback_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """A traceback is of no use at a shell; it is needed to repair the defect."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("penstock.cli.version.penstock_version", lambda: 1 / 0)
    broken = run_command("version")
    assert broken.code == 70
    assert broken.stderr.startswith("penstock: this is a defect of Penstock: ZeroDivisionError")
    kept = broken.stderr.split()[-1]
    with open(kept) as file:
        assert "Traceback" in file.read()


def test_the_overview_loads_no_command() -> None:
    """Nor what draws in terminals, nor a client: it is there at once."""
    code = (
        "import sys\nfrom penstock.cli import main\n"
        "try:\n    main(['--help'])\nfinally:\n"
        "    heavy = ('rich', 'grpc', 'asyncio', 'msgspec', 'penstock.client', 'penstock.cli.stream')\n"
        "    sys.stderr.write(str([name for name in heavy if name in sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=child_environment())
    assert (ran.returncode, ran.stderr) == (0, "[]")


def test_a_client_command_loads_no_validation_library(penstock_server: MemoryServer) -> None:
    """Each takes a share of the CPU of a short command that is worth a bound on a dependency, or an import in place."""
    code = (
        "import sys\nfrom penstock.cli import main\n"
        f"try:\n    main(['scope', 'list', '--uri', {penstock_server.uri!r}])\nfinally:\n"
        "    heavy = ('pydantic', 'pyarrow', 'numpy', 'pyspark', 'rich')\n"
        "    sys.stderr.write(str([name for name in heavy if name in sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=child_environment())
    assert ran.returncode == 0
    # Before it, on a busy machine, the command may report that it waits.
    assert ran.stderr.endswith("[]")


def test_shells_complete_commands_options_and_names(penstock_server: MemoryServer) -> None:
    """As the shells ask: by variables, with the words so far. Names come from the server, if it is there."""
    with penstock_server.connect() as client:
        client.create_stream("typed/stream")
        client.create_stream("typed/other")

    def completed(*words: str, uri: str = penstock_server.uri) -> list[str]:
        environment = {
            **child_environment(),
            "PENSTOCK_URI": uri,
            "_PENSTOCK_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(["penstock", *words]) if len(words) < 2 else " ".join(["penstock", *words]),
            "COMP_CWORD": str(len(words)),
        }
        code = "from penstock.cli import main; main()"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert ran.stderr == ""
        return ran.stdout.split()

    assert completed("str") == ["stream"]
    assert completed("stream", "de") == ["describe", "delete"]
    assert "--key-field" in completed("write", "--k")
    assert completed("read", "typed/s") == ["typed/stream"]
    assert completed("read", "typed/s", uri=AWAY) == []


def test_json_is_one_document_a_line(penstock_server: object) -> None:
    """Whatever the command."""
    uri = str(getattr(penstock_server, "uri", ""))
    for name in ("stream list", "scope list", "group list"):
        assert json.loads(run_command(*name.split(), "--json", uri=uri).ok.stdout)["type"]
    assert os.environ.get("PENSTOCK_URI") != uri


class _Refusing(io.RawIOBase):
    def __init__(self, number: int) -> None:
        self._number = number

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        if self._number:
            raise OSError(self._number, os.strerror(self._number))
        return len(bytes(data))  # type: ignore[call-overload]  # the test is over


def run_refused(number: int, *arguments: str) -> tuple[int, str]:
    """Run the command with a standard output that raises; return its exit code and what it complained of."""
    refusing = _Refusing(number)
    output = io.TextIOWrapper(io.BufferedWriter(refusing), encoding="utf-8")
    errors = io.StringIO()
    with mock.patch.object(sys, "stdout", output), mock.patch.object(sys, "stderr", errors):
        try:
            main(list(arguments))
        except SystemExit as end:
            code = end.code
        else:
            code = 0
        refusing._number = 0
    assert isinstance(code, int)
    return code, errors.getvalue()


@pytest.mark.parametrize("name", [name for name, _ in every_command()])
def test_a_full_output_is_an_error_and_an_ended_reader_is_none(name: str) -> None:
    code, complaint = run_refused(errno.ENOSPC, *name.split(), "--help")
    assert (code, complaint) == (1, "penstock: standard output: No space left on device\n")
    assert run_refused(errno.EPIPE, *name.split(), "--help") == (0, "")


def test_a_process_says_once_that_its_output_is_full() -> None:
    """Python itself complains of nothing at exit."""
    code = "from penstock.cli import main; main()"
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-c", code, "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (1, "penstock: standard output: No space left on device\n")


@pytest.mark.parametrize("name", ["stream list", "scope create", "version", "read", "ready"])
def test_a_failure_that_cannot_be_printed_is_still_a_failure(name: str) -> None:
    """Its record goes to standard output, which takes nothing; the exit code says as much."""
    if name == "version":
        assert run_refused(errno.ENOSPC, name, "--json")[0] == 1
        return
    arguments = ["--timeout-s", "0.1"] if name == "ready" else ARGUMENTS[name]
    for number in (errno.ENOSPC, errno.EPIPE):
        assert run_refused(number, *name.split(), *arguments, "--uri", AWAY, "--json")[0] == 1
