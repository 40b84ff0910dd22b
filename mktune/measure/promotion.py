"""Which of the finalists, if any, deserves to be stored: arms, interleaved rounds, ties and the decision.

Pure logic: no GPU, no torch. A back end gives the samples; `decide` says what they mean. All arms are measured in the
same rounds in the order A B C … C B A, so that sample i of one arm stands beside sample i of every other and drift
cancels in their ratio; `narrowing` says which may leave early. Built-in plans with default configs guard against a
winner that is slower than doing nothing; built-in structures with the finalist's own configs may win themselves: then
its edges and streams were worth nothing. Where the gain of the plan that was chosen comes from is asked afterwards
(`attribution`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mktune.errors import MktuneError, NothingFoundError
from mktune.graph.builtin import builtin_plans
from mktune.graph.workload import Workload
from mktune.measure.stats import Interval, median, median_interval, noise_floor, paired_ratio
from mktune.plan import Plan
from mktune.trial import Fingerprint, Loss, Measurement, Policy, Status, Winner

MIN_PAIRS = 31
TIE_BAND = 0.005
SERIAL = "serial"
AGAIN = " again"
"""What the name of a plan's second arm ends in: built apart, it shows how far one plan is from itself."""

Samples = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Arm:
    """One plan of a promotion. `role` is builtin (default configs), structure, finalist or noise."""

    name: str
    plan: Plan
    role: str


@dataclass(frozen=True)
class Decision:
    """What the rounds say.

    ranked    arms that may be stored, best first: candidates that beat the baseline beyond noise, then the baseline
    ties      names of the arms inside the tie band of the fastest candidate, simplest first
    """

    ranked: tuple[Arm, ...]
    baseline: Arm
    ties: tuple[str, ...]
    noise: float
    spans: tuple[tuple[str, float], ...]


def structures(finalists: Sequence[Plan], workload: Workload, ops: Sequence[str], arch: str) -> dict[str, Plan]:
    """The built-in structures with the finalists' own configs: does a finalist need its streams and edges?"""
    found: dict[str, Plan] = {}
    for plan in finalists:
        made = builtin_plans(workload, ops, plan.shape, arch, plan.op)
        found.update((f"{mode}, configs of {plan.short_id}", built) for mode, built in made.items())
    return found


def arms(
    finalists: Sequence[Plan], builtins: Mapping[str, Plan], others: Mapping[str, Plan] | None = None
) -> list[Arm]:
    """Every plan to measure: built-ins, each a second time for the noise floor, finalists and `others`, each once.

    others  what `structures` gives: built-in structures with a finalist's configs, by name
    """
    found = [Arm(name, plan, "builtin") for name, plan in builtins.items()]
    found += [Arm(name + AGAIN, plan, "noise") for name, plan in builtins.items()]
    seen = {arm.plan.plan_id for arm in found}
    named = [(plan.short_id, plan, "finalist") for plan in finalists]
    named += [(name, plan, "structure") for name, plan in (others or {}).items()]
    for name, plan, role in named:
        if plan.plan_id not in seen:
            seen.add(plan.plan_id)
            found.append(Arm(name, plan, role))
    return found


def check_builtins(outcomes: Mapping[str, tuple[Status, str]], builtins: Sequence[Arm]) -> None:
    """Stop where the built-in plans cannot guard: a wrong one makes every comparison worthless.

    Raises MktuneError "baseline wrong" for a wrong result, NothingFoundError where no built-in plan ran.
    """
    for arm in builtins:
        status, reason = outcomes[arm.name]
        if status == Status.WRONG_RESULT:
            raise MktuneError(f"baseline wrong: built-in plan {arm.name}: {reason}; nothing is stored")
    if all(outcomes[arm.name][0] != Status.OK for arm in builtins):
        status, reason = outcomes[builtins[0].name]
        raise NothingFoundError(f"no built-in plan could be run: {builtins[0].name}: {status}: {reason}")


def right_arms(compared: Sequence[Arm], outcomes: Mapping[str, tuple[Status, str]]) -> list[Arm]:
    """The arms that ended ok. Raises as `check_builtins` does."""
    check_builtins(outcomes, [arm for arm in compared if arm.role == "builtin"])
    return [arm for arm in compared if outcomes[arm.name][0] == Status.OK]


def simplicity(plan: Plan) -> tuple[int, int, str]:
    """The fixed order of ties: fewer streams, fewer programmatic edges, then plan id."""
    streams = {kernel.stream for _, kernel in plan.kernels}
    early = sum(kind != "full" for _, kind in plan.edges) + sum(kernel.chain != "full" for _, kernel in plan.kernels)
    return len(streams), early, plan.plan_id


