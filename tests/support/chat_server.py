"""A server that takes OpenAI's chat completions, on a port of this machine: for tests of its clients.

It answers with a function of the request, and first with the faults that a test hands in, one for each request.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: How long a server is silent for a client that waits for it, at most.
MOST_SILENCE_S = 60.0


class Fault(Enum):
    """How one request fails."""

    TOO_MANY = "429, with Retry-After"
    ERROR = "500"
    CUT = "the connection ends in the middle of the answer"
    CUT_WITHOUT_LENGTH = "the answer ends in its middle, and had no Content-Length"
    CHUNKS = "none: the answer comes in chunks"
    CUT_CHUNK = "the connection ends in the middle of a chunk"
    HTML = "a web page, with status 200"
    HTML_ERROR = "a web page, with status 502"
    SILENT = "nothing until the client leaves"
    EMPTY = "no body"
    NO_CHOICES = "an empty list of choices"
    WRONG_JSON = "another JSON value"
    ERROR_IN_REPLY = "an error, with status 200"
    REDIRECT = "302 to another address"
    REDIRECT_POST = "307 to another address"
    MANY_HEADERS = "5,000 headers"
    DEEP = "a list in a list, 200,000 times"
    LARGE_ERROR = "400, with more bytes than the client takes"
    ESCAPES = "400, with codes that clear a terminal"


@dataclass
class ChatServer:
    """The behaviour of the server and its requests.

    Attributes:
        url: its address.
        answer: returns the text of the answer to the body of a request.
        faults: how the next requests fail; those after them succeed.
        key: the key that requests must have; "": any.
        usage: the tokens that it counts; None: it counts none.
        retry_after: seconds or a date, for TOO_MANY.
        elsewhere: where REDIRECT leads.
        bodies, headers: of each request, in their order.
    """

    answer: Callable[[Mapping[str, Any]], str] = lambda body: "answer"
    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    key: str = ""
    usage: Mapping[str, int] | None = field(default_factory=lambda: {"prompt_tokens": 12, "completion_tokens": 34})
    retry_after: str = "7"
    elsewhere: str = ""
    bodies: list[Mapping[str, Any]] = field(default_factory=list)
    headers: list[Message] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def completion(self, body: Mapping[str, Any]) -> bytes:
        """The reply to a request that succeeds."""
        message = {"role": "assistant", "content": self.answer(body)}
        reply: dict[str, Any] = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return json.dumps(reply if self.usage is None else {**reply, "usage": self.usage}).encode()


@contextmanager
def chat_server(server: ChatServer | None = None) -> Iterator[ChatServer]:
    """A server that listens until the block ends."""
    server = server or ChatServer()
    handler = type("Handler", (_Handler,), {"chat": server})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        server.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            http.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    chat: ChatServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.chat.headers.append(self.headers)
        self._send(405, b"")

    def do_POST(self) -> None:
        chat = self.chat
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat.bodies.append(body)
        chat.headers.append(self.headers)
        if not self.path.endswith("/chat/completions"):
            self._send(404, b'{"error": {"message": "no such path"}}')
            return
        if chat.key and self.headers.get("Authorization") != f"Bearer {chat.key}":
            given = str(self.headers.get("Authorization"))
            self._send(401, json.dumps({"error": {"message": f"Incorrect API key provided: {given}"}}).encode())
            return
        reply = chat.completion(body)
        fault = chat.faults.pop(0) if chat.faults else None
        if fault is Fault.SILENT:
            chat.ended.wait(MOST_SILENCE_S)
            return
        whole, half = b"%x\r\n%s\r\n0\r\n\r\n" % (len(reply), reply), reply[: len(reply) // 2]
        in_chunks = {"Content-Length": "", "Transfer-Encoding": "chunked"}
        replies: dict[Fault | None, tuple[int, bytes, dict[str, str]]] = {
            Fault.TOO_MANY: (429, b'{"error": {"message": "slow down"}}', {"Retry-After": chat.retry_after}),
            Fault.ERROR: (500, b"worker died", {}),
            Fault.CUT: (200, half, {"Content-Length": str(len(reply))}),
            Fault.CUT_WITHOUT_LENGTH: (200, half, {"Content-Length": ""}),
            Fault.CHUNKS: (200, whole, in_chunks),
            Fault.CUT_CHUNK: (200, whole[: len(whole) // 2], in_chunks),
            Fault.REDIRECT: (302, b"", {"Location": chat.elsewhere}),
            Fault.REDIRECT_POST: (307, b"", {"Location": chat.elsewhere}),
            Fault.MANY_HEADERS: (200, reply, {f"X-{number}": "x" * 100 for number in range(5_000)}),
            Fault.HTML: (200, b"<!doctype html><html><body>Log in</body></html>", {}),
            Fault.HTML_ERROR: (502, b"<html>bad gateway</html>", {}),
            Fault.EMPTY: (200, b"", {}),
            Fault.NO_CHOICES: (200, b'{"choices": []}', {}),
            Fault.LARGE_ERROR: (400, b"x" * 4_000_000, {}),
            Fault.DEEP: (200, b"[" * 200_000, {}),
            Fault.ESCAPES: (400, b'{"error": {"message": "\x1b[2J\x1b]0;title\x07"}}', {}),
            Fault.WRONG_JSON: (200, b'["no", "completion"]', {}),
            Fault.ERROR_IN_REPLY: (200, b'{"error": {"message": "no such model", "code": 400}}', {}),
        }
        self._send(*replies.get(fault, (200, reply, {})))

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        # The client may have left.
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True
