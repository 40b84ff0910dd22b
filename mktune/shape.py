"""The shape that a plan is tuned for: how many requests, tokens of each, and how much context may be cached."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mktune.errors import InputError

MAX_M = 256
MAX_KV = 131072


@dataclass(frozen=True, order=True)
class Shape:
    """`requests` × `tokens_per_request` rows over caches with room for `kv` tokens a request.

    `kv` is a capacity: any context length from 1 to `kv` runs under the same shape.
    """

    requests: int
    tokens_per_request: int
    kv: int

    def __post_init__(self) -> None:
        for name in ("requests", "tokens_per_request", "kv"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a positive whole number, not {value!r}")
        if self.m > MAX_M:
            raise InputError(f"M = {self.m} is out of range: 1 to {MAX_M}")
        if self.kv > MAX_KV:
            raise InputError(f"KV = {self.kv} is out of range: 1 to {MAX_KV}")
        if self.tokens_per_request > self.kv:
            raise InputError(f"tokens per request ({self.tokens_per_request}) exceed KV ({self.kv})")

    @property
    def m(self) -> int:
        """Rows (tokens) of the step."""
        return self.requests * self.tokens_per_request

    @property
    def name(self) -> str:
        """What tells two shapes apart, as names of studies have it: "2x8 kv8192"."""
        return f"{self.requests}x{self.tokens_per_request} kv{self.kv}"

    @property
    def served_m(self) -> tuple[int, int]:
        """The rows that a plan tuned here claims to serve: more than half of its own, and never more than them.

        The choices of a plan are right for any number of rows: kernels take it at run time, and whoever serves the plan
        checks it again for the rows asked for. It is the measurement that does not reach far: where half of the rows or
        more would be padding, other tiles and splits win.
        """
        return self.m // 2 + 1, self.m

    @property
    def served_kv(self) -> tuple[int, int]:
        """The capacities that a plan tuned here claims to serve: `kv` is one, so every smaller context fits too."""
        return self.tokens_per_request, self.kv

    @classmethod
    def from_m(cls, m: int, kv: int, tokens_per_request: int | None = None) -> Shape:
        """The shape of `m` rows; where tokens per request are not given they are gcd(m, 8), at most `kv`.

        Raises InputError where `tokens_per_request` does not divide `m` or a number is out of range.
        """
        if isinstance(m, bool) or not isinstance(m, int) or not 1 <= m <= MAX_M:
            raise InputError(f"M = {m!r} is out of range: a whole number from 1 to {MAX_M}")
        tokens = math.gcd(m, 8) if tokens_per_request is None else tokens_per_request
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1 or m % tokens:
            raise InputError(f"tokens per request ({tokens!r}) must divide M = {m}")
        return cls(m // tokens, tokens, kv)