def decide(measured: Sequence[Arm], samples: Samples) -> Decision:
    """Rank the arms of one promotion. `samples` holds paired spans in µs by arm name, at least MIN_PAIRS each.

    Arms without samples (they failed) take no part. Raises NothingFoundError where no built-in was measured.
    """
    present = [arm for arm in measured if samples.get(arm.name)]
    guards = [arm for arm in present if arm.role == "builtin"]
    if not guards:
        raise NothingFoundError("no built-in plan was measured: there is nothing to compare a finalist with")
    short = [arm.name for arm in present if len(samples[arm.name]) < MIN_PAIRS]
    assert not short, f"fewer than {MIN_PAIRS} pairs: {short}"
    noise = noise_of(guards, samples)
    baseline = _tied(guards, samples)[0]
    candidates = [arm for arm in present if arm.role in ("finalist", "structure")]
    tied = _tied(candidates, samples) if candidates else []
    better = [arm for arm in tied if _beats(arm, baseline, samples, noise)]
    rest = [arm for arm in by_span(candidates, samples) if arm not in tied and _beats(arm, baseline, samples, noise)]
    return Decision(
        ranked=(*better, *rest, *_by_span_after(baseline, guards, samples)),
        baseline=baseline,
        ties=tuple(arm.name for arm in tied),
        noise=noise,
        spans=tuple((arm.name, median_interval(samples[arm.name]).median) for arm in present),
    )


def noise_of(guards: Sequence[Arm], samples: Samples) -> float:
    """How far the plan to beat is from itself, or what is usual among the built-in plans where that is more.

    Plans differ in that, by how their kernels meet: an unsteady plan that is slow says nothing of the fast ones.
    """
    to_beat = by_span(guards, samples)[0]
    floors = {
        arm.name: noise_floor(samples[arm.name + AGAIN], samples[arm.name])
        for arm in guards
        if samples.get(arm.name + AGAIN)
    }
    return max(floors.get(to_beat.name, 0.0), median(list(floors.values()))) if floors else 0.0


def by_span(found: Sequence[Arm], samples: Samples) -> list[Arm]:
    """The arms, fastest first."""
    return sorted(found, key=lambda arm: (median_interval(samples[arm.name]).median, arm.plan.plan_id))


def _by_span_after(first: Arm, guards: Sequence[Arm], samples: Samples) -> list[Arm]:
    return [first, *(arm for arm in by_span(guards, samples) if arm is not first)]


def _tied(found: Sequence[Arm], samples: Samples) -> list[Arm]:
    """The fastest of `found` and all that cannot be told from it, simplest first."""
    fastest = by_span(found, samples)[0]
    return sorted(
        (arm for arm in found if arm is fastest or _ties(arm, fastest, samples)),
        key=lambda arm: simplicity(arm.plan),
    )


def _ties(arm: Arm, other: Arm, samples: Samples) -> bool:
    """Whatever the noise: the fastest of several is so by luck as well."""
    return not behind(samples[arm.name], samples[other.name], TIE_BAND)


def behind(ours: Sequence[float], theirs: Sequence[float], band: float) -> bool:
    """Surely slower by more than `band`, a fraction of theirs. Paired samples."""
    return paired_ratio(ours, theirs).low - 1.0 > band


def _beats(arm: Arm, baseline: Arm, samples: Samples, noise: float) -> bool:
    ratio = paired_ratio(samples[arm.name], samples[baseline.name])
    return ratio.high < 1.0 and 1.0 - ratio.median > max(TIE_BAND, noise)


def winner(
    decision: Decision,
    chosen: Arm,
    samples: Samples,
    *,
    policy: Policy,
    fingerprint: Fingerprint,
    validated: str = "",
    device_state: tuple[tuple[str, float], ...] = (),
    notes: Mapping[str, str] | None = None,
    attribution: tuple[tuple[str, Loss], ...] = (),
) -> Winner:
    """`chosen` (one of `decision.ranked`) as the row to store; its ratio is over `serial` with default configs.

    `notes` join the evidence in `extra`: what was refuted, what the clocks resolve.
    """
    ours = samples[chosen.name]
    over = SERIAL if samples.get(SERIAL) else decision.baseline.name
    ratio = paired_ratio(ours, samples[over])
    span = median_interval(ours)
    return Winner(
        plan=chosen.plan,
        measurement=Measurement(span.median, span.low, span.high, tuple(ours), policy, device_state),
        fingerprint=fingerprint,
        baseline=decision.baseline.name,
        ratio=ratio.median,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        noise_floor=decision.noise,
        kept_baseline=chosen.role == "builtin",
        builtins=tuple(sorted(pair for pair in decision.spans if pair[0] in _guard_names(decision))),
        validated=validated,
        extra=tuple(sorted({**_evidence(decision, chosen, samples), **(notes or {})}.items())),
        attribution=attribution,
    )


def _guard_names(decision: Decision) -> set[str]:
    return {arm.name for arm in decision.ranked if arm.role == "builtin"}


def _evidence(decision: Decision, chosen: Arm, samples: Samples) -> dict[str, str]:
    """What else the rounds showed, as text: the tie set, how many pairs, the ratio to each built-in, the other arms."""
    shown = {"ties": ", ".join(decision.ties), "won as": chosen.role, "pairs": str(len(samples[chosen.name]))}
    for name in sorted(_guard_names(decision) - {chosen.name}):
        shown[f"over {name}"] = text(paired_ratio(samples[chosen.name], samples[name]))
    if chosen is not decision.baseline:
        shown["over baseline"] = shown[f"over {decision.baseline.name}"]
    guards = _guard_names(decision)
    known = {chosen.name, *guards, *(name + AGAIN for name in guards)}
    return shown | {f"span of {name}": f"{span:.3f} us" for name, span in decision.spans if name not in known}


def text(ratio: Interval) -> str:
    """ "0.812 (0.809 to 0.815)"."""
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
