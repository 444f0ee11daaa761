"""The account is taken of the core's own engine."""

from tests.unit.core.conftest import make_desk

__all__ = ["make_desk"]
