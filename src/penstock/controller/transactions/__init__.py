"""The life of transactions: create, ping, prepare, commit, abort, expire."""
