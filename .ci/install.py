"""Install requirements-dev.txt into the environment that runs this: by uv, else by pip.

uv takes a quarter of pip's time. It is itself installed by pip, from the lock and by its hashes,
and gets pip's settings: a certificate file, an index, folders with wheels.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.txt"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = [sys.executable, "-m", "uv", "pip"]
THIS = ["--quiet", "--python", sys.executable]
#: Without a look at dependencies, which the lock names all: for PySpark's, uv would download and
#: build its gigabyte again where the index does not let it keep a file. Without our settings: the
#: override there is for making the lock; here it would take a newer certifi than the locked one.
LOCKED = ["install", *THIS, "--no-config", "--no-deps", "--require-hashes", "-r", str(LOCK)]
OURS = ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]
#: a setting of pip -> the variable that has uv do the same
FOR_UV = {
    "cert": "SSL_CERT_FILE",
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
FROM = ("global", "install", ":env:")  # what comes later counts


def settings_of(listed: str) -> dict[str, str]:
    """What `pip config list` printed, as variables for uv."""
    found: dict[str, dict[str, str]] = {where: {} for where in FROM}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        where, _, key = name.rpartition(".")
        if where in found and key in FOR_UV:
            words = str(ast.literal_eval(value)).split()
            found[where][FOR_UV[key]] = ("," if key == "find-links" else " ").join(words)
    made = {name: value for where in FROM for name, value in found[where].items()}
    if "UV_INDEX" in made:
        made["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip looks; the hashes decide
    return made


def pinned(lock: str, name: str) -> str:
    """The lines of one package, with its hashes."""
    begin = lock.index(f"\n{name}==") + 1
    lines = lock[begin:].splitlines(keepends=True)
    last = next(n for n, line in enumerate(lines) if not line.rstrip().endswith("\\"))
    return "".join(lines[: last + 1])


def by_uv() -> bool:
    """Whether uv could do it."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pinned(LOCK.read_text(), "uv"))
        file.flush()
        if _run([*PIP, "install", "--quiet", "--require-hashes", "-r", file.name]):
            return False
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False)
    env = settings_of(listed.stdout) | os.environ
    steps = (LOCKED, ["install", *THIS, *OURS], ["check", *THIS])
    return not any(_run([*UV, *step], env) for step in steps)


def _run(command: list[str], env: Mapping[str, str] | None = None) -> int:
    return subprocess.run(command, env=env, check=False).returncode


def main() -> int:
    """The exit code of the last command."""
    if by_uv():
        return 0
    sys.stderr.write("uv could not install the lock file: pip does, which takes longer\n")
    install = [*PIP, "install", "--quiet"]
    return _run([*install, "--require-hashes", "-r", str(LOCK)]) or _run([*install, *OURS])


if __name__ == "__main__":
    sys.exit(main())
