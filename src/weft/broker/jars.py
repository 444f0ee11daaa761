"""Kafka's jars: downloaded once into the user's cache, each checked against its SHA-256."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path

from weft.broker.fetch import fetch
from weft.broker.folder import locked, user_folder
from weft.errors import ConfigError

KAFKA_VERSION = "4.3.1"
_CHUNK_BYTES = 2**20


def cache_dir() -> Path:
    """Where fetched files are kept: WEFT_CACHE, else the XDG cache directory's `weft`."""
    chosen = os.environ.get("WEFT_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return user_folder("XDG_CACHE_HOME", ".cache")


@cache
def checksums() -> dict[str, str]:
    """The jars of one Kafka release: file name to SHA-256, as `sha256sum` prints them."""
    listed = resources.files("weft.broker").joinpath(f"kafka-{KAFKA_VERSION}.sha256").read_text()
    return {name: digest for digest, name in (line.split() for line in listed.splitlines())}


def ensure_jars() -> list[Path]:
    """Return the paths of Kafka's jars, all verified; fetch them first if they are not there.

    Raises ConfigError for a wrong file, and where nothing can fetch. Several processes may call
    it at once: one fetches, the others wait for it.
    """
    folder = cache_dir() / f"kafka-{KAFKA_VERSION}"
    with locked(folder, "set WEFT_CACHE to one that can"):
        if not all((folder / name).exists() for name in checksums()):
            _fetch_into(folder)
        return [_verified(folder / name, digest) for name, digest in checksums().items()]


def _fetch_into(folder: Path) -> None:
    """Fetch beside the cache and move in only what has been verified."""
    for left_by_a_kill in folder.glob(".fetch-*"):
        shutil.rmtree(left_by_a_kill, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as staging:
        client = fetch(KAFKA_VERSION, Path(staging), frozenset(checksums()))
        for name, digest in checksums().items():
            fetched = Path(staging) / name
            if not fetched.exists():
                raise ConfigError(f"{client} did not deliver {name}: check its mirror")
            if sha256(fetched) != digest:
                raise ConfigError(
                    f"{client} delivered a wrong {name} (its SHA-256 differs): check its mirror"
                )
            if not (folder / name).exists():
                fetched.replace(folder / name)


def _verified(jar: Path, digest: str) -> Path:
    if sha256(jar) != digest:
        raise ConfigError(
            f"{jar} has the wrong content (its SHA-256 differs): delete it and run this again"
        )
    return jar


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
