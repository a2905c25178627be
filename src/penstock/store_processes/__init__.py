"""A server whose segment stores are processes of their own."""
