"""Every Python snippet of the Spark guide runs, in order, as one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"


def snippets() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_guide_lists_every_option() -> None:
    """A spelling that the code knows and the guide does not is a hole in the guide."""
    from penstock.spark import options

    text = GUIDE.read_text()
    for known in (options._READ, options._WRITE):
        for spellings in known.values():
            for spelling in spellings:
                assert f"`{spelling}`" in text, spelling


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_snippets_of_the_guide_run(spark, store) -> None:
    found = snippets()
    assert len(found) >= 5
    program = "\n".join(found)
    assert program.count('"tcp://localhost:9090"') == 1
    exec(compile(program.replace("tcp://localhost:9090", store.uri), str(GUIDE), "exec"), {})
