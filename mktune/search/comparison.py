"""Samplers compared on a recording: how many evaluations each needs to come near the recorded optimum.

Every sampler begins from nothing and is asked and told as in a search. An evaluation is a plan that the recording
holds and the sampler had not been told of; it is answered with recorded samples, so that two replays differ as two
measurements would. The incumbent is what looked best so far, and its loss is judged by what was recorded of it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from mktune.backends.recorded import RecordedBackend, RecordedBench
from mktune.backends.recording import Row
from mktune.errors import NothingFoundError
from mktune.plan import Plan
from mktune.search.op_stage import TRIALS
from mktune.search.proposals import PATIENCE
from mktune.search.samplers.base import at_random, make_sampler
from mktune.search.samplers.local import LocalSampler
from mktune.space import Choices, SearchSpace, SubSpace
from mktune.trace import CriticalPath

WITHIN = (0.05, 0.02, 0.01)
GIVE_UP = 1000
"""Proposals in a row that are no evaluation before a sampler is taken to be at its end."""


@dataclass(frozen=True)
class Replay:
    """One search. `losses[i]`: how far the incumbent lies above the optimum after i + 1 evaluations, as a fraction
    (infinite before the first plan that ran). `ask_seconds`: the sampler's own time for each evaluation."""

    sampler: str
    seed: int
    losses: tuple[float, ...]
    ask_seconds: float

    def evaluations(self, within: float) -> int | None:
        """Evaluations until the incumbent first lay that near; None where it never did."""
        return next((number for number, loss in enumerate(self.losses, 1) if loss <= within), None)


class Landscape:
    """A recording as samplers meet it."""

    def __init__(self, path: Path) -> None:
        self.backend = RecordedBackend(path)
        header = self.backend.header
        problem = header.problem
        whole = SearchSpace.load(problem.known, problem.ops, problem.shape, header.device)
        self.space = SubSpace(whole, header.base, header.free)
        self.bench = self.backend.open(problem)
        spans = [row.span_us for row in self.bench.rows.values() if row.ok and row.options]
        if not spans:
            raise NothingFoundError(f"no plan of {path} ran")
        self.plans, self.optimum_us = sum(bool(row.options) for row in self.bench.rows.values()), min(spans)
        self._found: dict[str, Row | None] = {}
        self._paths: dict[str, CriticalPath] = {}

    def row(self, plan: Plan) -> Row | None:
        """What was recorded of a plan; None: it is not valid."""
        if plan.plan_id not in self._found:
            self._found[plan.plan_id] = self.bench.find(plan)
        return self._found[plan.plan_id]

    def path(self, plan: Plan) -> CriticalPath:
        """The recorded critical path, or the model's."""
        if plan.plan_id not in self._paths:
            self._paths[plan.plan_id] = self.bench.trace(plan).path
        return self._paths[plan.plan_id]


def replay(landscape: Landscape, name: str, seed: int, evaluations: int) -> Replay:
    """One search of `evaluations` with the sampler of that name."""
    return _Search(landscape, name, seed).run(evaluations)


class _Search:
    def __init__(self, landscape: Landscape, name: str, seed: int) -> None:
        self._landscape, self._name, self._seed = landscape, name, seed
        self._sampler = make_sampler(name, landscape.space, seed)
        self._noise = random.Random(f"noise {seed}")
        self._told: set[str] = set()
        self._losses: list[float] = []
        self._best_us = self._loss = float("inf")
        self._asking = 0.0

    def run(self, evaluations: int) -> Replay:
        if self._sampler.wants_ops:
            self._measure_ops(evaluations)
        rejected = 0
        while len(self._losses) < evaluations and rejected < GIVE_UP:
            own = rejected < PATIENCE
            began = time.perf_counter()
            space = self._landscape.space
            choices, plan = self._sampler.ask() if own else at_random(space, self._sampler.draw)
            self._asking += time.perf_counter() - began if own else 0.0
            row = self._landscape.row(plan)
            if row is not None and row.key not in self._told:
                self._told.add(row.key)
                self._evaluate(choices, plan, row)
                rejected = 0
                continue
            if own:
                self._sampler.reject(choices, invalid=row is None)
            rejected += 1
        return Replay(self._name, self._seed, tuple(self._losses), self._asking / max(1, len(self._losses)))

    def _evaluate(self, choices: Choices, plan: Plan, row: Row) -> None:
        span = self._drawn(row)
        began = time.perf_counter()
        self._sampler.tell(choices, span)
        self._asking += time.perf_counter() - began
        if span is not None and span < self._best_us:
            self._best_us, self._loss = span, row.span_us / self._landscape.optimum_us - 1.0
            if self._sampler.wants_path:
                self._sampler.know_path(choices, self._landscape.path(plan))
        self._losses.append(self._loss)

    def _drawn(self, row: Row) -> float | None:
        """A span as another measurement would have found it: the median of recorded samples, drawn anew."""
        if not row.ok:
            return None
        return statistics.median(self._noise.choices(row.samples_us, k=len(row.samples_us)))

    def _measure_ops(self, evaluations: int) -> None:
        """The first stage of a search whose sampler wants it: each op alone. All of it counts."""
        landscape = self._landscape
        for op in landscape.space.free_configs():
            if op not in landscape.backend.header.parts:
                continue
            space, bench = landscape.space.configs_of(op), landscape.bench.alone((op,))
            sampler = LocalSampler(space, self._seed)
            for choices, row in _alone(sampler, bench):
                span = self._drawn(row)
                sampler.tell(choices, span)
                if span is not None:
                    self._sampler.know_op(op, choices, span)
                self._losses.append(self._loss)
        del self._losses[evaluations:]


