"""How long a benchmark's handler waits: the same numbers in Python and in java/Bench.java."""

_KNUTH = 2654435761
_MASK = 0xFFFFFFFF
_TABLE_MAX_S = 0.005


def sleep_s(handler: str, offset: int) -> float:
    """Seconds the handler waits for the record at `offset`.

    `handler` is "noop", "table" (0 to 5 ms, decided by the offset) or a number of ms.
    """
    if handler == "noop":
        return 0.0
    if handler == "table":
        return table_s(offset)
    return float(handler) / 1000


def table_s(offset: int) -> float:
    """The multiplicative hash of the offset, scaled to 0 to 5 ms."""
    return ((offset * _KNUTH) & _MASK) / (_MASK + 1) * _TABLE_MAX_S
