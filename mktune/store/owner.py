"""Which process runs a trial, and whether it still does."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path


def now() -> str:
    """The time in UTC as text that sorts."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def this_process() -> str:
    """JSON that names this process on this host: a number that is used again later does not name it."""
    return _describe(os.getpid())


def is_gone(owner: str) -> bool:
    """True where the process `owner` is one of this host and runs no more. Of another host's only its lease tells."""
    try:
        host, pid, birth = json.loads(owner)
    except (ValueError, TypeError):
        return True
    return bool(host == _host() and birth != _birth(pid))


@lru_cache(maxsize=8)
def _describe(pid: int) -> str:
    return json.dumps([_host(), pid, _birth(pid)])


def _host() -> str:
    """The host, and the container on it: process numbers mean nothing outside their name space."""
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _birth(pid: int) -> str | None:
    """When process `pid` started, in ticks since boot; None where there is no such process (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else fields[19].decode()
