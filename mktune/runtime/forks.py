"""Locks for work that a fork must not cut in two.

A child has only the thread that forked. What another one held at that moment stays held in it for ever: a lock of
SQLite, of a module that is imported for the first time, of a property that is worked out once. Nobody sees those locks,
so a book does such work under one of its own, and a fork waits for the work to end.
"""

from __future__ import annotations

import logging  # noqa: F401  a fork takes the locks of what was imported last first: logging's must come after these
import os
import threading


def uncut() -> threading.RLock:
    """A lock that nobody else holds in a child. May be entered again by its thread, as by a handler of a signal."""
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
