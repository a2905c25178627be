"""The blocking client is what the generator makes of the async one, and has all of it."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

import pytest

import penstock.client.sync
from penstock import aio
from penstock.client import sync
from penstock_tools.generate_sync import GeneratorError, Source, generate, generate_class
from penstock_tools.sync_classes import Blocking

SYNC = Path(penstock.client.sync.__file__).parent

#: In `penstock.aio`, and not a thing that blocks: values, and what `await` opens.
NO_TWIN = {"Event", "EventBatch", "Opening", "ValueBatch", "ValueEvent", "connect"}
#: Written as files of Python's `io`, which flush and close in their own way.
FILES = {"ByteReader", "ByteWriter"}


def test_committed_modules_equal_the_generated_ones() -> None:
    """A change of an async class requires a run of the generator; its output may not be edited."""
    made = generate()
    for name, text in made.items():
        assert (SYNC / name).read_text() == text, f"{name}: run python -m penstock_tools.generate_sync"
    found = {path.name for path in SYNC.glob("*.py") if "Generated from" in path.read_text()}
    assert found == made.keys()


def test_each_class_of_the_async_client_has_a_blocking_twin() -> None:
    """By the same name."""
    assert set(aio.__all__) - NO_TWIN == set(sync.__all__)


#: Members for other packages of Penstock.
INTERNAL = {"note_exception", "open_life", "parts"}


def public(kind: type) -> dict[str, object]:
    members = inspect.getmembers(kind)
    return {name: value for name, value in members if not name.startswith("_") and name not in INTERNAL}


@pytest.mark.parametrize("name", sorted(set(aio.__all__) - NO_TWIN))
def test_a_blocking_class_has_all_members_of_the_async_one(name: str) -> None:
    """Each public member, with the same parameters: what is for the client's own parts alone is not public."""
    omitted = {"abandon", "is_open", "is_closed", "current_end"} if name in FILES else set()
    ours, theirs = public(getattr(sync, name)), public(getattr(aio, name))
    assert theirs.keys() - omitted <= ours.keys()
    if name in FILES:
        return
    for member in theirs.keys() & ours.keys() - omitted:
        if not callable(theirs[member]):
            continue
        wanted = inspect.signature(typing.cast(typing.Any, theirs[member])).parameters
        found = inspect.signature(typing.cast(typing.Any, ours[member])).parameters
        assert found == wanted, f"{name}.{member}"


@pytest.mark.parametrize("name", sorted(set(sync.__all__)))
def test_docstrings_of_blocking_classes_do_not_mention_await(name: str) -> None:
    """Every public member has one, and none of them says `await`."""
    kind = getattr(sync, name)
    own = {member for base in kind.__mro__ if base.__module__.startswith("penstock") for member in vars(base)}
    for member, value in [("", kind), *public(kind).items()]:
        if member and member not in own:
            continue
        assert value.__doc__, f"{name}.{member}"
        assert not re.search(r"await|async |event loop", value.__doc__), f"{name}.{member}"


SOURCE = '''
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from penstock.client.common.opening import Opening
from penstock.client.groups.reader import Reader
from penstock.model.stream_cuts import StreamCut


class Thing:
    """A thing, as an async context manager."""

    #: What it is called.
    name: Final[str]
    #: Whether it is fast.
    is_fast: bool

    async def find(self, cut: StreamCut, *, depth: int = 3) -> StreamCut:
        """Find."""

    def names(self) -> AsyncIterator[str]:
        """Name."""

    def reader(self, name: str) -> Opening[Reader]:
        """Open. By `await` or `async with`."""

    def turn(self, *ways: str) -> None:
        """Turn."""

    def _hidden(self) -> None: ...
'''


def made_of(text: str, **options: object) -> str:
    """Return what the generator makes of a module with one class, `Thing`."""
    spec = Blocking("thing", "Thing", **typing.cast(typing.Any, options))
    return generate_class(spec, Source("thing", text), {"Reader": "penstock.client.sync.reader"})


def test_each_kind_of_member_becomes_its_blocking_form() -> None:
    """A coroutine, an iterator, an opening, a plain function, attributes; types are imported from where they come."""
    text = made_of(SOURCE)
    compile(text, "thing.py", "exec")
    assert '"""A thing, as a context manager."""' in text
    assert "from penstock.client.sync.reader import Reader\n" in text
    assert "from penstock.model.stream_cuts import StreamCut\n" in text
    assert "def find(self, cut: StreamCut, *, depth: int = 3) -> StreamCut:" in text
    assert "return self._portal.call(self._part.find(cut, depth=depth))" in text
    assert "def names(self) -> Iterator[str]:" in text
    assert "return self._portal.iterate(self._part.names())" in text
    assert "def reader(self, name: str) -> Reader:" in text
    assert '"""Open. Use it as a context manager."""' in text
    assert "opened = self._opened(lambda: self._part.reader(name))" in text
    assert "return Reader(self, self._portal, opened)" in text
    assert "self._portal.call_soon(lambda: self._part.turn(*ways))" in text
    assert "def name(self) -> str:" in text
    assert "name.setter" not in text
    assert "@is_fast.setter" in text
    assert "_hidden" not in text


def test_bodies_come_from_the_table() -> None:
    """The signature and the docstring stay those of the async method."""
    text = made_of(SOURCE, bodies={"find": "return cut\n"})
    assert "def find(self, cut: StreamCut, *, depth: int = 3) -> StreamCut:" in text
    assert "        return cut\n" in text


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        ('async def f(self) -> list[Reader]:\n        """F."""', r"Thing.f returns list\[Reader\]"),
        ('async def f(self) -> Reader:\n        """F."""', r"Thing.f returns Reader"),
        ('async def f(self) -> None:\n        """Await it."""', None),
        ('async def f(self) -> None:\n        """F, with await."""', "see _WORDS: "),
        ("async def f(self) -> None:\n        pass", "f has no docstring"),
        ('async def f(self, a: Unknown) -> None:\n        """F."""', "'Unknown' comes from"),
        ('async def f(self, a) -> None:\n        """F."""', "an annotation is missing"),
        ('@staticmethod\n    def f() -> None:\n        """F."""', "decorated by staticmethod"),
        ("f: int", "no '#:' comment"),
    ],
)
def test_a_member_without_blocking_form_is_refused(method: str, complaint: str | None) -> None:
    """A method that would be wrong, untyped or without words for its caller is not generated silently."""
    text = f'from penstock.client.groups.reader import Reader\n\nclass Thing:\n    """A thing."""\n\n    {method}\n'
    if complaint is None:
        made_of(text)
        return
    with pytest.raises(GeneratorError, match=complaint):
        made_of(text)


def test_generated_modules_stay_small() -> None:
    """Rooms, not halls: as everywhere."""
    assert all(text.count("\n") < 600 for text in generate().values())
