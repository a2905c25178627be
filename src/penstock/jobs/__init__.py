"""Jobs over whole streams that are one command each, with or without Spark: export, replay, backfill.

What they promise, and why it holds: ``docs/jobs.md``. Reading is that of the Spark source, which needs no Spark.
"""
