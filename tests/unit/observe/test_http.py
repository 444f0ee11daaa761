"""What is served over HTTP, to whom, and what is refused."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import time
import urllib.error
import urllib.request

import pytest
from tests.unit.observe.test_local import Source

import perkey
from perkey.cli.sources import by_url
from perkey.errors import ConfigError
from perkey.observe import serving
from perkey.observe.http import TOKEN_CHARS_MIN, Guard, app_of, serve, token_of
from perkey.observe.serving import CONNECTIONS_MAX, Serving, listening

TOKEN = "t" * TOKEN_CHARS_MIN
GUARD = Guard("127.0.0.1", None)


def get(port, path, **headers):
    """Status, body and headers."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=names)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


class Ill(Source):
    """A run that is not well."""

    def live(self):
        return False, "the polling thread has not run for 12 s"

    def ready(self):
        return False, "stopping"


@pytest.fixture
def start():
    """Serve a source; the port."""
    servers = []

    def open_one(source=None, guard=GUARD):
        server = Serving(app_of(source or Source(), guard), listening("http", "127.0.0.1", 0))
        servers.append(server)
        return server.port

    yield open_one
    for server in servers:
        server.close()


def test_probes_report_why(start):
    """200 with ok; 503 with the reason in the body."""
    well, ill = start(), start(Ill())
    assert get(well, "/livez")[:2] == (200, "ok\n")
    assert get(well, "/readyz")[:2] == (200, "ok\n")
    assert get(ill, "/livez")[:2] == (503, "the polling thread has not run for 12 s\n")
    assert get(ill, "/readyz")[:2] == (503, "stopping\n")


def test_snapshot_and_why(start):
    """The same JSON as everywhere."""
    port = start()
    assert json.loads(get(port, "/snapshot")[1]) == Source().snapshot()
    told = json.loads(get(port, "/why?where=t:0:7")[1])
    assert told["found"][0]["offset"] == 7
    status, body, _ = get(port, "/why?where=t:x")
    assert status == 400
    assert "write TOPIC" in json.loads(body)["error"]


def test_a_key_that_is_not_utf8(start):
    """In the question of `perkey why --key`, and in the answer of `perkey control log`."""
    asked = []

    class Binary(Source):
        def find_key(self, key, topic):
            asked.append(key)
            return super().find_key(key, topic)

        def commands(self):
            return [{"member": "m", "in_force": [{"key": "\udcff"}], "log": []}]

    address = f"http://127.0.0.1:{start(Binary())}"
    by_url(address, None, {"ask": "why", "key": "k\udcff\xe9"})
    assert asked == [b"k\xff\xc3\xa9"]
    (row,) = by_url(address, None, {"ask": "commands"})["members"]
    assert row["in_force"] == [{"key": "\udcff"}]


def test_only_reading(start):
    """Nothing can be posted, put or deleted."""
    port = start()
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/snapshot", method=method)
        with pytest.raises(urllib.error.HTTPError, match="405") as refused:
            urllib.request.urlopen(request, timeout=20)
        refused.value.close()
    assert get(port, "/secrets")[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "["])
def test_another_hosts_name_is_refused(start, host):
    """A page whose name was pointed here reads nothing."""
    assert get(start(), "/snapshot", Host=host)[0] in (400, 403)


def test_another_origin_is_refused(start):
    """Of a page somewhere else; our own page may ask."""
    port = start()
    assert get(port, "/snapshot", Origin="http://evil.example")[0] == 403
    assert get(port, "/snapshot", Origin=f"http://127.0.0.1:{port}")[0] == 200
    assert get(port, "/snapshot", Host=f"localhost:{port}")[0] == 200


def test_a_token_opens_everything_but_the_probes_need_none(start):
    """As Bearer, or as a browser's password; a wrong one is refused without a hint."""
    port = start(guard=Guard("0.0.0.0", TOKEN))
    assert get(port, "/livez", Host="10.0.0.7:8080")[0] == 200
    status, _, headers = get(port, "/snapshot")
    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="perkey"')
    wrong = ("Bearer no", "Bearer ", "Basic !", f"Token {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü")
    for given in wrong:
        assert get(port, "/metrics", Authorization=given.encode().decode("latin-1"))[0] == 401
    password = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    for given in (f"Bearer {TOKEN}", f"Basic {password}"):
        assert get(port, "/snapshot", Authorization=given)[0] == 200


