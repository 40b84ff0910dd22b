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


@dataclass
class _Part:
    """One op and what is known of it: `stored` in other studies, `missing` trials of the study that `loop` is."""

    call: Call
    space: SearchSpace
    benches: Benches[Begun]
    loop: Loop
    stored: list[Trial]
    missing: int
    proposals: Proposals

    def learned(self) -> Iterator[tuple[Choices, float]]:
        for span_us, plan in learned([*self.stored, *self.loop.trials], self.benches.policy):
            choices = self.space.to_choices(replace(plan, shape=self.space.shape))
            if choices is not None:
                yield choices, span_us

    def take_turn(self, turn: int, seconds: float | None) -> None:
        """Measure until the trials of this turn, from 0, are done; propose those of the next."""
        until = self.loop.resumed + math.ceil(self.missing * (turn + 1) / TURNS)
        self.loop.spending = Budget(until, seconds).start()
        self.loop.run(self.benches, self.proposals)
        if turn + 1 < TURNS:
            self.proposals.refill(math.ceil(self.missing / TURNS))


class OpStage:
    """The ops of `space`, measured by parts of `benches`, before the search that `whole` is."""

    def __init__(self, space: SearchSpace, benches: Benches[Begun], device: Device, whole: Loop) -> None:
        self._space, self._benches, self._device, self._whole = space, benches, device, whole

    def run(self, learn: Learn) -> None:
        """Tell `learn` the choices of every config that was measured, earlier or now, with its span in µs."""
        with self._whole.timed("alone"), ExitStack() as opened:
            parts = [self._part(call, opened) for call in self._space.graph.calls.values()]
            missing = [part for part in parts if part.missing > 0]
            for part in missing:
                part.proposals.refill(math.ceil(part.missing / TURNS))
            for part in missing:
                part.benches.prepare(part.proposals.made())
            turns = [(turn, part) for turn in range(TURNS) for part in missing]
            for place, (turn, part) in enumerate(turns):
                for each in missing:
                    each.benches.prepare(each.proposals.waiting())
                part.take_turn(turn, self._seconds(len(turns) - place))
            for part in missing:
                self._note_costs(part)
            for part in parts:
                for choices, span_us in part.learned():
                    learn(part.call.name, choices, span_us)

    def _part(self, call: Call, opened: ExitStack) -> _Part:
        benches = opened.enter_context(self._benches.alone((call.name,)))
        loop = self._loop(call, benches)
        stored = self._stored(call, loop.study)
        missing = TRIALS - sum(is_learned_by(trial, benches.policy) for trial in (*stored, *loop.trials))
        space = self._space.configs_of(call.name)
        given = [(f"{BUILTIN}serial", self._plain(space)), *self._starts(space)] if missing > 0 else []
        sampler = LocalSampler(space, mixed_seed(loop.study.seed, len(loop.trials)))
        limit = max(0, missing)
        proposals = opened.enter_context(Proposals(space, sampler, ALONE, given, limit, benches.number))
        loop.remember(benches.policy, proposals)
        return _Part(call, space, benches, loop, stored, limit, proposals)

    def _seconds(self, turns_left: int) -> float | None:
        """What the next turn may take."""
        seconds = self._whole.spending.seconds_left()
        if seconds is None:
            return None
        spent = self._whole.spending.budget.seconds or 0.0
        return max(1e-3, (seconds - (1.0 - SHARE) * spent) / turns_left)

    def _note_costs(self, part: _Part) -> None:
        loop, proposals = part.loop, part.proposals
        loop.store.add_counts(loop.study, invalid=proposals.invalid, duplicate=proposals.duplicate)
        self._whole.alone.add(proposals.seconds)
        self._whole.alone.add(loop.timed.seconds)

    def _plain(self, space: SearchSpace) -> Plan:
        return make_plan(space.workload, tuple(space.graph.calls), space.shape, self._device.arch, "serial")

    def _starts(self, space: SearchSpace) -> Iterator[tuple[str, Plan]]:
        """The op with configs that fit the shape, as far as they are valid and in the space."""
        arch = self._device.arch
        for name, call in space.graph.calls.items():
            for config in call.op.starts(arch, space.shape):
                plan = make_plan(space.workload, (name,), space.shape, arch, "serial", {name: config})
                if space.to_choices(plan) is not None and not check(plan, self._device):
                    yield ALONE, plan

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
