"""Positions in streams and their properties: starts, times, histories, checks of cuts."""
