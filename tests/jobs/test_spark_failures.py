"""The report of a failure in Spark: one line, and not the page with Java's and Python's stacks."""

from __future__ import annotations

import pytest

from penstock.jobs.spark_writer import told_by

KILLED = """An error occurred while calling o77.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed 1 times, \
most recent failure: Lost task 1.0 in stage 3.0 (TID 9) (host executor driver): \
org.apache.spark.SparkException: Python worker exited unexpectedly
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:624)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
"""
RAISED = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 3, in run
    raise NoSuchStreamError(name)
penstock.model.errors.streams.NoSuchStreamError: stream a/b does not exist
\tat org.apache.spark.SomeError: not this one
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RAISED, "penstock.model.errors.streams.NoSuchStreamError: stream a/b does not exist"),
        (
            KILLED,
            "Lost task 1.0 in stage 3.0 (TID 9) (host executor driver): "
            "org.apache.spark.SparkException: Python worker exited unexpectedly",
        ),
        ("\n: java.lang.IllegalStateException: stopped\n\tat a.b.C", ": java.lang.IllegalStateException: stopped"),
        ("nothing of all that\nand more", "nothing of all that"),
        ("", "RuntimeError"),
        ("SomeError: " + 2000 * "x", "SomeError: " + 489 * "x" + "..."),
    ],
)
def test_one_line_of_a_failure_is_reported(text: str, told: str) -> None:
    assert told_by(RuntimeError(text)) == told
