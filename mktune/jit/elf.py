"""A cubin as an ELF file: its sections, and the attributes in those that are called `.nv.info`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
NO_BITS = 8  # type of a section without content
SIZED = 4  # format of attributes that carry bytes


@dataclass(frozen=True)
class Section:
    """`header`: the fields of SECTION."""

    name: str
    header: tuple[int, ...]
    content: bytes

    @property
    def kind(self) -> int:
        return self.header[1]

    @property
    def link(self) -> int:
        return self.header[6]

    @property
    def info(self) -> int:
        return self.header[7]


def sections(elf: bytes) -> list[Section]:
    """Those of a 64-bit little-endian ELF file. Raises ValueError for what is none."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a cubin")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [SECTION.unpack_from(elf, table + at * entry_size) for at in range(count)]
    strings = _content(elf, headers[names])
    return [Section(string(strings, header[0]), header, _content(elf, header)) for header in headers]


def _content(elf: bytes, header: tuple[int, ...]) -> bytes:
    return b"" if header[1] == NO_BITS else elf[header[4] : header[4] + header[5]]


def string(strings: bytes, at: int) -> str:
    """What begins there in a section of strings."""
    return strings[at : strings.index(b"\0", at)].decode()


def attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and value of those that carry bytes."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == SIZED:
            yield attribute, info[at : at + size]
            at += size
