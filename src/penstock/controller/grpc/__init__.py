"""The gRPC service: its calls as a table, and the server that answers them."""
