"""A PostgreSQL server of the test's own, where one is installed: no configuration, no data of anybody else."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUIRE = "MKTUNE_TEST_POSTGRES"
"""Environment variable: "required" makes a test that needs the server fail where there is none, instead of skipping."""

LIMIT_S = "600"
"""How long the server may take to start or to end, on a busy machine."""


class NoServerError(Exception):
    """Why no server can be started here, in one line."""


def tools() -> Path:
    """The folder of `initdb` and `pg_ctl`: on the PATH, or where Debian puts them, the newest version first."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder.resolve()
    raise NoServerError("no PostgreSQL server is installed (initdb, pg_ctl)")


def _version(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdigit() else 0


@contextmanager
def running() -> Iterator[str]:
    """URL, without a database, of a server that ends with the block. Raises NoServerError."""
    if importlib.util.find_spec("psycopg") is None:
        raise NoServerError("psycopg is not installed")
    bin_ = tools()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="mktune-pg-"))  # not below tmp_path, which another user cannot enter
    try:
        _start(bin_, folder, port)
        yield f"postgresql://postgres@127.0.0.1:{port}"
        _as_user(bin_ / "pg_ctl", "-D", folder / "d", "-m", "immediate", "-t", LIMIT_S, "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(bin_: Path, folder: Path, port: int) -> None:
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=200"
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        _as_user(bin_ / "initdb", "-D", folder / "d", "-A", "trust", "-U", "postgres", "--no-sync")
        _as_user(bin_ / "pg_ctl", "-D", folder / "d", "-o", options, "-l", folder / "log", "-w", "-t", LIMIT_S, "start")
    except (subprocess.CalledProcessError, LookupError, OSError) as error:
        raise NoServerError(f"PostgreSQL does not start here: {error}") from None


def _as_user(*command: str | Path) -> None:
    """PostgreSQL does not run as root: there it is Debian's user who does."""
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*prefix, *map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