def test_open_to_others_needs_a_token():
    """Refused where the app is made, naming both ways out."""
    kafka = {"bootstrap.servers": "localhost:9092"}
    with pytest.raises(ConfigError, match="give http_token_file"):
        perkey.App(group="g", kafka=kafka, http="0.0.0.0:8080")
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        perkey.App(group="g", kafka=kafka, http="8080")
    with pytest.raises(ConfigError, match="give both"):
        perkey.App(group="g", kafka=kafka, http_token_file="x")
    perkey.App(group="g", kafka=kafka, http="127.0.0.1:0")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"t" * (TOKEN_CHARS_MIN - 1), "16 to 4096"),
        (b"t" * 4097, "16 to 4096"),
        ("ü".encode() * 20, "ASCII"),
        (b"\xff" * 20, "cannot be read"),
    ],
)
def test_tokens_that_cannot_serve(tmp_path, content, said):
    """Too short, too long, not text: one line, without the token."""
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        token_of(str(file))


def test_tokens_at_their_limits(tmp_path):
    """The shortest and the longest serve; a line end is no part of it."""
    for length in (TOKEN_CHARS_MIN, 4096):
        file = tmp_path / "token"
        file.write_bytes(b"t" * length + (b"\n" if length < 4096 else b""))
        assert token_of(file) == "t" * length
    with pytest.raises(ConfigError, match="cannot be read"):
        token_of(tmp_path / "nothing")


def test_metrics_are_served(start):
    """As text that Prometheus reads."""
    port = start(Shot())
    status, text, headers = get(port, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert 'perkey_state{group="g",state="running"} 1.0' in text


class Shot(Source):
    """A source with handlers."""

    def snapshot(self):
        return {
            "state": "running", "at": 1.0, "app": {"group": "g", "member": "m"}, "partitions": [],
            "handlers": {}, "blockers": [], "halts": [], "counts": {},
        }  # fmt: skip

    measures = snapshot


def test_serving_on_a_port_of_ones_own(tmp_path):
    """Port 0 is any; a token file that is missing is one line."""
    server = serve(Shot(), "127.0.0.1:0", None)
    try:
        assert get(server.port, "/livez")[0] == 200
    finally:
        server.close()
    with pytest.raises(ConfigError, match="cannot be read"):
        serve(Shot(), "127.0.0.1:0", str(tmp_path / "none"))


HALF = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@contextlib.contextmanager
def half_open(port, count):
    """So many connections with half a request each."""
    with contextlib.ExitStack() as stack:
        lines = []
        for _ in range(count):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            line.sendall(HALF)
            lines.append(line)
        yield lines


def closed(line):
    """The other side has closed it."""
    line.settimeout(20)
    with contextlib.suppress(ConnectionError):
        return line.recv(1000) == b""
    return True


def connections(server):
    """How many it holds."""
    return len(server._server.server_state.connections)


@pytest.mark.parametrize("count", [CONNECTIONS_MAX - 1, CONNECTIONS_MAX, CONNECTIONS_MAX + 1, 250])
def test_half_requests_do_not_keep_the_probes_away(start, count):
    """Kubernetes would kill the pod: without a token a hundred of them made both probes 503."""
    port = start(guard=Guard("0.0.0.0", TOKEN))  # the name alone
    with half_open(port, count) as lines:
        assert get(port, "/livez")[0] == 200
        assert get(port, "/readyz")[0] == 200
        assert get(port, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        lines[-1].sendall(b"\r\n")
        assert lines[-1].recv(1000).startswith(b"HTTP/1.1 200")  # the newest kept its place


def test_connections_are_limited():
    """The one that has waited longest goes for a new one."""
    server = Serving(app_of(Source(), GUARD), listening("http", "127.0.0.1", 0))
    try:
        with half_open(server.port, CONNECTIONS_MAX + 50) as lines:
            assert get(server.port, "/livez")[0] == 200
            assert connections(server) <= CONNECTIONS_MAX
            assert closed(lines[0])
    finally:
        server.close()


def test_what_is_being_answered_keeps_its_place(monkeypatch):
    """A stream is closed for nobody; where all are streams a new connection is refused."""
    from starlette.responses import StreamingResponse

    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 3)
    over = []

    async def endless(scope, receive, send):
        async def lines():
            yield b"first"
            while not over:
                await serving.asyncio.sleep(0.01)

        await StreamingResponse(lines())(scope, receive, send)

    server = Serving(endless, listening("http", "127.0.0.1", 0))
    try:
        with half_open(server.port, 3) as lines:
            for line in lines:
                line.sendall(b"\r\n")
                assert line.recv(1000).startswith(b"HTTP/1.1 200")
            with half_open(server.port, 1) as (late,):
                assert closed(late)
            assert connections(server) == 3
            over.append(True)
    finally:
        over.append(True)
        server.close()


@pytest.mark.parametrize("begun", [b"", HALF])
def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch, start, begun):
    """Neither on a new connection nor after an answer."""
    monkeypatch.setattr(serving, "HEAD_S", 2.0)  # in it a busy machine sends a whole head
    port = start()
    with socket.create_connection(("127.0.0.1", port), 20) as line:
        line.sendall(begun)
        assert closed(line)
    with socket.create_connection(("127.0.0.1", port), 20) as line:
        line.sendall(HALF + b"\r\n")
        assert line.recv(10_000).startswith(b"HTTP/1.1 200")
        line.sendall(begun or b"G")
        begun_at = time.monotonic()
        while not closed(line):
            assert time.monotonic() - begun_at < 20


