"""A history, as the tests over sockets have it."""

from tests.wire.conftest import history

__all__ = ["history"]
