"""One measurement at a time on a GPU, whichever process of this machine takes it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def gpu_lock(uuid: str, folder: Path | None = None) -> Iterator[None]:
    """Hold the GPU `uuid`; waits for whoever holds it. The lock ends with the process, however that ends."""
    path = (folder or Path(tempfile.gettempdir())) / f"mktune-{uuid or 'gpu'}.lock"
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(path, flags, 0o666)
    except PermissionError:  # another user's file; a lock needs no right to write
        handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
