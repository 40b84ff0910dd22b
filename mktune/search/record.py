"""Measures every valid plan of a part of a search space, once, into a recording that samplers are compared on.

Plans are measured in a shuffled order, so that drift of the device looks like no choice, each by one short screening.
What was measured is appended to `<file>.part` at once: an interrupted recording goes on from there.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from mktune import strict_json
from mktune.backends.base import Backend, Bench, Problem
from mktune.backends.recording import (
    KEY_DIGITS,
    Header,
    Row,
    encode_header,
    encode_row,
    header_from_dict,
    pack,
    row_from_list,
    row_of,
)
from mktune.errors import CandidateError, InputError, SpaceError
from mktune.graph.builtin import builtin_plans
from mktune.locked_file import HeldElsewhere, held
from mktune.lowering.graph import runs_as
from mktune.plan import Plan
from mktune.search.loop import measured
from mktune.search.stopping import Stop
from mktune.space import SearchSpace, SubSpace, choose_free
from mktune.trial import Status
from mktune.validity import check

AHEAD = 48
"""Plans that compile while one is measured."""
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
MOST = 4
"""Free choices that may be added to make enough plans."""

Report = Callable[[int, int, Row], None]
"""Called with plans done, plans in all, and the last row."""


@dataclass(frozen=True)
class Job:
    """A plan to measure: the op that it is of, where it runs alone, its key and the options that it takes."""

    part: str
    key: str
    options: str
    plan: Plan


def choose_space(space: SearchSpace, base: Plan, plans: int) -> tuple[SubSpace, list[Job]]:
    """A part of `space` around `base` with at least so many valid plans that differ, and those.

    Raises SpaceError where there is none.
    """
    for skip in range(MOST):
        part = SubSpace(space, base, choose_free(space, base, plans, skip))
        jobs = list(jobs_of(part))
        if len(jobs) >= plans:
            return part, jobs
    raise SpaceError(f"only {len(jobs)} valid plans around {base.short_id}, not {plans}: name free choices")


def jobs_of(space: SubSpace, part: str = "") -> Iterator[Job]:
    """Every valid plan of the space, one of those that run the same."""
    seen = set()
    for places, _, plan in space.each():
        if check(plan, space.device):
            continue
        key = runs_as(plan, space.graph)[:KEY_DIGITS]
        if key not in seen:
            seen.add(key)
            yield Job(part, key, "".join(DIGITS[place] for place in places), plan)


def _builtin_jobs(space: SubSpace) -> list[Job]:
    plans = builtin_plans(space.workload, tuple(space.graph.calls), space.shape, space.device.arch).values()
    return [Job("", runs_as(plan, space.graph)[:KEY_DIGITS], "", plan) for plan in plans]


def _check_new(path: Path) -> None:
    if path.exists():
        raise InputError(f"{path} exists, and recordings are never changed: name another file (--out)")


class Recorder:
    """One recording into `path`. Raises InputError where there is one already, or a part of another."""

    def __init__(self, path: Path, space: SubSpace, backend: Backend, seed: int = 0, traces: bool = False) -> None:
        _check_new(path)
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._space, self._backend, self._traces = space, backend, traces
        self._problem = Problem.of(space.workload, tuple(space.graph.calls), space.shape, seed)

    def record(self, jobs: Sequence[Job], report: Report, stop: Stop) -> list[Row]:
        """Measure what is missing of `jobs`, the built-in plans and the free configs of each op alone; write the file.

        Raises Stopped where a signal asked for it, InputError where another process records into the same file, and
        what `Backend.open` does.
        """
        try:
            with held(self._part, wait=False):
                if self._path.exists():  # another process has ended it since this one was asked for
                    self._part.unlink()
                _check_new(self._path)
                return self._record(jobs, report, stop)
        except HeldElsewhere:
            raise InputError(f"another process records into {self._path}") from None

    def _record(self, jobs: Sequence[Job], report: Report, stop: Stop) -> list[Row]:
        space = self._space
        with self._backend.open(self._problem) as bench:
            parts = {op: list(jobs_of(space.configs_of(op), op)) for op in space.free_configs()}
            parts = {op: found for op, found in parts.items() if len(found) > 1 and len(self._problem.ops) > 1}
            header = self._header(bench, tuple(parts))
            rows = self._resume(header)
            wanted = {(job.part, job.key): job for job in [*_builtin_jobs(space), *jobs]}
            wanted |= {(op, job.key): job for op, found in parts.items() for job in found}
            with self._part.open("a", encoding="utf-8") as file:
                for part in ("", *parts):
                    missing = [job for at, job in wanted.items() if at not in rows and job.part == part]
                    with bench.alone((part,)) if part else nullcontext(bench) as at_hand:
                        at_hand.brief()
                        for row in self._measured(at_hand, missing, stop):
                            rows[row.part, row.key] = row
                            file.write(encode_row(row))
                            file.flush()
                            report(len(rows), len(wanted), row)
        kept = [row for at, row in rows.items() if at in wanted]
        self._write(pack(header, kept))
        return kept

    def _measured(self, bench: Bench, jobs: list[Job], stop: Stop) -> Iterator[Row]:
        """In a shuffled order, but what is compiled goes first."""
        random.Random(0).shuffle(jobs)
        left, window = deque(jobs), list[Job]()
        while left or window:
            fresh = [left.popleft() for _ in range(min(AHEAD - len(window), len(left)))]
            bench.prepare([job.plan for job in fresh])
            window += fresh
            place = next((place for place, job in enumerate(window) if bench.ready(job.plan)), 0)
            job = window.pop(place)
            with stop.interruptible():
                outcome = measured(bench, job.plan, None)
                path = self._traced(bench, job.plan) if outcome.status is Status.OK and not job.part else []
            yield row_of(job.part, job.key, job.options, outcome, path)

    def _traced(self, bench: Bench, plan: Plan) -> list[tuple[int, float]]:
        if not self._traces:
            return []
        try:
            steps = bench.trace(plan).path.steps
        except (CandidateError, InputError):
            return []  # a trace explains, and never scores
        places = {name: place for place, (name, _) in enumerate(plan.kernels)}
        return [(places[step.kernel], step.after_us + step.held_us) for step in steps]

    def _header(self, bench: Bench, parts: Sequence[str]) -> Header:
        policies = {}
        for op in parts:
            with bench.alone((op,)) as part:
                policies[op] = part.policy
        space = self._space
        device = replace(self._backend.device, uuid="")  # of a kind of GPU, not of one card
        return Header(self._problem, device, bench.policy, bench.fingerprint, space.base, space.free, policies)

    def _resume(self, header: Header) -> dict[tuple[str, str], Row]:
        """The rows of a recording that was interrupted, whose last line may be torn; none of a new one, still empty."""
        text = self._part.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        self._part.write_text(whole or encode_header(header), encoding="utf-8")
        first, *lines = whole.splitlines() or [encode_header(header)]
        where = str(self._part)
        if header_from_dict(strict_json.loads(first, where), where) != header:
            raise InputError(f"{where} is of another recording: remove it, or give another file")
        rows = [row_from_list(strict_json.loads(line, where), where) for line in lines]
        return {(row.part, row.key): row for row in rows}

    def _write(self, content: bytes) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_bytes(content)
        os.replace(fresh, self._path)
        self._part.unlink()
