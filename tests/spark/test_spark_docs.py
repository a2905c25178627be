"""Every Python snippet of the Spark guides runs, in order, as one program, and after those that one reads before."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.server.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "spark.md"
FURTHER = [ROOT / "docs" / "guide" / name for name in ("spark-job.md", "spark-tuning.md")]
URI = "tcp://localhost:9090"


def snippets(document: Path) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    # Made for Python 3.11 and older.
    return [text for text in found if sys.version_info < (3, 12) or "pravega_client" not in text]


def test_the_guide_lists_every_option() -> None:
    """A spelling that the code knows and the guide does not is a hole in the guide."""
    from penstock.spark import options

    text = GUIDE.read_text()
    for known in (options._READ, options._WRITE):
        for spellings in known.values():
            for spelling in spellings:
                assert f"`{spelling}`" in text, spelling


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_readme_getting_started_and_the_spark_guides_work_one_after_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each as one program, against one server, in the order of reading; the README's part on Spark, too."""
    assert len(snippets(GUIDE)) >= 5
    # The session is shared: what other tests have left is theirs.
    others = {query.id for query in spark.streams.active}
    with StandaloneProcess(tmp_path) as server:
        first = (ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "getting-started.md")
        for document in (*first, GUIDE, *FURTHER):
            program = "\n".join(snippets(document))
            assert URI in program
            try:
                exec(compile(program.replace(URI, server.uri), str(document), "exec"), {"spark": spark})
                if document.name == "README.md":
                    (query,) = (query for query in spark.streams.active if query.id not in others)
                    query.processAllAvailable()
            finally:
                for query in spark.streams.active:
                    if query.id not in others:
                        query.stop()
