"""`--where 'error.type == "Timeout" and header.tenant == "acme"'`: conditions that select records.

A small separate grammar: nothing of it is executed as Python, and no condition can take long to
evaluate. Pure: `parse` makes a Condition of a text, `Condition.matches` calls a function for the
fields of one record.

    or:     and ("or" and)*
    and:    not ("and" not)*
    not:    "not" not | "(" or ")" | FIELD OP VALUE | FIELD ["not"] "in" "(" VALUE ("," VALUE)* ")"
    OP:     == != < <= > >= =~
    VALUE:  "text" | 'text' | 12 | -1.5 | 2026-03-01T10:00 | null
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn

from perkey.errors import ConfigError, did_you_mean

LENGTH_MAX = 2_000
DEPTH_MAX = 20
#: limit of comparisons and listed values in total
TERMS_MAX = 200
PATTERN_CHARS_MAX = 200
#: characters of a text that =~ searches: with two repeats that is at most 500**3 steps
SEARCHED_CHARS_MAX = 500
PATTERN_REPEATS_MAX = 2
PATTERN_OPTIONAL_MAX = 3

#: how a field's values are compared; a tuple: one of these texts
Kind = Literal["text", "number", "time"] | tuple[str, ...]
Value = str | int | float | None
#: the fields of a record by name, with `header.NAME`; a time is in ms since 1970
Fields = Callable[[str], Value]

#: fields of a record in any place; commands add some and omit others
FIELDS: Mapping[str, Kind] = {
    "topic": "text",
    "partition": "number",
    "offset": "number",
    "time": "time",
    "key": "text",
    "group": "text",
    "handler": "text",
    "error.type": "text",
    "error.message": "text",
    "replays": "number",
    "attempts": "number",
}
HEADER = "header."
#: of these, the record's own fields, and its headers
OWN = ("time", "key")

_ORDERED: Mapping[str, Callable[[float | str, float | str], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS = frozenset({"and", "or", "not", "in", "null"})
_TOKEN = re.compile(
    r"""(?:
    (?P<time>\d{4}-\d\d-\d\d(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?)
  | (?P<number>-?\d+(?:\.\d+)?)(?![\w.-])
  | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<name>header\.[\w.-]+|[A-Za-z_]\w*(?:\.\w+)*)
  | (?P<op>==|!=|<=|>=|=~|<|>|\(|\)|,)
  )""",
    re.VERBOSE | re.DOTALL,
)
_DIGITS_MAX = 20
_OTHERS = {"=": "==", "&": "and", "|": "or", "!": "not", "~": "=~", "[": "("}
#: one element of a pattern, and how often it may occur
_PATTERN_PART = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)([*+?]|\{\d*,?\d*\})?", re.DOTALL)


class WhereError(ConfigError):
    """An invalid condition. One line, with `^` in front of the wrong place."""

    def __init__(self, text: str, position: int, reason: str) -> None:
        before, after = text[max(0, position - 60) : position], text[position : position + 60]
        more = "…" if position > 60 else ""
        rest = "…" if len(text) > position + 60 else ""
        super().__init__(f"{reason}: {more}{before}^{after}{rest}")
        self.position = position


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


@dataclass(frozen=True, slots=True)
class _Compare:
    field: str
    op: str
    value: Value | tuple[Value, ...] | re.Pattern[str]

    def holds(self, fields: Fields) -> bool:
        mine = fields(self.field)
        if isinstance(self.value, re.Pattern):
            found = self.value.search(str(mine)[:SEARCHED_CHARS_MAX]) if mine is not None else None
            return found is not None
        if isinstance(self.value, tuple):
            return any(_equal(mine, one) for one in self.value)
        if self.op == "==":
            return _equal(mine, self.value)
        if self.op == "!=":
            return not _equal(mine, self.value)
        mine = _like(mine, self.value)
        if mine is None or self.value is None:
            return False
        return _ORDERED[self.op](mine, self.value)


@dataclass(frozen=True, slots=True)
class _Not:
    one: _Node

    def holds(self, fields: Fields) -> bool:
        return not self.one.holds(fields)


@dataclass(frozen=True, slots=True)
class _Many:
    all_of: bool
    parts: tuple[_Node, ...]

    def holds(self, fields: Fields) -> bool:
        held = (one.holds(fields) for one in self.parts)
        return all(held) if self.all_of else any(held)


_Node = _Compare | _Not | _Many


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed text."""

    text: str
    _root: _Node

    def matches(self, fields: Fields) -> bool:
        """Whether a record is selected; a missing field equals only null."""
        return self._root.holds(fields)


