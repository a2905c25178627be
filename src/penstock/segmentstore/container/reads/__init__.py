"""The read path: cache, read index, reader."""
