"""An S3 server that answers each request with 503 SlowDown: ``python refusing_bucket.py ADDRESS PORT``."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_BODY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class _Refusal(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(503)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(_BODY)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(_BODY)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _refuse

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), _Refusal).serve_forever()
