"""Requests to a wopr server, over a connection per thread."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.parse


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code


class Unreachable(Exception):
    """The server did not answer, or cannot answer now. The same request may succeed later."""


class Server:
    def __init__(self, url: str, key: str):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not the address of a server: {url!r}; it begins with http:// or https://")
        self._parts = parts
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._local = threading.local()

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname, self._parts.port, timeout=timeout)

    def post(self, path: str, body: object, timeout: float = 30.0) -> dict:
        """Sends a request over the connection of this thread. It may be sent twice, so it must bear that.

        The timeout is for each time that the server is silent.
        """
        data = json.dumps(body).encode()
        for is_reused in (True, False):
            connection = getattr(self._local, "connection", None) if is_reused else None
            if is_reused and connection is None:
                continue
            if connection is None:
                connection = self._local.connection = self.connect(timeout)
            connection.timeout = timeout
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            try:
                return self.send(connection, path, data)
            except Unreachable:
                connection.close()
                self._local.connection = None
                # The server may have closed a connection that was idle.
                if not is_reused:
                    raise
        raise AssertionError("the second round returns or raises")

    def send(self, connection: http.client.HTTPConnection, path: str, data: bytes) -> dict:
        try:
            try:
                connection.request("POST", self._prefix + path, data, self._headers)
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a large body closes without reading all of it. Its answer may be there.
                if connection.sock is None:
                    raise
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(str(error)) from error
        if answer.status >= 500 or answer.status in (408, 429):
            raise Unreachable(f"the server answered {answer.status}")
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            document = {}
        if answer.status != 200:
            code = document.get("error")
            raise Refused(answer.status, code if isinstance(code, str) else "", str(document.get("message", "")))
        return document


def hang_up(connection: http.client.HTTPConnection) -> None:
    """Ends a request that another thread waits for."""
    try:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
