"""The texts of `perkey why` for the causes in `halts`: why no record starts, what to do next."""

from __future__ import annotations

from collections.abc import Callable

from perkey.observe.sentences import (
    Row,
    Sentence,
    at_line,
    clock,
    error_text,
    lasting,
    seconds,
    unread_sentence,
)
from perkey.reasons import HALTS, HANGING, INTENT, LOAD, RANKS
from perkey.types import OUTPUT_CURES

#: calls that take longer than this are named as the reason of full slots
SLOW_S = 1.0


def _by_command(halt: Row) -> tuple[str, str]:
    """Which command has set what calls wait for, and the one that ends that."""
    # A command with the same names and handlers replaces it: another one would only suspend it
    names = [one.partition("=")[0] for one in str(halt["value"]).split()]
    ended = " ".join(f"{name}=default" for name in names)
    target = "" if halt.get("why") == "all" else f" --handler {halt.get('handler')}"
    at = clock(halt.get("until", 0.0))
    why = f" ({halt['reason']})" if halt.get("reason") else ""
    return (
        f"a command has set {halt['value']} until {at}{why}",
        f"`perkey set {ended}{target} --reason TEXT`",
    )


def _slots(halt: Row) -> tuple[str, str]:
    text = f"All concurrency slots{_of(halt)} are taken"
    if halt.get("value"):
        text_of, after = _by_command(halt)
        return f"{text}: {text_of}.", after
    if acknowledged := halt.get("acknowledged"):
        whose = "batch calls that have acknowledged all their records and have not returned"
        after = "return after the last acknowledgement, or set timeout_s"
        return (
            f"{text}, {acknowledged:,} of them by {whose}.",
            f"if it stays so, such a call hangs: {after}",
        )
    if (median_s := halt.get("median_s") or 0.0) >= SLOW_S:
        text += f" by calls of {seconds(median_s)} (median)"
    return (
        f"{text}; calls end and others start.",
        "normal under load; if remaining grows, raise concurrency or add members",
    )


def _of(halt: Row) -> str:
    if halt.get("handler"):
        return f" of {halt['handler']}"
    if halt.get("topic") and halt.get("partition") is not None:
        return f" of {halt['topic']}[{halt['partition']}]"
    return f" of {halt['topic']}" if halt.get("topic") else ""


def _flag(halt: Row) -> str:
    """The target of a command, as command-line options."""
    given = ((name, halt.get(name)) for name in ("topic", "handler"))
    return "".join(f" --{name} {value}" for name, value in given if value)


def _open_transaction(halt: Row) -> tuple[str, str]:
    text = (
        f"{halt.get('topic')}[{halt.get('partition')}]: the records from offset "
        f"{halt.get('stable_end', 0):,} wait behind an open transaction of another producer "
        f"(last stable offset {halt.get('stable_end', 0):,}, end {halt.get('end', 0):,})."
    )
    after = (
        "it ends with its producer, or after its transaction.timeout.ms; `kafka-transactions.sh "
        f"--bootstrap-server HOST:9092 describe-producers --topic {halt.get('topic')} --partition "
        f"{halt.get('partition')}` names the producer, `abort` ends the transaction"
    )
    return text, after


BROKER_NEXT = (
    "restore a broker or the network; calls continue, and their records are committed when a "
    "broker answers"
)
COORDINATOR_NEXT = (
    "restore that broker; without a majority of the controllers no other takes its place: "
    "`kafka-metadata-quorum.sh --bootstrap-server HOST:9092 describe --status`"
)
REFUSED_NEXT = (
    "correct the user, password or certificate in kafka={...} and restart: after 30 s of "
    "refusals the run ends"
)


LOCKS_OF_POSTGRESQL = "SELECT pid, state, query FROM pg_stat_activity"
#: what a start waits for -> its name, and what to do
STARTS: dict[str, tuple[str, str]] = {
    "brokers": (
        "an answer of the brokers",
        (
            "restore a broker or the network, or correct bootstrap.servers: `perkey doctor "
            "MODULE:APP` checks them; after start_timeout_s the run ends with exit code 1"
        ),
    ),
    "ledger": (
        "the ledger's database",
        "it is away, or a transaction locks it: `{}` names the process",
    ),
    "lifespan": (
        "the lifespan to open",
        (
            "restore what it waits for, and give that call a time-out; app.run() waits for 60 s, "
            "then ends with exit code 1"
        ),
    ),
    "control": ("its control topic", "it is read for a few seconds; then the start continues"),
}


def _starting(halt: Row) -> tuple[str, str]:
    name, after = STARTS.get(halt.get("why", ""), ("something", ""))
    value = halt.get("value") or ""
    where = f" at {value}" if value else ""
    file = value.partition(":///")[2] if value.startswith("sqlite") else ""
    after = after.format(f"fuser -v {file}" if file else LOCKS_OF_POSTGRESQL)
    text = f"The start has waited{lasting(halt)} for {name}{where}{at_line(halt)}"
    text += f": {halt['reason'].rstrip('.')}" if halt.get("reason") else ""
    return text if text.endswith("?") else f"{text}.", after


