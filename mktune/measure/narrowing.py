"""Which arms of a promotion need no more rounds: what is surely slower would not be stored, if later rounds scatter no
more than twice as much as the first.

Pure logic, as `promotion` is: whoever measures gives the blocks of rounds. Built-in arms and those that show the noise
take part in all of them, for they are the guard. What leaves was compared with the fastest candidate: where that is
refuted, `may_return` says whether the others must be asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mktune.measure.promotion import Arm, Decision, Samples, behind, by_span, noise_of
from mktune.measure.stats import median

FIRST_PAIRS = 8
SURELY_SLOWER = 0.03  # six times the tie band; one plan's spans in two processes lay up to 1.4 % apart on an H200
_NOISES = 2.0

Block = Callable[[Sequence[Arm]], tuple[Samples, Mapping[str, float]]]
"""Arms → paired samples by arm name of some rounds over just these arms, and the state of the device."""


@dataclass(frozen=True)
class Compared:
    """What the rounds gave.

    arms     those that took part in all rounds; `samples` are theirs, paired from the first to the last
    left     name → samples of an arm that took part in the first rounds only, beside the first samples of `arms`
    state    of the device, in the last block
    """

    arms: tuple[Arm, ...]
    samples: Samples
    state: Mapping[str, float]
    left: Samples = field(default_factory=dict)

    @property
    def notes(self) -> dict[str, str]:
        """What the arms that left showed, as evidence."""
        return {
            f"span of {name}": f"{median(samples):.3f} us ({len(samples)} pairs)" for name, samples in self.left.items()
        }


def compared(arms: Sequence[Arm], blocks: Sequence[Block]) -> Compared:
    """All blocks, one after the other; after each but the last, what is surely slower takes no further part."""
    staying, left = list(arms), dict[str, Sequence[float]]()
    samples: dict[str, list[float]] = {arm.name: [] for arm in arms}
    state: Mapping[str, float] = {}
    for number, block in enumerate(blocks, 1):
        found, state = block(staying)
        for arm in staying:
            samples[arm.name] += found[arm.name]
        if number < len(blocks):
            left |= {arm.name: samples.pop(arm.name) for arm in surely_slower(staying, samples)}
            staying = [arm for arm in staying if arm.name in samples]
    return Compared(tuple(staying), samples, state, left)


def surely_slower(arms: Sequence[Arm], samples: Samples) -> list[Arm]:
    """Finalists and structures that are slower than the fastest of them, far beyond ties and the noise seen so far."""
    candidates = [arm for arm in arms if arm.role in ("finalist", "structure")]
    if not candidates:
        return []
    fastest, margin = by_span(candidates, samples)[0], _margin(arms, samples)
    return [arm for arm in candidates if behind(samples[arm.name], samples[fastest.name], margin)]


def may_return(found: Compared, decision: Decision, chosen: Arm | None) -> bool:
    """Whether an arm that left might be stored in place of `chosen`, every better one having been refuted.

    None: all were. What ties with the fastest is as good as that: nothing that left comes before it.
    """
    if chosen is None:
        return bool(found.left)
    if chosen.name in decision.ties:
        return False
    ours, margin = found.samples[chosen.name], _margin(found.arms, found.samples)
    return not all(behind(samples, ours[: len(samples)], margin) for samples in found.left.values())


def _margin(arms: Sequence[Arm], samples: Samples) -> float:
    guards = [arm for arm in arms if arm.role == "builtin"]
    return max(SURELY_SLOWER, _NOISES * noise_of(guards, samples) if guards else 0.0)
