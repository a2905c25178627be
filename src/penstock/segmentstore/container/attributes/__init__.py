"""Attributes of segments."""
