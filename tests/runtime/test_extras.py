"""What an error says about an optional part that is not installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from penstock.runtime import extras

REQUIRES = [
    "rich>=13", 'pyarrow>=18; extra == "arrow"', "numpy>=2.0 ; extra == 'arrow'", 'penstock[arrow]; extra == "all"',
    'fastavro>=1.9; extra == "all"',
]  # fmt: skip


def test_the_error_names_the_missing_package_and_a_command_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "requires", lambda name: REQUIRES)
    error = ImportError("No module named 'numpy.core'", name="numpy.core")
    assert extras.missing_extra("an export", "arrow", error) == (
        "an export needs numpy, which is not installed: pip install 'pyarrow>=18' 'numpy>=2.0' "
        "(the extra 'arrow' of Penstock)"
    )
    assert extras.packages_of("all") == ["pyarrow>=18", "numpy>=2.0", "fastavro>=1.9"]


def test_without_a_package_of_penstock_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", absent)
    text = extras.missing_extra("x", "s3", ImportError("broken"))
    assert text == "x needs a package that cannot be imported (broken): (the extra 's3' of Penstock)"
