"""The web server: a REST interface to any cluster. It is a client; it has no rights of its own."""
