"""Values shared by all: names, segments, policies, errors. No I/O; imports nothing of the rest."""
