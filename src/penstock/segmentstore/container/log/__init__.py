"""The log side: operations, frames, pipeline, checkpoints, recovery."""
