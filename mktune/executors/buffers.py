"""Where the buffers of a launch are: a name and a layer give an address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mktune.errors import InputError


@dataclass(frozen=True)
class Span:
    """`bytes` bytes of device memory from `address`."""

    address: int
    bytes: int


@dataclass(frozen=True)
class Buffers:
    """Addresses by name, one mapping for each layer. Layers may share a buffer by giving the same address."""

    layers: tuple[Mapping[str, int], ...]

    def address(self, layer: int, name: str) -> int:
        """The address of buffer `name` in `layer`. Raises InputError where nobody gave one."""
        try:
            return self.layers[layer][name]
        except KeyError:
            raise InputError(f"no memory was given for buffer {name!r} of layer {layer}") from None


@dataclass(frozen=True)
class Poison:
    """What is filled with 0xFF before a layer runs, by layer: `spans[layer]`. Empty: nothing."""

    spans: tuple[tuple[Span, ...], ...] = ()

    def of(self, layer: int) -> tuple[Span, ...]:
        """What is filled before `layer` runs."""
        return self.spans[layer] if layer < len(self.spans) else ()


def merge(spans: list[Span]) -> tuple[Span, ...]:
    """The same bytes in as few spans as possible: neighbours and overlaps joined, sorted by address.

    For spans of one allocation only: a memset must not reach from one into the next.
    """
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: span.address):
        if merged and span.address <= merged[-1].address + merged[-1].bytes:
            last = merged.pop()
            end = max(last.address + last.bytes, span.address + span.bytes)
            merged.append(Span(last.address, end - last.address))
        else:
            merged.append(span)
    return tuple(merged)
