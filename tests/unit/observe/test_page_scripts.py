"""The page's scripts, as far as they can be checked where there is no browser."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files

import pytest

STATIC = files("perkey.observe") / "static"
SCRIPTS = ("drawing.js", "commands.js", "control.js", "views.js", "page.js")
#: a name that the module itself gives: at the beginning of a line
NAMED = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
IMPORTED = re.compile(r'^import \{([^}]*)\} from "\./(\w+\.js)";$', re.MULTILINE)
EXPORTED = re.compile(r"^export (?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)


def script(name):
    """Its text."""
    return (STATIC / name).read_text()


def imports(text):
    """(name, script that it comes from) of all imports."""
    return [
        (name.strip(), source)
        for names, source in IMPORTED.findall(text)
        for name in names.split(",")
    ]


def twice(text):
    """Names that a module gives more than once: a browser refuses such a module as a whole."""
    names = Counter(NAMED.findall(text) + [name for name, _ in imports(text)])
    return [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_name_is_given_once(name):
    """No module says a name twice."""
    assert NAMED.findall(script(name))
    assert twice(script(name)) == []


def test_a_name_given_twice_is_found():
    """As it once was: a constant, and further down a function."""
    assert twice("const said = 1;\nfunction said() {\n}\n") == ["said"]
    assert twice('import { h } from "./drawing.js";\nconst h = 1;\n') == ["h"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_imported_is_exported(name):
    """Each name that a module takes from another is there."""
    for taken, source in imports(script(name)):
        assert taken in EXPORTED.findall(script(source)), f"{name}: {taken} of {source}"
