"""The unix socket of a run on this machine, and how the commands find every run.

The protocol is one line of JSON each way. The folder belongs to the user (mode 0700), the sockets
have mode 0600. A run removes its socket when it ends, so a socket without a process means that the
run was killed: the first command that finds it renames it, and all report it for ten minutes.
Beside each socket is a file with the run's group and member, for a process that cannot answer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import socketserver
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from perkey import guard
from perkey.account.shown import shown_text
from perkey.errors import ConfigError, PerkeyError
from perkey.observe.asking import Source, answer, commands, is_answer, obeyed, question_of

ANSWER_S = 5.0
#: a member waits up to 10 s for the commit that makes a skip final
COMMAND_ANSWER_S = 12.0
#: limit for a process that is suspended: it answers only if it is resumed in that moment
SUSPENDED_ANSWER_S = 0.5
ABOUT_BYTES_MAX = 4_096
ASKED_BYTES_MAX = 64 * 2**10
ANSWER_BYTES_MAX = 256 * 2**20
#: longest path of a unix socket, with a margin
PATH_BYTES_MAX = 100
#: for this many seconds after its detection a killed run is reported
GONE_SHOWN_S = 600.0
#: suffix of the file beside a socket that names group and member, also after a kill
ABOUT = ".about"
#: distinguishes several apps of one process
_numbers = itertools.count()


class About(NamedTuple):
    """Whose run a socket is, known without asking its process."""

    group: str
    member: str


class NotAnswering(PerkeyError):
    """A run exists but does not answer."""


def folder() -> Path:
    """The folder of this user's sockets, created if missing. ConfigError if it is unsafe."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base) / "perkey" if base else Path(tempfile.gettempdir()) / f"perkey-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=False)
        known = path.lstat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: set XDG_RUNTIME_DIR to your own") from None
    wrong = (
        guard.complaint(known, guard.OTHERS_ANY)
        if stat.S_ISDIR(known.st_mode)
        else "is not a directory"
    )
    if wrong:
        raise ConfigError(
            f"{path} {wrong}, and must be a directory of this user only (mode 0700): "
            "remove it, or set XDG_RUNTIME_DIR"
        )
    return path


class _Handler(socketserver.StreamRequestHandler):
    """One query on a connection."""

    timeout = ANSWER_S

    def handle(self) -> None:
        """Answer the query; errors become the answer."""
        server = self.server
        assert isinstance(server, LocalServer)
        with contextlib.suppress(OSError):  # the client disconnected or sent nothing
            line = self.rfile.readline(ASKED_BYTES_MAX + 1)
            found = _answered(server.source, server.kafka, line)
            self.wfile.write(json.dumps(found).encode() + b"\n")


