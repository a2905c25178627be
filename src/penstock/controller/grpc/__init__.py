"""The gRPC service: the table of its calls, and the server."""
