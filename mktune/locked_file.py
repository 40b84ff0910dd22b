"""A file or folder held by one process at a time. The lock ends with the process, so that none goes stale."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HeldElsewhere(Exception):
    """Another process holds it."""


@contextmanager
def held(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold `path`, a file (made where it is missing) or a folder, as long as the block runs.

    wait  for who holds it; else HeldElsewhere is raised at once

    Raises OSError where the file system cannot lock it.
    """
    handle = _locked(path, wait)
    try:
        yield
    finally:
        os.close(handle)


def _locked(path: Path, wait: bool) -> int:
    while True:
        handle = _opened(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_at(path, handle):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise HeldElsewhere(str(path)) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # who held it has put another file in its place, or taken it away


def _opened(path: Path) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        if not path.exists():
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # another user's; a lock needs no right to write


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