def parse(text: str, fields: Mapping[str, Kind] = FIELDS) -> Condition:
    """Parse a condition; WhereError points at the first wrong place."""
    return Condition(text, _Parser(text, fields).whole())


def text_of(data: bytes) -> str:
    r"""The data as text; bytes that are not UTF-8 as \xNN."""
    return data.decode(errors="backslashreplace")


def own_field(
    name: str, key: bytes | None, time_ms: int, headers: Sequence[tuple[str, bytes | None]]
) -> Value:
    """A record's own fields, in any place: its `time`, `key` or `header.NAME`."""
    if name == "time":
        return time_ms if time_ms >= 0 else None
    if name == "key":
        return None if key is None else text_of(key)
    wanted = name.removeprefix(HEADER)
    found = next((value for one, value in reversed(headers) if one == wanted), None)
    return None if found is None else text_of(found)


def _equal(mine: Value, value: Value) -> bool:
    like = _like(mine, value)
    return like is None if value is None else like is not None and like == value


def _like(mine: Value, value: Value) -> Value:
    """The field as the type of the compared value: a header's text may be a number."""
    if isinstance(value, int | float) and isinstance(mine, str):
        return _number(mine)
    return mine


def _number(text: str) -> float | int | None:
    if len(text) > _DIGITS_MAX or not re.fullmatch(r"-?\d+(\.\d+)?", text, re.ASCII):
        return None
    return float(text) if "." in text else int(text)


class _Parser:
    def __init__(self, text: str, fields: Mapping[str, Kind]) -> None:
        self._text, self._fields = text, fields
        if len(text) > LENGTH_MAX:
            self._fail(LENGTH_MAX, f"a condition has at most {LENGTH_MAX:,} characters")
        self._tokens = list(self._split())
        self._place = self._terms = self._depth = 0

    def _fail(self, position: int, reason: str) -> NoReturn:
        raise WhereError(self._text, position, reason)

    def _split(self) -> Iterator[_Token]:
        position = 0
        while rest := self._text[position:].lstrip():
            position = len(self._text) - len(rest)
            found = _TOKEN.match(self._text, position)
            if found is None:
                one = self._text[position]
                if one in "\"'":
                    self._fail(position, "this text has no end: close the quote")
                cure = f"write {_OTHERS[one]}" if one in _OTHERS else "write FIELD == VALUE"
                self._fail(position, f"{one!r} means nothing here, {cure}")
            kind = str(found.lastgroup)
            yield _Token(kind, found[kind], position)
            position = found.end()
        yield _Token("end", "", len(self._text))

    @property
    def _now(self) -> _Token:
        return self._tokens[self._place]

    def _next(self) -> _Token:
        token = self._now
        self._place += token.kind != "end"
        return token

    def _takes(self, *texts: str) -> bool:
        token = self._now
        if token.kind in ("op", "name") and token.text in texts:
            self._place += 1
            return True
        return False

    def whole(self) -> _Node:
        """The whole text."""
        root = self._many(all_of=False)
        if self._now.kind != "end":
            self._fail(self._now.position, "expected and, or, or the end")
        return root

    def _many(self, *, all_of: bool) -> _Node:
        word, inner = ("and", self._one) if all_of else ("or", lambda: self._many(all_of=True))
        parts = [inner()]
        while self._takes(word):
            parts.append(inner())
        return parts[0] if len(parts) == 1 else _Many(all_of, tuple(parts))

    def _one(self) -> _Node:
        start = self._now.position
        if not self._takes("not", "("):
            token = self._next()
            if token.kind != "name" or token.text in _WORDS:
                self._fail(token.position, f"expected a field, one of {self._known()}")
            name, kind = token.text, self._kind(token)
            no = self._takes("not")
            if self._takes("in"):
                if not self._takes("("):
                    self._fail(self._now.position, 'expected (, as in key in ("a", "b")')
                values = [self._value(kind)]
                while self._takes(","):
                    values.append(self._value(kind))
                if not self._takes(")"):
                    self._fail(self._now.position, "expected , or )")
                listed = _Compare(name, "in", tuple(values))
                return _Not(listed) if no else listed
            op = self._next()
            if no or op.kind != "op" or op.text in "(),":
                self._fail(op.position, "expected == != < <= > >= =~ or in")
            if op.text == "=~":
                return _Compare(name, "=~", self._pattern(kind, op))
            value = self._value(kind)
            if value is None and op.text in _ORDERED:
                self._fail(
                    self._tokens[self._place - 1].position, f"null is not {op.text} anything"
                )
            return _Compare(name, op.text, value)
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(start, f"more than {DEPTH_MAX} levels of ( and not")
        if self._tokens[self._place - 1].text == "not":
            found: _Node = _Not(self._one())
        else:
            found = self._many(all_of=False)
            if not self._takes(")"):
                self._fail(self._now.position, "expected and, or, or )")
        self._depth -= 1
        return found

    def _kind(self, token: _Token) -> Kind:
        if token.text.startswith(HEADER):
            return "text"
        if token.text not in self._fields:
            hint = did_you_mean(token.text, self._fields, f"the fields are {self._known()}")
            self._fail(token.position, f"there is no field {token.text:.40}, {hint}")
        return self._fields[token.text]

    def _known(self) -> str:
        return ", ".join([*self._fields, "header.NAME"])

    def _count(self, position: int) -> None:
        self._terms += 1
        if self._terms > TERMS_MAX:
            self._fail(position, f"more than {TERMS_MAX} values")

    def _value(self, kind: Kind) -> Value:
        token = self._next()
        self._count(token.position)
        if token == ("name", "null", token.position):
            return None
        if token.kind not in ("text", "number", "time"):
            self._fail(token.position, "expected a value, such as " + _example(kind))
        if kind == "time":
            # Milliseconds since 1970, in UTC unless it has a zone; a number is one already
            text = _unquoted(token.text) if token.kind == "text" else token.text
            if token.kind == "number" and isinstance(known := _number(text), int):
                return known
            try:
                when = dt.datetime.fromisoformat(text)
                when = when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)
                return round(when.timestamp() * 1000)
            except (ValueError, OverflowError):
                self._fail(token.position, "this is no time, write 2026-03-01T10:00")
        if token.kind == "number":
            number = _number(token.text)
            if number is None:
                self._fail(token.position, f"a number has at most {_DIGITS_MAX} characters")
            return number
        if kind == "number" or token.kind == "time":
            self._fail(token.position, f"this is compared with {_example(kind)}")
        text = _unquoted(token.text)
        if isinstance(kind, tuple) and text not in kind:
            hint = did_you_mean(text, kind, f"the values are {', '.join(kind)}")
            self._fail(token.position, f"no record has {text:.40} here, {hint}")
        return text

    def _pattern(self, kind: Kind, op: _Token) -> re.Pattern[str]:
        if kind in ("number", "time"):
            self._fail(op.position, "=~ is for text")
        token = self._next()
        self._count(token.position)
        if token.kind != "text":
            self._fail(token.position, 'expected a pattern, such as "time.*out"')
        pattern = _unquoted(token.text)
        reason = _not_a_pattern(pattern)
        if reason:
            self._fail(token.position, reason)
        try:
            return re.compile(pattern)
        except (re.error, OverflowError) as error:
            self._fail(token.position, f"this is no pattern ({error})")


