"""A browser without a window: what a page says once its scripts have run, and how it looks."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRE = "MKTUNE_TEST_BROWSER"
"""Set to "required": tests that need a browser fail where there is none, instead of being skipped."""
_SECONDS = 20
"""Of the page's own clock, which runs ahead while nothing happens."""
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]+>", re.DOTALL)


def find() -> str | None:
    """The first browser of this machine that can run without a window; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def text_of(browser: str, url: str) -> str:
    """The words of the page, one blank between them."""
    return " ".join(unescape(_TAGS.sub(" ", _run(browser, url, "--dump-dom"))).split())


def picture_of(browser: str, url: str, path: Path, width: int, height: int) -> None:
    """The page as PNG."""
    _run(browser, url, f"--screenshot={path}", f"--window-size={width},{height}", "--hide-scrollbars")


def _run(browser: str, url: str, *options: str) -> str:
    with tempfile.TemporaryDirectory() as home:
        plain = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={home}",
            "--force-device-scale-factor=1",
        ]
        command = [browser, *plain, f"--virtual-time-budget={1000 * _SECONDS}", *options, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
