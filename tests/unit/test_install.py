"""`make setup` installs by uv with pip's own settings."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("install", ROOT / ".ci" / "install.py")
assert SPEC is not None
install = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(install)

LISTED = """\
:env:.find-links='/a /b'
global.cert='/etc/certs.pem'
global.index-url='https://one.example/simple'
global.verbose='1'
install.extra-index-url='https://two.example/simple https://three.example/simple'
:env:.cert='/mine.pem'
freeze.timeout='10'
"""


def test_pips_settings_reach_uv():
    """Certificate file, indexes and folders; the environment's win, other commands' do not count."""
    assert install.settings_of(LISTED) == {
        "SSL_CERT_FILE": "/mine.pem",
        "UV_DEFAULT_INDEX": "https://one.example/simple",
        "UV_INDEX": "https://two.example/simple https://three.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/a,/b",
    }
    assert install.settings_of("") == {}


def test_uv_comes_from_the_lock_with_its_hashes():
    """The lines of one package alone, to its last hash."""
    lines = install.pinned((ROOT / "requirements-dev.txt").read_text(), "uv").splitlines()
    assert lines[0].startswith("uv==")
    assert len(lines) > 2
    assert all(line.strip().startswith("--hash=sha256:") for line in lines[1:])


def test_pip_does_it_where_uv_fails(monkeypatch, capsys):
    """With the same lock file and its hashes; the user reads why it takes longer."""
    ran = []

    def run(command, env=None):
        ran.append(command)
        return int(command[2] == "uv")

    monkeypatch.setattr(install, "_run", run)
    assert install.main() == 0
    assert [command[2] for command in ran] == ["pip", "uv", "pip", "pip"]
    assert "--require-hashes" in ran[2]
    assert "pip does, which takes longer" in capsys.readouterr().err


def test_a_lock_that_lacks_a_dependency_is_reported(monkeypatch):
    """It is installed without a look at dependencies; so they are checked, and pip names them."""
    ran = []

    def run(command, env=None):
        ran.append(command)
        return int("check" in command or (command[2] == "pip" and "-r" in command and len(ran) > 1))

    monkeypatch.setattr(install, "_run", run)
    assert install.main() == 1
    assert "--no-deps" in ran[1]
    assert "--no-config" in ran[1]  # an override for making the lock is not for installing it
    assert "--require-hashes" in ran[1]
    assert ["check" in command for command in ran] == [False, False, False, True, False]
