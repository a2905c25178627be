"""Jobs over whole streams, one command each, with or without Spark: export, replay, backfill.

Guarantees and their reasons: ``docs/jobs.md``. Streams are read as by the Spark source, which does not need Spark.
"""
