"""Fixtures of the client's tests."""

from tests.support.distribution import distribution, distribution_with_login

__all__ = ["distribution", "distribution_with_login"]
