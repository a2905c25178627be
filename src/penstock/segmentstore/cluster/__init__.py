"""A segment store as a member of a cluster: it announces itself, and runs the containers that are assigned to it."""
