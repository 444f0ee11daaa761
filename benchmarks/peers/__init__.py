"""The peers that Perkey is compared with: packages, program and installation of each.

Each program runs in a separate environment, set up as that project's documentation describes. What
a record's handler does is the same everywhere: `work.py`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import javapc
from perkey.broker.jars import cache_dir

FOLDER = Path(__file__).parent
_INSTALL_LIMIT_S = 300


class PeerError(Exception):
    """A peer that cannot be installed here, in one line."""


@dataclass(frozen=True)
class Peer:
    """A consumer to compare with."""

    name: str
    #: in benchmarks/peers; "" is Java's, which PcRunner runs
    program: str
    #: exact versions; none: the interpreter and packages of this process
    requirements: tuple[str, ...] = ()
    #: the oldest minor version of Python 3 that it runs on
    python_minor: int = 11
    #: whether records of a key keep their order while calls run concurrently
    ordered: bool = True

    def command(self) -> list[str]:
        """The start of its command line; installs what it needs. Raises PeerError."""
        if not self.program:
            try:
                classes = javapc.build()
            except javapc.JavaError as error:
                raise PeerError(str(error).splitlines()[0]) from None
            return ["java", *javapc.JVM_OPTIONS, "-cp", classes, "PcRunner"]
        python = _environment(self) if self.requirements else Path(sys.executable)
        return [str(python), str(FOLDER / self.program)]


PEERS = (
    Peer("Perkey", "with_perkey.py"),
    Peer("Java Parallel Consumer", ""),
    Peer("plain loop", "plain_loop.py"),
    Peer("aiokafka by hand", "with_aiokafka.py", ("aiokafka==0.14.0",)),
    Peer(
        "FastStream concurrent",
        "with_faststream.py",
        ("faststream[kafka]==0.7.8", "faststream-concurrent-aiokafka==0.7.2"),
        ordered=False,
    ),
    Peer("Arroyo threads", "with_arroyo.py", ("sentry-arroyo==2.48.0",), ordered=False),
    Peer("Pyrallel", "with_pyrallel.py", ("pyrallel-consumer==1.0.0",), python_minor=12),
)


def _environment(peer: Peer) -> Path:
    """The interpreter of an environment with exactly these packages, made on first use."""
    wanted = "\n".join((str(peer.python_minor), *peer.requirements))
    home = cache_dir() / "peers" / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as folder:
            made = Path(folder) / "made"
            uv = [sys.executable, "-m", "uv", "--quiet", "--no-python-downloads"]
            _call([*uv, "venv", "--relocatable", "--python", _python(peer), str(made)], peer)
            python = str(made / "bin" / "python")
            _call([*uv, "pip", "install", "--python", python, *peer.requirements], peer)
            shutil.move(made, home)
    return home / "bin" / "python"


def _python(peer: Peer) -> str:
    """An interpreter that this peer runs on: this one, one on the PATH, or one of pyenv's."""
    if sys.version_info >= (3, peer.python_minor):
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(peer.python_minor, 15):
        found = [shutil.which(f"python3.{minor}"), *root.glob(f"3.{minor}.*/bin/python")]
        for python in filter(None, found):
            probe = [str(python), "-c", "import venv"]
            if subprocess.run(probe, check=False, capture_output=True).returncode == 0:
                return str(python)
    raise PeerError(f"{peer.name} needs Python 3.{peer.python_minor}, which is not installed here")


def _call(command: list[str], peer: Peer) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise PeerError(f"{peer.name} cannot be installed here: {reason}")
