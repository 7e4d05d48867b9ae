"""The pod's two pages: GET /progress (JSON for the operator) and GET /metrics (Prometheus), served by a thread."""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, ClassVar, Final

from gputraining_trainer.report import Report

log = logging.getLogger(__name__)

READ_TIMEOUT_SECONDS: Final = 5.0


class ProgressServer:
    """Serves a report until the process ends. Never fails training: without a port it says so and serves nothing."""

    def __init__(self, report: Report, port: int, host: str = "0.0.0.0") -> None:
        self._report = report
        self._server = self._bind(host, port)
        if self._server is not None:
            threading.Thread(target=self._server.serve_forever, name="progress-server", daemon=True).start()

    @property
    def port(self) -> int | None:
        """The port that is really bound; None when nothing is served."""
        return self._server.server_port if self._server else None

    def close(self) -> None:
        """Stop serving and free the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _bind(self, host: str, port: int) -> _Server | None:
        handler = type("Handler", (_Handler,), {"report": self._report})
        try:
            return _Server((host, port), handler)
        except OSError as error:
            log.warning("port %d is not to be had (%s): progress is served on another port", port, error.strerror)
        try:
            server = _Server((host, 0), handler)
        except OSError as error:
            log.warning("no port is to be had (%s): progress is not served", error.strerror)
            return None
        log.warning("progress is served on port %d", server.server_port)
        return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks up the host's own name: that can take seconds where DNS is slow.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the progress server broke off", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    report: ClassVar[Report]
    timeout = READ_TIMEOUT_SECONDS
    server_version = "gputraining"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/progress":
            self._send(200, "application/json", json.dumps(self.report.record(), allow_nan=False).encode())
        elif path == "/metrics":
            # Imported at the first scrape: not everyone scrapes, and everyone wants a fast start.
            from gputraining_trainer.metrics import CONTENT_TYPE, render

            self._send(200, CONTENT_TYPE, render(self.report))
        else:
            self._send(404, "text/plain; charset=utf-8", b"not found: there are /progress and /metrics\n")

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        log.debug(format, *args)
