"""The generated pages of the reference agree with the commands and the settings."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from support.generated_reference import DIRECTORY, described_in, pages


@pytest.mark.parametrize("name", ["commands.md", "server-settings.md", "findings.md"])
def test_a_generated_page_is_current(name: str) -> None:
    """Run ``python tests/support/generated_reference.py`` after a change of commands or settings."""
    page = (DIRECTORY / name).read_text(encoding="utf-8")
    assert page == pages()[name].rstrip("\n") + "\n", "run python tests/support/generated_reference.py"


def test_attributes_that_share_an_entry_share_its_text() -> None:
    """Continuation lines belong to the entry; other sections of the docstring do not."""

    @dataclass
    class Example:
        """Be an example.

        Attributes:
            first_s, last_s: how long
                it takes.
            count: how many.

        Raises:
            OSError: never.
        """

    assert described_in(Example) == {
        "first_s": "how long it takes.",
        "last_s": "how long it takes.",
        "count": "how many.",
    }
