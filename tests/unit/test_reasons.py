"""One table of reasons: what is made from it covers the core, and nothing else names a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perkey.core import gates, states
from perkey.observe import halts, sentences
from perkey.reasons import HALTS, LOOKED_UP, PLACE_OF, PLACES, Reason

DOCS = Path(__file__).parents[2] / "docs" / "snapshot.md"
#: gates that a cause with another name shows: outputs of exactly_once wait for a transaction
ALIKE = {"transaction": "outputs"}


def unexplained(places, causes) -> list[str]:
    """Reasons without a sentence, or with two."""
    computed = (sentences.COMPUTED, halts.HALTED_BY)
    return [
        reason.name
        for reasons, by_name in zip((places, causes), computed, strict=True)
        for reason in reasons
        if bool(reason.sentence) == (reason.name in by_name)
    ]


def test_every_reason_has_one_sentence():
    """From its row, or computed; and nothing is computed for a reason that does not exist."""
    assert unexplained((*PLACES, *LOOKED_UP), HALTS) == []
    assert unexplained((Reason("new", "?"),), ()) == ["new"]
    assert sentences.COMPUTED.keys() <= {place.name for place in (*PLACES, *LOOKED_UP)}
    assert halts.HALTED_BY.keys() <= {cause.name for cause in HALTS}


def test_every_state_of_an_unfinished_record_has_one_place():
    """A state that is added to the core without a row turns this red."""
    unfinished = set(states.RECORD_NAMES) - {"queued", "done", "superseded"}
    assert PLACE_OF.keys() == unfinished
    assert sum(len(place.states) for place in PLACES) == len(unfinished)


def test_every_gate_is_a_cause():
    """What closes a gate of the core is named in `halts`."""
    closed = {
        value
        for name, value in vars(gates).items()
        if re.fullmatch("[A-Z]+", name) and isinstance(value, str)
    }
    assert {ALIKE.get(value, value) for value in closed} <= {cause.name for cause in HALTS}


@pytest.mark.parametrize("reasons", [PLACES, HALTS])
def test_every_reason_is_in_the_docs(reasons):
    """With its meaning, in the generated table."""
    text = DOCS.read_text()
    assert [r.name for r in reasons if f"| `{r.name}` | {r.meaning} |" not in text] == []
