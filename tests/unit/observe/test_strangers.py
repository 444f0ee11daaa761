"""Who asks the wrong one hears so in one line: no run of Perkey, nobody at all, no folder."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from perkey.cli import main
from perkey.observe import local

HOSTILE = b"<h1>\x1b[2J</h1>\nsecond line"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Nobody else's runs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def stranger(path, answer):
    """Somebody who answers this on a unix socket, whatever is asked; None: nothing at all."""
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.05)

        def serve():
            lines = []
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    lines.append(listener.accept()[0])
                    if answer is not None:
                        with contextlib.suppress(OSError):
                            lines[-1].recv(1000)
                            lines[-1].sendall(answer)
                        lines.pop().close()
            for line in lines:
                line.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        over.set()
        thread.join()


@contextlib.contextmanager
def web(status, body):
    """A web server that answers so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def said(capsys, *arguments):
    """The exit code and the one line."""
    capsys.readouterr()
    code = main.run(arguments)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("perkey: ")
    assert told.err.count("\n") == 1
    assert "\x1b" not in told.err
    return code, told.err


@pytest.mark.parametrize("command", ["status", "why"])
@pytest.mark.parametrize(
    "answer",
    [b"", b"\n", HOSTILE, b"[]\n", b"7\n", b"{}\n", json.dumps({"state": "running"}).encode()],
)
def test_a_socket_of_another_user(capsys, tmp_path, command, answer):
    """What answers there is no run of Perkey."""
    with stranger(local.folder() / "7-0.sock", answer):
        code, line = said(capsys, command)
    assert code == 1
    assert "7-0.sock: the server there is not a Perkey run" in line or "no answer: " in line


def test_a_socket_where_no_one_answers(capsys, monkeypatch):
    """A process that hangs: how long was waited."""
    monkeypatch.setattr(local, "ANSWER_S", 0.2)
    with stranger(local.folder() / "0-0.sock", None):
        code, line = said(capsys, "status")
    assert (code, line) == (1, "perkey: 0-0.sock: no answer within 0.2 s\n")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows it")
def test_a_process_whose_python_code_does_not_run_is_named(capsys, monkeypatch):
    """C code that keeps the interpreter's lock: no thread of the run can answer, or say so."""
    monkeypatch.setattr(local, "ANSWER_S", 0.2)
    with stranger(local.folder() / f"{os.getpid()}-0.sock", None):
        code, line = said(capsys, "why")
    assert code == 1
    assert "its process runs, but its Python code does not: C code of a handler may hold" in line
    assert f"py-spy dump --pid {os.getpid()} shows where" in line


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows it")
def test_a_suspended_process_is_named(capsys, monkeypatch):
    """The driver of a fleet answers for all members: what is wrong, and the command that ends it."""
    monkeypatch.setattr(local, "ANSWER_S", 0.2)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        with stranger(local.folder() / f"{child.pid}-0.sock", None):
            code, line = said(capsys, "why")
    finally:
        child.kill()
        child.wait()
    told = f"its process is suspended; resume it with kill -CONT {child.pid}\n"
    assert (code, line) == (1, f"perkey: {child.pid}-0.sock: no answer within 0.2 s: {told}")


def test_a_runtime_folder_that_is_not_there(capsys, monkeypatch):
    """The variable is named."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere/at/all")
    code, line = said(capsys, "status")
    assert code == 2
    assert "No such file or directory: set XDG_RUNTIME_DIR" in line


@pytest.mark.parametrize("command", ["status", "why", "top"])
@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, HOSTILE, "the server there is not a Perkey run"),
        (200, b"{}", "the server there is not a Perkey run"),
        (200, b"null", "the server there is not a Perkey run"),
        (404, HOSTILE, "HTTP 404: the server there is not a Perkey run"),
        (500, b"", "HTTP 500: the server there is not a Perkey run"),
        (401, b"a token is needed: Authorization: Bearer TOKEN\n", "a token is needed"),
    ],
)
def test_a_web_server_of_another_user(capsys, command, status, body, told):
    """Nothing of what it says is printed, but for Perkey's own words."""
    with web(status, body) as url:
        code, line = said(capsys, command, "--url", url)
    assert code in (1, 2)
    assert told in line


def test_a_url_where_no_one_listens(capsys):
    """The address and the reason."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{one.getsockname()[1]}"
    code, line = said(capsys, "status", "--url", url)
    assert code == 1
    assert f"{url}: no answer: " in line
