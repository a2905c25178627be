"""Start, load, kill and pause real server processes."""
