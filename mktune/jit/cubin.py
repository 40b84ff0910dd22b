"""Where a kernel's parameters lie in the constant bank, read from the cubin itself (an ELF file).

Each kernel has a section `.nv.info.<symbol>` of attributes: a parameter's index, offset and size (EIATTR_KPARAM_INFO),
and where the parameters start in bank 0 (EIATTR_PARAM_CBANK).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mktune.jit.elf import attributes, sections

_KPARAM_INFO, _PARAM_CBANK = 0x17, 0x0A


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
    info = next((each.content for each in sections(cubin) if each.name == f".nv.info.{symbol}"), None)
    if info is None:
        raise ValueError(f"the cubin has no attributes of {symbol}")
    start = None
    places: dict[int, tuple[int, int]] = {}
    for attribute, value in attributes(info):
        if attribute == _PARAM_CBANK:
            start = struct.unpack_from("<H", value, 4)[0]
        elif attribute == _KPARAM_INFO:
            _, index, offset, flags = struct.unpack_from("<IHHI", value)
            places[index] = (offset, flags >> 18)
    if start is None or sorted(places) != list(range(len(places))):
        raise ValueError(f"the cubin's attributes of {symbol} do not list its parameters")
    ranges = tuple((start + offset, start + offset + size) for _, (offset, size) in sorted(places.items()))
    return Parameters(start, ranges)
