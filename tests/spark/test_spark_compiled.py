"""`ensure_compiled`: a home of Spark whose archive has compiled modules. The PySpark of most tests is a small one."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.spark import compiled, ensure_compiled
from penstock.spark.compiled import add_compiled

SOURCE = "import sys\nVALUE = 7\nprint(__cached__ if False else __spec__.origin.rpartition('.')[2])\n"


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo after each test what `ensure_compiled` sets, and hide what the fixtures of Spark set."""
    monkeypatch.setenv("SPARK_HOME", "")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PySpark with one module, found as the installed one."""
    package = tmp_path / "site" / "pyspark"
    for name in ("bin", "jars", "python/lib"):
        (package / name).mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "bin" / "spark-submit").touch()
    (package / "jars" / "spark.jar").write_bytes(b"jar")
    write_archive(package, SOURCE)
    monkeypatch.setattr(
        importlib.util, "find_spec",
        lambda name: importlib.util.spec_from_file_location(
            name, package / "__init__.py", submodule_search_locations=[str(package)]
        ),
    )  # fmt: skip
    return package


def write_archive(package: Path, source: str) -> Path:
    path = package / "python" / "lib" / "pyspark.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("small/__init__.py", source)
        archive.writestr("small/broken.py", "def (:\n")
        archive.writestr("small/tests/test_small.py", "VALUE = 1\n")
        archive.writestr("small/data.txt", "data")
    return path


def imported(archive: Path) -> str:
    """Return what a process says that imports the package of an archive."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); import small"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_processes_load_the_compiled_modules_of_the_home(installed: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    home = ensure_compiled(cache)
    assert home is not None
    assert os.environ["SPARK_HOME"] == str(home)
    archive = home / "python" / "lib" / "pyspark.zip"
    assert imported(installed / "python" / "lib" / "pyspark.zip") == "py"
    assert imported(archive) == "pyc"
    with zipfile.ZipFile(archive) as content:
        names = set(content.namelist())
    assert {"small/data.txt", "small/broken.py", "small/tests/test_small.py"} <= names
    assert not names & {"small/broken.pyc", "small/tests/test_small.pyc"}
    assert (home / "jars" / "spark.jar").read_bytes() == b"jar"
    assert (home / "bin" / "spark-submit").exists()
    assert [path.name for path in cache.iterdir()] == [home.name], "nothing else is left"


def test_a_home_is_made_once_for_an_installation(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PySpark that was installed again gets another one, and the earlier one is removed."""
    cache = tmp_path / "cache"
    first = ensure_compiled(cache)
    assert first is not None
    monkeypatch.setenv("SPARK_HOME", "")
    with monkeypatch.context() as later:
        later.setattr(compiled, "add_compiled", lambda archive, target: pytest.fail("made again"))
        assert ensure_compiled(cache) == first
    monkeypatch.setenv("SPARK_HOME", "")
    write_archive(installed, SOURCE + "NEW = 1\n")
    second = ensure_compiled(cache)
    assert second not in (None, first)
    assert [path.name for path in cache.iterdir()] == [second.name if second else ""]


def test_a_home_that_is_given_is_left_alone(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert ensure_compiled(tmp_path / "cache") is None
    assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_reported(
    installed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with caplog.at_level(logging.WARNING, logger=compiled.__name__):
        assert ensure_compiled(blocked) is None
    assert "compile PySpark at each start" in caplog.text
    assert os.environ["SPARK_HOME"] == ""


def test_another_version_of_python_imports_the_sources(installed: Path, tmp_path: Path) -> None:
    archive, other = tmp_path / "own.zip", tmp_path / "other.zip"
    add_compiled(installed / "python" / "lib" / "pyspark.zip", archive)
    with zipfile.ZipFile(archive) as own, zipfile.ZipFile(other, "w") as changed:
        for name in own.namelist():
            content = own.read(name)
            changed.writestr(name, b"\0\0\r\n" + content[4:] if name.endswith(".pyc") else content)
    assert imported(archive) == "pyc"
    assert imported(other) == "py"


@pytest.mark.spark
def test_the_source_process_of_a_query_loads_compiled_modules(spark_environment: None) -> None:
    """The real PySpark: the module that a streaming query starts."""
    pytest.importorskip("pyspark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", "")
        home = ensure_compiled()
    assert home is not None
    archives = sorted(map(str, (home / "python" / "lib").glob("*.zip")))
    script = (
        f"import sys; sys.path[:0] = {archives!r}\n"
        "import pyspark.sql.streaming.python_streaming_source_runner as runner\nprint(runner.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip().endswith("pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.pyc")
