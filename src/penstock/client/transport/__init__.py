"""Connections to segment stores, requests and reads over them, and the `Cluster` of a client."""
