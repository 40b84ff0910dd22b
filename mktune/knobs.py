"""Every environment variable that mktune reads. Nothing else in the package looks at the environment.

MKTUNE_HOME        folder of the default store                 (default: the user's data folder, XDG_DATA_HOME)
MKTUNE_STORE       URL of the default store                    (default: sqlite in MKTUNE_HOME)
MKTUNE_CACHE_DIR   folder of compiled kernels                  (default: the user's cache folder, XDG_CACHE_HOME)
MKTUNE_ASSERT_HIT  1: a look-up that misses is an error, which names the field of the key that differs
MKTUNE_PIN         ids of plans, or their beginnings, separated by commas: look-ups give no other plan
MKTUNE_PATH        folders of one's own workloads and kernels  (default: none; see `extensions`)
NO_COLOR, CI,      any of them: plain lines on the terminal, no colour and no redrawing
TERM=dumb
"""

from __future__ import annotations

import os
from pathlib import Path

from mktune.errors import InputError


def _folder(variable: str, xdg: str, fallback: str) -> Path:
    try:
        if value := os.environ.get(variable):
            return Path(value).expanduser()
        base = Path(os.environ.get(xdg, ""))
        return (base if base.is_absolute() else Path.home() / fallback) / "mktune"  # XDG: relative ones are ignored
    except RuntimeError:  # no HOME and no entry in the password file, or a ~user that does not exist
        raise InputError(f"no home folder is known: set {variable} to a folder that you may write") from None


def home() -> Path:
    """The folder of the default store. Not created here. Raises InputError where it cannot be told."""
    return _folder("MKTUNE_HOME", "XDG_DATA_HOME", ".local/share")


def cache_dir() -> Path:
    """The folder of compiled kernels. Not created here. Raises InputError where it cannot be told."""
    return _folder("MKTUNE_CACHE_DIR", "XDG_CACHE_HOME", ".cache")


def store_url() -> str | None:
    """The URL of the default store, if the user set one."""
    return os.environ.get("MKTUNE_STORE") or None


def own_packages() -> tuple[Path, ...]:
    """The folders of MKTUNE_PATH, which are separated as in PATH."""
    parts = os.environ.get("MKTUNE_PATH", "").split(os.pathsep)
    try:
        return tuple(Path(part).expanduser().resolve() for part in parts if part)
    except RuntimeError as error:
        raise InputError(f"MKTUNE_PATH: {error}") from None


def assert_hit() -> bool:
    """Whether a look-up that misses is an error: to be sure that what was tuned is what runs."""
    return os.environ.get("MKTUNE_ASSERT_HIT", "") not in ("", "0")


def pins() -> tuple[str, ...]:
    """The plans that look-ups are pinned to, as the user wrote their ids; empty: to none."""
    return tuple(part.strip() for part in os.environ.get("MKTUNE_PIN", "").split(",") if part.strip())


def plain_terminal() -> bool:
    """Whether a terminal is to be treated as a log: no colour, no cursor movement (NO_COLOR, CI, TERM=dumb)."""
    return bool(os.environ.get("NO_COLOR") or os.environ.get("CI") or os.environ.get("TERM") in ("dumb", "unknown"))


def refuse_forced_colour() -> None:
    """Where a terminal is to be treated as a log, keep help texts from being coloured because some CI has colour."""
    if plain_terminal():
        os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"
