"""What holds for every command there is: its help, its options, and what it says when the server is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
import typer
import typer.main

from penstock.cli import COMMANDS
from penstock.client.client import Client
from penstock.client.client import connect as real_connect
from penstock.client.settings import ClientSettings
from penstock.testing.server import MemoryServer
from support.command_line import run_command
from support.standalone_process import child_environment

#: Nobody listens there: the port is reserved (RFC 6335, port 0 cannot be connected to, 1 is tcpmux).
AWAY = "tcp://127.0.0.1:1"

#: Arguments for each command that asks a server. A command that is missing here fails the tests below.
ARGUMENTS = {
    "write": ["s/x"],
    "read": ["s/x"],
    "tail": ["s/x"],
    "stream list": [],
    "stream create": ["s/x"],
    "stream describe": ["s/x"],
    "stream update": ["s/x", "--tag", "a"],
    "stream seal": ["s/x"],
    "stream scale": ["s/x", "--split", "0"],
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
    "group delete": ["s/g", "--yes"],
    "transaction list": ["s/x"],
    "transaction create": ["s/x"],
    "transaction update": ["s/x", "0" * 32],
    "transaction describe": ["s/x", "0" * 32],
    "transaction commit": ["s/x", "0" * 32],
    "transaction abort": ["s/x", "0" * 32],
    "group update": ["s/g", "--add", "s/x"],
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
LOCAL = {"standalone", "quickstart", "version", "segment-store", "log list", "log enable", "log disable"}


def options_of(app: typer.Typer) -> dict[str, list[str]]:
    """Return the options of each command of a group."""
    commands: Mapping[str, object] = typer.main.get_group(app).commands
    return {name: [opt for param in command.params for opt in param.opts] for name, command in commands.items()}


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
            app.command(name)(loaded)
            yield name, options_of(app)[name]


def test_every_command_is_known_here() -> None:
    """So that none is forgotten below; all speak JSON, and those that ask a server can be told which."""
    names = set()
    for name, options in every_command():
        names.add(name)
        assert "--json" in options or name == "segment-store", name
        assert ("--uri" in options) == (name in ARGUMENTS), name
        verb = name.rpartition(" ")[2]
        assert ("--yes" in options) == (verb in ("delete", "truncate")), name
    assert names == set(ARGUMENTS) | LOCAL


def test_the_overview_says_what_each_command_says_of_itself() -> None:
    """It loads none of them, so it has the text twice."""
    for name, command in COMMANDS.items():
        loaded = command.load()
        if not isinstance(loaded, typer.Typer) and not command.is_hidden:
            assert (loaded.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ") == command.summary, name
    overview = run_command("--help").ok.stdout
    for name, command in COMMANDS.items():
        assert (f"\n  {name} " in overview) != command.is_hidden


@pytest.mark.parametrize("name", [name for name, _ in every_command()])
def test_every_command_has_its_help(name: str) -> None:
    """With what it does, and each option's default."""
    shown = run_command(*name.split(), "--help").ok.stdout
    assert f"Usage: penstock {name}" in shown
    if name in ARGUMENTS:
        assert "[env var: PENSTOCK_URI; default: tcp://localhost:9090]" in " ".join(shown.split())


def test_no_command_shows_the_help() -> None:
    """Of all, or of the group that was named."""
    assert run_command().ok == run_command("--help")
    assert run_command("stream").ok == run_command("stream", "--help")
    assert "Missing command" not in run_command("log").ok.stdout


def test_defaults_are_in_the_help() -> None:
    """Those in brackets, too: they are no markup."""
    shown = " ".join(run_command("standalone", "--help").ok.stdout.split())
    for default in ("penstock-data", "127.0.0.1", "9090", "6000", "4", "512", "warning", "the --host"):
        assert f"[default: {default}]" in shown
    assert "[default: earliest]" in " ".join(run_command("read", "--help").ok.stdout.split())


def test_the_version_is_told() -> None:
    """As an option, too, as everywhere."""
    versions = run_command("version", "--json").ok.json
    assert run_command("--version").ok.stdout == f"penstock {versions['penstock']}\n"


@pytest.fixture
def hasty_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients wait no longer than it takes to see that nobody listens."""

    def connect(uri: str, settings: ClientSettings | None) -> Client:
        assert settings is None
        return real_connect(uri, ClientSettings(first_contact_timeout_s=0.05))

    monkeypatch.setattr("penstock.cli.session.connect", connect)


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.usefixtures("hasty_clients")
def test_a_server_that_is_away_is_told(name: str) -> None:
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


def test_a_defect_is_told_in_a_line_and_its_traceback_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Nobody at a shell can do anything with a traceback; who mends it needs it."""
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
        assert json.loads(run_command(*name.split(), "--json", uri=uri).ok.stdout)["event"]
    assert os.environ.get("PENSTOCK_URI") != uri
