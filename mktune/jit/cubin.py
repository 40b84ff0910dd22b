"""Where a kernel's parameters lie in the constant bank, read from the cubin itself (an ELF file).

Each kernel has a section `.nv.info.<symbol>` of attributes: a parameter's index, offset and size (EIATTR_KPARAM_INFO),
and where the parameters start in bank 0 (EIATTR_PARAM_CBANK).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_KPARAM_INFO, _PARAM_CBANK = 0x17, 0x0A
_SIZED = 0x04  # format of attributes that carry bytes


@dataclass(frozen=True)
class Parameters:
    """Parameters of one kernel in constant bank 0: `ranges[i]` is (first byte, one past the last) of parameter i."""

    start: int
    ranges: tuple[tuple[int, int], ...]

    def at(self, offset: int) -> int | None:
        """The index of the parameter that holds byte `offset` of the bank."""
        return next((i for i, (first, end) in enumerate(self.ranges) if first <= offset < end), None)


def parameters(cubin: bytes, symbol: str) -> Parameters:
    """The parameters of kernel `symbol`. Raises ValueError where the cubin does not say."""
    info = dict(_sections(cubin)).get(f".nv.info.{symbol}")
    if info is None:
        raise ValueError(f"the cubin has no attributes of {symbol}")
    start = None
    places: dict[int, tuple[int, int]] = {}
    for attribute, value in _attributes(info):
        if attribute == _PARAM_CBANK:
            start = struct.unpack_from("<H", value, 4)[0]
        elif attribute == _KPARAM_INFO:
            _, index, offset, flags = struct.unpack_from("<IHHI", value)
            places[index] = (offset, flags >> 18)
    if start is None or sorted(places) != list(range(len(places))):
        raise ValueError(f"the cubin's attributes of {symbol} do not list its parameters")
    ranges = tuple((start + offset, start + offset + size) for _, (offset, size) in sorted(places.items()))
    return Parameters(start, ranges)


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            yield attribute, info[at : at + size]
            at += size


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each section of a 64-bit little-endian ELF file."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a cubin")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry_size) for i in range(count)]
    names = headers[names_index][4]
    for header in headers:
        start = names + header[0]
        yield elf[start : elf.index(b"\0", start)].decode(), elf[header[4] : header[4] + header[5]]
