"""Changes a few choices of one of the best plans so far.

A space of forty questions is mostly made of bad plans, and good ones differ from the built-in plans in a few places:
a step from what is known to be good is worth more than a jump. Which step, the effects of single options tell
(`search.effects`); they are drawn anew for every proposal, so that what is little known is tried too. Where a single
question is changed it may be any: of a hundred options some always promise more than the four of a trigger.

Where that gains nothing more, excursions begin elsewhere (`search.excursions`): at a good plan in which one op has a
config from nothing, and so have a few questions about the graph.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from mktune.plan import Plan
from mktune.search.effects import Effects
from mktune.search.excursions import Excursions
from mktune.search.samplers.base import Sampler, at_random
from mktune.space import Choices, Question, nearest, question_stem
from mktune.space.fusion_dimension import NAME as FUSION

ELITE = 4
"""Plans of each fusion that may be changed."""
GAIN = 0.025
"""What twice the trials are taken to gain a fusion, of its span: in searches on an H200 it was 0.01 to 0.03."""
LEAST = 0.06
"""Share of the proposals that a fusion has in any case: what it gains at first may be more."""
START = 6
"""Plans from nothing before the first change, those that were told counted."""
JUMPS = 0.03
"""Share of proposals that start from nothing."""
STEPS = (1, 1, 2, 3, 100)
"""How many questions are answered anew, each entry equally likely; at most all that promise a gain."""
DISTURBED = 2
"""Questions about the graph, beside one op's config, that are answered from nothing where an excursion begins."""
BEHIND = 0.03
"""How far behind, at most, the fusion may be in which one begins."""
TRIES, WIDER = 24, 4
"""Tries for a proposal that is new, and after how many of them one more question is answered anew."""


