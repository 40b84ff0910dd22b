"""What a look-up says: a plan, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mktune.plan import Plan
    from mktune.shape import Shape
    from mktune.trial import Winner


# fmt: off
REASONS = (
    "store", "pin", "workload", "contract", "layout", "ops", "device", "shape", "simulated",
    "policy", "packages", "build", "driver", "cuda", "constraints",
)
# fmt: on
"""Why a look-up misses. Up to "policy" the key, which is exact; then what is checked and may be accepted (see
`mktune.runtime.versions`; "build" is the kernel sources); last whether the plan may be built at all."""


@dataclass(frozen=True)
class Hit:
    """A stored plan that answers the request. True in a condition.

    source   "store" or "bundle" (shipped with the package)
    shape    what was asked for, which `load` builds it for; the plan was tuned at `plan.shape`
    differs  what is not as it was when the plan was measured, though it may be used: "driver 580 (here 590)", …
    alias    the name that was asked for, where only an alias led to the GPU that the plan was measured on
    """

    winner: Winner
    source: Literal["store", "bundle"]
    shape: Shape
    differs: tuple[str, ...] = ()
    alias: str = ""

    @property
    def plan(self) -> Plan:
        return self.winner.plan

    @property
    def simulated(self) -> bool:
        """A model gave its span, not a GPU."""
        return self.winner.measurement.policy.simulated

    def __bool__(self) -> Literal[True]:
        return True


@dataclass(frozen=True)
class Miss:
    """No stored plan answers. False in a condition.

    reason   one of REASONS: the first thing that no stored plan has
    message  one line for people: what was asked, what is stored
    """

    reason: str
    message: str

    def __bool__(self) -> Literal[False]:
        return False