@pytest.mark.parametrize(("more", "fine"), [(-1, True), (0, True), (1, False)])
def test_the_head_of_a_request_is_limited(monkeypatch, start, more, fine):
    """By its bytes, in as many pieces as it may come."""
    monkeypatch.setattr(serving, "HEAD_BYTES_MAX", 5_000)
    port = start()
    with socket.create_connection(("127.0.0.1", port), 20) as line:
        line.sendall(HALF)
        with contextlib.suppress(ConnectionError):
            line.sendall(b"X: " + b"x" * (5_000 + more - len(HALF) - 3))
            if fine:
                line.sendall(b"\r\n\r\n")
        assert closed(line) is not fine


# -- commands --------------------------------------------------------------------------------------


def post(port, body, path="/control", **headers):
    """Status and JSON of a command."""
    names = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    names |= {name.replace("_", "-"): value for name, value in headers.items()}
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, names)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
            return error.code, json.loads(text) if text.startswith("{") else text


@pytest.fixture
def commanded():
    """A source that may be commanded with the token; its port."""
    source = Source()
    app = app_of(source, Guard("127.0.0.1", TOKEN), allow_control=True)
    server = Serving(app, listening("http", "127.0.0.1", 0))
    yield source, server.port
    server.close()


PAUSE = {"action": "pause", "reason": "a test", "topic": "t"}


def test_a_command_by_http(commanded):
    """The same answers as by the socket."""
    source, port = commanded
    status, told = post(port, PAUSE)
    assert (status, told["answers"][0]["outcome"]) == (200, "done")
    assert [order.topic for order in source.orders] == ["t"]
    assert get(port, "/commands", Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (PAUSE, {"Authorization": "Bearer wrong"}, 401, "wrong token"),
        (PAUSE, {"Authorization": ""}, 401, "token required"),
        (PAUSE, {"Origin": "http://evil.example"}, 403, "this Origin is not allowed"),
        (PAUSE, {"Content_Type": "text/plain"}, 415, "send Content-Type: application/json"),
        ({"action": "pause"}, {}, 400, "a reason is required"),
        ([], {}, 400, "a command is a JSON object"),
        (b"{", {}, 400, "a command is a JSON object"),
        (b"[" * 60_000, {}, 400, "a command is a JSON object"),
        (b" " * (64 * 2**10 + 1), {}, 413, "at most 65,536 bytes"),
    ],
)
def test_commands_that_are_refused(commanded, body, headers, status, reason):
    """No one without the token, no other site's page, nothing that is not exact."""
    source, port = commanded
    found, told = post(port, body, **headers)
    assert found == status
    assert reason in str(told)
    assert not hasattr(source, "orders")


def test_commands_are_off_unless_allowed(start):
    """One line that names the option."""
    status, told = post(start(), PAUSE)
    assert (status, told["error"]) == (
        403, "commands over HTTP are off: start with --allow-control",
    )  # fmt: skip


def test_control_needs_a_token():
    """Also on loopback."""
    kafka = {"bootstrap.servers": "x"}
    with pytest.raises(ConfigError, match="allow_control requires http and http_token_file"):
        perkey.App(group="g", kafka=kafka, http="127.0.0.1:0", allow_control=True)
    with pytest.raises(ConfigError, match="give True or False"):
        perkey.App(group="g", kafka=kafka, allow_control="no")