class LocalSampler(Sampler):
    """See the module."""

    can_withdraw = True
    steps: Sequence[int] = STEPS

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # same arguments as the base
        self._elites: dict[str, list[tuple[float, Choices]]] = {}
        self._effects = Effects()
        self._options: dict[str, tuple[str, ...]] = {}
        self._like: dict[str, tuple[str, ...]] = {}
        self._told = 0
        self._tried: Counter[str] = Counter()  # plans of each fusion that were proposed, here or elsewhere
        self._proposed: set[tuple[tuple[str, str], ...]] = set()
        self._excursions = Excursions()

    def ask(self) -> tuple[Choices, Plan]:
        if not self._elites or self._told < START or self.draw.random() < JUMPS:
            return self._noted(*at_random(self.space, self.draw))
        if self._excursions.wants_next():
            return self.elsewhere()
        base = self._base()
        return self.fresh(base, dict.fromkeys(base, 1.0))

    def elsewhere(self) -> tuple[Choices, Plan]:
        """The next proposal of an excursion."""
        if self._excursions.best:
            base = self._better(self._excursions.best)
            found = self.fresh(base, dict.fromkeys(base, 1.0))
        else:
            found = self._disturbed()
        self._excursions.propose(name_of(found[0]))
        return found

    def _disturbed(self) -> tuple[Choices, Plan]:
        """The best plan of one of the best fusions, with answers from nothing."""
        base = min(self._elites.values(), key=lambda elite: elite[0][0] * (1.0 + BEHIND * self.draw.random()))[0][1]
        names = [name for name in base if len(self._options.get(name, ())) > 1]
        configs = [name for name in names if self.space.is_config(name)]
        graph = [name for name in names if not self.space.is_config(name)]
        for _ in range(TRIES):
            op = self.draw.choice(sorted({_op(name) for name in configs})) if configs else ""
            chosen = [name for name in configs if _op(name) == op]
            chosen += self.draw.sample(graph, min(DISTURBED, len(graph)))
            choices, plan = self._changed(base, {name: self.draw.choice(self._options[name]) for name in chosen})
            if name_of(choices) not in self._proposed:
                return self._noted(choices, plan)
        return self._noted(*at_random(self.space, self.draw))

    def fresh(self, base: Mapping[str, str], weights: Mapping[str, float]) -> tuple[Choices, Plan]:
        """`base` with a few of the questions in `weights` answered anew, as nobody proposed yet if there is such.

        A single question is drawn by weight; of several, those come first that promise most, times their weight.
        """
        for tries in range(TRIES):
            changes = self._promising(base, weights, 1 + tries // WIDER)
            if name_of({**base, **changes}) in self._proposed:
                continue
            choices, plan = self._changed(base, changes)
            if name_of(choices) not in self._proposed:
                return self._noted(choices, plan)
        return self._noted(*at_random(self.space, self.draw))

    def _promising(self, base: Mapping[str, str], weights: Mapping[str, float], least: int) -> dict[str, str]:
        """Changes of `base`: one, of any question; or those that promise most, beyond `least` only what gains.

        What is fused changes alone: it asks other questions, of which a sum of effects makes too much.
        """
        names = [name for name in sorted(weights) if len(self._options.get(name, ())) > 1]
        count = max(least, self.draw.choice(self.steps))
        if count == 1 and names:
            names = self.draw.choices(names, [weights[name] for name in names])
        drawn = self._effects.drawn(
            [(name, option) for name in names for option in self._options[name]], base, self.draw
        )
        best = {
            name: min((option for option in self._options[name] if option != base[name]), key=lambda o: drawn[name, o])
            for name in names
        }
        if count == 1:
            return best
        names = [name for name in names if name != FUSION] or names
        gains = {name: weights[name] * (drawn[name, base[name]] - drawn[name, best[name]]) for name in names}
        ranked = sorted(names, key=lambda name: -gains[name])
        kept = [name for place, name in enumerate(ranked[:count]) if place < least or gains[name] > 0]
        return {name: best[name] for name in kept}

    def _base(self) -> Choices:
        """One of the best plans of the fusion that promises most; the better of two, so that the best is changed most
        often.

        What is fused decides so much else that no few steps lead from one to the other.
        """
        return self._better(self._elites[min(self._elites, key=self._promise)])

    def _better(self, ranked: Sequence[tuple[float, Choices]]) -> Choices:
        """Of two at random."""
        first, second = self.draw.randrange(len(ranked)), self.draw.randrange(len(ranked))
        return ranked[min(first, second)][1]

    def _promise(self, fusion: str) -> float:
        """The span that a fusion would have come to, had all trials been its own: one that was seldom tried is not
        given up for being behind. 0 for one that has less than its share."""
        share = self._tried[fusion] / self._tried.total()
        return 0.0 if share < LEAST else self._elites[fusion][0][0] * (1.0 + GAIN * math.log2(share))

    def _changed(self, base: Mapping[str, str], changes: Mapping[str, str]) -> tuple[Choices, Plan]:
        """`base` with `changes`, and with what they give rise to and `base` has no answer to.

        Where kernels are fused or parted anew, the answers of one are those of the other, or what is nearest.
        """
        stems = {question_stem(name): label for name, label in base.items()}

        def pick(question: Question) -> str:
            self._options[question.name] = options = tuple(question.options)
            wanted = changes.get(question.name, base.get(question.name, stems.get(question_stem(question.name))))
            if wanted is not None and wanted in question.options:
                return wanted
            alike = self._alike(question, stems)
            return self._likely(question.name, options, base) if alike is None else nearest(alike, options)

        return self.space.walk(pick)

    def _alike(self, question: Question, stems: Mapping[str, str]) -> str | None:
        """The answer in `stems` to a question that is like this one."""
        stem = question_stem(question.name)
        if question.like:
            self._like[stem] = question.like
        others = (*question.like, *(name for name in stems if stem in self._like.get(name, ())))
        return next((stems[name] for name in others if name in stems), None)

    def _likely(self, name: str, options: Collection[str], base: Mapping[str, str]) -> str:
        """The option of the least effect, as drawn."""
        drawn = self._effects.drawn([(name, option) for option in options], base, self.draw)
        return min(options, key=lambda option: drawn[name, option])

    def _noted(self, choices: Choices, plan: Plan) -> tuple[Choices, Plan]:
        self._note(choices)
        return choices, plan

    def _note(self, choices: Choices) -> None:
        if name_of(choices) not in self._proposed:
            self._proposed.add(name_of(choices))
            self._tried[choices.get(FUSION, "")] += 1

    def tell(self, choices: Choices, span_us: float | None) -> None:
        self._told += 1
        self._note(choices)
        self._effects.tell(choices, span_us)
        self._excursions.tell(name_of(choices), choices, span_us)
        if span_us is not None:
            elite = self._elites.setdefault(choices.get(FUSION, ""), [])
            elite[:] = sorted([*elite, (span_us, choices)], key=lambda pair: pair[0])[:ELITE]
            if elite[0][1] is choices:
                self._changed(choices, {})  # what else could have been answered

    def withdraw(self, choices: Choices) -> None:
        if name_of(choices) in self._proposed:
            self._proposed.remove(name_of(choices))
            self._tried[choices.get(FUSION, "")] -= 1
        self._excursions.withdraw(name_of(choices))

    def reject(self, choices: Choices, invalid: bool) -> None:
        self._excursions.withdraw(name_of(choices))
        if invalid:
            self._effects.tell(choices, None)


def _op(question: str) -> str:
    """That the question is about: "B0" of "B0.ring"."""
    return question.partition(".")[0]


def name_of(choices: Choices) -> tuple[tuple[str, str], ...]:
    """Equal for equal choices, and may be looked up."""
    return tuple(choices.items())


SAMPLER = LocalSampler
