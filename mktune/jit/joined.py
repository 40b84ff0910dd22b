"""The code of several cubins as one, for the disassembler: it takes most of its time to start.

What is left out is what a listing does not need: constants, debug data, and all attributes but the targets of indirect
jumps. Code that is still to be linked is not joined, since its operands are named by what was left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mktune.jit.elf import SECTION, SIZED, Section, attributes, sections, string

_HEADER = 64
_CODE, _ATTRIBUTES = ".text.", ".nv.info."
_SYMBOL = struct.Struct("<IBBHQQ")  # name, binding and type, other, section, value, size
_STRINGS, _SYMBOLS = 3, 2  # types of sections
_FUNCTION = 2
_JUMP_TARGETS = 0x34  # EIATTR_INDIRECT_BRANCH_TARGETS
_SYMBOL_TABLE = 3  # its place in what is written, behind an empty section and two of strings


@dataclass(frozen=True)
class _Symbol:
    name: str
    kind: int
    other: int
    section: int
    value: int
    size: int


def join(cubins: Sequence[bytes]) -> bytes:
    """One file with all kernels of `cubins`, which are of one architecture, each called as `name_of` says. Raises
    ValueError where one is no cubin or is still to be linked."""
    kept: list[Section] = []
    symbols: list[_Symbol] = []
    for place, cubin in enumerate(cubins):
        for section, found in _kernels(cubin, place, _SYMBOL_TABLE + 1 + len(kept)):
            kept.append(section)
            symbols += found
    return _file(cubins[0][:_HEADER], kept, symbols)


def name_of(place: int, symbol: str) -> str:
    """What a kernel of the cubin in that place is called: another may have one of its name."""
    return f"{place}_{symbol}"


def kernel_symbols(cubin: bytes) -> list[str]:
    """Of every kernel in `cubin`. Raises ValueError for what is no cubin."""
    return [each.name.removeprefix(_CODE) for each in sections(cubin) if each.name.startswith(_CODE)]


def _kernels(cubin: bytes, place: int, first: int) -> Iterator[tuple[Section, list[_Symbol]]]:
    """Each section that is kept, with the symbols in it; sections are numbered from `first` on."""
    found = sections(cubin)
    if any(section.content and section.name.startswith((".rel.text.", ".rela.text.")) for section in found):
        raise ValueError("a cubin is still to be linked")
    code = [at for at, section in enumerate(found) if section.name.startswith(_CODE)]
    number = {at: first + count for count, at in enumerate(code)}
    symbols = _symbols(found)
    for at in code:
        kernel = found[at].name.removeprefix(_CODE)
        name = name_of(place, kernel)
        called = {kernel: name, _CODE + kernel: _CODE + name}  # the second stands for the section
        inside = [symbol for symbol in symbols if symbol.section == at and symbol.kind]
        moved = [replace(each, section=number[at], name=called.get(each.name, each.name)) for each in inside]
        yield replace(found[at], name=_CODE + name), moved
    for section in found:
        if section.name.startswith(_ATTRIBUTES) and section.info in number:
            header = (*section.header[:7], number[section.info], *section.header[8:])
            name = name_of(place, section.name.removeprefix(_ATTRIBUTES))
            yield Section(_ATTRIBUTES + name, header, _jump_targets(section.content)), []


def _symbols(found: Sequence[Section]) -> list[_Symbol]:
    table = next((section for section in found if section.kind == _SYMBOLS), None)
    if table is None:
        raise ValueError("a cubin without symbols")
    strings = found[table.link].content
    return [_Symbol(string(strings, name), *rest) for name, *rest in _SYMBOL.iter_unpack(table.content)]


def _jump_targets(info: bytes) -> bytes:
    """Of a kernel's attributes those that name no symbols and decide where control may go."""
    kept = [(number, value) for number, value in attributes(info) if number == _JUMP_TARGETS]
    return b"".join(struct.pack("<BBH", SIZED, number, len(value)) + value for number, value in kept)


class _Strings:
    def __init__(self) -> None:
        self.content = b"\0"

    def place(self, name: str) -> int:
        at = len(self.content)
        self.content += name.encode() + b"\0"
        return at


def _file(header: bytes, kept: Sequence[Section], symbols: Sequence[_Symbol]) -> bytes:
    names, strings = _Strings(), _Strings()
    own = [names.place(name) for name in (".shstrtab", ".strtab", ".symtab")]
    places = [names.place(section.name) for section in kept]
    table = _SYMBOL.pack(0, 0, 0, 0, 0, 0)
    for symbol in symbols:
        table += _SYMBOL.pack(
            strings.place(symbol.name), symbol.kind, symbol.other, symbol.section, symbol.value, symbol.size
        )
    functions = {symbol.name: at for at, symbol in enumerate(symbols, 1) if symbol.kind & 0xF == _FUNCTION}
    written = [
        (own[0], (_STRINGS, 0, 0, 0, 1, 0), names.content),
        (own[1], (_STRINGS, 0, 0, 0, 1, 0), strings.content),
        (own[2], (_SYMBOLS, 0, 2, 1 + len(symbols), 8, _SYMBOL.size), table),
    ]
    for place, section in zip(places, kept, strict=True):
        info = section.info
        if section.name.startswith(_CODE):  # its registers, and its symbol
            info = info >> 24 << 24 | functions.get(section.name.removeprefix(_CODE), 0)
        kind, flags, alignment, entry = section.kind, section.header[2], section.header[8], section.header[9]
        written.append((place, (kind, flags, _SYMBOL_TABLE, info, alignment, entry), section.content))
    body, headers = bytearray(header), [SECTION.pack(*[0] * 10)]
    for name, (kind, flags, link, info, alignment, entry), content in written:
        body += bytes(-len(body) % max(1, alignment))
        headers.append(SECTION.pack(name, kind, flags, 0, len(body), len(content), link, info, alignment, entry))
        body += content
    body += bytes(-len(body) % 8)
    struct.pack_into("<QQ", body, 0x20, 0, len(body))  # no segments; where the sections' headers are
    struct.pack_into("<HHHHH", body, 0x36, 0, 0, SECTION.size, len(headers), 1)
    return bytes(body) + b"".join(headers)
