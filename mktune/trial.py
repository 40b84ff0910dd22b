"""A trial and what was measured in it: frozen values with plain-JSON forms."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from mktune.plan import Plan

BUILTIN = "builtin:"
"""What the source of a trial starts with where it ran a built-in plan; the plan's name follows."""
NEIGHBOUR = "neighbour"
"""The source of a trial that ran the winner of another shape, made to fit this one."""
SHIPPED = "shipped"
"""The source of a trial that ran a plan that comes with mktune for this shape."""
ALONE = "alone"
"""The source of a trial that ran one op alone, before a search of several."""
SIMULATED = ("sim", "recorded")
"""Back ends whose spans nobody measured when they were given."""


class Status(StrEnum):
    """How a trial ended. Invalid and duplicate proposals are counted per study; they are not trials."""

    OK = "ok"
    PRUNED = "pruned"
    NOISY = "noisy"
    COMPILE_ERROR = "compile_error"
    BUILD_ERROR = "build_error"
    LAUNCH_ERROR = "launch_error"
    ILLEGAL_ACCESS = "illegal_access"
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"
    WRONG_RESULT = "wrong_result"
    CRASH = "crash"
    LOST = "lost"


@dataclass(frozen=True)
class Policy:
    """What a measured number means; stored with every number, and part of a plan's key.

    backend    "cuda" (measured), "sim" (modelled) or "recorded" (replayed): only what was measured is served unasked
    cold       weights come from memory, not from L2
    layers     copies of the graph, chained in one launch, each with its own weights
    shared_kv  requests share cache pages because the pools would not fit
    inputs     "random" (the only kind that may be promoted)
    """

    backend: str
    cold: bool = True
    layers: int = 1
    shared_kv: bool = False
    inputs: str = "random"

    @property
    def simulated(self) -> bool:
        return self.backend in SIMULATED


@dataclass(frozen=True)
class Measurement:
    """The span of one plan: microseconds per layer.

    span_us          median of the samples
    low_us, high_us  95 % confidence interval of that median
    samples_us       every sample, one graph launch / layers each, in the order taken
    device_state     clocks, power, temperature before and after ("sm_mhz_before", …); empty for a model
    """

    span_us: float
    low_us: float
    high_us: float
    samples_us: tuple[float, ...]
    policy: Policy
    device_state: tuple[tuple[str, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the form that `mktune.records.measurement_from_dict` reads."""
        return {  # `asdict` would copy every sample by itself
            "span_us": self.span_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "samples_us": list(self.samples_us),
            "policy": asdict(self.policy),
            "device_state": dict(self.device_state),
        }


@dataclass(frozen=True)
class Outcome:
    """What a bench says of one plan. `reason` is one line where `status` is not ok; `seconds` is time by phase."""

    status: Status
    reason: str = ""
    measurement: Measurement | None = None
    seconds: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Trial:
    """One measured candidate of a study.

    number   from 0
    source   who proposed it: a sampler's name, ALONE, SHIPPED, NEIGHBOUR, or BUILTIN and a built-in plan's name
    started  UTC, ISO 8601
    seconds  time by phase around the bench; `outcome.seconds` is what the bench spent
    gpu      UUID of the GPU that measured it; of a model its name and a number; empty where it is not known
    """

    number: int
    plan: Plan
    outcome: Outcome
    source: str
    started: str = ""
    seconds: tuple[tuple[str, float], ...] = ()
    gpu: str = ""


@dataclass(frozen=True)
class Fingerprint:
    """What a stored plan was measured with; checked at look-up (`mktune.runtime.versions`). Empty text equals nothing.

    kernels   hash of the sources of the plan's ops; behind it, each after a "+", that of each kernel which some of them
              share, and that of GEMMs with a schedule
    packages  name → version of each package whose kernels the plan runs; sorted, empty where it runs only our own
    """

    gpu: str
    sms: int
    compute_capability: str
    driver: str
    cuda: str
    compiler: str
    kernels: str
    mktune: str
    packages: tuple[tuple[str, str], ...] = ()


def built_alike(one: str, other: str) -> bool:
    """Whether two values of `Fingerprint.kernels` are of one build: of two plans, one may share kernels that the other
    does not."""
    ours, theirs = one.split("+"), other.split("+")
    return ours[0] == theirs[0] and (set(ours) <= set(theirs) or set(theirs) <= set(ours))


def short_build(kernels: str) -> str:
    """The beginnings of the hashes in `Fingerprint.kernels`."""
    return "+".join(part[:12] for part in kernels.split("+"))


DETERMINISTIC, BATCH_INVARIANT = "deterministic", "batch invariant"
"""Names in `Winner.extra`: do bits repeat from run to run, and beside other requests?"""
YES, NO = "yes", "no: "
"""How that is answered there: why not stands behind "no: ". Any other text says why it was not asked."""
_OF_BITS = (DETERMINISTIC, BATCH_INVARIANT)


@dataclass(frozen=True)
class Loss:
    """What a plan loses where one group of its choices is put back to the default (see `mktune.measure.attribution`).

    span_us           of the changed plan
    loss_us           changed plan - the plan itself, median of the pairs; low_us and high_us: its 95 % interval
    note              what else had to change, or could not be put back; empty where there is nothing to say
    """

    span_us: float
    loss_us: float
    low_us: float
    high_us: float
    note: str = ""


@dataclass(frozen=True)
class Winner:
    """A promoted plan with the evidence for it.

    baseline        the built-in plan that it was compared with in the same rounds (the best of them)
    ratio           span of the winner / span of `serial` with default configs, median of paired log ratios
    ratio_low/high  bootstrap interval of that ratio
    noise_floor     half-width of the interval of log ratios of one plan against itself, as a fraction
    kept_baseline   True: nothing beat the best built-in beyond noise, so the built-in itself is stored
    builtins        name → span in µs in the same rounds
    validated       how it was validated, one line (empty for a simulated plan)
    extra           what else the rounds showed, name → text
    attribution     where the gain comes from: group of choices → what the plan loses without it; sorted, and empty
                    where nobody measured it
    """

    plan: Plan
    measurement: Measurement
    fingerprint: Fingerprint
    baseline: str
    ratio: float
    ratio_low: float
    ratio_high: float
    noise_floor: float
    kept_baseline: bool
    builtins: tuple[tuple[str, float], ...] = ()
    validated: str = ""
    extra: tuple[tuple[str, str], ...] = ()
    attribution: tuple[tuple[str, Loss], ...] = ()

    @property
    def repeats(self) -> bool:
        """Whether validation found nothing of the plan's bits that does not repeat; False where nobody looked."""
        said = dict(self.extra)
        return DETERMINISTIC in said and not any(said.get(name, "").startswith(NO) for name in _OF_BITS)
