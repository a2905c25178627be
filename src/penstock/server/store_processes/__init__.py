"""A server whose segment stores run in separate processes."""
