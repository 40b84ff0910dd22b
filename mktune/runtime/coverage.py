"""Which shapes a book answers: measured there, covered by a plan tuned elsewhere, or missing, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mktune.runtime.request import RequestError

if TYPE_CHECKING:
    from mktune.device import Device
    from mktune.runtime.book import PlanBook
    from mktune.runtime.result import Hit, Miss
    from mktune.shape import Shape


@dataclass(frozen=True)
class Cell:
    """What a book answers at a shape."""

    m: int
    kv: int
    answer: Hit | Miss

    @property
    def state(self) -> Literal["measured", "covered", "missing"]:
        """measured: the plan was tuned at this very shape; covered: its range holds it."""
        tuned = self.tuned
        if tuned is None:
            return "missing"
        return "measured" if (tuned.m, tuned.kv) == (self.m, self.kv) else "covered"

    @property
    def tuned(self) -> Shape | None:
        """Where the plan that answers was tuned."""
        return self.answer.plan.shape if self.answer else None


def coverage(
    book: PlanBook,
    workload: str,
    rows: Sequence[int],
    contexts: Sequence[int],
    *,
    gpu: str | Device,
    tokens_per_request: int | None = None,
    ops: Sequence[str] | None = None,
    allow_simulated: bool = False,
    scale_format: str | None = None,
) -> list[Cell]:
    """The cells of `rows` × `contexts`, M slowest; the rest as in `PlanBook.lookup`, which answers each.

    Raises RequestError as it does, but for a shape that cannot be: tokens per request that do not divide its M, or
    exceed its KV. There is no such cell.
    """

    if tokens_per_request is not None and tokens_per_request < 1:
        raise RequestError(f"tokens per request must be a whole number from 1, not {tokens_per_request!r}")
    found = []
    for m, kv in ((m, kv) for m in rows for kv in contexts):
        if tokens_per_request is not None and (m % tokens_per_request or tokens_per_request > kv):
            continue
        answer = book.lookup(
            workload,
            m=m,
            kv=kv,
            tokens_per_request=tokens_per_request,
            gpu=gpu,
            ops=ops,
            allow_simulated=allow_simulated,
            scale_format=scale_format,
        )
        found.append(Cell(m, kv, answer))
    return found
