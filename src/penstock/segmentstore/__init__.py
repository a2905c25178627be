"""The data plane: segment containers, the durable log, long-term storage and the wire protocol's server."""
