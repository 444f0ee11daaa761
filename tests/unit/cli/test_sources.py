"""What answers at a URL, and what only seems to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from perkey.cli import sources
from perkey.cli.sources import by_url
from perkey.errors import ConfigError, FatalError

HEADS = {
    "nothing": b"",
    "a head": b"HTTP/1.1 200 OK\r\nX-Long: ",
    "a body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
    "a refusal": b"HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n",
}


@pytest.fixture(params=HEADS)
def dripping(request) -> Iterator[str]:
    """The address of a server that gives so much of an answer, then a byte now and then."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                one, _ = server.accept()
            except OSError:
                return
            with one:
                one.sendall(HEADS[request.param])
                while not over.wait(0.05):
                    try:
                        one.sendall(b" " if request.param != "nothing" else b"")
                    except OSError:
                        break

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        over.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def test_an_answer_that_never_ends_is_one_line(dripping, monkeypatch):
    """A socket's own limit starts anew with each byte; there is one for the whole answer."""
    monkeypatch.setattr(sources, "URL_WHOLE_S", 0.3)
    with pytest.raises(FatalError, match=r"no answer: not whole within 0 s"):
        by_url(dripping, None, {"ask": "snapshot"})


@pytest.mark.parametrize(
    "url", ["http://[", "http://\udcff", "http://127.0.0.1:1/\xe9", "127.0.0.1:1"]
)
def test_what_is_no_url_is_one_line(url):
    """Not a traceback of the library that would open it."""
    with pytest.raises(ConfigError, match="write http://HOST:PORT"):
        by_url(url, None, {"ask": "snapshot"})


@pytest.mark.parametrize("token", ["\u00fc" * 20, "two\nlines"])
def test_what_is_no_token_is_one_line(tmp_path, token):
    """It cannot be a header."""
    (tmp_path / "token").write_text(token)
    with pytest.raises(ConfigError, match="has no token: one line of ASCII"):
        by_url("http://127.0.0.1:1", tmp_path / "token", {"ask": "snapshot"})
