"""Every exception of the package survives pickling, so that process pools and Spark report it and do not hang."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import typing

import grpc
import pytest

import penstock
from penstock.model.errors import CorruptionError, PenstockError
from penstock.segmentstore.container.log.salvage_report import SalvageReport

#: Arguments by the name of their annotation's type. Texts and numbers that differ show a swap.
_ARGUMENTS: dict[str, object] = {
    "int": 7,
    "int | None": 7,
    "int | str": 7,
    "float": 1.5,
    "str": "some text",
    "bytes": b"some bytes",
    "bool": True,
    "list[str]": ["a"],
    "Sequence[bytes]": [b"a"],
    "Sequence[StorageProblem]": (),
    "OSError": OSError(28, "No space left on device"),
    "grpc.StatusCode": grpc.StatusCode.UNAVAILABLE,
    "CorruptionError": CorruptionError("chunk", 3, "why"),
    "SalvageReport": SalvageReport(3),
}


def _exceptions() -> list[type[BaseException]]:
    found = []
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if module.name.endswith("__main__"):
            continue
        content = vars(importlib.import_module(module.name))
        found += [
            value
            for value in content.values()
            if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == module.name
        ]
    return found


def _made(kind: type[BaseException]) -> BaseException:
    owner = next(each for each in kind.__mro__ if "__init__" in vars(each))
    if owner.__module__ == "builtins" or not owner.__module__.startswith("penstock"):
        return kind("some text")
    positional, named = [], {}
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.annotation not in _ARGUMENTS:
            hints = typing.get_type_hints(kind.__init__, vars(importlib.import_module(owner.__module__)))
            value = next(iter(hints[parameter.name]))  # The first of an enumeration.
        else:
            value = _ARGUMENTS[parameter.annotation]
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    return kind(*positional, **named)


@pytest.mark.parametrize("kind", _exceptions(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_an_exception_survives_pickling_and_copying(kind: type[BaseException]) -> None:
    error = _made(kind)
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), again.args) == (str(error), error.args)
        assert repr(vars(again)) == repr(vars(error))
        if isinstance(error, OSError):
            assert again.errno == error.errno  # type: ignore[attr-defined]
        if isinstance(error, PenstockError):
            assert again.is_retriable == error.is_retriable  # type: ignore[attr-defined]


def test_the_tree_was_walked() -> None:
    kinds = _exceptions()
    assert len(kinds) > 100
    assert penstock.SegmentTruncatedError in kinds
