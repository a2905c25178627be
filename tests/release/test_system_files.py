"""Manual pages, completions, units of systemd and compose files, each checked by the program that reads it."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from penstock.cli import COMMANDS, _app
from penstock.server.settings import StandaloneSettings
from penstock_tools.release.completions import PLACES, completion_scripts
from penstock_tools.release.manual import manual_pages, roff
from penstock_tools.release.system_files import system_files

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
COMPOSE_FILES = sorted((ROOT / "deploy" / "compose").glob("*.yaml"))
#: The time for one completion, which starts the program.
_COMPLETION_TIMEOUT_S = 90.0
#: Highest exposure of a unit that `systemd-analyze security` may find, of 10.
EXPOSURE_MAX = 1.5


def needs(program: str) -> pytest.MarkDecorator:
    """Skip a test where a program is not installed."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


# Manual pages.


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return manual_pages("0.0", 1_700_000_000)


def test_every_command_has_a_page_with_all_of_its_options(pages: dict[str, str]) -> None:
    root: Any = get_command(_app(list(COMMANDS), is_overview=False))

    def options(command: Any) -> set[str]:
        found = {
            name
            for one in command.params
            if one.param_type_name == "option" and not getattr(one, "hidden", False) and one.name != "help"
            for name in one.opts
        }
        for child in getattr(command, "commands", {}).values():
            if not child.hidden:
                found |= options(child)
        return found

    visible = {name for name, command in COMMANDS.items() if not command.is_hidden}
    assert set(pages) == {"penstock.1", *(f"penstock-{name}.1" for name in visible)}
    for name in visible:
        page = pages[f"penstock-{name}.1"]
        assert [option for option in options(root.commands[name]) if roff(option) not in page] == [], name
        assert f"penstock\\-{roff(name)}" in pages["penstock.1"]


