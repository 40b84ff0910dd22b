"""The JSON of a winner as a store keeps it: deflated, so that opening a book reads a third of it.

Released stores hold what `pack` gives, so another form needs a migration (db/README.md).
"""

from __future__ import annotations

import zlib

from mktune.errors import InputError
from mktune.strict_json import MAX_BYTES


def pack(text: str) -> bytes:
    """`text` as it is stored."""
    return zlib.compress(text.encode())


def unpack(stored: bytes, where: str) -> bytes:
    """The text, in UTF-8 for all that is known. Raises InputError where `stored` is not whole or holds too much."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(stored, MAX_BYTES)
    except zlib.error:
        text = b""
    if not reader.eof or reader.unused_data:
        raise InputError(f"{where}: what is stored of a plan cannot be unpacked")
    return text