def _example(kind: Kind) -> str:
    if isinstance(kind, tuple):
        return f'"{kind[0]}"'
    return {"text": '"text"', "number": "a number", "time": "a time, 2026-03-01T10:00"}[kind]


def _unquoted(text: str) -> str:
    """Unescape quotes and backslashes; other backslashes stay, as patterns need them."""
    return re.sub(r"\\([\"'\\])", r"\1", text[1:-1]) if text[0] in "\"'" else text


def _not_a_pattern(pattern: str) -> str:
    """Why a pattern is refused, or "": the grammar excludes everything that could take long.

    Without groups no repeat is inside another one; the remaining ones are bounded.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        return f"a pattern has at most {PATTERN_CHARS_MAX} characters"
    repeats = optional = 0
    for part in _PATTERN_PART.finditer(pattern):
        if part[1] in ("(", ")"):
            return "a pattern has no groups, write \\( for the character, or two conditions"
        if re.fullmatch(r"\\[0-9]", part[1]):
            return "a pattern has no references"
        if part[1] == "|":
            repeats = optional = 0
        repeats += bool(part[2]) and part[2] != "?" and not re.fullmatch(r"\{\d+\}", part[2])
        optional += part[2] == "?"
        if repeats > PATTERN_REPEATS_MAX or optional > PATTERN_OPTIONAL_MAX:
            return (
                f"a pattern has at most {PATTERN_REPEATS_MAX} repeats and {PATTERN_OPTIONAL_MAX} "
                "question marks, write two conditions"
            )
    return ""
