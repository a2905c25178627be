"""Scaling of streams: planning, and automatic scaling by load."""
