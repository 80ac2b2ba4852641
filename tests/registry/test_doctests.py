"""The examples in the modules' own documentation are true."""

import doctest
import importlib
import pkgutil

import pytest

import registry

NAMES = [f"registry.{module.name}" for module in pkgutil.iter_modules(registry.__path__)]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
