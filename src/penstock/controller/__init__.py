"""The control plane: scopes, streams, transactions, and the gRPC service in front of them."""
