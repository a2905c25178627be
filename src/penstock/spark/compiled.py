"""PySpark with its compiled modules, for the Python processes that Spark starts.

Spark's processes import PySpark from the archive ``python/lib/pyspark.zip`` of Spark's home, which has sources only.
Python cannot store compiled modules there, so each process compiles them again: 0.7 s of CPU. A streaming query starts
such a process for its source, and another one for its sink. `ensure_compiled` makes a home of Spark whose archive has
the compiled modules, too. All else in it are links to the installed home.
"""

from __future__ import annotations

import importlib.util
import logging
import marshal
import os
import shutil
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from zlib import crc32

from penstock.spark.java import cache_directory

_log = logging.getLogger(__name__)

#: Archives of the home, relative to it.
_ARCHIVES = Path("python") / "lib"
#: Flags of a compiled module (PEP 552): it has the hash of its source, which is not compared.
_UNCHECKED_HASH = (1).to_bytes(4, "little")


def ensure_compiled(home: Path | None = None) -> Path | None:
    """Make Spark's Python processes load compiled modules; return the home of Spark that was made for it.

    Call it before the Spark session is created. Sets ``SPARK_HOME`` of this process. The home is made once for each
    installation of PySpark, in about 3 s, below `home` (default: ``~/.cache/penstock``), and has about 12 MB.

    Returns None, and changes nothing, if ``SPARK_HOME`` is set already, as by ``spark-submit``; also if PySpark is not
    installed with its archives, or the home cannot be written, which is logged. Spark works without it.
    """
    if os.environ.get("SPARK_HOME"):
        return None
    installed = _installed_home()
    if installed is None:
        return None
    try:
        made = _made(installed, home or cache_directory())
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:  # RuntimeError: this user has no home directory.
        _log.warning(
            "Spark's Python processes compile PySpark at each start, because no copy can be written: %s", error
        )
        return None
    os.environ["SPARK_HOME"] = str(made)
    return made


def _installed_home() -> Path | None:
    """Return the home of Spark inside the package `pyspark`, found without importing it; None: there is none."""
    spec = importlib.util.find_spec("pyspark")
    for root in (spec.submodule_search_locations or []) if spec else []:
        home = Path(root)
        if (home / "bin" / "spark-submit").is_file() and (home / "jars").is_dir() and _archives(home):
            return home
    return None


def _archives(home: Path) -> list[Path]:
    return sorted((home / _ARCHIVES).glob("*.zip"))


def _made(installed: Path, directory: Path) -> Path:
    """Return the home of this installation below `directory`, made unless it exists."""
    stats = [archive.stat() for archive in _archives(installed)]
    key = f"{installed} {sys.implementation.cache_tag} {[(each.st_size, each.st_mtime_ns) for each in stats]}"
    environment = f"spark-{crc32(str(installed).encode()):08x}-{sys.implementation.cache_tag}-"
    wanted = directory / f"{environment}{crc32(key.encode()):08x}"
    if wanted.is_dir():
        return wanted
    directory.mkdir(parents=True, exist_ok=True)
    # Renamed once it is whole: another process may be searching for it, or making it.
    new = Path(tempfile.mkdtemp(prefix="new-spark-", dir=directory))
    try:
        _fill(new, installed)
        try:
            new.rename(wanted)
        except OSError:
            if not wanted.is_dir():
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    for earlier in directory.glob(f"{environment}*"):
        # Of archives that this installation no longer has.
        if earlier != wanted:
            shutil.rmtree(earlier, ignore_errors=True)
    return wanted


def _fill(home: Path, installed: Path) -> None:
    """Make `home` from an installed one: links, and its archives with compiled modules."""
    home.chmod(0o755)
    for entry in installed.iterdir():
        if entry.name != _ARCHIVES.parts[0]:
            (home / entry.name).symlink_to(entry)
    (home / _ARCHIVES).mkdir(parents=True)
    for archive in _archives(installed):
        add_compiled(archive, home / _ARCHIVES / archive.name)


def add_compiled(archive: Path, target: Path) -> None:
    """Write an archive of Python sources to `target`, each module beside its compiled form.

    A module that does not compile is copied only: the process that imports it gets the error. Another version of
    Python than this one ignores the compiled forms.
    """
    with (
        zipfile.ZipFile(archive) as sources,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as both,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Of the compiler, about modules that are not this project's.
        for info in sources.infolist():
            source = sources.read(info)
            both.writestr(info.filename, source)
            if not info.filename.endswith(".py") or "/tests/" in info.filename:
                continue
            try:
                code = compile(source, info.filename, "exec", dont_inherit=True)
            except (SyntaxError, ValueError):
                continue
            head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
            both.writestr(f"{info.filename}c", head + marshal.dumps(code))
