"""The `penstock` command: help, version, and what it says when it is used wrongly. Most runs are processes."""

from __future__ import annotations

import json
import platform

import pytest

from support.command_line import run_command
from support.standalone_process import child_environment, run_penstock


def test_an_unknown_command_is_refused() -> None:
    """Exit code 2, as for every usage error."""
    unknown = run_penstock("fly")
    assert unknown.returncode == 2
    assert "fly" in unknown.stderr
    assert "Traceback" not in unknown.stderr


def test_version_is_printed_as_text_and_as_json() -> None:
    """Two lines, or JSON."""
    versions = json.loads(run_penstock("version", "--json").stdout)
    assert versions["python"] == platform.python_version()
    assert run_penstock("version").stdout == f"penstock {versions['penstock']}\npython {versions['python']}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--controller-port", "70000"], "controller_port is 70000"),
        (["--controller-port", "6000"], "both 6000"),
        (["--containers", "0"], "container_count is 0"),
        (["--cache-mb", "1"], "at least 16 MiB"),
        (["--config", "/does/not/exist.toml"], "cannot be read"),
        (["--data-dir", ""], "data_dir is empty"),
    ],
)
def test_wrong_settings_are_reported_in_a_line_without_a_traceback(arguments: list[str], told: str) -> None:
    """Exit code 2; the same as JSON. They are found before anything is started: in this process, that is."""
    where = [] if "--data-dir" in arguments else ["--memory"]
    refused = run_command("standalone", *where, *arguments)
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("penstock: ")
    assert told in refused.stderr
    as_json = run_command("standalone", "--json", *where, *arguments)
    assert as_json.code == 2
    assert told in str(as_json.json["message"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--host", "256.1.1.1", "--insecure", "--controller-port", "0", "--segment-store-port", "0"],
            "cannot listen on",
        ),
        (["--host", "0.0.0.0"], "without authentication"),
        (["--data-dir", "/dev/null/x"], "cannot be used as data directory"),
        (["--data-dir", "/tmp/\udcff", "--segment-stores", "2"], "a path that is Unicode"),
    ],
)
def test_settings_that_do_not_work_are_reported_in_a_line_without_a_traceback(arguments: list[str], told: str) -> None:
    """Likewise."""
    where = [] if "--data-dir" in arguments else ["--memory"]
    refused = run_penstock("standalone", *where, *arguments)
    code = 2 if "Unicode" in told or "authentication" in told else 1
    assert refused.returncode == code
    # Lines of the log may come before.
    assert refused.stderr.splitlines()[-1].startswith("penstock: ")
    assert told in refused.stderr
    assert "Traceback" not in refused.stderr
    as_json = run_penstock("standalone", "--json", *where, *arguments)
    assert as_json.returncode == code
    assert told in json.loads(as_json.stdout)["message"]


def test_standalone_is_no_part_of_a_cluster() -> None:
    """Otherwise it would run beside the cluster that its settings name."""
    refused = run_penstock("standalone", "--memory", PENSTOCK_CLUSTER__ZOOKEEPER="zk:2181/penstock")
    assert refused.returncode == 2
    assert "start penstock controller and penstock segment-store" in refused.stderr


def test_a_standalone_keeps_heavy_packages_out() -> None:
    """What only Spark and people's terminals need is not loaded by a server."""
    import subprocess
    import sys

    code = (
        "import sys, penstock.cli.serve;"
        "print([m for m in ('pyspark', 'pyarrow', 'pandas', 'numpy', 'rich.console') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=child_environment()
    )
    assert found.stdout.strip() == "[]"


def test_a_client_command_loads_no_package_that_it_does_not_use() -> None:
    """`stream list` runs until its connection is refused; then the loaded modules are checked."""
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from penstock.cli import main\n"
        "try:\n"
        "    main(['stream', 'list', '--uri', 'no-address:port'])\n"
        "except SystemExit as end:\n"
        "    print('code', end.code)\n"
        "names = ('pyarrow', 'rich', 'numpy', 'pandas', 'pyspark', 'obstore', 'penstock.segmentstore',\n"
        "         'penstock.controller')\n"
        "print('client', 'penstock.client.client' in sys.modules)\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=child_environment(), timeout=60
    )
    code_line, client_line, loaded = found.stdout.splitlines()
    assert code_line != "code 0"
    assert client_line == "client True"
    assert loaded == "[]"


def test_the_help_of_all_commands_has_a_heading_for_each_section() -> None:
    """Each visible command is listed once, below its own section's heading; hidden commands are not listed."""
    from penstock.cli import COMMANDS, SECTIONS

    shown: dict[str, str] = {}
    section = ""
    for line in run_command("--help").ok.lines:
        if line.endswith(":") and not line.startswith(" "):
            section = line[:-1]
        elif section in SECTIONS and line.startswith("  ") and not line.startswith("   "):
            name = line.split()[0]
            assert name not in shown
            shown[name] = section
    assert shown == {name: command.section for name, command in COMMANDS.items() if not command.is_hidden}
    assert set(shown.values()) == set(SECTIONS)
