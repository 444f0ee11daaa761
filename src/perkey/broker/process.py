"""Broker processes: started detached or guarded, recognised by their command line, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perkey import guard
from perkey.broker.jars import ensure_jars
from perkey.broker.java import Java
from perkey.errors import PerkeyError

HEAP_OPTION = "-Xmx768m"
STOP_GRACE_S = 10.0
KILL_GRACE_S = 10.0
FORMAT_TIMEOUT_S = 120.0  # for a busy machine: a JVM starts
_POLL_S = 0.02
_EXEC_S = 2.0
_LOGGING_NOTE = "SLF4J:"  # Kafka's jars have no logging back end, and report it each time.

# It waits for the end of its input, which is the end of the process that holds the other end of the
# pipe, however that died; so no broker outlives its test run.
_GUARD = 'read -r _; kill -9 "$1"'
# The shell leaves the broker to init and prints its pid, so this process need not reap it.
_DETACH = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'


class BrokerError(PerkeyError):
    """A local broker did not start, answer or stop within its limit."""


@dataclass(slots=True)
class Guarded:
    """A broker that is a child process, and the shell that kills it when this process is gone."""

    broker: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]

    def release(self) -> None:
        """Reap both; the guard first, so that it never kills a reused pid."""
        self.guard.kill()
        self.guard.communicate()
        self.broker.wait(KILL_GRACE_S)


def kafka_command(java: Java, properties: Path) -> list[str]:
    """The command that runs one broker node in the foreground."""
    return [*_java_command(java), HEAP_OPTION, "kafka.Kafka", str(properties)]


def _java_command(java: Java) -> list[str]:
    classpath = os.pathsep.join(str(jar) for jar in ensure_jars())
    return [str(java.program), "-XX:-UsePerfData", "-cp", classpath]


def format_storage(java: Java, properties: Sequence[Path], cluster_id: str) -> None:
    """Write Kafka's initial metadata for each node, concurrently; raises BrokerError."""
    tool_command = [*_java_command(java), "kafka.tools.StorageTool", "format"]
    # As one word: an id may start with a dash, and would be parsed as an option.
    command = [*tool_command, f"--cluster-id={cluster_id}", "-c"]
    tools = [
        subprocess.Popen([*command, str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for path in properties
    ]
    try:
        outputs = [tool.communicate(timeout=FORMAT_TIMEOUT_S)[0] for tool in tools]
    except subprocess.TimeoutExpired:
        failure = f"Kafka did not format its storage within {FORMAT_TIMEOUT_S:.0f} s"
        raise BrokerError(f"{failure}: is this machine overloaded?") from None
    finally:
        for tool in tools:
            with tool:  # closes its pipe, and reaps it
                tool.kill()
    for tool, output in zip(tools, outputs, strict=True):
        if tool.returncode != 0:
            raise BrokerError(f"Kafka could not format its storage: {last_line(output.decode())}")


def last_line(text: str) -> str:
    """The last informative line, for a one-line message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines_left = [line for line in lines if not line.startswith(_LOGGING_NOTE)]
    return lines_left[-1][:300] if lines_left else "nothing"


def spawn_detached(command: Sequence[str], log: Path) -> int:
    """Start a broker that outlives this process, in a separate session; return its pid."""
    shell = subprocess.run(
        ["sh", "-c", _DETACH, "sh", str(log), *command],
        stdout=subprocess.PIPE, check=True, text=True, start_new_session=True,
    )  # fmt: skip
    return int(shell.stdout)


def spawn_guarded(command: Sequence[str], log: Path) -> Guarded:
    """Start a broker that dies with this process, in a separate session without Ctrl-C."""
    with log.open("ab") as output:
        broker = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    guard = subprocess.Popen(
        ["sh", "-c", _GUARD, "perkey-broker-guard", str(broker.pid)],
        stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    return Guarded(broker, guard)


def is_node(pid: int | None, properties: Path) -> bool:
    """Whether this pid is the broker of these properties, and not a later process."""
    return pid is not None and str(properties) in _arguments(pid)


def _arguments(pid: int) -> list[str]:
    """A process's command line; empty if it is gone, or dead and not yet reaped."""
    entry = Path(f"/proc/{pid}/cmdline")
    if Path("/proc/self/cmdline").exists():
        try:
            # Empty while a program replaces itself, as Java's launcher does at its start; and of a
            # process that has ended and is not reaped yet.
            wait_until(
                lambda: bool(entry.read_bytes()) or guard.state_of(entry.parent) in "ZX", _EXEC_S
            )
            return entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return []
    shown = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    # `ps` joins with spaces: the properties path is the last argument, and may have spaces.
    head, main_class, path = shown.stdout.strip().partition("kafka.Kafka ")
    return [head, path] if main_class else []


def send_signal(pid: int, number: int) -> None:
    """Send a signal; a process that has just ended is no error.

    SIGSTOP first: on a busy machine its threads would otherwise continue for a moment.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        if number == signal.SIGSTOP and Path("/proc/self/task").exists():
            wait_until(lambda: _suspended(pid), STOP_GRACE_S)


def _suspended(pid: int) -> bool:
    try:
        return {guard.state_of(thread) for thread in Path(f"/proc/{pid}/task").iterdir()} <= set(
            "TZX"
        )
    except FileNotFoundError:  # a thread has just ended; or all have
        return not Path(f"/proc/{pid}").exists()


def stop_all(processes: Sequence[tuple[int, Path]], *, grace_s: float = STOP_GRACE_S) -> None:
    """Stop nodes given as (pid, properties): SIGTERM, and after `grace_s` seconds SIGKILL."""
    signals = ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_GRACE_S))
    for number, wait_s in signals if grace_s > 0 else signals[1:]:
        living = [(pid, path) for pid, path in processes if is_node(pid, path)]
        for pid, _ in living:
            send_signal(pid, number)
        if wait_until(lambda: not any(is_node(*node) for node in processes), wait_s):
            return
    raise BrokerError(f"broker processes {[pid for pid, _ in processes]} did not end after SIGKILL")


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition, at most so long; return whether it became true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
