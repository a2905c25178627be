"""Planted bugs that the simulation must find."""
