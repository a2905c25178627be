"""The README's and the guide's Python snippets run against a real server, and what they say of options is true."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.runtime.settings import load_settings
from penstock.server.settings import StandaloneSettings
from support.standalone_process import StandaloneProcess, run_penstock

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
INDEX = ROOT / "docs" / "index.md"
GUIDE = ROOT / "docs" / "getting-started.md"
#: Run where Spark is (`tests/spark/test_spark_docs.py`), and by pytest (`tests/testing/test_pytest_plugin.py`).
RUN_ELSEWHERE = {"spark.md", "spark-job.md", "spark-tuning.md", "testing-applications.md"}
#: Their programs use no server.
NO_SERVER = {"monitoring.md"}
URI = "tcp://localhost:9090"


def snippets(document: Path, language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def programs() -> list[Path]:
    """Return each document with Python in it, but for those that are run elsewhere."""
    documents = [README, *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in documents if path.name not in RUN_ELSEWHERE and snippets(path, "python")]


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """A server for all documents: a reader of one after the other has a single server, too."""
    with StandaloneProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.mark.parametrize("document", programs(), ids=lambda document: document.name)
def test_python_snippets_run(one_server: StandaloneProcess, document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, as one program, beside what the other documents have left.

    Those of Spark need a session: `tests/spark/test_spark_docs.py`.
    """
    found = [text for text in snippets(document, "python") if "spark." not in text]
    if sys.version_info >= (3, 12):
        found = [text for text in found if "pravega_client" not in text]
    program = "\n".join(found)
    assert URI in program or document.name in NO_SERVER
    names: dict[str, object] = {}
    exec(compile(program.replace(URI, one_server.uri), str(document), "exec"), names)
    printed = capsys.readouterr().out
    if document in (README, INDEX):
        assert printed == "b'{\"order\": 1}'\n"
        # The program also works on a store that it has used before.
        exec(compile(program.replace(URI, one_server.uri), str(document), "exec"), {})
        assert capsys.readouterr().out == printed


def test_the_guides_settings_file_and_variable_are_accepted(tmp_path: Path) -> None:
    """And say the same."""
    (text,) = snippets(GUIDE, "toml")
    file = tmp_path / "settings.toml"
    file.write_text(text)
    loaded = load_settings(StandaloneSettings, file=file)
    assert loaded.host == tomllib.loads(text)["host"]
    ((name, value),) = re.findall(r"`(PENSTOCK_\w+)=(\d+)`", GUIDE.read_text())
    by_variable = load_settings(StandaloneSettings, environment={name: value})
    assert by_variable.segment_store.cache == loaded.segment_store.cache


def test_the_guide_of_errors_names_every_error() -> None:
    """All that a program can catch by name, and no other."""
    text = (ROOT / "docs" / "guide" / "errors-and-settings.md").read_text()
    told = set(re.findall(r"`(\w+Error)`", text)) - {"ValueError", "ConnectionError", "KeyError"}
    own = {name for name in penstock.__all__ if name.endswith("Error")}
    assert told == own, "the table of docs/guide/errors-and-settings.md has a row for each"


def test_the_guide_names_every_option() -> None:
    """No option is left out, none is invented."""
    told = set(re.findall(r"`(--[\w-]+)", GUIDE.read_text().partition("SIGTERM")[0]))
    own = set(re.findall(r"--[\w-]+", run_penstock("standalone", "--help", COLUMNS="200").stdout))
    assert told == own - {"--help"}


def test_the_readme_begins_with_the_two_commands() -> None:
    """On its first screen, as a script that is there."""
    first_screen = "\n".join(README.read_text().splitlines()[:30])
    assert "$ ./run quickstart" in first_screen
    assert "$ ./run test" in first_screen
    assert (ROOT / "run").stat().st_mode & 0o111
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
