"""The site's reference has everything that programs may name, and its check finds what a reader would miss.

The site itself is built by ``./run docs``, which CI runs: what that needs is not needed to run the tests.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from support.site_check import complaints
from support.site_menu import completed, named_in

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"


def shown() -> set[str]:
    """Return the dotted names that pages of the reference show."""
    pages = sorted(REFERENCE.glob("*.md"))
    return {name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)}


@pytest.mark.parametrize(
    "module", ["penstock", "penstock.aio", "penstock.serializers", "penstock.spark", "penstock.testing"]
)
def test_the_reference_shows_every_public_name(module: str) -> None:
    """Of the modules that programs import. Values that the async client shares are with the blocking one."""
    names = set(importlib.import_module(module).__all__) - {"aio", "serializers"}
    elsewhere = {name.rpartition(".")[2] for name in shown() if name.rpartition(".")[0] == "penstock"}
    own = {name.rpartition(".")[2] for name in shown() if name.rpartition(".")[0] == module}
    types = {"JsonValue"}
    shared = {"Event", "EventBatch", "ValueBatch", "ValueEvent"} & elsewhere if module == "penstock.aio" else set()
    missing = names - own - shared - types
    assert not missing, f"give each of {sorted(missing)} a line '::: {module}.NAME' in a page of docs/reference"
    assert own <= names


def test_the_reference_shows_only_existing_names() -> None:
    """Each name leads to a module, or to something in one."""
    for name in shown():
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('<script src="https://cdn.example.org/x.js"></script>', "loads https://cdn.example.org/x.js from elsewhere"),
        ('<link href="//fonts.example.org/a.css">', "loads //fonts.example.org/a.css from elsewhere"),
        ('<img src="picture.png">', "loads picture.png, which is not there"),
        ('<a href="guide/none.html">', "leads to guide/none.html, which is not there"),
        ('<a href="other.html#nowhere">', "leads to other.html#nowhere, and that page has no such place"),
        ('<a href="other.html#here"></a><a href="https://example.org">', None),
        ('<a href="#up" id="up"></a><img src="data:image/png;base64,AAAA">', None),
    ],
)
def test_check_of_the_site_finds_what_a_reader_would_miss(tmp_path: Path, body: str, complaint: str | None) -> None:
    """What is loaded from elsewhere, and what leads to nothing; not links to other sites, which a reader may follow."""
    (tmp_path / "index.html").write_text(body)
    (tmp_path / "other.html").write_text('<p id="here">')
    found = list(complaints(tmp_path))
    assert found == ([] if complaint is None else [f"index.html: {complaint}"])


def test_check_of_the_site_misses_a_site_without_pages(tmp_path: Path) -> None:
    """An empty directory is no site."""
    assert len(list(complaints(tmp_path))) == 1


def test_a_page_missing_from_the_menu_is_listed_at_its_end() -> None:
    """Each page is there once, where it was put or among the design notes."""
    menu = [{"Start": ["index.md", {"Spark": "spark.md"}]}, {"Design notes": ["a.md", {"More": ["b.md"]}]}]
    found = completed(menu, ["index.md", "spark.md", "a.md", "b.md", "new.md", "guide/new.md"])  # type: ignore[arg-type]
    assert found == [menu[0], {"Design notes": ["a.md", {"More": ["b.md"]}, "guide/new.md", "new.md"]}]
    assert sorted(named_in(found)) == sorted(["index.md", "spark.md", "a.md", "b.md", "new.md", "guide/new.md"])
    assert completed(menu, ["index.md"]) == menu  # type: ignore[arg-type]


def test_names_that_share_a_sentence_get_an_entry_each() -> None:
    """In the sections of a docstring, with all lines of the sentence; nowhere else."""
    several_names = pytest.importorskip("support.several_names", reason="needs griffe: pip install 'penstock[docs]'")
    text = """\
Do something. Of a, b: nothing.

    x, y: an example

Args:
    a, b: what both
        are.
    c: alone.

Raises:
    OneError, OtherError: for two reasons.

Then a, b: no more."""
    assert (
        several_names.with_one_name_each(text)
        == """\
Do something. Of a, b: nothing.

    x, y: an example

Args:
    a: what both
        are.
    b: what both
        are.
    c: alone.

Raises:
    OneError: for two reasons.
    OtherError: for two reasons.

Then a, b: no more."""
    )


def test_the_commands_of_the_performance_page_exist() -> None:
    """Each row names a program of ``bench/`` and options that it, or what all of them share, defines."""
    text = (ROOT / "docs" / "performance.md").read_text()
    commands = re.findall(r"`(\w+\.py)([^`]*)`", text)
    assert len(commands) > 20
    shared = "".join(path.read_text() for path in sorted((ROOT / "bench").glob("_*.py")))
    for name, arguments in commands:
        defined = (ROOT / "bench" / name).read_text() + shared
        for option in re.findall(r"--[a-z0-9-]+", arguments):
            assert f'"{option}"' in defined, f"{name} {option}"
