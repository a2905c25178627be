"""``./run pythons``: the tests that need no server, and one real server, on every supported Python of this machine."""