def _alone(sampler: LocalSampler, bench: RecordedBench) -> Iterable[tuple[Choices, Row]]:
    """Configs of one op that differ, as the sampler proposes them."""
    told: set[str] = set()
    wanted = min(TRIALS, len(bench.rows))
    for _ in range(GIVE_UP):
        if len(told) == wanted:
            return
        choices, plan = sampler.ask()
        row = bench.find(plan)
        if row is not None and row.key not in told:
            told.add(row.key)
            yield choices, row


@dataclass(frozen=True)
class Standing:
    """What became of one sampler's searches.

    needed       within → evaluations at the median seed (None: more than the searches had)
    reached      within → searches that came so near
    ask_ms       the sampler's own time for an evaluation, median
    median, low, high  loss of the incumbent by evaluation: median and quartiles over seeds
    """

    sampler: str
    needed: Mapping[float, int | None]
    reached: Mapping[float, int]
    ask_ms: float
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json."""
        percent = {f"{100 * within:g}": number for within, number in self.needed.items()}
        curves = {name: [round(loss, 6) for loss in getattr(self, name)] for name in ("median", "low", "high")}
        reached = {f"{100 * within:g}": number for within, number in self.reached.items()}
        return {
            "sampler": self.sampler,
            "evaluations_within_percent": percent,
            "searches_within_percent": reached,
            "ask_ms": round(self.ask_ms, 3),
            "loss": curves,
        }


def standing(replays: Sequence[Replay]) -> Standing:
    """Of searches with one sampler."""
    needed = {within: _median_needed([one.evaluations(within) for one in replays]) for within in WITHIN}
    reached = {within: sum(one.evaluations(within) is not None for one in replays) for within in WITHIN}
    longest = max(len(one.losses) for one in replays)
    at = [sorted(_at(one, place) for one in replays) for place in range(longest)]
    quarter = (len(replays) - 1) / 4
    return Standing(
        replays[0].sampler,
        needed,
        reached,
        1e3 * statistics.median(one.ask_seconds for one in replays),
        tuple(losses[len(losses) // 2] for losses in at),
        tuple(losses[int(quarter)] for losses in at),
        tuple(losses[-1 - int(quarter)] for losses in at),
    )


def _at(one: Replay, place: int) -> float:
    """A search that came to its end keeps its incumbent."""
    return one.losses[min(place, len(one.losses) - 1)]


def _median_needed(numbers: Sequence[int | None]) -> int | None:
    """The upper median: half of the searches, or more, needed no more."""
    ordered = sorted(numbers, key=lambda number: (number is None, number))
    return ordered[len(ordered) // 2]


def compare(
    path: Path,
    samplers: Sequence[str],
    seeds: int,
    evaluations: int,
    processes: int = 1,
    done: Callable[[Replay], None] = lambda replay: None,
) -> list[Standing]:
    """Every sampler from seeds 0, 1, … on the recording in `path`."""
    jobs = [(str(path), name, seed, evaluations) for name in samplers for seed in range(seeds)]
    found: list[Replay] = []
    for one in _all(jobs, processes):
        found.append(one)
        done(one)
    return [standing([one for one in found if one.sampler == name]) for name in samplers]


def _all(jobs: Sequence[tuple[str, str, int, int]], processes: int) -> Iterable[Replay]:
    if processes < 2:
        yield from map(_job, jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_job, jobs)


def _job(job: tuple[str, str, int, int]) -> Replay:
    path, name, seed, evaluations = job
    return replay(_landscape(path), name, seed, evaluations)


@cache
def _landscape(path: str) -> Landscape:
    return Landscape(Path(path))
