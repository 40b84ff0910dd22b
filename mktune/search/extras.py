"""Proposals that need no compiler, sought while those of the queue wait for one.

They are made on the same thread, which is busy for a moment with each: what is told, and the queue, have their turn in
between. What turns out to need a compiler goes back to the sampler.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from mktune.plan import Plan

if TYPE_CHECKING:
    from mktune.search.proposals import Proposal

SEEK_S = 0.1
"""How long one is sought, to the end of the proposal that is being made then."""


class Extras:
    """See the module. `ask` and `take` belong to the thread that measures, `note` to `thread`.

    wanted    whether any are: asked again when a turn on the thread comes, since much may have been told meanwhile
    make      a proposal, None where there is none to be had
    withdraw  one is not measured, and may be made again
    """

    def __init__(
        self,
        thread: ThreadPoolExecutor,
        wanted: Callable[[], bool],
        make: Callable[[], Proposal | None],
        withdraw: Callable[[Proposal], None],
    ) -> None:
        self._thread, self._wanted, self._make, self._withdraw = thread, wanted, make, withdraw
        self._asked: deque[Future[Proposal | None]] = deque()
        # Written on the thread, read on both: a number that is late by one does no harm.
        self.told = 0
        self._none_at = -1

    def __len__(self) -> int:
        """Those that are being sought, and those that wait."""
        return len(self._asked)

    @property
    def none_lately(self) -> bool:
        """None was found since something was told."""
        return self._none_at == self.told

    def note(self) -> None:
        """Something was told: a kernel that was compiled for it may be what others need."""
        self.told += 1

    def ask(self, compiled: Callable[[Plan], bool]) -> None:
        """Have one sought of which `compiled` holds."""
        self._asked.append(self._thread.submit(self._seek, compiled))

    def take(self) -> Proposal | None:
        """The first that was asked for, where it was found. None: it is still sought, or none was asked for."""
        return self._asked.popleft().result() if self._asked and self._asked[0].done() else None

    def _seek(self, compiled: Callable[[Plan], bool]) -> Proposal | None:
        if not self._wanted():
            return None
        until = time.monotonic() + SEEK_S
        while (proposal := self._make()) is not None:
            if compiled(proposal.plan):
                return proposal
            self._withdraw(proposal)
            if time.monotonic() > until:
                break
        self._none_at = self.told
        return None
