"""The first stage of a staged search: configs of each op alone, launched plainly, as a study of that op.

What was measured of an op stays in the store and serves every later study of it: of another seed, of another part of
the workload, and of another context length where the op's work does not depend on that.

The ops take turns, so that what one proposes next is compiled while the others are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mktune.device import Device
from mktune.graph.builtin import make_plan
from mktune.graph.opgraph import Call
from mktune.ops.base import Op
from mktune.plan import Plan
from mktune.search.benches import Benches
from mktune.search.budget import Budget
from mktune.search.loop import Begun, Loop, is_learned_by, learned
from mktune.search.proposals import Proposals
from mktune.search.samplers.base import mixed_seed
from mktune.search.samplers.local import LocalSampler
from mktune.shape import Shape
from mktune.space import Choices, SearchSpace
from mktune.trial import ALONE, BUILTIN, Trial
from mktune.validity import check

if TYPE_CHECKING:
    from mktune.store import Study

TRIALS = 48
"""Trials of each op. What is not known alone is seldom found in context: there most changes are of something else."""
TURNS = 3
"""Of each op, with an equal part of its trials. Each costs the tenth of a second that making its memory anew takes."""
SHARE = 0.4
"""Of the seconds that a search may take, what its ops may take together."""

Learn = Callable[[str, Choices, float], None]


@dataclass(frozen=True)
class _Part:
    """One op and what is known of it: `stored` in other studies, `missing` trials of the study that `loop` is."""

    call: Call
    space: SearchSpace
    benches: Benches[Begun]
    loop: Loop
    stored: list[Trial]
    missing: int

    def learned(self) -> Iterator[tuple[Choices, float]]:
        for span_us, plan in learned([*self.stored, *self.loop.trials], self.benches.policy):
            choices = self.space.to_choices(replace(plan, shape=self.space.shape))
            if choices is not None:
                yield choices, span_us


@dataclass(frozen=True)
class _Search:
    """The search for what a part is missing."""

    part: _Part
    proposals: Proposals

    def propose(self) -> None:
        """As many as a turn measures."""
        self.proposals.refill(math.ceil(self.part.missing / TURNS))

    def take_turn(self, turn: int, seconds: float | None) -> None:
        """Measure until the trials of this turn, from 0, are done; propose those of the next."""
        loop = self.part.loop
        loop.spending = Budget(loop.resumed + math.ceil(self.part.missing * (turn + 1) / TURNS), seconds).start()
        loop.run(self.part.benches, self.proposals)
        if turn + 1 < TURNS:
            self.propose()


class OpStage:
    """The ops of `space`, measured by parts of `benches`, before the search that `whole` is."""

    def __init__(self, space: SearchSpace, benches: Benches[Begun], device: Device, whole: Loop) -> None:
        self._space, self._benches, self._device, self._whole = space, benches, device, whole

    def run(self, learn: Learn) -> None:
        """Tell `learn` the choices of every config that was measured, earlier or now, with its span in µs."""
        with self._whole.timed("alone"), ExitStack() as opened:
            parts = [self._part(call, opened) for call in self._space.graph.calls.values()]
            searches = [self._search(part, opened) for part in parts if part.missing > 0]
            for search in searches:
                search.propose()
            for search in searches:
                search.part.benches.prepare(search.proposals.made())
            turns = [(turn, search) for turn in range(TURNS) for search in searches]
            for place, (turn, search) in enumerate(turns):
                for each in searches:
                    each.part.benches.prepare(each.proposals.waiting())
                search.take_turn(turn, self._seconds(len(turns) - place))
            for search in searches:
                self._note_costs(search)
            for part in parts:
                for choices, span_us in part.learned():
                    learn(part.call.name, choices, span_us)

    def _part(self, call: Call, opened: ExitStack) -> _Part:
        benches = opened.enter_context(self._benches.alone((call.name,)))
        loop = self._loop(call, benches)
        stored = self._stored(call, loop.study)
        missing = TRIALS - sum(is_learned_by(trial, benches.policy) for trial in (*stored, *loop.trials))
        return _Part(call, self._space.configs_of(call.name), benches, loop, stored, missing)

    def _search(self, part: _Part, opened: ExitStack) -> _Search:
        space, loop, benches = part.space, part.loop, part.benches
        plain = make_plan(space.workload, tuple(space.graph.calls), space.shape, self._device.arch, "serial")
        given = [(f"{BUILTIN}serial", plain), *((ALONE, plan) for plan in self._starts(space))]
        sampler = LocalSampler(space, mixed_seed(loop.study.seed, len(loop.trials)))
        proposals = opened.enter_context(Proposals(space, sampler, ALONE, given, part.missing, benches.number))
        loop.remember(benches.policy, proposals)
        return _Search(part, proposals)

    def _seconds(self, turns_left: int) -> float | None:
        """What the next turn may take."""
        seconds = self._whole.spending.seconds_left()
        if seconds is None:
            return None
        spent = self._whole.spending.budget.seconds or 0.0
        return max(1e-3, (seconds - (1.0 - SHARE) * spent) / turns_left)

    def _note_costs(self, search: _Search) -> None:
        loop, proposals = search.part.loop, search.proposals
        loop.store.add_counts(loop.study, invalid=proposals.invalid, duplicate=proposals.duplicate)
        self._whole.alone.add(proposals.seconds)
        self._whole.alone.add(loop.timed.seconds)

    def _starts(self, space: SearchSpace) -> Iterator[Plan]:
        """The op with configs that fit the shape, as far as they are valid and in the space."""
        arch = self._device.arch
        for name, call in space.graph.calls.items():
            for config in call.op.starts(arch, space.shape):
                plan = make_plan(space.workload, (name,), space.shape, arch, "serial", {name: config})
                if space.to_choices(plan) is not None and not check(plan, self._device):
                    yield plan

    def _loop(self, call: Call, benches: Benches[Begun]) -> Loop:
        """The study of this op at this shape, on these kernels: where it exists, it goes on."""
        whole, shape, build = self._whole, self._space.shape, benches.fingerprint.kernels
        simulated = " (simulated)" if benches.policy.simulated else ""
        known = self._space.workload
        study = whole.store.study(
            f"{known.full_name} {call.name} alone {shape.name} {self._device.name}{simulated} {build[:12]}",
            workload=known.name,
            ops=(call.name,),
            shape=shape,
            device=self._device,
            backend=whole.study.problem.backend,
            sampler=ALONE,
            seed=whole.study.seed,
            contract=known.contract,
            scale_format=known.scale_format,
            resume=True,
            start=True,
            build=build,
        )
        loop = Loop(whole.store, study, whole.spending, whole.observer, whole.stop, part=call.name)
        loop.resume()
        return loop

    def _stored(self, call: Call, mine: Study) -> list[Trial]:
        """Trials of the op in other studies, at this shape or at one that is no other work to it."""
        found = []
        for study in self._whole.store.studies():
            at = study.problem.shape
            if study.id == mine.id or replace(study.problem, shape=mine.problem.shape) != mine.problem:
                continue
            if at == mine.problem.shape or is_same_work(call.op, at, mine.problem.shape):
                found += self._whole.store.trials(study)
        return found


def is_same_work(op: Op, one: Shape, other: Shape) -> bool:
    """Two shapes differ, if at all, in a context length that the op does not depend on."""
    return replace(one, kv=other.kv) == other and (
        op.bytes_read(one) == op.bytes_read(other) and op.flops(one) == op.flops(other)
    )
