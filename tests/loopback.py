"""Provides a server on the loopback interface, for as long as a `with` block."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LoopbackServer:
    """Serves requests in a thread; `url` is its address.

    Attributes:
        handler: the class that answers; its instances find this server as `hub`.
    """

    handler: type[BaseHTTPRequestHandler]

    def __enter__(self) -> LoopbackServer:
        bound = type("BoundHandler", (self.handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()
