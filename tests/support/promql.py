"""The part of PromQL that our alert rules use, over series in memory: for machines without promtool.

`firing(rules, series, until_s)` evaluates rules once a minute, as Prometheus does. Where promtool is
installed tests/unit/observe/test_alerts.py has it evaluate the same series and compares.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

STEP_S = 60.0
LOOKBACK_S = 300.0

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
#: of one name and set of labels: time and value, in order
Series = dict[tuple[str, Labels], list[tuple[float, float]]]

_TOKEN = re.compile(
    r'\s*(?:(\d+(?:\.\d+)?(?:ms|[smhd])?)|([A-Za-z_]\w*)|("[^"]*")|(=~|!~|==|!=|>=|<=|[-+*/()\[\]{},:=<>]))'
)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COMPARE = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_SUMS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum, "max": max, "min": min, "count": len,
}  # fmt: skip


def seconds(text: str) -> float:
    """`5m` in seconds; 0 for nothing."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd])", text) if text else None
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def _over(points: Sequence[tuple[float, float]], begin: float, end: float, *, rate: bool) -> float:
    """Prometheus' extrapolated increase of a counter, or its rate."""
    total, before = 0.0, points[0][1]
    for _, value in points[1:]:
        total += value - before if value >= before else value
        before = value
    sampled = points[-1][0] - points[0][0]
    between = sampled / (len(points) - 1)
    to_begin, to_end = points[0][0] - begin, end - points[-1][0]
    if total > 0 and points[0][1] >= 0:
        to_begin = min(to_begin, sampled * (points[0][1] / total))
    threshold = between * 1.1
    reach = sampled + (to_begin if to_begin < threshold else between / 2)
    reach += to_end if to_end < threshold else between / 2
    increase = total * reach / sampled
    return increase / (end - begin) if rate else increase


def _slope(points: Sequence[tuple[float, float]]) -> float:
    count = len(points)
    mean_t = sum(at for at, _ in points) / count
    mean_v = sum(value for _, value in points) / count
    spread = sum((at - mean_t) ** 2 for at, _ in points)
    return sum((at - mean_t) * (value - mean_v) for at, value in points) / spread


