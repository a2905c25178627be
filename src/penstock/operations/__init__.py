"""What an operator's tools read from a server process: health and metrics, over HTTP on a port of their own."""
