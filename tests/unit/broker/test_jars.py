"""Kafka's jars in the cache: fetched once, checked always, safe for several processes at once."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from perkey.broker import jars
from perkey.errors import ConfigError

FILES = {"a-1.jar": b"alpha", "b-2.jar": b"beta" * 1000}


class Mirror:
    """A client that brings `files`, and counts how often it was asked."""

    def __init__(self):
        self.files = dict(FILES)
        self.asked = 0
        self._lock = threading.Lock()

    def fetch(self, version, folder, names):
        with self._lock:
            self.asked += 1
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return "Maven"


@pytest.fixture
def mirror(monkeypatch, tmp_path):
    found = Mirror()
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    monkeypatch.setattr(jars, "fetch", found.fetch)
    monkeypatch.setattr(jars, "checksums", lambda: sums)
    monkeypatch.setenv("PERKEY_CACHE", str(tmp_path / "cache"))
    return found


def test_the_release_is_pinned():
    """44 jars are pinned, each by a full SHA-256, Kafka's own among them."""
    sums = jars.checksums()
    assert len(sums) == 44
    assert f"kafka_2.13-{jars.KAFKA_VERSION}.jar" in sums
    assert all(len(bytes.fromhex(digest)) == 32 for digest in sums.values())


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    """PERKEY_CACHE wins over XDG_CACHE_HOME, and that over the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PERKEY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert jars.cache_dir() == tmp_path / ".cache" / "perkey"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert str(jars.cache_dir()) == "/xdg/perkey"
    monkeypatch.setenv("PERKEY_CACHE", "/mine")
    assert str(jars.cache_dir()) == "/mine"


def test_it_fetches_once(mirror):
    """The second call finds what the first one fetched."""
    first = jars.ensure_jars()
    assert [path.name for path in first] == list(FILES)
    assert jars.ensure_jars() == first
    assert mirror.asked == 1


def test_several_at_once_fetch_once(mirror):
    """Whoever comes while the jars are fetched waits for them."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: jars.ensure_jars(), range(8)))
    assert all(one == found[0] for one in found)
    assert mirror.asked == 1


def test_a_missing_jar_is_fetched_again(mirror):
    """An interrupted or cleaned cache is completed."""
    jars.ensure_jars()[0].unlink()
    assert all(path.exists() for path in jars.ensure_jars())
    assert mirror.asked == 2


def test_a_wrong_jar_in_the_cache_is_refused_by_name(mirror):
    """A changed file is never run: the line names it and the cure."""
    changed = jars.ensure_jars()[0]
    changed.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="delete it and run this again") as caught:
        jars.ensure_jars()
    assert str(changed) in str(caught.value)


def test_a_wrong_jar_from_the_mirror_never_reaches_the_cache(mirror, tmp_path):
    """What the client brings is checked before it is moved in."""
    mirror.files["a-1.jar"] = b"poisoned"
    with pytest.raises(ConfigError, match=r"wrong a-1\.jar"):
        jars.ensure_jars()
    assert not list((tmp_path / "cache").rglob("*.jar"))


def test_a_jar_the_mirror_lacks_is_named(mirror):
    """A mirror without one of the files is an error that names the file and the client."""
    del mirror.files["b-2.jar"]
    with pytest.raises(ConfigError, match=r"Maven did not deliver b-2.jar"):
        jars.ensure_jars()


def test_what_a_killed_fetch_left_is_removed(mirror, tmp_path):
    """A fetch cleans up after one that was killed."""
    left = tmp_path / "cache" / f"kafka-{jars.KAFKA_VERSION}" / ".fetch-old"
    left.mkdir(parents=True)
    jars.ensure_jars()
    assert not left.exists()


def test_a_cache_that_cannot_be_written_names_the_variable(mirror, monkeypatch, tmp_path):
    """The cure for an unusable cache folder is PERKEY_CACHE."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERKEY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set PERKEY_CACHE"):
        jars.ensure_jars()
