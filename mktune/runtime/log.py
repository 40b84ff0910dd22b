"""Warnings of a book: each text once in a process, however many books a server opens."""

from __future__ import annotations

import logging

_said: set[str] = set()


def warn(text: str) -> None:
    """Log `text` to `mktune.runtime`, unless it was said before."""
    if text not in _said:
        _said.add(text)
        logging.getLogger("mktune.runtime").warning("%s", text)