def _failing(halt: Row) -> tuple[str, str]:
    text = (
        f"Every attempt of {halt.get('handler')} has failed{lasting(halt)}: the last "
        f"{halt.get('failed', 0):,}, the latest with{error_text(halt, 'error').removeprefix(':')}. "
        f"Records that wait to be retried: {halt.get('waiting', 0):,}."
    )
    cure = OUTPUT_CURES.get((halt.get("error") or {}).get("type", ""))
    return text, (
        f"{cure or 'fix the error: its traceback is in the log (`attempt failed`)'}; to keep the "
        f"remaining attempts until then: "
        f"`perkey pause --handler {halt.get('handler')} --reason TEXT`"
    )


def _broker(halt: Row) -> tuple[str, str]:
    if halt.get("reason"):
        return (
            "The group's coordinator does not answer: nothing is committed and no partition "
            f"assigned. {seconds(halt.get('for_s', 0.0))} ago: {halt['reason']}."
        ), COORDINATOR_NEXT
    return (
        f"No broker has answered{lasting(halt)}: nothing is fetched or committed. "
        "Remaining: unknown."
    ), BROKER_NEXT


def _membership(halt: Row) -> tuple[str, str]:
    if halt.get("reason"):
        return (
            f"Nothing starts: the polling thread has waited for {halt['reason']}, and no broker "
            "answered: membership must be confirmed first."
        ), "a commit confirms it: restore the broker, whose failed connections are in the log"
    return (
        "Nothing starts: the polling thread was blocked, so membership must be confirmed first.",
        "a commit confirms it; was the process suspended, or the machine overloaded?",
    )


def _unread(halt: Row) -> tuple[str, str]:
    about = {"place_for_s": halt.get("for_s", 0.0), "place_reason": halt.get("reason", "unknown")}
    one = unread_sentence({**halt, **about, "place": halt["cause"]})
    return one.text, one.next


def _none_begins(halt: Row) -> tuple[str, str]:
    oldest = halt.get("oldest") or {}
    text = (
        f"No call{_of(halt)} has begun for {seconds(halt.get('for_s', 0.0))}: "
        f"{halt.get('calls', 0):,} wait{at_line(oldest)}."
    )
    if oldest.get("executor") == "processes":
        return text, (
            "its worker processes still open (imports, the lifespan), or its prefetch has not "
            "returned"
        )
    return text, "its prefetch has not returned: give what it calls a time-out (see the stack)"


def _outage(halt: Row) -> tuple[str, str]:
    value = "" if halt.get("value") is None else f" of {halt['value']}"
    text = (
        f"The service that {halt.get('handler')} calls has been unavailable{lasting(halt)}"
        f"{error_text(halt, 'error')}. "
        f"Records{value} wait ({halt.get('waiting', 0):,} could start); one probes every "
        f"{seconds(halt.get('probe_s', 0.0))}, and attempts cost nothing."
    )
    return text, "restore that service: all records continue at the first success"


def _brake(halt: Row) -> tuple[str, str]:
    text = (
        f"The brake holds {halt.get('handler')}{lasting(halt)}: {halt.get('exhausted', 0):,} of "
        f"its last {halt.get('ended', 0):,} records used up their attempts, the latest one with"
        f"{error_text(halt, 'error').removeprefix(':')}. {halt.get('waiting', 0):,} could start; "
        f"one probes every {seconds(halt.get('probe_s', 0.0))}."
    )
    return text, (
        "fix the cause: all continue when a probe succeeds, or by `perkey resume --handler "
        f"{halt.get('handler')} --reason TEXT`"
    )


#: why nothing of a budget starts at all: the cause of what waits, and not load
BUDGET_STOPS = ("asked", "share")


def _budget(halt: Row) -> tuple[str, str]:
    waiting, name = halt.get("waiting", 0), halt.get("budget")
    keys = "1 key{} waits" if waiting == 1 else f"{waiting:,} keys{{}} wait"
    per_s, most = halt.get("per_s"), halt.get("in_flight")
    found = [] if per_s is None else [f"{per_s:g} per second"]
    limits = ", ".join(found if most is None else [*found, f"{most:,} in flight"])
    text = f"{keys.format(_of(halt))} for budget {name} ({limits})"
    share, why = halt.get("share", 1.0), halt.get("why")
    if share < 1.0:
        text += f", of which this member has {100 * share:.0f} %"
    if why == "asked":
        until = clock(halt.get("until") or 0.0)
        text += f": the service asked to wait until {until}{error_text(halt, 'error')}"
        return f"{text}.", "expected after a 429; lower per_s= if it happens often"
    if why == "in_flight":
        calls = halt.get("calls", 0)
        text += f": {calls:,} {'call is' if calls == 1 else 'calls are'} in flight"
        return f"{text}.", "they start as calls end; if none ends: perkey why, or a timeout_s"
    if why == "share":
        return (
            f"{text}: how many partitions its topics have is not known yet.",
            "it is asked for again: are the topics and a broker there?",
        )
    due = halt.get("due_in_s")
    text += "" if due is None else f": the next one starts in {seconds(max(0.1, due))}"
    return f"{text}.", "expected; to go faster, raise per_s= of the budget"


