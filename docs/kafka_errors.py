"""The table of Kafka errors as a page."""

from __future__ import annotations

from confluent_kafka import KafkaError

from perkey.kafka.verdicts import FAMILIES, table

#: The questions, which are also the names of a family's answers.
PLACES = ("commit", "poll", "delivery", "transaction")


def page() -> str:
    """What docs/kafka-errors.md holds."""
    lines = [
        "# Kafka errors and what Perkey does about them",
        "",
        "Generated from the table in `src/perkey/kafka/verdicts.py`; a test fails if they differ.",
        "A code that is not listed here is logged and does not end the run.",
        "",
        "- **commit**: `retry` within the same assignment; `too_large`: committed again without",
        "  the offset map; `gone`: another member owns the partition; `stop`: exit 1.",
        "- **poll**: `retry`: librdkafka recovers by itself; `rejoin`: the consumer is recreated",
        "  after a pause; `report`: logged; `stop`: exit 1.",
        "- **delivery** (of a produced message): `retry`: produced again; `refused`: the attempt",
        "  of its record has failed; `fatal`: the producer cannot be used any more.",
        "- **transaction**: `retry` the call; `abort` and produce again; `new_producer` under the",
        "  same id, as the outcome is unknown; `fenced` and `fatal`: exit 1.",
    ]
    for family in FAMILIES:
        lines += ["", f"## {family.reason[0].upper()}{family.reason[1:]}", ""]
        lines += [
            " · ".join(f"{place} `{getattr(family, place)}`" for place in PLACES),
            "",
            "| code | name | message of librdkafka |",
            "|---|---|---|",
        ]
        rows = [row for row in table().values() if row.family is family]
        lines += [f"| {r.code} | `{r.name}` | {KafkaError(r.code).str()} |" for r in rows]
    return "\n".join(lines) + "\n"
