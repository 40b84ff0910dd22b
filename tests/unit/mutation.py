"""Bad inputs from good ones: bytes and JSON with changes that parsers and their callers stumble over."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

PWNED = "pwned"
"""The file that an input makes which gets its code run."""
TOKENS = [
    "null", "NaN", "-Infinity", "1e999", "9" * 400, "-1", "0", "1.5", "true", '""', "{}", "[]", "[" * 300, "{" * 60,
    '{"a":' * 90, "<<<<<<< HEAD\n", "\0", "\x1b[2J", "\u202e", "\ud800", "µ×", "🚀", "\r\n", "\t", "%s%n",
    "{0.__class__}",
    f'!!python/object/apply:os.system ["touch {PWNED}"]', f"__import__('os').system('touch {PWNED}')",
    f"cos\nsystem\n(S'touch {PWNED}'\ntR.", f"$(touch {PWNED})", f"`touch {PWNED}`", f"'; touch {PWNED}; '",
    f"|touch {PWNED}", "&a [*a, *a]", "*a", "<<: *a", "- " * 40, "x'; DROP TABLE mktune_plans;--", "--", "---\n", "...",
    "a/../../b", "-rf", "[bold]x[/bold]", "x" * 5000, "sm_90a", "prefetch", "A0", "B0->B0f", "16", "8192", "=", ",",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, "", "A0", "x" * 3000, "\0", "\ud800", [],
    {}, [[]],
    [1, 2], ["A0"], {"a": 1}, [None], "prefetch", "full", "programmatic", 16, 8192, "sm_90a", "0" * 64, "1e999",
    [0] * 500,
]  # fmt: skip


class Mutator:
    """Bad inputs from good ones, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self, good: str) -> bytes:
        """`good` with one to four changes to its bytes."""
        return self.content(good.encode())

    def content(self, good: bytes) -> bytes:
        """The same of bytes."""
        data = bytearray(good)
        for _ in range(self.random.choice((1, 1, 2, 4))):
            self._change(data)
        return bytes(data)

    def _change(self, data: bytearray) -> None:
        chance = self.random
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((1, 1, 3, 20, 400)))
        kind = chance.randrange(7)
        if kind == 0:
            data[start:end] = b""
        elif kind == 1:
            data[start:end] = bytes(chance.randrange(256) for _ in range(end - start))
        elif kind == 2:
            data[start:start] = data[start:end] * chance.choice((1, 2, 30))
        elif kind == 3:
            del data[start:]
        elif kind == 4 and start < len(data):
            data[start] ^= 1 << chance.randrange(8)
        else:
            data[start : end if kind == 5 else start] = chance.choice(TOKENS).encode(errors="surrogatepass")

    def json(self, good: Any) -> Any:
        """A copy of JSON data with one to three of its values exchanged, dropped or added."""
        data = copy.deepcopy(good)
        for _ in range(self.random.choice((1, 1, 2, 3))):
            places = list(_places(data))
            if not places:
                return self.random.choice(VALUES)
            holder, key = self.random.choice(places)
            kind = self.random.randrange(6)
            if kind == 0:
                del holder[key]
            elif kind == 1 and isinstance(holder, dict):
                holder[self.random.choice(("more", "", "A0", "\0", str(key).upper()))] = holder[key]
            elif kind == 2:
                other, name = self.random.choice(places)
                holder[key] = copy.deepcopy(other[name]) if name in other or isinstance(other, list) else None
            else:
                holder[key] = copy.deepcopy(self.random.choice(VALUES))
        return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from _places(data[key])
