"""A chromium of the system, driven by playwright: the browser that opens sites of `opatlas report`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """Returns why no browser can be opened; "" if one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "needs playwright: pip install 'opatlas[test]'"
    return "" if _program() else "needs chromium: apt-get install chromium"


def _program() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Yields a browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a sandbox, as root in a container: it opens nothing but pages that tests have made.
        browser = playwright.chromium.launch(executable_path=_program(), args=["--no-sandbox"])
        yield browser
        browser.close()
