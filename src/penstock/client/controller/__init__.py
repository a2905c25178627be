"""Calls of the controller, and the values they return."""
