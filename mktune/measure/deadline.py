"""How long a candidate may take before it counts as a hang: what such candidates took so far, and never above a cap."""

from __future__ import annotations

from dataclasses import dataclass, field

FACTOR = 8.0
"""Building and verifying may take this much longer than the longest so far."""
LEAST_S = 2.0
"""What they may take at least: a busy host may stop any process for a moment."""


@dataclass
class Deadlines:
    """Deadlines of one problem's candidates, in seconds.

    A candidate is built and verified, which takes about as long as it took others, and measured, which takes as long as
    the caller allows. The first candidate of a process also makes the references and loads modules, so that it is held
    against other first ones. Where no such candidate has ended yet, only the cap holds.
    """

    cap: float
    factor: float = FACTOR
    least: float = LEAST_S
    _longest: dict[bool, float] = field(default_factory=dict)

    def seconds(self, *, first: bool, measuring: float = 0.0) -> float:
        """Until when a candidate must have answered that may be measured for `measuring` seconds."""
        known = self._longest.get(first)
        if known is None:
            return self.cap
        return min(self.cap, max(self.least, self.factor * known) + measuring)

    def ended(self, seconds: float, *, first: bool) -> None:
        """A candidate was built and verified in `seconds`."""
        self._longest[first] = max(seconds, self._longest.get(first, 0.0))
