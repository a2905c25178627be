"""Segment containers: operation pipeline, metadata, recovery, read index, cache, tables, storage writer."""
