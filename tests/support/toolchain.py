"""The real engine and the real toolchain image, as fixtures.

Import them into a test module or a conftest::

    from tests.support.toolchain import engine, toolchain_image  # noqa: F401
"""

import os
from collections.abc import Iterator

import pytest

from builder.cache import InputCache
from builder.engine import Engine, connect
from builder.toolchain import ToolchainImage, ensure_image, load_toolchain
from kvreg.errors import NotFoundError

TOOLCHAIN = "cuda-12.4-debian12"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The machine's engine; without one these tests are skipped, but never in CI."""
    try:
        found = connect()
    except NotFoundError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with found:
        yield found


@pytest.fixture(scope="session")
def toolchain_image(engine: Engine) -> ToolchainImage:
    """The Debian toolchain's image; built when the engine lacks it, which takes minutes."""
    return ensure_image(engine, load_toolchain(TOOLCHAIN), InputCache())
