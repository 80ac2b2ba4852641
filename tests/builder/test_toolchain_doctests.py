"""The examples in the docstrings are true."""

import doctest
import importlib

import pytest

MODULES = (
    "builder.apt",
    "builder.engine",
    "builder.engine_lines",
    "builder.toolchain_cuda",
    "builder.toolchain_rootfs",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