def _unassigned(halt: Row) -> tuple[str, str]:
    if halt.get("why") == "joining":
        text = f"This member joins its group: it has had no partition{lasting(halt)}"
        if halt.get("reason"):
            return f"{text}, and {halt['reason']}.", BROKER_NEXT
        return f"{text}.", "wait: the brokers need a few seconds to assign partitions"
    if halt.get("why") == "reserve":
        return "This member is idle: others own all partitions of its topics.", (
            "normal with more members than partitions: stop it, or add partitions"
        )
    if halt.get("reason"):
        text = f"This member has no partition{lasting(halt)}: {halt['reason']}."
        return text, "find the member that hangs or was killed, and restart it; the group waits"
    return (
        "Nothing starts: this member has no partition.",
        "more members than partitions? a killed member's session still open? see the log",
    )


def _loop(halt: Row) -> tuple[str, str]:
    text = f"The handlers' loop is blocked{lasting(halt)}"
    oldest = halt.get("oldest")
    if oldest is None:
        text += f", by no handler, at {halt.get('reason', 'an unknown place')}."
        after = "run that code (another task, the lifespan) in a thread"
        return f"{text} No async call continues.", after
    key = f" (key {oldest['key']})" if oldest.get("key") is not None else ""
    text += (
        f" by the call of {oldest['topic']}[{oldest['partition']}] record {oldest['offset']:,}"
        f"{key}{at_line(oldest)}. No async call continues."
    )
    return text, (
        f"timeout_s cannot end it: write {oldest.get('handler')} as a plain def, or set "
        'executor="threads" or "processes"; to end it now, kill the process'
    )


def _rate_limit(halt: Row) -> tuple[str, str]:
    text = f"Calls{_of(halt)} wait for its rate_limit_per_s"
    if halt.get("value"):
        text_of, after = _by_command(halt)
        return f"{text}: {text_of}.", after
    return f"{text}.", "expected; to go faster, raise rate_limit_per_s on @app.consume"


#: cause -> the finding, and what to do about it
#: the sentences that are computed, by cause
HALTED_BY: dict[str, Callable[[Row], tuple[str, str]]] = {
    "starting": _starting,
    "failing": _failing,
    "unassigned": _unassigned,
    "paused": lambda halt: (
        f"Nothing{_of(halt)} starts: the application called app.pause().",
        f"app.resume({halt['topic']!r})" if halt.get("topic") else "app.resume()",
    ),
    "command": lambda halt: (
        (
            f"Nothing{_of(halt)} starts: paused by a command until "
            f"{clock(halt.get('until', 0.0))} ({halt.get('reason', '')})."
        ),
        f"`perkey resume{_flag(halt)} --reason TEXT`",
    ),
    "stopping": lambda halt: (
        (
            f"Nothing starts: the run ends with an error: {halt['reason'].rstrip('.')}."
            if halt.get("reason")
            else f"Nothing starts: a stop was requested ({halt.get('mode', 'in_flight')})."
        ),
        "running calls are finished, up to drain_timeout_s; a second signal ends it immediately",
    ),
    "membership": _membership,
    "broker": _broker,
    "refused": lambda halt: (
        f"The brokers refuse the login: {halt.get('reason', 'no reason given').rstrip('.')}.",
        REFUSED_NEXT,
    ),
    "loop": _loop,
    "not_begun": _none_begins,
    "budget": _budget,
    "outage": _outage,
    "brake": _brake,
    "rate_limit": _rate_limit,
    "slots": _slots,
    "open_transaction": _open_transaction,
    "start_unknown": _unread,
    "not_fetched": _unread,
}


_TEMPLATES = {cause.name: cause for cause in HALTS if cause.sentence}


def halt_sentence(halt: Row) -> Sentence:
    """The text for a cause that blocks all records."""
    cause = _TEMPLATES.get(halt["cause"])
    if cause is None:
        text, after = HALTED_BY[halt["cause"]](halt)
    else:
        text = cause.sentence.format_map({"waiting": 0, **halt, "of": _of(halt)})
        after = cause.cure
    rank = RANKS[halt["cause"]]
    if halt["cause"] == "unassigned" and (
        halt.get("why") == "reserve" or (halt.get("why") == "joining" and not halt.get("reason"))
    ):
        rank = LOAD
    if halt["cause"] in ("rate_limit", "slots") and halt.get("value"):
        rank = INTENT
    if halt["cause"] == "budget" and halt.get("why") in BUDGET_STOPS:
        rank = HANGING
    stack = tuple((halt.get("oldest") or halt).get("stack") or ())
    return Sentence(text, after, halt["cause"], stack, rank)
