"""Packing is bounded and exact: what is not whole, or holds too much, is refused in one line."""

from __future__ import annotations

import zlib

import pytest

from mktune import packed
from mktune.errors import InputError


@pytest.mark.parametrize("text", ["", "{}", "ü-测试 " * 999])
def test_a_text_comes_back(text: str) -> None:
    assert packed.unpack(packed.pack(text), "here").decode() == text


def _bomb() -> bytes:
    return zlib.compress(bytes(packed.MAX_BYTES + 1))


@pytest.mark.parametrize(
    "stored",
    [b"", b"{}", packed.pack("{}")[:-1], packed.pack("{}" * 99)[:9], packed.pack("{}") + b"{}", _bomb()],
    ids=["nothing", "text", "cut at its sum", "cut", "more behind it", "too much"],
)
def test_what_is_not_whole_or_too_large_is_refused(stored: bytes) -> None:
    with pytest.raises(InputError, match="here: what is stored of a plan cannot be unpacked"):
        packed.unpack(stored, "here")