@needs("mandoc")
def test_the_manual_pages_are_correct_troff(pages: dict[str, str], tmp_path: Path) -> None:
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    checked = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *sorted(pages)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert checked.stdout + checked.stderr == ""
    shown = subprocess.run(
        ["mandoc", "-T", "utf8", "penstock-stream.1"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    plain = re.sub(".\b", "", shown)
    assert "penstock stream create [OPTIONS]" in plain
    assert "--segments" in plain
    assert "\\-" not in plain


@pytest.mark.parametrize(
    ("text", "escaped"),
    [(".so file", "\\&.so file"), ("a\n'b", "a\n\\(aqb"), ("c:\\new", "c:\\enew"), ("--x", "\\-\\-x")],
)
def test_a_text_cannot_become_a_request(text: str, escaped: str) -> None:
    assert roff(text) == escaped


# Completions.


def completed(shell: list[str], setup: str, home: Path) -> str:
    """Type ``penstock versi``, a tab and a return into an interactive shell; return what it printed.

    Only if the tab completes the word to "version" does the shell run a command that exists.
    """
    # The folder of the program is the first of the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(home), "TERM": "dumb", "LANG": "C.UTF-8", "ZDOTDIR": str(home)}
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(home)
        os.execvpe(shell[0], shell, environment)
    try:
        shown = bytearray()

        def wait_for(wanted: bytes) -> None:
            deadline = time.monotonic() + _COMPLETION_TIMEOUT_S
            while wanted not in shown:
                left = deadline - time.monotonic()
                assert left > 0, f"{wanted!r} is not in {bytes(shown)!r}"
                if select.select([terminal], [], [], left)[0]:
                    shown.extend(os.read(terminal, 4096))

        os.write(terminal, f"{setup}; printf 'READY-%s\\n' 2\r".encode())
        wait_for(b"READY-2")
        os.write(terminal, b"penstock versi\t")
        wait_for(b"version")
        os.write(terminal, b"; printf 'DONE-%s\\n' 3\r")
        wait_for(b"DONE-3")
        return shown.decode(errors="replace")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)


@pytest.mark.parametrize(
    ("shell", "setup"),
    [
        pytest.param(["bash", "--norc", "--noprofile", "-i"], ". ./{}", marks=needs("bash"), id="bash"),
        pytest.param(
            ["zsh", "-f", "-i"],
            "fpath=($PWD/zsh/site-functions $fpath); autoload -U compinit; compinit -u -D; ls {} >/dev/null",
            marks=needs("zsh"), id="zsh",
        ),
        pytest.param(["fish", "--no-config", "-i"], "source ./{}", marks=needs("fish"), id="fish"),
    ],
)  # fmt: skip
def test_a_tab_completes_a_command(shell: list[str], setup: str, tmp_path: Path) -> None:
    for place, text in completion_scripts().items():
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(text)
    shown = completed(shell, setup.format(PLACES[shell[0]]), tmp_path)
    assert re.search(r"penstock \d+\.\d+|penstock unknown", shown.partition("version")[2]), shown


# Units.


def command_of(unit: Path) -> list[str]:
    """Return the words of a unit's ExecStart, with the values of its specifiers."""
    [line] = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    return shlex.split(line.replace("%i", "6000").replace("%H", "host"))


def accepts(words: list[str]) -> None:
    """Check that the command line has these commands and options, with values of the right kind. Runs nothing."""
    root: Any = get_command(_app([words[0]], is_overview=False))
    command, rest = root, words
    while getattr(command, "commands", None):
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context(words[0], list(rest)) as context:
        assert context.params


def longest_stop_s(command: str) -> float:
    """Return how long a server may take to stop by itself, with the default settings."""
    settings = StandaloneSettings()
    if command != "segment-store":
        return settings.stop_timeout_s
    member = settings.cluster.member
    return member.drain_timeout_s + member.stop_timeout_s + settings.stop_timeout_s


@needs("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    """The status of ``verify`` is 0 even for an unknown key, so its output must be empty. A misspelt key is found."""
    program = tmp_path / "penstock"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in UNITS:
        text = unit.read_text().replace("/opt/penstock/bin/penstock", str(program))
        (tmp_path / unit.name.replace("@.", "@6000.")).write_text(text)
    units = sorted(str(path) for path in tmp_path.glob("*.service"))
    assert len(units) == 3
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no"]
    found = subprocess.run([*verify, *units], capture_output=True, text=True, timeout=120, check=False)
    assert (found.stdout + found.stderr, found.returncode) == ("", 0)
    wrong = tmp_path / "penstock.service"
    wrong.write_text(wrong.read_text().replace("WatchdogSec", "WatchDogSec"))
    found = subprocess.run([*verify, str(wrong)], capture_output=True, text=True, timeout=120, check=False)
    assert "WatchDogSec" in found.stderr


@needs("systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_confined(unit: Path) -> None:
    found = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    match = re.search(r"exposure level for \S+: ([\d.]+)", found.stdout)
    assert match, found.stdout + found.stderr
    assert float(match[1]) <= EXPOSURE_MAX


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists_and_reports_when_it_is_ready(unit: Path) -> None:
    words = command_of(unit)
    assert words[0] == "/opt/penstock/bin/penstock"
    accepts(words[1:])
    text = unit.read_text()
    # The end of a stop, and the longest start: a server that recovers, or hands containers over, is not killed.
    assert "Type=notify\n" in text
    assert "TimeoutStartSec=infinity\n" in text
    stop = int(re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)[0])
    if "segment-store" in unit.name:
        assert stop > longest_stop_s("segment-store")
    else:
        assert stop > longest_stop_s("standalone")


# Compose files.


def services(path: Path) -> dict[str, Any]:
    """Return the services of a compose file, with their anchors resolved."""
    import yaml

    found: dict[str, Any] = yaml.safe_load(path.read_text())["services"]
    return found


@needs("docker-compose")
@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.stem)
def test_a_compose_file_is_accepted_by_docker_compose(path: Path, tmp_path: Path) -> None:
    """It needs no engine for that. The same file with a misspelt key is refused."""
    check = ["docker-compose", "--project-directory", str(tmp_path), "config", "-q"]
    found = subprocess.run(
        [*check[:1], "-f", str(path), *check[1:]], capture_output=True, text=True, timeout=120, check=False
    )
    assert (found.stderr, found.returncode) == ("", 0)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(path.read_text().replace("stop_grace_period", "stop_grace_time"))
    found = subprocess.run(
        [*check[:1], "-f", str(wrong), *check[1:]], capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode != 0
    assert "stop_grace_time" in found.stderr


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.stem)
def test_the_services_of_a_compose_file_run_commands_that_exist(path: Path) -> None:
    """As an account without rights, on a read-only root, with time to stop."""
    own = {name: each for name, each in services(path).items() if "penstock" in each["image"]}
    assert len(own) == {"standalone": 1, "cluster": 6}[path.stem]
    for name, service in own.items():
        words = service["command"]
        if service.get("entrypoint") == ["sh", "-c"]:
            words = shlex.split(words[0].partition("exec penstock ")[2])
        accepts(words)
        assert (service["user"], service["read_only"], service["cap_drop"]) == ("10001:10001", True, ["ALL"]), name
        if words[:2] == ["cluster", "init"]:
            continue
        assert int(service["stop_grace_period"].removesuffix("s")) > longest_stop_s(words[0]), name


def test_the_archive_has_each_file_in_its_place() -> None:
    files = system_files(ROOT, "0.0", 1_700_000_000)
    for place in (
        "lib/systemd/system/penstock.service",
        "lib/systemd/system/penstock-segment-store@.service",
        "lib/sysusers.d/penstock.conf",
        "share/man/man1/penstock.1",
        "share/man/man1/penstock-standalone.1",
        "share/bash-completion/completions/penstock",
        "share/zsh/site-functions/_penstock",
        "share/fish/vendor_completions.d/penstock.fish",
        "share/doc/penstock/compose/cluster.yaml",
        "share/doc/penstock/prometheus/penstock-rules.yml",
    ):
        assert files[place], place
    assert not [name for name in files if name.endswith("-test.yml")]
