"""A long run of a whole cluster under mixed load and faults: promises are checked all the time, resources measured.

``./run soak --hours 2``. See docs/soak.md.
"""
