"""A real Chromium without a window, driven over its own protocol."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_program() -> str:
    """The machine's Chromium, or the one that KVREG_TEST_BROWSER names; skips without."""
    found = os.environ.get("KVREG_TEST_BROWSER") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium, or name one with KVREG_TEST_BROWSER")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A running browser (playwright's `Browser`)."""
    program = browser_program()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to run as root, which containers and CI are.
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()
