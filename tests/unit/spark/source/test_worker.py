"""What Perkey does to Python's garbage collector in Spark's workers."""

from __future__ import annotations

import gc

import pytest

from perkey.spark.source import worker


@pytest.fixture(autouse=True)
def thawed():
    """Each test begins and ends as a new process does."""
    worker.settle_in.cache_clear()
    yield
    worker.settle_in.cache_clear()
    gc.unfreeze()


def test_what_is_loaded_is_left_alone_once(monkeypatch):
    """Later tasks add nothing: what they leave is collected as ever."""
    monkeypatch.setenv(worker.REUSED, "1")
    worker.settle_in()
    frozen = gc.get_freeze_count()
    kept = [[] for _ in range(1_000)]
    worker.settle_in()
    assert kept
    assert 0 < gc.get_freeze_count() <= frozen


def test_a_process_of_its_own_is_left_alone(monkeypatch):
    """A driver, a Connect server, a worker that ends with its task."""
    monkeypatch.delenv(worker.REUSED, raising=False)
    frozen = gc.get_freeze_count()  # the tests' own process froze what it had collected
    worker.settle_in()
    assert gc.get_freeze_count() == frozen


@pytest.mark.parametrize("was_on", [True, False])
def test_collection_is_as_it_was_afterwards(was_on):
    """Also after an error, and where the program had turned it off itself."""
    if not was_on:
        gc.disable()
    try:
        with pytest.raises(ZeroDivisionError), worker.without_collection():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