class Query:
    """One expression, parsed as it is evaluated."""

    def __init__(self, text: str, series: Series) -> None:
        self._series = series
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"not understood: {text[at : at + 20]!r}")
            self._tokens.append(found[0].strip())
            at = found.end()

    def at(self, now: float) -> Vector:
        """Its value at a time."""
        self._place = 0
        value = self._or()(now)
        if self._place < len(self._tokens):
            raise ValueError(f"not understood: {self._tokens[self._place :]}")
        return value

    # -- parsing: each method returns what computes the value at a time ----------------------------

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if wanted and token not in wanted:
            raise ValueError(f"{wanted} expected, not {token!r}")
        self._place += 1
        return token

    def _names(self) -> list[str]:
        self._take("(")
        names = []
        while self._peek() != ")":
            names.append(self._take())
            if self._peek() == ",":
                self._take()
        self._take(")")
        return names

    def _or(self) -> Callable[[float], Any]:
        left = self._and()
        while self._peek() == "or":
            self._take()
            left = self._joined(left, self._and(), "or", None)
        return left

    def _and(self) -> Callable[[float], Any]:
        left = self._binary(_COMPARE, lambda: self._binary(_ARITHMETIC, self._unary))
        while self._peek() in ("and", "unless"):
            kind, on = self._take(), None
            if self._peek() == "on":
                self._take()
                on = self._names()
            right = self._binary(_COMPARE, lambda: self._binary(_ARITHMETIC, self._unary))
            left = self._joined(left, right, kind, on)
        return left

    def _joined(self, left: Any, right: Any, kind: str, on: list[str] | None) -> Any:
        def part(labels: Labels) -> Labels:
            return labels if on is None else frozenset(one for one in labels if one[0] in on)

        def value(now: float) -> Vector:
            ours, theirs = left(now), right(now)
            if kind == "or":
                return {**theirs, **ours}
            known = {part(labels) for labels in theirs}
            return {la: v for la, v in ours.items() if (part(la) in known) is (kind == "and")}

        return value

    def _binary(self, kinds: Mapping[str, Any], inner: Callable[[], Any]) -> Any:
        left = inner()
        while (sign := self._peek()) in kinds:
            self._take()
            left = self._applied(left, inner(), kinds[sign], keeps=kinds is _COMPARE)
        return left

    def _applied(self, left: Any, right: Any, does: Any, *, keeps: bool) -> Any:
        def value(now: float) -> Any:
            one, other = left(now), right(now)
            if not isinstance(one, dict):  # a number and a vector, in whatever order
                pairs = {labels: (one, there) for labels, there in other.items()}
            elif isinstance(other, dict):
                pairs = {labels: (one[labels], other[labels]) for labels in one if labels in other}
            else:
                pairs = {labels: (here, other) for labels, here in one.items()}
            if keeps:
                return {labels: a for labels, (a, b) in pairs.items() if does(a, b)}
            return {labels: does(a, b) for labels, (a, b) in pairs.items()}

        return value

    def _unary(self) -> Any:
        token = self._take()
        if token == "(":
            inner = self._or()
            self._take(")")
        elif token[0].isdigit():
            number = float(token)
            return lambda now: number
        elif token in _SUMS:
            inner = self._aggregate(_SUMS[token])
        elif self._peek() == "(":
            inner = self._function(token)
        else:
            inner = self._selected(token)
        return inner

    def _aggregate(self, does: Any) -> Any:
        self._take("by")
        names = self._names()
        self._take("(")
        inner = self._or()
        self._take(")")
        # A subquery of an aggregation is the argument of a range function.
        span = self._range() if self._peek() == "[" else None

        def value(now: float) -> Vector:
            groups: dict[Labels, list[float]] = {}
            for labels, found in inner(now).items():
                groups.setdefault(frozenset(x for x in labels if x[0] in names), []).append(found)
            return {labels: float(does(values)) for labels, values in groups.items()}

        return value if span is None else self._subquery(value, *span)

    def _range(self) -> tuple[float, float]:
        self._take("[")
        length, step = seconds(self._take()), STEP_S
        if self._peek() == ":":
            self._take()
            step = seconds(self._take())
        self._take("]")
        return length, step

    def _subquery(self, inner: Any, length: float, step: float) -> Any:
        def points(now: float) -> tuple[dict[Labels, list[tuple[float, float]]], float, float]:
            found: dict[Labels, list[tuple[float, float]]] = {}
            at = (now - length) // step * step
            while (at := at + step) <= now:
                for labels, value in inner(at).items():
                    found.setdefault(labels, []).append((at, value))
            return found, now - length, now

        return points

    def _function(self, name: str) -> Any:
        self._take("(")
        inner = self._or()
        self._take(")")
        if name == "absent":
            return lambda now: {} if inner(now) else {frozenset(): 1.0}
        does: dict[str, Callable[..., float | None]] = {
            "rate": lambda pts, a, b: _over(pts, a, b, rate=True) if len(pts) > 1 else None,
            "increase": lambda pts, a, b: _over(pts, a, b, rate=False) if len(pts) > 1 else None,
            "deriv": lambda pts, a, b: _slope(pts) if len(pts) > 1 else None,
            "max_over_time": lambda pts, a, b: max(value for _, value in pts),
            "count_over_time": lambda pts, a, b: float(len(pts)),
        }
        apply = does[name]

        def value(now: float) -> Vector:
            series, begin, end = inner(now)
            found = {labels: apply(points, begin, end) for labels, points in series.items()}
            return {labels: one for labels, one in found.items() if one is not None}

        return value

    def _selected(self, name: str) -> Any:
        wanted: list[tuple[str, str, str]] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                label, sign, text = self._take(), self._take(), self._take()
                wanted.append((label, sign, text.strip('"')))
                if self._peek() == ",":
                    self._take()
            self._take()
        length = self._range()[0] if self._peek() == "[" else None
        offset = 0.0
        if self._peek() == "offset":
            self._take()
            offset = seconds(self._take())
        chosen = {
            labels: points
            for (one, labels), points in self._series.items()
            if one == name and all(_matches(dict(labels).get(la, ""), s, t) for la, s, t in wanted)
        }
        if length is None:

            def newest(now: float) -> Vector:
                at = now - offset
                found = {la: _within(points, at - LOOKBACK_S, at) for la, points in chosen.items()}
                return {labels: points[-1][1] for labels, points in found.items() if points}

            return newest

        def ranged(now: float) -> tuple[dict[Labels, list[tuple[float, float]]], float, float]:
            begin, end = now - offset - length, now - offset
            found = {labels: _within(points, begin, end) for labels, points in chosen.items()}
            return {labels: points for labels, points in found.items() if points}, begin, end

        return ranged


def _within(
    points: Sequence[tuple[float, float]], begin: float, end: float
) -> list[tuple[float, float]]:
    return [one for one in points if begin < one[0] <= end]


def _matches(value: str, sign: str, text: str) -> bool:
    if sign in ("=~", "!~"):
        return bool(re.fullmatch(text, value)) is (sign == "=~")
    return (value == text) is (sign == "=")


def firing(rules: Iterable[Mapping[str, Any]], series: Series, until_s: float) -> Counter[str]:
    """The alerts that fire at this time, and how many of each."""
    found: Counter[str] = Counter()
    for rule in rules:
        query, waits_s = Query(rule["expr"], series), seconds(rule.get("for", ""))
        since: dict[Labels, float] = {}
        now = 0.0
        while now <= until_s:
            held = query.at(now)
            since = {labels: since.get(labels, now) for labels in held}
            now += STEP_S
        found[str(rule["alert"])] += sum(until_s - at >= waits_s for at in since.values())
    return +found
