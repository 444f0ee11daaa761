"""What travels by value, and can be loaded where its module is not."""

from __future__ import annotations

import pickle
import sys
import types

import pytest

from perkey.spark.fleet import shipping

MODELS = """
from pydantic import BaseModel, Field

class Place(BaseModel):
    zone: str

class Ride(BaseModel):
    begin: Place
    end: Place
    before: "Ride | None" = None
    cost: float = Field(alias="Cost", default=0.5)
"""


@pytest.fixture
def models(monkeypatch):
    """A module of the user's that only this process has, with postponed annotations or without."""

    def make(first_line: str) -> types.ModuleType:
        module = types.ModuleType("models_of_a_user")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(first_line + MODELS, module.__dict__)
        return module

    return make


@pytest.mark.parametrize("first_line", ["", "from __future__ import annotations"])
def test_models_inside_of_models_travel(models, first_line):
    """A model with two fields of another one, and one of itself: KeyError('type') it was."""
    module = models(first_line)
    with shipping.by_value([module]):
        data = shipping.dumps((module.Ride, module.Place))
    del sys.modules[module.__name__]
    ride, place = pickle.loads(data)
    said = {"begin": {"zone": "a"}, "end": {"zone": "b"}, "Cost": 2}
    made = ride.model_validate({**said, "before": said})
    assert type(made.begin) is place
    assert (made.before.end.zone, made.cost, made.before.before) == ("b", 2.0, None)
    assert '"zone":"b"' in made.model_dump_json()
