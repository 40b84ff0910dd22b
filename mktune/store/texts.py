"""Text on its way into a database: what is refused, and what is cut."""

from __future__ import annotations

import unicodedata

from mktune.errors import InputError

NAME_LIMIT = 200
REASON_LIMIT = 4000


def check_name(name: str) -> str:
    """`name` as it is. Raises InputError where it is empty, too long or not printable on one line."""
    if not name.strip():
        raise InputError("a study needs a name that is not empty")
    if len(name) > NAME_LIMIT:
        raise InputError(f"a study's name has at most {NAME_LIMIT} characters, not {len(name)}")
    for place, character in enumerate(name):
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            raise InputError(f"a study's name cannot hold {character!r} (character {place + 1})")
    return name


def storable(name: str) -> bool:
    """Whether a database can hold or compare `name`: no half characters (a shell makes them of stray bytes), no NUL."""
    return "\0" not in name and not any(unicodedata.category(character) == "Cs" for character in name)


def clip(text: str, limit: int = REASON_LIMIT) -> str:
    """`text` without what a database refuses (NUL, half characters), cut to `limit` characters and a mark."""
    clean = text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    if len(clean) <= limit:
        return clean
    return f"{clean[:limit]} … [cut, {len(clean) - limit} more characters]"
