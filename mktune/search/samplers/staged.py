"""Each op alone first, then streams and edges, then everything in context.

Ops are measured alone before the search (`wants_ops`): their best configs are where it starts, in the structures of
the built-in plans. Then only the graph is changed: orders, streams, edges, waits, triggers. At last one op takes
another of its good configs, or a step from its own, in the place where it runs: what is best alone need not be best
beside others. Where that gains nothing more, excursions begin, as a local sampler's do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mktune.graph.builtin import MODES, make_plan
from mktune.plan import Plan
from mktune.search.samplers.base import at_random
from mktune.search.samplers.local import JUMPS, LocalSampler, name_of
from mktune.space import Choices, SearchSpace
from mktune.space.fusion_dimension import NAME as FUSION

GRAPH_ONLY = 30
"""Proposals of the second stage."""
RANKED_SHARE = 0.25
"""Of the proposals of the third stage, those that give an op a config which was measured alone."""
RANKED = 8
"""Configs of an op, best alone first, that are worth a try in context; each half as likely as the one before."""
KINDS_SHARE = 0.5
"""Of those proposals, how many take the best config of a kind."""


class StagedSampler(LocalSampler):
    """See the module."""

    wants_ops = True

    def __init__(self, space: SearchSpace, seed: int) -> None:
        super().__init__(space, seed)
        self._alone: dict[str, list[tuple[float, Choices]]] = defaultdict(list)
        self._starts: list[tuple[Choices, Choices]] | None = None
        self._graph_only: set[tuple[tuple[str, str], ...]] = set()  # proposals of the second stage
        self._all_ops = False  # the third stage has begun
        self._expects = False

    def know_op(self, op: str, choices: Choices, span_us: float) -> None:
        self._alone[op] = sorted([*self._alone[op], (span_us, choices)], key=lambda pair: pair[0])

    def ask(self) -> tuple[Choices, Plan]:
        if not self._alone:
            return super().ask()  # nothing was measured alone
        if self._starts is None:
            self._starts = list(self._structures())
        if self._starts:
            start, changes = self._starts.pop(0)
            return self._noted(*self._changed(start, changes))
        if not self._expects and self._elites:
            self._expects = True
            self._expect(*min((elite[0] for elite in self._elites.values()), key=lambda pair: pair[0]))
        if not self._elites or self.draw.random() < JUMPS:
            return self._noted(*at_random(self.space, self.draw))
        if self._all_ops and self._excursions.wants_next():
            return self.elsewhere()
        base = self._base()
        if len(self._graph_only) < GRAPH_ONLY and not self._all_ops:
            graph = [name for name in base if not self.space.is_config(name)]
            choices, plan = self.fresh(base, dict.fromkeys(graph or base, 1.0))
            self._graph_only.add(name_of(choices))
            return choices, plan
        self._all_ops = True
        if self.draw.random() < RANKED_SHARE:
            return self._noted(*self._changed({**base, **self._ranked()}, {}))
        return self.fresh(base, dict.fromkeys(base, 1.0))

    def withdraw(self, choices: Choices) -> None:
        super().withdraw(choices)
        self._graph_only.discard(name_of(choices))

    def _structures(self) -> Iterator[tuple[Choices, Choices]]:
        """The built-in plans with every op's best config, as far as the space has them, and what to change in them: the
        last one again with whatever can be fused."""
        space = self.space
        best = {op: space.configs_of(op).to_plan(known[0][1]).op[op] for op, known in self._alone.items()}
        for mode in MODES:
            plan = make_plan(space.workload, tuple(space.graph.calls), space.shape, space.device.arch, mode, best)
            choices = space.to_choices(plan)
            if choices is not None:
                yield choices, {}
                for label in space.fusions if mode == MODES[-1] else ():
                    yield choices, {FUSION: label}

    def _expect(self, span_us: float, base: Choices) -> None:
        """What configs were worth alone is told once as what they would be worth in `base`, where others stand."""
        for known in self._alone.values():
            here_us = next((alone_us for alone_us, config in known if config.items() <= base.items()), known[0][0])
            for alone_us, config in known:
                if not config.items() <= base.items():
                    self._effects.tell({**base, **config}, max(alone_us, span_us + alone_us - here_us))

    def _ranked(self) -> Choices:
        """One op's config out of its best, or out of the best of each kind: what kind is best alone need not be beside
        others. The longer an op takes alone, the more often its turn comes."""
        ops = sorted(self._alone)
        (op,) = self.draw.choices(ops, [self._alone[op][0][0] for op in ops])
        known = self._alone[op]
        if self.draw.random() < KINDS_SHARE:
            best: dict[frozenset[str], tuple[float, Choices]] = {}
            for span_us, config in known:
                best.setdefault(_kind(config), (span_us, config))
            known = list(best.values())
        place, last = 0, min(RANKED, len(known)) - 1
        while place < last and self.draw.random() < 0.5:
            place += 1
        return known[place][1]


def _kind(config: Choices) -> frozenset[str]:
    """What is no number in a config: how it multiplies, adds up, and is scheduled."""
    return frozenset(field for label in config.values() for field in label.split() if not field[-1].isdigit())


SAMPLER = StagedSampler
