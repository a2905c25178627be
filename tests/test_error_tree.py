"""All errors of the package are in one tree, each in the module of errors of its layer; public ones are documented."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import penstock
from penstock.model.errors import PenstockError

DOCS = Path(__file__).parents[1] / "docs"

#: Exceptions that are not errors of the package: signals between two functions, which always catch them, and the base
#: that makes errors picklable.
OUTSIDE_THE_TREE = {
    "penstock.cli.failure.Interrupted",
    "penstock.cli.standard_output.OutputError",
    "penstock.controller.watermarks.watermarks._RollUnderWayError",
    "penstock.model.errors.root.PicklableError",
    "penstock.runtime.work._NoThreadError",
    "penstock.runtime.write_ring.WriteNotDoneError",
    "penstock.segmentstore.later_format.LaterFormatError",
    "penstock.segmentstore.tier2.chunk_lookup.ExtentGoneError",
}

#: Errors of the tree that are beside the only code that raises and catches them.
BESIDE_THEIR_CODE = {
    "penstock.segmentstore.container.log.image.ImageTooLongError",
    "penstock.segmentstore.container.log.image.PartialImageError",
    "penstock.segmentstore.container.reads.reader.StorageReadTimeoutError",
    "penstock.segmentstore.container.tables.index.TableBusyError",
    "penstock.segmentstore.tier1.log_batch.NoRoomToGrowError",
}


@cache
def exceptions() -> dict[str, type[BaseException]]:
    """Return every exception class that a module of the package defines, by its full name."""
    found = {}
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == module.name:
                found[f"{module.name}.{value.__qualname__}"] = value
    return found


def outside_the_tree(classes: Iterable[tuple[str, type[BaseException]]]) -> set[str]:
    return {name for name, kind in classes if not issubclass(kind, PenstockError)}


def outside_modules_of_errors(classes: Iterable[tuple[str, type[BaseException]]]) -> set[str]:
    """Return the errors of the tree that are neither in `errors` directly under a layer nor in a module of it."""
    return {name for name, kind in classes if issubclass(kind, PenstockError) and name.split(".")[2] != "errors"}


def test_every_exception_is_in_the_tree() -> None:
    assert len(exceptions()) > 150
    assert outside_the_tree(exceptions().items()) == OUTSIDE_THE_TREE


def test_a_layer_has_one_module_of_errors() -> None:
    assert outside_modules_of_errors(exceptions().items()) == BESIDE_THEIR_CODE


def test_no_two_errors_have_one_name() -> None:
    names = [kind.__name__ for kind in exceptions().values()]
    assert sorted(names) == sorted(set(names))


def test_errors_that_public_docstrings_name_are_exported() -> None:
    """A program can catch by name what a public class or function says that it raises."""
    exported = {name for name in penstock.__all__ if name.endswith("Error")}
    named: dict[str, str] = {}
    for name in penstock.__all__:
        public = getattr(penstock, name)
        texts = [inspect.getdoc(public) or ""]
        if inspect.isclass(public):
            texts += [inspect.getdoc(each) or "" for key, each in vars(public).items() if not key.startswith("_")]
        named |= {error: name for text in texts for error in re.findall(r"`(\w+Error)`", text)}
    own = {kind.__name__ for kind in exceptions().values()}
    assert len(named.keys() & own) > 20
    assert {error: name for error, name in named.items() if error in own - exported} == {}


def test_errors_that_programs_and_operators_meet_are_documented() -> None:
    """Those exported by the package, of jobs, and of Spark."""
    pages = " ".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    documented = set(re.findall(r"\w+Error\b", pages))
    met = {kind.__name__ for name, kind in exceptions().items() if name.split(".")[1] in ("jobs", "spark")}
    met |= {name for name in penstock.__all__ if name.endswith("Error")}
    assert met - documented == set()


def test_each_rule_finds_a_violation() -> None:
    """A rule that finds nothing would pass on anything."""
    assert outside_the_tree([("penstock.a.errors.A", ValueError)]) == {"penstock.a.errors.A"}
    found = [("penstock.a.b.A", PenstockError), ("penstock.a.errors.A", PenstockError)]
    assert outside_modules_of_errors(found) == {"penstock.a.b.A"}
