"""A bench that answers from a script: for tests of the search, without a GPU and without a model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mktune import resources
from mktune.backends.base import Backend, Bench, Problem, Stamps
from mktune.backends.models import known_gpu
from mktune.errors import CandidateError
from mktune.graph.workload import workload
from mktune.measure.promotion import MIN_PAIRS, arms, decide, winner
from mktune.plan import Plan
from mktune.search import Budget, Observer, Stop, TuneResult, tune
from mktune.shape import Shape
from mktune.space import SearchSpace
from mktune.store import Store, Study
from mktune.trial import Fingerprint, Measurement, Outcome, Policy, Status, Winner

WORKLOAD = workload("glm52_attention_prefix")
H200 = known_gpu("h200")
SHAPE = Shape.from_m(16, 8192)
SHIPPED_SPACE = (resources.search_spaces() / f"{WORKLOAD.name}.yaml").read_text()
POLICY = Policy(backend="fake", layers=8)
PROBLEM = Problem(WORKLOAD.name, ("A0", "B0"), SHAPE)

Answer = Callable[[Plan], Outcome]


def spans(plan: Plan) -> float:
    """A span that depends on nothing but the plan, from 10 to 20 µs."""
    return 10.0 + int(hashlib.sha256(plan.json.encode()).hexdigest()[:6], 16) / 2**24 * 10.0


def ok(span: float, policy: Policy = POLICY) -> Outcome:
    return Outcome(Status.OK, measurement=Measurement(span, span, span, (span,), policy))


def failed(status: Status = Status.COMPILE_ERROR, reason: str = "error: no instance of tile") -> Outcome:
    return Outcome(status, reason)


@dataclass
class FakeBench(Bench):
    """Answers `answer(plan)`; keeps what it was asked."""

    answer: Answer
    problem: Problem = PROBLEM
    policy: Policy = POLICY
    takes_s: float = 0.0
    is_ready: Callable[[Plan], bool] = lambda plan: True
    measured: list[Plan] = field(default_factory=list)
    incumbents: list[float | None] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    promoted: list[Sequence[Plan]] = field(default_factory=list)
    closed: int = 0
    parts: dict[tuple[str, ...], FakeBench] = field(default_factory=dict)
    fingerprint: Fingerprint = field(
        default_factory=lambda: Fingerprint(H200.name, H200.sms, "9.0", "580.95", "13.0", "nvrtc", "k1", "0")
    )

    def prepare(self, plans: Sequence[Plan]) -> None:
        self.prepared += [plan.plan_id for plan in plans]

    def ready(self, plan: Plan) -> bool:
        self.begun.append(plan.plan_id)
        return self.is_ready(plan)

    def compiled(self, plan: Plan) -> bool:
        return self.is_ready(plan)

    def measure(self, plan: Plan, incumbent_us: float | None) -> Outcome:
        self.measured.append(plan)
        self.incumbents.append(incumbent_us)
        time.sleep(self.takes_s)
        return self.answer(plan)

    def verify(self, plan: Plan) -> str:
        outcome = self.answer(plan)
        return "" if outcome.status is Status.OK else f"{outcome.status}: {outcome.reason}"

    def paired(self, plans: Mapping[str, Plan]) -> tuple[dict[str, list[float]], dict[str, float]]:
        outcomes = {name: self.answer(plan) for name, plan in plans.items()}
        return {name: [o.measurement.span_us] * MIN_PAIRS for name, o in outcomes.items() if o.measurement}, {}

    def stamps(self, plan: Plan, kernels: Sequence[str]) -> Stamps:
        return Stamps(dict.fromkeys(kernels, (0.0, 1.0)), 1.0)

    def alone(self, ops: Sequence[str]) -> FakeBench:
        """A bench of the part, in `parts` under its ops; it answers the same."""
        problem = self.problem.part(ops)
        return self.parts.setdefault(problem.ops, FakeBench(self.answer, problem, self.policy, self.takes_s))

    def promote(self, finalists: Sequence[Plan], builtins: dict[str, Plan]) -> Winner:
        self.promoted.append(finalists)
        compared = arms(finalists, builtins)
        outcomes = {arm.name: _safe(self.answer, arm.plan) for arm in compared}
        samples = {name: [o.measurement.span_us] * MIN_PAIRS for name, o in outcomes.items() if o and o.measurement}
        decision = decide(compared, samples)
        return winner(
            decision,
            decision.ranked[0],
            samples,
            policy=self.policy,
            fingerprint=self.fingerprint,
            validated="scripted",
        )

    def close(self) -> None:
        self.closed += 1


def _safe(answer: Answer, plan: Plan) -> Outcome | None:
    try:
        return answer(plan)
    except (Exception, SystemExit):
        return None


class FakeBackend(Backend):
    """Hands out one bench."""

    name = "fake"
    simulated = False
    device = H200

    def __init__(
        self, answer: Answer = lambda plan: ok(spans(plan)), *, takes_s: float = 0.0, policy: Policy = POLICY
    ) -> None:
        self.bench = FakeBench(answer, policy=policy, takes_s=takes_s)

    def open(self, problem: Problem) -> FakeBench:
        self.problem = self.bench.problem = problem
        return self.bench


@cache
def space_of(ops: tuple[str, ...] | None = ("A0", "B0"), path: Path | None = None, shape: Shape = SHAPE) -> SearchSpace:
    return SearchSpace.load(WORKLOAD, ops, shape, H200, path)


def study_of(
    store: Store,
    space: SearchSpace,
    *,
    name: str = "s",
    sampler: str = "random",
    seed: int = 0,
    resume: bool = False,
    start: bool = False,
) -> Study:
    return store.study(
        name,
        workload=WORKLOAD.name,
        ops=tuple(space.graph.calls),
        shape=space.shape,
        device=H200,
        backend="fake",
        sampler=sampler,
        seed=seed,
        contract=WORKLOAD.contract,
        resume=resume,
        start=start,
    )


def search(
    store: Store,
    backend: FakeBackend,
    trials: int | None = 12,
    *,
    space: SearchSpace | None = None,
    sampler: str = "random",
    seed: int = 0,
    name: str = "s",
    resume: bool = False,
    seconds: float | None = None,
    observer: Observer | None = None,
    stop: Stop | None = None,
    process: int = 0,
    retry_failed: bool = False,
    deterministic: bool = False,
) -> TuneResult:
    """One search of a new (or resumed) study."""
    space = space or space_of()
    study = study_of(store, space, name=name, sampler=sampler, seed=seed, resume=resume)
    budget = Budget(trials, seconds)
    return tune(
        space,
        backend,
        store,
        study,
        budget,
        observer=observer,
        stop=stop,
        process=process,
        retry_failed=retry_failed,
        deterministic=deterministic,
    )


def raising(error: BaseException) -> Answer:
    """An answer that raises instead."""

    def answer(plan: Plan) -> Outcome:
        raise error

    return answer


SPILLS = CandidateError("compile_error", "ptxas: too many registers")


def small_space_file(
    folder: Path, threads: str = "[192, 384, 768]", block_n: str = "[64, 128]", kinds: str = "[full]"
) -> Path:
    """A space with few plans of A0 → B0: threads, block_n and kinds of edges; everything else is fixed."""
    text = SHIPPED_SPACE
    for old, new in (
        ("threads: [192, 384, 768]", f"threads: {threads}"),
        ("impl: [wgmma, mma_sync, deep_gemm]", "impl: [wgmma]"),
        ("block_m: [8, 16, 32, 64, 128, 256]", "block_m: [16]"),
        ("block_n: [16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192]", f"block_n: {block_n}"),
        ("warps: [4, 8]", "warps: [4]"),
        ("split_k: [1, 2, 3, 4, 6, 8, 12, 16]", "split_k: [6]"),
        ("stages: [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]", "stages: [6]"),
        ("finalizer: [kernel, last_arriver]", "finalizer: [kernel]"),
        ("finalizer_threads: [128, 256, 512]", "finalizer_threads: [256]"),
        ("schedule: [one_tile, persistent, stream_k]", "schedule: [one_tile]"),
        ("ctas: [0, 33, 66, 99, 132, 264, 37, 74, 111, 148, 296, 32, 64, 96, 128]", "ctas: [0]"),
        ("l2_prefetch_bytes: [0, 16384, 32768, 65536]", "l2_prefetch_bytes: [0]"),
        ("gdc: [entry, prologue, prefetch]", "gdc: [entry, prefetch]"),
        ("trigger: [exit, start, after_wait, before_epilogue]", "trigger: [exit, start]"),
        ("kinds: [full, programmatic, launch_order]", f"kinds: {kinds}"),
        ("kinds: [full, programmatic]", "kinds: [full]"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    rules = ("- {when:", "# ", "rules:")
    path = folder / "small.yaml"
    path.write_text("\n".join(line for line in text.splitlines() if not line.strip().startswith(rules)))
    return path
