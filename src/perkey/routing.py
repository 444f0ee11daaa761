"""The handler of a topic: a literal name takes precedence over a pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perkey.errors import ConfigError
from perkey.options import HandlerOptions

#: topics named in an error
TOPICS_SHOWN = 10


class Routes:
    """Topics and patterns of all handlers of one app."""

    def __init__(self, handlers: Sequence[HandlerOptions]) -> None:
        """Raises ConfigError if two handlers name the same topic."""
        self._handlers = handlers
        self._literal: dict[str, int] = {}
        self._patterns: list[tuple[re.Pattern[str], int]] = []
        for index, handler in enumerate(handlers):
            for topic in handler.topics:
                if topic.startswith("^"):
                    self._patterns.append((re.compile(topic), index))
                    continue
                taken = self._literal.setdefault(topic, index)
                if taken != index:
                    names = (self._handlers[taken].name, self._handlers[index].name)
                    raise ConfigError(
                        f"topic {topic!r} has two handlers, {names[0]} and {names[1]}: keep one "
                        "of them"
                    )

    @property
    def topics(self) -> list[str]:
        """The topics and patterns to subscribe to."""
        return [*self._literal, *(pattern.pattern for pattern, _ in self._patterns)]

    @property
    def literal(self) -> list[str]:
        """The literal topics."""
        return list(self._literal)

    @property
    def patterns(self) -> list[str]:
        """The patterns."""
        return [pattern.pattern for pattern, _ in self._patterns]

    def reads(self, topic: str) -> str | None:
        """The topic's literal name or the pattern that matches it; None if there is none."""
        matching = (one.pattern for one, _ in self._patterns if one.match(topic))
        return topic if topic in self._literal else next(matching, None)

    def options_of(self, topic: str) -> HandlerOptions:
        """The options of the topic's handler; raises ConfigError as `handler_of`."""
        return self._handlers[self.handler_of(topic)]

    def handler_of(self, topic: str) -> int:
        """Index of the handler; raises ConfigError for a topic that two patterns match."""
        literal = self._literal.get(topic)
        if literal is not None:
            return literal
        matching = [(p.pattern, index) for p, index in self._patterns if p.match(topic)]
        if len({index for _, index in matching}) > 1:
            shown = " and ".join(repr(pattern) for pattern, _ in matching)
            raise ConfigError(
                f"topic {topic!r} matches two patterns, {shown}: make them exclude each other, or "
                "name the topic literally"
            )
        if not matching:
            known = ", ".join([*self._literal, *self.patterns][:TOPICS_SHOWN])
            raise ConfigError(f"topic {topic!r} has no handler: the app reads {known or 'none'}")
        return matching[0][1]
