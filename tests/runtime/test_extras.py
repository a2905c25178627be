"""What an error says about an optional part that is not installed."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from penstock.runtime import extras

REQUIRES = [
    "rich>=13", 'pyarrow>=18; extra == "arrow"', "numpy>=2.0 ; extra == 'arrow'", 'penstock[arrow]; extra == "all"',
    'fastavro>=1.9; extra == "all"',
]  # fmt: skip


def test_the_error_names_the_missing_package_and_a_command_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: REQUIRES)
    error = ImportError("No module named 'numpy.core'", name="numpy.core")
    assert extras.missing_extra("an export", "arrow", error) == (
        "an export needs numpy, which is not installed: pip install 'pyarrow>=18' 'numpy>=2.0' "
        "(the extra 'arrow' of Penstock)"
    )
    assert extras.packages_of("all") == ["pyarrow>=18", "numpy>=2.0", "fastavro>=1.9"]


@pytest.fixture
def no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", absent)


@pytest.mark.usefixtures("no_metadata")
def test_without_package_metadata_the_error_still_names_the_packages() -> None:
    text = extras.missing_extra("x", "s3", ImportError("broken"))
    assert text == (
        "x needs a package that cannot be imported (broken): pip install 'obstore>=0.12' (the extra 's3' of Penstock)"
    )


@pytest.mark.usefixtures("no_metadata")
def test_without_package_metadata_the_requirements_are_those_of_the_project_file() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared: dict[str, list[str]] = project["optional-dependencies"]
    for extra in sorted(set(declared) - {"all", "parts", "test", "dev", "docs", "release"}):
        wanted = set()
        for requirement in declared[extra]:
            own = requirement.removeprefix("penstock[").removesuffix("]") if "penstock[" in requirement else None
            wanted.update([requirement] if own is None else declared[own])
        assert set(extras.packages_of(extra)) == wanted, extra


def test_an_extra_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="no extra 'parquet'"):
        extras.packages_of("parquet")