def _answered(source: Source, kafka: Mapping[str, str], line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        return {"error": f"a question is one line of at most {ASKED_BYTES_MAX} bytes"}
    try:
        asked = json.loads(line)
        what = asked["ask"]
        if what == "snapshot":
            return source.snapshot()
        if what == "why":
            return answer(source, question_of(asked))
        if what == "control":
            return obeyed(source, asked)
        if what == "commands":
            return {**commands(source), "kafka": dict(kafka)}
    except ConfigError as error:
        return {"error": str(error)}
    except (ValueError, TypeError, KeyError):
        return {"error": "a question is a JSON object with `ask`"}
    return {"error": f"unknown question {what!r:.80}: ask snapshot, why, control or commands"}


class LocalServer(socketserver.ThreadingUnixStreamServer):
    """Answers on one socket until it is closed."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, source: Source, kafka: Mapping[str, str] | None = None) -> None:
        self.source = source
        #: the brokers and how to connect, without secrets: for commands that read the commits
        self.kafka = dict(kafka or {})
        self.path = folder() / f"{os.getpid()}-{next(_numbers)}.sock"
        if len(os.fsencode(self.path)) > PATH_BYTES_MAX:
            raise ConfigError(f"{self.path} is too long for a socket: set XDG_RUNTIME_DIR")
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()  # of an earlier process with the same id
        before = os.umask(0o177)
        try:
            super().__init__(str(self.path), _Handler)
            self._write_about()
        finally:
            os.umask(before)
        guard.thread("perkey-socket", self.serve_forever).start()

    def _write_about(self) -> None:
        shots = self.source.members()
        app = shots[0].get("app", {}) if shots else {}
        given = {"group": app.get("group", ""), "member": app.get("member", "")}
        with contextlib.suppress(OSError):  # without it a process that cannot answer has no name
            about = self.path.with_suffix(ABOUT)
            about.unlink(missing_ok=True)  # of an earlier process with the same id
            about.write_text(json.dumps(given))

    def handle_error(self, _request: Any, _address: Any) -> None:
        """One client's errors do not affect others."""

    def close(self) -> None:
        """Remove the socket, then stop answering: a socket without answers means a killed run."""
        for path in (self.path, self.path.with_suffix(ABOUT)):
            path.unlink(missing_ok=True)
        self.shutdown()
        self.server_close()


# -- the querying side ---------------------------------------------------------------------------


def runs() -> list[Path]:
    """The sockets of this user's runs; those whose process has died are moved to `gone`."""
    alive = []
    for path in sorted(folder().glob("*.sock")):
        try:
            known = path.lstat()
        except FileNotFoundError:
            continue  # it ended just now
        if not stat.S_ISSOCK(known.st_mode) or known.st_uid != os.getuid():
            continue
        if is_suspended(pid_of(path)):
            alive.append(path)
            continue
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as one:
            one.settimeout(ANSWER_S)
            try:
                one.connect(str(path))
            except ConnectionRefusedError:
                # Left by a killed process, or by an earlier one with the same id
                with contextlib.suppress(OSError):
                    if _is_gone(pid_of(path)):
                        os.utime(path.rename(path.with_suffix(".gone")))
                    else:
                        path.unlink()
                        path.with_suffix(ABOUT).unlink(missing_ok=True)
                continue
            except FileNotFoundError:
                continue
            except OSError:
                pass  # it exists but is busy: a query will report that
        alive.append(path)
    return alive


def pid_of(path: Path) -> str:
    """The process id in the name of a socket."""
    return path.stem.partition("-")[0]


def about(path: Path) -> About | None:
    """The group and member of a socket's run; None if that is not known."""
    place = path.with_suffix(ABOUT)
    try:
        known = place.lstat()
        if not stat.S_ISREG(known.st_mode) or known.st_uid != os.getuid():
            return None
        with place.open("rb") as file:
            found = json.loads(file.read(ABOUT_BYTES_MAX))
        return About(str(found["group"]), str(found["member"])) if found["group"] else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def suspended(group: str) -> dict[str, str]:
    """The members of this group whose process on this machine is suspended, and its id."""
    places = [path for path in runs() if is_suspended(pid_of(path))]
    known = [(about(path), pid_of(path)) for path in places]
    return {one.member: pid for one, pid in known if one is not None and one.group == group}


def is_suspended(pid: str) -> bool:
    """Whether a process of this user is stopped (SIGSTOP, Ctrl-Z)."""
    try:
        state = guard.state_of(Path(f"/proc/{pid}"))
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return False
    return state == "T" and uid == os.getuid() and pid != "1"


def _is_gone(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return True
    except OSError:  # the id now belongs to another user's process
        pass
    return False


class Gone(NamedTuple):
    """A run that ended without a clean stop."""

    name: str
    #: empty: not known
    group: str
    #: seconds since a command first found it
    found_s: float


def gone() -> list[Gone]:
    """Runs that ended without a clean stop, for ten minutes."""
    found = []
    for path in sorted(folder().glob("*.gone")):
        with contextlib.suppress(OSError):
            ago_s = max(0.0, time.time() - path.lstat().st_mtime)
            if ago_s > GONE_SHOWN_S:
                path.unlink()
                path.with_suffix(ABOUT).unlink(missing_ok=True)
            else:
                found.append(Gone(path.stem, group_of(path), ago_s))
    return found


def group_of(path: Path) -> str:
    """The group of the run with this socket; empty if it is not known."""
    known = about(path)
    return "" if known is None else shown_text(known.group)


def suspended_text(pid: str) -> str:
    """What to do about a suspended process."""
    return f"its process is suspended; resume it with kill -CONT {pid}"


def _silent_because(pid: str) -> str:
    """Why the process of a run does not answer, as far as the system knows."""
    if is_suspended(pid):
        return f": {suspended_text(pid)}"
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    if uid != os.getuid() or pid == "1":
        return ""  # the number of an ended process, in use by another one
    return (
        ": its process runs, but its Python code does not: C code of a handler may hold the "
        f"interpreter lock (py-spy dump --pid {pid} shows where), or the machine is overloaded"
    )


def ask(path: Path, question: dict[str, Any]) -> dict[str, Any]:
    """The answer of one run. Raises NotAnswering, or ConfigError for a query that it refuses."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as one:
        limit_s = COMMAND_ANSWER_S if question["ask"] == "control" else ANSWER_S
        if is_suspended(pid_of(path)):
            limit_s = min(limit_s, SUSPENDED_ANSWER_S)
        one.settimeout(limit_s)
        try:
            one.connect(str(path))
            one.sendall(json.dumps(question).encode() + b"\n")
            with one.makefile("rb") as stream:
                line = stream.readline(ANSWER_BYTES_MAX)
        except TimeoutError:
            why = _silent_because(pid_of(path))
            raise NotAnswering(f"{path.name}: no answer within {limit_s:g} s{why}") from None
        except OSError as error:
            raise NotAnswering(f"{path.name}: no answer: {error.strerror}") from None
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if isinstance(found, dict) and "error" in found:
        raise ConfigError(str(found["error"]))
    if not is_answer(question["ask"], found):
        raise NotAnswering(f"{path.name}: the server there is not a Perkey run: check the address")
    answered: dict[str, Any] = found
    return answered
