"""Optuna's samplers, asked and told in memory.

One categorical per question, asked for as the walk comes to it, so that a question exists only where earlier answers
give rise to it. The study lives in memory: storing it in a database costs more than the trial. What the store
remembers is told again when a study is resumed.
"""

from __future__ import annotations

from typing import Any

import optuna

from mktune.plan import Plan
from mktune.search.samplers.base import Sampler
from mktune.space import Choices, Question, SearchSpace

STARTUP = 10
"""Trials before the estimator takes over from chance; built-in plans count."""


class OptunaSampler(Sampler):
    """See the module. `estimator` is what proposes."""

    def __init__(self, space: SearchSpace, seed: int, estimator: Any) -> None:
        super().__init__(space, seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study: Any = optuna.create_study(sampler=estimator)
        self._open: dict[tuple[tuple[str, str], ...], Any] = {}
        self._options: dict[str, tuple[str, ...]] = {}

    def ask(self) -> tuple[Choices, Plan]:
        trial = self._study.ask()

        def pick(question: Question) -> str:
            return str(trial.suggest_categorical(question.name, self._known(question)))

        choices, plan = self.space.walk(pick)
        key = tuple(choices.items())
        if key in self._open:
            self._study.tell(self._open.pop(key), state=optuna.trial.TrialState.FAIL)
        self._open[key] = trial
        return choices, plan

    def tell(self, choices: Choices, span_us: float | None) -> None:
        trial = self._open.pop(tuple(choices.items()), None)
        # A pruned trial ranks behind every complete one: the estimator learns to stay away from what fails.
        state = optuna.trial.TrialState.PRUNED if span_us is None else optuna.trial.TrialState.COMPLETE
        if trial is not None:
            self._study.tell(trial, values=span_us, state=state)
            return
        self.space.walk(lambda question: self._noted(question, choices))
        spaces = {name: optuna.distributions.CategoricalDistribution(self._options[name]) for name in choices}
        made = optuna.trial.create_trial(state=state, value=span_us, params=dict(choices), distributions=spaces)
        self._study.add_trial(made)

    def reject(self, choices: Choices, invalid: bool) -> None:
        trial = self._open.pop(tuple(choices.items()), None)
        if trial is not None:
            # The estimator learns from pruned trials, not from failed ones: what a duplicate is worth it knows.
            states = optuna.trial.TrialState
            self._study.tell(trial, state=states.PRUNED if invalid else states.FAIL)

    def _noted(self, question: Question, choices: Choices) -> str:
        self._known(question)
        return choices[question.name]

    def _known(self, question: Question) -> tuple[str, ...]:
        return self._options.setdefault(question.name, tuple(question.options))
