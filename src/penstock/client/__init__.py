"""The Python client: writers, readers, reader groups, byte streams, transactions, over wire protocol and gRPC."""
