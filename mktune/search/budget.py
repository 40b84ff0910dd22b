"""How much a search may spend. A study's trials count together, those of earlier runs included."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mktune.errors import InputError

TRIALS = 100
"""Trials of a study where neither trials nor seconds are given."""


@dataclass(frozen=True)
class Budget:
    """Trials of the study, seconds of searching from now, or both: what ends first ends the search. None: no limit.

    Promotion comes after, whatever ended the search. Raises InputError for a budget that is not positive.
    """

    trials: int | None = TRIALS
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.trials is not None and (isinstance(self.trials, bool) or self.trials < 1):
            raise InputError(f"trials must be a whole number from 1, not {self.trials!r}")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise InputError(f"seconds must be a positive number, not {self.seconds!r}")

    def start(self) -> Spending:
        """Begin to count seconds."""
        return Spending(self, time.monotonic())


@dataclass(frozen=True)
class Spending:
    """A budget that runs since `began` (monotonic clock)."""

    budget: Budget
    began: float

    def left(self, trials: int) -> bool:
        """Whether another trial fits after `trials` of the study."""
        if self.budget.trials is not None and trials >= self.budget.trials:
            return False
        left = self.seconds_left()
        return left is None or left > 0

    def seconds_left(self) -> float | None:
        """Seconds until the time is up, at least 0; None where there is no limit."""
        if self.budget.seconds is None:
            return None
        return max(0.0, self.budget.seconds - (time.monotonic() - self.began))
