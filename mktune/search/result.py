"""What a search tells while it runs and when it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mktune.records import winner_to_dict
from mktune.trial import Status, Trial, Winner

PHASES = ("ask", "check", "lower", "wait", "prepare", "compile", "measure", "store", "promote", "alone")
"""Where time goes: ask, check and lower run beside measuring; wait is what measuring then still waited for them.
prepare hands plans to the compilers, and compile is what measuring waited for those. alone is all that measuring each
op by itself took, before the search."""


@dataclass(frozen=True)
class Progress:
    """Where a search stands.

    phase             builtins, search or promote
    trials, failed    of the study, earlier runs included; `of` is how many there may be (None: until time is up)
    invalid, duplicate   proposals of this run that became no trial
    queued            valid proposals that wait to be measured (they compile meanwhile)
    best_us           span of the best trial so far
    part              the op that is measured alone before the search itself; empty in the search
    """

    phase: str
    trials: int
    of: int | None
    failed: int
    invalid: int
    duplicate: int
    queued: int
    best_us: float | None
    part: str = ""


class Observer:
    """What a search reports to; overrides show it. Called on the thread that runs the search."""

    def progress(self, progress: Progress) -> None:
        """Something moved: a phase, a count."""

    def trial(self, trial: Trial, progress: Progress) -> None:
        """A trial ended and is stored."""


@dataclass(frozen=True)
class TuneResult:
    """How a search ended.

    winner        what promotion decided, None where it was not reached; `stored`: look-ups get it from now on
    replaced      the winner that they got until now, where `winner` takes its place
    trials        every ended trial of the study, by number; `resumed`: how many of them are from earlier runs
    avoided       proposals left alone because their plan hung or faulted on this GPU and build in another study
    seconds       by phase (`PHASES`) and in all ("total")
    within        seconds inside the phases "measure" (queue, start, build, verify, settle, measure: what the bench did)
                  and "alone" (the same phases as `seconds`, of the ops' own searches)
    exhausted     why there was nothing left to propose; empty where something ended the search before
    stopped       the signal that ended it ("SIGINT"), else empty
    measured      how many trials this run has made itself: those of other processes of the study are in `trials` too
    """

    winner: Winner | None
    stored: bool
    trials: tuple[Trial, ...]
    resumed: int
    invalid: int
    duplicate: int
    avoided: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    within: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    exhausted: str = ""
    stopped: str = ""
    measured: int = 0
    replaced: Winner | None = None

    @property
    def best(self) -> Trial | None:
        """The fastest trial that succeeded (screening; promotion may rank otherwise)."""
        return min((trial for trial in self.trials if span_of(trial) is not None), key=_span_or_fail, default=None)

    @property
    def overhead_seconds(self) -> float:
        """What mktune itself costs a trial of this run: check, lower, prepare, store; not the sampler's asking."""
        own = sum(self.seconds.get(phase, 0.0) for phase in ("check", "lower", "prepare", "store"))
        return own / max(self.measured, 1)

    @property
    def measuring_seconds(self) -> float:
        """How long plans were on the device: trials, ops alone and promotion."""
        alone = self.within.get("alone", {}).get("measure", 0.0)
        return self.seconds.get("measure", 0.0) + self.seconds.get("promote", 0.0) + alone

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json."""
        best = self.best
        return {
            "winner": None if self.winner is None else winner_to_dict(self.winner),
            "stored": self.stored,
            "trials": len(self.trials),
            "resumed": self.resumed,
            "measured": self.measured,
            "gpus": dict(sorted(Counter(trial.gpu for trial in self.trials).items())),
            "statuses": dict(sorted(Counter(trial.outcome.status.value for trial in self.trials).items())),
            "best": None if best is None else {"plan": best.plan.plan_id, "span_us": span_of(best)},
            "invalid": self.invalid,
            "duplicate": self.duplicate,
            "avoided": self.avoided,
            "seconds": _rounded(self.seconds),
            "within": {phase: _rounded(seconds) for phase, seconds in self.within.items()},
            "measuring_seconds": round(self.measuring_seconds, 6),
            "overhead_seconds_per_trial": round(self.overhead_seconds, 6),
            "exhausted": self.exhausted,
            "stopped": self.stopped,
        }


def span_of(trial: Trial) -> float | None:
    """The span of a trial that succeeded."""
    outcome = trial.outcome
    return outcome.measurement.span_us if outcome.status is Status.OK and outcome.measurement else None


def learned_us(trial: Trial) -> float | None:
    """What a search learns from a trial: its span, also where it was dropped as clearly slower than the incumbent.

    That span is of fewer launches, and says as much of its plan's choices as any other. None: the trial failed.
    """
    outcome = trial.outcome
    if outcome.status not in (Status.OK, Status.PRUNED) or outcome.measurement is None:
        return None
    return outcome.measurement.span_us


def _span_or_fail(trial: Trial) -> float:
    span = span_of(trial)
    assert span is not None
    return span


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in seconds.items()}
